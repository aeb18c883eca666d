"""Signals between threadblocks: the fewest signals and semaphores with which nothing is read or overwritten too early.

Tasks are looked at in the order of time. A task must come after the last writer of every cell that it reads or writes, and a
writer after all readers of what it overwrites. What does not follow from the order inside threadblocks and from signals that
are there already needs another one: on the channel between the two threadblocks if a put must have landed, else on the
semaphore between two threadblocks of a GPU. For that every task has a clock: how far each threadblock certainly is, and how
many of its puts have certainly landed.

Signals between two threadblocks are counted, so the first wait is for the first signal. That is right because later tasks
never need earlier signals: they would follow from what is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.collective import Buffer
from taccl_py.lowering.mscclpp.blocks import HUB, Post
from taccl_py.lowering.mscclpp.tasks import Landing, TaskKind, TaskStream, cells_of
from taccl_py.runtimes import MSCCLPP

_Clock = NDArray[np.int32]
_Cell = tuple[int, Buffer, int]


@dataclass(frozen=True, slots=True, order=True)
class BlockSignal:
    """Message of one threadblock to another that a task is done; `task` is its number."""

    source: Post
    target: Post
    task: int


@dataclass(frozen=True, slots=True)
class Signals:
    """Result of `find_signals`.

    Attributes
    ----------
    before
        For a task, what its threadblock must have waited for; between ranks that is a signal, else a semaphore.
    last
        For a threadblock, what it must have waited for at the end.
    flushed
        Puts over the network that must be complete before their threadblock goes on.
    crowded
        Messages that would land in cells which may still be in use; nothing else counts if there are any.
    """

    before: dict[int, tuple[BlockSignal, ...]]
    last: dict[Post, tuple[BlockSignal, ...]]
    flushed: frozenset[int]
    crowded: frozenset[int]


def find_signals(stream: TaskStream, posts: tuple[Post, ...]) -> Signals:
    """Find the signals that threadblocks need from each other.

    Parameters
    ----------
    stream
        The tasks.
    posts
        The threadblock of each.
    """
    finder = _Finder(stream, posts)
    for item in stream.items:
        if isinstance(item, Landing):
            finder.land(item.put)
        else:
            finder.add(item)
    finder.finish()
    return Signals(
        {task: tuple(signals) for task, signals in finder.before.items()},
        {post: tuple(signals) for post, signals in finder.last.items()},
        frozenset(finder.flushed),
        frozenset(finder.crowded),
    )


class _Finder:
    def __init__(self, stream: TaskStream, posts: tuple[Post, ...]) -> None:
        self._stream = stream
        self._posts = posts
        self._column = {post: index for index, post in enumerate(sorted(set(posts)))}
        self._width = len(self._column)
        self._position: list[int] = []
        done = [0] * self._width
        for post in posts:
            self._position.append(done[self._column[post]])
            done[self._column[post]] += 1
        self._latest: dict[Post, _Clock] = {post: self._zero() for post in self._column}
        self._begin: dict[int, _Clock] = {}
        self._end: dict[int, _Clock] = {}
        self._writer: dict[_Cell, int] = {}  # the last of every cell
        self._readers: dict[_Cell, list[int]] = {}  # since then
        self._put_of = {arrival: put for put, arrival in stream.arrival_of.items()}
        self.before: dict[int, list[BlockSignal]] = {}
        self.last: dict[Post, list[BlockSignal]] = {}
        self._signalled: dict[tuple[Post, int], set[Post]] = {}  # by a threadblock, of a rank
        self.flushed: set[int] = set()
        self.crowded: set[int] = set()

    def _zero(self) -> _Clock:
        """Columns of a clock: how far each threadblock is, then how many of its tasks have landed."""
        return np.zeros(2 * self._width, dtype=np.int32)

    def add(self, number: int) -> None:
        """Take in a task: find what it waits for, and give it its clocks."""
        task, post = self._stream.tasks[number], self._posts[number]
        clock = self._latest[post].copy()
        needed: set[int] = set()
        overwritten: set[int] = set()
        if task.kind is TaskKind.ARRIVE:
            needed.add(self._put_of[number])
        for cells in task.reads:
            for cell in cells_of(task.rank, cells):
                needed |= self._writers(cell)
                self._readers.setdefault(cell, []).append(number)
        for cells in task.own_writes:
            for cell in cells_of(task.rank, cells):
                needed |= self._writers(cell)
                overwritten.update(self._readers.get(cell, ()))
                self._writer[cell] = number
                self._readers[cell] = []
        needed.discard(number)
        overwritten -= needed | {number}
        for earlier in sorted(overwritten, reverse=True):
            self._after_read(number, clock, earlier)
        for earlier in sorted(needed, key=lambda one: -self._moment(one)):
            self._after_write(number, clock, earlier)
        self._begin[number] = clock
        end = clock.copy()
        end[self._column[post]] = self._position[number] + 1
        self._end[number] = self._latest[post] = end

    def _moment(self, number: int) -> int:
        return self._stream.arrival_of.get(number, number)

    def _writers(self, cell: _Cell) -> set[int]:
        writer = self._writer.get(cell)
        return set() if writer is None else {writer}

    def _has_landed(self, clock: _Clock, put: int) -> bool:
        column = self._width + self._column[self._posts[put]]
        return bool(clock[column] > self._position[put])

    def _is_done(self, clock: _Clock, number: int) -> bool:
        return bool(clock[self._column[self._posts[number]]] > self._position[number])

    def _after_read(self, number: int, clock: _Clock, earlier: int) -> None:
        """Wait until an earlier task has read what this one overwrites."""
        task = self._stream.tasks[earlier]
        if task.remote and task.kind is TaskKind.PUT:
            if self._has_landed(clock, earlier):
                return
            self.flushed.add(earlier)
        self._after_task(number, clock, earlier)

    def _after_write(self, number: int, clock: _Clock, earlier: int) -> None:
        """Wait until what an earlier task has written is there."""
        task = self._stream.tasks[earlier]
        if task.kind is not TaskKind.PUT:
            self._after_task(number, clock, earlier)
        elif not self._has_landed(clock, earlier):
            arrival = self._stream.arrival_of.get(earlier, number)
            if arrival != number:
                self._after_task(number, clock, arrival)
            else:
                self._wait_for(number, clock, earlier, landed=True)

    def _after_task(self, number: int, clock: _Clock, earlier: int) -> None:
        if not self._is_done(clock, earlier):
            self._wait_for(number, clock, earlier, landed=False)

    def _wait_for(self, number: int, clock: _Clock, earlier: int, *, landed: bool) -> None:
        source, target = self._posts[earlier], self._posts[number]
        self.before.setdefault(number, []).append(BlockSignal(source, target, earlier))
        self._signalled.setdefault((source, target.rank), set()).add(target)
        np.maximum(clock, self._end[earlier], out=clock)
        if landed:
            column = self._width + self._column[source]
            clock[column] = max(int(clock[column]), self._position[earlier] + 1)

    def land(self, put: int) -> None:
        """Let the receiver have what a put has brought; it must not have disturbed anybody."""
        task, clock = self._stream.tasks[put], self._begin[put]
        if task.writes is None:
            return
        for cell in cells_of(task.peer, task.writes):
            for earlier in self._readers.get(cell, ()):
                if not self._has_read(clock, earlier):
                    self.crowded.add(task.message)
            for earlier in self._writers(cell):
                landed = self._stream.tasks[earlier].kind is TaskKind.PUT
                if not (self._has_landed(clock, earlier) if landed else self._is_done(clock, earlier)):
                    self.crowded.add(task.message)
            self._writer[cell] = put
            self._readers[cell] = []

    def _has_read(self, clock: _Clock, earlier: int) -> bool:
        task = self._stream.tasks[earlier]
        if task.remote and task.kind is TaskKind.PUT:
            return self._has_landed(clock, earlier)
        return self._is_done(clock, earlier)

    def finish(self) -> None:
        """Make sure that every rank waits for all that was put into its memory, and that proxies are done."""
        last_put: dict[Post, int] = {}
        for number, task in enumerate(self._stream.tasks):
            if task.kind is TaskKind.PUT:
                last_put[self._posts[number]] = number
        for put in sorted(self.flushed):
            self._signal_at_end(put)
        for source, put in sorted(last_put.items()):
            task = self._stream.tasks[put]
            if task.remote:
                self.flushed.add(put)
            column, rank = self._width + self._column[source], task.peer
            known = max((int(c[column]) for post, c in self._latest.items() if post.rank == rank), default=0)
            if known <= self._position[put]:
                self._signal_at_end(put)

    def _signal_at_end(self, put: int) -> None:
        """Let the receiver wait for a put at the end at the latest: a flush is part of a signal."""
        task, source = self._stream.tasks[put], self._posts[put]
        target = self._last_target(source, task.peer, task.instance, remote=task.remote)
        self.last.setdefault(target, []).append(BlockSignal(source, target, put))

    def _last_target(self, source: Post, rank: int, instance: int, *, remote: bool) -> Post:
        """Return the threadblock that waits for a put which nobody needs before the end."""
        signalled = sorted(self._signalled.get((source, rank), ()))
        back = Post(rank, source.rank, instance, source.part)
        if signalled and (remote or back not in signalled):
            return signalled[0]
        if back in self._column:
            return back
        mine = [post for post in sorted(self._column) if post.rank == rank and post.instance == instance]
        if len(mine) == 1 and len(self.last.get(mine[0], ())) < MSCCLPP.max_channels_at_once:
            return mine[0]
        targets = [post for post in self.last if post.whole == Post(rank, HUB, instance)]
        expected = sum(len(self.last[post]) for post in targets)
        return Post(rank, HUB, instance, expected // MSCCLPP.max_channels_at_once)
