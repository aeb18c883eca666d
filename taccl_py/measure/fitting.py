"""Alpha and beta of measured times: a line that outliers do not bend, with its confidence and the sizes where it breaks.

Errors of times are taken to be relative, as those of networks are: every point is weighted by 1 / time. Points whose relative
error is more than `_OUTLIER` robust deviations are left out (median absolute deviation), and the line is drawn again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.errors import InputError
from taccl_py.measure.samples import Sample
from taccl_py.topology.template import AlphaBeta
from taccl_py.units import format_count

_OUTLIER = 5.0
_LEAST_DEVIATION = 0.01  # of clocks and rounding; a smaller deviation makes no outlier
_ROUNDS = 8
_POINTS_OF_A_SEGMENT = 3  # distinct sizes
_BREAK_GAIN = 2.0  # by how much two lines must be nearer than one, beside what their extra freedom explains
_LEAST_BREAK_ERROR = 0.02  # a line that is off by less than this is not broken
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # 95 %, 1 to 10 degrees of freedom


@dataclass(frozen=True, slots=True)
class FittedLine:
    """A fitted line.

    Attributes
    ----------
    alpha_us, beta_us_per_mb
        The line; neither is negative.
    alpha_error_us, beta_error_us_per_mb
        Half the width of the 95 % confidence interval; None with as few points as unknowns.
    residual
        Root mean square of the relative errors, to a millionth: what is below comes of rounding.
    points, outliers
        How many samples were used, and how many left out.
    least_bytes, most_bytes
        Sizes of the messages that it was fitted to.
    """

    alpha_us: float
    beta_us_per_mb: float
    alpha_error_us: float | None
    beta_error_us_per_mb: float | None
    residual: float
    points: int
    outliers: int
    least_bytes: int
    most_bytes: int

    @property
    def cost(self) -> AlphaBeta:
        """The line alone."""
        return AlphaBeta(self.alpha_us, self.beta_us_per_mb)


@dataclass(frozen=True, slots=True)
class Fit:
    """One line, or several that follow each other from small to large sizes (where a protocol changes)."""

    lines: tuple[FittedLine, ...]

    @property
    def breaks_bytes(self) -> tuple[int, ...]:
        """Smallest sizes of all lines but the first."""
        return tuple(line.least_bytes for line in self.lines[1:])

    def at(self, size_bytes: int | None) -> FittedLine:
        """Line for messages of a size; None: that of the largest sizes."""
        if size_bytes is None:
            return self.lines[-1]
        return next((line for line in reversed(self.lines) if line.least_bytes <= size_bytes), self.lines[0])


def fit_samples(samples: Sequence[Sample]) -> Fit:
    """Return the line, or the lines, of samples that are all of one kind of link.

    Parameters
    ----------
    samples
        At least two sizes.

    Raises
    ------
    InputError
        If there are fewer sizes.
    """
    megabytes = np.array([one.megabytes for one in samples])
    times = np.array([one.message_us for one in samples])
    order = np.argsort(megabytes, kind="stable")
    megabytes, times = megabytes[order], times[order]
    sizes = np.unique(megabytes)
    if len(sizes) < 2:
        raise InputError(f"has {format_count(len(sizes), 'size')}; alpha and beta need at least two, small and large")
    return Fit(tuple(_segments(megabytes, times)))


def fit_rates(samples: Sequence[Sample], alpha_us: float) -> Fit:
    """Return the line of bandwidths: beta is that of the median, alpha is given.

    Parameters
    ----------
    samples
        At least one.
    alpha_us
        Value to take for alpha.
    """
    betas = np.array([one.message_us / one.megabytes for one in samples])
    beta = float(np.median(betas))
    sizes = [round(one.megabytes * 1e6) for one in samples]
    residual = _root_mean_square(beta / betas - 1)
    return Fit((FittedLine(alpha_us, beta, None, None, residual, len(samples), 0, min(sizes), max(sizes)),))


def _segments(megabytes: FloatArray, times: FloatArray) -> list[FittedLine]:
    whole = _line(megabytes, times)
    sizes = np.unique(megabytes)
    if whole.residual < _LEAST_BREAK_ERROR and not whole.outliers:
        return [whole]
    best, found = _score([whole], megabytes, times), [whole]
    for place in range(_POINTS_OF_A_SEGMENT, len(sizes) - _POINTS_OF_A_SEGMENT + 1):
        left = megabytes < sizes[place]
        lines = [_line(megabytes[left], times[left]), _line(megabytes[~left], times[~left])]
        score = _score(lines, megabytes, times)
        if score * _BREAK_GAIN < best and (len(found) == 1 or score < _score(found, megabytes, times)):
            found = lines
    if len(found) == 1:
        return found
    left = megabytes * 1e6 < found[1].least_bytes - 0.5
    return [*_segments(megabytes[left], times[left]), *_segments(megabytes[~left], times[~left])]


def _score(lines: Sequence[FittedLine], megabytes: FloatArray, times: FloatArray) -> float:
    """Median relative error, with what the freedom of the lines explains taken out."""
    errors = np.empty(len(times))
    for line in lines:
        here = (megabytes * 1e6 >= line.least_bytes - 0.5) & (megabytes * 1e6 <= line.most_bytes + 0.5)
        predicted = line.alpha_us + line.beta_us_per_mb * megabytes[here]
        errors[here] = np.abs(predicted / times[here] - 1)
    freedom = max(1, len(times) - 3 * len(lines) + 1)
    return float(np.mean(np.minimum(errors, 1.0))) * len(times) / freedom + 1e-6


def _line(megabytes: FloatArray, times: FloatArray) -> FittedLine:
    used = np.ones(len(times), dtype=bool)
    weights = np.ones(len(times))
    alpha, beta = _solve(megabytes, times, weights)
    for _ in range(_ROUNDS):
        errors = (alpha + beta * megabytes) / times - 1
        deviation = max(1.4826 * float(np.median(np.abs(errors - np.median(errors)))), _LEAST_DEVIATION)
        # Bisquare weights find the line of the many first; what it leaves far off is an outlier.
        weights = np.maximum(1 - (errors / (_OUTLIER * deviation)) ** 2, 0.0) ** 2
        if len(np.unique(megabytes[weights > 0])) < 2:
            break
        used = weights > 0
        alpha, beta = _solve(megabytes, times, weights)
    if len(np.unique(megabytes[used])) < 2:
        used[:] = True
    alpha, beta = _solve(megabytes[used], times[used], np.ones(int(used.sum())))
    errors = (alpha + beta * megabytes[used]) / times[used] - 1
    alpha_error, beta_error = _confidence(megabytes[used], times[used], errors)
    return FittedLine(
        alpha, beta, alpha_error, beta_error, _root_mean_square(errors), int(used.sum()), int((~used).sum()),
        round(float(megabytes.min()) * 1e6), round(float(megabytes.max()) * 1e6),
    )  # fmt: skip


def _root_mean_square(errors: FloatArray) -> float:
    return round(float(np.sqrt(np.mean(errors**2))), 6)


def _solve(megabytes: FloatArray, times: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Alpha and beta with the least weighted squares of relative errors, neither of them negative."""
    root = np.sqrt(weights) / times
    rows = np.column_stack([root, megabytes * root])
    (alpha, beta), *_ = np.linalg.lstsq(rows, np.sqrt(weights), rcond=None)
    if alpha < 0:
        return 0.0, float(np.dot(rows[:, 1], np.sqrt(weights)) / np.dot(rows[:, 1], rows[:, 1]))
    if beta < 0:
        return float(np.dot(rows[:, 0], np.sqrt(weights)) / np.dot(rows[:, 0], rows[:, 0])), 0.0
    return float(alpha), float(beta)


def _confidence(megabytes: FloatArray, times: FloatArray, errors: FloatArray) -> tuple[float | None, float | None]:
    freedom = len(times) - 2
    if freedom < 1:
        return None, None
    rows = np.column_stack([1 / times, megabytes / times])
    variance = float(np.sum(errors**2)) / freedom
    spread = np.sqrt(np.maximum(np.diag(np.linalg.pinv(rows.T @ rows)) * variance, 0.0))
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.7 / freedom
    return float(factor * spread[0]), float(factor * spread[1])
