"""Cheapest spanning arborescence (Chu and Liu, Edmonds) on lists of arcs, all cycles of a round contracted at once; and cheap ones with short paths."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.grouping import by_number
from taccl_py.synthesis.distances import distances


def cheapest_arborescence(count: int, tail: IntArray, head: IntArray, cost: FloatArray, root: int) -> IntArray | None:
    """Arc into every vertex, -1 into the root, of an arborescence of least total cost.

    Parameters
    ----------
    count
        Number of vertices.
    tail, head, cost
        Ends and finite cost of every arc, [arc].
    root
        Vertex from which all others are reached.

    Returns
    -------
    IntArray or None
        None if some vertex cannot be reached.
    """
    arcs = np.flatnonzero((head != root) & (head != tail))
    found = _cheapest(count, tail[arcs], head[arcs], cost[arcs], root)
    return None if found is None else np.append(arcs, -1)[found]


def _cheapest(count: int, tail: IntArray, head: IntArray, cost: FloatArray, root: int) -> IntArray | None:
    """The same, where no arc goes into the root or is a loop."""
    order = np.lexsort((tail, cost, head))
    first = order[_first_of_equal(head[order])]
    if len(first) < count - 1:
        return None
    into: IntArray = np.full(count, -1, dtype=np.int64)
    into[head[first]] = first
    parent = np.where(into >= 0, tail[into], root) if len(tail) else into + 1 + root
    label = _components(parent, root)
    if label is None:
        return into
    # An arc that enters a cycle replaces the cycle's own arc into its head.
    on_cycle = np.bincount(label)[label] > 1
    reduced = cost - np.where(on_cycle[head], cost[into[head]], 0.0)
    between = _cheapest_between(label, tail, head, reduced, int(label[root]))
    ends = label[tail[between]], label[head[between]]
    inner = _cheapest(int(label.max()) + 1, *ends, reduced[between], int(label[root]))
    if inner is None:
        return None
    chosen = between[inner[inner >= 0]]
    into[head[chosen]] = chosen
    return into


def _cheapest_between(label: IntArray, tail: IntArray, head: IntArray, cost: FloatArray, root: int) -> IntArray:
    """The cheapest arc from each component to each other one but the root's."""
    pair = label[head] * (int(label.max()) + 1) + label[tail]
    order = np.lexsort((tail, head, cost, pair))
    arcs: IntArray = order[_first_of_equal(pair[order])]
    return np.asarray(arcs[(label[tail[arcs]] != label[head[arcs]]) & (label[head[arcs]] != root)], dtype=np.int64)


def _first_of_equal(ordered: IntArray) -> IntArray:
    """Places in an ascending array where a new value begins."""
    is_first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return is_first.nonzero()[0]


def _components(parent: IntArray, root: int) -> IntArray | None:
    """Number of every vertex' component, where each cycle of the parents is one; None if there is no cycle."""
    count = len(parent)
    ancestor = parent
    for _ in range(count.bit_length()):
        ancestor = ancestor[ancestor]
    is_ancestor = np.zeros(count, dtype=np.bool_)
    is_ancestor[ancestor] = True
    is_ancestor[root] = False
    cyclic = np.flatnonzero(is_ancestor).tolist()
    if not cyclic:
        return None
    above, label = parent.tolist(), [-1] * count
    number = 0
    for first in cyclic:
        if label[first] >= 0:
            continue
        vertex = first
        while label[vertex] < 0:
            label[vertex] = number
            vertex = above[vertex]
        number += 1
    labels = np.array(label, dtype=np.int64)
    alone = np.flatnonzero(labels < 0)
    labels[alone] = number + np.arange(len(alone))
    return labels


class ShortArborescences:
    """Cheap spanning arborescences whose paths have few arcs, on the same arcs for costs that change.

    The cheapest one is hard to find (a hop-constrained minimum spanning tree); this is local search.

    Parameters
    ----------
    count
        Number of vertices.
    tail, head
        Ends of every arc, [arc].

    Raises
    ------
    ValueError
        On use, if the root does not reach every vertex.
    """

    def __init__(self, count: int, tail: IntArray, head: IntArray) -> None:
        self._count, self._tail, self._head = count, tail.tolist(), head.tolist()
        self._into = by_number(count, ((vertex, arc) for arc, vertex in enumerate(self._head)))
        self._ends = tail, head
        self._layers: dict[int, list[list[int]]] = {}

    def hops(self, root: int) -> int:
        """Arcs to the vertex that is farthest from a root."""
        return len(self._layers_from(root)) - 1

    def cheap(self, cost: FloatArray, root: int, most_hops: int) -> IntArray:
        """Arc into every vertex, -1 into the root; no path has more arcs than are allowed, or than the farthest vertex needs.

        Every vertex hangs at the cheapest one of those nearer to the root at first, and is hung elsewhere as long as it is cheaper there.
        """
        costs, tail, layers = cost.tolist(), self._tail, self._layers_from(root)
        most = max(most_hops, len(layers) - 1)
        into = [-1] * self._count
        for nearer, layer in pairwise(map(set, layers)):
            for vertex in layer:
                arcs = (arc for arc in self._into[vertex] if tail[arc] in nearer)
                into[vertex] = min(arcs, key=lambda arc: (costs[arc], arc))
        depth, height = self._measured(into, root)
        has_moved = True
        while has_moved:
            has_moved = False
            for vertex in chain.from_iterable(layers[1:]):
                best = into[vertex]
                for arc in self._into[vertex]:
                    fits = costs[arc] < costs[best] and depth[tail[arc]] + 1 + height[vertex] <= most
                    if fits and not self._hangs_below(tail[arc], vertex, into):
                        best = arc
                if best != into[vertex]:
                    into[vertex], has_moved = best, True
                    depth, height = self._measured(into, root)
        return np.array(into, dtype=np.int64)

    def _layers_from(self, root: int) -> list[list[int]]:
        """Vertices by their hops from a root."""
        if root not in self._layers:
            hops = distances(self._count, *self._ends, [root])
            if not np.isfinite(hops).all():
                raise ValueError(f"vertex {root} does not reach every vertex")
            self._layers[root] = [np.flatnonzero(hops == number).tolist() for number in range(int(hops.max()) + 1)]
        return self._layers[root]

    def _hangs_below(self, vertex: int, above: int, into: list[int]) -> bool:
        while vertex != above and into[vertex] >= 0:
            vertex = self._tail[into[vertex]]
        return vertex == above

    def _measured(self, into: list[int], root: int) -> tuple[list[int], list[int]]:
        """Arcs from the root to every vertex, and from there to the farthest one that hangs below."""
        below = by_number(len(into), ((self._tail[arc], vertex) for vertex, arc in enumerate(into) if arc >= 0))
        depth, height, order = [0] * len(into), [0] * len(into), [root]
        for vertex in order:
            for each in below[vertex]:
                depth[each] = depth[vertex] + 1
                order.append(each)
        for vertex in reversed(order[1:]):
            above = self._tail[into[vertex]]
            height[above] = max(height[above], height[vertex] + 1)
        return depth, height
