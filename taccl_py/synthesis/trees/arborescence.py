"""Cheapest spanning arborescence (Chu and Liu, Edmonds) on a dense matrix, all cycles of a round contracted at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taccl_py.synthesis.symmetry import IntArray

FloatArray = NDArray[np.float64]


def cheapest_arborescence(cost: FloatArray, root: int) -> IntArray | None:
    """Parent of every vertex (the root is its own) in an arborescence of least total cost.

    Parameters
    ----------
    cost
        Cost of every arc, [tail, head], infinity where there is none.
    root
        Vertex from which all others are reached.

    Returns
    -------
    IntArray or None
        None if some vertex cannot be reached.
    """
    cost = cost.copy()
    np.fill_diagonal(cost, np.inf)
    cost[:, root] = np.inf
    cost[root, root] = 0.0
    parent: IntArray = np.argmin(cost, axis=0).astype(np.int64)
    cheapest = cost[parent, np.arange(len(cost))]
    if not np.isfinite(cheapest).all():
        return None
    label = _components(parent, root)
    if label is None:
        return parent
    # An arc that enters a cycle replaces the cycle's own arc into its head.
    on_cycle = np.bincount(label)[label] > 1
    reduced = np.where(on_cycle[None, :], cost - cheapest[None, :], cost)
    contracted, tail, head = _contract(reduced, label)
    inner = cheapest_arborescence(contracted, int(label[root]))
    if inner is None:
        return None
    for component in range(len(inner)):
        if component != label[root]:
            pair = (inner[component], component)
            parent[head[pair]] = tail[pair]
    return parent


def _components(parent: IntArray, root: int) -> IntArray | None:
    """Number of every vertex' component, where each cycle of the parents is one; None if there is no cycle."""
    count = len(parent)
    ancestor = parent
    for _ in range(count.bit_length()):
        ancestor = ancestor[ancestor]
    cyclic = np.setdiff1d(ancestor, [root]).tolist()
    if not cyclic:
        return None
    label = np.full(count, -1, dtype=np.int64)
    number = 0
    for first in cyclic:
        vertex = first
        while label[vertex] < 0:
            label[vertex] = number
            vertex = int(parent[vertex])
        number = int(label.max()) + 1
    alone = np.flatnonzero(label < 0)
    label[alone] = number + np.arange(len(alone))
    return label


def _contract(cost: FloatArray, label: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Least cost between components, and the tail and head of an arc that has it."""
    count = int(label.max()) + 1
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(count))
    ends = np.append(starts[1:], len(order))
    size = len(cost)
    by_tail, tail = np.empty((count, size)), np.empty((count, size), dtype=np.int64)
    for component in range(count):
        members = order[starts[component] : ends[component]]
        best = members[np.argmin(cost[members], axis=0)]
        by_tail[component], tail[component] = cost[best, np.arange(size)], best
    result, tails, heads = np.empty((count, count)), np.empty((count, count), int), np.empty((count, count), int)
    for component in range(count):
        members = order[starts[component] : ends[component]]
        best = members[np.argmin(by_tail[:, members], axis=1)]
        result[:, component] = by_tail[np.arange(count), best]
        heads[:, component], tails[:, component] = best, tail[np.arange(count), best]
    np.fill_diagonal(result, np.inf)
    return result, tails, heads
