"""Divisions of the ranks into groups between which sums need many transfers for what lies between them.

Sums of parts of k groups that all k groups need go from group to group at least 2(k - 1) times. Which groups say most is the dual of
packing spanning trees (Nash-Williams, Tutte): if every link and port has a price and all prices together are 1, then whatever moves
costs at least twice the cheapest spanning tree, for the ranks fall into groups at every price at which dearer links are cut. The
prices for which that is most are found by column generation: trees are columns, as for ``taccl_py.synthesis.trees.packing``, but have
no root and no direction, and links and ports that the machine's symmetry exchanges have one price. The first prices follow the loads
of the trees before, multiplicatively, from which the program needs few more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.columns import ColumnProgram
from taccl_py.synthesis.bounds.net import Net, OrbitMembers

# Trees for prices that follow the loads of those before, and how steeply they follow them.
_FIRST_TREES, _STEEPNESS = 50, 20.0
# Trees for prices of the program, and those of them in a row that make the bound no better.
_MOST_TREES, _MOST_FAILURES = 300, 30
# Trees times pairs of neighbours, and times prices, of either sort of trees; where that allows but a few trees, none is looked for.
_MOST_PAIRS, _MOST_PRICES, _FEWEST_TREES = 500_000, 50_000, 10
# Part of the best prices in those that are tried next: alone, the program's own leap about.
_STAY = 0.3
_GAP = 1e-6
# Prices that differ by less than this share of the highest one are the same.
_SAME_PRICE = 1e-6
# Divisions that are kept, those that count most.
_MOST_DIVISIONS = 4


def worst_divisions(net: Net, orbits: OrbitMembers) -> list[IntArray]:
    """Divisions that say most together, the one that counts most first: the group of every rank, by its smallest member, [rank].

    None is found on a machine that is too large.

    Parameters
    ----------
    net
        The machine; there is a way between any two ranks.
    orbits
        Its symmetry.
    """
    trees = _Trees(net)
    prices = _best_prices(trees, orbits)
    lengths = trees.lengths(prices)
    tree = trees.cheapest(lengths)
    levels = np.unique(np.round(lengths[tree] / max(float(lengths[tree].max(initial=0.0)), 1e-30), 6))
    steps = [(low, high) for low, high in pairwise([0.0, *levels.tolist()]) if high - low > _SAME_PRICE]
    found = []
    for low, high in steps:
        joined = tree[lengths[tree] < (high - _SAME_PRICE) * lengths[tree].max()]
        groups = trees.groups(joined)
        found.append(((high - low) * (len(np.unique(groups)) - 1), groups))
    return [groups for _, groups in sorted(found, key=lambda pair: -pair[0])[:_MOST_DIVISIONS]]


def _best_prices(trees: _Trees, orbits: OrbitMembers) -> FloatArray:
    """Prices of links and ports, which add up to 1, for which the cheapest spanning tree is dearest as far as is found, [resource].

    All are 0 where the machine is too large.
    """
    search = _DivisionSearch(trees, orbits)
    affordable = min(_MOST_PAIRS // max(1, len(trees.first)), _MOST_PRICES // len(orbits.size))
    if affordable < _FEWEST_TREES:
        return np.zeros(len(orbits.resource))
    prices = search.even
    for _ in range(min(_FIRST_TREES, affordable)):
        search.add(prices)
        steep = orbits.size * np.exp(_STEEPNESS * (search.loads / max(float(search.loads.max()), 1e-30) - 1))
        prices = np.asarray(steep / steep.sum(), dtype=np.float64)
    search.failures = 0
    for _ in range(min(_MOST_TREES, affordable)):
        solution = search.program.solve()
        if search.failures >= _MOST_FAILURES or search.best_cost >= solution.objective * (1 - _GAP):
            break
        search.add(_STAY * search.best + (1 - _STAY) * solution.prices)
    return orbits.shared(search.best)


class _DivisionSearch:
    """Trees found so far, and the best prices; links and ports of one orbit share a price, and the load is that of one of them."""

    def __init__(self, trees: _Trees, orbits: OrbitMembers) -> None:
        self._trees, self._orbits, number = trees, orbits, len(orbits.size)
        self.program = ColumnProgram([1.0], number)
        self.even = np.full(number, 1.0 / number)
        self.loads = np.zeros(number)
        self.best, self.best_cost, self.failures = self.even, 0.0, 0

    def add(self, prices: FloatArray) -> None:
        """Add the cheapest tree for some prices."""
        each = self._orbits.shared(prices)
        lengths = self._trees.lengths(each)
        tree = self._trees.cheapest(lengths)
        cost = float(lengths[tree].sum())
        self.failures = 0 if cost > self.best_cost * (1 + _GAP) else self.failures + 1
        if cost > self.best_cost:
            self.best, self.best_cost = prices, cost
        load = self._orbits.load(self._trees.load(tree, each))
        self.loads += load
        self.program.add(0, load)


@dataclass(frozen=True, eq=False)
class _Trees:
    """Spanning trees of pairs of neighbours, whatever the direction of the links between them."""

    net: Net

    @cached_property
    def _pair(self) -> tuple[IntArray, IntArray]:
        """Every pair of neighbours once, smaller rank first, as one number; and the pair of every link."""
        net = self.net
        ends = np.minimum(net.src, net.dst) * net.num_ranks + np.maximum(net.src, net.dst)
        pairs, of_link = np.unique(ends, return_inverse=True)
        return pairs, of_link

    @property
    def first(self) -> IntArray:
        """One rank of every pair, [pair]."""
        return np.asarray(self._pair[0] // self.net.num_ranks, dtype=np.int64)

    @property
    def second(self) -> IntArray:
        """The other one, [pair]."""
        return np.asarray(self._pair[0] % self.net.num_ranks, dtype=np.int64)

    def _costs(self, prices: FloatArray) -> FloatArray:
        """Cost of a megabyte on every link, [link]."""
        return self.net.sum_over_links(prices * self.net.beta_us_per_mb)

    def lengths(self, prices: FloatArray) -> FloatArray:
        """Cost of a megabyte between the ranks of every pair, on the cheapest link of either direction, [pair]."""
        lengths = np.full(len(self.first), np.inf)
        np.minimum.at(lengths, self._pair[1], self._costs(prices))
        return lengths

    def cheapest(self, lengths: FloatArray) -> IntArray:
        """Pairs of a spanning tree of least total length (Kruskal)."""
        above = list(range(self.net.num_ranks))
        ends = list(zip(self.first.tolist(), self.second.tolist(), strict=True))
        chosen = []
        for pair in np.argsort(lengths, kind="stable").tolist():
            one, other = (_top(above, rank) for rank in ends[pair])
            if one != other:
                above[max(one, other)] = min(one, other)
                chosen.append(pair)
                if len(chosen) == self.net.num_ranks - 1:
                    break
        return np.array(chosen, dtype=np.int64)

    def groups(self, pairs: IntArray) -> IntArray:
        """Smallest of the ranks that some pairs of neighbours join to every rank, [rank]."""
        above = list(range(self.net.num_ranks))
        for one, other in zip(self.first[pairs].tolist(), self.second[pairs].tolist(), strict=True):
            one, other = _top(above, one), _top(above, other)
            above[max(one, other)] = min(one, other)
        return np.array([_top(above, rank) for rank in range(len(above))], dtype=np.int64)

    def load(self, pairs: IntArray, prices: FloatArray) -> FloatArray:
        """Time of every link and port for a megabyte between the ranks of some pairs, on all of their cheapest links alike, [resource]."""
        of_link, costs = self._pair[1], self._costs(prices)
        used = np.zeros(len(self.first), dtype=bool)
        used[pairs] = True
        cheap = (used[of_link] & (costs <= self.lengths(prices)[of_link] * (1 + _SAME_PRICE))).astype(np.float64)
        share = cheap / np.maximum(1.0, np.bincount(of_link, weights=cheap))[of_link]
        return np.asarray(self.net.sum_over_resources(share) * self.net.beta_us_per_mb, dtype=np.float64)


def _top(above: list[int], rank: int) -> int:
    """Smallest rank that is joined to a rank."""
    while above[rank] != rank:
        above[rank] = above[above[rank]]
        rank = above[rank]
    return rank
