"""AllToAll of one root: a way for each of its chunks, spread evenly over the orbits, and the order in which they go.

Every translation repeats what the root does, so an orbit of links carries as much as the root's chunks use of it. Chunks take ways
that cost the machine least; of those, the ones that leave the orbits most evenly loaded. Then whatever has the longest way to go
starts as soon as its orbits are free.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.growth import Hop

_RELATIVE_PRECISION = 1e-9
_ROUNDS = 4


def exchange(fabric: Fabric, parts: int) -> tuple[Hop, ...]:
    """Return the messages that take chunks from rank 0 to the others: so many for each rank, one rank's after the other's."""
    return _ordered(fabric, _balanced_ways(fabric, parts))


def _balanced_ways(fabric: Fabric, parts: int) -> list[list[int]]:
    """Links of every chunk, those for rank 0 itself left without."""
    size = fabric.topology.num_ranks
    cost = [sum(claim.time_us for claim in sort.claims) for sort in fabric.sorts]
    towards = _shortest(fabric, cost)
    load: dict[int, float] = {}
    ways: list[list[int]] = [[] for _ in range(size * parts)]
    farthest_first = sorted(range(parts, size * parts), key=lambda c: (-towards.far[c // parts], c))
    for _ in range(_ROUNDS):
        for chunk in farthest_first:
            for link in ways[chunk]:
                _add(fabric, load, link, -1.0)
            ways[chunk] = _lightest(fabric, towards, load, chunk // parts)
            for link in ways[chunk]:
                _add(fabric, load, link, 1.0)
    return ways


class _Towards:
    """Least cost from rank 0, and the links by which ways of least cost enter every rank."""

    def __init__(self, far: list[float], enter: list[list[int]]) -> None:
        self.far, self.enter = far, enter


def _shortest(fabric: Fabric, cost: Sequence[float]) -> _Towards:
    size = fabric.topology.num_ranks
    far = [float("inf")] * size
    far[0] = 0.0
    queue = [(0.0, 0)]
    while queue:
        there, rank = heapq.heappop(queue)
        if there > far[rank]:
            continue
        for link in fabric.links_from[rank]:
            through = there + cost[fabric.sort_of[link]]
            if through < far[fabric.dst[link]] * (1 - _RELATIVE_PRECISION):
                far[fabric.dst[link]] = through
                heapq.heappush(queue, (through, fabric.dst[link]))
    enter: list[list[int]] = [[] for _ in range(size)]
    for link, (src, dst) in enumerate(zip(fabric.src, fabric.dst, strict=True)):
        if far[src] + cost[fabric.sort_of[link]] <= far[dst] * (1 + _RELATIVE_PRECISION):
            enter[dst].append(link)
    return _Towards(far, enter)


def _lightest(fabric: Fabric, towards: _Towards, load: dict[int, float], rank: int) -> list[int]:
    """Of the ways of least cost to a rank the one whose orbits have least to do, found backwards."""
    before: list[int] = []
    within = {rank}
    for reached in (queue := [rank]):
        before.append(reached)
        for link in towards.enter[reached]:
            if fabric.src[link] not in within:
                within.add(fabric.src[link])
                queue.append(fabric.src[link])
    price = {0: 0.0}
    last: dict[int, int] = {}
    for reached in sorted(before, key=lambda r: (towards.far[r], r)):
        for link in towards.enter[reached]:
            claims = fabric.sorts[fabric.sort_of[link]].claims
            busy = max(load.get(claim.orbit, 0.0) for claim in claims)
            through = price[fabric.src[link]] + busy
            if through < price.get(reached, float("inf")):
                price[reached] = through
                last[reached] = link
    way: list[int] = []
    while rank:
        way.append(last[rank])
        rank = fabric.src[last[rank]]
    return way[::-1]


def _add(fabric: Fabric, load: dict[int, float], link: int, times: float) -> None:
    for claim in fabric.sorts[fabric.sort_of[link]].claims:
        load[claim.orbit] = load.get(claim.orbit, 0.0) + times * claim.time_us


def _ordered(fabric: Fabric, ways: Sequence[Sequence[int]]) -> tuple[Hop, ...]:
    """List schedule: at every moment the longest ways first."""
    left_us = [_tails(fabric, way) for way in ways]
    free_us: dict[int, float] = {}
    waiting: list[list[tuple[float, int, int]]] = [[] for _ in fabric.sorts]
    hops: list[Hop] = []
    # (time, chunk that arrives or -1, links of its way that it has behind it)
    events: list[tuple[float, int, int]] = [(0.0, rank, 0) for rank, way in enumerate(ways) if way]
    heapq.heapify(events)
    while events:
        now = events[0][0]
        soon = now * (1 + _RELATIVE_PRECISION)
        while events and events[0][0] <= soon:
            _, chunk, done = heapq.heappop(events)
            if chunk >= 0 and done < len(ways[chunk]):
                sort = fabric.sort_of[ways[chunk][done]]
                heapq.heappush(waiting[sort], (-left_us[chunk][done], chunk, done))
        for number in sorted((s for s, queue in enumerate(waiting) if queue), key=lambda s: waiting[s][0]):
            claims = fabric.sorts[number].claims
            if any(free_us.get(claim.orbit, 0.0) > soon for claim in claims):
                continue
            _, chunk, done = heapq.heappop(waiting[number])
            end = now + fabric.sorts[number].message_us
            hops.append(Hop(ways[chunk][done], now, end, chunk))
            heapq.heappush(events, (end, chunk, done + 1))
            for claim in claims:
                free_us[claim.orbit] = now + claim.time_us
                heapq.heappush(events, (now + claim.time_us, -1, 0))
    return tuple(hops)


def _tails(fabric: Fabric, way: Sequence[int]) -> list[float]:
    """Time from the start of each link of a way to its end."""
    tails: list[float] = []
    for link in reversed(way):
        tails.append(fabric.sorts[fabric.sort_of[link]].message_us + (tails[-1] if tails else 0.0))
    return tails[::-1]
