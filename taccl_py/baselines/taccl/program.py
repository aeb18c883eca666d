"""TACCL's lowering: from a timetable to threadblocks.

* Times become *steps*: sends follow each other into one step until a chunk would leave a rank in the step in which it came.
* What has the same link and start becomes one message where the chunks are neighbours in the buffers at both ends.
* A threadblock serves one rank to send to and one to receive from. The blocks for sending and for receiving are made first,
  and one of each is joined wherever no two of their messages have one step; the joined block takes them in turn.
* Instance i of n carries its part of each message on channels of its own.

AllGather and AllReduce are in place, AllToAll is not; what a rank only passes on lies in scratch in the order of arrival.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from taccl_py.baselines.taccl.contiguity import HopTimes
from taccl_py.collective import Address, Buffer, Collective, Kind
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.program import Gpu, Op, Program, Protocol, Step, Threadblock
from taccl_py.runtimes import LEGACY, MAX_COUNT
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class TacclMessage:
    """One chunk over one link at a time; the receiver adds it or stores it."""

    chunk: int
    link: int
    start_us: float
    end_us: float
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class _CellMessage:
    """A message: neighbouring cells at both ends, and its place in the program's order."""

    step: int
    position: int
    src: int
    dst: int
    channel: int
    sent: CellRange
    stored: CellRange
    reduce: bool


@dataclass(slots=True, eq=False)
class _Action:
    """A step of a threadblock before it is numbered: what it reads and writes, and whom it waits for."""

    op: Op
    order: tuple[int, int]
    src: CellRange
    dst: CellRange
    read: CellRange | None
    written: CellRange | None
    block: _TacclBlock | None = None
    waits: list[_Action] = field(default_factory=list)
    awaited: bool = False
    index: int = -1


@dataclass(slots=True, eq=False)
class _TacclBlock:
    """A threadblock while it is made."""

    channel: int
    send_peer: int = -1
    recv_peer: int = -1
    number: int = -1
    actions: list[_Action] = field(default_factory=list)

    @property
    def steps(self) -> set[int]:
        """Steps in which it has something to do."""
        return {action.order[0] for action in self.actions}


def sends_of(table: HopTimes, *, offset_us: float = 0.0, reduce: bool = False) -> list[TacclMessage]:
    """Return what a timetable sends, all times shifted by `offset_us`."""
    timed = zip(table.plan.hops, table.start_us, table.end_us, strict=True)
    return [TacclMessage(hop.chunk, hop.link, start + offset_us, end + offset_us, reduce) for hop, start, end in timed]


def build_program(topology: Topology, collective: Collective, sends: Sequence[TacclMessage], instances: int) -> Program:
    """Lower timed sends.

    Parameters
    ----------
    topology, collective
        The machine and what must move: AllGather, AllToAll or AllReduce.
    sends
        All sends; a chunk arrives before it is sent on.
    instances
        Parts of every message.
    """
    places = _ChunkAddresses(topology, collective)
    transfers = list(_transfers(topology, places, sends))
    split = [part for transfer in transfers for part in _parts(transfer, topology, instances)]
    alltoall = collective.kind is Kind.ALLTOALL
    gpus = []
    for rank in range(topology.num_ranks):
        blocks = _joined(_one_way_blocks(rank, split))
        if alltoall:
            blocks.append(_own_share(rank, collective.chunks_per_rank * instances))
        _find_waits(blocks)
        scratch = len(places.scratch[rank]) * instances
        gpus.append(_gpu(rank, blocks, collective, scratch, instances))
    return Program(
        name=f"taccl-{collective.kind}",
        kind=collective.kind,
        num_chunks_per_loop=collective.chunks_per_size * instances,
        num_channels=1 + max((transfer.channel for transfer in split), default=0),
        protocol=Protocol.SIMPLE,
        in_place=not alltoall,
        out_of_place=alltoall,
        min_bytes=0,
        max_bytes=LEGACY.max_size_bytes,  # its files say nothing of sizes
        gpus=tuple(gpus),
    )


class _ChunkAddresses:
    """Place of each chunk on every rank; scratch is given out in the order of first use."""

    def __init__(self, topology: Topology, collective: Collective) -> None:
        self.collective = collective
        self.scratch: list[dict[int, int]] = [{} for _ in range(topology.num_ranks)]

    def cell(self, chunk: int, rank: int) -> Address:
        """The place of a chunk at a rank."""
        place = self.collective.output_address(chunk, rank)
        if place is None and not self.collective.reduces:
            place = self.collective.input_address(chunk, rank)
        if place is not None:
            return place
        held = self.scratch[rank]
        return Address(Buffer.SCRATCH, held.setdefault(chunk, len(held)))


def _steps(topology: Topology, sends: Sequence[TacclMessage]) -> Iterator[list[TacclMessage]]:
    """Sends in order of time, parted where a chunk leaves a rank that got it since the last parting."""
    step: list[TacclMessage] = []
    came: set[tuple[int, int]] = set()
    ordered = sorted(sends, key=lambda send: (send.start_us, send.link, send.chunk))
    for together in _at_one_time(ordered):
        if any((send.chunk, topology.links[send.link].src) in came for send in together):
            yield step
            step, came = [], set()
        step += together
        came |= {(send.chunk, topology.links[send.link].dst) for send in together}
    yield step


def _at_one_time(sends: Sequence[TacclMessage]) -> Iterator[list[TacclMessage]]:
    together: list[TacclMessage] = []
    for send in sends:
        if together and send.start_us > together[0].start_us + RELATIVE * max(1.0, send.start_us):
            yield together
            together = []
        together.append(send)
    if together:
        yield together


def _transfers(topology: Topology, places: _ChunkAddresses, sends: Sequence[TacclMessage]) -> Iterator[_CellMessage]:
    """Messages of neighbouring chunks."""
    position = 0
    for number, step in enumerate(_steps(topology, sends)):
        for together in _at_one_time(step):
            by_link = sorted(together, key=lambda send: (send.link, send.reduce))
            for (link, reduce), group in groupby(by_link, key=lambda send: (send.link, send.reduce)):
                ends = topology.links[link]
                cells = [(places.cell(s.chunk, ends.src), places.cell(s.chunk, ends.dst)) for s in group]
                for sent, stored in _runs(sorted(cells)):
                    lane = topology.lane[link]
                    yield _CellMessage(number, position, ends.src, ends.dst, lane, sent, stored, reduce)
                    position += 1


def _runs(cells: Iterable[tuple[Address, Address]]) -> Iterator[tuple[CellRange, CellRange]]:
    """Cells at both ends, as long as they are neighbours at both."""
    run: list[tuple[Address, Address]] = []
    for here, there in cells:
        if run and not (_follows(run[-1][0], here) and _follows(run[-1][1], there) and len(run) < MAX_COUNT):
            yield _as_cells(run)
            run = []
        run.append((here, there))
    yield _as_cells(run)


def _follows(one: Address, two: Address) -> bool:
    return one.buffer == two.buffer and two.offset == one.offset + 1


def _as_cells(run: list[tuple[Address, Address]]) -> tuple[CellRange, CellRange]:
    here, there = run[0]
    return CellRange(here.buffer, here.offset, len(run)), CellRange(there.buffer, there.offset, len(run))


def _parts(transfer: _CellMessage, topology: Topology, instances: int) -> Iterator[_CellMessage]:
    """The instances of a message: parallel links take turns as channels do."""
    lanes = len(topology.links_between[transfer.src, transfer.dst])
    count = transfer.sent.count
    for i in range(instances):
        sent, stored = (
            CellRange(cells.buffer, cells.first * instances + i * count, count)
            for cells in (transfer.sent, transfer.stored)
        )
        yield replace(transfer, channel=transfer.channel + i * lanes, sent=sent, stored=stored)


def _one_way_blocks(rank: int, transfers: Sequence[_CellMessage]) -> list[_TacclBlock]:
    """A block for every peer that a rank sends to, and for every one that it receives from, on each channel."""
    blocks: dict[tuple[bool, int, int], _TacclBlock] = {}
    for t in transfers:
        order = (t.step, t.position)
        if t.src == rank:
            block = blocks.setdefault((True, t.dst, t.channel), _TacclBlock(t.channel, send_peer=t.dst))
            block.actions.append(_Action(Op.SEND, order, t.sent, t.stored, t.sent, None, block))
        if t.dst == rank:
            block = blocks.setdefault((False, t.src, t.channel), _TacclBlock(t.channel, recv_peer=t.src))
            # A step that adds names its own operand, which lies where the sum will.
            op, src, read = (Op.RECV_REDUCE_COPY, t.stored, t.stored) if t.reduce else (Op.RECV, t.sent, None)
            block.actions.append(_Action(op, order, src, t.stored, read, t.stored, block))
    return [block for _, block in sorted(blocks.items(), key=lambda item: item[0])]


def _joined(blocks: list[_TacclBlock]) -> list[_TacclBlock]:
    """Every block that sends is joined with the first one that receives on its channel in other steps only."""
    receiving = [block for block in blocks if block.recv_peer >= 0]
    result = []
    for block in blocks:
        if block.send_peer < 0:
            continue
        result.append(block)
        other = next((r for r in receiving if r.channel == block.channel and not r.steps & block.steps), None)
        if other is not None:
            receiving.remove(other)
            block.recv_peer = other.recv_peer
            block.actions += other.actions
    result += receiving
    for number, block in enumerate(result):
        block.number = number
        block.actions.sort(key=lambda action: action.order)
        for action in block.actions:
            action.block = block
    return result


def _own_share(rank: int, count: int) -> _TacclBlock:
    """The block that copies what a rank has for itself."""
    block = _TacclBlock(0)
    for first in range(0, count, MAX_COUNT):
        number = min(MAX_COUNT, count - first)
        src, dst = (CellRange(buffer, rank * count + first, number) for buffer in (Buffer.INPUT, Buffer.OUTPUT))
        block.actions.append(_Action(Op.COPY, (-1, first), src, dst, src, dst, block))
    return block


def _find_waits(blocks: list[_TacclBlock]) -> None:
    """Reads wait for the last write of a cell; writes also for the reads since then."""
    wrote: dict[tuple[Buffer, int], _Action] = {}
    read: dict[tuple[Buffer, int], list[_Action]] = defaultdict(list)
    for number, block in enumerate(blocks):
        block.number = number
    actions = [action for block in blocks for action in block.actions]
    for action in sorted(actions, key=lambda each: each.order):
        found: list[_Action] = []
        for cell in _cells(action.read):
            found += [wrote[cell]] if cell in wrote else []
        for cell in _cells(action.written):
            found += [wrote[cell]] if cell in wrote else []
            found += read.pop(cell, [])
            wrote[cell] = action
        for cell in _cells(action.read):
            if action.written is None:
                read[cell].append(action)
        _wait_for(action, found)


def _cells(cells: CellRange | None) -> Iterator[tuple[Buffer, int]]:
    if cells is not None:
        yield from ((cells.buffer, offset) for offset in range(cells.first, cells.end))


def _wait_for(action: _Action, found: list[_Action]) -> None:
    """Of what an action waits for the last one of each other block counts."""
    last: dict[int, _Action] = {}
    for other in found:
        if other.block is not None and other.block is not action.block:
            known = last.get(other.block.number)
            if known is None or known.order < other.order:
                last[other.block.number] = other
    action.waits = [last[number] for number in sorted(last)]
    for other in action.waits:
        other.awaited = True


def _gpu(rank: int, blocks: list[_TacclBlock], collective: Collective, scratch: int, instances: int) -> Gpu:
    """Number the steps; a step that waits for several does so in nops before."""
    for block in blocks:
        index = 0
        for action in block.actions:
            action.index = index + max(0, len(action.waits) - 1)
            index = action.index + 1
    threadblocks = tuple(
        Threadblock(
            block.send_peer,
            block.recv_peer,
            block.channel,
            tuple(step for action in block.actions for step in _program_steps(action)),
        )
        for block in blocks
    )
    alltoall = collective.kind is Kind.ALLTOALL
    inputs = collective.input_chunks * instances if alltoall else 0
    return Gpu(rank, inputs, collective.output_chunks * instances, scratch, threadblocks)


def _program_steps(action: _Action) -> Iterator[Step]:
    targets = [
        (other.block.number, other.index) for other in action.waits if other.block is not None
    ]  # fmt: skip
    for target in targets[:-1]:
        yield Step(Op.NOP, action.src.address, action.dst.address, 0, target)
    depends_on = targets[-1] if targets else None
    yield Step(action.op, action.src.address, action.dst.address, action.src.count, depends_on, action.awaited)
