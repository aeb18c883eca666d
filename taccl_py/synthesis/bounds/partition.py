"""The partition of vertices that edges join least, for its number of groups.

Which of all partitions into k groups has the least ``weight between groups - each * (k - 1)``? That is the partition which weights of a
graph are farthest from containing ``each`` spanning trees (Nash-Williams; Tutte). It is found by as many smallest cuts as there are
vertices (Cunningham, "Optimal attack and reinforcement of a network", 1985; Barahona, "Separating from the dominant of the
spanning tree polytope", 1992), as a Dilworth truncation: f(S) = half the weight out of S - each is submodular on sets that meet. Vertices
get values y, one after the other, as large as ``y(S) <= f(S)`` allows for all sets S of those so far; sets for which it is equal may
be joined where they meet, and those that remain in the end are the groups.
"""

from __future__ import annotations

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.max_flow import min_cut


def narrowest_partition(
    count: int, first: IntArray, second: IntArray, weight: FloatArray, each: float
) -> tuple[IntArray, float]:
    """Group of every vertex, by its smallest member, and by how much the weight between groups falls short of ``each * (groups - 1)``.

    Parameters
    ----------
    count
        Number of vertices.
    first, second, weight
        Ends and weight, not negative, of every edge, in either direction and as often as one likes, [edge].
    each
        Weight that every group but one is worth.

    Returns
    -------
    tuple
        The groups, [vertex], and the shortfall: 0 if no partition falls short, when all vertices may be one group.
    """
    key, place = np.unique(np.minimum(first, second) * count + np.maximum(first, second), return_inverse=True)
    one, other, half = key // count, key % count, np.bincount(place, weight, minlength=len(key)) / 2
    degree = np.bincount(one, half, count) + np.bincount(other, half, count)
    values, group_of = np.zeros(count), np.arange(count)
    values[0] = degree[0] - each
    for vertex in range(1, count):
        inside = other <= vertex  # the larger end of every edge
        tails, heads, joined = one[inside], other[inside], half[inside]
        outside = degree - np.bincount(tails, joined, count) - np.bincount(heads, joined, count)
        before, sink = np.arange(vertex), count
        gains = before[values[:vertex] > 0]
        # A vertex with a value above 0 is better inside the set, and one with a value below 0 outside.
        leaves = np.append(np.maximum(0.0, outside[:vertex]) + np.maximum(0.0, -values[:vertex]), outside[vertex])
        found = min_cut(
            np.concatenate([tails, heads, np.full(len(gains), vertex), before, [vertex]]),
            np.concatenate([heads, tails, gains, np.full(vertex + 1, sink)]),
            np.concatenate([joined, joined, values[gains], np.maximum(0.0, leaves)]),
            vertex,
            sink,
        )
        values[vertex] = found.flow - each - float(np.maximum(values[:vertex], 0.0).sum())
        tight = np.flatnonzero(found.near[: vertex + 1])
        met = np.isin(group_of, group_of[tight])
        group_of[met] = group_of[met].min()
    return group_of, max(0.0, -(float(values.sum()) + each))
