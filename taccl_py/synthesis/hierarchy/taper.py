"""AllGather in which every lane sends its own share to the other nodes one after the other, to the last one in ever smaller messages.

What comes last is handed out when the lanes have nothing left to do, so there should be little of it; what comes before it is handed out
meanwhile. Where shards are large this costs a few messages more and needs nothing from others first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.gather import hand_out
from taccl_py.synthesis.hierarchy.outline import INSIDE, RankLoad, inside_steps
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.hierarchy.stages import Stage
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order


@dataclass(frozen=True, slots=True)
class Taper:
    """Sizes of the messages to the last node.

    Attributes
    ----------
    inside
        How nodes hand out: ``direct`` or ``doubling``.
    parts
        Chunks of these messages; all of them are a shard.
    end_us
        When all should be done.
    """

    inside: str
    parts: tuple[int, ...]
    end_us: float

    @property
    def chunks_per_rank(self) -> int:
        """Chunks of a shard."""
        return sum(self.parts)


@dataclass(frozen=True, slots=True)
class _TaperLeg:
    """A message of every lane: from so many nodes back which chunks of a shard, when, and the handing out of what it brought."""

    back: int
    low: int
    high: int
    across: Stage
    handed: Stage


def tapers(cluster: LaneCluster, insides: Sequence[str], shard_bytes: float, counts: Sequence[int]) -> Iterator[Taper]:
    """The best one for each number of messages to the last node; none where ranks share lanes or nodes are many.

    Parameters
    ----------
    cluster, insides
        The machine, and how its nodes may hand out.
    shard_bytes
        What every rank has.
    counts
        Into how many chunks that may be cut.
    """
    if not cluster.is_full or len(cluster.nodes) > PARAMS.most_taper_nodes:
        return
    for number in PARAMS.taper_messages:
        cuts = {
            tuple(apportion([shrinks**turn for turn in range(number)], count))
            for shrinks in PARAMS.taper_shrinks
            for count in counts
            if number <= count <= PARAMS.most_taper_chunks
        }
        found = [
            Taper(inside, parts, _legs(cluster, inside, parts, shard_bytes)[-1].handed.end_us)
            for inside in insides
            for parts in sorted(cuts)
            if all(parts)
        ]
        if found:
            yield min(found, key=lambda taper: (taper.end_us, taper.chunks_per_rank))


def taper_messages(cluster: LaneCluster, taper: Taper, shard_bytes: float) -> TemplateMessages | None:
    """Messages of the AllGather, whose chunks are numbered by rank; None if some node cannot hand out."""
    count, nodes = taper.chunks_per_rank, len(cluster.nodes)
    messages: list[TemplateMessage] = []
    for leg in _legs(cluster, taper.inside, taper.parts, shard_bytes):
        held: dict[int, tuple[int, ...]] = {}
        for node in range(nodes):
            for src, dst in zip(cluster.carriers[(node - leg.back) % nodes], cluster.carriers[node], strict=True):
                held[dst] = tuple(range(src * count + leg.low, src * count + leg.high))
                if leg.back:
                    messages.append(TemplateMessage(src, dst, held[dst], leg.across.start_us, leg.across.end_us))
        handed = hand_out(cluster, taper.inside, held, leg.handed)
        if handed is None:
            return None
        messages += handed
    return in_order(messages)


def _legs(cluster: LaneCluster, inside: str, parts: Sequence[int], shard_bytes: float) -> list[_TaperLeg]:
    """Messages that are sent and handed out in turn, after what the node has itself."""
    count, nodes = sum(parts), len(cluster.nodes)
    ends = list(accumulate(parts, initial=0))
    legs: list[_TaperLeg] = []
    lane_us, node_us = 0.0, 0.0
    for back in range(nodes):
        for low, high in pairwise(ends) if back == nodes - 1 else ((0, count),):
            load = RankLoad(shard_bytes / count, high - low, high - low == count)
            across = Stage((cluster.lane_us(load.num_bytes) if back else 0.0,), INSIDE, (), lane_us)
            lane_us = across.end_us
            handed = Stage(tuple(inside_steps(cluster, inside, load, 1)), INSIDE, (), max(node_us, lane_us))
            node_us = handed.end_us
            legs.append(_TaperLeg(back, low, high, across, handed))
    return legs
