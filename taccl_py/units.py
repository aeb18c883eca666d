"""Sizes, times and rates: the only place where text becomes a quantity and a quantity becomes text.

Units inside the program are always bytes, microseconds and GB/s, with 1 MB = 10^6 bytes and 1 GB = 10^9 bytes.
Beta is microseconds per megabyte, so a bandwidth in GB/s is ``1000 / beta``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from taccl_py.errors import InputError

BYTES_PER_MB = 1_000_000
# What a GPU's thread moves at once: offsets and lengths in MSCCL++'s plans are multiples of it.
ALIGNED_BYTES = 16

# Largest accepted values, on the command line and in files alike. They are far beyond any machine: a larger number is a slip of
# the pen, and would only overflow or fill the memory later, where nobody could say which field it came from.
MAX_SIZE_BYTES = 1 << 62
MAX_COST_US = 1e12  # alpha, latency, and beta per megabyte: eleven days
MIN_COST_US = 1e-30  # of those that are not 0
MAX_SEED = (1 << 31) - 1  # solvers take no larger ones
MAX_RANKS = 1 << 16
_RANK_DIGITS = 9  # more than MAX_RANKS has; far more digits than this cannot even be converted
MAX_CHUNK_COPIES = 1 << 28  # chunks times ranks

_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50, "e": 1 << 60,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50, "eib": 1 << 60,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15, "eb": 10**18,
}  # fmt: skip
_SIZE_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes of a size such as ``1MiB`` (2^20), ``1MB`` (10^6) or ``1M`` (2^20, as nccl-tests reads it).

    Raises
    ------
    InputError
        If the text is not a positive size of a whole number of bytes, or is beyond all bounds.
    """
    match = _SIZE_TEXT.fullmatch(text)
    unit = _SIZE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InputError(f"{_quoted(text)} is not a size; write for example 4096, 64KiB, 1MB or 1G")
    size = Decimal(match.group(1)) * unit
    if size > MAX_SIZE_BYTES:
        raise InputError(f"{_quoted(text)} is too large; sizes are at most {MAX_SIZE_BYTES} bytes")
    if size < 1 or size % 1:
        raise InputError(f"{_quoted(text)} is not a positive whole number of bytes")
    return int(size)


def _quoted(text: str) -> str:
    """The text between quotes, cut where nobody would read on."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes from the smallest to the largest, both included."""

    low_bytes: int
    high_bytes: int

    def doubled(self) -> list[int]:
        """The smallest, twice that, and so on."""
        steps = (self.high_bytes // self.low_bytes).bit_length()
        return [self.low_bytes << step for step in range(steps)]

    def stepped(self, factor: float) -> list[int]:
        """Both ends and sizes between them, evenly spread on a logarithmic scale and at most `factor` apart."""
        ratio = self.high_bytes / self.low_bytes
        steps = math.ceil(math.log(ratio) / math.log(factor) - 1e-9)
        inner = (round(self.low_bytes * ratio ** (i / steps)) for i in range(1, steps))
        return sorted({self.low_bytes, *inner, self.high_bytes})


def parse_size_range(text: str) -> SizeRange:
    """Range of a text such as ``1KiB:1GiB``.

    Raises
    ------
    InputError
        If the text is not two sizes, the smaller first.
    """
    first, colon, last = text.partition(":")
    if not colon:
        raise InputError(f"{text!r} is not a range; write for example 1KiB:1GiB")
    sizes = SizeRange(parse_size(first), parse_size(last))
    if sizes.low_bytes > sizes.high_bytes:
        raise InputError(f"{text!r} counts down; write the smaller size first")
    return sizes


@dataclass(frozen=True, slots=True)
class Left:
    """Sizes that are left to NCCL, of one collective, or of all for the empty word."""

    kind: str
    sizes: SizeRange


def parse_left(text: str) -> Left:
    """Sizes left to NCCL, of a text such as ``16MiB:1GiB`` or ``allreduce:16MiB:1GiB``.

    Raises
    ------
    InputError
        If the text is not a range, with or without a word before it.
    """
    first, colon, rest = text.partition(":")
    if colon and ":" in rest:
        return Left(first.strip().lower(), parse_size_range(rest))
    return Left("", parse_size_range(text))


def nearest_within(size_bytes: int, min_bytes: int, max_bytes: int) -> int:
    """Size nearest to another one, between two that are both inclusive; a largest one of 0 is no limit."""
    return min(max(size_bytes, min_bytes), max_bytes or max(size_bytes, min_bytes))


def format_size(size_bytes: float) -> str:
    """Text of a size in binary units alone, with four significant digits: ``1MiB``, ``976.6KiB`` (1 MB), ``512B``, ``1.5GiB``."""
    for factor, unit in (
        (1 << 60, "EiB"),
        (1 << 50, "PiB"),
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ):
        # A size that would be rounded to 1024 of the next smaller unit is 1 of this one.
        if size_bytes >= 0.99995 * factor:
            digits = 4 if size_bytes < 999.95 * factor else 5
            return f"{size_bytes / factor:.{digits}g}{unit}"
    return f"{size_bytes:.4g}B"


def format_time(time_us: float) -> str:
    """Time with three to four significant digits and its unit: ``929.8 us``, ``12.34 ms``."""
    if time_us < 1_000:
        return f"{time_us:.4g} us"
    if time_us < 1_000_000:
        return f"{time_us / 1_000:.4g} ms"
    return f"{time_us / 1_000_000:.4g} s"


def format_rate(rate_gbps: float) -> str:
    """Bandwidth in GB/s with three significant digits, or more before the point: ``0.0382 GB/s``, ``2030 GB/s``."""
    return f"{rate_gbps:.0f} GB/s" if rate_gbps >= 999.5 else f"{rate_gbps:.3g} GB/s"


def format_gap(gap: float) -> str:
    """Relative gap as a percentage."""
    return f"{100 * gap:.2f} %"


def relative_gap(time_us: float, bound_us: float) -> float:
    """Relative distance of a time from a lower bound, at least 0; 0 too where the bound says nothing."""
    return max(0.0, time_us / bound_us - 1) if bound_us > 0 else 0.0


def format_count(number: int, word: str) -> str:
    """Return a number of things, of which a word with a plural in s names one: ``1 channel``, ``2 channels``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def natural_key(text: str) -> list[str | int]:
    """Key that sorts texts with the numbers in them as numbers: ``rank 2 in``, ``rank 10 in``."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", text))]


def algbw_gbps(size_bytes: float, time_us: float) -> float:
    """Algorithm bandwidth as nccl-tests counts it: the whole buffer divided by the time."""
    return size_bytes / time_us / 1_000


def parse_ranks(text: str) -> tuple[int, ...]:
    """Ranks of a list such as ``0-7`` or ``0,2,4-6``, in the order written, without repetition.

    Raises
    ------
    InputError
        If the text is not such a list, names a rank twice, or a rank beyond all bounds.
    """
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*0*([0-9]+)\s*(?:-\s*0*([0-9]+)\s*)?", part)
        if match is None:
            raise InputError(f"{_quoted(text)} is not a list of ranks; write for example 0-7 or 0,2,4-6")
        ends = [number for number in match.groups() if number is not None]
        if max(map(len, ends)) > _RANK_DIGITS or int(ends[-1]) >= MAX_RANKS:
            raise InputError(f"{_quoted(part.strip())} is beyond the largest rank, which is {MAX_RANKS - 1}")
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            raise InputError(f"{part.strip()!r} counts down; write the smaller rank first")
        ranks.extend(range(first, last + 1))
    if len(set(ranks)) != len(ranks):
        raise InputError(f"{_quoted(text)} names a rank twice")
    return tuple(ranks)


def format_ranks(ranks: Sequence[int]) -> str:
    """Compact text of a list of ranks, the inverse of `parse_ranks`."""
    parts: list[str] = []
    start = previous = None
    for rank in [*ranks, None]:
        if start is not None and rank is not None and previous is not None and rank == previous + 1:
            previous = rank
            continue
        if start is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = rank
    return ",".join(parts)
