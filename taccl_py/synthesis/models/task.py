"""Task: what every model gets to solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.routes import Routes


@dataclass(frozen=True)
class ModelTask:
    """A quotient with its costs, and what is known of the answer.

    Attributes
    ----------
    quotient, grid, routes
        The problem, its costs in whole units, and its distances in units.
    predecessor
        Arcs that may be joined into one message, with the arc that they would follow; empty to charge alpha for every chunk.
    lower, upper
        Known bounds on the makespan in units.
    """

    quotient: Quotient
    grid: TimeGrid
    routes: Routes
    predecessor: Mapping[int, int]
    lower: int
    upper: int
