"""Trees of the roots, one for each of their chunks, grown moment by moment so that their translations fit together.

In a schedule that all translations repeat, an orbit of links carries one message of the trees at a time, and so does an orbit of
ports. At every moment each free orbit is matched with a chunk and a rank that it has not reached yet (a *place*): the ranks
nearest to the root first, so that what is left at the end can be reached from all sides. When few places are left the matching is
a maximum one.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

from taccl_py.schedule.ir import Message
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.tolerances import RELATIVE
from taccl_py.work import count_work

# What may be done: distance of the rank, tie-breaker, link, chunk.
_Entry = tuple[int, float, int, int]


def grow_trees(
    fabric: Fabric, sources: Sequence[int], seed: int, *, thrifty: bool = False
) -> tuple[Message, ...] | None:
    """Messages that take chunks, numbered in the order given, to all other ranks; None if thrift leaves one without.

    Parameters
    ----------
    fabric
        The machine with the orbits of a free group.
    sources
        Root at which each chunk is.
    seed
        Which of equally near ranks come first.
    thrifty
        Whether a chunk goes into a node once, and the ranks there give it to each other.
    """
    return _ChunkGrowth(fabric, sources, seed, thrifty=thrifty).run()


class _ChunkGrowth:
    def __init__(self, fabric: Fabric, sources: Sequence[int], seed: int, *, thrifty: bool) -> None:
        self._fabric, self._size = fabric, fabric.topology.num_ranks
        self._random = random.Random(seed)
        count_work("routed", len(sources) * len(fabric.src))
        far = {source: _links_to(fabric, source) for source in dict.fromkeys(sources)}
        self._far = [far[source] for source in sources]
        self._waiting: list[list[_Entry]] = [[] for _ in fabric.sorts]
        self._node_of = fabric.topology.node_of
        self._crosses = [
            self._node_of[src] != self._node_of[dst] for src, dst in zip(fabric.src, fabric.dst, strict=True)
        ]
        starts = [chunk * self._size + source for chunk, source in enumerate(sources)]
        self._reached = [False] * (len(sources) * self._size)
        for place in starts:
            self._reached[place] = True
        self._left = len(sources) * (self._size - 1)
        # Nodes into which a chunk goes no more, where it goes into each but once.
        self._inside: set[tuple[int, int]] | None = None
        if thrifty:
            self._inside = {(chunk, self._node_of[source]) for chunk, source in enumerate(sources)}
        self._free_us: dict[int, float] = {}
        self._others: dict[int, int] = {}
        self._claimed = [frozenset(claim.orbit for claim in sort.claims) for sort in fabric.sorts]
        self._beside: dict[int, list[tuple[float, frozenset[int]]]] = {}
        self._grown: list[Message] = []
        # (time, place that is reached or -1 where only an orbit becomes free)
        self._events: list[tuple[float, int]] = [(0.0, place) for place in starts]
        self._now = self._soon = 0.0

    def run(self) -> tuple[Message, ...] | None:
        while self._left:
            self._now = self._events[0][0]
            self._soon = self._now * (1 + RELATIVE)
            while self._events and self._events[0][0] <= self._soon:
                _, place = heapq.heappop(self._events)
                if place >= 0:
                    self._offer(*divmod(place, self._size))
            ready = [sort for sort, links in enumerate(self._waiting) if links and self._is_free(sort)]
            if self._left <= PARAMS.matching_factor * len(ready):
                self._match_well(ready)
            else:
                self._match_quickly(ready)
            if not self._events and not self._match_any(ready):
                return None
        return tuple(self._grown)

    def _place(self, link: int, chunk: int) -> int:
        return chunk * self._size + self._fabric.dst[link]

    def _is_open(self, link: int, chunk: int) -> bool:
        """True if a chunk may still cross a link."""
        if self._reached[self._place(link, chunk)]:
            return False
        dst = self._fabric.dst[link]
        return self._inside is None or not self._crosses[link] or (chunk, self._node_of[dst]) not in self._inside

    def _open(self, waiting: Sequence[_Entry]) -> list[_Entry]:
        """Entries of chunks that may still cross their links; the same as `_is_open` for each, as there are very many."""
        reached, dst, size = self._reached, self._fabric.dst, self._size
        new = [entry for entry in waiting if not reached[entry[3] * size + dst[entry[2]]]]
        if self._inside is None:
            return new
        inside, crosses, node_of = self._inside, self._crosses, self._node_of
        return [entry for entry in new if not crosses[entry[2]] or (entry[3], node_of[dst[entry[2]]]) not in inside]

    def _offer(self, chunk: int, rank: int) -> None:
        """Links from a rank that has got the chunk may be used."""
        fabric = self._fabric
        for link in fabric.links_from[rank]:
            if self._is_open(link, chunk):
                entry = (self._far[chunk][fabric.dst[link]], self._random.random(), link, chunk)
                heapq.heappush(self._waiting[fabric.sort_of[link]], entry)

    def _is_free(self, sort: int) -> bool:
        return all(self._free_us.get(c.orbit, 0.0) <= self._soon for c in self._fabric.sorts[sort].claims)

    def _match_quickly(self, ready: list[int]) -> None:
        for sort in sorted(ready, key=lambda s: (self._fabric.sorts[s].message_us, len(self._waiting[s]))):
            waiting = self._waiting[sort]
            while waiting and self._is_free(sort) and self._is_worth(sort):
                _, _, link, chunk = heapq.heappop(waiting)
                if self._is_open(link, chunk):
                    self._start(link, chunk)

    def _match_well(self, ready: list[int]) -> None:
        """Maximum matching of sorts and places, by augmenting paths."""
        for sort in ready:
            self._waiting[sort] = sorted(self._open(self._waiting[sort]))
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
            if self._is_free(sort) and self._is_open(link, place // self._size):
                self._start(link, place // self._size)

    def _match_any(self, ready: list[int]) -> bool:
        """Nothing is under way, as everyone waits for a quicker link that has nothing to send; False if nobody can go."""
        for sort in sorted(ready, key=lambda s: self._fabric.sorts[s].message_us):
            for _, _, link, chunk in self._waiting[sort]:
                if self._is_open(link, chunk):
                    self._start(link, chunk)
                    return True
        return False

    def _is_worth(self, sort: int) -> bool:
        """True if the others would not be done with all that is left before this one had brought its chunk."""
        if self._most_others(sort) < self._left:
            return True
        end = self._now + self._fabric.sorts[sort].message_us
        could = 0
        counted: set[int] = set()
        looked = 0
        for looked, (message_us, claimed) in enumerate(self._faster(sort), start=1):  # noqa: B007
            if not counted.isdisjoint(claimed):
                continue
            counted |= claimed
            begin = max(self._now, *(self._free_us.get(orbit, 0.0) for orbit in claimed))
            could += max(0, math.floor((end - begin) / message_us * (1 + RELATIVE)))
            if could >= self._left:
                break
        count_work("compared", looked)
        return could < self._left

    def _faster(self, sort: int) -> list[tuple[float, frozenset[int]]]:
        """Times of a message of faster sorts that have no orbit in common with this one, and the orbits of each."""
        if sort not in self._beside:
            mine_us, orbits = self._fabric.sorts[sort].message_us, self._claimed[sort]
            self._beside[sort] = [
                (other.message_us, claimed)
                for other, claimed in zip(self._fabric.sorts, self._claimed, strict=True)
                if other.message_us < mine_us and claimed.isdisjoint(orbits)
            ]
        return self._beside[sort]

    def _most_others(self, sort: int) -> int:
        """Chunks that faster sorts can bring at most while one of this sort is under way."""
        if sort not in self._others:
            mine_us = self._fabric.sorts[sort].message_us
            faster = (other.message_us for other in self._fabric.sorts if other.message_us < mine_us)
            self._others[sort] = sum(math.floor(mine_us / other_us * (1 + 2 * RELATIVE)) for other_us in faster)
        return self._others[sort]

    def _start(self, link: int, chunk: int) -> None:
        sort = self._fabric.sorts[self._fabric.sort_of[link]]
        place = self._place(link, chunk)
        self._reached[place] = True
        self._left -= 1
        if self._inside is not None:
            self._inside.add((chunk, self._node_of[self._fabric.dst[link]]))
        for claim in sort.claims:
            self._free_us[claim.orbit] = self._now + claim.time_us
            heapq.heappush(self._events, (self._now + claim.time_us, -1))
        end_us = self._now + sort.message_us
        self._grown.append(Message(link, (chunk,), self._now, end_us))
        heapq.heappush(self._events, (end_us, place))


def _links_to(fabric: Fabric, root: int) -> list[int]:
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
