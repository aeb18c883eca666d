"""The whole verdict of one plan, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from taccl_py.collective import ROOTED, Buffer, Kind, parse_kind
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError, UnsupportedFeature, Violation
from taccl_py.runtimes import CUSTOM, MSCCLPP
from taccl_py.verify.msccl.findings import Findings, place, quoted
from taccl_py.verify.msccl.geometry import BufferLengths, BufferPlacement, Region, lay_out
from taccl_py.verify.msccl.semantics import Contents, RunSetting, best_root, check_results
from taccl_py.verify.mscclpp.demand import fit_to_demand
from taccl_py.verify.mscclpp.grammar import PORT, Plan, read_plan_text
from taccl_py.verify.mscclpp.rules import check_plan, find_geometry, owners_of, size_unit_bytes
from taccl_py.verify.mscclpp.run import PlanExecution
from taccl_py.verify.mscclpp.sizings import find_sizes
from taccl_py.verify.mscclpp.spans import Sizing

MAX_CELLS = 1 << 21  # cells of all buffers of all ranks that the verifier is ready to follow
_ORDERS = 8  # in which a plan is executed where it matters who comes first


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """Facts about a plan.

    Attributes
    ----------
    name
        As written.
    kind
        The collective; None if there is none of that name.
    num_ranks
        R.
    in_place
        For which placement of the user's buffers it is.
    min_bytes, max_bytes
        Sizes for which the runtime may select it, both inclusive.
    unit_bytes
        Of what a size, counted as those, must be a multiple for the runtime to run it: of its aligned chunks.
    root
        Root that it works for (rooted collectives), found by executing it; else None.
    max_threadblocks, max_operations, max_channels
        Most threadblocks and channels on a GPU, most operations in a threadblock.
    scratch_chunks
        Most chunks of scratch on a GPU.
    """

    name: str
    kind: Kind | None
    num_ranks: int
    in_place: bool
    min_bytes: int
    max_bytes: int
    unit_bytes: int
    root: int | None
    max_threadblocks: int
    max_operations: int
    max_channels: int
    scratch_chunks: int


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """Verdict on a plan.

    Attributes
    ----------
    facts
        What the plan is.
    violations
        All errors, sorted.
    notes
        Remarks on what is harmless.
    unsupported
        Features that the verifier does not know: without errors the plan is neither right nor wrong then.
    """

    facts: PlanFacts
    violations: tuple[Violation, ...]
    notes: tuple[str, ...] = ()
    unsupported: tuple[UnsupportedFeature, ...] = ()


def verify_plan(
    text: str, path: str, *, kind: Kind | None = None, root: int | None = None, demand: DataDemand | None = None
) -> PlanVerdict:
    """Decide whether a text is a plan that MSCCL++ loads and runs without hanging and rightly.

    Parameters
    ----------
    text, path
        The file.
    kind, root
        Collective and root rank that it is meant for; compared where given.
    demand
        Demand that it is meant for, instead of these.

    Raises
    ------
    InputError
        If it is no plan at all: not JSON, or a field is missing or of the wrong type.
    """
    plan = read_plan_text(text, path)
    findings = Findings()
    check_plan(plan, MSCCLPP, findings)
    if demand is not None:
        if not findings.broken:
            _verify_for_demand(plan, demand, findings)
        return PlanVerdict(_facts(plan, None, None), findings.violations(), findings.notes(), findings.features())
    written = _kind_of(plan, findings)
    if kind is not None and written is not None and kind is not written:
        findings.violation("", "collective", f"the plan is for {written}, and {kind} was asked for")
    if root is not None and written is not None and written not in ROOTED:
        findings.violation("", "wrong-root", f"{written} has no root, and root {root} was asked for")
    geometry = None if findings.broken else find_geometry(plan, written, findings)
    found = None
    if geometry is not None and not findings.broken:
        found = _verify_sizes(plan, geometry, root, findings)
    return PlanVerdict(_facts(plan, written, found), findings.violations(), findings.notes(), findings.features())


def _verify_for_demand(plan: Plan, demand: DataDemand, findings: Findings) -> None:
    """Execute the plan on the buffers of the demand."""
    fitted = fit_to_demand(plan, demand, findings)
    if fitted is None or findings.broken:
        return
    _remark(plan, findings)
    _check_buffers(fitted.plan, fitted.setting, findings)
    orders = [None, *map(random.Random, range(_ORDERS))]
    for order in orders:
        contents = fitted.contents(findings)
        execution = PlanExecution(fitted.plan, Sizing(1), contents, findings, order)
        if execution.execute():
            contents.check_results(findings)
        if findings.violations() or not execution.network.contended():
            return


def _kind_of(plan: Plan, findings: Findings) -> Kind | None:
    try:
        kind = parse_kind(plan.collective)
    except InputError:
        if plan.collective == CUSTOM:
            what = "the plan is for a demand, which it does not say; taccl check FILE --demand my.json verifies it"
            findings.unsupported("collective", what)
            return None
        if plan.collective in MSCCLPP.other_collectives:
            what = f"what collective {quoted(plan.collective)} promises is not known here, so its result cannot be verified"
            findings.unsupported("collective", what)
            return None
        what = f"there is no collective {quoted(plan.collective)}, so the result cannot be verified; correct it"
        findings.violation("", "collective", what)
        return None
    spelled = MSCCLPP.collectives[kind]
    if plan.collective != spelled:
        what = f"{MSCCLPP.title} knows no collective {quoted(plan.collective)}, as it compares every letter; write {spelled}"
        findings.violation("", "collective", what)
    return kind


def _verify_sizes(plan: Plan, geometry: BufferLengths, asked: int | None, findings: Findings) -> int | None:
    """Execute the plan for all lengths of its chunks that matter, until one is wrong; the root that it works for."""
    sizes = find_sizes(plan, findings)
    longest = max((one.pieces for one in sizes.declared), default=0)
    cells = longest * sum(gpu.input_chunks + gpu.output_chunks + 4 * gpu.scratch_chunks for gpu in plan.gpus)
    if cells > MAX_CELLS:
        what = f"its buffers have {cells} cells, and at most {MAX_CELLS} are followed; use fewer chunks"
        findings.unsupported("size", what)
    if findings.broken:
        return None
    _remark(plan, findings)
    root = None
    for sizing in sizes.declared:
        root = _execute(plan, geometry, sizing, asked, findings)
        if findings.violations():
            return root
    if sizes.beyond is not None:
        trial = Findings()
        _execute(plan, geometry, sizes.beyond, asked, trial)
        if trial.violations():
            what = f"messages of more than {sizes.beyond_bytes} bytes go wrong, as chunks are longer than their scratch then"
            findings.note(f"{what} ({trial.violations()[0]}); write max_message_size")
    return root


def _remark(plan: Plan, findings: Findings) -> None:
    """Remark on what is right for most buffers."""
    for gpu in plan.gpus:
        for block in gpu.blocks:
            for step, operation in block.all_operations:
                if operation.name != "get":
                    continue
                owners = [one for far in operation.sources for one in owners_of(plan, gpu, block, operation, far)]
                if any(buffer is not Buffer.SCRATCH for _, buffer in owners):
                    what = f"{place(gpu.id, block.id, step)}: get is right only for buffers that begin where their memory does"
                    findings.note(f"{what}, as the runtime takes each side's offset for the other (handleGet)")
                    return


def _execute(
    plan: Plan, geometry: BufferLengths, sizing: Sizing, asked: int | None, findings: Findings
) -> int | None:  # fmt: skip
    """Execute the plan and reject what it does; the root that it works for."""
    root = None
    scaled = replace(
        geometry,
        shard=geometry.shard * sizing.pieces,
        input_chunks=geometry.input_chunks * sizing.pieces,
        output_chunks=geometry.output_chunks * sizing.pieces,
    )
    if geometry.kind in ROOTED:
        # Where the root matters for what buffers there are it is not known yet; so nothing is rejected here.
        contents = _contents(plan, scaled, sizing, None, Findings())
        if PlanExecution(plan, sizing, contents, Findings()).execute():
            root = best_root(contents, asked)
            if asked is not None and root != asked:
                findings.violation("", "wrong-root", f"it works for root {root}, and root {asked} was asked for")
    contents = _contents(plan, scaled, sizing, root, findings)
    _check_buffers(plan, contents.setting, findings)
    execution = PlanExecution(plan, sizing, contents, findings)
    if execution.execute():
        check_results(contents, findings)
    if execution.network.contended():
        for seed in range(_ORDERS):
            if findings.violations():
                break
            contents = _contents(plan, scaled, sizing, root, findings)
            PlanExecution(plan, sizing, contents, findings, random.Random(seed)).execute()
    return root


def _contents(plan: Plan, geometry: BufferLengths, sizing: Sizing, root: int | None, findings: Findings) -> Contents:
    placement = BufferPlacement(plan.in_place, root)
    regions: tuple[Region, ...] = tuple(
        lay_out(geometry, placement, gpu.id, sizing.scratch_cells(plan, gpu)) for gpu in plan.gpus
    )
    return Contents(RunSetting(geometry, placement, regions), findings)


@dataclass(frozen=True, slots=True)
class _BufferUse:
    """An operation of a rank names a buffer of some rank."""

    rank: int
    where: str
    owner: int
    buffer: Buffer
    writes: bool
    proxied: bool


def _uses(plan: Plan) -> Iterator[_BufferUse]:
    for gpu, block in ((one, block) for one in plan.gpus for block in one.blocks):
        for index, operation in block.all_operations:
            where = place(gpu.id, block.id, index)
            if operation.name == "flush":
                continue  # its operands are only counted
            operands = [(one, False) for one in operation.sources] + [(one, True) for one in operation.targets]
            for operand, writes in operands:
                for owner, buffer in owners_of(plan, gpu, block, operation, operand):
                    yield _BufferUse(gpu.id, where, owner.id, buffer, writes, operation.channel_type == PORT)


def _check_buffers(plan: Plan, setting: RunSetting, findings: Findings) -> None:
    """Report buffers that may be NULL, to writes to the caller's input, and to remote buffers that lie elsewhere."""
    for use in _uses(plan):
        region = setting.regions[use.owner]
        there = {Buffer.INPUT: region.has_input, Buffer.OUTPUT: region.has_output}.get(use.buffer, True)
        if not there:
            what = f"it uses a buffer of gpu {use.owner} that may be NULL there; use scratch"
            findings.violation(use.where, "null-buffer", what)
        elif use.writes and use.buffer is Buffer.INPUT and not plan.in_place:
            what = "it writes to the input, which belongs to the caller and is constant; write to the output or scratch"
            findings.violation(use.where, "input-overwritten", what)
        elif (use.owner != use.rank or use.proxied) and use.buffer is not Buffer.SCRATCH and region.base(use.buffer):
            _check_shift(plan, setting, use, findings)


def _check_shift(plan: Plan, setting: RunSetting, use: _BufferUse, findings: Findings) -> None:
    """In place the shorter buffer lies in the longer one, at another offset on every rank."""
    region = setting.regions[use.owner]
    if not plan.in_place or not (region.has_input and region.has_output):
        return
    name = "output" if use.buffer is Buffer.INPUT else "input"
    what = f"in place that buffer of gpu {use.owner} begins elsewhere than on other ranks, which the runtime takes for granted"
    findings.violation(use.where, "shifted-buffer", f"{what}; name the same cells in the {name}")


def _facts(plan: Plan, kind: Kind | None, root: int | None) -> PlanFacts:
    return PlanFacts(
        name=plan.name,
        kind=kind,
        num_ranks=len(plan.gpus),
        in_place=plan.in_place,
        min_bytes=plan.min_bytes,
        max_bytes=plan.max_bytes,
        unit_bytes=size_unit_bytes(plan),
        root=root,
        max_threadblocks=max(len(gpu.blocks) for gpu in plan.gpus),
        max_operations=max((len(block.all_operations) for gpu in plan.gpus for block in gpu.blocks), default=0),
        max_channels=max(sum(map(len, gpu.peers.values())) for gpu in plan.gpus),
        scratch_chunks=max(gpu.scratch_chunks for gpu in plan.gpus),
    )
