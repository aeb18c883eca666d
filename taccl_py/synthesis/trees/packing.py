"""Fractional packing of spanning trees by column generation.

Every root's data is split over trees; the fullest link or port decides. In the master program columns are trees; a tree that
would help is a cheapest arborescence for the dual prices of links and ports, and the prices give a lower bound::

    T >= sum over root orbits of the cheapest arborescence,   prices >= 0 that add up to 1

By averaging over the symmetry the bound holds for all schedules, symmetric or not, however finely they cut the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.solvers.columns import ColumnProgram
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.synthesis.symmetry import IntArray
from taccl_py.synthesis.trees.arborescence import cheapest_arborescence
from taccl_py.synthesis.trees.network import Network

FloatArray = NDArray[np.float64]

_GAP = 1e-7
# Share of the average link price that every hop from the root adds, so that trees of equal price come out shallow.
_HOP_SHARE = 1e-5
_LEAST_AMOUNT = 1e-9


@dataclass(frozen=True)
class Tree:
    """A spanning tree.

    Attributes
    ----------
    root
        Index of its root in ``network.roots``.
    links
        Link into every rank, -1 into the root, [rank].
    """

    root: int
    links: IntArray

    def used(self) -> IntArray:
        """Its links."""
        return self.links[self.links >= 0]


@dataclass(frozen=True)
class Packing:
    """Fractional packing.

    Attributes
    ----------
    trees, amounts
        Trees in use, and the part of their root's data that each of them carries.
    load_us
        Time of the fullest resource if every root has one megabyte.
    bound_us
        No packing, and no schedule, has less.
    prices
        What a microsecond of every resource is worth; trees of a good packing are cheap, [resource].
    """

    trees: tuple[Tree, ...]
    amounts: FloatArray
    load_us: float
    bound_us: float
    prices: FloatArray


def pack_trees(network: Network, limits: Limits, deadline: Deadline) -> Packing:
    """Optimal packing, or the best one when the time runs out."""
    master = ColumnProgram(len(network.roots), network.num_resources)
    finder = _Finder(network)
    trees: list[Tree] = []
    known: set[tuple[int, bytes]] = set()
    prices = np.full(network.num_resources, 1.0 / network.num_resources)
    worth = np.full(len(network.roots), np.inf)
    bound = 0.0
    while True:
        found = finder.cheapest(prices, _HOP_SHARE)
        bound = max(bound, sum(offer.least for offer in found))
        new = [offer.tree for offer in found if offer.price < worth[offer.tree.root] * (1 - _GAP)]
        new = [tree for tree in new if (tree.root, tree.links.tobytes()) not in known]
        known.update((tree.root, tree.links.tobytes()) for tree in new)
        trees += new
        for tree in new:
            master.add(tree.root, network.load(tree.used()))
        solution = master.solve()
        prices, worth = solution.prices, solution.worth
        done = not new or bound >= solution.objective * (1 - _GAP)
        if done or limits.stop.is_set() or not deadline.left:
            break
    bound = max(bound, sum(offer.least for offer in finder.cheapest(prices, 0.0)))
    used = np.flatnonzero(solution.amounts > _LEAST_AMOUNT)
    return Packing(tuple(trees[i] for i in used), solution.amounts[used], solution.objective, bound, prices)


@dataclass(frozen=True)
class _Offer:
    """A tree, its price, and a lower bound on the price of every tree of its root."""

    tree: Tree
    price: float
    least: float


class _Finder:
    """Cheapest trees for given prices."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._hops = [_hops(network, index) for index in range(len(network.roots))]

    def cheapest(self, prices: FloatArray, hop_share: float) -> list[_Offer]:
        """One for every root orbit."""
        lengths = self._network.lengths(prices)
        return [self._cheapest(root, lengths, hop_share) for root in range(len(self._network.roots))]

    def _cheapest(self, root: int, lengths: FloatArray, hop_share: float) -> _Offer:
        network, hops = self._network, self._hops[root]
        hop_price = hop_share * float(lengths.mean()) / max(1.0, float(hops.max()))
        allowed = np.flatnonzero(network.permitted[root])
        priced = lengths[allowed] + hop_price * hops[network.src[allowed]]
        # Of parallel links the cheapest one stays.
        order = np.lexsort((allowed, priced))[::-1]
        cost = np.full((network.num_ranks, network.num_ranks), np.inf)
        link = np.full(cost.shape, -1, dtype=np.int64)
        ends = (network.src[allowed[order]], network.dst[allowed[order]])
        cost[ends], link[ends] = priced[order], allowed[order]
        parent = cheapest_arborescence(cost, network.roots[root])
        if parent is None:
            raise ValueError(
                f"rank {network.roots[root]} does not reach every rank of a problem that was found feasible"
            )
        links = link[parent, np.arange(network.num_ranks)]
        links[network.roots[root]] = -1
        tree = Tree(root, links)
        price = float(lengths[tree.used()].sum())
        return _Offer(tree, price, price - hop_price * float(hops[parent].sum()))


def _hops(network: Network, root: int) -> FloatArray:
    """Fewest links from a root to every rank; ranks out of reach count as far."""
    far = float(network.num_ranks)
    hops = np.full(network.num_ranks, far)
    hops[network.roots[root]] = 0.0
    allowed = np.flatnonzero(network.permitted[root])
    src, dst = network.src[allowed], network.dst[allowed]
    for _ in range(network.num_ranks):
        before = hops.copy()
        np.minimum.at(hops, dst, before[src] + 1)
        if np.array_equal(before, hops):
            break
    return hops
