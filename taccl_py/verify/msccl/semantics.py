"""Does it compute the right thing: what every cell of every buffer holds, symbolically.

A value is a whole number: the chunk that it stems from, shifted left by the number of ranks, plus one bit for each rank whose
contribution is in it. The chunk of a reducing collective is its position in the buffer, which all ranks share; of the
others it is the cell of the input where it started. A sum is right when the chunks are equal and no rank is in both terms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taccl_py.collective import COMBINING, ROOTED, Address, Buffer, Kind
from taccl_py.verify.msccl.findings import Findings, place
from taccl_py.verify.msccl.geometry import BufferLengths, BufferPlacement, Region, lay_out
from taccl_py.verify.msccl.grammar import AlgoElement
from taccl_py.verify.msccl.operations import KernelOperation, KernelProgram

# Collectives after which all ranks hold the same.
_ALIKE = frozenset({Kind.ALLGATHER, Kind.ALLREDUCE, Kind.BROADCAST})
UNWRITTEN = -1  # nobody has written the cell
WRONG = -2  # rejected before; whatever is made of it is not rejected again


@dataclass(frozen=True, slots=True)
class RunSetting:
    """Setting in which the program is run: a geometry, a placement, and the cells of every rank in it."""

    geometry: BufferLengths
    placement: BufferPlacement
    regions: tuple[Region, ...]


def make_setting(algorithm: AlgoElement, geometry: BufferLengths, placement: BufferPlacement) -> RunSetting:
    """Setting of an algorithm."""
    scratch = sorted((gpu.id, gpu.scratch_chunks) for gpu in algorithm.gpus)
    return RunSetting(
        geometry, placement, tuple(lay_out(geometry, placement, rank, chunks) for rank, chunks in scratch)
    )


def find_root(plan: KernelProgram, order: Sequence[int], setting: RunSetting, asked: int | None) -> int | None:
    """Root that the program works for, or None when the collective has none.

    That is the rank for which most of the result is right; `asked` wins among equals, then the smallest.
    """
    if setting.geometry.kind not in ROOTED:
        return None
    contents = Contents(setting, Findings())
    contents.run(plan, order)
    return best_root(contents, asked)


def best_root(contents: Contents, asked: int | None) -> int:
    """Root for which most of the result is right; `asked` wins among equals, then the smallest."""
    scores = _scores(contents)
    best = max(scores)
    if asked is not None and 0 <= asked < len(scores) and scores[asked] == best:
        return asked
    return scores.index(best)


def check_contents(plan: KernelProgram, order: Sequence[int], contents: Contents, findings: Findings) -> None:
    """Report reads of nothing, wrong sums, touched buffers that may be NULL, and wrong results.

    Parameters
    ----------
    plan, order
        All operations, and an order of them that respects queues and flags.
    contents
        Fresh.
    findings
        Where errors go, also those of `contents`.
    """
    _check_touched_buffers(plan, contents.setting, findings)
    contents.run(plan, order)
    contents.check_results(findings)


class Contents:
    """All cells, and the messages in flight."""

    def __init__(self, setting: RunSetting, findings: Findings) -> None:
        self.setting = setting
        self.num_ranks = setting.geometry.num_ranks
        self.cells = [[UNWRITTEN] * region.num_cells for region in setting.regions]
        self._findings = findings
        self._everybody = (1 << self.num_ranks) - 1
        self._checks_sums = setting.geometry.kind is not None
        for rank, region in enumerate(setting.regions):
            self._fill_input(rank, region)

    def value(self, rank: int, offset: int) -> int:
        """Value of input cell `offset` of a rank at the start."""
        shared = self.setting.geometry.kind in COMBINING
        chunk = offset if shared else rank * self.setting.geometry.input_chunks + offset
        return chunk << self.num_ranks | 1 << rank

    def total(self, chunk: int) -> int:
        """The finished sum of a chunk."""
        return chunk << self.num_ranks | self._everybody

    def origin(self, value: int) -> tuple[int, int]:
        """Rank and input cell that a value of a collective without sums stems from."""
        return divmod(value >> self.num_ranks, self.setting.geometry.input_chunks)

    def num_contributions(self, value: int) -> int:
        """Number of ranks in a sum."""
        return (value & self._everybody).bit_count()

    def cell(self, rank: int, buffer: Buffer, offset: int) -> int:
        """Value of one cell."""
        return self.cells[rank][self.setting.regions[rank].base(buffer) + offset]

    def _fill_input(self, rank: int, region: Region) -> None:
        geometry, root = self.setting.geometry, self.setting.placement.root
        row, base = self.cells[rank], region.input_base
        if not region.has_input:
            row[base : base + geometry.input_chunks] = [WRONG] * geometry.input_chunks
        elif root is None or rank == root or geometry.kind not in (Kind.BROADCAST, Kind.SCATTER):
            row[base : base + geometry.input_chunks] = [self.value(rank, k) for k in range(geometry.input_chunks)]

    def check_results(self, findings: Findings) -> None:
        """Report output cells that do not hold what the collective promises; nothing where it is not known."""
        if self.setting.geometry.kind is not None:
            check_results(self, findings)

    def run(self, plan: KernelProgram, order: Sequence[int]) -> None:
        """Carry out all operations in an order that respects queues and flags."""
        queues: list[deque[list[int]]] = [deque() for _ in plan.connections]
        for index in order:
            operation = plan.operations[index]
            block = plan.blocks[operation.block]
            self._apply(operation, block.gpu, place(block.gpu, block.id, operation.step.index), queues)

    def _apply(self, operation: KernelOperation, gpu: int, where: str, queues: list[deque[list[int]]]) -> None:
        step = operation.step
        values = (
            None if operation.inbound is None else self.arrived(operation.inbound, queues[operation.inbound].popleft())
        )
        for address in operation.reads:
            local = self.read(gpu, address, step.count, where)
            values = local if values is None else self.add(values, local, where)
        if values is None:
            return
        for address in operation.writes:
            start = self.setting.regions[gpu].base(address.buffer) + address.offset
            self._check_overlap(operation, gpu, start, where)
            self.cells[gpu][start : start + step.count] = values
        if operation.outbound is not None:
            queues[operation.outbound].append(values)

    def arrived(self, connection: int, values: list[int]) -> list[int]:  # noqa: ARG002
        """Values of a message at its receiver: those that were sent, as all ranks are there."""
        return values

    def read(self, gpu: int, address: Address, count: int, where: str) -> list[int]:
        """Values of cells; rejects cells that nobody has written."""
        start = self.setting.regions[gpu].base(address.buffer) + address.offset
        values = self.cells[gpu][start : start + count]
        if UNWRITTEN in values:
            cell = f"{address.buffer}[{address.offset + values.index(UNWRITTEN)}]"
            what = f"it reads {cell}, which nobody has written; write it first and wait for that"
            self._findings.violation(where, "unwritten-read", what)
            values = [WRONG if value == UNWRITTEN else value for value in values]
        return values

    def add(self, left: list[int], right: list[int], where: str) -> list[int]:
        """Sums, cell by cell; rejects sums that are wrong."""
        if not self._checks_sums:
            return [WRONG if a < 0 or b < 0 else a for a, b in zip(left, right, strict=True)]
        return [self._sum(a, b, where) for a, b in zip(left, right, strict=True)]

    def _sum(self, left: int, right: int, where: str) -> int:
        if left < 0 or right < 0:
            return WRONG
        if (left ^ right) >> self.num_ranks:
            what = f"it adds {self.describe(left)} and {self.describe(right)}; only equal chunks may be added"
            self._findings.violation(where, "mixed-sum", what)
            return WRONG
        twice = left & right & self._everybody
        if twice:
            what = f"it adds {self.describe(left)} and {self.describe(right)}, so rank {twice.bit_length() - 1} counts twice"
            self._findings.violation(where, "double-counting", what)
            return WRONG
        return left | right

    def _check_overlap(self, operation: KernelOperation, gpu: int, start: int, where: str) -> None:
        count = operation.step.count
        if count == 1:
            return
        for address in operation.reads:
            distance = abs(self.setting.regions[gpu].base(address.buffer) + address.offset - start)
            if 0 < distance < count:
                what = f"its {count} cells from {address.buffer}[{address.offset}] on overlap the cells that it writes"
                self._findings.violation(where, "overlapping-cells", what)

    def describe(self, value: int) -> str:
        """Name of a value for people."""
        if value < 0:
            return "nothing" if value == UNWRITTEN else "a wrong value"
        chunk, ranks = value >> self.num_ranks, value & self._everybody
        if self.setting.geometry.kind not in COMBINING:
            rank, offset = self.origin(value)
            return f"chunk {offset} of rank {rank}'s input"
        if ranks == self._everybody:
            return f"the whole sum of chunk {chunk}"
        members = [str(rank) for rank in range(self.num_ranks) if ranks >> rank & 1]
        shown = members if len(members) <= 8 else [*members[:7], f"{len(members) - 7} more"]
        return f"chunk {chunk} of rank{'s' * (len(members) > 1)} {', '.join(shown)}"


def _scores(contents: Contents) -> list[int]:
    """Part of the result that is right, for each rank as the root."""
    geometry = contents.setting.geometry
    kind, shard = geometry.kind, geometry.shard
    scores = [0] * geometry.num_ranks
    for rank in range(geometry.num_ranks):
        for offset in range(geometry.output_chunks):
            value = contents.cell(rank, Buffer.OUTPUT, offset)
            if value < 0:
                continue
            if kind is Kind.REDUCE:
                scores[rank] += contents.num_contributions(value)
            elif kind is Kind.GATHER:
                scores[rank] += value == contents.value(offset // shard, offset % shard)
            else:
                source, cell = contents.origin(value)
                scores[source] += cell == (rank * shard + offset if kind is Kind.SCATTER else offset)
    return scores


def _wanted(contents: Contents) -> Iterator[tuple[int, list[int]]]:
    """Ranks that have a result, and the values that its cells must hold at the end."""
    geometry = contents.setting.geometry
    only_root = geometry.kind in (Kind.REDUCE, Kind.GATHER)
    row: list[int] = []
    for rank in [contents.setting.placement.root or 0] if only_root else range(len(contents.setting.regions)):
        if not row or geometry.kind not in _ALIKE:
            row = [_wanted_value(contents, rank, offset) for offset in range(geometry.output_chunks)]
        yield rank, row


def _wanted_value(contents: Contents, rank: int, offset: int) -> int:
    geometry = contents.setting.geometry
    kind, shard, root = geometry.kind, geometry.shard, contents.setting.placement.root or 0
    if kind in (Kind.ALLREDUCE, Kind.REDUCE):
        return contents.total(offset)
    if kind is Kind.REDUCESCATTER:
        return contents.total(rank * shard + offset)
    if kind is Kind.BROADCAST:
        return contents.value(root, offset)
    if kind is Kind.SCATTER:
        return contents.value(root, rank * shard + offset)
    source, part = divmod(offset, shard)
    return contents.value(source, rank * shard + part if kind is Kind.ALLTOALL else part)


def check_results(contents: Contents, findings: Findings) -> None:
    """Report output cells that do not hold what the collective promises."""
    for rank, wanted in _wanted(contents):
        base = contents.setting.regions[rank].base(Buffer.OUTPUT)
        found = contents.cells[rank][base : base + len(wanted)]
        if found == wanted:
            continue
        offsets = [offset for offset, value in enumerate(found) if value != wanted[offset]]
        offset = next((offset for offset in offsets if found[offset] != WRONG), offsets[0])
        what = (
            f"{len(offsets)} of {len(wanted)} output chunks are wrong at the end: o[{offset}]"
            f" holds {contents.describe(found[offset])} and must hold {contents.describe(wanted[offset])}"
        )
        findings.violation(place(rank), "wrong-result", what)


def _check_touched_buffers(plan: KernelProgram, setting: RunSetting, findings: Findings) -> None:
    """Report accesses to buffers that may be NULL, and to writes to the user's input out of place."""
    kind, root = setting.geometry.kind, setting.placement.root
    for operation in plan.operations:
        block = plan.blocks[operation.block]
        region = setting.regions[block.gpu]
        to_input = any(address.buffer is Buffer.INPUT for address in operation.writes)
        if region.has_input and region.has_output and (setting.placement.in_place or not to_input):
            continue
        where = place(block.gpu, block.id, operation.step.index)
        touched = {address.buffer for address in (*operation.reads, *operation.writes)}
        for buffer, exists in ((Buffer.INPUT, region.has_input), (Buffer.OUTPUT, region.has_output)):
            if buffer in touched and not exists:
                name = "input" if buffer is Buffer.INPUT else "output"
                what = f"it uses the {name} of rank {block.gpu}, which may be NULL in a {kind} with root {root}; use scratch"
                findings.violation(where, "null-buffer", what)
        if not setting.placement.in_place and to_input:
            what = "it writes to the input, which belongs to the caller and is constant; write to the output or scratch"
            findings.violation(where, "input-overwritten", what)
