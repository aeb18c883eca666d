"""Fractional packing of spanning trees by column generation.

Every root's data is split over trees; the fullest link or port decides. In the master program columns are trees; a tree that
would help is a cheapest arborescence for the dual prices of links and ports, and the prices give a lower bound::

    T >= sum over root orbits of the cheapest arborescence,   prices >= 0 that add up to 1

By averaging over the symmetry the bound holds for all schedules, symmetric or not, however finely they cut the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.columns import ColumnProgram, MasterSolution
from taccl_py.solvers.limits import Over, never
from taccl_py.synthesis.arborescence import cheapest_arborescence
from taccl_py.synthesis.distances import distances
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.tolerances import LEAST_AMOUNT, LP_GAP
from taccl_py.work import count_work


@dataclass(frozen=True)
class SpanningTree:
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
    known
        All trees that were found while it was computed.
    """

    trees: tuple[SpanningTree, ...]
    amounts: FloatArray
    load_us: float
    bound_us: float
    known: tuple[SpanningTree, ...] = ()


def pack_trees(network: CapacityNetwork, over: Over) -> Packing:
    """Optimal packing, or the best one when time is up."""
    program = _TreeProgram(network, [1.0] * len(network.roots))
    solution = program.improve(LP_GAP, over)
    bound = program.bound if over() else max(program.bound, program.exact_bound(solution.prices))
    used = np.flatnonzero(solution.amounts > LEAST_AMOUNT)
    trees = tuple(program.trees)
    return Packing(tuple(trees[i] for i in used), solution.amounts[used], solution.objective, bound, trees)


def dive(
    network: CapacityNetwork, packing: Packing, parts: int, goal: float, over: Over, *, at_once: int
) -> list[SpanningTree]:
    """Whole trees from a packing: settle those that the program uses most, and let it pack the rest again.

    Trees that load little are preferred as long as the goal can be met: those to come need room, too.

    Parameters
    ----------
    network, packing
        The machine and its fractional packing.
    parts
        Trees for each root.
    goal
        Load of the fullest resource that is good enough, if every tree carries one megabyte.
    over
        Whether time is up; the rest is then settled with the trees that are known.
    at_once
        How many fractional trees, of different roots, are settled before the program is asked again.

    Returns
    -------
    list
        Trees, in order of their roots.
    """
    demands = [float(parts)] * len(network.roots)
    loads = sum(float(network.load(tree.used()).sum()) for tree in packing.trees) / len(packing.trees)
    program = _TreeProgram(
        network, demands, packing.trees, goal=goal, lean=PARAMS.load_price * goal / (loads * sum(demands))
    )
    settled: list[SpanningTree] = []
    left = [parts] * len(network.roots)
    while any(left):
        amounts = program.improve(PARAMS.settling_gap, over).amounts
        chosen = _most_used(program.trees, amounts, left, at_once)
        for tree in chosen:
            left[tree.root] -= 1
        settled += chosen
        program.settle(left, chosen)
    return sorted(settled, key=lambda tree: tree.root)


def _most_used(trees: list[SpanningTree], amounts: FloatArray, left: list[int], at_once: int) -> list[SpanningTree]:
    """Trees that are used whole, as often as they are, and the largest fractions of different roots."""
    chosen: list[SpanningTree] = []
    room = list(left)
    for tree, amount in zip(trees, amounts.tolist(), strict=True):
        times = min(room[tree.root], int(amount + LEAST_AMOUNT))
        room[tree.root] -= times
        chosen += [tree] * times
    fraction = amounts - np.floor(amounts + LEAST_AMOUNT)
    roots: set[int] = set()
    for i in np.argsort(-fraction, kind="stable").tolist():
        tree = trees[i]
        if len(roots) < at_once and room[tree.root] and tree.root not in roots and fraction[i] > LEAST_AMOUNT:
            roots.add(tree.root)
            chosen.append(tree)
    return chosen


class _TreeProgram:
    """Master program and its pricing."""

    def __init__(
        self,
        network: CapacityNetwork,
        demands: Sequence[float],
        trees: Sequence[SpanningTree] = (),
        *,
        goal: float = 0.0,
        lean: float = 0.0,
    ) -> None:
        self._network, self._goal, self._lean = network, goal, lean
        self._demands = list(demands)
        self._load = np.zeros(network.num_resources)
        self._master = ColumnProgram(demands, network.num_resources, goal=goal, lean=lean)
        self._finder = TreeFinder(network)
        self._known: set[tuple[int, bytes]] = set()
        self.trees: list[SpanningTree] = []
        self.bound = 0.0
        self._add(trees)

    def improve(self, gap: float, over: Over) -> MasterSolution:
        """Add trees until the optimum is reached within a relative gap.

        Prices are smoothed (Wentges, "Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming", 1997).
        """
        if not self.trees:
            uniform = np.full(self._network.num_resources, 1.0 / self._network.num_resources)
            self._add(offer.tree for offer in self._finder.cheapest(uniform, PARAMS.hop_price))
        steady: FloatArray | None = None
        while True:
            solution = self._master.solve()
            lengths = self._network.lengths(solution.prices + self._lean)
            # Prices swing to and fro where one root asks for a tree at a time; so they are taken between those of the best bound and the present
            # ones, and where they find nothing, as they are.
            is_swinging = steady is not None and len(self._demands) == 1
            for part in (PARAMS.steadiness, 0.0) if is_swinging else (0.0,):
                prices = solution.prices if steady is None else part * steady + (1 - part) * solution.prices
                offers = self._finder.cheapest(prices + self._lean, PARAMS.hop_price, over)
                if len(offers) < len(self._demands):
                    return solution
                bound = self._bound(offers, prices)
                if steady is None or bound > self.bound:
                    steady = prices
                self.bound = max(self.bound, bound)
                if self.bound >= solution.cost * (1 - gap):
                    return solution
                dearest = solution.worth * (1 - LP_GAP)
                found = (offer.tree for offer in offers)
                if self._add(tree for tree in found if float(lengths[tree.used()].sum()) < dearest[tree.root]):
                    break
            else:
                return solution

    def exact_bound(self, prices: FloatArray) -> float:
        """Lower bound that some prices give, hops and loads counting nothing."""
        return self._bound(self._finder.cheapest(prices, 0.0), prices)

    def settle(self, demands: Sequence[float], trees: Sequence[SpanningTree]) -> None:
        """Use trees for good, and pack the rest of the demands beside them."""
        self._demands = list(demands)
        for tree in trees:
            self._load += self._network.load(tree.used())
        self._master.settle(demands, self._load)
        self.bound = 0.0

    def _bound(self, offers: Sequence[_TreeOffer], prices: FloatArray) -> float:
        free = (1 - float(prices.sum())) * self._goal
        return free + float(prices @ self._load) + sum(offer.least * self._demands[offer.tree.root] for offer in offers)

    def _add(self, trees: Iterable[SpanningTree]) -> bool:
        """Add those trees that are new; whether there are any."""
        before = len(self.trees)
        for tree in trees:
            key = (tree.root, tree.links.tobytes())
            if key not in self._known:
                self._known.add(key)
                self.trees.append(tree)
                self._master.add(tree.root, self._network.load(tree.used()))
        return len(self.trees) > before


@dataclass(frozen=True)
class _TreeOffer:
    """A tree, and a lower bound on the price of every tree of its root."""

    tree: SpanningTree
    least: float


class TreeFinder:
    """Cheapest trees for given prices of resources or lengths of links."""

    def __init__(self, network: CapacityNetwork) -> None:
        self._network = network
        self._hops = [hops_from(network, index) for index in range(len(network.roots))]
        self._most_hops = [_most_hops(network, index, hops) for index, hops in enumerate(self._hops)]

    def cheapest(self, prices: FloatArray, hop_share: float, over: Over = never) -> list[_TreeOffer]:
        """One for every root orbit; for fewer if time is up before."""
        lengths = self._network.lengths(prices)
        roots = itertools.takewhile(lambda _: not over(), range(len(self._network.roots)))
        return [self._offer(root, lengths, hop_share) for root in roots]

    def cheapest_of(self, root: int, lengths: FloatArray, hop_share: float) -> SpanningTree:
        """The one for a root, where links have lengths; `hop_share` is what the path to the farthest rank costs in average ones."""
        return self._offer(root, lengths, hop_share).tree

    def _offer(self, root: int, lengths: FloatArray, hop_share: float) -> _TreeOffer:
        network, hops = self._network, self._hops[root]
        hop_price = hop_share * float(lengths.mean()) / max(1.0, float(hops.max()))
        allowed = np.flatnonzero(network.permitted[root])
        priced = lengths[allowed] + hop_price * hops[network.src[allowed]]
        src, dst = network.src[allowed], network.dst[allowed]
        count_work("priced", len(src))
        chosen = cheapest_arborescence(network.num_ranks, src, dst, priced, network.roots[root])
        if chosen is None:
            raise ValueError(
                f"rank {network.roots[root]} does not reach every rank of a problem that was found feasible"
            )
        links = np.append(allowed, -1)[chosen]
        tree = SpanningTree(root, links)
        price = float(lengths[tree.used()].sum())
        # Another tree may be cheaper by what its hops cost more.
        return _TreeOffer(
            tree, price - hop_price * (self._most_hops[root] - float(hops[network.src[tree.used()]].sum()))
        )


def hops_from(network: CapacityNetwork, root: int) -> FloatArray:
    """Fewest links from a root, named by its index, to every rank, [rank]; ranks out of reach count as far."""
    allowed = network.permitted[root]
    hops = distances(network.num_ranks, network.src[allowed], network.dst[allowed], [network.roots[root]])
    return np.minimum(hops, network.num_ranks)


def _most_hops(network: CapacityNetwork, root: int, hops: FloatArray) -> float:
    """Sum, over all ranks but the root, of the hops to where they hang in a tree, at most."""
    most = np.zeros(network.num_ranks)
    allowed = np.flatnonzero(network.permitted[root])
    np.maximum.at(most, network.dst[allowed], hops[network.src[allowed]])
    most[network.roots[root]] = 0.0
    return float(most.sum())
