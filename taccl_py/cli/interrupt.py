"""Ctrl-C, SIGTERM, which is how schedulers of clusters, CI and `timeout` say the same, and SIGHUP, when a terminal is closed.

The first one asks a search for the best answer so far; it ends the program where there is none yet, and so does the second one.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from taccl_py.errors import Interrupted, LimitReached
from taccl_py.solvers.limits import INTERRUPTS

# A signal that follows so soon is the same interrupt: `timeout` sends one to the command, and then one to its process group.
_ONE_INTERRUPT_SECONDS = 0.2
_NO_ANSWER = "interrupted before there was an answer"


@contextmanager
def interrupts_end() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt wherever the program is."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def interrupts_stop(stop: threading.Event, in_vain: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """For a search: the first interrupt sets `stop`, the second one raises KeyboardInterrupt.

    Parameters
    ----------
    stop
        Set by the first interrupt.
    in_vain
        Whether there can be no answer yet, so that the first interrupt ends the search at once.

    Raises
    ------
    Interrupted
        If the search says that time was too short, which the user cut, or there can be no answer yet.
    """

    def interrupt() -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if in_vain():
            raise Interrupted(_NO_ANSWER)

    with _handled(interrupt):
        try:
            yield
        except LimitReached:
            if not stop.is_set():
                raise
            raise Interrupted(_NO_ANSWER) from None


@contextmanager
def interrupts_drop(stop: threading.Event, what: str) -> Iterator[None]:
    """For work that has no answer before its end: an interrupt sets `stop` and raises Interrupted, with this sentence."""

    def interrupt() -> None:
        stop.set()
        raise Interrupted(what)

    with _handled(interrupt):
        yield


class _Listener:
    """Tells one interrupt from the next, whatever the program does about each."""

    def __init__(self) -> None:
        self._last = -math.inf

    def hears(self, act: Callable[[], None]) -> None:
        """Act on an interrupt, unless it is the last one again."""
        now = time.monotonic()
        if now - self._last >= _ONE_INTERRUPT_SECONDS:
            self._last = now
            act()


_LISTENER = _Listener()


@contextmanager
def _handled(act: Callable[[], None]) -> Iterator[None]:
    def handler(_number: int, _frame: FrameType | None) -> None:
        _LISTENER.hears(act)

    # A user who started the command with nohup wants it to outlive the terminal.
    heeded = [one for one in INTERRUPTS if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, one in before.items():
            if one is not None:  # it was there before Python, which cannot bring it back
                signal.signal(number, one)
