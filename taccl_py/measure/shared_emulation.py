"""An emulated machine that several processes of one computer share: when each of their messages would arrive on it.

All processes map one file. For every link and port it holds the intervals in which messages occupy it; a message takes the
first interval, from when its flow is ready, that is free on its link and all its ports. Times are multiplied by a scale, so that
what a busy computer adds (tenths of milliseconds) is little beside them.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from taccl_py.measure.experiment import MeasuredFlow
from taccl_py.topology.model import Topology

_MOST_INTERVALS = 4096  # of one link or port at a time; those that touch are one
_ROUNDING_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class ThrottledTimes:
    """Times at which a message leaves its link and arrives, in seconds of the clock that all processes share."""

    free_seconds: float
    due_seconds: float


class Throttle:
    """One process's hold on the machine.

    Parameters
    ----------
    topology
        Emulated machine.
    path
        File that all processes map; the first one makes it with `create`.
    scale
        Seconds here for a second there.
    """

    # Longer messages are cut when they are really sent: the time is the emulated machine's, and the memory this computer's.
    MOST_PAYLOAD_BYTES: ClassVar[int] = 65_536

    def __init__(self, topology: Topology, path: Path, scale: float) -> None:
        self.topology = topology
        self.scale = scale
        self._counts, self._busy = _mapped(topology, path)
        self._file = path.open("rb")
        self._threads = threading.Lock()

    @staticmethod
    def create(topology: Topology, path: Path) -> None:
        """Make the file, with nothing in flight.

        Parameters
        ----------
        topology
            Emulated machine.
        path
            The file.
        """
        with path.open("wb") as file:
            file.truncate(topology.num_resources * (8 + 16 * _MOST_INTERVALS))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def clear(self) -> None:
        """Forget all messages."""
        with self._locked():
            self._counts[:] = 0

    def send(self, flow: MeasuredFlow, size_bytes: int, ready_seconds: float) -> ThrottledTimes:
        """Take what a message needs, from the first time at which all of it is free.

        Parameters
        ----------
        flow
            From where to where; there is such a link.
        size_bytes
            Size of the message.
        ready_seconds
            Not before then.
        """
        topology, seconds = self.topology, 1e-6 * self.scale
        link = topology.links_between[flow.src, flow.dst][0]
        needs = {
            resource: topology.occupancy_us(resource, size_bytes) * seconds for resource in topology.resources_of[link]
        }
        with self._locked():
            start, last = ready_seconds, None
            while start != last:
                last = start
                for resource, length in needs.items():
                    start = self._first_free(resource, start, length)
            for resource, length in needs.items():
                self._occupy(resource, start, start + length)
        return ThrottledTimes(start + needs[link], start + topology.message_us(link, size_bytes) * seconds)

    def _first_free(self, resource: int, start: float, length: float) -> float:
        for begin, end in self._busy[resource, : self._counts[resource]]:
            if end <= start:
                continue
            if begin >= start + length - _ROUNDING_SECONDS:
                break
            start = float(end)
        return start

    def _occupy(self, resource: int, begin: float, end: float) -> None:
        if end <= begin:
            return
        count = int(self._counts[resource])
        rows = [(float(a), float(b)) for a, b in self._busy[resource, :count]]
        rows.append((begin, end))
        rows.sort()
        merged = [rows[0]]
        for first, second in rows[1:]:
            if first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], second))
            else:
                merged.append((first, second))
        merged = merged[-_MOST_INTERVALS:]
        self._busy[resource, : len(merged)] = merged
        self._counts[resource] = len(merged)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def _mapped(topology: Topology, path: Path) -> tuple[Any, Any]:
    """Number of intervals of every link and port, and the intervals."""
    resources = topology.num_resources
    counts = np.memmap(path, dtype=np.int64, mode="r+", shape=(resources,))
    busy = np.memmap(path, dtype=np.float64, mode="r+", offset=8 * resources, shape=(resources, _MOST_INTERVALS, 2))
    return counts, busy
