"""The whole verdict of one file, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from taccl_py.collective import ROOTED, Kind
from taccl_py.demand import DataDemand
from taccl_py.errors import UnsupportedFeature, Violation
from taccl_py.runtimes import LEGACY, MAX_COUNT, RCCL, Runtime
from taccl_py.verify.msccl.demand import DemandContents, DemandUnits, fit_units
from taccl_py.verify.msccl.execute import (
    ExecutionResult,
    ends,
    ends_without_queues,
    find_cycles,
    is_split,
    least_capacity,
)
from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.msccl.geometry import BufferLengths, BufferPlacement, size_of_split
from taccl_py.verify.msccl.grammar import AlgoElement, parse_algorithm
from taccl_py.verify.msccl.images import FileImages, ImageContents, find_images
from taccl_py.verify.msccl.operations import ALL_RANKS, KernelProgram, make_plan
from taccl_py.verify.msccl.races import AccessOrder, HappensBefore, find_races
from taccl_py.verify.msccl.rules import (
    check_algorithm,
    check_connections,
    check_gpu,
    check_gpu_ids,
    find_geometry,
    largest_size,
)
from taccl_py.verify.msccl.semantics import Contents, RunSetting, check_contents, find_root, make_setting
from taccl_py.verify.msccl.step_rules import check_steps
from taccl_py.verify.msccl.text import read_document

MAX_CELLS = 1 << 23  # chunks of all buffers of all ranks that the verifier is ready to follow


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """Facts about a file.

    Attributes
    ----------
    name, protocol
        As written.
    kind
        The collective; None for a legacy custom file whose collective nobody named.
    num_ranks, num_chunks_per_loop, num_channels
        ``ngpus``, ``nchunksperloop``, ``nchannels``.
    in_place, out_of_place
        For which placements of the user's buffers the runtime may select it.
    min_bytes, max_bytes
        Sizes for which the runtime may select it, both inclusive; ``max_bytes`` None means no limit.
    safe_max_bytes
        Largest size at which the queues of the runtime are long enough and all accesses are ordered; None means no limit, 0 that
        no size is safe or that it is not known because the file could not be executed.
    root
        Root that the program works for (rooted collectives), found by executing it; else None.
    max_threadblocks, max_steps
        Most threadblocks on a GPU, most steps (nops included) in a threadblock.
    scratch_chunks
        Most chunks of scratch on a GPU.
    fifo_depth
        Shortest queues with which the program ends at every size, in operations; None when it never ends or could not
        be executed.
    flags_early
        Whether a step may overwrite what is still being sent, because the runtime raises the flags of such sends early.
    """

    name: str
    kind: Kind | None
    num_ranks: int
    num_chunks_per_loop: int
    protocol: str
    num_channels: int
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int | None
    safe_max_bytes: int | None
    root: int | None
    max_threadblocks: int
    max_steps: int
    scratch_chunks: int
    fifo_depth: int | None
    flags_early: bool


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """Verdict on a file.

    Attributes
    ----------
    facts
        Facts about the file, or None when its ``algo`` element cannot be read.
    violations
        All errors, sorted; empty for a file that loads, ends and is right.
    notes
        Harmless observations, sorted.
    unsupported
        Features that the verifier does not know: without errors the file is neither right nor wrong then.
    """

    facts: ProgramFacts | None
    violations: tuple[Violation, ...]
    notes: tuple[str, ...]
    unsupported: tuple[UnsupportedFeature, ...] = ()


class ProgramVerifier(Protocol):
    """Source of verdicts on files: `verify_program`, or a cache of its verdicts."""

    def __call__(
        self, text: str, runtime: Runtime, *, kind: Kind | None = None, root: int | None = None
    ) -> ProgramVerdict:
        """Verdict on a text."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Collective and root that the file must be for, where they were named."""

    kind: Kind | None
    root: int | None
    demand: DataDemand | None = None


@dataclass(frozen=True, slots=True)
class _ExecutedFile:
    """File to execute, without structural mistakes, and for which placements (True: in place)."""

    algorithm: AlgoElement
    geometry: BufferLengths
    runtime: Runtime
    placements: tuple[bool, ...]
    plan: KernelProgram
    images: FileImages | None
    demand: DemandUnits | None = None

    def contents(self, setting: RunSetting, findings: Findings) -> Contents:
        """Cells before the program runs."""
        if self.demand is not None:
            return DemandContents(setting, findings, self.demand.meaning)
        if self.images is None:
            return Contents(setting, findings)
        return ImageContents(setting, findings, self.plan, self.algorithm, self.images)


@dataclass(frozen=True, slots=True)
class _ExecutionFindings:
    """Findings from executing the program."""

    root: int | None = None
    safe_max_bytes: int | None = 0
    fifo_depth: int | None = None
    flags_early: bool = False


def verify_program(
    text: str, runtime: Runtime, *, kind: Kind | None = None, root: int | None = None, demand: DataDemand | None = None
) -> ProgramVerdict:
    """Decide whether a text is an MSCCL algorithm file that a runtime loads and runs without hanging and rightly.

    Parameters
    ----------
    text
        The file. Any text is verified; nothing is raised.
    runtime
        Where it is to run.
    kind
        The collective; needed for legacy ``coll="custom"``, compared otherwise.
    root
        The root rank that a rooted collective is for; compared with the one that the program works for.
    demand
        The demand that a legacy ``coll="custom"`` is for, instead of these.
    """
    images = None if demand is not None else find_images(text, runtime, kind)
    if images is not None:
        findings = Findings()
        algorithm = parse_algorithm(read_document(images.text, findings), runtime, findings)
        if algorithm is not None:
            algorithm = replace(algorithm, num_elements=algorithm.num_ranks)
            verdict = _verify(algorithm, runtime, _Asked(kind, root), findings, images)
            if not verdict.violations and not (verdict.facts is not None and verdict.facts.flags_early):
                return verdict
    findings = Findings()
    algorithm = parse_algorithm(read_document(text, findings), runtime, findings)
    if algorithm is None:
        return ProgramVerdict(None, findings.violations(), findings.notes())
    return _verify(algorithm, runtime, _Asked(kind, root, demand), findings, None)


def _verify(
    algorithm: AlgoElement, runtime: Runtime, asked: _Asked, findings: Findings, images: FileImages | None
) -> ProgramVerdict:
    """Verify an algorithm; with `images` its GPUs stand for all, and whoever objects must look at all of them to tell why."""
    kind, root = asked.kind, asked.root
    wires = ALL_RANKS if images is None else images.wires
    geometry = find_geometry(algorithm, runtime, kind, findings, named=asked.demand is not None)
    units = None if asked.demand is None else fit_units(algorithm, runtime, asked.demand, findings)
    check_algorithm(algorithm, runtime, findings)
    if images is None:
        check_gpu_ids(algorithm, findings)
    for gpu in algorithm.gpus:
        check_gpu(gpu, algorithm, geometry, runtime, findings)
    check_steps(algorithm, geometry, runtime, findings)
    check_connections(algorithm, findings, compare_counts=not findings.broken, wires=wires)
    placements = _placements(algorithm, runtime, findings)
    if root is not None and geometry is not None and geometry.kind is not None and geometry.kind not in ROOTED:
        findings.violation("", "wrong-root", f"{geometry.kind} has no root, and root {root} was asked for")
    run = _ExecutionFindings()
    if geometry is not None and not findings.broken and _is_small_enough(algorithm, geometry, findings):
        plan = make_plan(algorithm, wires)
        if units is not None:
            units.check_places(plan, findings)
        case = _ExecutedFile(algorithm, geometry, runtime, placements, plan, images, units)
        if not findings.broken:
            run = _execute(case, root, findings)
    facts = _facts(
        algorithm, None if geometry is None else geometry.kind, placements, largest_size(algorithm, runtime), run
    )
    return ProgramVerdict(facts, findings.violations(), findings.notes(), findings.features())


def _is_small_enough(algorithm: AlgoElement, geometry: BufferLengths, findings: Findings) -> bool:
    scratch = sum(gpu.scratch_chunks for gpu in algorithm.gpus)
    cells = len(algorithm.gpus) * (geometry.input_chunks + geometry.output_chunks) + scratch
    if cells > MAX_CELLS:
        what = (
            f"its buffers have {cells} chunks together; the verifier follows at most {MAX_CELLS}, so use fewer chunks"
        )
        findings.unsupported("size", what)
    return cells <= MAX_CELLS


def _execute(case: _ExecutedFile, root: int | None, findings: Findings) -> _ExecutionFindings:
    plan = case.plan
    whole = least_capacity(plan, MAX_COUNT)
    if whole.capacity is None:
        for cycle in find_cycles(plan, MAX_COUNT, None):
            findings.violation(cycle.where, "deadlock", cycle.what)
        return _ExecutionFindings()
    single = least_capacity(plan, 1) if is_split(plan, 1) and not ends_without_queues(plan) else whole
    slots = case.runtime.fifo_slots[case.algorithm.protocol]
    safe_max_bytes: int | None = None
    if whole.capacity > slots:
        safe_max_bytes = 0
        for cycle in find_cycles(plan, MAX_COUNT, slots):
            what = f"{_slots_text(case)}, and the program needs {whole.capacity}: {cycle.what}"
            findings.violation(cycle.where, "fifo-deadlock", what)
    elif single.capacity is None or single.capacity > slots:
        safe_max_bytes = _check_largest_size(case, slots, findings)
    checked = _check_placements(case, whole, root, findings)
    if checked.order.fewest_chunks > 1:
        safe_bytes = _check_split(case, checked.order, findings)
        safe_max_bytes = safe_bytes if safe_max_bytes is None else min(safe_bytes, safe_max_bytes)
    return _ExecutionFindings(checked.root, safe_max_bytes, single.capacity, checked.flags_early)


def _slots_text(case: _ExecutedFile) -> str:
    slots = case.runtime.fifo_slots[case.algorithm.protocol]
    return f"{case.algorithm.protocol} keeps at most {slots} unread operations on a connection"


def _check_largest_size(case: _ExecutedFile, slots: int, findings: Findings) -> int:
    """Largest size for which the runtime's queues are long enough; objects when the file may be used above it."""
    chunks = _smallest_safe_split(case.plan, slots)

    def reason() -> str:
        cycle = find_cycles(case.plan, chunks - 1, slots)[0]
        return f"{_slots_text(case)}, and {cycle.where}: {cycle.what}"

    return _limit_size(case, chunks, reason, findings)


def _check_split(case: _ExecutedFile, order: AccessOrder, findings: Findings) -> int:
    """Largest size at which all accesses are ordered; objects when the file may be used above it."""
    return _limit_size(case, order.fewest_chunks, lambda: order.reason, findings)


def _limit_size(case: _ExecutedFile, chunks: int, reason: Callable[[], str], findings: Findings) -> int:
    """Largest size at which one operation carries so many chunks; objects when the file may be used above it."""
    algorithm = case.algorithm
    payload = case.runtime.payload_bytes[algorithm.protocol]
    safe_bytes = size_of_split(algorithm.num_chunks_per_loop, payload, chunks)
    highest = largest_size(algorithm, case.runtime)
    if highest is None or highest > safe_bytes:
        allowed = safe_bytes + 1 if case.runtime.max_bytes_exclusive else safe_bytes
        what = (
            f"maxBytes={algorithm.max_bytes} is too large; at most {allowed}. Above {safe_bytes} bytes one operation carries fewer"
            f" than {chunks} chunks: {reason()}"
        )
        findings.violation("", "max-bytes-unsafe", what)
    return safe_bytes


def _smallest_safe_split(plan: KernelProgram, slots: int) -> int:
    """Fewest chunks per operation down to which the program ends; whole steps are known to be safe, and single chunks not to be.

    What ends with more messages ends with fewer: if of every so many messages of a step only the last one is looked at, no queue ever holds more.
    """
    counts = sorted({op.step.count for op in plan.operations if op.carries})
    unsafe, safe = 1, max(counts, default=1)
    while safe - unsafe > 1:
        middle = (unsafe + safe) // 2
        if ends(plan, middle, slots):
            safe = middle
        else:
            unsafe = middle
    return safe


_UNSEEN = AccessOrder(through_input=False)


@dataclass(frozen=True, slots=True)
class _Checked:
    """Findings on contents and accesses: the root that was found, how accesses are ordered, and see `ProgramFacts`."""

    root: int | None = None
    order: AccessOrder = _UNSEEN
    flags_early: bool = False


def _check_placements(
    case: _ExecutedFile, whole: ExecutionResult, asked_root: int | None, findings: Findings
) -> _Checked:
    """Contents and races for every placement that the file declares."""
    algorithm, geometry, plan = case.algorithm, case.geometry, case.plan
    placements = case.placements
    if geometry.kind is None and True in placements:
        placements = tuple(in_place for in_place in placements if not in_place)
        findings.note(
            "how the buffers of an unknown collective lie in each other in place is not known, so neither data nor races were"
            " looked at; name the collective"
        )
    if not placements:
        return _Checked()
    unknown = make_setting(algorithm, geometry, BufferPlacement(placements[0], None))
    root = find_root(plan, whole.order, unknown, asked_root)
    if asked_root is not None and root is not None and root != asked_root:
        findings.violation("", "wrong-root", f"the program works for root {root}, and root {asked_root} was asked for")
    settings = [make_setting(algorithm, geometry, BufferPlacement(in_place, root)) for in_place in placements]
    separate = [Findings() for _ in settings]
    for setting, found in zip(settings, separate, strict=True):
        check_contents(plan, whole.order, case.contents(setting, found), found)
    order = find_races(plan, whole.order, settings, separate, HappensBefore(messages=case.images is None))
    is_racy = any(violation.rule == "race" for found in separate for violation in found.violations())
    flags_early = not is_racy and _are_flags_early(case, whole, settings, order)
    if case.runtime.name == RCCL.name:
        _note_weak_order(order, flags_early, findings)
    _merge(separate, [setting.placement for setting in settings], findings)
    return _Checked(root, order, flags_early)


def _are_flags_early(
    case: _ExecutedFile, whole: ExecutionResult, settings: list[RunSetting], order: AccessOrder
) -> bool:
    """True if there are races once the flag of a send no longer says that the source was read, as with LL in RCCL."""
    if case.runtime.name != RCCL.name or case.algorithm.protocol != "LL":
        return False
    promises = HappensBefore(messages=case.images is None, flags_of_sends=False)
    separate = [Findings() for _ in settings]
    found = find_races(case.plan, whole.order, settings, separate, promises)
    return found.fewest_chunks > order.fewest_chunks or any(each.violations() for each in separate)


def _note_weak_order(order: AccessOrder, flags_early: bool, findings: Findings) -> None:
    if order.through_input:
        findings.note(
            "some steps read from the input buffer what another threadblock wrote there; this runtime orders memory"
            " between threadblocks only for the output and scratch"
        )
    if flags_early:
        findings.note(
            "some steps rely on the flag of a send before they overwrite what it reads; with LL this runtime may raise it"
            " before all threads have read it, so use LL128 or Simple"
        )


def _placements(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> tuple[bool, ...]:
    """Placements that must work, out of place first; the legacy runtime refuses AllToAll in place."""
    if runtime.name == LEGACY.name and algorithm.collective == "alltoall":
        if algorithm.placed_in:
            findings.note("the legacy runtime does not look at inplace for alltoall: it always runs out of place")
        return (False,)
    declared = ((False, algorithm.placed_out), (True, algorithm.placed_in))
    return tuple(in_place for in_place, used in declared if used)


def _merge(separate: list[Findings], placements: list[BufferPlacement], findings: Findings) -> None:
    """Take over what was found in each placement; say in which one when it is not all of them."""
    found = [set(each.violations()) for each in separate]
    for placement, violations in zip(placements, found, strict=True):
        for violation in violations:
            everywhere = all(violation in others for others in found)
            prefix = "" if everywhere else f"{placement.text}, "
            findings.violation(violation.where, violation.rule, f"{prefix}{violation.what}")


def _facts(
    algorithm: AlgoElement,
    kind: Kind | None,
    placements: tuple[bool, ...],
    max_bytes: int | None,
    run: _ExecutionFindings,
) -> ProgramFacts:
    blocks = [tb for gpu in algorithm.gpus for tb in gpu.threadblocks]
    return ProgramFacts(
        name=algorithm.name,
        kind=kind,
        num_ranks=algorithm.num_ranks,
        num_chunks_per_loop=algorithm.num_chunks_per_loop,
        protocol=algorithm.protocol,
        num_channels=algorithm.num_channels,
        in_place=True in placements,
        out_of_place=False in placements,
        min_bytes=algorithm.min_bytes,
        max_bytes=max_bytes,
        safe_max_bytes=run.safe_max_bytes,
        root=run.root,
        max_threadblocks=max((len(gpu.threadblocks) for gpu in algorithm.gpus), default=0),
        max_steps=max((len(tb.steps) for tb in blocks), default=0),
        scratch_chunks=max((gpu.scratch_chunks for gpu in algorithm.gpus), default=0),
        fifo_depth=run.fifo_depth,
        flags_early=run.flags_early,
    )
