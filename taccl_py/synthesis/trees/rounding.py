"""Rounding: a few whole trees for every root in place of a fractional packing.

Every root's data is cut into so many equal parts and each part gets one tree. The parts start on the trees of the packing, by
largest remainder; then ranks are hung under other parents, one at a time, first while that makes the fullest links and ports
less full, and at last wherever it makes a tree shallower without making them fuller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.apportion import to_whole
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import Packing, SpanningTree, dive
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.tolerances import RELATIVE, ROUNDED
from taccl_py.units import BYTES_PER_MB
from taccl_py.work import count_work

# A link that would outweigh everything has a penalty that is still a number.
_MOST_EXPONENT = 600.0


@dataclass(frozen=True)
class TreeSet:
    """One tree for each part of every root's data.

    Attributes
    ----------
    trees
        Trees, in order of root and part, [root * parts + part].
    parts
        Parts of a root's data.
    load_us
        Time of the fullest resource if every root has one megabyte.
    """

    trees: tuple[SpanningTree, ...]
    parts: int
    load_us: float


def least_load_us(network: CapacityNetwork, load_us: float, parts: int) -> float:
    """Least load of the fullest resource in us per megabyte that whole trees can have.

    Every resource carries a whole number of parts, so the fullest one has the least multiple of one of the costs of a part
    that is not below the load of the best packing.
    """
    costs = np.unique(network.beta[network.beta > 0]) / parts
    return float((np.ceil(load_us / costs * (1 - RELATIVE)) * costs).min()) if len(costs) else 0.0


def piece_us(network: CapacityNetwork, parts: int) -> FloatArray:
    """Time of a hop of what follows each other down one of so many trees for each root, [link].

    Only pieces of a tree's data travel together, so what a hop costs once counts for more than its bandwidth.
    """
    piece_mb = network.problem.chunk_bytes / BYTES_PER_MB / parts / PARAMS.usual_tree_pieces
    hop_us: FloatArray = network.least_message_us + network.beta.max(axis=1) * piece_mb
    return hop_us


def round_packing(network: CapacityNetwork, packing: Packing, parts: int, over: Over) -> TreeSet:
    """Whole trees that are close to a packing.

    Parameters
    ----------
    network, packing
        The machine and its fractional packing.
    parts
        Trees for each root.
    over
        Whether time is up; the better trees that are found by then are returned.
    """
    goal = (
        max(least_load_us(network, packing.load_us, parts) * (1 + RELATIVE), packing.load_us * PARAMS.rounding_factor)
        * parts
    )
    best = _balanced(network, packing, _nearest(network, packing, parts), parts, goal, over)
    for at_once in dict.fromkeys((len(network.roots), 1)):
        if best.fullest <= goal or over():
            break
        trees = dive(network, packing, parts, goal, over, at_once=at_once)
        other = _balanced(network, packing, trees, parts, goal, over)
        if other.fullest < best.fullest * (1 - RELATIVE):
            best = other
    best.flatten(over)
    return TreeSet(tuple(best.trees()), parts, best.fullest / parts)


def _balanced(
    network: CapacityNetwork, packing: Packing, trees: list[SpanningTree], parts: int, goal: float, over: Over
) -> _RoundingSearch:
    search = _RoundingSearch(network, trees, parts, packing.load_us * parts)
    search.balance(goal, over)
    return search


def _nearest(network: CapacityNetwork, packing: Packing, parts: int) -> list[SpanningTree]:
    """Trees of the packing, each as often as its amount says nearly."""
    trees = []
    for root in range(len(network.roots)):
        own = [i for i, tree in enumerate(packing.trees) if tree.root == root]
        wanted = packing.amounts[own] / packing.amounts[own].sum() * parts
        for i, times in zip(own, to_whole(wanted.tolist(), parts), strict=True):
            trees += [packing.trees[i]] * times
    return trees


class _RoundingSearch:
    """Trees as one link into every rank, and the loads that they add up to (in us per megabyte of a part)."""

    def __init__(self, network: CapacityNetwork, trees: list[SpanningTree], parts: int, target: float) -> None:
        self._network, self._target = network, target
        self._root = [tree.root for tree in trees]
        self._link = [tree.links.copy() for tree in trees]
        self._load = self._total()
        self._into: dict[tuple[int, int], IntArray] = {}
        for root in range(len(network.roots)):
            allowed = np.flatnonzero(network.permitted[root])
            for rank in range(network.num_ranks):
                self._into[root, rank] = allowed[network.dst[allowed] == rank]
        self._slowness = piece_us(network, parts)

    @property
    def fullest(self) -> float:
        """Largest load."""
        return float(self._load[:-1].max())

    def trees(self) -> list[SpanningTree]:
        """Trees as they are now."""
        return [SpanningTree(root, link) for root, link in zip(self._root, self._link, strict=True)]

    def balance(self, goal: float, over: Over) -> None:
        """Hang ranks elsewhere while that lowers the sum of penalties, and keep the best trees in between."""
        if self._target <= 0:
            return
        best, links = self.fullest, [links.copy() for links in self._link]
        for steepness in PARAMS.penalty_steepness:
            for _ in range(PARAMS.most_passes):
                if best <= goal or over():
                    break
                moved = [
                    self._relieve(tree, rank, steepness) for tree, rank in self._places() if self._is_full(tree, rank)
                ]
                if self.fullest < best * (1 - RELATIVE):
                    best, links = self.fullest, [links.copy() for links in self._link]
                if not any(moved):
                    break
        self._link = links
        self._load = self._total()

    def flatten(self, over: Over) -> None:
        """Hang ranks nearer to the root where the fullest resource allows it."""
        cap = max(self.fullest, self._target) * (1 + RELATIVE)
        for _ in range(PARAMS.most_passes):
            if over() or not any([self._raise(tree, cap) for tree in range(len(self._link))]):
                break

    def _total(self) -> FloatArray:
        loads = (self._network.load(links[links >= 0]) for links in self._link)
        return np.append(sum(loads, np.zeros(self._network.num_resources)), 0.0)

    def _places(self) -> list[tuple[int, int]]:
        return [(tree, rank) for tree, links in enumerate(self._link) for rank in range(len(links)) if links[rank] >= 0]

    def _is_full(self, tree: int, rank: int) -> bool:
        """True if the link into a rank uses one of the fullest resources."""
        return bool(
            self._load[self._network.resources[self._link[tree][rank]]].max() >= PARAMS.rounding_full * self._load.max()
        )

    def _candidates(self, tree: int, rank: int) -> IntArray:
        """Links into a rank that do not come from below it."""
        links = self._into[self._root[tree], rank]
        below = self._below(tree, rank)
        return links[~below[self._network.src[links]]]

    def _below(self, tree: int, rank: int) -> BoolArray:
        """Mask of the ranks that hang below this one (or are it), [rank]."""
        links = self._link[tree]
        parent = np.where(links >= 0, self._network.src[links], np.arange(len(links)))
        parent[rank] = rank
        for _ in range(len(links).bit_length()):
            if np.array_equal(parent, above := parent[parent]):
                break
            parent = above
        below: BoolArray = parent == rank
        return below

    def _relieve(self, tree: int, rank: int, steepness: float) -> bool:
        """Hang a rank where its penalty is least."""
        count_work("moved", 1)
        now = int(self._link[tree][rank])
        self._charge(now, -1.0)
        candidates = self._candidates(tree, rank)
        resources, beta = self._network.resources[candidates], self._network.beta[candidates]
        load = self._load[resources]
        scale = steepness / self._target
        ceiling = max(self._target, float(self._load.max()))
        before, after = (np.exp(np.minimum((x - ceiling) * scale, _MOST_EXPONENT)) for x in (load, load + beta))
        penalty = (after - before).sum(axis=1)
        best = int(np.argmin(penalty))
        current = float(penalty[np.flatnonzero(candidates == now)[0]])
        chosen = int(candidates[best]) if penalty[best] < current * (1 - ROUNDED) else now
        self._charge(chosen, 1.0)
        self._link[tree][rank] = chosen
        return chosen != now

    def _raise(self, tree: int, cap: float) -> bool:
        """Make one pass over a tree from its root outwards."""
        moved = False
        depth = self._depths(tree)
        count_work("moved", len(depth))
        for rank in np.argsort(depth, kind="stable").tolist():
            now = int(self._link[tree][rank])
            if now < 0:
                continue
            depth = self._depths(tree)
            links = self._into[self._root[tree], rank]
            offered = depth[self._network.src[links]] + self._slowness[links]
            nearer = links[np.argsort(offered, kind="stable")][: int((offered < depth[rank] * (1 - RELATIVE)).sum())]
            if not len(nearer):
                continue
            self._charge(now, -1.0)
            full = (self._load[self._network.resources[nearer]] + self._network.beta[nearer] > cap).any(axis=1)
            chosen = int(nearer[np.argmin(full)]) if not full.all() else now
            self._charge(chosen, 1.0)
            self._link[tree][rank] = chosen
            moved |= chosen != now
        return moved

    def _depths(self, tree: int) -> FloatArray:
        """Cost of one megabyte from the root to every rank, hop by hop in us, [rank]."""
        links = self._link[tree]
        parent = np.where(links >= 0, self._network.src[links], np.arange(len(links)))
        depth: FloatArray = np.where(links >= 0, self._slowness[links], 0.0)
        while True:
            above = parent[parent]
            depth = depth + depth[parent]
            if np.array_equal(above, parent):
                return depth
            parent = above

    def _charge(self, link: int, sign: float) -> None:
        self._load[self._network.resources[link]] += sign * self._network.beta[link]
        self._load[-1] = 0.0
