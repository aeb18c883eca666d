"""Least cost of messages after which everyone knows something of everyone (gossip), for given costs of links.

One byte of an AllReduce is a gossip: what a rank contributes has to get to all others. For any costs of links the cheapest messages that do
it bound what every byte costs, so any costs that prices of links and ports give make a bound on time (weak duality).

What is cheapest is not known in general. Proved for every sequence of messages:

* *no cost*: ranks that reach each other at no cost know the same, and are one.
* *first*: let r be the first rank that knows something of everyone. Until then what each rank has has got to r: the messages so far hold a
  tree of links into r, in which none leaves r. Each other rank learns the last thing later, by a message to it. If later messages enter every set of
  ranks without r, they hold a tree out of r. If there is a set that they do not enter, what r has got there before, and a message has left
  r before. So the cost is at least that of the cheapest tree into r, and of the cheapest tree out of r or, if that is less, of the
  cheapest link into every other rank and the cheapest link out of r. *Last* is the same with time turned around.
* *search*: of few ranks all sequences are looked at, by what everyone knows after them, those of least cost first (A*; what is still to come
  is at least the cheapest link into everyone who does not know everything).

Where such a bound is that of a tree into r and one out of it, these are optimal, and it nearly always is
(`taccl_py.synthesis.bounds.roots`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import count as counting

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.synthesis.arborescence import cheapest_arborescence

# Costs below this part of the largest count as none.
_FREE = 1e-9
# Sets of what everyone knows that a search looks at, and ranks among whom it looks at all.
_MOST_STATES, _MOST_SEARCHED = 4_000, 16


def least_gossip_cost(count: int, tail: IntArray, head: IntArray, cost: FloatArray, *, enough: float) -> float:
    """A cost that no messages after which everyone knows something of everyone are below.

    Parameters
    ----------
    count
        Number of ranks, which reach each other.
    tail, head, cost
        Ends and cost of every link, [link].
    enough
        A cost that messages are known to have: beyond it no bound is looked for.
    """
    groups, arcs = _joined(count, tail, head, cost)
    if groups == 1:
        return 0.0
    found = max(_first_and_rest(groups, arcs), _first_and_rest(groups, {(v, u): each for (u, v), each in arcs.items()}))
    if found >= enough * (1 - _FREE) or groups > _MOST_SEARCHED:
        return found
    return max(found, _GossipSearch(groups, arcs).least(enough))


def _joined(count: int, tail: IntArray, head: IntArray, cost: FloatArray) -> tuple[int, dict[tuple[int, int], float]]:
    """Groups of ranks that reach each other at no cost, and the cheapest link from group to group."""
    free = cost <= _FREE * float(cost.max(initial=0.0))
    reaches = np.eye(count, dtype=bool)
    reaches[tail[free], head[free]] = True
    for _ in range(count.bit_length()):
        reaches = reaches @ reaches  # twice as many links in a row
    first, numbers = np.unique((reaches & reaches.T).argmax(axis=1), return_inverse=True)
    group_of: list[int] = numbers.tolist()
    arcs: dict[tuple[int, int], float] = {}
    for one, other, each in zip(tail.tolist(), head.tolist(), np.where(free, 0.0, cost).tolist(), strict=True):
        pair = group_of[one], group_of[other]
        if pair[0] != pair[1]:
            arcs[pair] = min(arcs.get(pair, each), each)
    return len(first), arcs


def _first_and_rest(groups: int, arcs: dict[tuple[int, int], float]) -> float:
    """Bound by what happens before and after some group is the first to know everything."""
    tail, head = (np.array(ends, dtype=np.int64) for ends in zip(*arcs, strict=True))
    cost = np.array(list(arcs.values()))
    entering, leaving = np.full(groups, np.inf), np.full(groups, np.inf)
    np.minimum.at(entering, head, cost)
    np.minimum.at(leaving, tail, cost)
    best = np.inf
    for first in range(groups):
        told = _cheapest_tree(groups, head, tail, cost, first)
        others = float(np.delete(entering, first).sum())
        if told + others < best:
            tells = _cheapest_tree(groups, tail, head, cost, first)
            best = min(best, told + min(tells, others + float(leaving[first])))
    return best


def _cheapest_tree(groups: int, tail: IntArray, head: IntArray, cost: FloatArray, root: int) -> float:
    """Cost of the cheapest tree out of a root; infinite if there is none."""
    tree = cheapest_arborescence(groups, tail, head, cost, root)
    return np.inf if tree is None else float(cost[tree[tree >= 0]].sum())


class _GossipSearch:
    """Search among all sequences of messages. What everyone knows is a mask of groups for every group."""

    def __init__(self, groups: int, arcs: dict[tuple[int, int], float]) -> None:
        self._everything = (1 << groups) - 1
        self._entering = [min(cost for (_, v), cost in arcs.items() if v == group) for group in range(groups)]
        self._free = [pair for pair, cost in arcs.items() if cost == 0]
        self._paid = [(*pair, cost) for pair, cost in arcs.items() if cost > 0]
        self._start = self._told([1 << group for group in range(groups)])

    def least(self, enough: float) -> float:
        """Least cost of a sequence, or what none is below when the search ends; no more than is enough."""
        costs, number = {self._start: 0.0}, counting()
        waiting = [(self._left(self._start), next(number), self._start)]
        for _ in range(_MOST_STATES):
            least, _, known = heapq.heappop(waiting)
            if least >= enough or all(each == self._everything for each in known):
                return min(enough, least)
            for cost, later in self._after(known):
                reached = costs[known] + cost
                if reached < costs.get(later, math.inf):
                    costs[later] = reached
                    heapq.heappush(waiting, (reached + self._left(later), next(number), later))
        return min(enough, waiting[0][0])

    def _after(self, known: tuple[int, ...]) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Cost of every message that tells something new, and what is known after it."""
        for teller, hearer, cost in self._paid:
            if known[teller] & ~known[hearer]:
                after = list(known)
                after[hearer] |= known[teller]
                yield cost, self._told(after)

    def _told(self, known: list[int]) -> tuple[int, ...]:
        """Everyone's knowledge when what costs nothing has been said."""
        is_new = True
        while is_new:
            news = [(teller, hearer) for teller, hearer in self._free if known[teller] & ~known[hearer]]
            for teller, hearer in news:
                known[hearer] |= known[teller]
            is_new = bool(news)
        return tuple(known)

    def _left(self, known: tuple[int, ...]) -> float:
        """Least cost of what is still to come: someone has to tell everyone who does not know everything."""
        pairs = zip(known, self._entering, strict=True)
        return sum(cost for each, cost in pairs if each != self._everything)
