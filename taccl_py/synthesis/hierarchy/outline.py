"""Outlines: how an AllGather over nodes goes, in broad strokes, and how long it should take.

Between nodes blocks of data multiply: in a round of fan f every node hears from f others what they have, so that afterwards it
has f + 1 times as much. One lane carries its own part of a node's data to all f of them, or lanes share them out: with spread s
groups of s lanes have gathered each other's parts before, and each of them serves only every s-th of the others. What a round
brings is handed out inside the nodes at once (a *wave*), while the next round or the next piece is on its way.

An outline's time is that of a list schedule of rounds and waves on one lane and one node, which stand for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.stages import Stage, add_stage, schedule_stages
from taccl_py.synthesis.templates.packing import most_packed
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING

PATHS = "paths"
# What stages occupy.
INSIDE, ACROSS = 0, 1


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node that a node hears from in a round, so many places back, and how many blocks it sends from there on back."""

    back: int
    blocks: int


Rounds = tuple[tuple[Peer, ...], ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """Choices of an AllGather over nodes.

    Attributes
    ----------
    rounds
        What every node hears in each round.
    spread
        Lanes that share out the nodes of a round.
    inside
        How a node hands out: ``direct``, ``doubling`` or ``paths``.
    pieces
        Chunks of every piece that a rank's data is cut into, in order.
    """

    rounds: Rounds
    spread: int
    inside: str
    pieces: tuple[int, ...]


def rounds_to_hear(num_nodes: int, lanes: int = 1) -> list[Rounds]:
    """Rounds by which blocks get everywhere: one, two, and so on up to the fewest messages; and the same with a short last round.

    What the last round brings is handed out when nothing else is left to do, so it pays to leave little to it. Where lanes may
    share out the nodes of a round there are also rounds in which as many of them as a power of two hear from one node each.
    """
    found: list[Rounds] = []
    for fans in _fans(num_nodes):
        heard = _heard(num_nodes, fans)
        found += [heard, *(_tapered(heard, rest, _parted) for rest in (4, 2))]
    for lane_fans in _lane_fans(num_nodes, lanes):
        heard = _evenly_heard(num_nodes, lane_fans)
        found += [heard, *(_tapered(heard, rest, _thinned) for rest in (4, 2))]
    return [heard for heard in dict.fromkeys(found) if all(heard)]


def _fans(num_nodes: int) -> list[tuple[int, ...]]:
    """Numbers of nodes to hear from in each round, for every number of rounds."""
    found = []
    for number in range(1, math.ceil(math.log2(num_nodes)) + 1):
        fan = math.ceil(round(num_nodes ** (1 / number), 9)) - 1
        # The first round may have less to do, which leaves what is sent in it small.
        first = fan
        while first > 1 and first * (fan + 1) ** (number - 1) >= num_nodes:
            first -= 1
        found.append((first, *[fan] * (number - 1)))
    return list(dict.fromkeys(found))


def _lane_fans(num_nodes: int, lanes: int) -> list[tuple[int, ...]]:
    """As many nodes in each round as there are lanes that share them out, for every such number above one."""
    found = []
    for together in (1 << power for power in range(1, lanes.bit_length())):
        has, fans = 1, list[int]()
        while lanes % together == 0 and has < num_nodes:
            fans.append(min(together, num_nodes - has))
            has += has * fans[-1]
        if len(fans) > 1:
            found.append(tuple(fans))
    return found


def _heard(num_nodes: int, fans: Sequence[int]) -> Rounds:
    has, found = 1, []
    for fan in fans:
        peers = [Peer(turn * has, min(has, num_nodes - turn * has)) for turn in range(1, fan + 1)]
        found.append(tuple(peer for peer in peers if peer.blocks > 0))
        has += sum(peer.blocks for peer in found[-1])
    return tuple(found)


def _evenly_heard(num_nodes: int, fans: Sequence[int]) -> Rounds:
    """Rounds of so many peers, where what is left for the last one is dealt out evenly."""
    has, found = 1, []
    for fan in fans:
        coming = min(fan * has, num_nodes - has)
        ends = [has + coming * turn // fan for turn in range(fan + 1)]
        found.append(tuple(Peer(back, after - back) for back, after in pairwise(ends) if after > back))
        has += coming
    return tuple(found)


def _tapered(rounds: Rounds, divisor: int, part: Callable[[tuple[Peer, ...], int], Rounds]) -> Rounds:
    """The rounds with the last one in two, the second of which brings one part in so many of its blocks."""
    last = rounds[-1]
    rest = sum(peer.blocks for peer in last) // divisor
    return (*rounds[:-1], *part(last, rest)) if rest else rounds


def _parted(peers: tuple[Peer, ...], rest: int) -> Rounds:
    """A round as two: the second one has the last blocks, so that fewer peers are heard in it."""
    blocks = sum(peer.blocks for peer in peers) - rest
    first, second = [], []
    for peer in peers:
        now = min(peer.blocks, blocks)
        blocks -= now
        first += [Peer(peer.back, now)] if now else []
        second += [Peer(peer.back + now, peer.blocks - now)] if now < peer.blocks else []
    return tuple(first), tuple(second)


def _thinned(peers: tuple[Peer, ...], rest: int) -> Rounds:
    """A round as two: the second one has the last blocks of every peer."""
    total = sum(peer.blocks for peer in peers)
    later = [peer.blocks * rest // total for peer in peers]
    first = tuple(Peer(peer.back, peer.blocks - some) for peer, some in zip(peers, later, strict=True))
    second = (Peer(p.back + p.blocks - some, some) for p, some in zip(peers, later, strict=True) if some)
    return first, tuple(second)


@dataclass(frozen=True)
class OutlineTimeline:
    """Stages of an outline with their times, by piece and round.

    Attributes
    ----------
    near, far
        Handing out to the ranks that share lanes' work, and to the others; for round -1, of what ranks have at first. [piece][round + 1]
    across
        Rounds, [piece][round].
    end_us
        When all is done.
    """

    near: tuple[tuple[Stage, ...], ...]
    far: tuple[tuple[Stage, ...], ...]
    across: tuple[tuple[Stage, ...], ...]
    end_us: float


def timeline(cluster: LaneCluster, outline: Outline, chunk_bytes: float) -> OutlineTimeline:
    """Times of an outline's stages, where every rank has its pieces of so many bytes a chunk."""
    stages: list[Stage] = []
    add = partial(add_stage, stages)
    total = sum(outline.pieces)
    # Most pieces are alike.
    lasting = {
        piece: _lasting(cluster, outline, RankLoad(chunk_bytes, piece, piece == total)) for piece in {*outline.pieces}
    }
    rows: list[tuple[list[int], list[int], list[int]]] = []
    for piece in outline.pieces:
        own, *rounds = lasting[piece]
        near = [add(own.near_us, INSIDE)]
        far, across = [add(own.far_us, INSIDE, near[0])], list[int]()
        for each in rounds:
            # With lanes that carry for themselves alone, what came over one can go on at once.
            waits = near[-1] if outline.spread > 1 or not across else across[-1]
            across.append(add([each.across_us], ACROSS, waits))
            near.append(add(each.near_us, INSIDE, across[-1]))
            far.append(add(each.far_us, INSIDE, near[-1]))
        rows.append((near, far, across))
    end_us = schedule_stages(stages)
    found = [tuple(tuple(stages[i] for i in row[which]) for row in rows) for which in range(3)]
    return OutlineTimeline(found[0], found[1], found[2], end_us)


@dataclass(frozen=True, slots=True)
class _RoundLasts:
    """Durations of a round, and of the steps by which what it brings is handed out; see `OutlineTimeline`."""

    across_us: float
    near_us: Sequence[float]
    far_us: Sequence[float]


def _lasting(cluster: LaneCluster, outline: Outline, load: RankLoad) -> list[_RoundLasts]:
    """Times of all steps of a piece: those of what ranks have at first, which nothing brings, and then of each round."""

    def handing(across_us: float, load: RankLoad, runs: int) -> _RoundLasts:
        steps = inside_steps(cluster, outline.inside, load, runs)
        cut = _near_steps(cluster, outline, len(steps))
        return _RoundLasts(across_us, steps[:cut], steps[cut:])

    # What one lane brings for all ranks that share it, and for all lanes that share out a round.
    each = load.times(cluster.sharing * outline.spread)
    found = [handing(0.0, load, 1)]
    for peers in outline.rounds:
        of_lane = [peers[first :: outline.spread] for first in range(outline.spread)]
        across_us = max(
            sum(cluster.lane_us(each.times(peer.blocks).num_bytes) for peer in served) for served in of_lane
        )
        blocks = max(sum(peer.blocks for peer in served) for served in of_lane)
        # Lanes that carry whole nodes bring nodes that follow each other, but for where these begin again from 0.
        runs = min(2, blocks) if max(map(len, of_lane)) == 1 and outline.spread == cluster.width else blocks
        found.append(handing(across_us, each.times(blocks), runs))
    return found


@dataclass(frozen=True, slots=True)
class RankLoad:
    """Chunks that one rank hands out.

    Attributes
    ----------
    chunk_bytes, chunks
        Size and number of its chunks.
    whole
        Whether ranks' chunks follow each other in the buffers, as they do where a rank's data is not cut into pieces.
    """

    chunk_bytes: float
    chunks: int
    whole: bool

    @property
    def num_bytes(self) -> float:
        """Size of all."""
        return self.chunk_bytes * self.chunks

    def times(self, factor: int) -> RankLoad:
        """So many times as much."""
        return RankLoad(self.chunk_bytes, self.chunks * factor, self.whole)


def insides(cluster: LaneCluster) -> list[str]:
    """Patterns of handing out inside nodes."""
    if not cluster.site.linked_inside_nodes:
        return [PATHS]
    sizes = {len(ranks) for ranks in cluster.nodes}
    doubling = len(sizes) == 1 and all(size & (size - 1) == 0 for size in sizes)
    return [DOUBLING, DIRECT] if doubling else [DIRECT]


def inside_steps(cluster: LaneCluster, inside: str, load: RankLoad, blocks: int) -> list[float]:
    """Durations of the steps by which everyone in a node gets what everyone else has, in so many runs of nodes."""
    size = max(len(ranks) for ranks in cluster.nodes)
    sizes = [1 << step for step in range(size.bit_length() - 1)] if inside == DOUBLING else [1] * (size - 1)
    alpha_us, packed = cluster.node_us(0.0), most_packed(load.chunk_bytes, cluster.site.message_chunks)
    steps = []
    for together in sizes:
        every = load.times(together)
        runs = blocks if load.whole else every.chunks
        parts = -(-every.chunks // packed) if packed > 1 else runs
        steps.append(cluster.node_us(every.num_bytes) + (min(runs, parts) - 1) * alpha_us)
    if inside != DOUBLING and cluster.at_once > 1:
        # Those that go at the same time start together and end with the last of them.
        last = {*range(cluster.at_once - 1, len(steps), cluster.at_once), len(steps) - 1}
        steps = [us if step in last else 0.0 for step, us in enumerate(steps)]
    return steps


def _near_steps(cluster: LaneCluster, outline: Outline, steps: int) -> int:
    """Number of a wave's steps until the ranks that divide a lane's data have each other's parts."""
    if not cluster.is_even or outline.inside == PATHS:
        return steps
    return outline.spread.bit_length() - 1 if outline.inside == DOUBLING else outline.spread - 1
