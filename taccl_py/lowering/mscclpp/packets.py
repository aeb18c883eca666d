"""Plans by packets: words that hold data and the number of the call, so that who reads them sees by themselves when they are there.

Every message lands in scratch of its own at the receiver, which copies it (``upkt``) or adds it up (``repkt``) from there; nobody
writes into another rank's input or output, so no rank has to know that another one has begun, and nobody signals. To another node packets
go through a proxy, which sends what is in scratch: the sender makes them there first (``cpkt``, ``rppkt``).

The scratch of a call is used again by the next but one. By then it must have been read: as every rank's result needs data of
every other rank, who begins a call has been sent something by all others in the call before, and so they are done with the one before
that. So rooted collectives have no such plans.

Between threadblocks of a rank, what one has written and another one reads or overwrites is ordered by semaphores; that a packet has
gone out and another one has come back does not order memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from taccl_py.collective import ROOTED, Buffer
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.blocks import HUB, Post, whole_posts
from taccl_py.lowering.mscclpp.groups import cells_match
from taccl_py.lowering.mscclpp.limits import beyond, require_threadblocks
from taccl_py.lowering.mscclpp.tasks import (
    BlockTask,
    Landing,
    Places,
    TaskKind,
    TaskStream,
    cells_of,
    make_tasks,
    touch,
)
from taccl_py.lowering.plan import MEMORY, PORT, Operation, PlanBlock, PlanGpu, RemoteBuffer
from taccl_py.runtimes import MSCCLPP
from taccl_py.schedule.ir import Schedule

_NOP = Operation("nop")
# Bytes of scratch for each byte of data: a packet is half data, and calls take turns with two halves.
SCRATCH_FACTOR = 4
_Cell = tuple[int, Buffer, int]


def packet_gpus(schedule: Schedule, instances: int, *, in_place: bool, grouped: bool = False) -> tuple[PlanGpu, ...]:
    """Return the programs of all ranks that carry out the messages of a schedule by packets.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    instances
        Into how many parts every chunk is cut, each with threadblocks of its own.
    in_place
        Whether input and output are the same memory.
    grouped
        Whether groups of threadblocks will share its operations.

    Raises
    ------
    LoweringError
        If the collective has a root, a sum is passed on that no rank keeps, or a limit of the runtime cannot be kept.
    """
    collective = schedule.collective
    if collective.kind in ROOTED:
        raise beyond(
            "protocol",
            f"packets of a {collective.kind} may overwrite those of the call before, as not every rank hears of every other; use "
            "protocol Simple",
        )
    places = Places(BufferSizes(collective, instances, exact=False), in_place)
    everything = frozenset(range(len(schedule.messages)))
    stream = make_tasks(schedule, places, everything)
    if grouped and not cells_match(stream, alike=False):
        stream = make_tasks(schedule, places, everything, 1)
    tasks = [item for item in stream.items if not isinstance(item, Landing)]
    tasks = [number for number in tasks if stream.tasks[number].kind is not TaskKind.ARRIVE]
    _require_single_packets(stream)
    posts = _posts(stream)
    wires = _PacketChannels.of(stream, posts, collective.num_ranks)
    return tuple(
        _Rank(rank, stream, posts, wires, [number for number in tasks if stream.tasks[number].rank == rank]).gpu(
            collective.input_chunks * instances, collective.output_chunks * instances
        )
        for rank in range(collective.num_ranks)
    )


def _posts(stream: TaskStream) -> list[Post]:
    """Threadblock of every task: what is copied from scratch and passed on to nobody is copied by that which sends to its sender."""
    sender = {
        cell: task.rank
        for task in stream.tasks
        if task.kind is TaskKind.PUT and task.writes is not None
        for cell in cells_of(task.peer, task.writes)
    }
    posts = whole_posts(stream)
    for number, task in enumerate(stream.tasks):
        if task.kind is TaskKind.COPY and posts[number].peer == HUB and task.reads[0].buffer is Buffer.SCRATCH:
            first = next(cells_of(task.rank, task.reads[0]))
            posts[number] = Post(task.rank, sender.get(first, HUB), task.instance)
    return posts


def _require_single_packets(stream: TaskStream) -> None:
    """Refuse what would put two packets in one place in a call: readers could not tell one from the other."""
    seen: set[_Cell] = set()
    for task in stream.tasks:
        if task.writes is None or task.writes.buffer is not Buffer.SCRATCH:
            continue
        cells = set(cells_of(task.target_rank, task.writes))
        if seen & cells:
            raise beyond(
                "protocol",
                f"a cell of rank {task.rank}'s scratch is used twice in a call, which packets do not allow; use protocol Simple",
            )
        seen |= cells


@dataclass(frozen=True, slots=True)
class _PacketChannels:
    """Channels of every rank, by type the peers in order, and which of those to its peer each threadblock that sends has."""

    peers: tuple[dict[str, tuple[int, ...]], ...]
    number: dict[Post, int]

    @staticmethod
    def of(stream: TaskStream, posts: Sequence[Post], num_ranks: int) -> _PacketChannels:
        """As many channels between two ranks as the one with more threadblocks needs that send to the other."""
        sending: dict[Post, str] = {}
        for post, task in zip(posts, stream.tasks, strict=True):
            if task.kind is TaskKind.PUT:
                sending[post] = task.channel_type
        number: dict[Post, int] = {}
        count: Counter[tuple[int, int]] = Counter()
        for post in sorted(sending):
            number[post] = count[post.rank, post.peer]
            count[post.rank, post.peer] += 1
        kinds = {(post.rank, post.peer): kind for post, kind in sending.items()}
        found: list[dict[str, tuple[int, ...]]] = []
        for rank in range(num_ranks):
            peers: dict[str, list[int]] = {MEMORY: [], PORT: []}
            for peer in range(num_ranks):
                kind = kinds.get((rank, peer)) or kinds.get((peer, rank))
                if kind is not None:
                    peers[kind] += [peer] * max(count[rank, peer], count[peer, rank])
            found.append({kind: tuple(each) for kind, each in peers.items() if each})
        return _PacketChannels(tuple(found), number)

    def channel(self, post: Post, kind: str) -> int:
        """Number of a threadblock's channel among those of its type."""
        peers = self.peers[post.rank][kind]
        return peers.index(post.peer) + self.number[post]


@dataclass(slots=True)
class _Block:
    """A threadblock as it grows: operations, cells touched since all threads met, semaphores of others that it has acquired."""

    operations: list[Operation] = field(default_factory=list)
    pending: list[tuple[CellRange, bool]] = field(default_factory=list)
    has_waited: bool = False

    def meet(self) -> None:
        """Let all threads come to this point."""
        if self.operations and (self.pending or self.has_waited):
            self.operations.append(_NOP)
        self.pending.clear()
        self.has_waited = False

    def touch(self, reads: Iterable[CellRange], writes: Iterable[CellRange]) -> None:
        """Go to cells; those that another thread may be at are met for first. Packets are awaited one by one."""
        accesses = [*((cells, False) for cells in reads), *((cells, True) for cells in writes)]
        plain = [one for one in accesses if one[0].buffer is not Buffer.SCRATCH]
        clash = any((a[1] or b[1]) and touch(a[0], b[0]) for a in self.pending for b in plain)
        if self.has_waited or clash:
            self.meet()
        self.pending += plain


class _Rank:
    """The program of one rank."""

    def __init__(
        self, rank: int, stream: TaskStream, posts: Sequence[Post], wires: _PacketChannels, numbers: Sequence[int]
    ) -> None:  # fmt: skip
        self._rank = rank
        self._stream = stream
        self._posts = posts
        self._wires = wires
        self._numbers = numbers
        self._scratch = stream.scratch_cells[rank]
        self._remotes = sorted(
            {task.remote_buffer for task in (stream.tasks[number] for number in numbers) if task.kind is TaskKind.PUT},
            key=lambda one: (one.rank, one.channel_type),
        )
        self._awaited, self._semaphores = _local_waits(stream, posts, numbers)

    def gpu(self, input_chunks: int, output_chunks: int) -> PlanGpu:
        """Return it as the record of a plan."""
        blocks: dict[Post, _Block] = {}
        for number in self._numbers:
            self._add(blocks.setdefault(self._posts[number], _Block()), number)
        require_threadblocks(self._rank, len(blocks))
        longest = max((len(block.operations) for block in blocks.values()), default=0)
        if longest > MSCCLPP.max_operations:
            raise beyond(
                "max_operations",
                f"a threadblock of rank {self._rank} has {longest} operations in a plan by packets, and {MSCCLPP.title} allows "
                f"{MSCCLPP.max_operations}; use protocol Simple, or a schedule with fewer messages",
            )
        return PlanGpu(
            rank=self._rank,
            input_chunks=input_chunks,
            output_chunks=output_chunks,
            scratch_chunks=self._scratch,
            peers=self._wires.peers[self._rank],
            remotes=tuple(self._remotes),
            num_semaphores=len(self._semaphores),
            blocks=tuple(self._record(post, blocks[post]) for post in sorted(blocks)),
        )

    def _record(self, post: Post, block: _Block) -> PlanBlock:
        kind = self._kind(post)
        if kind is None:
            return PlanBlock(tuple(block.operations), {}, {})
        place = self._remotes.index(RemoteBuffer(post.peer, Buffer.SCRATCH, kind))
        return PlanBlock(tuple(block.operations), {kind: (self._wires.channel(post, kind),)}, {kind: (place,)})

    def _kind(self, post: Post) -> str | None:
        """Type of the channel by which a threadblock sends; None if it does not."""
        if post not in self._wires.number:
            return None
        return next(one.channel_type for one in self._remotes if one.rank == post.peer)

    def _add(self, block: _Block, number: int) -> None:
        """Write down a task, with what its threadblock waits for before and tells after it."""
        post = self._posts[number]
        acquired = [self._semaphores[self._posts[one], post] for one in self._awaited.get(number, ())]
        if acquired:
            block.operations += _on_semaphores("sem_acquire", sorted(acquired))
            block.has_waited = True
        self._do(block, self._stream.tasks[number])
        released = sorted(
            self._semaphores[post, self._posts[waiter]]
            for waiter, awaited in self._awaited.items()
            if number in awaited
        )  # fmt: skip
        if released:
            block.meet()
            block.operations += _on_semaphores("sem_release", released)

    def _do(self, block: _Block, task: BlockTask) -> None:
        if task.writes is None:
            raise ValueError("a task by packets writes no cells")
        source, packed = task.reads[0], task.reads[0].buffer is Buffer.SCRATCH
        if task.kind is TaskKind.PUT:
            block.touch(task.reads, ())
            self._send(block, task, source, packed=packed)
            return
        if task.writes.buffer is Buffer.SCRATCH and (packed or task.kind is TaskKind.REDUCE):
            raise beyond(
                "protocol",
                f"rank {self._rank} passes on a sum that it does not keep, or collects what it has not kept, which is not done by packets "
                "here; use protocol Simple",
            )
        if task.writes.buffer is Buffer.SCRATCH:
            block.touch(task.reads, ())
            block.operations.append(Operation("cpkt", sources=(source,), target=task.writes))
            return
        block.touch(task.reads, (task.writes,))
        if task.kind is TaskKind.COPY:
            name = "upkt" if packed else "copy"
            block.operations.append(Operation(name, sources=(source,), target=task.writes))
            return
        packets = tuple(cells for cells in task.reads if cells.buffer is Buffer.SCRATCH)
        plain = tuple(cells for cells in task.reads if cells.buffer is not Buffer.SCRATCH)
        if plain:
            block.operations.append(Operation("re", sources=(task.writes, *plain), target=task.writes))
            block.meet()
            block.touch((), (task.writes,))
        if packets:
            block.operations.append(Operation("repkt", sources=(task.writes, *packets), target=task.writes))

    def _send(self, block: _Block, task: BlockTask, source: CellRange, *, packed: bool) -> None:
        if task.remote and not packed:
            made = CellRange(Buffer.SCRATCH, self._scratch, source.count)
            self._scratch += source.count
            block.operations.append(Operation("cpkt", sources=(source,), target=made))
            source, packed = made, True
        name, channels = ("rppkt" if packed else "ppkt"), (0,) if task.remote else ()
        block.operations.append(
            Operation(name, task.channel_type, channels, sources=(source,), target=task.writes, remote=0)
        )
        if task.remote:
            block.pending.clear()  # all threads meet inside, before the proxy is asked (handleReadPutPackets)


def _on_semaphores(name: str, numbers: Sequence[int]) -> Iterator[Operation]:
    """As many operations as are needed to name all."""
    for first in range(0, len(numbers), MSCCLPP.max_semaphores):
        yield Operation(name, semaphores=tuple(numbers[first : first + MSCCLPP.max_semaphores]))


def _local_waits(
    stream: TaskStream, posts: Sequence[Post], numbers: Sequence[int]
) -> tuple[dict[int, tuple[int, ...]], dict[tuple[Post, Post], int]]:
    """Tasks of a rank that others of its threadblocks must have done before a task, and the semaphore from one to another.

    Only what semaphores tell counts as known.
    """
    position: dict[int, int] = {}
    done: Counter[Post] = Counter()
    known: dict[Post, Counter[Post]] = {}
    ends: dict[int, Counter[Post]] = {}
    writer: dict[_Cell, int] = {}
    readers: dict[_Cell, list[int]] = {}
    awaited: dict[int, tuple[int, ...]] = {}
    for number in numbers:
        post, clock = posts[number], known.setdefault(posts[number], Counter())
        needed = _before(stream.tasks[number], number, writer, readers)
        waits = []
        for earlier in sorted(needed, reverse=True):
            source = posts[earlier]
            if source != post and clock[source] <= position[earlier]:
                waits.append(earlier)
                clock |= ends[earlier]  # the greater of both, by threadblock
        if waits:
            awaited[number] = tuple(waits)
        position[number] = done[post]
        done[post] += 1
        clock[post] = done[post]
        known[post] = clock
        ends[number] = Counter(clock)
    pairs = sorted({(posts[source], posts[waiter]) for waiter, sources in awaited.items() for source in sources})
    return awaited, {pair: index for index, pair in enumerate(pairs)}


def _before(
    task: BlockTask, number: int, writer: dict[_Cell, int], readers: dict[_Cell, list[int]]
) -> set[int]:  # fmt: skip
    """Earlier tasks of the rank that wrote what this one reads or writes, or read what it writes."""
    found: set[int] = set()
    for cells in task.reads:
        for cell in cells_of(task.rank, cells):
            if cells.buffer is not Buffer.SCRATCH:
                found |= {writer[cell]} if cell in writer else set()
                readers.setdefault(cell, []).append(number)
    for cells in task.own_writes:
        for cell in cells_of(task.rank, cells) if cells.buffer is not Buffer.SCRATCH else ():
            found |= {writer[cell]} if cell in writer else set()
            found.update(readers.get(cell, ()))
            writer[cell] = number
            readers[cell] = []
    return found - {number}
