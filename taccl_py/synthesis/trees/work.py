"""Time and work that a search has left, and that its stages took."""

from __future__ import annotations

from contextlib import AbstractContextManager

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, timed_stage


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

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time a stage and report it."""
        return timed_stage(name, self.events, self.stage_seconds)


class StagesOnly(Events):
    """Reports what is done, but no times, which are those of a part."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def stage(self, name: str) -> None:
        """Report that a stage begins."""
        self._events.stage(name)
