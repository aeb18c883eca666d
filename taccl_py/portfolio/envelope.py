"""Lower envelope: which of several algorithms is the fastest at every size of a range.

Every curve is piecewise linear, so between neighbouring breakpoints of all curves the question is the lower
envelope of straight lines, and the crossings are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from taccl_py.simulate.cost_curve import CostCurve, CurvePiece
from taccl_py.tolerances import LAST_DIGITS
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True, slots=True)
class SizeSpan:
    """Whole sizes for which one algorithm is used.

    Attributes
    ----------
    choice
        Index of its curve.
    min_bytes, max_bytes
        Both included.
    """

    choice: int
    min_bytes: int
    max_bytes: int


def lower_envelope(
    curves: Sequence[CostCurve], min_bytes: int, max_bytes: int, tolerance: float = 0.0
) -> list[SizeSpan]:
    """Disjoint, exhaustive spans of whole sizes, as few as the tolerance allows.

    Parameters
    ----------
    curves
        Times of the algorithms; all of them cover the range. Of equal ones the earlier is used.
    min_bytes, max_bytes
        The range, both included.
    tolerance
        An algorithm may be this much slower than the fastest one where that saves a span.
    """
    cells = _cells(curves, min_bytes, max_bytes)
    spans: list[SizeSpan] = []
    position = 0
    while position < len(cells) - 1:
        reaches = [_reach(curve, curves, cells, position, tolerance) for curve in curves]
        reach = max([*reaches, position + 1])
        middle = (cells[position] + cells[position + 1]) / 2
        # Rounding may leave no curve that is the fastest at both ends of a cell.
        choice = reaches.index(reach) if reach in reaches else _fastest(curves, middle)
        low = min_bytes if not spans else spans[-1].max_bytes + 1
        high = max_bytes if reach == len(cells) - 1 else int(cells[reach])
        if high >= low:
            spans.append(SizeSpan(choice, low, high))
        position = reach
    return spans or [SizeSpan(_fastest(curves, float(min_bytes)), min_bytes, max_bytes)]


def _reach(
    curve: CostCurve, curves: Sequence[CostCurve], cells: Sequence[float], position: int, tolerance: float
) -> int:
    """Furthest cell border up to which a curve is fast enough, from a border on.

    Both it and the fastest are straight within a cell, so it is enough to look at the borders.
    """
    reach = position
    for border in range(position, len(cells)):
        best = min(other.time_us(cells[border]) for other in curves)
        if curve.time_us(cells[border]) > best * (1 + max(tolerance, LAST_DIGITS)):
            break
        reach = border
    return reach


def _fastest(curves: Sequence[CostCurve], size_bytes: float) -> int:
    return min(range(len(curves)), key=lambda index: curves[index].time_us(size_bytes))


def _cells(curves: Sequence[CostCurve], min_bytes: int, max_bytes: int) -> list[float]:
    """Borders between which every curve is straight and no two that matter cross."""
    borders = {float(min_bytes), float(max_bytes)}
    borders |= {
        piece.from_bytes for curve in curves for piece in curve.pieces if min_bytes < piece.from_bytes < max_bytes
    }
    straight = sorted(borders)
    for low, high in pairwise(straight):
        borders.update(_crossings([_piece_at(curve, (low + high) / 2) for curve in curves], low, high))
    return sorted(borders)


def _piece_at(curve: CostCurve, size_bytes: float) -> CurvePiece:
    return next(piece for piece in curve.pieces if size_bytes <= piece.to_bytes)


def _crossings(lines: Sequence[CurvePiece], low: float, high: float) -> list[float]:
    """Sizes within (low, high) at which the fastest of some lines changes."""
    found: list[float] = []
    at = low
    line = min(lines, key=lambda piece: (piece.time_us(low), piece.us_per_mb))
    while True:
        flatter = [
            (cross, other.us_per_mb, other)
            for other in lines
            if other.us_per_mb < line.us_per_mb and (cross := _crossing(line, other)) is not None and at < cross < high
        ]
        if not flatter:
            return found
        at, _, line = min(flatter, key=lambda entry: entry[:2])
        found.append(at)


def _crossing(one: CurvePiece, other: CurvePiece) -> float | None:
    slope = one.us_per_mb - other.us_per_mb
    return (other.intercept_us - one.intercept_us) / slope * BYTES_PER_MB if slope else None
