"""Cost curve: the time of one fixed algorithm as a function of its size.

With the decisions of a schedule fixed (see `taccl_py.simulate.schedule_replay`) every chain of messages that wait for
each other takes ``a + b * size``, and the whole takes as long as its longest chain. The time is therefore a convex,
increasing, piecewise linear function of the size: the upper envelope of those lines, computed here and not sampled.

The envelope over a range is found by recursion. The longest chains at both ends of the range give two lines. If the
longest chain at the size where they cross is no longer than they are, the crossing is a breakpoint and the range is
done; otherwise it is a third line, and each half of the range is treated alike.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from taccl_py.errors import InputError
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.schedule_replay import AffineTime, ReplayTurn, decisions
from taccl_py.units import BYTES_PER_MB, format_size

# Times that differ by less than this part of themselves differ by rounding only.
_ROUNDING = 1e-11


@dataclass(frozen=True, slots=True)
class CurvePiece:
    """Sizes for which the time is one line.

    Attributes
    ----------
    from_bytes, to_bytes
        Sizes as nccl-tests counts them, both included.
    intercept_us, us_per_mb
        The time is ``intercept_us + us_per_mb * megabytes``.
    """

    from_bytes: float
    to_bytes: float
    intercept_us: float
    us_per_mb: float

    def time_us(self, size_bytes: float) -> float:
        """Time of a size on this line."""
        return self.intercept_us + self.us_per_mb * size_bytes / BYTES_PER_MB


@dataclass(frozen=True)
class CostCurve:
    """Time as a function of size.

    Attributes
    ----------
    pieces
        In order of size; each begins where the one before it ends, with a larger ``us_per_mb``.
    """

    pieces: tuple[CurvePiece, ...]

    @property
    def min_bytes(self) -> float:
        """Smallest size."""
        return self.pieces[0].from_bytes

    @property
    def max_bytes(self) -> float:
        """Largest size."""
        return self.pieces[-1].to_bytes

    @cached_property
    def _starts(self) -> list[float]:
        return [piece.from_bytes for piece in self.pieces]

    def time_us(self, size_bytes: float) -> float:
        """Time of a size, in bytes as nccl-tests counts them.

        Raises
        ------
        InputError
            If the size is outside of the curve's range.
        """
        if not self.min_bytes <= size_bytes <= self.max_bytes:
            raise InputError(
                f"{format_size(size_bytes)} is outside of the curve, which goes from {format_size(self.min_bytes)} to "
                f"{format_size(self.max_bytes)}"
            )
        return self.pieces[bisect.bisect_right(self._starts, size_bytes) - 1].time_us(size_bytes)

    def __str__(self) -> str:
        """Text form: one line for each piece."""
        return "".join(
            f"{format_size(piece.from_bytes):>10} .. {format_size(piece.to_bytes):<10} "
            f"{piece.intercept_us:.6g} us + {piece.us_per_mb:.6g} us/MB\n"
            for piece in self.pieces
        )


def cost_curve(schedule: Schedule, min_bytes: float, max_bytes: float) -> CostCurve:
    """Time of a valid schedule's decisions for all sizes of a range.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    min_bytes, max_bytes
        The range, in bytes of the whole collective as nccl-tests counts them, both included.

    Raises
    ------
    InputError
        If the range is empty or not positive.
    """
    if not (math.isfinite(max_bytes) and 0 < min_bytes <= max_bytes):
        raise InputError(
            f"sizes from {min_bytes} to {max_bytes} are no range; both must be positive, the smaller first"
        )
    turns, num_resources = decisions(schedule), schedule.topology.num_resources
    sorts: dict[tuple[AffineTime, ...], int] = {}
    sort_of = [sorts.setdefault(turn.occupancies, len(sorts)) for turn in turns]
    # From here on sizes are megabytes of one chunk, which is what chains are measured in.
    chunks = schedule.collective.chunks_per_size
    lines = _envelope(
        lambda chunk_mb: _longest_chain(turns, sort_of, [*sorts], num_resources, chunk_mb),
        min_bytes / BYTES_PER_MB / chunks,
        max_bytes / BYTES_PER_MB / chunks,
    )
    ends = [_crossing(left, right) * BYTES_PER_MB * chunks for left, right in pairwise(lines)]
    return CostCurve(
        tuple(
            CurvePiece(start, end, line.fixed_us, line.us_per_mb / chunks)
            for line, start, end in zip(lines, [min_bytes, *ends], [*ends, max_bytes], strict=True)
        )
    )


# A line, and its value at the size at which chains are compared: ``(at_us, fixed_us, us_per_mb)``.
_ValuedLine = tuple[float, float, float]


def _longest_chain(
    turns: Sequence[ReplayTurn],
    sort_of: Sequence[int],
    sorts: Sequence[tuple[AffineTime, ...]],
    num_resources: int,
    chunk_mb: float,
) -> AffineTime:
    """Cost of the chain of messages that ends last with chunks of `chunk_mb` megabytes; many turns have occupancies of one sort."""
    nothing = (0.0, 0.0, 0.0)
    free: list[_ValuedLine] = [nothing] * num_resources
    arrivals: list[_ValuedLine] = []
    slowest_of = [max(occupancies, key=lambda line: line.at(chunk_mb)) for occupancies in sorts]
    longest = nothing
    for turn, sort in zip(turns, sort_of, strict=True):
        start = nothing
        # Of those that are equally late the first one counts, whatever comes in what order.
        for resource in turn.resources:
            if free[resource][0] > start[0]:
                start = free[resource]
        for other in turn.waits_for:
            if arrivals[other][0] > start[0]:
                start = arrivals[other]
        _, fixed_us, us_per_mb = start
        for resource, occupancy in zip(turn.resources, turn.occupancies, strict=True):
            fixed, slope = fixed_us + occupancy.fixed_us, us_per_mb + occupancy.us_per_mb
            free[resource] = (fixed + slope * chunk_mb, fixed, slope)
        slowest = slowest_of[sort]
        fixed, slope = fixed_us + slowest.fixed_us + turn.latency_us, us_per_mb + slowest.us_per_mb
        arrivals.append((fixed + slope * chunk_mb, fixed, slope))
        if arrivals[-1][0] > longest[0]:
            longest = arrivals[-1]
    return AffineTime(longest[1], longest[2])


def _envelope(longest: Callable[[float], AffineTime], low: float, high: float) -> tuple[AffineTime, ...]:
    """Lines of a convex function over a range, in order, from a function that gives one that touches it at a point."""
    first, last = longest(low), longest(high)
    touching = [first]
    pending = [(first, last)]
    while pending:
        left, right = pending.pop()
        if right.us_per_mb <= left.us_per_mb * (1 + _ROUNDING):
            continue
        # A rounding error may put a crossing at an end of the range just outside of it.
        crossing = min(max(_crossing(left, right), low), high)
        middle = longest(crossing)
        if middle.at(crossing) <= left.at(crossing) * (1 + _ROUNDING):
            touching.append(right)
        else:
            pending.append((middle, right))
            pending.append((left, middle))
    return _without_points(touching, low, high)


def _without_points(touching: Sequence[AffineTime], low: float, high: float) -> tuple[AffineTime, ...]:
    """Leave out lines that touch the function in one point of the range only."""
    kept: list[AffineTime] = []
    starts: list[float] = []
    for line in touching:
        start = low
        while kept:
            start = _crossing(kept[-1], line)
            if start > starts[-1] * (1 + _ROUNDING):
                break
            kept.pop()
            starts.pop()
            start = low
        if start < high * (1 - _ROUNDING) or not kept:
            kept.append(line)
            starts.append(start)
    return tuple(kept)


def _crossing(left: AffineTime, right: AffineTime) -> float:
    """Chunk size at which two lines of different slope meet."""
    return (left.fixed_us - right.fixed_us) / (right.us_per_mb - left.us_per_mb)
