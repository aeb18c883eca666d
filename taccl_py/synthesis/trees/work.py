"""Time and work that a search has left, and that its stages took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events


class TreeSearch:
    """A search that is under way, or a part of one.

    Parameters
    ----------
    limits
        Its own.
    events
        Who is told what is done.
    whole
        The search that this is a part of; the part's stages are counted there.
    """

    def __init__(self, limits: Limits, events: Events, whole: TreeSearch | None = None) -> None:
        self.limits, self.events = limits, events
        self.deadline = limits.deadline()
        self.stage_seconds: dict[str, float] = {} if whole is None else whole.stage_seconds

    def left(self, part: float = 1.0) -> Limits:
        """Limits for what time is left, or a part of it."""
        return self.limits.within(self.deadline.left * part)

    @property
    def left_part(self) -> float:
        """The part of its time that is left."""
        return self.deadline.left / self.limits.seconds

    def over(self) -> bool:
        """True if time is up or the user wants an end."""
        return self.deadline.over()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage and report it."""
        self.events.stage(name)
        begun = time.monotonic()
        try:
            yield
        finally:
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + time.monotonic() - begun


class StagesOnly(Events):
    """Reports what is done, but no times, which are those of a part."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def stage(self, name: str) -> None:
        """Report that a stage begins."""
        self._events.stage(name)
