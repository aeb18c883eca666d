"""Logs of nccl-tests' and rccl-tests' `sendrecv_perf` as samples; logs of their collectives are told from them and refused.

Headers rarely name the program. What the columns say: `sendrecv_perf` alone has equal algbw and busbw, no root and, in old
versions, no redop. An all_reduce_perf of two ranks has equal bandwidths too; it checks results in place, which
`sendrecv_perf` does not (nccl-tests' ``sendrecv.cu``), so that its last column is a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from taccl_py.errors import InputError
from taccl_py.measure.samples import Sample

_COLUMNS = re.compile(r"^#\s*size\s+count\b.*\balgbw\b.*\bbusbw\b")
_STARTING = re.compile(r"^#\s*Collective test starting:\s*(\w+?)_perf\b")
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf\b")
_RANK = re.compile(r"^#\s*Rank\s+([0-9]+)\b", re.IGNORECASE)
_ROW = re.compile(r"^\s*[0-9]+\s+[0-9]+\s+[a-z]\w*\s")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_SENDRECV = "sendrecv"


def is_nccl_tests(lines: Sequence[str]) -> bool:
    """True if lines are a log of nccl-tests or rccl-tests."""
    return any(_COLUMNS.match(line) for line in lines)


def read_sendrecv(lines: Sequence[str], path: str) -> list[Sample]:
    """Samples of `sendrecv_perf`, in which every rank sends to the next at the same time.

    Parameters
    ----------
    lines
        The log, without the marks of a launcher.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If the log is of a collective, of several runs, or of processes that each ran alone, or if a row is cut off.
    """
    named = [int(match[1]) for line in lines if (match := _RANK.match(line))]
    columns = next(line for line in lines if _COLUMNS.match(line)).lstrip("# ").split()
    rows = [_row(line.split(), columns, path) for line in lines if _ROW.match(line)]
    collective = _collective(lines, columns, rows, len(named))
    if collective:
        raise InputError(
            f"is a log of {collective}, whose times are of a collective and no link samples; give it to taccl compare --measured "
            "or taccl runtime fit, and here one of sendrecv_perf",
            path=path,
        )
    ranks = _ranks(named, path)
    samples: list[Sample] = []
    for number, row in enumerate(rows):
        size, time = int(row[0]), row[columns.index("time")]
        time_us = float(time) if _NUMBER.fullmatch(time) else 0.0
        if size > 0 and time_us > 0:
            samples += [Sample(r, (r + 1) % ranks, size, time_us, together=f"ring {number}") for r in range(ranks)]
    return samples


def _ranks(found: Sequence[int], path: str) -> int:
    """Number of ranks of the one run whose lines name these."""
    if not found:
        raise InputError(
            "does not say how many ranks there were; save the whole log, with its lines '# Rank'", path=path
        )
    if set(found) == {0}:
        what = "every process is rank 0" if len(found) > 1 else "there was one rank"
        raise InputError(
            f"is of ranks that each sent to themselves: {what}; build nccl-tests with MPI=1, or run two GPUs or more with -g",
            path=path,
        )
    if len(set(found)) < len(found):
        raise InputError("is of several runs; give each a file of its own", path=path)
    if max(found) >= len(found):
        raise InputError(f"names rank {max(found)} and only {len(found)} ranks; save the whole log", path=path)
    return len(found)


def _row(words: list[str], columns: Sequence[str], path: str) -> list[str]:
    if len(words) <= columns.index("busbw"):
        raise InputError(
            f"is cut off in the row of {words[0]} bytes; save the whole log, or delete that row", path=path
        )
    return words


def _collective(lines: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[str]], ranks: int) -> str:
    """Program that the log is of, where it is not `sendrecv_perf`; empty otherwise."""
    stated = next((match[1] for line in lines if (match := _STARTING.match(line))), "")
    named = stated or next((match[1] for line in lines if (match := _PROGRAM.search(line))), "")
    if stated:
        return "" if stated == _SENDRECV else f"{stated}_perf"
    # Other lines of the log, such as the command, are believed only where columns agree.
    other = (
        f"{named}_perf" if named and named != _SENDRECV else "a collective (its columns are not those of sendrecv_perf)"
    )
    algbw, busbw = columns.index("algbw"), columns.index("busbw")
    if any(row[algbw] != row[busbw] for row in rows) or ("redop" in columns and "root" not in columns):
        return other
    if "root" in columns and any(row[columns.index("root")] != "-1" for row in rows):
        return other
    if ranks == 2 and named != _SENDRECV and (named or _checked_in_place(columns, rows)):
        return f"{named or 'all_reduce'}_perf"
    return ""


def _checked_in_place(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """True if results in place were compared in all rows, by the second of the two columns."""
    if columns.count("#wrong") != 2 or not rows:
        return False
    last = len(columns) - 1 - list(reversed(columns)).index("#wrong")
    return all(len(row) > last and _NUMBER.fullmatch(row[last]) for row in rows)
