"""When to stop: time, work, and the user."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

_T = TypeVar("_T")
# Whether time is up or the user wants an end.
Over = Callable[[], bool]
# Signals with which the user, a cluster's scheduler or a closed terminal asks a program to end.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long after a time limit what is under way may take to come to its end: a part of it, and so many seconds at least.
_GRACE, _LEAST_GRACE_SECONDS = 0.25, 2.0


@dataclass(frozen=True)
class Limits:
    """Limits of one solve.

    Attributes
    ----------
    seconds
        Wall-clock time; what is found by then is returned.
    work
        Deterministic amount of work (CP-SAT's deterministic time); a solve that ends by it ends the same way everywhere.
    workers
        Threads.
    seed
        Random seed.
    stop
        Set by the user's interrupt; solvers look at it often.
    scheduler
        Address of a Dask scheduler whose workers take independent starts; empty for processes here.
    """

    seconds: float = 60.0
    work: float | None = None
    workers: int = 2
    seed: int = 0
    stop: threading.Event = field(default_factory=threading.Event, compare=False)
    scheduler: str = ""

    def within(self, seconds: float, work: float | None = None) -> Limits:
        """Return the same limits with less time and the given amount of work."""
        return replace(self, seconds=max(0.05, min(self.seconds, seconds)), work=work)

    @property
    def grace_seconds(self) -> float:
        """How long what is under way may take to come to its end; the user who wants one does not wait for more than the least."""
        return _LEAST_GRACE_SECONDS if self.stop.is_set() else max(_LEAST_GRACE_SECONDS, _GRACE * self.seconds)

    def to_lower(self) -> Over:
        """When to look for nothing that is better to lower any more, counted from the beginning of the search."""
        return self.countdown(grace_seconds=self.grace_seconds)

    def countdown(self, *, least_seconds: float = 0.0, grace_seconds: float = 0.0) -> Over:
        """Whether time is up, counted from now on, or the user wants an end.

        Parameters
        ----------
        least_seconds
            It is not before so many seconds have passed.
        grace_seconds
            Time is not up before so many more seconds have passed; the user need not wait for that.
        """
        begun = time.monotonic()

        def over() -> bool:
            passed = time.monotonic() - begun
            return passed >= least_seconds and (passed >= self.seconds + grace_seconds or self.stop.is_set())

        return over


def never() -> bool:
    """No end, an `Over`."""
    return False


def until(over: Over, found: Iterable[_T]) -> Iterator[_T]:
    """What is found before time is over, one at least."""
    for each in found:
        yield each
        if over():
            break


class Deadline:
    """Counts down from a time limit."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())


def run_interruptibly(solve: Callable[[], None], stop: threading.Event, halt: Callable[[], None]) -> None:
    """Run a solve in a thread so that signals reach Python meanwhile; call `halt` once `stop` is set.

    An exception of the solve is raised here.
    """
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            solve()
        except BaseException as error:  # carried over to the caller's thread
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    halted = False
    while thread.is_alive():
        thread.join(0.05)
        if stop.is_set() and not halted:
            halt()
            halted = True
    if failures:
        raise failures[0]
