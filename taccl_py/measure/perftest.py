"""Outputs of perftest's `ib_write_bw`, `ib_write_lat` and their like for sends, between two hosts, as samples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from taccl_py.errors import InputError
from taccl_py.measure.samples import Sample

_TITLE = re.compile(
    r"^\s*(RDMA_Write(?:_with_imm)?|RDMA_Read|Send|Atomic\w*(?: \w+)?) (.*?)(BW|Latency) Test\s*$", re.IGNORECASE
)
_COLUMNS = re.compile(r"^\s*#\s*bytes\s+#\s*iterations\b", re.IGNORECASE)
_RATES = re.compile(r"BW average\s*\[(\w+)/sec\]", re.IGNORECASE)
# Bytes per microsecond; MB/sec of perftest are MiB (``perftest_resources.c``: the report format divides by 0x100000).
_UNITS = {"gb": 125.0, "mb": (1 << 20) / 1e6, "mib": (1 << 20) / 1e6}


def is_perftest(lines: Sequence[str]) -> bool:
    """True if lines are what a program of perftest printed."""
    return any(_TITLE.match(line) for line in lines) and any(_COLUMNS.match(line) for line in lines)


def read_perftest(lines: Sequence[str], path: str) -> list[Sample]:
    """Samples from rank 0 to rank 1.

    Latencies are those of a message, half of the round trip. Bandwidths are of many messages in flight, so the largest size
    says beta and none says alpha.

    Parameters
    ----------
    lines
        The output.
    path
        File name for error messages.

    Raises
    ------
    InputError
        If the test is bidirectional, or neither of writes nor of sends, or its unit is unknown.
    """
    title = next(match for line in lines if (match := _TITLE.match(line)))
    if "bidirectional" in title[2].lower():
        raise InputError("sums both directions; run ib_write_bw without -b", path=path)
    if not title[1].lower().startswith(("rdma_write", "send")):
        raise InputError(
            f"is of {title[1]}, which is no message; give what ib_write_bw and ib_write_lat print", path=path
        )
    start = next(place for place, line in enumerate(lines) if _COLUMNS.match(line))
    words = [line.split() for line in lines[start + 1 :]]
    rows = [row for row in words if len(row) >= 4 and row[0].isdecimal() and row[1].isdecimal()]
    if title[3].lower() == "latency":
        column = _latency_column(lines[start])
        return [Sample(0, 1, int(row[0]), float(row[column])) for row in rows if float(row[column]) > 0]
    unit = _RATES.search(lines[start])
    scale = _UNITS.get(unit[1].lower()) if unit else None
    if scale is None:
        raise InputError("has no column 'BW average' in Gb/sec, MB/sec or MiB/sec; save the whole output", path=path)
    measured = [(int(row[0]), float(row[3]) * scale) for row in rows if float(row[3]) > 0]
    return [Sample(0, 1, size, size / rate, rate_only=True) for size, rate in sorted(measured)[-1:]]


def _latency_column(header: str) -> int:
    """Place of the typical latency, or of the average where a run of fixed duration has no other."""
    names = re.findall(r"#\s*\w+|[\w.%]+(?: percentile)?\[usec\]|[\w.]+", header)
    wanted = next((i for i, name in enumerate(names) if name.startswith("t_typical")), None)
    return wanted if wanted is not None else next((i for i, name in enumerate(names) if name.startswith("t_avg")), 2)
