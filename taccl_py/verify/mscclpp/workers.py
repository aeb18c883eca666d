"""Threadblocks while they are executed: what their threads know of everything else."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from taccl_py.verify.mscclpp.grammar import Gpu, PlanThreadblock
from taccl_py.verify.mscclpp.network import ThreadblockSeat
from taccl_py.verify.mscclpp.spans import PlanStep
from taccl_py.verify.mscclpp.tally import LOOSE, Clock

Origin = tuple[int, int, int]  # an access, and the rank and the cell that it has read


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """An operation that touches cells.

    Attributes
    ----------
    number
        Its own among all accesses.
    seat, position, where
        Who, which of its steps, and its place in the file.
    column, count
        It is certainly over in a clock whose `column` is at least `count`.
    proxied
        Whether a proxy does it, after the operation itself.
    """

    number: int
    seat: ThreadblockSeat
    position: int
    where: str
    column: int
    count: int
    proxied: bool


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """One thing for which a thread has asked a proxy channel."""

    position: int
    column: int


@dataclass(slots=True, eq=False)
class ExecutedThreadblock:
    """State of a threadblock that is executed.

    Attributes
    ----------
    clock
        What all threads know of everything.
    news
        What single threads have heard since all have met; -1: nobody knows which.
    origins, fresh
        Reads whose values have come here by packets, for certain to all threads, and to some.
    met, touched
        Last step at which all threads met, and last one that touched memory.
    taken
        Channels or semaphores of the present step that are done with.
    requests
        By channel and thread, what was asked of proxies.
    missing
        Packet for which it waits: rank and cell.
    """

    seat: ThreadblockSeat
    gpu: Gpu
    block: PlanThreadblock
    steps: tuple[PlanStep, ...]
    column: int
    clock: Clock
    position: int = 0
    met: int = -1
    touched: int = -1
    taken: int = 0
    news: dict[int, Clock] = field(default_factory=dict)
    origins: set[Origin] = field(default_factory=set)
    fresh: set[Origin] = field(default_factory=set)
    requests: dict[tuple[int, int], list[ProxyRequest]] = field(default_factory=dict)
    missing: tuple[int, int] | None = None

    @property
    def step(self) -> PlanStep:
        """The present one."""
        return self.steps[self.position]

    @property
    def has_ended(self) -> bool:
        """True if it has done all."""
        return self.position == len(self.steps)

    def hear(self, thread: int, clock: Clock) -> None:
        """Let a thread know something, which the others know after they have met."""
        known = self.news.get(thread)
        self.news[thread] = clock.copy() if known is None else np.maximum(known, clock)
        np.maximum(self.clock[LOOSE], clock[LOOSE], out=self.clock[LOOSE])

    def meet(self) -> None:
        """Let all threads know what single ones do, and all be done with what they do."""
        for clock in self.news.values():
            np.maximum(self.clock, clock, out=self.clock)
        self.news.clear()
        self.origins |= self.fresh
        self.fresh.clear()
        self.met = self.position

    def known_to(self, thread: int) -> Clock:
        """Clock of a thread."""
        news = self.news.get(thread)
        return self.clock if news is None else np.maximum(self.clock, news)

    def shown(self, known: Clock) -> Clock:
        """Clock that a packet of the present step shows: of its threadblock only what is over for all threads."""
        clock = known.copy()
        clock[:, self.column] = self.position if self.touched <= self.met else self.met + 1
        return clock

    def told_by(self, thread: int) -> Clock:
        """Clock that a thread can pass on after the present step: of its threadblock and all else."""
        clock = self.known_to(thread).copy()
        clock[:, self.column] = self.position + 1 if self.touched <= self.met else self.met + 1
        clock[LOOSE, self.column] = self.position + 1
        return clock

    def final(self) -> Clock:
        """Clock when all its threads have ended."""
        clock = self.clock.copy()
        for one in self.news.values():
            np.maximum(clock, one, out=clock)
        clock[:, self.column] = len(self.steps)
        return clock
