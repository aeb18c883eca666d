"""Whole numbers in place of fractions that add up to as much: those with the largest remainders are rounded up."""

from __future__ import annotations

import math
from collections.abc import Sequence


def apportion(sizes: Sequence[float], units: int) -> list[int]:
    """Whole numbers that are nearly in proportion and add up to so many."""
    total = sum(sizes)
    return to_whole([size * units / total for size in sizes], units)


def to_whole(exact: Sequence[float], units: int) -> list[int]:
    """Whole numbers nearest to others that add up to so many; of equal remainders the first is rounded up."""
    counts = [math.floor(each) for each in exact]
    order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: units - sum(counts)]:
        counts[i] += 1
    return counts
