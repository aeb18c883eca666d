"""Time that this process has waited for a processor that others had, as Linux counts it."""

from __future__ import annotations

import os
from pathlib import Path

_COUNTS = Path("/proc/self/schedstat")  # nanoseconds run, nanoseconds waited, turns; scheduler/sched-stats of Linux
_MOST_BYTES = 128


class Waiting:
    """Counts from when it is made; where Linux does not count, no process ever waits."""

    def __init__(self) -> None:
        self._file = _COUNTS.open("rb", buffering=0) if _COUNTS.exists() else None

    def waited_us(self) -> float:
        """Microseconds that the process has waited so far; only differences mean anything."""
        if self._file is None:
            return 0.0
        words = os.pread(self._file.fileno(), _MOST_BYTES, 0).split()
        return int(words[1]) / 1e3

    def close(self) -> None:
        """Let go of what the counts are read from."""
        if self._file is not None:
            self._file.close()
