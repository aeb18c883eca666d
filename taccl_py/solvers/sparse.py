"""Linear programs given as arrays (HiGHS), solved again after a change of costs or bounds without starting over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.counted import new_highs
from taccl_py.solvers.limits import Limits, run_interruptibly
from taccl_py.work import RATES, count_work

# From this many columns on, interior points with crossover beat the simplex method by far.
_MANY_COLUMNS = 5_000
# Iterations of the simplex method that one of interior points is worth, and what HiGHS takes for no limit.
_STEP_OF_INNER, _MOST_ITERATIONS = 50, 2**31 - 1


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Entries of a matrix; entries of one place are added up."""

    row: IntArray
    column: IntArray
    value: FloatArray

    def above(self, other: Coefficients, num_rows: int) -> Coefficients:
        """These, which are so many rows, and below them those of another matrix."""
        return Coefficients(
            np.concatenate([self.row, other.row + num_rows]),
            np.concatenate([self.column, other.column]),
            np.concatenate([self.value, other.value]),
        )


@dataclass(frozen=True, slots=True)
class Optimum:
    """An optimal solution.

    Attributes
    ----------
    objective
        Its cost.
    values
        Of the columns.
    prices
        Dual values of the rows.
    """

    objective: float
    values: FloatArray
    prices: FloatArray


class SparseProgram:
    """Minimize ``cost @ x`` with ``row_low <= A x <= row_high`` and ``x >= 0``.

    With `inner` the optimum is found by interior points alone: much faster where many columns are equal to others in worth,
    exact to the solver's tolerance only, and in the middle of the optimal ones instead of at a corner.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """

    def __init__(
        self,
        cost: FloatArray,
        matrix: Coefficients,
        row_low: FloatArray,
        row_high: FloatArray,
        *,
        inner: bool = False,
    ) -> None:
        self._highspy, self._highs = new_highs()
        if inner or len(cost) >= _MANY_COLUMNS:
            self._highs.setOptionValue("solver", "ipm")
        if inner:
            self._highs.setOptionValue("run_crossover", "off")
        self._num_columns = len(cost)
        infinity = self._highspy.kHighsInf
        self._highs.addVars(len(cost), np.zeros(len(cost)), np.full(len(cost), infinity))
        self._highs.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost)
        key, place = np.unique(matrix.row * len(cost) + matrix.column, return_inverse=True)
        summed = np.bincount(place, matrix.value, minlength=len(key))
        start = np.searchsorted(key, np.arange(len(row_low)) * len(cost)).astype(np.int32)
        index = (key % len(cost)).astype(np.int32)
        low, high = np.maximum(row_low, -infinity), np.minimum(row_high, infinity)
        self._highs.addRows(len(row_low), low, high, len(key), start, index, summed)

    def set_costs(self, cost: FloatArray) -> None:
        """Minimize something else from now on."""
        self._highs.changeColsCost(self._num_columns, np.arange(self._num_columns, dtype=np.int32), cost)
        # The optimum at hand is still feasible: the primal simplex method goes on from there.
        self._highs.setOptionValue("solver", "simplex")
        self._highs.setOptionValue("simplex_strategy", 4)

    def set_upper(self, column: int, value: float) -> None:
        """Bound a column from above."""
        self._highs.changeColBounds(column, 0.0, value)

    def add_row(self, columns: IntArray, low: float) -> None:
        """Ask for no less than so much in all in these columns."""
        index = columns.astype(np.int32)
        self._highs.addRow(low, self._highspy.kHighsInf, len(index), index, np.ones(len(index)))

    def solve(self, limits: Limits) -> Optimum | None:
        """Solve; None if the limits came first or there is no solution."""
        kinds = self._highspy.cb.HighsCallbackType
        watched = (kinds.kCallbackSimplexInterrupt, kinds.kCallbackIpmInterrupt)

        def watch(kind: Any, _message: str, _out: Any, into: Any, _data: Any) -> None:
            if kind in watched and limits.stop.is_set():
                into.user_interrupt = True

        self._highs.setCallback(watch, None)
        for watched_kind in watched:
            self._highs.startCallback(watched_kind)
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + limits.clock_seconds)
        places = self._highs.getNumRow() + self._highs.getNumCol()
        if limits.by_work:
            most = max(1, min(_MOST_ITERATIONS, int(limits.seconds / (RATES.linear * places))))
            self._highs.setOptionValue("simplex_iteration_limit", most)
            self._highs.setOptionValue("ipm_iteration_limit", most)
        self._highs.setOptionValue("random_seed", limits.seed)
        run_interruptibly(self._highs.run, limits.stop, lambda: None)
        info = self._highs.getInfo()
        iterations = max(0, info.simplex_iteration_count) + _STEP_OF_INNER * max(0, info.ipm_iteration_count)
        count_work("linear", iterations * places)
        if self._highs.getModelStatus() != self._highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._highs.getSolution()
        return Optimum(
            float(self._highs.getObjectiveValue()), np.array(solution.col_value), np.array(solution.row_dual)
        )
