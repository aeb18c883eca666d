"""The time that no schedule beats in which every chunk crosses every link in a message of its own."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence

from taccl_py.collective import Collective, Kind
from taccl_py.synthesis.matching.fabric import Fabric


def least_us(fabric: Fabric, collective: Collective) -> float:
    """Time for the messages that some rank or node needs in, or out, one after the other on each of its links and ports.

    Parameters
    ----------
    fabric
        The machine, every link and port for itself.
    collective
        A Broadcast, AllGather or AllToAll.
    """
    topology = fabric.topology
    ranks = range(topology.num_ranks)
    found = _of_parts(fabric, collective, ranks, [(rank,) for rank in ranks])
    if topology.num_nodes == 1:
        return found
    return max(found, _of_parts(fabric, collective, topology.node_of, topology.node_ranks))


def _of_parts(
    fabric: Fabric, collective: Collective, number: Sequence[int], parts: Collection[Collection[int]]
) -> float:
    """Of disjoint sets of ranks; `number` is the set of every rank."""
    into: list[list[int]] = [[] for _ in parts]
    out_of: list[list[int]] = [[] for _ in parts]
    for link, (src, dst) in enumerate(zip(fabric.src, fabric.dst, strict=True)):
        if number[src] != number[dst]:
            out_of[number[src]].append(link)
            into[number[dst]].append(link)
    least = 0.0
    for links_in, links_out, ranks in zip(into, out_of, parts, strict=True):
        comes, goes = _crossing(collective, ranks)
        least = max(least, _served_us(fabric, links_in, comes), _served_us(fabric, links_out, goes))
    return least


def _crossing(collective: Collective, ranks: Collection[int]) -> tuple[int, int]:
    """Chunks that have to come into a set of ranks, and those that have to leave it."""
    inside, outside = len(ranks), collective.num_ranks - len(ranks)
    k = collective.chunks_per_rank
    if collective.kind is Kind.ALLTOALL:
        return inside * outside * k, inside * outside * k
    if collective.kind is Kind.BROADCAST:
        return (0, k) if collective.root in ranks else (k, 0)
    return outside * k, inside * k


def _served_us(fabric: Fabric, links: Collection[int], messages: int) -> float:
    """Time for so many messages over some links."""
    users = Counter(claim.orbit for link in links for claim in fabric.sorts[fabric.sort_of[link]].claims)
    turn_us: dict[int, float] = {}
    rest_us: dict[int, float] = {}
    for link in links:
        sort = fabric.sorts[fabric.sort_of[link]]
        # Of what a link needs, that which most others need too.
        gate = max(sort.claims, key=lambda claim: (users[claim.orbit], claim.time_us))
        turn_us[gate.orbit] = min(turn_us.get(gate.orbit, gate.time_us), gate.time_us)
        rest = sort.message_us - gate.time_us
        rest_us[gate.orbit] = min(rest_us.get(gate.orbit, rest), rest)
    ends = [(turn_us[orbit] + rest_us[orbit], orbit) for orbit in sorted(turn_us)]
    heapq.heapify(ends)
    end_us = 0.0
    for _ in range(messages if ends else 0):
        end_us, orbit = ends[0]
        heapq.heapreplace(ends, (end_us + turn_us[orbit], orbit))
    return end_us
