"""One root's trees, one for each of its chunks, grown moment by moment so that their translations fit together.

In a schedule that all translations repeat, an orbit of links carries one message of the trees at a time, and so does an orbit of
ports. At every moment each free orbit is matched with a chunk and a rank that it has not reached yet (a *place*): the ranks
nearest to the root first, so that what is left at the end can be reached from all sides. When few places are left the matching is
a maximum one.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from taccl_py.synthesis.matching.fabric import Fabric

_RELATIVE_PRECISION = 1e-9
# The matching is a maximum one when there are at most so many times more ranks left than orbits free.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Hop:
    """Chunks on one link."""

    link: int
    start_us: float
    end_us: float
    chunks: tuple[int, ...]


def grow_trees(fabric: Fabric, chunks: int, seed: int) -> tuple[Hop, ...]:
    """Return the messages that take the chunks of rank 0 to all other ranks.

    Parameters
    ----------
    fabric
        The machine with the orbits of a regular group.
    chunks
        How many chunks rank 0 has.
    seed
        Which of equally near ranks come first.
    """
    return _Growth(fabric, chunks, seed).run()


class _Growth:
    def __init__(self, fabric: Fabric, chunks: int, seed: int) -> None:
        self._fabric, self._size = fabric, fabric.topology.num_ranks
        self._random = random.Random(seed)
        self._far = _hops_from(fabric, 0)
        # (distance of the rank, tie-breaker, link, chunk)
        self._waiting: list[list[tuple[int, float, int, int]]] = [[] for _ in fabric.sorts]
        self._reached = [False] * (chunks * self._size)
        for chunk in range(chunks):
            self._reached[chunk * self._size] = True
        self._left = chunks * (self._size - 1)
        self._free_us: dict[int, float] = {}
        self._hops: list[Hop] = []
        # (time, place that is reached or -1 where only an orbit becomes free)
        self._events: list[tuple[float, int]] = [(0.0, chunk * self._size) for chunk in range(chunks)]
        self._now = self._soon = 0.0

    def run(self) -> tuple[Hop, ...]:
        while self._left:
            self._now = self._events[0][0]
            self._soon = self._now * (1 + _RELATIVE_PRECISION)
            while self._events and self._events[0][0] <= self._soon:
                _, place = heapq.heappop(self._events)
                if place >= 0:
                    self._offer(*divmod(place, self._size))
            ready = [sort for sort, links in enumerate(self._waiting) if links and self._is_free(sort)]
            if self._left <= _FEW * len(ready):
                self._match_well(ready)
            else:
                self._match_quickly(ready)
            if not self._events:
                self._match_any(ready)
        return tuple(self._hops)

    def _place(self, link: int, chunk: int) -> int:
        return chunk * self._size + self._fabric.dst[link]

    def _offer(self, chunk: int, rank: int) -> None:
        """Links from a rank that has got the chunk may be used."""
        fabric = self._fabric
        for link in fabric.links_from[rank]:
            if not self._reached[self._place(link, chunk)]:
                entry = (self._far[fabric.dst[link]], self._random.random(), link, chunk)
                heapq.heappush(self._waiting[fabric.sort_of[link]], entry)

    def _is_free(self, sort: int) -> bool:
        return all(self._free_us.get(c.orbit, 0.0) <= self._soon for c in self._fabric.sorts[sort].claims)

    def _match_quickly(self, ready: list[int]) -> None:
        for sort in sorted(ready, key=lambda s: (self._fabric.sorts[s].message_us, len(self._waiting[s]))):
            waiting = self._waiting[sort]
            while waiting and self._is_free(sort) and self._is_worth(sort):
                _, _, link, chunk = heapq.heappop(waiting)
                if not self._reached[self._place(link, chunk)]:
                    self._start(link, chunk)

    def _match_well(self, ready: list[int]) -> None:
        """Maximum matching of sorts and places, by augmenting ways."""
        for sort in ready:
            self._waiting[sort] = sorted(w for w in self._waiting[sort] if not self._reached[self._place(*w[2:])])
        taken: dict[int, tuple[int, int]] = {}

        def augment(sort: int, seen: set[int]) -> bool:
            for _, _, link, chunk in self._waiting[sort]:
                place = self._place(link, chunk)
                if place in seen:
                    continue
                seen.add(place)
                if place not in taken or augment(taken[place][0], seen):
                    taken[place] = (sort, link)
                    return True
            return False

        for sort in sorted(ready, key=lambda s: (self._fabric.sorts[s].message_us, len(self._waiting[s]))):
            if self._is_worth(sort):
                augment(sort, set())
        for place, (sort, link) in sorted(taken.items(), key=lambda item: self._fabric.sorts[item[1][0]].message_us):
            if self._is_free(sort):
                self._start(link, place // self._size)

    def _match_any(self, ready: list[int]) -> None:
        """Nothing is under way, as everyone waits for a quicker link that has nothing to send."""
        quickest = min(
            (w for sort in ready for w in self._waiting[sort] if not self._reached[self._place(*w[2:])]),
            key=lambda w: self._fabric.sorts[self._fabric.sort_of[w[2]]].message_us,
        )
        self._start(*quickest[2:])

    def _is_worth(self, sort: int) -> bool:
        """Whether the others would not be done with all that is left before this one had brought its chunk."""
        mine = self._fabric.sorts[sort]
        end = self._now + mine.message_us
        orbits = {claim.orbit for claim in mine.claims}
        could = 0
        counted: set[int] = set()
        for other in self._fabric.sorts:
            claimed = {claim.orbit for claim in other.claims}
            if other.message_us >= mine.message_us or claimed & (orbits | counted):
                continue
            counted |= claimed
            begin = max(self._now, *(self._free_us.get(orbit, 0.0) for orbit in claimed))
            could += max(0, math.floor((end - begin) / other.message_us * (1 + _RELATIVE_PRECISION)))
            if could >= self._left:
                return False
        return True

    def _start(self, link: int, chunk: int) -> None:
        sort = self._fabric.sorts[self._fabric.sort_of[link]]
        place = self._place(link, chunk)
        self._reached[place] = True
        self._left -= 1
        for claim in sort.claims:
            self._free_us[claim.orbit] = self._now + claim.time_us
            heapq.heappush(self._events, (self._now + claim.time_us, -1))
        end_us = self._now + sort.message_us
        self._hops.append(Hop(link, self._now, end_us, (chunk,)))
        heapq.heappush(self._events, (end_us, place))


def _hops_from(fabric: Fabric, root: int) -> list[int]:
    """Fewest links from the root to every rank."""
    far = [-1] * fabric.topology.num_ranks
    far[root] = 0
    queue = [root]
    for rank in queue:
        for link in fabric.links_from[rank]:
            if far[fabric.dst[link]] < 0:
                far[fabric.dst[link]] = far[rank] + 1
                queue.append(fabric.dst[link])
    return far
