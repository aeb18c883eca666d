"""Ctrl-C, and SIGTERM, which is how schedulers of clusters, CI and `timeout` say the same.

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

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What follows so soon is the same interrupt: `timeout` sends one to the command, and then one to its process group.
_ONE_INTERRUPT_SECONDS = 0.2


@contextmanager
def interrupts_end() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt wherever the program is."""
    with _handled(signal.default_int_handler):
        yield


@contextmanager
def interrupts_stop(stop: threading.Event) -> Iterator[None]:
    """For a search: the first interrupt sets `stop`, the second one raises KeyboardInterrupt.

    Raises
    ------
    Interrupted
        If the search says that time was too short, which the user cut.
    """
    first = -math.inf

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if now - first < _ONE_INTERRUPT_SECONDS:
            return
        if stop.is_set():
            raise KeyboardInterrupt
        first = now
        stop.set()

    with _handled(interrupt):
        try:
            yield
        except LimitReached:
            if not stop.is_set():
                raise
            raise Interrupted("interrupted before there was an answer") from None


@contextmanager
def interrupts_drop(stop: threading.Event, what: str) -> Iterator[None]:
    """For work that has no answer before its end: an interrupt sets `stop` and raises Interrupted, with this sentence."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        raise Interrupted(what)

    with _handled(interrupt):
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, one in before.items():
            if one is not None:  # it was there before Python, which cannot bring it back
                signal.signal(number, one)
