"""Verdict on a plan for a demand, whose ranks have buffers of lengths of their own.

A plan counts in chunks that the buffers' lengths tell, which may be millions. What an operation moves together is followed as one cell: buffers
are cut wherever an operation or a chunk of the demand begins or ends, and wherever that comes to lie when something is moved, so that everybody
cuts alike.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace

from taccl_py.collective import Buffer
from taccl_py.demand import DataDemand
from taccl_py.runtimes import CUSTOM, MSCCLPP
from taccl_py.verify.msccl.demand import DemandContents, DemandMeaning
from taccl_py.verify.msccl.findings import Findings, place, quoted
from taccl_py.verify.msccl.geometry import BufferLengths, BufferPlacement, Region
from taccl_py.verify.msccl.semantics import RunSetting
from taccl_py.verify.mscclpp.grammar import SWITCH, Gpu, Operand, Operation, Plan, PlanThreadblock
from taccl_py.verify.mscclpp.rules import has_pipelines, owners_of
from taccl_py.verify.mscclpp.spans import slice_start

_Row = tuple[int, Buffer]
_MOST_CUTS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Parallel:
    """Places that hold the same, or of which one is moved to the others; `count` chunks each."""

    places: tuple[tuple[_Row, int], ...]
    count: int


@dataclass(frozen=True, slots=True)
class PlanForDemand:
    """A plan in cells, and what it must do.

    Attributes
    ----------
    plan
        With offsets and counts in cells.
    setting, meaning
        Buffers, and the demand, in these cells.
    """

    plan: Plan
    setting: RunSetting
    meaning: DemandMeaning

    def contents(self, findings: Findings) -> DemandContents:
        """Cells before the plan runs."""
        return DemandContents(self.setting, findings, self.meaning)


def fit_to_demand(plan: Plan, demand: DataDemand, findings: Findings) -> PlanForDemand | None:
    """Cut a plan without structural mistakes into cells; None, with the reason, if it is not for the demand."""
    if plan.collective != CUSTOM:
        what = f"the plan is for {quoted(plan.collective)}, and one for a demand says {CUSTOM}; no other is selected for it"
        findings.violation("", "collective", what, fatal=True)
    if plan.in_place:
        findings.violation(
            "", "placement", "a demand has buffers apart, and the plan is in place; lower it again", fatal=True
        )
    if len(plan.gpus) != demand.num_ranks:
        what = f"the plan is for {len(plan.gpus)} ranks, and the demand has {demand.num_ranks}"
        findings.violation("", "rank-count", what, fatal=True)
    if demand.reduces and demand.dtype not in MSCCLPP.sum_types:
        what = f"{MSCCLPP.title} does not add up {demand.dtype}; it can {', '.join(MSCCLPP.sum_types)}"
        findings.violation("", "data-type", what)
    if findings.broken:
        return None
    unit_bytes = _find_unit(plan, demand, findings)
    if not unit_bytes or not _is_plain(plan, findings):
        return None
    if any(one.slice is not None for _, _, one in _operations(plan)):
        plan = _in_parts(plan, unit_bytes // plan.alignment_bytes)
        unit_bytes = plan.alignment_bytes
    grid = _BufferCuts(plan)
    for group in (*_moved(plan), *_same(demand, unit_bytes)):
        grid.add(group)
    if not grid.settle():
        what = f"its operations cut buffers into more than {_MOST_CUTS} parts, and so many are not followed"
        findings.unsupported("size", what)
        return None
    return _in_cells(plan, demand, unit_bytes, grid)


def _find_unit(plan: Plan, demand: DataDemand, findings: Findings) -> int:
    """Bytes of a chunk of the plan; 0 if the lengths of its buffers do not belong to the demand."""
    units: set[int] = set()
    for gpu, given, wanted in zip(plan.gpus, demand.input_bytes, demand.output_bytes, strict=True):
        for name, chunks, length in (("input", gpu.input_chunks, given), ("output", gpu.output_chunks, wanted)):
            if length % chunks or (not length and chunks != 1):
                what = f"its {name} has {chunks} chunks, and that of the demand {length} bytes; one is no multiple of the other"
                findings.violation(place(gpu.id), "chunk-counts", what, fatal=True)
            elif length:
                units.add(length // chunks)
    if findings.broken:
        return 0
    unit_bytes = min(units)
    if len(units) > 1:
        what = f"its buffers have chunks of {unit_bytes} and of {max(units)} bytes; all chunks must be equal"
        findings.violation("", "chunk-counts", what, fatal=True)
        return 0
    if unit_bytes % plan.alignment_bytes:
        what = f"a chunk has {unit_bytes} bytes, no multiple of {plan.alignment_bytes}"
        findings.violation("", "alignment", what, fatal=True)
        return 0
    for gpu in plan.gpus:
        longest = unit_bytes * max(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks)
        if longest > MSCCLPP.max_offset_bytes:
            what = f"a buffer has {longest} bytes, and offsets only reach {MSCCLPP.max_offset_bytes}"
            findings.violation(place(gpu.id), "offset-overflow", what)
    for chunk in demand.chunks:
        ends = [at for group in (*chunk.terms, chunk.wants) for _, at in group]
        if any(at % unit_bytes for at in (*ends, chunk.size_bytes)):
            what = f"its chunks of {unit_bytes} bytes do not begin and end where those of the demand do"
            findings.violation("", "chunk-counts", what, fatal=True)
            return 0
    return unit_bytes


def _is_plain(plan: Plan, findings: Findings) -> bool:
    """True if the plan has only what is followed here: signals and data as they are, without packets, pipelines and switches."""
    operations = [one for gpu in plan.gpus for block in gpu.blocks for _, one in block.all_operations]
    for used, name in (
        (has_pipelines(plan), "pipelines"),
        (plan.uses_packets or any("pkt" in one.name for one in operations), "packets"),
        (any(one.channel_type == SWITCH for one in operations), "switch channels"),
        (plan.shares_scratch or plan.doubles_scratch, "shared or doubled scratch"),
        (any(one.name == "get" for one in operations), "gets"),
    ):
        if used:
            findings.unsupported("demand", f"plans for demands with {name} are not followed; lower it without")
            return False
    return True


def _in_parts(plan: Plan, pieces: int) -> Plan:
    """The same plan in cells that the runtime never cuts, so many in a chunk, in which each threadblock of a group has its own part.

    The first parts are longer by one cell where they cannot be equal (`taccl_py.verify.mscclpp.spans.slice_start`).
    """

    def part(operation: Operation) -> Operation:
        def own(operand: Operand) -> Operand:
            size = operand.size * pieces
            first, last = 0, size
            if operation.slice is not None:
                index, parts = operation.slice.index, operation.slice.parts
                first, last = slice_start(size, index, parts), slice_start(size, index + 1, parts)
            return replace(operand, index=operand.index * pieces + first, size=last - first)

        return replace(
            operation, sources=tuple(map(own, operation.sources)), targets=tuple(map(own, operation.targets)), slice=None
        )  # fmt: skip

    def finer(gpu: Gpu) -> Gpu:
        blocks = (replace(block, operations=tuple(map(part, block.operations))) for block in gpu.blocks)
        return replace(
            gpu, input_chunks=gpu.input_chunks * pieces, output_chunks=gpu.output_chunks * pieces,
            scratch_chunks=gpu.scratch_chunks * pieces, blocks=tuple(blocks),
        )  # fmt: skip

    return replace(plan, gpus=tuple(map(finer, plan.gpus)))


def _places(plan: Plan, gpu: Gpu, block: PlanThreadblock, operation: Operation, operand: Operand) -> tuple[_Row, int]:
    ((owner, buffer),) = owners_of(plan, gpu, block, operation, operand)
    return (owner.id, buffer), operand.index


def _operations(plan: Plan) -> Iterator[tuple[Gpu, PlanThreadblock, Operation]]:
    for gpu in plan.gpus:
        for block in gpu.blocks:
            for operation in block.operations:
                if operation.name != "flush":  # its operands are only counted
                    yield gpu, block, operation


def _moved(plan: Plan) -> Iterator[_Parallel]:
    for gpu, block, operation in _operations(plan):
        pairs = operation.name in ("put", "pws", "pwsf")
        groups = (
            zip(operation.sources, operation.targets, strict=True)
            if pairs
            else [(*operation.sources, *operation.targets)]
        )
        for operands in groups:
            if operands and operands[0].size:
                yield _Parallel(tuple(_places(plan, gpu, block, operation, one) for one in operands), operands[0].size)


def _same(demand: DataDemand, unit_bytes: int) -> Iterator[_Parallel]:
    for chunk in demand.chunks:
        held = [((rank, Buffer.INPUT), at // unit_bytes) for term in chunk.terms for rank, at in term]
        wanted = [((rank, Buffer.OUTPUT), at // unit_bytes) for rank, at in chunk.wants]
        yield _Parallel((*held, *wanted), chunk.size_bytes // unit_bytes)


class _BufferCuts:
    """Places at which the buffers are cut."""

    def __init__(self, plan: Plan) -> None:
        self.cuts: dict[_Row, list[int]] = {}
        for gpu in plan.gpus:
            lengths = ((Buffer.INPUT, gpu.input_chunks), (Buffer.OUTPUT, gpu.output_chunks))
            for buffer, length in (*lengths, (Buffer.SCRATCH, gpu.scratch_chunks)):
                self.cuts[gpu.id, buffer] = [0, length] if length else [0]
        self._known = {row: set(cuts) for row, cuts in self.cuts.items()}
        self._groups: dict[_Row, list[tuple[int, _Parallel]]] = {row: [] for row in self.cuts}
        self._new: list[tuple[_Row, int]] = []

    def add(self, group: _Parallel) -> None:
        """Cut at the ends of places, and remember that these are cut alike."""
        for row, start in group.places:
            self._groups[row].append((start, group))
            self._cut(row, start)
            self._cut(row, start + group.count)

    def settle(self) -> bool:
        """Cut alike what is moved to each other, until all is; False if that are too many cuts."""
        inside: set[tuple[_Row, int]] = set()
        for row, groups in self._groups.items():
            cuts = self.cuts[row]
            for start, group in groups:
                found = cuts[bisect_right(cuts, start) : bisect_left(cuts, start + group.count)]
                inside.update((row, cut) for cut in found)
        self._new = sorted(inside)
        while self._new:
            row, cut = self._new.pop()
            for start, group in self._groups[row]:
                if start < cut < start + group.count:
                    for other, first in group.places:
                        self._cut(other, first + cut - start)
            if sum(map(len, self.cuts.values())) > _MOST_CUTS:
                return False
        return True

    def _cut(self, row: _Row, at: int) -> None:
        if at not in self._known[row]:
            self._known[row].add(at)
            insort(self.cuts[row], at)
            self._new.append((row, at))

    def cell(self, row: _Row, at: int) -> int:
        """Number of the cell that begins there."""
        return bisect_left(self.cuts[row], at)

    def length(self, rank: int, buffer: Buffer) -> int:
        """Cells of a buffer."""
        return max(0, len(self.cuts[rank, buffer]) - 1)


def _in_cells(plan: Plan, demand: DataDemand, unit_bytes: int, grid: _BufferCuts) -> PlanForDemand:
    gpus = []
    regions = []
    for gpu, given, wanted in zip(plan.gpus, demand.input_bytes, demand.output_bytes, strict=True):
        lengths = [grid.length(gpu.id, buffer) for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)]
        blocks = tuple(
            replace(block, operations=tuple(_cut(plan, gpu, block, one, grid) for one in block.operations))
            for block in gpu.blocks
        )
        gpus.append(
            replace(gpu, input_chunks=lengths[0], output_chunks=lengths[1], scratch_chunks=lengths[2], blocks=blocks)
        )
        regions.append(Region(0, lengths[0], lengths[0] + lengths[1], sum(lengths), given > 0, wanted > 0))

    def cells_of(rank: int, buffer: Buffer, offset_bytes: int, size_bytes: int) -> range:
        row, first = (rank, buffer), offset_bytes // unit_bytes
        return range(grid.cell(row, first), grid.cell(row, first + size_bytes // unit_bytes))

    geometry = BufferLengths(None, len(gpus), 0, 0, 0)
    setting = RunSetting(geometry, BufferPlacement(in_place=False, root=None), tuple(regions))
    return PlanForDemand(replace(plan, gpus=tuple(gpus)), setting, DemandMeaning.of(demand, cells_of))


def _cut(plan: Plan, gpu: Gpu, block: PlanThreadblock, operation: Operation, grid: _BufferCuts) -> Operation:
    if operation.name == "flush":
        return operation

    def cells(operand: Operand) -> Operand:
        row, first = _places(plan, gpu, block, operation, operand)
        start = grid.cell(row, first)
        return replace(operand, index=start, size=grid.cell(row, first + operand.size) - start)

    return replace(
        operation, sources=tuple(map(cells, operation.sources)), targets=tuple(map(cells, operation.targets))
    )
