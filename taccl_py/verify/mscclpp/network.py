"""Network of a plan: which ends are connected, and the columns of clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from taccl_py.verify.mscclpp.grammar import Plan
from taccl_py.verify.mscclpp.spans import PlanStep

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, order=True)
class ThreadblockSeat:
    """A threadblock."""

    gpu: int
    block: int


@dataclass(frozen=True, slots=True, order=True)
class End:
    """One end of a channel: its place in the list of a GPU. Several threadblocks may use it."""

    gpu: int
    kind: str
    channel: int


class ChannelNetwork:
    """Connections of a plan whose parts exist and fit.

    The n-th channel of a type from one GPU to another is the n-th one of that type back; one too many has no end there that a
    threadblock could use, and the runtime makes one (`getUnpairedChannelInfos` of its execution_plan.cc).

    Parameters
    ----------
    plan
        The plan.
    steps
        What each threadblock does.
    """

    def __init__(self, plan: Plan, steps: Mapping[ThreadblockSeat, tuple[PlanStep, ...]]) -> None:
        self._plan = plan
        self._column = {seat: number for number, seat in enumerate(steps)}
        self._request: dict[tuple[ThreadblockSeat, int, int], int] = {}
        self._posts: dict[End, dict[ThreadblockSeat, int]] = {}
        self._takes: dict[End, dict[ThreadblockSeat, int]] = {}
        self._releases: dict[tuple[int, int], dict[ThreadblockSeat, int]] = {}
        self._acquires: dict[tuple[int, int], dict[ThreadblockSeat, int]] = {}
        for seat, all_of_them in steps.items():
            for step in all_of_them:
                self._count(seat, step)
        self._first_begun = len(self._column) + len(self._request)
        self.width = self._first_begun + len(plan.gpus)

    def _count(self, seat: ThreadblockSeat, step: PlanStep) -> None:
        name, kind = step.operation.name, step.operation.channel_type
        for move in step.moves:
            key = seat, step.channels[move.thread] if move.proxied else -1, move.thread
            if move.proxied and key not in self._request:
                self._request[key] = len(self._column) + len(self._request)
        for channel in step.channels:
            end = End(seat.gpu, kind, channel)
            if name in ("signal", "rlxsignal", "pws", "pwsf"):
                _add(self._posts, self.other_end(end), seat)
            elif name in ("wait", "rlxwait"):
                _add(self._takes, end, seat)
        for semaphore in step.operation.semaphores:
            _add(self._releases if name == "sem_release" else self._acquires, (seat.gpu, semaphore), seat)

    def column(self, seat: ThreadblockSeat) -> int:
        """Column that says how far a threadblock is."""
        return self._column[seat]

    def request_column(self, seat: ThreadblockSeat, channel: int, thread: int) -> int:
        """Column that says how many of a thread's requests by a proxy channel are complete."""
        return self._request[seat, channel, thread]

    def requesters(self, gpu: int, channel: int) -> list[tuple[ThreadblockSeat, int, int]]:
        """Threads that ask for something by a proxy channel, and their columns."""
        found = self._request.items()
        return [(seat, thread, column) for (seat, one, thread), column in found if seat.gpu == gpu and one == channel]

    def begun_column(self, rank: int) -> int:
        """Column that says whether a rank has begun the call."""
        return self._first_begun + rank

    def without_memory(self, clock: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return what a clock says of ranks that have begun, and of reads."""
        clock = clock.copy()
        clock[:2, : self._first_begun] = 0
        return clock

    def other_end(self, end: End) -> End:
        """Other end of a channel; its channel is -1 where no threadblock can use it."""
        peers = self._plan.gpus[end.gpu].peers[end.kind]
        peer = peers[end.channel]
        turn = peers[: end.channel].count(peer)
        back = [i for i, one in enumerate(self._plan.gpus[peer].peers.get(end.kind, ())) if one == end.gpu]
        return End(peer, end.kind, back[turn] if turn < len(back) else -1)

    def posts(self, end: End) -> dict[ThreadblockSeat, int]:
        """Number of signals that each threadblock sends to an end."""
        return self._posts.get(end, {})

    def takes(self, end: End) -> dict[ThreadblockSeat, int]:
        """Number of waits of each threadblock at an end."""
        return self._takes.get(end, {})

    def releases(self, gpu: int, semaphore: int) -> dict[ThreadblockSeat, int]:
        """Number of times that each threadblock releases a semaphore."""
        return self._releases.get((gpu, semaphore), {})

    def acquires(self, gpu: int, semaphore: int) -> dict[ThreadblockSeat, int]:
        """Number of times that each threadblock acquires a semaphore."""
        return self._acquires.get((gpu, semaphore), {})

    def contended(self) -> bool:
        """True if several threadblocks wait at one end, or acquire one semaphore, so that it matters who comes first."""
        return any(len(one) > 1 for one in (*self._takes.values(), *self._acquires.values()))


def _add(counts: dict[_Key, dict[ThreadblockSeat, int]], key: _Key, seat: ThreadblockSeat) -> None:
    of_key = counts.setdefault(key, {})
    of_key[seat] = of_key.get(seat, 0) + 1
