"""Cheapest spanning arborescence (Chu and Liu, Edmonds) on lists of arcs, all cycles of a round contracted at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taccl_py.synthesis.symmetry import IntArray

FloatArray = NDArray[np.float64]


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
