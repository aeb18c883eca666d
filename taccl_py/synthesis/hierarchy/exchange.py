"""AllReduce in which nodes exchange sums: every node adds up, lanes double what they have summed, and every node hands out.

Between 2^n nodes that takes n rounds, half of what a ReduceScatter and an AllGather take, for as much data in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.gather import Numbering, add_up, hand_out
from taccl_py.synthesis.hierarchy.outline import ACROSS, INSIDE, RankLoad, inside_steps
from taccl_py.synthesis.hierarchy.stages import Stage, add_stage, schedule_stages
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order


def exchange_stages(cluster: LaneCluster, inside: str, pieces: Sequence[int], chunk_bytes: float) -> list[list[Stage]]:
    """For every piece: adding up, rounds, handing out; empty if the number of nodes is no power of two."""
    number = len(cluster.nodes)
    if number & (number - 1):
        return []
    stages: list[Stage] = []
    rows = []
    for piece in pieces:
        # A lane has a part of what all ranks have.
        chunks = -(-piece * cluster.site.topology.num_ranks // cluster.width)
        load = RankLoad(chunk_bytes, chunks, True)
        steps = tuple(inside_steps(cluster, inside, load, 1))
        first = last = add_stage(stages, steps, INSIDE)
        for _ in range(number.bit_length() - 1):
            last = add_stage(stages, (cluster.lane_us(load.num_bytes),), ACROSS, last)
        add_stage(stages, steps, INSIDE, last)
        rows.append(stages[first:])
    schedule_stages(stages)
    return rows


def exchange_messages(
    cluster: LaneCluster, back: LaneCluster, inside: str, rows: Sequence[Sequence[Stage]], numbering: Numbering
) -> TemplateMessages | None:
    """Messages of the stages.

    Parameters
    ----------
    cluster, back
        The machine, and the machine turned around.
    inside
        How nodes add up and hand out.
    rows
        What `exchange_stages` found.
    numbering
        Which chunks there are of each rank and piece; any rank may sum up any of them.
    """
    messages: list[TemplateMessage] = []
    for piece, (adding, *meeting, handing) in enumerate(rows):
        held = _parts(cluster, piece, numbering)
        inward, outward = add_up(back, inside, held, adding), hand_out(cluster, inside, held, handing)
        if inward is None or outward is None:
            return None
        messages += inward
        for bit, stage in enumerate(meeting):
            for node, carriers in enumerate(cluster.carriers):
                others = cluster.carriers[node ^ (1 << bit)]
                for rank, other in zip(carriers, others, strict=True):
                    messages.append(TemplateMessage(rank, other, held[rank], stage.start_us, stage.end_us, reduce=True))
        messages += outward
    return in_order(messages)


def _parts(cluster: LaneCluster, piece: int, numbering: Numbering) -> Mapping[int, tuple[int, ...]]:
    """Chunks of every carrier; those of one lane are the same in all nodes."""
    of_lane: list[list[int]] = [[] for _ in range(cluster.width)]
    for ranks in cluster.nodes:
        for rank in ranks:
            of_lane[cluster.lane_of[rank]] += numbering(rank, piece)
    return {
        rank: tuple(sorted(chunks))
        for carriers in cluster.carriers
        for rank, chunks in zip(carriers, of_lane, strict=True)
    }
