"""Network of a plan: which ends are connected, and the columns of clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.verify.mscclpp.grammar import PORT, Plan


@dataclass(frozen=True, slots=True, order=True)
class ThreadblockSeat:
    """A threadblock."""

    gpu: int
    block: int


@dataclass(frozen=True, slots=True)
class End:
    """One end of a channel: a threadblock, and the place in its list."""

    seat: ThreadblockSeat
    channel: int


@dataclass(frozen=True, slots=True)
class Users:
    """How many threadblocks acquire and release a semaphore, and how often it is released."""

    acquirers: int
    releasers: int
    num_releases: int


class ChannelNetwork:
    """Connections of a plan whose parts exist and fit.

    The n-th channel of a type from one GPU to another is the n-th one of that type back.
    """

    def __init__(self, plan: Plan) -> None:
        self._column: dict[ThreadblockSeat, int] = {}
        self._request: dict[tuple[ThreadblockSeat, int], int] = {}
        self._ends: dict[tuple[int, str, int], End] = {}
        self._plan = plan
        for gpu in plan.gpus:
            for block in gpu.blocks:
                seat = ThreadblockSeat(gpu.id, block.id)
                self._column[seat] = len(self._column)
                for kind, ids in block.channels.items():
                    for place, channel in enumerate(ids):
                        self._ends[gpu.id, kind, channel] = End(seat, place)
        for end in [end for (_, kind, _), end in self._ends.items() if kind == PORT]:
            self._request[end.seat, end.channel] = len(self._column) + len(self._request)
        self._first_begun = len(self._column) + len(self._request)
        self.width = self._first_begun + len(plan.gpus)

    def column(self, seat: ThreadblockSeat) -> int:
        """Column that says how far a threadblock is."""
        return self._column[seat]

    def request_column(self, seat: ThreadblockSeat, channel: int) -> int:
        """Column that says how many requests of a proxy channel are complete."""
        return self._request[seat, channel]

    def begun_column(self, rank: int) -> int:
        """Column that says whether a rank has begun the call."""
        return self._first_begun + rank

    def only_begun(self, clock: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return what a clock says of ranks that have begun."""
        clock = clock.copy()
        clock[: self._first_begun] = 0
        return clock

    def other_end(self, seat: ThreadblockSeat, kind: str, channel: int) -> End:
        """Other end of a threadblock's channel; one that no threadblock uses belongs to a threadblock -1."""
        gpu = self._plan.gpus[seat.gpu]
        number = gpu.blocks[seat.block].channels[kind][channel]
        peers = gpu.peers[kind]
        turn = peers[:number].count(peers[number])
        back = [i for i, peer in enumerate(self._plan.gpus[peers[number]].peers[kind]) if peer == seat.gpu][turn]
        return self._ends.get((peers[number], kind, back), End(ThreadblockSeat(peers[number], -1), back))

    def users(self, gpu: int, semaphore: int) -> Users:
        """Who uses a semaphore."""
        acquirers = self._named(gpu, semaphore, "sem_acquire")
        releasers = self._named(gpu, semaphore, "sem_release")
        return Users(len(acquirers), len(releasers), sum(releasers.values()))

    def releasers(self, gpu: int, semaphore: int) -> tuple[ThreadblockSeat, ...]:
        """Threadblocks that release a semaphore."""
        return tuple(self._named(gpu, semaphore, "sem_release"))

    def _named(self, gpu: int, semaphore: int, name: str) -> dict[ThreadblockSeat, int]:
        found: dict[ThreadblockSeat, int] = {}
        for block in self._plan.gpus[gpu].blocks:
            count = sum(op.semaphores.count(semaphore) for op in block.operations if op.name == name)
            if count:
                found[ThreadblockSeat(gpu, block.id)] = count
        return found
