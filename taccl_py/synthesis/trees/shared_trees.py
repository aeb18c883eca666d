"""Shared trees: a few trees for every root that carry unequal parts of its data.

A packing of trees that carry equal parts loses some per cent where capacities are odd; pieces may have any size, so trees may
carry what the linear program says. Of its many optima the ones that pipeline well are wanted. Links and ports that are full
must have something to do at the beginning, when only roots have data, and at the end, when whatever they carry should not be
waited for by others that are as full. So as much as a part of the time is wished for, on every one of them, of what waits for
no full link and of what no full link waits for; what lacks is to be small, and so is the number of full links in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.sparse import Coefficients, SparseProgram
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import Packing, SpanningTree
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.transfers import downwards
from taccl_py.tolerances import LEAST_AMOUNT


@dataclass(frozen=True)
class SharedTreeSet:
    """Trees, in order of their roots, and the part of its root's data that each of them carries."""

    trees: tuple[SpanningTree, ...]
    amounts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """Properties that shared trees should have.

    Attributes
    ----------
    part
        How much of the time full links and ports should have something to do at the beginning, and at the end.
    end
        What the end counts for; the beginning counts 1.
    depth
        What a full link on the longest path counts for.
    loss
        Throughput that may be given up.
    least
        Trees that carry less are left out where the others can do without them.
    """

    part: float
    end: float
    depth: float
    loss: float
    least: float


# Wishes that have led to good plans.
WISHES = tuple(
    Wish(part, end, depth, loss, least)
    for loss, least in PARAMS.shared_losses
    for part in PARAMS.shared_busy_parts
    for end, depth in PARAMS.shared_prices
)


class SharedTreeSetFinder:
    """Chooses among known trees.

    Parameters
    ----------
    network, packing
        The machine and its best packing.
    trees
        Trees to choose from, those of the packing among them.
    limits
        Time for all linear programs together, from now on, and the user's interrupt.
    """

    def __init__(
        self, network: CapacityNetwork, packing: Packing, trees: Iterable[SpanningTree], limits: Limits
    ) -> None:
        self._trees = list({(tree.root, tree.links.tobytes()): tree for tree in (*packing.trees, *trees)}.values())
        self._limits, self._deadline = limits, limits.deadline()
        self._roots = len(network.roots)
        self._loads = np.array([network.load(tree.used()) for tree in self._trees]) / packing.load_us
        pairs = zip(packing.trees, packing.amounts, strict=True)
        total = sum((amount * network.load(tree.used()) for tree, amount in pairs), np.zeros(network.num_resources))
        full = np.append(total >= PARAMS.shared_full * total.max(), False)
        is_full = np.array(full[network.resources].any(axis=1), dtype=np.bool_)
        shapes = [_Shape.of(network, tree, is_full) for tree in self._trees]
        self._first = np.array([network.load(shape.first) for shape in shapes])[:, full[:-1]] / packing.load_us
        self._last = np.array([network.load(shape.last) for shape in shapes])[:, full[:-1]] / packing.load_us
        self._depth = np.array([shape.depth for shape in shapes], dtype=np.float64)

    def find(self, wish: Wish) -> SharedTreeSet | None:
        """The packing that is most like the wish; None if the limits came first."""
        best, better = None, self._solved(wish, np.arange(len(self._trees)))
        while better is not None:
            best, better = better, self._thinned(wish, better)
        if best is None:
            return None
        order = sorted(np.flatnonzero(best > LEAST_AMOUNT).tolist(), key=lambda i: self._trees[i].root)
        return SharedTreeSet(tuple(self._trees[i] for i in order), tuple(float(best[i]) for i in order))

    def _thinned(self, wish: Wish, amounts: FloatArray) -> FloatArray | None:
        """Amounts without as many of the smallest trees as the others can do without at once, half of the small ones at most."""
        used = np.flatnonzero(amounts > LEAST_AMOUNT)
        small = used[amounts[used] < wish.least]
        ascending = small[np.argsort(amounts[small], kind="stable")]
        number = (len(small) + 1) // 2
        while number:
            found = self._solved(wish, np.setdiff1d(used, ascending[:number]))
            if found is not None:
                return found
            number //= 2
        return None

    def _solved(self, wish: Wish, chosen: IntArray) -> FloatArray | None:
        """Amounts of all trees when only those chosen may be used; None if there is no such packing, or no time is left.

        Columns are the trees, then what lacks at the beginning and at the end, for each full resource.
        """
        if self._deadline.over():
            return None
        num_trees, num_full = len(chosen), self._first.shape[1]
        root = np.array([self._trees[i].root for i in chosen])
        if len(set(root.tolist())) < self._roots:
            return None
        lack = np.eye(num_full)
        none = np.zeros((num_full, num_full))
        of_root = (np.arange(self._roots)[:, None] == root[None, :]).astype(np.float64)
        loads = self._loads[chosen].T
        rows = np.vstack(
            [
                np.hstack([of_root, np.zeros((self._roots, 2 * num_full))]),
                np.hstack([loads, np.zeros((len(loads), 2 * num_full))]),
                np.hstack([self._first[chosen].T, lack, none]),
                np.hstack([self._last[chosen].T, none, lack]),
            ]
        )
        row, column = np.nonzero(rows)
        ends = (self._roots, len(loads), 2 * num_full)
        low = np.repeat([1.0, -np.inf, wish.part], ends)
        high = np.repeat([1.0, 1.0 + wish.loss, np.inf], ends)
        cost = np.concatenate([wish.depth * self._depth[chosen], np.ones(num_full), np.full(num_full, wish.end)])
        program = SparseProgram(cost, Coefficients(row, column, rows[row, column]), low, high)
        optimum = program.solve(self._limits.within(self._deadline.left))
        if optimum is None:
            return None
        amounts = np.zeros(len(self._trees))
        amounts[chosen] = optimum.values[:num_trees]
        return amounts


@dataclass(frozen=True)
class _Shape:
    """Properties of a tree: links that wait for no full link, links that no full link waits for, full links in a row."""

    first: IntArray
    last: IntArray
    depth: int

    @staticmethod
    def of(network: CapacityNetwork, tree: SpanningTree, is_full: BoolArray) -> _Shape:
        order = downwards(network, tree.links.tolist(), network.roots[tree.root])
        above = {network.roots[tree.root]: 0}
        for link in order:
            above[int(network.dst[link])] = above[int(network.src[link])] + int(is_full[link])
        below: dict[int, int] = {}
        last = []
        for link in reversed(order):
            src, under = int(network.src[link]), below.get(int(network.dst[link]), 0)
            below[src] = max(below.get(src, 0), under + int(is_full[link]))
            if not under:
                last.append(link)
        first = [link for link in order if not above[int(network.src[link])]]
        return _Shape(np.array(first, dtype=np.int64), np.array(last, dtype=np.int64), max(above.values()))


def unequal_cuts(shared: SharedTreeSet, pieces: int) -> tuple[int, ...]:
    """Pieces of every tree, in proportion to what it carries, when a tree that carried all had so many."""
    return tuple(max(1, round(amount * pieces)) for amount in shared.amounts)


def shared_tree_sets(find: Callable[[Wish], SharedTreeSet | None]) -> list[SharedTreeSet]:
    """Shared trees for each of the wishes above."""
    found: list[SharedTreeSet] = []
    for wish in WISHES:
        shared = find(wish)
        if shared is not None and shared.amounts not in [other.amounts for other in found]:
            found.append(shared)
    return found
