"""Calls that do not end because ranks have made different ones: they are found, and ended with an error on all ranks.

Nothing is exchanged while calls go well. A thread notices that a call has not ended for some seconds; it writes into the store of
torch's process groups which call that is, and reads what the others have written there. Where their calls of the same number differ,
the connections are closed, and the call ends with an error.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_LOG = logging.getLogger("taccl_py.torch")
_EXPLAIN_SECONDS = 3.0  # in which ranks whose connection was closed find out why
_NAP_SECONDS = 0.05
_PATIENT_STALLS = 12  # after as many times the stall the log tells for whom a rank waits


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call that has begun.

    Attributes
    ----------
    place
        The same on all ranks for a communicator and a group.
    rank, num_ranks
        This rank in the group, and how many there are.
    text
        The call, and what carries it out.
    recent
        Numbers and texts of the last calls on the group, this one too: ranks may be some calls apart.
    close
        Closes the connections of the group, so that all who wait get an error.
    """

    place: str
    rank: int
    num_ranks: int
    text: str
    recent: Sequence[tuple[int, str]]
    close: Callable[[], None]


class CallWatch:
    """Watches the calls of a process.

    Parameters
    ----------
    stall_seconds
        After which a call that has not ended is looked into.
    """

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._store: Any = None
        self._open: OpenCall | None = None
        self._stopped = threading.Event()
        self._closing = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, store: Any) -> None:
        """Begin to watch, the first time.

        Parameters
        ----------
        store
            What all ranks write into and read from.
        """
        self._store = store
        if self._thread is None and store is not None:
            self._thread = threading.Thread(target=self._watch, name="taccl_py.torch", daemon=True)
            self._thread.start()
            atexit.register(self.stop)

    def stop(self) -> None:
        """End the thread."""
        atexit.unregister(self.stop)
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=_EXPLAIN_SECONDS)

    def begin(self, call: OpenCall) -> None:
        """Watch a call."""
        self._open = call

    def end(self) -> None:
        """The call has ended."""
        self._open = None

    def explain(self, call: OpenCall) -> str:
        """Why a call has failed: what other ranks did instead; empty if nobody tells."""
        with self._closing:
            self._publish(call)
        deadline = time.monotonic() + _EXPLAIN_SECONDS
        while time.monotonic() < deadline and self._store is not None:
            found, missing = self._compare(call)
            if found or not missing:
                return found
            time.sleep(_NAP_SECONDS)
        return ""

    def _watch(self) -> None:
        last: OpenCall | None = None
        closed: OpenCall | None = None
        since, told = 0.0, False
        while not self._stopped.wait(min(1.0, self._stall_seconds / 4)):
            call, now = self._open, time.monotonic()
            if call is None or call is not last:
                last, since, told = call, now, False
                continue
            if call is closed or now - since < self._stall_seconds:
                continue
            self._publish(call)
            found, missing = self._compare(call)
            if found:
                with self._closing:
                    if self._open is call:
                        _LOG.error("rank %d: %s", call.rank, found)
                        call.close()
                        closed = call
            elif not told and missing and now - since > _PATIENT_STALLS * self._stall_seconds:
                told = True
                _LOG.warning("rank %d waits in %s; not there yet: ranks %s", call.rank, call.text, missing)

    def _publish(self, call: OpenCall) -> None:
        with contextlib.suppress(RuntimeError, AttributeError):
            self._store.set(f"{call.place}/{call.rank}", json.dumps(list(call.recent)))

    def _compare(self, call: OpenCall) -> tuple[str, list[int]]:
        """Difference of a recent call of another rank from this one's of the same number, and ranks that are not known to be here."""
        missing, own = [], dict(call.recent)
        for rank in range(call.num_ranks):
            if rank == call.rank:
                continue
            theirs = self._read(f"{call.place}/{rank}")
            for number in sorted(own.keys() & theirs.keys()):
                if own[number] != theirs[number]:
                    both = f"rank {call.rank}: {own[number]}; rank {rank}: {theirs[number]}"
                    return f"ranks make different calls: {both}", []
            if max(own) not in theirs:
                missing.append(rank)
        return "", missing

    def _read(self, key: str) -> dict[int, str]:
        with contextlib.suppress(RuntimeError, AttributeError, ValueError):
            if self._store.check([key]):
                return {number: text for number, text in json.loads(self._store.get(key))}
        return {}
