"""AllGather by rails: equal local numbers gather between the nodes, and every node hands out what comes, as it comes.

Between nodes the blocks double (after Bruck): in each step a rank sends what it has of its rail to the node twice as far on, so few
messages are paid for. What arrives is handed to the other ranks of the node while the next step is under way. The quickest path
where messages are small.
"""

from __future__ import annotations

from collections.abc import Sequence

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.schedule.transform import backwards, untimed_messages
from taccl_py.topology.model import Topology


def rail_schedule(topology: Topology, kind: Kind, chunk_bytes: float) -> Schedule | None:
    """AllGather, ReduceScatter or AllReduce by rails; None if nodes are not equal or lack the links.

    Parameters
    ----------
    topology
        The machine.
    kind
        One of the three.
    chunk_bytes
        Size of one chunk; every rank has one.
    """
    forward = _gathered(topology, chunk_bytes) if kind is not Kind.REDUCESCATTER else None
    if kind is Kind.ALLGATHER:
        return forward
    backward = _gathered(topology.reversed(), chunk_bytes)
    if backward is None or (forward is None and kind is Kind.ALLREDUCE):
        return None
    untimed = backwards(backward, topology)
    if forward is not None:
        untimed += untimed_messages(forward, offset=backward.makespan_us)
    # In scratch, what is added together can lie together, and need not be copied for every message.
    collective = Collective(kind, topology.num_ranks, 1)
    return build_schedule(topology, collective, chunk_bytes, untimed, as_named=True)


def _gathered(topology: Topology, chunk_bytes: float) -> Schedule | None:
    nodes = topology.node_ranks
    if not topology.has_even_nodes or len(nodes) == 1:
        return None
    untimed: list[UntimedMessage] = []
    for local in range(len(nodes[0])):
        rail = [node[local] for node in nodes]
        for place in range(len(rail)):
            found = _steps(topology, rail, place, nodes[place])
            if found is None:
                return None
            untimed += found
    return build_schedule(topology, Collective(Kind.ALLGATHER, topology.num_ranks, 1), chunk_bytes, untimed)


def _steps(topology: Topology, rail: Sequence[int], place: int, node: Sequence[int]) -> list[UntimedMessage] | None:
    """Messages of one rank: its own chunk to its node, then in each step to another node, and what came to its node."""
    rank, count = rail[place], len(rail)
    others = [other for other in node if other != rank]
    untimed = _handed_out(topology, rank, others, (rank,), 0.0)
    has, step = 1, 0
    while untimed is not None and has < count:
        sent = min(has, count - has)
        to = rail[(place + has) % count]
        lanes = topology.links_between.get((rank, to), ())
        if not lanes:
            return None
        chunks = tuple(rail[(place - back) % count] for back in range(sent))
        untimed.append(UntimedMessage(lanes[0], chunks, step, step + 1.0, packed=True))
        came = tuple(rail[(place - has - back) % count] for back in range(sent))
        handed = _handed_out(topology, rank, others, came, step + 1.0)
        untimed = None if handed is None else untimed + handed
        has, step = has + sent, step + 1
    return untimed


def _handed_out(
    topology: Topology, rank: int, others: Sequence[int], chunks: tuple[int, ...], start: float
) -> list[UntimedMessage] | None:
    untimed = []
    for turn in range(len(others)):
        # Not everyone begins with the same rank.
        other = others[(turn + rank) % len(others)]
        lanes = topology.links_between.get((rank, other), ())
        if not lanes:
            return None
        at = start + turn / len(others)
        untimed.append(UntimedMessage(lanes[0], chunks, at, at + 1.0 / len(others), packed=len(chunks) > 1))
    return untimed
