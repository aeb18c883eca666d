"""Maximum flow and minimum cut (OR-tools' push-relabel)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.errors import import_package

# Capacities become whole numbers: the supply is this many units.
_UNITS = 1 << 40


@dataclass(frozen=True)
class MinCut:
    """A smallest cut.

    Attributes
    ----------
    flow
        Largest flow, up to rounding of the capacities.
    near
        Whether a vertex is on the source's side, [vertex].
    """

    flow: float
    near: BoolArray


def min_cut(tail: IntArray, head: IntArray, capacity: FloatArray, source: int, sink: int) -> MinCut:
    """Separate the sink from the source.

    Parameters
    ----------
    tail, head, capacity
        Arcs; a capacity may be infinite, but not those of all arcs that leave the source.
    source, sink
        Vertices; there are as many vertices as the largest number among all of them says.

    Raises
    ------
    PackageMissing
        If OR-tools is not installed.
    """
    supply = float(capacity[tail == source].sum())
    near = np.zeros(int(max(tail.max(), head.max(), source, sink)) + 1, dtype=bool)
    if supply <= 0:
        near[source] = True
        return MinCut(0.0, near)
    scale = _UNITS / supply
    whole = np.minimum(np.rint(np.minimum(capacity, 2 * supply) * scale), 2 * _UNITS).astype(np.int64)
    network = _solver(tail, head, whole)
    network.solve(source, sink)
    near[network.get_source_side_min_cut()] = True
    return MinCut(network.optimal_flow() / scale, near)


class FlowNetwork:
    """Arcs with whole capacities that change from one maximum flow to the next.

    Parameters
    ----------
    tail, head, capacity
        Arcs; no capacity is above `UNLIMITED`, and only a few are that large.

    Raises
    ------
    PackageMissing
        If OR-tools is not installed.
    """

    UNLIMITED = 1 << 40

    def __init__(self, tail: IntArray, head: IntArray, capacity: IntArray) -> None:
        self._solver = _solver(tail, head, capacity)

    def limit(self, arc: int, capacity: int) -> None:
        """Give an arc another capacity."""
        self._solver.set_arc_capacity(arc, capacity)

    def flow(self, source: int, sink: int) -> int:
        """The largest flow."""
        self._solver.solve(source, sink)
        return int(self._solver.optimal_flow())


def _solver(tail: IntArray, head: IntArray, capacity: IntArray) -> Any:
    network = import_package("ortools.graph.python.max_flow", "OR-tools", "pip install ortools").SimpleMaxFlow()
    network.add_arcs_with_capacity(tail.astype(np.int32), head.astype(np.int32), capacity)
    return network
