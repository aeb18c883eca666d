"""Samples: how long messages took from one rank to another, and the CSV file that keeps them.

Columns ``src,dst,size_bytes,time_us`` are needed. ``serial`` is how many messages went one after the other (default 1),
``joined`` how many went at once (default 1), both in `time_us` all together; rows with the same ``together`` ran at the same
time (default: alone).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import NoReturn

from taccl_py.errors import InputError
from taccl_py.units import BYTES_PER_MB, MAX_COST_US, MAX_RANKS, MAX_SIZE_BYTES

_NEEDED, _OPTIONAL = ("src", "dst", "size_bytes", "time_us"), ("serial", "joined", "together")
_MOST_MESSAGES = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement; a message of the cost model takes ``alpha + beta * megabytes``.

    Attributes
    ----------
    src, dst
        Ranks.
    size_bytes
        Size of one message.
    time_us
        Time of all of them.
    serial
        Messages one after the other, each of which pays alpha.
    joined
        Messages at once, which pay alpha together.
    together
        Label of what ran at the same time; empty if it ran alone.
    rate_only
        Whether the time is that of a bandwidth of copies or messages in flight, which says nothing of alpha. Not in CSV files.
    """

    src: int
    dst: int
    size_bytes: int
    time_us: float
    serial: int = 1
    joined: int = 1
    together: str = ""
    rate_only: bool = False

    @property
    def megabytes(self) -> float:
        """Size of one message of the cost model."""
        return self.joined * self.size_bytes / BYTES_PER_MB

    @property
    def message_us(self) -> float:
        """Time of one message of the cost model."""
        return self.time_us / self.serial


def read_samples(text: str, path: str) -> tuple[Sample, ...]:
    """Samples of a CSV text.

    Parameters
    ----------
    text
        The text, with a header and perhaps the mark that spreadsheets put before it; lines that begin with # are comments, and semicolons or
        tabs may stand for commas.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If a column is missing or unknown, or a cell is wrong; it names the row, counted from 1 after the header.
    """
    lines = [
        line for line in text.removeprefix("\ufeff").splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    delimiter = next((sign for sign in ",;\t" if lines and sign in lines[0]), ",")
    try:
        return _samples_of(csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True), path)
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}; correct it", path=path) from None


def _samples_of(reader: csv.DictReader[str], path: str) -> tuple[Sample, ...]:
    columns = [name.strip() for name in reader.fieldnames or []]
    for name in _NEEDED:
        if name not in columns:
            raise InputError(
                f"has no column {name}; the header needs {', '.join(_NEEDED)} and may have {', '.join(_OPTIONAL)}",
                path=path,
            )
    for name in columns:
        if name not in (*_NEEDED, *_OPTIONAL):
            raise InputError(
                f"has an unknown column {name!r}; remove it ({', '.join((*_NEEDED, *_OPTIONAL))})", path=path
            )
    reader.fieldnames = columns
    rows = [
        _SampleRow({key: value for key, value in row.items() if key}, path, number)
        for number, row in enumerate(reader, 1)
    ]
    if not rows:
        raise InputError("has no sample; add rows below the header", path=path)
    return tuple(row.sample() for row in rows)


class _SampleRow:
    """One line of a CSV file."""

    def __init__(self, cells: dict[str, str | None], path: str, number: int) -> None:
        self._cells = cells
        self._path = path
        self._number = number

    def sample(self) -> Sample:
        """Sample of the line."""
        src, dst = self._integer("src", 0, MAX_RANKS - 1), self._integer("dst", 0, MAX_RANKS - 1)
        if src == dst:
            self._fail("dst", f"found {dst}, the sender itself; a sample is of two ranks")
        return Sample(
            src, dst, self._integer("size_bytes", 0, MAX_SIZE_BYTES), self._time(),
            self._integer("serial", 1, _MOST_MESSAGES, 1), self._integer("joined", 1, _MOST_MESSAGES, 1),
            (self._cells.get("together") or "").strip(),
        )  # fmt: skip

    def _integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        text = (self._cells.get(name) or "").strip()
        if not text and default is not None:
            return default
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            self._fail(name, f"found {text[:40]!r}, a whole number from {least} to {most} is needed")
        return int(text)

    def _time(self) -> float:
        text = (self._cells.get("time_us") or "").strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MAX_COST_US:
            self._fail("time_us", f"found {text[:40]!r}, a number of microseconds above 0 is needed")
        return value

    def _fail(self, name: str, what: str) -> NoReturn:
        raise InputError(what, path=self._path, field=f"row {self._number}.{name}")
