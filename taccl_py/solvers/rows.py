"""Min-max-load linear programs that grow by rows (HiGHS, warm-started).

min T    sum of load * x <= T for every resource,    sum of weight * x >= least for every row,    x >= 0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.counted import new_highs, optimum
from taccl_py.solvers.sparse import Coefficients


@dataclass(frozen=True)
class RowSolution:
    """Optimum with the rows so far.

    Attributes
    ----------
    objective
        T.
    values
        x, [column].
    prices
        Dual price of every resource; they add up to 1.
    worth
        Dual price of every row, in the order in which they were added.
    """

    objective: float
    values: FloatArray
    prices: FloatArray
    worth: FloatArray


class RowProgram:
    """The program with the rows added so far.

    Parameters
    ----------
    loads
        Load of a resource (row) by one unit of a column.
    num_resources, num_columns
        Resources and columns.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """

    def __init__(self, loads: Coefficients, num_resources: int, num_columns: int) -> None:
        highspy, self._highs = new_highs()
        self._resources, self._columns = num_resources, num_columns
        self._infinity = highspy.kHighsInf
        count = num_columns + 1  # the last column is T
        self._highs.addVars(count, np.zeros(count), np.full(count, self._infinity))
        self._highs.changeColCost(num_columns, 1.0)
        row = np.concatenate([loads.row, np.arange(num_resources)])
        column = np.concatenate([loads.column, np.full(num_resources, num_columns)])
        value = np.concatenate([loads.value, np.full(num_resources, -1.0)])
        order = np.lexsort((column, row))
        start = np.searchsorted(row[order], np.arange(num_resources)).astype(np.int32)
        self._highs.addRows(
            num_resources, np.full(num_resources, -self._infinity), np.zeros(num_resources), len(order), start,
            column[order].astype(np.int32), value[order],
        )  # fmt: skip

    def add(self, columns: IntArray, weights: FloatArray, least: float) -> None:
        """Ask for no less than so much in all in these columns, each with a weight."""
        self._highs.addRow(least, self._infinity, len(columns), columns.astype(np.int32), weights)

    def solve(self) -> RowSolution:
        """Optimum with the rows so far."""
        solution = optimum(self._highs)
        duals, values = np.array(solution.row_dual), np.array(solution.col_value)
        prices, worth = np.maximum(0.0, -duals[: self._resources]), np.maximum(0.0, duals[self._resources :])
        total = float(prices.sum())
        if total > 0:
            prices, worth = prices / total, worth / total
        return RowSolution(float(values[-1]), np.maximum(0.0, values[:-1]), prices, worth)
