"""Whole trees that share links as evenly as whole trees can, and shallow ones, where links are all that they share.

So many trees that grow from their roots can still all be completed if and only if, for every set of ranks, as many links that are left
lead into it as there are trees with no rank in it (Edmonds, "Edge-disjoint branchings", 1973). That says at once how full links have to
be, and which links must not be taken. Trees that are grown one after the other leave detours for the last one; here all grow at the same
time, always with the hop that arrives first, which is what Dijkstra's algorithm does for one tree.

Whether a link u -> v may go into a tree is one maximum flow. A set that could get into need has v in it, not u, and some rank of
the tree, so the tree does not count for it: as much as there are trees must get to v from u, which has no limit here, and from one
more source for each other tree, which stands before all its ranks. What is not allowed once is never allowed again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.grouping import by_number
from taccl_py.solvers.limits import Over
from taccl_py.solvers.max_flow import FlowNetwork
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import SpanningTree
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.rounding import TreeSet, piece_us
from taccl_py.tolerances import RELATIVE


def shares_only_links(network: CapacityNetwork) -> bool:
    """True if trees meet in links only: no links share a port that takes time, no symmetry repeats trees, and all may go everywhere."""
    users = np.bincount(network.resources[network.beta > 0], minlength=network.num_resources)
    to_root = network.dst == np.array(network.roots)[:, None]
    is_same = bool((network.permitted | to_root == (network.permitted | to_root)[0]).all())
    return len(network.images) == 1 and is_same and bool((users <= 1).all())


def disjoint_trees(network: CapacityNetwork, parts: int, over: Over, seed: int = 0) -> TreeSet | None:
    """Whole trees of the least load, as shallow as they become side by side.

    Parameters
    ----------
    network
        A machine on which trees share links only, see `shares_only_links`.
    parts
        Trees for each root.
    over
        Whether time is up; there are no trees then.
    seed
        Other numbers than 0 give other trees.
    """
    load_us = least_whole_load_us(network, parts)
    trees = grow(network, _capacities(network, load_us, parts), parts, over, seed)
    return None if trees is None else TreeSet(trees, parts, load_us)


def grow(
    network: CapacityNetwork, capacities: IntArray, parts: int, over: Over, seed: int = 0
) -> tuple[SpanningTree, ...] | None:
    """So many trees from each root, no more of which take a link than can, [link]; None if there are none, or no time."""
    growth = _TreeGrowth(network, capacities, parts)
    return growth.run(over, seed) if growth.can_be_completed() else None


def least_whole_load_us(network: CapacityNetwork, parts: int) -> float:
    """Least load of the fullest link in us per megabyte of every root's data, if so many whole trees carry equal parts of each.

    It is the least multiple of a part's time on some link at which enough links lead into every set of ranks.
    """
    beta = network.beta.max(axis=1)
    most = parts * len(network.roots)
    loads = np.unique(np.outer(np.arange(1, most + 1), np.unique(beta[beta > 0]) / parts))
    low, high = 0, len(loads) - 1
    while low < high:
        middle = (low + high) // 2
        if _TreeGrowth(network, _capacities(network, float(loads[middle]), parts), parts).can_be_completed():
            high = middle
        else:
            low = middle + 1
    return float(loads[low]) if len(loads) else 0.0


def _capacities(network: CapacityNetwork, load_us: float, parts: int) -> IntArray:
    """Trees that a link can carry if it takes no longer than so many us per megabyte, [link]."""
    beta, most = network.beta.max(axis=1), parts * len(network.roots)
    fitting = np.full(len(beta), float(most))
    np.divide(load_us * parts * (1 + RELATIVE), beta, out=fitting, where=beta > 0)
    whole: IntArray = np.minimum(fitting, most).astype(np.int64)
    return whole


class _TreeGrowth:
    """Trees that grow at the same time.

    Vertices are the ranks, one for every tree, and a source. The source leads to every tree (one unit each), a tree to all ranks
    that it has, and the source to the rank whose link is looked at.
    """

    def __init__(self, network: CapacityNetwork, capacities: IntArray, parts: int) -> None:
        self._network = network
        self._roots = [root for root in range(len(network.roots)) for _ in range(parts)]
        self._left = np.where(network.permitted.any(axis=0), capacities, 0)
        ranks, trees = network.num_ranks, len(self._roots)
        self._source = ranks + trees
        tails = (
            network.src, np.full(trees, self._source), np.repeat(ranks + np.arange(trees), ranks),
            np.full(ranks, self._source),
        )  # fmt: skip
        heads = (network.dst, ranks + np.arange(trees), np.tile(np.arange(ranks), trees), np.arange(ranks))
        sizes = (self._left, np.ones(trees), np.zeros(trees * ranks), np.zeros(ranks))
        tail, head, size = (np.concatenate(parts).astype(np.int64) for parts in (tails, heads, sizes))
        self._flows = FlowNetwork(tail, head, size)
        self._first_tree, self._first_member = len(network.src), len(network.src) + trees
        self._first_rank = self._first_member + trees * ranks
        self._into = np.full((trees, ranks), -1, dtype=np.int64)
        self._has = np.zeros((trees, ranks), dtype=bool)
        for tree, root in enumerate(self._roots):
            self._join(tree, network.roots[root])

    def can_be_completed(self) -> bool:
        """True if all trees can still reach all ranks."""
        wanted = len(self._roots)
        return all(self._flows.flow(self._source, rank) >= wanted for rank in range(self._network.num_ranks))

    def run(self, over: Over, seed: int) -> tuple[SpanningTree, ...] | None:
        """Grow to the end, if time suffices; by other seeds than 0 as if links were slower, some more and some less."""
        network = self._network
        parts = len(self._roots) // len(network.roots)
        time_us = piece_us(network, parts)
        if seed:
            time_us = time_us * (1 + PARAMS.disjoint_noise * np.random.default_rng(seed).random(len(time_us)))
        links_from = _links_from(network)
        hops = [
            (float(time_us[link]), tree, link)
            for tree, root in enumerate(self._roots)
            for link in links_from[network.roots[root]]
        ]
        heapq.heapify(hops)
        while hops:
            if over():
                return None
            arrival_us, tree, link = heapq.heappop(hops)
            rank = int(network.dst[link])
            if not self._may_take(tree, link):
                continue
            self._take(tree, link)
            for onwards in links_from[rank]:
                if not self._has[tree, network.dst[onwards]]:
                    heapq.heappush(hops, (arrival_us + float(time_us[onwards]), tree, onwards))
        return tuple(SpanningTree(root, links) for root, links in zip(self._roots, self._into, strict=True))

    def _may_take(self, tree: int, link: int) -> bool:
        """True if all trees can be completed after a tree has taken a link to a rank that it does not have."""
        network, flows = self._network, self._flows
        sender, rank = int(network.src[link]), int(network.dst[link])
        if self._has[tree, rank] or not self._left[link] or not network.permitted[self._roots[tree], link]:
            return False
        flows.limit(self._first_tree + tree, 0)
        flows.limit(self._first_rank + sender, FlowNetwork.UNLIMITED)
        found = flows.flow(self._source, rank)
        flows.limit(self._first_tree + tree, 1)
        flows.limit(self._first_rank + sender, 0)
        return found >= len(self._roots)

    def _take(self, tree: int, link: int) -> None:
        self._left[link] -= 1
        self._flows.limit(link, int(self._left[link]))
        rank = int(self._network.dst[link])
        self._into[tree, rank] = link
        self._join(tree, rank)

    def _join(self, tree: int, rank: int) -> None:
        self._has[tree, rank] = True
        self._flows.limit(self._first_member + tree * self._network.num_ranks + rank, FlowNetwork.UNLIMITED)


def _links_from(network: CapacityNetwork) -> Sequence[Sequence[int]]:
    return by_number(network.num_ranks, ((rank, link) for link, rank in enumerate(network.src.tolist())))
