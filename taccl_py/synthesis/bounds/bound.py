"""Lower bound, with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from taccl_py.tolerances import BOUND_REACHED

# Relative precision of a time that is found by halving.
_PRECISION = 1e-12


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound on the time of every schedule.

    Attributes
    ----------
    time_us
        No schedule is faster.
    reason
        What it comes from, for people.
    """

    time_us: float
    reason: str

    def is_reached_by(self, time_us: float) -> bool:
        """True if nothing is faster than what takes so long."""
        return time_us <= self.time_us * (1 + BOUND_REACHED)


def raised(bound: Bound, others: Iterable[Bound]) -> Bound:
    """A bound, or the best of others if it is above the bound by more than rounding: one question has one answer and one reason."""
    best = best_of(others)
    return bound if bound.is_reached_by(best.time_us) else best


def last_not_enough(is_enough: Callable[[float], bool]) -> float:
    """The largest time, but for rounding, that is not enough, where any later one than what is enough is so too; infinite if none is."""
    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
        if math.isinf(high):
            return math.inf
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return low


def best_of(bounds: Iterable[Bound]) -> Bound:
    """Largest of some bounds, the first of equal ones."""
    return max(bounds, key=lambda bound: bound.time_us, default=Bound(0.0, "nothing has to move"))
