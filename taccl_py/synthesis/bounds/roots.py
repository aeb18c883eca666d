"""AllReduce as one packing: every byte is summed up along a tree into some rank and handed out along a tree from it.

Which ranks are roots, how much of the data each has, and which trees they use is one linear program by column generation: a column is a root
with its two trees, and the cheapest one for prices of links and ports is found by two searches for a cheapest arborescence. Its
optimum is what algorithms with trees can reach. It is a bound for all algorithms only if the prices are certified: by a bound on all gossips
whose links cost so much (`taccl_py.synthesis.bounds.gossip`). What is certified is the bound, be it the optimum or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.columns import ColumnProgram
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.arborescence import ShortArborescences, cheapest_arborescence
from taccl_py.synthesis.bounds.gossip import least_gossip_cost
from taccl_py.synthesis.bounds.loads import LoadBound
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.work import count_work

# Links times roots up to which the program is solved, columns of one round, rounds, and links of all trees that are looked for, about
# ten microseconds each.
_MOST_PLACES, _MOST_COLUMNS, _MOST_ROUNDS, _MOST_PRICED = 20_000, 4, 400, 100_000
# Numbers of hops for which packings with shorter paths are looked for, and times the least load that one of them may have to be the last. Guess.
_MOST_DEPTHS, _SHORT_LOAD = 6, 1.001
_GAP = 1e-7
# Part of a certified bound that rounding may have added.
_ROUNDING = 1e-9
_LEAST_AMOUNT = 1e-9


@dataclass(frozen=True, eq=False)
class RootTrees:
    """Trees through a rank.

    Attributes
    ----------
    root
        The rank where a sum is complete first.
    into, out
        Links of the tree that sums up, none where nothing is summed, and of the one that hands out, in no order.
    """

    root: int
    into: IntArray
    out: IntArray

    def links(self) -> IntArray:
        """Links of both trees; one may be there twice."""
        return np.concatenate([self.into, self.out])


@dataclass(frozen=True, eq=False)
class RootParts:
    """Parts of the data.

    Attributes
    ----------
    trees, amounts
        Pairs of trees, and the part of the data that each carries (and so do its images).
    """

    trees: tuple[RootTrees, ...]
    amounts: FloatArray


@dataclass(frozen=True, eq=False)
class RootPacking(RootParts):
    """A packing of pairs of trees.

    Attributes
    ----------
    load_us
        Time of the fullest link or port for each megabyte of size.
    certified
        The bound that its prices are certified to give.
    """

    load_us: float
    certified: LoadBound


def pack_roots(net: Net, orbits: OrbitMembers, known_us: float = 0.0) -> RootPacking | None:
    """Best packing of trees into roots and out of them, and the bound that is certified.

    None on a machine that is too large, and where a packing is as good as a known bound allows.

    Parameters
    ----------
    net, orbits
        The machine and its symmetry.
    known_us
        A bound for each megabyte of size.
    """
    if net.num_links * len(orbits.ranks()) > _MOST_PLACES:
        return None
    pricing = _RootPricing(net, orbits)
    found = _packed(pricing, known_us)
    if found is None:
        return None
    parts, load_us, prices = found
    return RootPacking(parts.trees, parts.amounts, load_us, pricing.certified(prices, load_us))


def short_root_packings(net: Net, load_us: float, over: Over) -> Iterator[RootParts]:
    """Packings of trees of ever more hops, up to one whose load is hardly above the least one, or until time is up.

    A linear program finds trees with long paths, which keep links waiting at the beginning and at the end; where many links join the same ranks
    short ones load them as evenly.

    Parameters
    ----------
    net, load_us
        The machine, and the load of its best packing in microseconds for each megabyte.
    over
        Whether time is up.
    """
    if net.num_links * net.num_ranks > _MOST_PLACES:
        return
    orbits = OrbitMembers.of_images(net.topology, [])
    trees = tuple(ShortArborescences(net.num_ranks, *ends) for ends in ((net.dst, net.src), (net.src, net.dst)))
    least = min(max(each.hops(root) for each in trees) for root in orbits.ranks())
    for hops in range(least, least + _MOST_DEPTHS):
        short = None if over() else _packed(_ShortRootPricing(net, orbits, trees, hops))
        if short is None:
            return
        yield short[0]
        if short[1] <= load_us * _SHORT_LOAD:
            return


def _packed(pricing: _RootPricing, known_us: float = 0.0) -> tuple[RootParts, float, FloatArray] | None:
    """The best parts of all data, their load in microseconds for each megabyte, and prices; None where that is as good as a known bound."""
    program = ColumnProgram([1.0], pricing.num_orbits)
    prices = pricing.even
    worth = np.inf
    solution = None
    known: list[RootTrees] = []
    for _ in range(_MOST_ROUNDS):
        found = pricing.cheaper(prices, worth * (1 - _GAP))
        if not found or pricing.priced > _MOST_PRICED:
            break
        for trees in found:
            program.add(0, pricing.load(trees))
        known += found
        solution = program.solve()
        if solution.objective <= known_us * (1 + _GAP):
            return None
        prices, worth = solution.prices, float(solution.worth[0])
    if solution is None:
        return None
    used = np.flatnonzero(solution.amounts > _LEAST_AMOUNT)
    parts = RootParts(tuple(known[i] for i in used), solution.amounts[used])
    return parts, solution.objective, prices


class _RootPricing:
    """Cheapest pairs of trees; links and ports of one orbit have one price, which they share."""

    def __init__(self, net: Net, orbits: OrbitMembers) -> None:
        self._net, self._orbits = net, orbits
        self.num_orbits = len(orbits.size)
        self.even = np.full(self.num_orbits, 1.0 / self.num_orbits)
        # The roots, the cheapest one of the last prices first.
        self._roots = {root: 0.0 for root in orbits.ranks()}
        # Links of all trees that were looked for.
        self.priced = 0

    def _costs(self, weights: FloatArray) -> FloatArray:
        return self._net.sum_over_links(weights * self._net.beta_us_per_mb)

    def cheaper(self, prices: FloatArray, below: float) -> list[RootTrees]:
        """Some pairs of trees that cost less than so much, one each of different roots; none if there are none."""
        costs = self._costs(self._orbits.shared(prices))
        found: list[RootTrees] = []
        for root in sorted(self._roots, key=lambda each: (self._roots[each], each)):
            trees = self._trees(costs, root)
            self._roots[root] = float(costs[trees.links()].sum())
            if self._roots[root] < below:
                found.append(trees)
            if len(found) == _MOST_COLUMNS:
                break
        return found

    def _trees(self, costs: FloatArray, root: int) -> RootTrees:
        """Cheapest trees into a root and out of it."""
        net = self._net
        self.priced += 2 * net.num_links
        found = []
        for tail, head in ((net.dst, net.src), (net.src, net.dst)):
            tree = cheapest_arborescence(net.num_ranks, tail, head, costs, root)
            if tree is None:
                raise ValueError(f"rank {root} does not reach every rank of a machine that is known to be connected")
            found.append(tree[tree >= 0])
        return RootTrees(root, *found)

    def load(self, trees: RootTrees) -> FloatArray:
        """Time of a member of every orbit of links and ports for a megabyte through trees and their images, [orbit]."""
        carried = np.bincount(trees.links(), minlength=self._net.num_links).astype(np.float64)
        each = self._net.sum_over_resources(carried)
        return self._orbits.load(each * self._net.beta_us_per_mb)

    def certified(self, prices: FloatArray, load_us: float) -> LoadBound:
        """The bound that prices give by what every gossip costs."""
        net = self._net
        weights = self._orbits.shared(prices)
        amount_us = least_gossip_cost(net.num_ranks, net.src, net.dst, self._costs(weights), enough=load_us)
        return LoadBound(weights, amount_us * (1 - _ROUNDING), ())


class _ShortRootPricing(_RootPricing):
    """Cheap pairs of trees of so many hops, or of as few as their roots allow."""

    def __init__(self, net: Net, orbits: OrbitMembers, trees: Sequence[ShortArborescences], most_hops: int) -> None:
        super().__init__(net, orbits)
        self._short, self._most_hops = trees, most_hops

    def _trees(self, costs: FloatArray, root: int) -> RootTrees:
        self.priced += 2 * self._net.num_links
        count_work("priced", 2 * self._net.num_links)
        into, out = (trees.cheap(costs, root, self._most_hops) for trees in self._short)
        return RootTrees(root, into[into >= 0], out[out >= 0])
