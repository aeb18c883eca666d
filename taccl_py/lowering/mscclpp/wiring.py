"""Channels and semaphores between threadblocks, and their numbers.

Two threadblocks of different ranks that signal each other have a channel of their own; the n-th channel of one rank to
another is the same as the n-th of the other one back. A threadblock that signals another one of its GPU has a semaphore
for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from taccl_py.lowering.mscclpp.blocks import Post
from taccl_py.lowering.mscclpp.signals import BlockSignal, Signals
from taccl_py.lowering.mscclpp.tasks import TaskKind, TaskStream
from taccl_py.lowering.plan import MEMORY, PORT, RemoteBuffer


@dataclass(frozen=True, slots=True, order=True)
class ChannelWire:
    """A channel: its two ends, the lower one first."""

    one: Post
    other: Post

    @staticmethod
    def between(post: Post, peer: Post) -> ChannelWire:
        """Channel of two ends in any order."""
        return ChannelWire(min(post, peer), max(post, peer))

    def peer(self, post: Post) -> Post:
        """The other end."""
        return self.other if post == self.one else self.one


@dataclass(frozen=True)
class Wiring:
    """All connections.

    Attributes
    ----------
    posts
        Threadblocks of each rank.
    signalled
        For a source and a target, the tasks that are signalled, in order.
    ready_from
        For every threadblock that puts, the threadblock of its peer that signals that the call has begun there.
    wires
        Channels of each rank by type, in the order of their numbers.
    semaphores
        Number of the semaphore from one threadblock to another of the same GPU.
    remotes
        Buffers of others that each rank puts to, in the order of their numbers.
    """

    posts: tuple[tuple[Post, ...], ...]
    signalled: dict[tuple[Post, Post], tuple[int, ...]]
    ready_from: dict[Post, Post]
    wires: tuple[dict[str, tuple[ChannelWire, ...]], ...]
    semaphores: dict[tuple[Post, Post], int]
    remotes: tuple[tuple[RemoteBuffer, ...], ...]

    @cached_property
    def channel_to(self) -> dict[tuple[Post, Post], tuple[str, int]]:
        """For a threadblock and a peer, the type of their channel and its place among those that the threadblock has of that type."""
        found: dict[tuple[Post, Post], tuple[str, int]] = {}
        for rank, kinds in enumerate(self.wires):
            for kind, wires in kinds.items():
                seen: Counter[Post] = Counter()
                for wire in wires:
                    post = wire.one if wire.one.rank == rank else wire.other
                    found[post, wire.peer(post)] = kind, seen[post]
                    seen[post] += 1
        return found

    @cached_property
    def putters_to(self) -> dict[Post, list[Post]]:
        """For every threadblock that signals that the call has begun, those that wait for it, in order."""
        found: dict[Post, list[Post]] = {}
        for putter, waiter in sorted(self.ready_from.items()):
            found.setdefault(waiter, []).append(putter)
        return found


def wire_up(stream: TaskStream, posts: tuple[Post, ...], signals: Signals, node_of: tuple[int, ...]) -> Wiring:
    """Number channels, semaphores and remote buffers.

    Parameters
    ----------
    stream, posts, signals
        Tasks, the threadblock of each, and the signals between these.
    node_of
        Node of every rank.
    """
    every = sorted(_all_signals(signals))
    signalled: dict[tuple[Post, Post], list[int]] = {}
    for signal in every:
        signalled.setdefault((signal.source, signal.target), []).append(signal.task)
    first_of: dict[tuple[Post, int], Post] = {}
    for source, target in sorted(signalled):
        first_of.setdefault((source, target.rank), target)
    ready_from = {
        post: first_of[post, task.peer]
        for post, task in zip(posts, stream.tasks, strict=True)
        if task.kind is TaskKind.PUT
    }
    wires = sorted({ChannelWire.between(*pair) for pair in signalled if pair[0].rank != pair[1].rank})
    ranks = range(len(node_of))
    everybody = sorted({*posts, *(target for _, target in signalled)})
    return Wiring(
        posts=tuple(tuple(post for post in everybody if post.rank == rank) for rank in ranks),
        signalled={pair: tuple(tasks) for pair, tasks in signalled.items()},
        ready_from=ready_from,
        wires=tuple(wires_of(rank, wires, node_of) for rank in ranks),
        semaphores=number_semaphores(pair for pair in signalled if pair[0].rank == pair[1].rank),
        remotes=tuple(_remotes_of(rank, stream) for rank in ranks),
    )


def _all_signals(signals: Signals) -> set[BlockSignal]:
    found = {signal for several in signals.before.values() for signal in several}
    return found.union(*signals.last.values())


def wires_of(rank: int, wires: Iterable[ChannelWire], node_of: tuple[int, ...]) -> dict[str, tuple[ChannelWire, ...]]:
    """Channels of a rank by type, in the order of the wires, which must be the same order for all ranks."""
    kinds: dict[str, list[ChannelWire]] = {MEMORY: [], PORT: []}
    for wire in wires:
        if rank in (wire.one.rank, wire.other.rank):
            same = node_of[wire.one.rank] == node_of[wire.other.rank]
            kinds[MEMORY if same else PORT].append(wire)
    return {kind: tuple(found) for kind, found in kinds.items() if found}


def peers_of(rank: int, wires: dict[str, tuple[ChannelWire, ...]]) -> dict[str, tuple[int, ...]]:
    """Ranks at the other ends of a rank's channels, by type."""
    return {
        kind: tuple(wire.other.rank if wire.one.rank == rank else wire.one.rank for wire in each)
        for kind, each in wires.items()
    }


def channels_of(post: Post, wires: dict[str, tuple[ChannelWire, ...]]) -> dict[str, tuple[int, ...]]:
    """Channels of a threadblock by type, as numbers of its rank, which has these wires."""
    found = {
        kind: tuple(number for number, wire in enumerate(each) if post in (wire.one, wire.other))
        for kind, each in wires.items()
    }
    return {kind: numbers for kind, numbers in found.items() if numbers}


def number_semaphores(pairs: Iterable[tuple[Post, Post]]) -> dict[tuple[Post, Post], int]:
    """Numbers of the semaphores from one threadblock to another, from 0 on every GPU."""
    counts: Counter[int] = Counter()
    found: dict[tuple[Post, Post], int] = {}
    for pair in sorted(pairs):
        found[pair] = counts[pair[0].rank]
        counts[pair[0].rank] += 1
    return found


def _remotes_of(rank: int, stream: TaskStream) -> tuple[RemoteBuffer, ...]:
    found = {task.remote_buffer for task in stream.tasks if task.rank == rank and task.kind is TaskKind.PUT}
    return tuple(sorted(found, key=lambda one: (one.rank, one.buffer, one.channel_type)))
