"""Weights of the parts of a plan, by how much each should carry: a linear program of few columns.

Parts that load the damaged links and ports alike are one column. The program minimizes the load of the busiest link or port; of all
weights that do so, those of which the largest is least are taken, as a plan that was even should stay so where it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.sizes import ConstraintRows


@dataclass(frozen=True)
class Params:
    """Numbers of the linear program for weights.

    Attributes
    ----------
    evenness
        Part of the least load by which weights may load more that are more even. Guess.
    """

    evenness: float = 1e-4


PARAMS = Params()


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Blocks of a plan that have one weight.

    Attributes
    ----------
    group
        Number of the data of which it is a part.
    amount
        Data of all its blocks at weight 1.
    load_us
        Time that each resource is busy with them at weight 1.
    """

    group: int
    amount: float
    load_us: FloatArray


def best_weights(parts: Sequence[PlanPart], amounts: Mapping[int, float], limits: Limits) -> tuple[float, ...] | None:
    """Weight of every part for which the busiest resource is busy for the shortest time; None if there are none, or the limits came first.

    Parameters
    ----------
    parts
        What has a weight.
    amounts
        Data of each group, which its parts carry together.
    limits
        Time, and the user's interrupt.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    loads = np.array([part.load_us for part in parts]).T
    loads = np.unique(loads[loads.max(axis=1) > 0], axis=0)
    scale_us = float(loads.sum(axis=1).max(initial=0.0)) or 1.0
    least = _solved(parts, amounts, loads / scale_us, None, limits)
    if least is None:
        return None
    even = _solved(parts, amounts, loads / scale_us, float(least[-1]) * (1 + PARAMS.evenness), limits)
    chosen = (least if even is None else even)[: len(parts)].clip(min=0.0)
    return tuple(chosen.tolist())


def _solved(
    parts: Sequence[PlanPart], amounts: Mapping[int, float], loads: FloatArray, most: float | None, limits: Limits
) -> FloatArray | None:
    """Weights, and behind them the least load, or the least largest weight where loads have a limit."""
    rows, last = ConstraintRows(), len(parts)
    for load in loads:
        terms = [(column, -float(value)) for column, value in enumerate(load) if value]
        rows.add(terms if most is not None else [*terms, (last, 1.0)], 0.0 if most is None else -most)
    if most is not None:
        for column in range(last):
            rows.add([(last, 1.0), (column, -1.0)], 0.0)
    for group in sorted({part.group for part in parts}):
        terms = [(column, part.amount) for column, part in enumerate(parts) if part.group == group]
        rows.add(terms, amounts[group], amounts[group])
    optimum = rows.least(last, limits)
    return None if optimum is None else optimum.values
