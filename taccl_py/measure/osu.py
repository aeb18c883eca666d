"""Outputs of the OSU micro-benchmarks `osu_latency` and `osu_bw` as samples; the others measure no single link."""

from __future__ import annotations

import re
from collections.abc import Sequence

from taccl_py.errors import InputError
from taccl_py.measure.samples import Sample

_WINDOW = 64  # messages in flight that osu_bw has by default
_TITLE = re.compile(r"^\s*#\s*OSU\s+(?P<title>.*?)(?:\s+v[0-9][\w.]*)?\s*$")
_TWO_RANKS = re.compile(r"(?:MPI|NCCL|RCCL|XCCL)(?:-[A-Z]+)?\s+(?P<what>Latency|Bandwidth)\s+Test", re.IGNORECASE)
_WINDOW_SIZE = re.compile(r"^\s*#.*\bwindow size\s*[:=]?\s*([0-9]+)", re.IGNORECASE)
_ROW = re.compile(r"\s*([0-9]+)\s+([0-9]+(?:\.[0-9]+)?)(?:\s|$)")
_WHY_NOT = (
    (r"bi-?directional", "sums both directions"),
    (r"multi", "is of several pairs at once"),
    (r"all|bcast|reduce|gather|scatter|barrier|neighbor", "times a collective"),
)


def is_osu(lines: Sequence[str]) -> bool:
    """True if lines are what a program of the OSU micro-benchmarks printed."""
    return any(_TITLE.match(line) for line in lines)


def read_osu(lines: Sequence[str], path: str) -> list[Sample]:
    """Samples of ranks 0 and 1, of one output or several one after the other.

    Parameters
    ----------
    lines
        The output.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If an output is of another program than `osu_latency` and `osu_bw`.
    """
    samples: list[Sample] = []
    what, window = "", _WINDOW
    for line in lines:
        title = _TITLE.match(line)
        if title is not None:
            what, window = _what(title["title"], path), _WINDOW
        elif (stated := _WINDOW_SIZE.match(line)) is not None:
            window = int(stated[1]) or _WINDOW
        elif what and (row := _ROW.match(line)) is not None:
            samples += _sample(what, int(row[1]), float(row[2]), window)
    return samples


def _what(title: str, path: str) -> str:
    two = _TWO_RANKS.fullmatch(title)
    if two is not None:
        return two["what"].lower()
    why = next(
        (words for pattern, words in _WHY_NOT if re.search(pattern, title, re.IGNORECASE)), "is no test of a link"
    )
    raise InputError(f"is of the OSU {title[:60]}, which {why}; give what osu_latency and osu_bw print", path=path)


def _sample(what: str, size_bytes: int, value: float, window: int) -> list[Sample]:
    if value <= 0 or (size_bytes == 0 and what == "bandwidth"):
        return []
    if what == "latency":
        return [Sample(0, 1, size_bytes, value)]
    # MB/s are bytes per microsecond.
    return [Sample(0, 1, size_bytes, window * size_bytes / value, joined=window)]
