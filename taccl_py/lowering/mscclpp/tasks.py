"""Tasks: what ranks do when data are put straight into the receiver's memory.

A message is one *put*, done by its sender: it reads cells of the sender and writes cells of the receiver. It takes its place in
the order of time when it starts; from its *landing* on, the receiver may use the cells. Messages over the network are put by a
proxy, so there the receiver has one task, the *arrival*, in which it waits for them on behalf of everybody.

What arrives in cells that might still be in use is *staged*: it lands in scratch of its own, which no other message ever
uses, and the receiver copies it when it can. So no rank ever has to ask whether a destination is free, but for the start of the
call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from taccl_py.collective import Buffer, Kind
from taccl_py.lowering.actions import NONE, cut_actions
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.message_ends import PlacementRules
from taccl_py.lowering.order import order_events
from taccl_py.lowering.place import place_messages, whole_transfers
from taccl_py.lowering.plan import MEMORY, PORT, RemoteBuffer
from taccl_py.lowering.program import Op
from taccl_py.lowering.subject import CellSchedule
from taccl_py.runtimes import MSCCLPP


class TaskKind(StrEnum):
    """Kinds of task."""

    PUT = "put"
    COPY = "copy"
    REDUCE = "reduce"
    ARRIVE = "arrive"


@dataclass(frozen=True, slots=True)
class BlockTask:
    """Task of one threadblock of a rank.

    Attributes
    ----------
    rank
        Its rank.
    kind
        Kind of the task.
    reads
        Cells of the rank that it reads; a reduction reads what it writes too, which is not listed.
    writes
        Cells that it writes: of `peer` for a put, else of the rank; None for an arrival.
    peer
        Receiver of a put, sender of what arrives, else the rank itself.
    message
        Message of the schedule for a put and its arrival, else `NONE`.
    instance
        Which instance carries it.
    remote
        Whether a put or an arrival goes through a proxy, because the peer is on another node.
    """

    rank: int
    kind: TaskKind
    reads: tuple[CellRange, ...]
    writes: CellRange | None
    peer: int
    message: int = NONE
    instance: int = 0
    remote: bool = False

    @property
    def target_rank(self) -> int:
        """Rank whose cells it writes."""
        return self.peer if self.kind is TaskKind.PUT else self.rank

    @property
    def own_writes(self) -> tuple[CellRange, ...]:
        """Cells of its own rank that it writes."""
        return () if self.kind is TaskKind.PUT or self.writes is None else (self.writes,)

    @property
    def touched(self) -> list[tuple[int, CellRange]]:
        """Cells that it reads or writes, each with their rank."""
        written = [] if self.writes is None else [(self.target_rank, self.writes)]
        return [*((self.rank, cells) for cells in self.reads), *written]

    @property
    def channel_type(self) -> str:
        """Type of the channel that a put goes through."""
        return PORT if self.remote else MEMORY

    @property
    def remote_buffer(self) -> RemoteBuffer:
        """Buffer of the peer that a put writes."""
        return RemoteBuffer(self.peer, _required(self.writes).buffer, self.channel_type)


@dataclass(frozen=True, slots=True)
class Landing:
    """From here on the receiver may use what a put has brought; `put` is its number."""

    put: int


@dataclass(frozen=True, slots=True)
class TaskStream:
    """Tasks of all ranks in the order of time.

    Attributes
    ----------
    tasks
        Numbered in the order of time.
    items
        Numbers of tasks, and landings, in the order of time.
    arrival_of
        Arrival of each put over the network that somebody needs before the end.
    scratch_cells
        Scratch of every rank.
    """

    tasks: tuple[BlockTask, ...]
    items: tuple[int | Landing, ...]
    arrival_of: dict[int, int]
    scratch_cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Names of cells that are the same memory: of input and output only one remains when the call is in place."""

    geometry: BufferSizes
    in_place: bool

    def cells(self, rank: int, cells: CellRange) -> CellRange:
        """Return the one name of these cells: in place, those of the longer buffer, of the output if both are as long."""
        if not self.in_place or cells.buffer is Buffer.SCRATCH:
            return cells
        collective, whole = self.geometry.collective, Buffer.OUTPUT
        if collective.kind in (Kind.GATHER, Kind.SCATTER) and rank != collective.root:
            return cells  # it has one buffer only
        if collective.input_chunks > collective.output_chunks:
            whole = Buffer.INPUT
        if cells.buffer is whole:
            return cells
        # The shorter buffer is the rank's own shard of the longer one.
        short = min(collective.input_chunks, collective.output_chunks) * self.geometry.instances
        first = rank * short if collective.input_chunks != collective.output_chunks else 0
        return CellRange(whole, first + cells.first, cells.count)


def make_tasks(
    schedule: CellSchedule, places: Places, staged: frozenset[int], most: int = MSCCLPP.max_count
) -> TaskStream:
    """Find out what every rank does.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    places
        How the buffers lie.
    staged
        Messages that must land in scratch of their own.
    most
        Cells of a task.

    Raises
    ------
    InputError
        If the schedule is not valid.
    """
    geometry = places.geometry
    rules = PlacementRules(places.in_place, places.in_place, fused=False, staged=staged)
    actions = place_messages(schedule, order_events(schedule), replace(geometry, instances=1), rules)
    work = cut_actions(actions, whole_transfers(schedule), geometry.instances, most)
    lands = {action.arrives: action for action in work.actions if action.arrives != NONE}
    node_of = schedule.topology.node_of
    tasks: list[BlockTask] = []
    items: list[int | Landing] = []
    put_of: dict[int, int] = {}
    for action in work.actions:
        if action.arrives != NONE:
            items.append(Landing(put_of[action.arrives]))
            continue
        if action.leaves != NONE:
            transfer, target = work.transfers[action.leaves], lands[action.leaves]
            put_of[action.leaves] = len(tasks)
            task = BlockTask(
                action.rank, TaskKind.PUT, _named(places, action.rank, action.reads),
                places.cells(transfer.dst, _required(target.writes)), transfer.dst, transfer.message, transfer.instance,
                node_of[action.rank] != node_of[transfer.dst],
            )  # fmt: skip
        else:
            task = _local_task(places, action.rank, action.op, _required(action.reads), _required(action.writes))
            if task.kind is TaskKind.COPY and task.reads == (task.writes,):
                continue
        items.append(len(tasks))
        tasks.append(task)
    stream = TaskStream(tuple(tasks), tuple(items), {}, ())
    merged = _with_arrivals(_merged(stream))
    return replace(merged, scratch_cells=_scratch_cells(merged.tasks, schedule.collective.num_ranks))


def _local_task(places: Places, rank: int, op: Op, reads: CellRange, writes: CellRange) -> BlockTask:
    kind = TaskKind.COPY if op is Op.COPY else TaskKind.REDUCE
    instance = reads.first % places.geometry.instances
    return BlockTask(rank, kind, _named(places, rank, reads), places.cells(rank, writes), rank, instance=instance)


def _required(cells: CellRange | None) -> CellRange:
    if cells is None:
        raise ValueError("an action that moves data names no cells")
    return cells


def _named(places: Places, rank: int, cells: CellRange | None) -> tuple[CellRange, ...]:
    return (places.cells(rank, _required(cells)),)


def _scratch_cells(tasks: tuple[BlockTask, ...], num_ranks: int) -> tuple[int, ...]:
    sizes = [0] * num_ranks
    for task in tasks:
        for rank, cells in task.touched:
            if cells.buffer is Buffer.SCRATCH:
                sizes[rank] = max(sizes[rank], cells.end)
    return tuple(sizes)


def touch(one: CellRange, other: CellRange) -> bool:
    """True if two runs of cells of one rank have a cell in common."""
    return one.buffer is other.buffer and one.first < other.end and other.first < one.end


def _merged(stream: TaskStream) -> TaskStream:
    """Join additions to the same cells into the last of them, if no task reads the sum meanwhile."""
    open_sums: dict[int, list[int]] = {}  # per rank, numbers of sums that may still grow
    grown: dict[int, BlockTask] = {}
    gone: set[int] = set()
    for item in stream.items:
        if isinstance(item, Landing):
            put = stream.tasks[item.put]
            _close(open_sums, grown, put.peer, (_required(put.writes),), ())
            continue
        task = stream.tasks[item]
        if task.kind is TaskKind.REDUCE:
            before = _growing(open_sums.get(task.rank, []), grown, task)
            if before is not None:
                open_sums[task.rank].remove(before)
                gone.add(before)
                task = replace(task, reads=(*grown[before].reads, *task.reads))
        _close(open_sums, grown, task.rank, task.own_writes, task.reads)
        if task.kind is TaskKind.REDUCE:
            open_sums.setdefault(task.rank, []).append(item)
        grown[item] = task
    kept = [number for number in range(len(stream.tasks)) if number not in gone]
    new_of = {old: new for new, old in enumerate(kept)}
    items = [
        Landing(new_of[item.put]) if isinstance(item, Landing) else new_of[item]
        for item in stream.items
        if isinstance(item, Landing) or item not in gone
    ]
    return replace(stream, tasks=tuple(grown[number] for number in kept), items=tuple(items))


def _growing(numbers: list[int], grown: dict[int, BlockTask], task: BlockTask) -> int | None:
    """Return the sum to which a reduction may be joined."""
    room = MSCCLPP.max_buffers_at_once - 2  # the sum is a source and the destination
    for number in numbers:
        one = grown[number]
        if one.writes == task.writes and len(one.reads) + len(task.reads) <= room:
            return number
    return None


def _close(
    open_sums: dict[int, list[int]],
    grown: dict[int, BlockTask],
    rank: int,
    writes: tuple[CellRange, ...],
    reads: tuple[CellRange, ...],
) -> None:
    """Let no sum grow of which something is read or overwritten here."""
    for number in list(open_sums.get(rank, [])):
        one = grown[number]
        target = _required(one.writes)
        seen = any(touch(cells, target) for cells in (*writes, *reads))
        if seen or any(touch(cells, source) for cells in writes for source in one.reads):
            open_sums[rank].remove(number)


def _with_arrivals(stream: TaskStream) -> TaskStream:
    """Add arrivals for puts over the network that are used before the end."""
    used = set(_used_puts(stream))
    tasks: list[BlockTask] = []
    items: list[int | Landing] = []
    new_of: dict[int, int] = {}
    arrival_of: dict[int, int] = {}
    for item in stream.items:
        if not isinstance(item, Landing):
            new_of[item] = len(tasks)
            items.append(len(tasks))
            tasks.append(stream.tasks[item])
            continue
        put, number = stream.tasks[item.put], new_of[item.put]
        items.append(Landing(number))
        if put.remote and item.put in used:
            arrival_of[number] = len(tasks)
            items.append(len(tasks))
            tasks.append(
                BlockTask(put.peer, TaskKind.ARRIVE, (), None, put.rank, put.message, put.instance, remote=True)
            )
    return replace(stream, tasks=tuple(tasks), items=tuple(items), arrival_of=arrival_of)


def _used_puts(stream: TaskStream) -> Iterator[int]:
    """Puts that some task of the receiver needs: it reads, or writes, cells that they have written."""
    writer: dict[tuple[int, Buffer, int], int] = {}
    for item in stream.items:
        if isinstance(item, Landing):
            put = stream.tasks[item.put]
            for cell in cells_of(put.peer, _required(put.writes)):
                writer[cell] = item.put
            continue
        task = stream.tasks[item]
        for cells in (*task.reads, *task.own_writes):
            for cell in cells_of(task.rank, cells):
                if cell in writer:
                    yield writer[cell]


def cells_of(rank: int, cells: CellRange) -> Iterator[tuple[int, Buffer, int]]:
    """Yield the cells one by one."""
    return ((rank, cells.buffer, offset) for offset in range(cells.first, cells.end))
