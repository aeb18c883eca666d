"""Min-max-load linear programs that grow by columns (HiGHS, warm-started).

min T    sum of x over the columns of a share = 1,    sum of load * x <= T for every resource,    x >= 0

Where T need not be less than a goal, columns that load resources less can be preferred: then min T + lean * sum of all loads, T >= goal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.solvers.counted import new_highs, optimum


@dataclass(frozen=True)
class MasterSolution:
    """Optimum over the columns so far.

    Attributes
    ----------
    objective
        T.
    cost
        T and what the loads cost.
    amounts
        Value of every column, in the order in which they were added.
    prices
        Dual price of every resource; they add up to 1, or to less where T is at its goal.
    worth
        Dual price of every share: a column cheaper than that, with what its loads cost, improves T or the cost.
    """

    objective: float
    cost: float
    amounts: FloatArray
    prices: FloatArray
    worth: FloatArray


class ColumnProgram:
    """The program with the columns added so far.

    Parameters
    ----------
    demands
        Of every share, instead of 1.
    num_resources
        Resources that columns load.
    goal
        T below which nothing is gained.
    lean
        Cost of a unit of load, in units of T.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """

    def __init__(self, demands: Sequence[float], num_resources: int, *, goal: float = 0.0, lean: float = 0.0) -> None:
        highspy, self._highs = new_highs()
        self._shares, self._goal, self._lean = len(demands), goal, lean
        nothing = (0, np.zeros(0, dtype=np.int32), np.zeros(0))
        for demand in demands:
            self._highs.addRow(demand, demand, *nothing)
        for _ in range(num_resources):
            self._highs.addRow(-highspy.kHighsInf, 0.0, *nothing)
        rows = np.arange(self._shares, self._shares + num_resources, dtype=np.int32)
        self._infinity = highspy.kHighsInf
        self._highs.addCol(1.0, goal, self._infinity, num_resources, rows, np.full(num_resources, -1.0))

    def add(self, share: int, load: FloatArray) -> None:
        """Add a column: it serves a share and loads every resource by ``load``."""
        used = np.flatnonzero(load)
        rows = np.concatenate(([share], self._shares + used)).astype(np.int32)
        cost = self._lean * float(load.sum())
        self._highs.addCol(cost, 0.0, self._infinity, len(rows), rows, np.concatenate(([1.0], load[used])))

    def settle(self, demands: Sequence[float], load: FloatArray) -> None:
        """Change what is left of every share, and the load that is there already."""
        for share, demand in enumerate(demands):
            self._highs.changeRowBounds(share, float(demand), float(demand))
        for resource, amount in enumerate(load.tolist()):
            self._highs.changeRowBounds(self._shares + resource, -self._infinity, -amount)

    def solve(self) -> MasterSolution:
        """Optimum over the columns so far; every share needs at least one."""
        solution = optimum(self._highs)
        duals = np.array(solution.row_dual)
        values = np.array(solution.col_value)
        prices = np.maximum(0.0, -duals[self._shares :])
        total = prices.sum()
        if total > 0 and not self._goal:
            prices = prices / total
        cost = float(self._highs.getInfo().objective_function_value)
        return MasterSolution(float(values[0]), cost, values[1:], prices, duals[: self._shares])
