"""Broadcast in the fewest rounds, where everyone can send one message and receive one at a time.

n pieces to p ranks take n - 1 + q rounds, q being the least number with 2^q >= p. In round k of every q a rank at place i sends to
the one at place i + skips[k], and gets one piece of every q from each of q others. Which one is found as in J. L. Träff:
Round-optimal n-Block Broadcast Schedules in Logarithmic Time, arXiv:2312.11236 (2023).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from taccl_py.synthesis.templates.messages import TemplateMessage


@dataclass(frozen=True, slots=True)
class Circulant:
    """The rounds of some number of ranks, known by their places; the root has place 0.

    Attributes
    ----------
    skips
        How far a message goes in each round, and then the number of ranks.
    gets
        [place][round]: the piece that is received, of those that begin in the rounds up to this one; a negative one began before.
    """

    skips: tuple[int, ...]
    gets: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(num_ranks: int) -> Circulant:
        """For 2 ranks or more."""
        skips = [num_ranks]
        while skips[0] > 1:
            skips.insert(0, -(-skips[0] // 2))
        return Circulant(tuple(skips), tuple(_CirculantSearch(skips, place).gets() for place in range(num_ranks)))

    @property
    def period(self) -> int:
        """Rounds after which everything is as before, with later pieces."""
        return len(self.skips) - 1

    def best_pieces(self, alpha_us: float, whole_us: float) -> int:
        """Number of pieces that is through first if a message of all data takes `whole_us` more than an empty one.

        (n - 1 + q) (alpha + whole / n) is least for n = sqrt((q - 1) whole / alpha).
        """
        if alpha_us <= 0:
            return sys.maxsize
        ideal = max(1.0, math.sqrt((self.period - 1) * whole_us / alpha_us))
        around = (math.floor(ideal), math.ceil(ideal))
        return min(around, key=lambda n: (n - 1 + self.period) * (alpha_us + whole_us / n))

    def messages(self, ranks: tuple[int, ...], pieces: int) -> Iterator[TemplateMessage]:
        """Every piece to all ranks, the first of which is the root, in the order of rounds."""
        period = self.period
        # Rounds are counted so that the last piece begins in the last round of a period.
        skipped = -(pieces - 1) % period
        has = [set[int]() for _ in ranks]
        for number in range(skipped, skipped + pieces - 1 + period):
            turn, step = divmod(number, period)
            for place in range(1, len(ranks)):
                # What would come after the last piece is the last piece, for those who lack it.
                piece = min(self.gets[place][step] + turn * period - skipped, pieces - 1)
                if piece >= 0 and piece not in has[place]:
                    has[place].add(piece)
                    start, src = number - skipped, (place - self.skips[step]) % len(ranks)
                    yield TemplateMessage(ranks[src], ranks[place], (piece,), start, start + 1)


class _CirculantSearch:
    """For the pieces that one place gets in the rounds of a period.

    Piece k of a period leaves the root in round k, for place skips[k]; a path to a place is a sum of skips, and the first of them tells
    which piece goes there. In every round the place needs a sender on whose path a piece has gone that it lacks.
    """

    def __init__(self, skips: list[int], place: int) -> None:
        self._skips, self._place = skips, place + skips[-1]
        self._period = len(skips) - 1
        self._own = self._first_skip(place)
        self._left = [number for number in range(self._period, -1, -1) if place == 0 or number != self._own]
        self._found: list[int] = []
        self._before = 2 * skips[-1]

    def gets(self) -> tuple[int, ...]:
        """The pieces by rounds."""
        self._go_on_from(0, self._period)
        if len(self._found) != self._period:
            raise ValueError(f"place {self._place - self._skips[-1]} has no sender in some round")
        return tuple(self._own if piece == self._period else piece - self._period for piece in self._found)

    def _first_skip(self, place: int) -> int:
        """The smallest of the skips, as large as possible each, that lead from the root to a place."""
        for number in range(self._period - 1, -1, -1):
            if self._skips[number] == place:
                return number
            if self._skips[number] < place:
                place -= self._skips[number]
        return self._period

    def _go_on_from(self, via: int, largest: int) -> None:
        """Find senders whose path leads over a place and then over skips up to the largest one."""
        for number in [number for number in self._left if number <= largest]:
            here = via + self._skips[number]
            if number not in self._left or self._all_found or here >= self._before or here > self._reach(0):
                continue
            if here <= self._reach(1):
                self._go_on_from(here, number)
            if self._all_found or via > self._reach(1):
                return
            self._before = here
            self._found.append(number)
            self._left.remove(number)

    @property
    def _all_found(self) -> bool:
        return len(self._found) == self._period

    def _reach(self, later: int) -> int:
        """Place of the sender in the next round to be found, or in one that follows."""
        return self._place - self._skips[len(self._found) + later]
