"""AllGather over nodes, from an outline to messages; ReduceScatter and AllReduce follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.outline import PATHS, Outline, OutlineTimeline
from taccl_py.synthesis.hierarchy.stages import Stage
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order, shifted, turned
from taccl_py.synthesis.templates.patterns import DOUBLING
from taccl_py.synthesis.templates.spreading import flood

# Chunks of a rank's piece: (rank, piece) -> chunk numbers.
Numbering = Callable[[int, int], tuple[int, ...]]


def allgather_messages(
    cluster: LaneCluster, outline: Outline, times: OutlineTimeline, numbering: Numbering
) -> TemplateMessages | None:
    """Messages that bring every rank's chunks to every rank; None if some node cannot hand out as the outline needs it.

    Parameters
    ----------
    cluster, outline, times
        The machine, what is done and when.
    numbering
        Which chunks a rank's piece has.
    """
    messages: list[TemplateMessage] = []
    for piece in range(len(outline.pieces)):
        held = {rank: numbering(rank, piece) for ranks in cluster.nodes for rank in ranks}
        handed = hand_out(cluster, outline.inside, held, times.near[piece][0], times.far[piece][0])
        if handed is None:
            return None
        messages += handed
        for place, (sent, brought) in enumerate(_rounds(cluster, outline, held)):
            messages += _across(sent, times.across[piece][place])
            near, far = times.near[piece][place + 1], times.far[piece][place + 1]
            messages += hand_out(cluster, outline.inside, brought, near, far) or ()
    return in_order(messages)


def by_shard(pieces: Sequence[int]) -> Numbering:
    """Chunks as an AllGather has them: each rank's follow each other."""
    starts = _starts(pieces)
    per_rank = sum(pieces)

    def numbered(rank: int, piece: int) -> tuple[int, ...]:
        first = rank * per_rank + starts[piece]
        return tuple(range(first, first + pieces[piece]))

    return numbered


def by_piece(cluster: LaneCluster, pieces: Sequence[int]) -> Numbering:
    """Chunks where any rank may have any of them: pieces follow each other, in them lanes, in them nodes.

    So what goes over a lane together lies together, but for where the nodes begin again from 0.
    """
    starts = _starts(pieces)
    most = max(len(ranks) for ranks in cluster.nodes)
    order = [ranks[local] for local in range(most) for ranks in cluster.nodes if local < len(ranks)]
    place = {rank: number for number, rank in enumerate(order)}

    def numbered(rank: int, piece: int) -> tuple[int, ...]:
        first = len(order) * starts[piece] + place[rank] * pieces[piece]
        return tuple(range(first, first + pieces[piece]))

    return numbered


def _starts(pieces: Sequence[int]) -> list[int]:
    return [sum(pieces[:number]) for number in range(len(pieces))]


def hand_out(
    cluster: LaneCluster, inside: str, held: Mapping[int, tuple[int, ...]], *stages: Stage
) -> list[TemplateMessage] | None:
    """Everything that ranks hold to all others of their nodes, in the steps of some stages; None if there is no path."""
    starts = [step for stage in stages for step in zip(stage.starts_us(), stage.step_us, strict=True)]
    if inside == PATHS:
        everyone = range(cluster.site.topology.num_ranks)
        flooded = flood(cluster.site.inside, cluster.nodes, {rank: held.get(rank, ()) for rank in everyone})
        if flooded is None:
            return None
        first, last = starts[0][0], max(starts[-1][0] + starts[-1][1], starts[0][0])
        steps = max((round(message.end) for message in flooded), default=1)
        width = (last - first) / steps
        return [
            TemplateMessage(m.src, m.dst, m.chunks, first + width * m.start, first + width * m.end)
            for m in flooded
            if m.chunks
        ]
    return list(chain.from_iterable(_in_node(ranks, inside, held, starts) for ranks in cluster.nodes))


def add_up(
    back: LaneCluster, inside: str, held: Mapping[int, tuple[int, ...]], stage: Stage
) -> TemplateMessages | None:
    """Sums of what ranks hold in the end, from all others of their nodes: `hand_out` on the machine turned around, backwards; None if there is no path."""
    handed = hand_out(back, inside, held, Stage(stage.step_us[::-1], stage.resource, ()))
    return None if handed is None else shifted(turned(tuple(handed), reduce=True), stage.start_us)


def _in_node(
    ranks: Sequence[int],
    inside: str,
    held: Mapping[int, tuple[int, ...]],
    steps: Sequence[tuple[float, float]],
) -> list[TemplateMessage]:
    messages = []
    if inside == DOUBLING:
        for step, (start, duration) in enumerate(steps):
            for place, rank in enumerate(ranks):
                low = place >> step << step
                chunks = tuple(c for other in ranks[low : low + (1 << step)] for c in held.get(other, ()))
                if chunks:
                    messages.append(TemplateMessage(rank, ranks[place ^ (1 << step)], chunks, start, start + duration))
        return messages
    for turn in range(1, len(ranks)):
        start, duration = steps[turn - 1]
        for place, rank in enumerate(ranks):
            if held.get(rank):
                messages.append(
                    TemplateMessage(rank, ranks[_partner(place, turn, len(ranks))], held[rank], start, start + duration)
                )
    return messages


def _partner(place: int, turn: int, size: int) -> int:
    """Whom a rank serves in a turn; in nodes of 2^n ranks those whose numbers differ least come first."""
    return place ^ turn if size & (size - 1) == 0 else (place + turn) % size


def _across(sent: Sequence[tuple[TemplateMessage, ...]], stage: Stage) -> list[TemplateMessage]:
    """Messages of every lane, one after the other."""
    duration = stage.end_us - stage.start_us
    messages = []
    for of_lane in sent:
        step = duration / max(1, len(of_lane))
        for number, message in enumerate(of_lane):
            start = stage.start_us + number * step
            messages.append(TemplateMessage(message.src, message.dst, message.chunks, start, start + step))
    return messages


def _rounds(
    cluster: LaneCluster, outline: Outline, held: Mapping[int, tuple[int, ...]]
) -> list[tuple[list[tuple[TemplateMessage, ...]], dict[int, tuple[int, ...]]]]:
    """For every round what each lane sends, without times, and what it brings to each carrier."""
    number = len(cluster.nodes)
    block = [_parts(cluster, outline.spread, node, held) for node in range(number)]
    found = []
    for peers in outline.rounds:
        sent: list[tuple[TemplateMessage, ...]] = []
        brought: dict[int, tuple[int, ...]] = {}
        for node, lane in product(range(number), range(cluster.width)):
            messages = []
            for peer in peers[lane % outline.spread :: outline.spread]:
                # Seen from the sender: to the node so many places on.
                to = cluster.carriers[(node + peer.back) % number][lane]
                chunks = tuple(c for i in range(peer.blocks) for c in block[(node - i) % number][lane])
                messages.append(TemplateMessage(cluster.carriers[node][lane], to, chunks, 0.0, 0.0))
                brought[to] = brought.get(to, ()) + chunks
            sent.append(tuple(messages))
        found.append((sent, brought))
    return found


def _parts(cluster: LaneCluster, spread: int, node: int, held: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Part of a node's data that each of its lanes carries."""
    of_lane: list[list[int]] = [[] for _ in range(cluster.width)]
    for rank in cluster.nodes[node]:
        of_lane[cluster.lane_of[rank]] += held[rank]
    return [
        tuple(chain.from_iterable(of_lane[lane // spread * spread : (lane // spread + 1) * spread]))
        for lane in range(cluster.width)
    ]
