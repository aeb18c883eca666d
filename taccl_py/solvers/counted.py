"""HiGHS as every program here begins it, and runs on programs that have an optimum, whose work is counted."""

from __future__ import annotations

from typing import Any

from taccl_py.errors import import_package
from taccl_py.work import count_work


def new_highs() -> tuple[Any, Any]:
    """HiGHS' module, and an empty program of it, which says nothing and keeps to one thread.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    highspy = import_package("highspy", "highspy", "pip install 'highspy<1.14'")
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    return highspy, highs


def optimum(highs: Any) -> Any:
    """Run a solver and return its solution.

    Parameters
    ----------
    highs
        A ``highspy.Highs`` with a program that has an optimum.

    Raises
    ------
    ValueError
        If it ends with another status, which is a mistake in the program.
    """
    highs.run()
    iterations = highs.getInfo().simplex_iteration_count
    count_work("linear", max(0, iterations) * (highs.getNumRow() + highs.getNumCol()))
    status = highs.getModelStatus()
    if status != type(status).kOptimal:
        raise ValueError(f"HiGHS ended a program that has an optimum with {highs.modelStatusToString(status)}")
    return highs.getSolution()
