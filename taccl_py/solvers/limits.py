"""Limits of a search: time, work, and the user.

Budgets are in seconds. Those of an effort are counted work (`taccl_py.work`): what ends by them ends the same way on every machine. Those
of a time limit are of the clock.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from taccl_py.work import work_seconds

_T = TypeVar("_T")
# In a process of a pool: set when all is to end.
STOP = threading.Event()
# Test for the end: true once time is up or the user wants an end.
Over = Callable[[], bool]
# Signals with which the user, a cluster's scheduler or a closed terminal asks a program to end.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Time after the limit that running work may take to come to its end: a part of it, and so many seconds at least.
_GRACE, _LEAST_GRACE_SECONDS = 0.25, 1.0
# Work that may go into what is better to lower, and into making programs of the best of it, as parts of a search's.
_LOWERING, _SETTLING = 0.4, 0.2


@dataclass(frozen=True)
class Limits:
    """Limits of one solve.

    Attributes
    ----------
    seconds
        Budget; what is found by then is returned.
    work
        Deterministic amount of work of CP-SAT (its deterministic time); a solve that ends by it ends the same way everywhere.
    workers
        Threads.
    seed
        Random seed.
    stop
        Set by the user's interrupt; solvers look at it often.
    scheduler
        Address of a Dask scheduler whose workers take independent starts; empty for processes here.
    by_work
        The budget is of counted work, not of the clock.
    ends_at_s
        Where the budget is of work, the time of the clock (`time.monotonic`) at which a search ends even so.
    """

    seconds: float = 60.0
    work: float | None = None
    workers: int = 2
    seed: int = 0
    stop: threading.Event = field(default_factory=threading.Event, compare=False)
    scheduler: str = ""
    by_work: bool = False
    ends_at_s: float = math.inf

    def __getstate__(self) -> dict[str, Any]:
        """State for another process, which has a clock and an interrupt of its own."""
        own = {name: value for name, value in vars(self).items() if name != "stop"}
        return {**own, "ends_at_s": self.ends_at_s - time.monotonic()}

    def __setstate__(self, given: Mapping[str, Any]) -> None:
        """Come to a process."""
        vars(self).update({**given, "ends_at_s": given["ends_at_s"] + time.monotonic(), "stop": STOP})

    def within(self, seconds: float, work: float | None = None) -> Limits:
        """Return the same limits with less time and the given amount of work; they are over at once where the clock has left none."""
        ends_at_s = self.ends_at_s if self.by_work or seconds > 0 else time.monotonic()
        return replace(self, seconds=max(0.05, min(self.seconds, seconds)), work=work, ends_at_s=ends_at_s)

    def share(self, part: float) -> Limits:
        """Return the same limits with a part of the budget, and of the time left until the clock cuts it short."""
        return self.within(part * self.seconds)._until_part(part)

    def clock_share(self, part: float) -> Limits:
        """Return the same limits with a part of the time of the clock, and all of a budget of work."""
        return self._until_part(part) if self.by_work else self.within(part * self.seconds)

    def _until_part(self, part: float) -> Limits:
        now_s = time.monotonic()
        return replace(self, ends_at_s=now_s + part * (self.ends_at_s - now_s))

    def until(self, ends_at_s: float) -> Limits:
        """Return the same limits, which the clock cuts short at this time (`time.monotonic`) at the latest."""
        return replace(self, ends_at_s=min(self.ends_at_s, ends_at_s))

    def at_least(self, seconds: float) -> Limits:
        """Return the same limits, with so many seconds left until the clock cuts a budget of work short."""
        return replace(self, ends_at_s=max(self.ends_at_s, time.monotonic() + seconds)) if self.by_work else self

    @property
    def grace_seconds(self) -> float:
        """Seconds that running work may take to come to its end; the user who wants one does not wait for more than the least."""
        return _LEAST_GRACE_SECONDS if self.stop.is_set() else max(_LEAST_GRACE_SECONDS, _GRACE * self.seconds)

    def to_lower(self) -> Over:
        """End of the search for better things to lower: by the clock from the beginning of the search, by work from when first asked."""
        return self._after_search(_LOWERING)

    def to_settle(self) -> Over:
        """End of making programs of the best of them: by the clock as `to_lower`, by work from when first asked."""
        return self._after_search(_SETTLING)

    def _after_search(self, part: float) -> Over:
        if not self.by_work:
            return self.countdown(grace_seconds=self.grace_seconds)
        begun: list[Over] = []

        def over() -> bool:
            if not begun:
                begun.append(self.within(max(_LEAST_GRACE_SECONDS, part * self.seconds)).countdown())
            return begun[0]()

        return over

    def now_s(self) -> float:
        """Time by which the budget counts: work that is done, or the clock."""
        return work_seconds() if self.by_work else time.monotonic()

    @property
    def is_cut(self) -> bool:
        """A budget of work is cut short by the clock."""
        return self.ends_at_s < math.inf and time.monotonic() >= self.ends_at_s

    @property
    def clock_seconds(self) -> float:
        """Seconds of the clock that a solve may take which counts its work by itself."""
        return max(0.05, self.ends_at_s - time.monotonic()) if self.by_work else self.seconds

    def deadline(self) -> Deadline:
        """The budget, counted down from now on."""
        return Deadline(self)

    def countdown(self, *, least_seconds: float = 0.0, grace_seconds: float = 0.0) -> Over:
        """Test for the end, counted from now on: true once time is up or the user wants an end.

        Parameters
        ----------
        least_seconds
            It is not before so many seconds have passed.
        grace_seconds
            Time is not up before so many more seconds have passed; the user need not wait for that.
        """
        begun = self.now_s()

        def over() -> bool:
            passed = self.now_s() - begun
            if self.is_cut:
                return True
            return passed >= least_seconds and (passed >= self.seconds + grace_seconds or self.stop.is_set())

        return over


def never() -> bool:
    """No end, an `Over`."""
    return False


def always() -> bool:
    """The end at once, an `Over`."""
    return True


def until(over: Over, found: Iterable[_T]) -> Iterator[_T]:
    """Items found before time is over, one at least."""
    for each in found:
        yield each
        if over():
            break


class Deadline:
    """Counts down from a budget."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._end = limits, limits.now_s() + limits.seconds

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return 0.0 if self._limits.is_cut else self.budget_left

    @property
    def budget_left(self) -> float:
        """Seconds left of the budget itself, at least 0; where it is of work, a clock that has cut it short is not asked."""
        return max(0.0, self._end - self._limits.now_s())

    def over(self) -> bool:
        """True once time is up or the user wants an end, an `Over`."""
        return self.left <= 0 or self._limits.stop.is_set()


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
