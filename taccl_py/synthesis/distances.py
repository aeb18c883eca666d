"""Distances over arrays of arcs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taccl_py.arrays import FloatArray, IntArray


def distances(
    count: int, tail: IntArray, head: IntArray, starts: Sequence[int], length: FloatArray | float = 1.0
) -> FloatArray:
    """Length of the shortest path from any of some vertices to every vertex, infinite where there is none, [vertex].

    Parameters
    ----------
    count
        Number of vertices.
    tail, head
        Ends of every arc, [arc].
    starts
        Vertices at distance 0.
    length
        Of every arc, none negative, [arc]; or of all of them, so that arcs are counted.
    """
    found = np.full(count, np.inf)
    found[list(starts)] = 0.0
    while True:
        before = found.copy()
        np.minimum.at(found, head, before[tail] + length)
        if np.array_equal(before, found):
            return found
