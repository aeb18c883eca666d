"""Lower bound, with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taccl_py.tolerances import BOUND_REACHED


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


def best_of(bounds: Iterable[Bound]) -> Bound:
    """Largest of some bounds, the first of equal ones."""
    return max(bounds, key=lambda bound: bound.time_us, default=Bound(0.0, "nothing has to move"))
