"""What a lower bound is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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


def best_of(bounds: Iterable[Bound]) -> Bound:
    """Largest of some bounds, the first of equal ones."""
    return max(bounds, key=lambda bound: bound.time_us, default=Bound(0.0, "nothing has to move"))
