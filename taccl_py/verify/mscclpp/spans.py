"""Steps of every threadblock, as cells that it reads and writes: a plan for one length of its chunks.

A cell is what the runtime never cuts (``buffer_alignment`` bytes), or a part of what a pipeline repeats. Packets are twice as long
as their data: the packet of a cell takes two cells of scratch. All offsets are those of microsoft/mscclpp 1f5f065,
src/core/executor/execution_plan.cc (`getOffset`, `calcOffset`, `setupOperation`) and src/core/include/execution_kernel.hpp (``handle...``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from taccl_py.collective import Buffer
from taccl_py.verify.msccl.findings import Findings, place
from taccl_py.verify.msccl.geometry import Region
from taccl_py.verify.mscclpp.grammar import PORT, SWITCH, Gpu, GroupSlice, Operand, Operation, Plan, PlanThreadblock

_COUNTING = frozenset({"signal", "rlxsignal", "wait", "rlxwait"})


@dataclass(frozen=True, slots=True)
class Sizing:
    """One length of the chunks.

    Attributes
    ----------
    pieces
        Cells of a chunk.
    units
        Cells that a pipeline repeats, by its unit_size.
    scratch_pieces
        Cells of a chunk of scratch where that is shorter than a chunk, so that pipelines go round in it; else None.
    second_half
        Whether the call uses the second half of a doubled scratch.
    """

    pieces: int = 1
    units: dict[int, int] = field(default_factory=dict)
    scratch_pieces: int | None = None
    second_half: bool = False

    def scratch_cells(self, plan: Plan, gpu: Gpu) -> int:
        """Cells of the scratch of a GPU."""
        length = gpu.scratch_chunks * (self.scratch_pieces or self.pieces)
        return length * (2 if plan.uses_packets else 1) * (2 if plan.doubles_scratch else 1)


@dataclass(frozen=True, slots=True)
class Span:
    """Cells of a buffer of some rank, from `start` in its row; of packets, two cells for each of data.

    Attributes
    ----------
    packets
        Whether they are packets.
    awaited
        Whether each of these packets is waited for.
    """

    rank: int
    start: int
    buffer: Buffer
    packets: bool = False
    awaited: bool = True

    def cell(self, number: int) -> int:
        """First cell of a number of data."""
        return self.start + (2 * number if self.packets else number)


@dataclass(frozen=True, slots=True)
class CellTransfer:
    """Sums of `count` cells of all sources, stored at all targets; by a proxy, asked for by thread number `thread`."""

    sources: tuple[Span, ...]
    targets: tuple[Span, ...]
    count: int
    thread: int = 0
    proxied: bool = False


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One operation, or one pass of it in a pipeline.

    Attributes
    ----------
    where
        Its place in the file.
    channels
        Places of its channels in the GPU's list of that type.
    """

    where: str
    operation: Operation
    channels: tuple[int, ...]
    moves: tuple[CellTransfer, ...]


@dataclass(frozen=True, slots=True)
class _UnitPass:
    """Which bytes of its operands an operation touches: `unit` cells from `offset` in a pipeline, else all."""

    offset: int = 0
    unit: int | None = None

    def count(self, size: int) -> int:
        """Cells of an operand; what lies behind its end is not seen to be there, as the length is unsigned."""
        if self.unit is None:
            return size
        return min(size - self.offset, self.unit) if size >= self.offset else self.unit


def slice_start(size: int, index: int, parts: int) -> int:
    """First of `size` cells that belong to part `index`; the first parts are longer by one if they cannot be equal."""
    least, more = divmod(size, parts)
    return index * least + min(index, more)


class SpanReader:
    """Reads the operations of a plan as moves of cells.

    Parameters
    ----------
    plan
        A plan without structural mistakes.
    regions
        Cells of all ranks.
    sizing
        Length of the chunks.
    findings
        Where passes go that touch what is not theirs.
    """

    def __init__(self, plan: Plan, regions: tuple[Region, ...], sizing: Sizing, findings: Findings) -> None:
        self._plan = plan
        self._regions = regions
        self._sizing = sizing
        self._findings = findings

    def steps(self, gpu: Gpu, block: PlanThreadblock) -> tuple[PlanStep, ...]:
        """All that a threadblock does, in order."""
        return tuple(self._steps(gpu, block))

    def _steps(self, gpu: Gpu, block: PlanThreadblock) -> Iterator[PlanStep]:
        for step, operation in enumerate(block.operations):
            where = place(gpu.id, block.id, step)
            if operation.name != "pipeline":
                yield self._step(gpu, block, operation, where, _UnitPass())
                continue
            unit = self._sizing.units[operation.unit_bytes]
            for number in range(-(-operation.num_chunks * self._sizing.pieces // unit)):
                for inner, one in enumerate(operation.inner):
                    yield self._step(gpu, block, one, f"{where}.{inner}", _UnitPass(number * unit, unit))

    def _step(self, gpu: Gpu, block: PlanThreadblock, operation: Operation, where: str, now: _UnitPass) -> PlanStep:
        known = block.channels.get(operation.channel_type, ())
        # Operations that move data by memory may name channels, at which nobody looks.
        used = operation.channel_type == PORT or operation.name in _COUNTING
        channels = tuple(known[one] for one in operation.channels) if used else ()
        moves = tuple(move for move in _Reading(self, gpu, block, operation, now).moves() if move.count)
        for move in moves:
            for span in (*move.sources, *move.targets):
                self._require_inside(span, move.count, where)
        return PlanStep(where, operation, channels, moves)

    def _require_inside(self, span: Span, count: int, where: str) -> None:
        """Report passes of a pipeline that go on behind their operand."""
        region = self._regions[span.rank]
        first = region.base(span.buffer)
        gpu = self._plan.gpus[span.rank]
        chunks = gpu.input_chunks if span.buffer is Buffer.INPUT else gpu.output_chunks
        length = chunks * self._sizing.pieces
        if span.buffer is Buffer.SCRATCH:
            length = self._sizing.scratch_cells(self._plan, gpu)
        if span.start < first or span.start + count * (2 if span.packets else 1) > first + length:
            what = f"in a pass of the pipeline it goes on behind {span.buffer} of gpu {span.rank}, which ends before"
            self._findings.violation(where, "outside-buffer", f"{what}; use its num_chunks as size", fatal=True)

    def base(self, rank: int, buffer: Buffer, *, by_turns: bool) -> int:
        """First cell of a buffer; of scratch, of its half for this call where the runtime adds that to the address."""
        found = self._regions[rank].base(buffer)
        if by_turns and buffer is Buffer.SCRATCH and self._plan.doubles_scratch and self._sizing.second_half:
            found += self._sizing.scratch_cells(self._plan, self._plan.gpus[rank]) // 2
        return found

    def offset(self, buffer: Buffer, operand: Operand, part: GroupSlice | None) -> int:
        """First cell of an operand in its buffer."""
        length = self._sizing.pieces
        if buffer is Buffer.SCRATCH and self._sizing.scratch_pieces is not None:
            length = self._sizing.scratch_pieces
        start = operand.index * length
        return start if part is None else start + slice_start(self.size(operand, None), part.index, part.parts)

    def size(self, operand: Operand, part: GroupSlice | None) -> int:
        """Cells of an operand."""
        whole = operand.size * self._sizing.pieces
        if part is None:
            return whole
        return slice_start(whole, part.index + 1, part.parts) - slice_start(whole, part.index, part.parts)

    def turn(self, buffer: Buffer, offset: int) -> int:
        """Offset of a pass, which goes round in scratch that is shorter than a chunk."""
        if buffer is Buffer.SCRATCH and self._sizing.scratch_pieces is not None:
            return offset % self._sizing.scratch_pieces
        return offset


class _Reading:
    """One pass of one operation."""

    def __init__(
        self, reader: SpanReader, gpu: Gpu, block: PlanThreadblock, operation: Operation, now: _UnitPass
    ) -> None:
        self._reader = reader
        self._gpu = gpu
        self._block = block
        self._operation = operation
        self._now = now

    def moves(self) -> list[CellTransfer]:
        """All transfers of the operation."""
        operation = self._operation
        match operation.name:
            case "put" | "pws" | "pwsf":
                return self._puts()
            case "get":
                return [self._got(*pair) for pair in zip(operation.sources, operation.targets, strict=True)]
            case "ppkt":
                return self._put_packets()
            case "rppkt":
                source = self._packets(operation.sources[0])
                return self._passed_on(source)
            case "copy" | "re" | "res" | "rre" | "rres":
                return [self._sum()]
            case "upkt" | "cpkt" | "repkt" | "respkt" | "recpkt" | "recspkt":
                return [self._packet_sum()]
            case "glres" | "gstore" | "gstorepkt":
                return [self._by_switch()]
        return []

    # Operands

    def _remote(self, operand: Operand) -> tuple[int, Buffer]:
        ids = self._block.remotes[self._operation.channel_type]
        remote = self._gpu.remotes[ids[operand.remote or 0]]
        return remote.rank, remote.buffer

    def _owner(self, operand: Operand) -> tuple[int, Buffer]:
        if operand.buffer is not None:
            return self._gpu.id, operand.buffer
        return self._remote(operand)

    def _plain(self, operand: Operand, turn: Buffer | None = None) -> Span:
        """Span of data; `turn` is the type of buffer by which the runtime lets the offset of a pass go round."""
        rank, buffer = self._owner(operand)
        start = self._reader.base(rank, buffer, by_turns=operand.buffer is not None)
        start += self._reader.offset(buffer, operand, self._operation.slice)
        return Span(rank, start + self._reader.turn(turn or buffer, self._now.offset), buffer)

    def _packets(self, operand: Operand, *, awaited: bool = True) -> Span:
        """Span of packets, which no pipeline cuts."""
        rank, buffer = self._owner(operand)
        start = self._reader.base(rank, buffer, by_turns=True)
        start += 2 * self._reader.offset(buffer, operand, self._operation.slice)
        return Span(rank, start, buffer, packets=True, awaited=awaited)

    def _size(self, operand: Operand) -> int:
        return self._reader.size(operand, self._operation.slice)

    # Operations

    def _puts(self) -> list[CellTransfer]:
        operation = self._operation
        proxied = operation.channel_type == PORT
        found = []
        for number, (source, target) in enumerate(zip(operation.sources, operation.targets, strict=True)):
            # The block takes the buffer of the first source for all; a proxy adds no half to the address of scratch.
            kind = (source if proxied else operation.sources[0]).buffer or Buffer.INPUT
            start = self._reader.base(self._gpu.id, kind, by_turns=not proxied)
            own = source.buffer or Buffer.INPUT
            start += self._reader.offset(own, source, operation.slice) + self._reader.turn(own, self._now.offset)
            count = self._now.count(self._size(target))
            found.append(
                CellTransfer((Span(self._gpu.id, start, kind),), (self._plain(target),), count, number, proxied)
            )
        return found

    def _got(self, source: Operand, target: Operand) -> CellTransfer:
        """Take the offset of each side for the other, as `handleGet` does."""
        rank, far = self._remote(source)
        near = target.buffer or Buffer.INPUT
        part, reader = self._operation.slice, self._reader
        here = reader.base(self._gpu.id, near, by_turns=True) + reader.offset(far, source, part)
        there = reader.base(rank, far, by_turns=False) + reader.offset(near, target, part)
        sources = (Span(rank, there + reader.turn(near, self._now.offset), far),)
        targets = (Span(self._gpu.id, here + reader.turn(far, self._now.offset), near),)
        return CellTransfer(sources, targets, self._now.count(self._size(source)))

    def _put_packets(self) -> list[CellTransfer]:
        operation = self._operation
        if operation.channel_type == PORT:
            return [
                CellTransfer(
                    (self._packets(source, awaited=False),), (self._packets(target),), self._size(source), number, True
                )
                for number, (source, target) in enumerate(zip(operation.sources, operation.targets, strict=True))
            ]
        kind = operation.sources[0].buffer or Buffer.INPUT
        found = []
        for source, target in zip(operation.sources, operation.targets, strict=True):
            own = source.buffer or Buffer.INPUT
            start = self._reader.base(self._gpu.id, kind, by_turns=True)
            start += self._reader.offset(own, source, operation.slice)
            found.append(CellTransfer((Span(self._gpu.id, start, kind),), (self._packets(target),), self._size(source)))
        return found

    def _passed_on(self, source: Span) -> list[CellTransfer]:
        operation = self._operation
        count, targets = self._size(operation.sources[0]), tuple(map(self._packets, operation.targets))
        if operation.channel_type != PORT:
            return [CellTransfer((source,), targets, count)]
        return [CellTransfer((source,), (target,), count, number, True) for number, target in enumerate(targets)]

    def _sum(self) -> CellTransfer:
        operation = self._operation
        first, *others = operation.sources
        if operation.name in ("re", "res"):
            sources = [self._plain(first)]
            sources += [self._plain(one, self._turn_of(number)) for number, one in enumerate(others)]
        else:
            sources = [self._plain(first), *map(self._plain, others)]
        targets = tuple(map(self._plain, operation.targets))
        return CellTransfer(tuple(sources), targets, self._now.count(self._size(first)))

    def _turn_of(self, number: int) -> Buffer:
        """Type by which the offset of another local source goes round: `handleReduceSend` looks at a destination for it."""
        targets = self._operation.targets[1:]
        types = (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)
        named = (targets[number].remote or 0) if number < len(targets) else 0
        return types[named] if named < len(types) else Buffer.INPUT

    def _packet_sum(self) -> CellTransfer:
        operation = self._operation
        first, *others = operation.sources
        count = self._size(first)
        if operation.name == "upkt":
            return CellTransfer((self._packets(first),), (self._plain_part(operation.targets[0]),), count)
        sources = (self._plain_part(first), *map(self._packets, others))
        if operation.name == "cpkt":
            return CellTransfer(sources, (self._packets(operation.targets[0]),), count)
        whole, *copies = operation.targets
        return CellTransfer(sources, (self._plain_part(whole), *map(self._packets, copies)), count)

    def _plain_part(self, operand: Operand) -> Span:
        """Span of data in an operation with packets, which no pipeline cuts."""
        rank, buffer = self._owner(operand)
        start = self._reader.base(rank, buffer, by_turns=True)
        return Span(rank, start + self._reader.offset(buffer, operand, self._operation.slice), buffer)

    def _by_switch(self) -> CellTransfer:
        operation = self._operation
        (source,), (target,) = operation.sources, operation.targets
        packets = operation.name == "gstorepkt"
        targets = tuple(self._members(target, packets=packets))
        if source.switch is not None:
            sources = tuple(self._members(source, packets=False))
        else:
            sources = (self._packets(source) if packets else self._plain(source),)
        count = self._size(source) if packets else self._now.count(self._size(source))
        return CellTransfer(sources, targets, count)

    def _members(self, operand: Operand, *, packets: bool) -> Iterator[Span]:
        group = self._gpu.groups[self._block.channels[SWITCH][operand.switch or 0]]
        offset = self._reader.offset(group.buffer, operand, self._operation.slice)
        for rank in group.ranks:
            start = self._reader.base(rank, group.buffer, by_turns=packets)
            if packets:
                yield Span(rank, start + 2 * offset, group.buffer, packets=True)
            else:
                yield Span(rank, start + offset + self._reader.turn(group.buffer, self._now.offset), group.buffer)
