"""The whole verdict of one plan, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taccl_py.collective import ROOTED, Buffer, Kind, parse_kind
from taccl_py.errors import InputError, Violation
from taccl_py.runtimes import MSCCLPP
from taccl_py.verify.msccl.findings import Findings, place, quoted
from taccl_py.verify.msccl.geometry import BufferLengths, BufferPlacement, Region, lay_out
from taccl_py.verify.msccl.semantics import Contents, RunSetting, best_root, check_results
from taccl_py.verify.mscclpp.grammar import Plan, read_plan_text
from taccl_py.verify.mscclpp.network import ChannelNetwork
from taccl_py.verify.mscclpp.rules import check_plan, find_geometry, owners_of, size_unit_bytes
from taccl_py.verify.mscclpp.run import PlanExecution

MAX_CELLS = 1 << 21  # chunks of all buffers of all ranks that the verifier is ready to follow


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
    """Verdict on a plan: facts, and all errors, sorted."""

    facts: PlanFacts
    violations: tuple[Violation, ...]


def verify_plan(text: str, path: str, *, kind: Kind | None = None, root: int | None = None) -> PlanVerdict:
    """Decide whether a text is a plan that MSCCL++ loads and runs without hanging and rightly.

    Parameters
    ----------
    text, path
        The file.
    kind, root
        Collective and root rank that it is meant for; compared where given.

    Raises
    ------
    InputError
        If it is no plan at all: not JSON, or a field is missing or of the wrong type.
    """
    plan = read_plan_text(text, path)
    findings = Findings()
    written = _kind_of(plan, findings)
    if kind is not None and written is not None and kind is not written:
        findings.violation("", "collective", f"the plan is for {written}, and {kind} was asked for")
    if root is not None and written is not None and written not in ROOTED:
        findings.violation("", "wrong-root", f"{written} has no root, and root {root} was asked for")
    check_plan(plan, MSCCLPP, findings)
    geometry = None if findings.broken else find_geometry(plan, written, findings)
    found = None
    if geometry is not None and not findings.broken and _is_small_enough(plan, findings):
        found = _execute(plan, geometry, root, findings)
    return PlanVerdict(_facts(plan, written, found), findings.violations())


def _kind_of(plan: Plan, findings: Findings) -> Kind | None:
    try:
        kind = parse_kind(plan.collective)
    except InputError:
        what = f"there is no collective {quoted(plan.collective)}, so the result cannot be verified; correct it"
        findings.violation("", "collective", what)
        return None
    spelled = MSCCLPP.collectives[kind]
    if plan.collective != spelled:
        what = f"{MSCCLPP.title} knows no collective {quoted(plan.collective)}, as it compares every letter; write {spelled}"
        findings.violation("", "collective", what)
    return kind


def _is_small_enough(plan: Plan, findings: Findings) -> bool:
    cells = sum(gpu.input_chunks + gpu.output_chunks + gpu.scratch_chunks for gpu in plan.gpus)
    if cells > MAX_CELLS:
        what = f"its buffers have {cells} chunks, and at most {MAX_CELLS} are verified; use fewer chunks"
        findings.violation("", "not-judged", what)
    return cells <= MAX_CELLS


def _execute(plan: Plan, geometry: BufferLengths, asked: int | None, findings: Findings) -> int | None:
    """Execute the plan and reject what it does; the root that it works for."""
    root = None
    if geometry.kind in ROOTED:
        # Where the root matters for what buffers there are it is not known yet; so nothing is rejected here.
        contents = _contents(plan, geometry, None, Findings())
        if PlanExecution(plan, ChannelNetwork(plan), contents, Findings()).execute():
            root = best_root(contents, asked)
            if asked is not None and root != asked:
                findings.violation("", "wrong-root", f"it works for root {root}, and root {asked} was asked for")
    contents = _contents(plan, geometry, root, findings)
    _check_buffers(plan, contents.setting, findings)
    if PlanExecution(plan, ChannelNetwork(plan), contents, findings).execute():
        check_results(contents, findings)
    return root


def _contents(plan: Plan, geometry: BufferLengths, root: int | None, findings: Findings) -> Contents:
    placement = BufferPlacement(plan.in_place, root)
    regions: tuple[Region, ...] = tuple(lay_out(geometry, placement, gpu.id, gpu.scratch_chunks) for gpu in plan.gpus)
    return Contents(RunSetting(geometry, placement, regions), findings)


@dataclass(frozen=True, slots=True)
class _BufferUse:
    """An operation of a rank names a buffer of some rank."""

    rank: int
    where: str
    owner: int
    buffer: Buffer
    writes: bool


def _uses(plan: Plan) -> Iterator[_BufferUse]:
    for gpu, block in ((one, block) for one in plan.gpus for block in one.blocks):
        for index, operation in enumerate(block.operations):
            where = place(gpu.id, block.id, index)
            if operation.name == "flush":
                continue  # its operands are only counted
            operands = [(one, False) for one in operation.sources] + [(one, True) for one in operation.targets]
            for operand, writes in operands:
                for owner, buffer in owners_of(plan, gpu, block, operation, operand):
                    yield _BufferUse(gpu.id, where, owner.id, buffer, writes)


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
        elif use.owner != use.rank and use.buffer is not Buffer.SCRATCH and region.base(use.buffer):
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
        max_operations=max((len(block.operations) for gpu in plan.gpus for block in gpu.blocks), default=0),
        max_channels=max(sum(map(len, gpu.peers.values())) for gpu in plan.gpus),
        scratch_chunks=max(gpu.scratch_chunks for gpu in plan.gpus),
    )
