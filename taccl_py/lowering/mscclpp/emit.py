"""Tasks and signals -> threadblocks of operations.

A threadblock begins with the handshake: it signals those who put to its rank that the call has begun here, and waits for the
same signal of those to whom it puts. Then come its tasks, each with the waits before it and the signals after it, and at the end
the waits for what no task needed. The threads of a block are synchronized (``nop``) between operations on the same cells,
before a signal and after a wait. What a proxy has to finish is flushed by an operation of its own: the runtime's put with signal
and flush (``pwsf``) passes the address of its offsets where the offset of the source belongs (execution_kernel.hpp of
microsoft/mscclpp, 329c79a to 00668b4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.blocks import Post
from taccl_py.lowering.mscclpp.signals import BlockSignal, Signals
from taccl_py.lowering.mscclpp.tasks import BlockTask, TaskKind, TaskStream, touch
from taccl_py.lowering.mscclpp.wiring import Wiring, channels_of
from taccl_py.lowering.plan import MEMORY, PORT, Operation, PlanBlock
from taccl_py.runtimes import MSCCLPP

_NOP = Operation("nop")


@dataclass(frozen=True, slots=True)
class _CellAccess:
    """Cells of a rank that an operation since the last synchronization of the threads has read or written."""

    rank: int
    cells: CellRange
    writes: bool


@dataclass(slots=True)
class _EmittedBlock:
    """A threadblock as it grows."""

    post: Post
    channels: dict[str, tuple[int, ...]]
    remotes: dict[str, tuple[int, ...]]
    operations: list[Operation] = field(default_factory=list)
    pending: list[_CellAccess] = field(default_factory=list)
    awaited: dict[Post, int] = field(default_factory=dict)
    has_waited: bool = False  # since the last synchronization of the threads

    def sync_threads(self) -> None:
        """Synchronize all threads of the block."""
        self.operations.append(_NOP)
        self.pending.clear()
        self.has_waited = False


def emit_blocks(
    stream: TaskStream, posts: tuple[Post, ...], signals: Signals, wiring: Wiring
) -> tuple[tuple[PlanBlock, ...], ...]:
    """Return the threadblocks of every rank.

    Parameters
    ----------
    stream, posts, signals, wiring
        Tasks, the threadblock of each, the signals between these, and the channels and semaphores that carry them.
    """
    emitter = _Emitter(stream, posts, signals, wiring)
    return tuple(tuple(map(emitter.block, mine)) for mine in wiring.posts)


class _Emitter:
    def __init__(self, stream: TaskStream, posts: tuple[Post, ...], signals: Signals, wiring: Wiring) -> None:
        self._stream = stream
        self._signals = signals
        self._wiring = wiring
        self._numbers: dict[Post, list[int]] = {}
        for number, post in enumerate(posts):
            self._numbers.setdefault(post, []).append(number)
        self._targets: dict[tuple[Post, int], list[Post]] = {}
        for (source, target), tasks in wiring.signalled.items():
            for task in tasks:
                self._targets.setdefault((source, task), []).append(target)

    def block(self, post: Post) -> PlanBlock:
        numbers = self._numbers.get(post, [])
        block = _EmittedBlock(post, channels_of(post, self._wiring.wires[post.rank]), self._remotes(post, numbers))
        self._begin(block)
        for number in numbers:
            self._wait_for(block, self._signals.before.get(number, ()))
            self._do(block, number)
            self._signal(block, number)
        self._wait_for(block, self._signals.last.get(post, ()))
        if block.has_waited:
            block.sync_threads()
        return PlanBlock(tuple(block.operations), block.channels, block.remotes)

    def _remotes(self, post: Post, numbers: Iterable[int]) -> dict[str, tuple[int, ...]]:
        found: dict[str, set[int]] = {}
        for number in numbers:
            task = self._stream.tasks[number]
            if task.kind is TaskKind.PUT:
                remote = task.remote_buffer
                found.setdefault(remote.channel_type, set()).add(self._wiring.remotes[post.rank].index(remote))
        return {kind: tuple(sorted(numbers)) for kind, numbers in sorted(found.items())}

    def _begin(self, block: _EmittedBlock) -> None:
        """Exchange the signals that the call has begun."""
        post = block.post
        block.operations += self._on_channels(block, "rlxsignal", self._wiring.putters_to.get(post, ()))
        if post in self._wiring.ready_from:
            block.operations += self._on_channels(block, "rlxwait", [self._wiring.ready_from[post]])
            block.has_waited = True

    def _wait_for(self, block: _EmittedBlock, signals: Sequence[BlockSignal]) -> None:
        """Wait for signals; those of one threadblock are counted, so earlier ones are waited for too."""
        more: dict[Post, int] = {}
        for signal in signals:
            signalled = self._wiring.signalled[signal.source, block.post]
            missing = signalled.index(signal.task) + 1 - block.awaited.get(signal.source, 0)
            more[signal.source] = max(more.get(signal.source, 0), missing)
        more = {source: count for source, count in more.items() if count > 0}
        if not more:
            return
        for turn in range(max(more.values())):
            sources = sorted(source for source, count in more.items() if count > turn)
            far = [source for source in sources if source.rank != block.post.rank]
            near = [self._wiring.semaphores[one, block.post] for one in sources if one.rank == block.post.rank]
            block.operations += self._on_channels(block, "wait", far)
            block.operations += _on_semaphores("sem_acquire", near)
        for source, count in more.items():
            block.awaited[source] = block.awaited.get(source, 0) + count
        block.has_waited = True

    def _do(self, block: _EmittedBlock, number: int) -> None:
        task = self._stream.tasks[number]
        if task.writes is None:
            return
        accesses = [_CellAccess(task.rank, cells, False) for cells in task.reads]
        accesses.append(_CellAccess(task.target_rank, task.writes, True))
        if block.has_waited or any(_clash(one, other) for one in block.pending for other in accesses):
            block.sync_threads()
        block.pending += accesses
        if task.kind is TaskKind.COPY:
            block.operations.append(Operation("copy", sources=task.reads, target=task.writes))
        elif task.kind is TaskKind.REDUCE:
            block.operations.append(Operation("re", sources=(task.writes, *task.reads), target=task.writes))
        else:
            put = self._put(block, number, task)
            block.operations.append(put)
            if number in self._signals.flushed:
                block.operations.append(Operation("flush", PORT, put.channels))
                block.has_waited = True

    def _put(self, block: _EmittedBlock, number: int, task: BlockTask) -> Operation:
        remote = task.remote_buffer
        place = block.remotes[remote.channel_type].index(self._wiring.remotes[block.post.rank].index(remote))
        if not task.remote:
            return Operation("put", MEMORY, sources=task.reads, target=task.writes, remote=place)
        target = self._wiring.ready_from[block.post]  # a proxy's puts are all signalled to one threadblock
        signalled = number in self._wiring.signalled[block.post, target]
        name = "pws" if signalled else "put"
        channels = self._channels(block, [target])[PORT]
        return Operation(name, PORT, channels, sources=task.reads, target=task.writes, remote=place)

    def _signal(self, block: _EmittedBlock, number: int) -> None:
        task, post = self._stream.tasks[number], block.post
        targets = sorted(self._targets.get((post, number), ()))
        far = [] if task.remote else [target for target in targets if target.rank != post.rank]
        near = [self._wiring.semaphores[post, target] for target in targets if target.rank == post.rank]
        if not far and not near:
            return
        if block.pending or block.has_waited:
            block.sync_threads()
        block.operations += self._on_channels(block, "signal", far)
        block.operations += _on_semaphores("sem_release", near)

    def _channels(self, block: _EmittedBlock, peers: Iterable[Post]) -> dict[str, tuple[int, ...]]:
        """Places of the channels to other threadblocks in the lists of this one, by type."""
        found: dict[str, list[int]] = {}
        for peer in peers:
            kind, place = self._wiring.channel_to[block.post, peer]
            found.setdefault(kind, []).append(place)
        return {kind: tuple(sorted(places)) for kind, places in sorted(found.items())}

    def _on_channels(self, block: _EmittedBlock, name: str, peers: Iterable[Post]) -> Iterator[Operation]:
        for kind, places in self._channels(block, peers).items():
            for some in _groups(places, MSCCLPP.max_channels_at_once):
                yield Operation(name, kind, some)


def _on_semaphores(name: str, numbers: Sequence[int]) -> Iterator[Operation]:
    for some in _groups(sorted(numbers), MSCCLPP.max_channels_at_once):
        yield Operation(name, semaphores=some)


def _groups(numbers: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(numbers), most):
        yield tuple(numbers[first : first + most])


def _clash(one: _CellAccess, other: _CellAccess) -> bool:
    return one.rank == other.rank and (one.writes or other.writes) and touch(one.cells, other.cells)
