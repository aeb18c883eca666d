"""Tasks and signals -> threadblocks of operations.

A threadblock begins with the handshake: it tells those who put to its rank that the call has begun here, and waits for the
same word of those to whom it puts. Then come its tasks, each with what must be heard before it and what is told after it, and at
the end the waits for what nobody needed before. All threads of a block meet (``nop``) between operations on the same cells,
before a signal and after a wait. What a proxy has to finish is flushed by an operation of its own: the runtime's put with signal
and flush (``pwsf``) passes the address of its offsets where the offset of the source belongs (execution_kernel.hpp of
microsoft/mscclpp, 329c79a to 00668b4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.blocks import Post
from taccl_py.lowering.mscclpp.signals import Signals, Word
from taccl_py.lowering.mscclpp.tasks import BlockTask, TaskKind, TaskStream, touch
from taccl_py.lowering.mscclpp.wiring import Wiring
from taccl_py.lowering.plan import MEMORY, PORT, Operation, PlanBlock, RemoteBuffer
from taccl_py.runtimes import MSCCLPP

_NOP = Operation("nop")


@dataclass(frozen=True, slots=True)
class _CellAccess:
    """Cells of a rank that an operation since the last meeting of the threads has read or written."""

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
    heard: dict[Post, int] = field(default_factory=dict)
    has_waited: bool = False  # since the last meeting of the threads

    def meet(self) -> None:
        """Let all threads come to this point."""
        self.operations.append(_NOP)
        self.pending.clear()
        self.has_waited = False


def emit_blocks(
    rank: int, stream: TaskStream, posts: tuple[Post, ...], signals: Signals, wiring: Wiring
) -> tuple[PlanBlock, ...]:
    """Return the threadblocks of a rank.

    Parameters
    ----------
    rank
        Whose.
    stream, posts, signals, wiring
        What is done, by whom, what they tell each other, and how.
    """
    return tuple(_Emitter(stream, posts, signals, wiring).block(post) for post in wiring.posts[rank])


class _Emitter:
    def __init__(self, stream: TaskStream, posts: tuple[Post, ...], signals: Signals, wiring: Wiring) -> None:
        self._stream = stream
        self._posts = posts
        self._signals = signals
        self._wiring = wiring

    def block(self, post: Post) -> PlanBlock:
        numbers = [number for number, one in enumerate(self._posts) if one == post]
        block = _EmittedBlock(post, self._wiring.channels(post), self._remotes(post, numbers))
        self._greet(block)
        for number in numbers:
            self._hear(block, self._signals.before.get(number, ()))
            self._do(block, number)
            self._tell(block, number)
        self._hear(block, self._signals.last.get(post, ()))
        if block.has_waited:
            block.meet()
        return PlanBlock(tuple(block.operations), block.channels, block.remotes)

    def _remotes(self, post: Post, numbers: Iterable[int]) -> dict[str, tuple[int, ...]]:
        found: dict[str, set[int]] = {}
        for number in numbers:
            task = self._stream.tasks[number]
            if task.deed is TaskKind.PUT:
                remote = self._remote(task)
                found.setdefault(remote.channel_type, set()).add(self._wiring.remotes[post.rank].index(remote))
        return {kind: tuple(sorted(numbers)) for kind, numbers in sorted(found.items())}

    def _remote(self, task: BlockTask) -> RemoteBuffer:
        if task.writes is None:
            raise ValueError("a put names no cells")
        return RemoteBuffer(task.peer, task.writes.buffer, PORT if task.remote else MEMORY)

    def _greet(self, block: _EmittedBlock) -> None:
        """Exchange the word that the call has begun."""
        post = block.post
        waiting = sorted(putter for putter, greeter in self._wiring.greeted.items() if greeter == post)
        block.operations += self._on_channels(block, "rlxsignal", waiting)
        if post in self._wiring.greeted:
            block.operations += self._on_channels(block, "rlxwait", [self._wiring.greeted[post]])
            block.has_waited = True

    def _hear(self, block: _EmittedBlock, words: Sequence[Word]) -> None:
        """Wait for words; those of one threadblock are counted, so what was told before is waited for too."""
        more: dict[Post, int] = {}
        for word in words:
            told = self._wiring.told[word.teller, block.post]
            missing = told.index(word.task) + 1 - block.heard.get(word.teller, 0)
            more[word.teller] = max(more.get(word.teller, 0), missing)
        more = {teller: count for teller, count in more.items() if count > 0}
        if not more:
            return
        for turn in range(max(more.values())):
            tellers = sorted(teller for teller, count in more.items() if count > turn)
            far = [teller for teller in tellers if teller.rank != block.post.rank]
            near = [self._wiring.semaphores[t, block.post] for t in tellers if t.rank == block.post.rank]
            block.operations += self._on_channels(block, "wait", far)
            block.operations += _on_semaphores("sem_acquire", near)
        for teller, count in more.items():
            block.heard[teller] = block.heard.get(teller, 0) + count
        block.has_waited = True

    def _do(self, block: _EmittedBlock, number: int) -> None:
        task = self._stream.tasks[number]
        if task.writes is None:
            return
        target_rank = task.peer if task.deed is TaskKind.PUT else task.rank
        accesses = [_CellAccess(task.rank, cells, False) for cells in task.reads]
        accesses.append(_CellAccess(target_rank, task.writes, True))
        if block.has_waited or any(_clash(one, other) for one in block.pending for other in accesses):
            block.meet()
        block.pending += accesses
        if task.deed is TaskKind.COPY:
            block.operations.append(Operation("copy", sources=task.reads, target=task.writes))
        elif task.deed is TaskKind.REDUCE:
            block.operations.append(Operation("re", sources=(task.writes, *task.reads), target=task.writes))
        else:
            put = self._put(block, number, task)
            block.operations.append(put)
            if number in self._signals.flushed:
                block.operations.append(Operation("flush", PORT, put.channels))
                block.has_waited = True

    def _put(self, block: _EmittedBlock, number: int, task: BlockTask) -> Operation:
        remote = self._remote(task)
        place = block.remotes[remote.channel_type].index(self._wiring.remotes[block.post.rank].index(remote))
        if not task.remote:
            return Operation("put", MEMORY, sources=task.reads, target=task.writes, remote=place)
        hearer = self._wiring.greeted[block.post]  # a proxy's puts are all told to one threadblock
        told = number in self._wiring.told[block.post, hearer]
        name = "pws" if told else "put"
        channels = self._channels(block, [hearer])[PORT]
        return Operation(name, PORT, channels, sources=task.reads, target=task.writes, remote=place)

    def _tell(self, block: _EmittedBlock, number: int) -> None:
        task, post = self._stream.tasks[number], block.post
        hearers = sorted(h for (t, h), told in self._wiring.told.items() if t == post and number in told)
        far = [] if task.remote else [hearer for hearer in hearers if hearer.rank != post.rank]
        near = [self._wiring.semaphores[post, hearer] for hearer in hearers if hearer.rank == post.rank]
        if not far and not near:
            return
        if block.pending or block.has_waited:
            block.meet()
        block.operations += self._on_channels(block, "signal", far)
        block.operations += _on_semaphores("sem_release", near)

    def _channels(self, block: _EmittedBlock, peers: Iterable[Post]) -> dict[str, tuple[int, ...]]:
        """Places of the channels to other threadblocks in the lists of this one, by type."""
        found: dict[str, list[int]] = {}
        for peer in peers:
            kind = self._wiring.kind_to(block.post, peer)
            wires = self._wiring.wires[block.post.rank][kind]
            (place,) = [n for n, i in enumerate(block.channels[kind]) if wires[i].peer(block.post) == peer]
            found.setdefault(kind, []).append(place)
        return {kind: tuple(sorted(places)) for kind, places in sorted(found.items())}

    def _on_channels(self, block: _EmittedBlock, name: str, peers: Iterable[Post]) -> Iterator[Operation]:
        for kind, places in self._channels(block, peers).items():
            for some in _batches(places, MSCCLPP.max_channels_at_once):
                yield Operation(name, kind, some)


def _on_semaphores(name: str, numbers: Sequence[int]) -> Iterator[Operation]:
    for some in _batches(sorted(numbers), MSCCLPP.max_channels_at_once):
        yield Operation(name, semaphores=some)


def _batches(numbers: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(numbers), most):
        yield tuple(numbers[first : first + most])


def _clash(one: _CellAccess, other: _CellAccess) -> bool:
    return one.rank == other.rank and (one.writes or other.writes) and touch(one.cells, other.cells)
