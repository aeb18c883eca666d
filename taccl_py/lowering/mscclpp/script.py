"""Threadblocks that are written down step by step, where signals need not be searched.

A script says what each threadblock does, step by step, and names others by their posts and switch channels by their ranks.
From that follow channels, semaphores, remote buffers and their numbers, which are the same at both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.blocks import Post
from taccl_py.lowering.mscclpp.limits import beyond, require_threadblocks
from taccl_py.lowering.mscclpp.wiring import (
    ChannelWire,
    channels_of,
    number_semaphores,
    peers_of,
    wires_of,
)
from taccl_py.lowering.plan import SWITCH, Operation, PlanBlock, PlanGpu, RemoteBuffer, SwitchChannel
from taccl_py.runtimes import MSCCLPP

_ON_SEMAPHORES = ("sem_release", "sem_acquire")
_SIGNALS, _WAITS = ("signal", "rlxsignal"), ("wait", "rlxwait")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Cells of the buffers, which are as long on all ranks."""

    input: int
    output: int
    scratch: int = 0


@dataclass(frozen=True, slots=True)
class _ScriptStep:
    """One step; `peers` are the other ends of its channels or semaphores, for a put the one end."""

    name: str
    peers: tuple[Post, ...] = ()
    sources: tuple[CellRange, ...] = ()
    target: CellRange | None = None
    summed: SwitchChannel | None = None
    stored: SwitchChannel | None = None

    @property
    def groups(self) -> tuple[SwitchChannel, ...]:
        """Switch channels that it uses, each once."""
        return tuple(dict.fromkeys(one for one in (self.summed, self.stored) if one is not None))


class Script:
    """Programs of all ranks as they are written.

    Parameters
    ----------
    node_of
        Node of every rank: channels between nodes go through proxies, those inside a node through memory.
    """

    def __init__(self, node_of: tuple[int, ...]) -> None:
        self._node_of = node_of
        self._steps: dict[Post, list[_ScriptStep]] = {}

    def on_channels(self, post: Post, name: str, peers: Iterable[Post]) -> None:
        """Signal others (``signal``, ``rlxsignal``), wait for their signals (``wait``, ``rlxwait``), or flush channels to them."""
        self._add(post, _ScriptStep(name, tuple(peers)))

    def release(self, post: Post, waiter: Post) -> None:
        """Let a threadblock of the same GPU go on."""
        self._add(post, _ScriptStep("sem_release", (waiter,)))

    def acquire(self, post: Post, releaser: Post) -> None:
        """Wait for a threadblock of the same GPU."""
        self._add(post, _ScriptStep("sem_acquire", (releaser,)))

    def sync_threads(self, post: Post) -> None:
        """Synchronize all threads of the block; where they wait or are synchronized next anyway, nothing is written."""
        self._add(post, _ScriptStep("nop"))

    def put(self, post: Post, name: str, peer: Post, source: CellRange, target: CellRange) -> None:
        """Put cells into the memory of a rank on another node: ``put``, or ``pws`` with a signal for `peer`."""
        self._add(post, _ScriptStep(name, (peer,), (source,), target))

    def flush(self, post: Post, peers: Sequence[Post]) -> None:
        """Wait until puts for others have left this rank; each is flushed by another thread, so threads are synchronized before."""
        if len(peers) > 1:
            self.sync_threads(post)
        self.on_channels(post, "flush", peers)
        self.sync_threads(post)

    def copy(self, post: Post, source: CellRange, target: CellRange) -> None:
        """Copy cells of the same rank."""
        self._add(post, _ScriptStep("copy", (), (source,), target))

    def add_up(self, post: Post, target: CellRange, sources: Sequence[CellRange]) -> None:
        """Add up cells in their order, as many at a time as one operation can name."""
        most = MSCCLPP.max_buffers_at_once - 1  # the destination is one of them
        self._add(post, _ScriptStep("re", (), tuple(sources[:most]), target))
        for first in range(most, len(sources), most - 1):
            self.sync_threads(post)
            self._add(post, _ScriptStep("re", (), (target, *sources[first : first + most - 1]), target))

    def sum_by_switch(
        self, post: Post, summed: SwitchChannel, source: CellRange, stored: SwitchChannel, target: CellRange
    ) -> None:  # fmt: skip
        """Let the switch add up the cells of some ranks, and store the sum at some."""
        self._add(post, _ScriptStep("glres", (), (source,), target, summed, stored))

    def multicast(self, post: Post, source: CellRange, stored: SwitchChannel, target: CellRange) -> None:
        """Let the switch store local cells at all ranks of a group."""
        self._add(post, _ScriptStep("gstore", (), (source,), target, None, stored))

    def _add(self, post: Post, step: _ScriptStep) -> None:
        if step.peers or step.name not in (*_SIGNALS, *_WAITS, "flush"):
            self._steps.setdefault(post, []).append(step)

    def gpus(self, lengths: Lengths) -> tuple[PlanGpu, ...]:
        """Return the programs.

        Raises
        ------
        LoweringError
            If a limit of the runtime cannot be kept.
        """
        numbering = _Numbering(self._steps, self._node_of)
        ranks = range(len(self._node_of))
        return tuple(self._gpu(rank, lengths, numbering) for rank in ranks)

    def _gpu(self, rank: int, lengths: Lengths, numbering: _Numbering) -> PlanGpu:
        posts = sorted(post for post in self._steps if post.rank == rank)
        require_threadblocks(rank, len(posts))
        semaphores = sum(source.rank == rank for source, _ in numbering.semaphores)
        if semaphores > MSCCLPP.max_semaphores:
            raise beyond(
                "semaphores",
                f"rank {rank} needs {semaphores} semaphores between its threadblocks, and {MSCCLPP.title} has "
                f"{MSCCLPP.max_semaphores}; use fewer instances",
            )
        return PlanGpu(
            rank=rank,
            input_chunks=lengths.input,
            output_chunks=lengths.output,
            scratch_chunks=lengths.scratch,
            peers=peers_of(rank, numbering.wires[rank]),
            remotes=numbering.remotes[rank],
            num_semaphores=semaphores,
            blocks=tuple(self._block(post, numbering) for post in posts),
            groups=numbering.groups[rank],
        )

    def _block(self, post: Post, numbering: _Numbering) -> PlanBlock:
        steps = _needed(self._steps[post])
        channels, remotes = numbering.channels(post), numbering.remotes_of(post, steps)
        operations = tuple(one for step in steps for one in _operations(post, step, channels, remotes, numbering))
        _require_room(operations, channels, remotes)
        return PlanBlock(operations, channels, remotes)


def _needed(steps: Sequence[_ScriptStep]) -> list[_ScriptStep]:
    """Steps without the synchronizations before a wait, which has one behind it, or before another one."""
    return [
        step
        for step, after in zip(steps, [*steps[1:], None], strict=True)
        if step.name != "nop" or after is None or after.name not in ("nop", "sem_acquire", *_WAITS)
    ]


def _require_room(
    operations: Sequence[Operation], channels: dict[str, tuple[int, ...]], remotes: dict[str, tuple[int, ...]]
) -> None:
    if len(operations) > MSCCLPP.max_operations:
        raise beyond(
            "max_operations",
            f"a threadblock needs {len(operations)} operations, and {MSCCLPP.title} has room for {MSCCLPP.max_operations}; use a "
            "schedule with fewer chunks",
        )
    for what, named in (("channels", channels), ("remote buffers", remotes)):
        for kind, numbers in named.items():
            if len(numbers) > MSCCLPP.max_channels:
                raise beyond(
                    "max_channels",
                    f"a threadblock needs {len(numbers)} {kind} {what}, and {MSCCLPP.title} has room for "
                    f"{MSCCLPP.max_channels}; leave --switch out",
                )


def _operations(
    post: Post,
    step: _ScriptStep,
    channels: dict[str, tuple[int, ...]],
    remotes: dict[str, tuple[int, ...]],
    numbering: _Numbering,
) -> Iterator[Operation]:
    """Operations of a step; what names more channels than one operation can is several."""
    if step.name in _ON_SEMAPHORES:
        ends = (post, step.peers[0]) if step.name == "sem_release" else (step.peers[0], post)
        yield Operation(step.name, semaphores=(numbering.semaphores[ends],))
    elif step.target is None and step.peers:
        for kind, places in _places(post, step.peers, channels, numbering).items():
            for first in range(0, len(places), MSCCLPP.max_channels_at_once):
                yield Operation(step.name, kind, places[first : first + MSCCLPP.max_channels_at_once])
    elif step.target is not None and step.peers:
        ((kind, places),) = _places(post, step.peers, channels, numbering).items()
        number = numbering.remotes[post.rank].index(RemoteBuffer(step.peers[0].rank, step.target.buffer, kind))
        yield Operation(step.name, kind, places, (), step.sources, step.target, remotes[kind].index(number))
    else:
        of = {group: channels[SWITCH].index(numbering.group(post, group)) for group in step.groups}
        summed = None if step.summed is None else of[step.summed]
        stored = None if step.stored is None else of[step.stored]
        kind = SWITCH if of else ""
        yield Operation(step.name, kind, sources=step.sources, target=step.target, summed=summed, stored=stored)


def _places(
    post: Post, peers: Iterable[Post], channels: dict[str, tuple[int, ...]], numbering: _Numbering
) -> dict[str, tuple[int, ...]]:
    """Places of the channels to others in the lists of a threadblock, by type."""
    found: dict[str, list[int]] = {}
    for peer in peers:
        kind, number = numbering.channel(post, peer)
        found.setdefault(kind, []).append(channels[kind].index(number))
    return {kind: tuple(sorted(places)) for kind, places in sorted(found.items())}


class _Numbering:
    """Numbers of channels, semaphores, remote buffers and switch channels, found from what is named."""

    def __init__(self, steps: dict[Post, list[_ScriptStep]], node_of: tuple[int, ...]) -> None:
        ranks = range(len(node_of))
        named = [(post, step, peer) for post, mine in sorted(steps.items()) for step in mine for peer in step.peers]
        far = {ChannelWire.between(post, peer) for post, step, peer in named if step.name not in _ON_SEMAPHORES}
        mine_of: dict[int, list[ChannelWire]] = {rank: [] for rank in ranks}
        for wire in sorted(far):
            mine_of[wire.one.rank].append(wire)
            mine_of[wire.other.rank].append(wire)
        self.wires = tuple(wires_of(rank, mine_of[rank], node_of) for rank in ranks)
        self._channel = {
            (rank, wire): (kind, number)
            for rank in ranks
            for kind, wires in self.wires[rank].items()
            for number, wire in enumerate(wires)
        }
        near = {(post, peer) for post, step, peer in named if step.name == "sem_release"}
        near |= {(peer, post) for post, step, peer in named if step.name == "sem_acquire"}
        self.semaphores = number_semaphores(near)
        puts = [(post, RemoteBuffer(peer.rank, step.target.buffer, self.channel(post, peer)[0]))
                for post, step, peer in named if step.target is not None]  # fmt: skip
        self.remotes = tuple(
            tuple(sorted({one for post, one in puts if post.rank == rank}, key=lambda one: (one.rank, one.buffer)))
            for rank in ranks
        )
        self._uses = _uses(steps)
        self.groups = tuple(_groups_of(rank, self._uses) for rank in ranks)

    def channel(self, post: Post, peer: Post) -> tuple[str, int]:
        """Type and number of the channel between two threadblocks, as a number of the first one's rank."""
        return self._channel[post.rank, ChannelWire.between(post, peer)]

    def group(self, post: Post, group: SwitchChannel) -> int:
        """Number of a threadblock's own channel over a switch: each has one of its own."""
        users = [user for user in self._uses[group] if user.rank == post.rank]
        return self.groups[post.rank].index(group) + users.index(post)

    def channels(self, post: Post) -> dict[str, tuple[int, ...]]:
        """Channels of a threadblock by type, as numbers of its rank."""
        switch = tuple(sorted(self.group(post, group) for group, users in self._uses.items() if post in users))
        return channels_of(post, self.wires[post.rank]) | ({SWITCH: switch} if switch else {})

    def remotes_of(self, post: Post, steps: Iterable[_ScriptStep]) -> dict[str, tuple[int, ...]]:
        """Remote buffers that a threadblock puts to, by type of channel, as numbers of its rank."""
        found: dict[str, set[int]] = {}
        for step in steps:
            if step.target is not None and step.peers:
                kind, _ = self.channel(post, step.peers[0])
                remote = RemoteBuffer(step.peers[0].rank, step.target.buffer, kind)
                found.setdefault(kind, set()).add(self.remotes[post.rank].index(remote))
        return {kind: tuple(sorted(numbers)) for kind, numbers in sorted(found.items())}


def _uses(steps: dict[Post, list[_ScriptStep]]) -> dict[SwitchChannel, list[Post]]:
    """Threadblocks that use each switch channel, in an order that is the same for all ranks."""
    found: dict[SwitchChannel, list[Post]] = {}
    for post, mine in sorted(steps.items()):
        for group in dict.fromkeys(group for step in mine for group in step.groups):
            found.setdefault(group, []).append(post)
    return dict(sorted(found.items(), key=lambda item: (item[0].ranks, item[0].buffer)))


def _groups_of(rank: int, uses: dict[SwitchChannel, list[Post]]) -> tuple[SwitchChannel, ...]:
    """Switch channels of a rank: all ranks of one make it together, as often as the busiest of them uses it."""
    found: list[SwitchChannel] = []
    for group, posts in uses.items():
        if rank in group.ranks:
            found += [group] * max(Counter(post.rank for post in posts).values())
    return tuple(found)
