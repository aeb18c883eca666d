"""Logs of nccl-tests and rccl-tests: the times of one collective over sizes, as their programs print them.

Old and new versions are read: with and without the columns ``redop`` and ``root``, with ``error`` or ``#wrong``, with lines of NCCL or
of a launcher between the rows. ``mpirun --tag-output`` and ``srun --label`` mark each line with its rank; the marks are dropped.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from taccl_py.collective import Kind, parse_kind
from taccl_py.errors import InputError
from taccl_py.jsonio import read_text

_MARK = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>:\s?|\s*\d+:\s)")
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)?)_perf\b")
_RANK = re.compile(r"^#\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+(\d+)\s+on\s+(\S+)", re.IGNORECASE)
_COLUMNS = re.compile(r"^#\s*size\s+count\b")
_UNITS = re.compile(r"^#\s*\(B\)\s")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\b")
_GB_PER_S = 1000.0  # bytes per microsecond
_MOST_OFF = 2.0  # factor between a printed algbw and size over time, above which units cannot be right
_CHECKED_GBPS = 1.0  # printed bandwidths below it are too coarse to compare


@dataclass(frozen=True, slots=True)
class LogRow:
    """Times of one size.

    Attributes
    ----------
    size_bytes
        Size as nccl-tests counts it.
    out_of_place_us, in_place_us
        Time of a call; None if that side was not run.
    """

    size_bytes: int
    out_of_place_us: float | None
    in_place_us: float | None


@dataclass(frozen=True, slots=True)
class Log:
    """Times of one collective.

    Attributes
    ----------
    path
        File that it was read from.
    kind
        The collective; None if the log does not name its program.
    num_ranks
        Number of ranks; None if the log has no ``# Rank`` lines.
    num_processes
        Number of processes that drove them; None likewise.
    rows
        Rows in the order of the log.
    """

    path: str
    kind: Kind | None
    num_ranks: int | None
    num_processes: int | None
    rows: tuple[LogRow, ...]

    @property
    def gpus_per_process(self) -> int:
        """GPUs that one process drove; 1 if the log does not say it."""
        if not self.num_ranks or not self.num_processes:
            return 1
        return max(1, round(self.num_ranks / self.num_processes))


def read_log(path: Path, kind: Kind | None = None) -> Log:
    """Read the log of one run.

    Parameters
    ----------
    path
        The log.
    kind
        Collective that the log has to be of; None is any. A log that does not name its program is taken for one of it.

    Raises
    ------
    InputError
        If the file cannot be read, is no such log, is of another collective, has no rows or a row that is cut off, or has times that
        are not microseconds or results that are wrong.
    """
    return parse_log(read_text(path), str(path), kind)


def parse_log(text: str, path: str, kind: Kind | None = None) -> Log:
    """Read a log from its text; see `read_log`."""
    reader = _LogReader(path)
    for line in text.splitlines():
        reader.take(_MARK.sub("", line, count=1))
    return reader.log(kind)


@dataclass(slots=True)
class _LogReader:
    """Reads one log line by line."""

    path: str
    programs: set[str] = field(default_factory=set)
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    has_units: bool = False
    rows: list[LogRow] = field(default_factory=list)

    def take(self, line: str) -> None:
        self.programs.update(_PROGRAM.findall(line))
        if rank := _RANK.match(line):
            self.ranks[int(rank[1])] = (rank[3], rank[2])
        elif _COLUMNS.match(line):
            columns = line.lstrip("# ").split()
            if self.columns:
                self.fail("holds several tables; give each run a log of its own")
            if columns.count("time") not in (1, 2):
                self.fail(f"has a table with the columns {', '.join(columns)}, of which none is a time")
            self.columns = columns
        elif self.columns and not self.has_units and _UNITS.match(line):
            self._take_units(line)
        elif self.columns and self.has_units and _ROW.match(line):
            self.rows.append(self._row(line.split()))

    def _take_units(self, line: str) -> None:
        units = re.findall(r"\(([^)]*)\)", line)
        times = [unit for unit in units if unit.endswith("s") and unit not in ("elements", "GB/s")]
        if set(times) != {"us"}:
            self.fail(f"has times in {' and '.join(sorted(set(times))) or 'no unit'}; microseconds (us) are needed")
        self.has_units = True

    def _row(self, words: Sequence[str]) -> LogRow:
        if len(words) < len(self.columns):
            self.fail(f"is cut off in the row of {words[0]} bytes; give the whole log, or delete that row")
        named = list(zip(self.columns, words, strict=False))
        sides = [place for place, (name, _) in enumerate(named) if name == "time"]
        times = [self._side(int(words[0]), dict(named[place : place + 4])) for place in sides]
        return LogRow(int(words[0]), times[0], times[1] if len(times) > 1 else None)

    def _side(self, size_bytes: int, values: dict[str, str]) -> float | None:
        """Time of one side of the table; None if it was not run."""
        where = f"the row of {size_bytes} bytes"
        if values["time"].upper() == "N/A":
            return None
        time_us, algbw = self._number(values["time"], where), self._number(values.get("algbw", "0"), where)
        if values.get("#wrong", "0").isdigit() and int(values.get("#wrong", "0")):
            self.fail(
                f"has wrong results in {where} (#wrong {values['#wrong']}); times of a wrong algorithm say nothing"
            )
        if time_us == 0 and size_bytes == 0:
            return None
        if time_us <= 0:
            self.fail(f"has a time of {values['time']} in {where}; microseconds above 0 are needed")
        off = size_bytes / time_us / _GB_PER_S / algbw if algbw >= _CHECKED_GBPS else 1.0
        if not 1 / _MOST_OFF <= off <= _MOST_OFF:
            self.fail(
                f"has a time of {values['time']} beside {values['algbw']} GB/s in {where}, which is not in microseconds; "
                "give the log as it was printed"
            )
        return time_us

    def _number(self, word: str, where: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.fail(f"has {word!r} in {where} where a number is needed")
        return value

    def log(self, asked: Kind | None) -> Log:
        if not self.columns:
            self.fail("is no log of nccl-tests or rccl-tests: it has no line '# size count type ... time algbw busbw'")
        kind = self._kind(asked)
        if not self.has_units:
            self.fail("is truncated: the units line '# (B) (elements) (us) ...' is missing; give the whole log")
        if not any(row.out_of_place_us is not None or row.in_place_us is not None for row in self.rows):
            self.fail("is truncated: it has no rows below its header; give the log of a run that has ended")
        processes = len(set(self.ranks.values()))
        return Log(self.path, kind, len(self.ranks) or None, processes or None, tuple(self.rows))

    def _kind(self, asked: Kind | None) -> Kind | None:
        if len(self.programs) > 1:
            self.fail(
                f"names several programs ({', '.join(sorted(self.programs))}_perf); give each run a log of its own"
            )
        if not self.programs:
            return None
        (program,) = self.programs
        try:
            kind = parse_kind(program)
        except InputError:
            self.fail(f"is a log of {program}_perf, which is no collective; give one of all_reduce_perf and the like")
        if asked is not None and kind is not asked:
            self.fail(f"is a log of {kind} ({program}_perf), and one of {asked} is needed")
        return kind

    def fail(self, what: str) -> NoReturn:
        raise InputError(what, path=self.path)


_TABLE = ("file", "size_bytes", "time_us")


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one algorithm file, from a table.

    Attributes
    ----------
    file
        Name of the file, as the table has it.
    rows
        (size in bytes, microseconds), in the order of the table.
    """

    file: str
    rows: tuple[tuple[int, float], ...]


def read_times(path: Path) -> tuple[Times, ...]:
    """Read a CSV table with the columns ``file``, ``size_bytes`` and ``time_us``; lines that begin with ``#`` are comments.

    Raises
    ------
    InputError
        If the file cannot be read, lacks a column, has no rows, or a number is wrong.
    """
    lines = [line for line in read_text(path).splitlines() if line.strip() and not line.startswith("#")]
    reader = csv.DictReader(io.StringIO("\n".join(lines)))
    missing = [name for name in _TABLE if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"has no column {missing[0]}; a table of times needs {', '.join(_TABLE)}", path=str(path))
    found: dict[str, list[tuple[int, float]]] = {}
    for number, row in enumerate(reader, 1):
        try:
            size, time_us = int(row["size_bytes"]), float(row["time_us"])
        except (TypeError, ValueError):
            size, time_us = 0, 0.0
        if size <= 0 or not (math.isfinite(time_us) and time_us > 0):
            raise InputError(
                f"found size_bytes {row['size_bytes']!r} and time_us {row['time_us']!r}; bytes and microseconds above 0 are needed",
                path=str(path), field=f"row {number}",
            )  # fmt: skip
        found.setdefault(row["file"], []).append((size, time_us))
    if not found:
        raise InputError("has no rows", path=str(path))
    return tuple(Times(name, tuple(rows)) for name, rows in found.items())
