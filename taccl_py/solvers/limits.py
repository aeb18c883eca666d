"""When to stop: time, work, and the user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace


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
