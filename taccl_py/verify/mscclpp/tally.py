"""Counters that some threadblocks raise and others wait for: signals of a channel, and semaphores.

They only count: the n-th wait ends when n signals have come, no matter from where (microsoft/mscclpp 1f5f065,
include/mscclpp/semaphore_device.hpp and concurrency_device.hpp: every waiter draws a number from an atomic counter and compares
it with another one). So where several threadblocks raise a counter, or wait for it, what a wait proves is what has come in every
order that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.verify.mscclpp.network import ThreadblockSeat

Clock = NDArray[np.int32]
# Rows of a clock: certain with its memory; certain if threads met after every operation; certainly executed, so that reads are over,
# which is all that relaxed signals and packets tell.
CERTAIN, LOOSE, READ = range(3)


@dataclass(frozen=True, slots=True)
class _Mark:
    """Somebody has raised the counter or waited for it: certain in a clock whose `column` is at least `count`."""

    seat: ThreadblockSeat
    column: int
    count: int
    clock: Clock
    relaxed: bool = False


class Tally:
    """One counter.

    Parameters
    ----------
    initial
        Its value at the start.
    posts, takes
        How often each threadblock raises it and waits for it in the whole call.
    """

    def __init__(
        self, initial: int, posts: Mapping[ThreadblockSeat, int], takes: Mapping[ThreadblockSeat, int]
    ) -> None:
        self.initial = initial
        self.posts = posts
        self.takes = takes
        self._raised: dict[ThreadblockSeat, list[_Mark]] = {}
        self._arrived: dict[ThreadblockSeat, int] = {}
        self._taken: list[_Mark] = []
        self._num_raised = 0

    @property
    def left(self) -> int:
        """Its value."""
        return self.initial + self._num_raised - len(self._taken)

    def may_pass(self, seat: ThreadblockSeat) -> bool:
        """Let a threadblock come to a semaphore, and say whether it goes on.

        It lowers the value when it comes, and waits until that is what it was before; so one that comes later can take from under one
        that waits what that has been waiting for (`DeviceSemaphore::acquire`).
        """
        if seat not in self._arrived:
            self._arrived[seat] = self.left - len(self._arrived)
        before = self._arrived[seat]
        if before <= 0 and self.left - len(self._arrived) < before:
            return False
        del self._arrived[seat]
        return True

    def post(self, seat: ThreadblockSeat, column: int, count: int, clock: Clock) -> None:
        """Raise it."""
        marks = self._raised.setdefault(seat, [])
        if marks:
            clock = np.maximum(clock, marks[-1].clock)
        marks.append(_Mark(seat, column, count, clock))
        self._num_raised += 1

    def take(
        self, seat: ThreadblockSeat, column: int, count: int, known: Clock, *, relaxed: bool = False
    ) -> Clock | None:
        """Wait for it, if it is raised; what that proves, or None if nothing."""
        before = self._num_known(known, seat)
        self._taken.append(_Mark(seat, column, count, known, relaxed))
        return self._proof(before + 1, known)

    def proof_of_all(self, known: Clock) -> tuple[Clock | None, bool]:
        """Proof of all waits together that are certainly over, and whether it is without memory.

        The last one of them, which has seen all that has come, is the last one of its threadblock.
        """
        done = [one for one in self._taken if known[CERTAIN][one.column] >= one.count]
        last = {one.seat: one.relaxed for one in done}
        return (self._proof(len(done), known) if done else None), any(last.values())

    def _num_known(self, known: Clock, seat: ThreadblockSeat) -> int:
        """Number of waits that are certainly over for a threadblock."""
        return sum(one.seat == seat or known[CERTAIN][one.column] >= one.count for one in self._taken)

    def _proof(self, number: int, known: Clock) -> Clock | None:
        """Clock of all that has certainly come when so many waits are over."""
        needed = number - self.initial
        if needed <= 0:
            return None
        if len(self.posts) == 1:
            marks = next(iter(self._raised.values()))
            clock: Clock = marks[needed - 1].clock
            return clock
        total = sum(self.posts.values())
        proof = np.zeros_like(known)
        for marks in self._raised.values():
            for place, mark in enumerate(marks):
                if total - self._not_before(mark, place) < needed:
                    np.maximum(proof, mark.clock, out=proof)
        return proof

    def _not_before(self, mark: _Mark, number: int) -> int:
        """Number of those that come certainly no sooner than the `number`-th one of a threadblock."""
        found = self.posts[mark.seat] - number
        for seat, marks in self._raised.items():
            if seat != mark.seat:
                first = next((i for i, one in enumerate(marks) if one.clock[CERTAIN][mark.column] >= mark.count), None)
                found += 0 if first is None else self.posts[seat] - first
        return found
