"""Runs of HiGHS on programs that have an optimum, whose work is counted."""

from __future__ import annotations

from typing import Any

from taccl_py.work import count_work


def optimum(highs: Any, optimal: Any) -> Any:
    """Run a solver and return its solution.

    Parameters
    ----------
    highs
        A ``highspy.Highs`` with a program that has an optimum.
    optimal
        Its status for one.

    Raises
    ------
    ValueError
        If it ends with another status, which is a mistake in the program.
    """
    highs.run()
    iterations = highs.getInfo().simplex_iteration_count
    count_work("linear", max(0, iterations) * (highs.getNumRow() + highs.getNumCol()))
    status = highs.getModelStatus()
    if status != optimal:
        raise ValueError(f"HiGHS ended a program that has an optimum with {highs.modelStatusToString(status)}")
    return highs.getSolution()
