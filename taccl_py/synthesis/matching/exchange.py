"""AllToAll: a way for each chunk, spread evenly over links and ports, and the order in which they go.

With the orbits of a group the chunks of one root are enough: every translation repeats what the root does, so an orbit of links
carries as much as the root's chunks use of it. Chunks take ways that cost the machine least; of those, the ones that leave links
and ports most evenly loaded. Then whatever has the longest way to go starts as soon as its link and ports are free.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.growth import Hop

_RELATIVE_PRECISION = 1e-9
_ROUNDS = 4


def exchange(fabric: Fabric, parts: int, roots: Sequence[int] = (0,)) -> tuple[Hop, ...]:
    """Return the messages that take chunks from the roots to all ranks, numbered as in the collective.

    Parameters
    ----------
    fabric
        The machine.
    parts
        Chunks for each rank.
    roots
        Whose chunks; with the orbits of a regular group one root is enough.
    """
    size = fabric.topology.num_ranks
    ways = _balanced_ways(fabric, parts, roots)
    return _ordered(
        fabric, {chunk: way for chunk, way in sorted(ways.items()) if chunk // parts % size != chunk // parts // size}
    )


def _balanced_ways(fabric: Fabric, parts: int, roots: Sequence[int]) -> dict[int, list[int]]:
    """Links of every chunk."""
    size = fabric.topology.num_ranks
    cost = [sum(claim.time_us for claim in sort.claims) for sort in fabric.sorts]
    towards = {root: _shortest(fabric, cost, root) for root in roots}
    load: dict[int, float] = {}
    chunks = [(root * size + rank) * parts + part for root in roots for rank in range(size) for part in range(parts)]
    ways: dict[int, list[int]] = {chunk: [] for chunk in chunks}
    farthest_first = sorted(chunks, key=lambda c: (-towards[c // parts // size].far[c // parts % size], c))
    for _ in range(_ROUNDS):
        for chunk in farthest_first:
            root, rank = divmod(chunk // parts, size)
            for link in ways[chunk]:
                _add(fabric, load, link, -1.0)
            ways[chunk] = _lightest(fabric, towards[root], load, rank, random.Random(chunk))
            for link in ways[chunk]:
                _add(fabric, load, link, 1.0)
    return ways


@dataclass(frozen=True, slots=True)
class _Towards:
    """Least cost from a root to every rank, and the links by which ways of least cost enter it."""

    root: int
    far: list[float]
    enter: list[list[int]]


def _shortest(fabric: Fabric, cost: Sequence[float], root: int) -> _Towards:
    size = fabric.topology.num_ranks
    far = [float("inf")] * size
    far[root] = 0.0
    queue = [(0.0, root)]
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
    return _Towards(root, far, enter)


def _lightest(fabric: Fabric, towards: _Towards, load: dict[int, float], rank: int, chance: random.Random) -> list[int]:
    """Of the ways of least cost to a rank one whose links and ports have least to do.

    Chance decides between equals, so that not all ways begin in the same direction.
    """
    before: list[int] = []
    within = {rank}
    for reached in (queue := [rank]):
        before.append(reached)
        for link in towards.enter[reached]:
            if fabric.src[link] not in within:
                within.add(fabric.src[link])
                queue.append(fabric.src[link])
    price = {towards.root: (0.0, 0.0)}
    last: dict[int, int] = {}
    for reached in sorted(before, key=lambda r: (towards.far[r], r)):
        for link in towards.enter[reached]:
            claims = fabric.sorts[fabric.sort_of[link]].claims
            busy = max(load.get(claim.orbit, 0.0) for claim in claims)
            through = (price[fabric.src[link]][0] + busy, chance.random())
            if reached not in price or through < price[reached]:
                price[reached] = through
                last[reached] = link
    way: list[int] = []
    while rank != towards.root:
        way.append(last[rank])
        rank = fabric.src[last[rank]]
    return way[::-1]


def _add(fabric: Fabric, load: dict[int, float], link: int, times: float) -> None:
    for claim in fabric.sorts[fabric.sort_of[link]].claims:
        load[claim.orbit] = load.get(claim.orbit, 0.0) + times * claim.time_us


def _ordered(fabric: Fabric, ways: Mapping[int, Sequence[int]]) -> tuple[Hop, ...]:
    """List schedule: at every moment the longest ways first."""
    left_us = {chunk: _tails(fabric, way) for chunk, way in ways.items()}
    free_us: dict[int, float] = {}
    waiting: list[list[tuple[float, int, int]]] = [[] for _ in fabric.sorts]
    uses = _uses(fabric)
    hops: list[Hop] = []
    # (time, chunk that arrives or -1, links of its way that it has behind it or the orbit that becomes free)
    events: list[tuple[float, int, int]] = [(0.0, chunk, 0) for chunk in ways]
    while events:
        now = events[0][0]
        soon = now * (1 + _RELATIVE_PRECISION)
        stirred: set[int] = set()
        while events and events[0][0] <= soon:
            _, chunk, number = heapq.heappop(events)
            if chunk < 0:
                stirred.update(uses[number])
            elif number < len(ways[chunk]):
                sort = fabric.sort_of[ways[chunk][number]]
                heapq.heappush(waiting[sort], (-left_us[chunk][number], chunk, number))
                stirred.add(sort)
        for _, sort in sorted((waiting[sort][0], sort) for sort in stirred if waiting[sort]):
            claims = fabric.sorts[sort].claims
            if any(free_us.get(claim.orbit, 0.0) > soon for claim in claims):
                continue
            _, chunk, number = heapq.heappop(waiting[sort])
            end = now + fabric.sorts[sort].message_us
            hops.append(Hop(ways[chunk][number], now, end, chunk))
            heapq.heappush(events, (end, chunk, number + 1))
            for claim in claims:
                free_us[claim.orbit] = now + claim.time_us
                heapq.heappush(events, (now + claim.time_us, -1, claim.orbit))
    return tuple(hops)


def _uses(fabric: Fabric) -> dict[int, list[int]]:
    """Sorts that claim each orbit."""
    uses: dict[int, list[int]] = {}
    for number, sort in enumerate(fabric.sorts):
        for claim in sort.claims:
            uses.setdefault(claim.orbit, []).append(number)
    return uses


def _tails(fabric: Fabric, way: Sequence[int]) -> list[float]:
    """Time from the start of each link of a way to its end."""
    tails: list[float] = []
    for link in reversed(way):
        tails.append(fabric.sorts[fabric.sort_of[link]].message_us + (tails[-1] if tails else 0.0))
    return tails[::-1]
