"""Threadblocks of tasks: one for every peer that a rank puts to, and one, the hub, for what several of them need.

A reduction or copy belongs to the threadblock that puts its result away, if only one does. All else that is local, and waiting
for the network, is done by the hub, so that threadblocks of a GPU need few semaphores. A threadblock with more to do than the
runtime allows is cut into several, each with a part of its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taccl_py.collective import Buffer
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.tasks import Landing, TaskKind, TaskStream, cells_of

HUB = -1


@dataclass(frozen=True, slots=True, order=True)
class Post:
    """Role of a threadblock: the peer that it puts to (or `HUB`), of which instance, and which part of that."""

    rank: int
    peer: int
    instance: int
    part: int = 0

    @property
    def whole(self) -> Post:
        """The same before it is cut into parts."""
        return Post(self.rank, self.peer, self.instance)


def share_out(stream: TaskStream, parts: Mapping[Post, int]) -> tuple[Post, ...]:
    """Return the threadblock of every task.

    Parameters
    ----------
    stream
        The tasks.
    parts
        Into how many threadblocks some are cut.
    """
    posts = whole_posts(stream)
    totals: dict[Post, int] = {}
    for post, task in zip(posts, stream.tasks, strict=True):
        if task.kind is not TaskKind.ARRIVE:
            totals[post] = totals.get(post, 0) + 1
    seen: dict[Post, int] = {}
    found = []
    for post, task in zip(posts, stream.tasks, strict=True):
        number = parts.get(post, 1)
        if task.kind is TaskKind.ARRIVE:
            # All that one sender's proxy brings is awaited by one threadblock.
            part = task.peer % number
        else:
            part = seen.get(post, 0) * number // totals[post]
            seen[post] = seen.get(post, 0) + 1
        found.append(Post(post.rank, post.peer, post.instance, part))
    return tuple(found)


def whole_posts(stream: TaskStream) -> list[Post]:
    """Return the threadblock of every task before any is cut into parts."""
    readers = _readers(stream)
    posts: list[Post] = [Post(task.rank, task.peer, task.instance) for task in stream.tasks]
    for number in reversed(range(len(stream.tasks))):
        task = stream.tasks[number]
        if task.kind is TaskKind.PUT:
            continue
        hub = Post(task.rank, HUB, task.instance)
        wanted = {posts[reader] for reader in readers[number]}
        posts[number] = wanted.pop() if len(wanted) == 1 and task.kind is not TaskKind.ARRIVE else hub
    return posts


def _readers(stream: TaskStream) -> list[list[int]]:
    """Tasks that read what each local task has written."""
    writer: dict[tuple[int, Buffer, int], int] = {}
    readers: list[list[int]] = [[] for _ in stream.tasks]

    def read(rank: int, cells: CellRange, reader: int) -> None:
        for cell in cells_of(rank, cells):
            if cell in writer:
                readers[writer[cell]].append(reader)

    for item in stream.items:
        if isinstance(item, Landing):
            put = stream.tasks[item.put]
            for cell in cells_of(put.peer, put.writes) if put.writes else ():
                writer.pop(cell, None)
            continue
        task = stream.tasks[item]
        for cells in task.reads:
            read(task.rank, cells, item)
        if task.writes is None or task.kind is TaskKind.PUT:
            continue
        if task.kind is TaskKind.REDUCE:
            read(task.rank, task.writes, item)
        for cell in cells_of(task.rank, task.writes):
            writer[cell] = item
    return readers
