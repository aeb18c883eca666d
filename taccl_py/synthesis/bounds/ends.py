"""Limits on what a message between two nodes can carry for others than the two ranks at its ends.

In an AllToAll what is not the sender's own has to get to it before the message starts, and what is not for the receiver has to leave
it afterwards. Where a rank has one port for that, with costs alpha and beta, holding Y bytes of which no rank gave more than v takes

    alpha * ceil(log2(ceil(Y / v))) + beta * (Y - v)

at least: by the start of the last message, of y bytes, its receiver holds the other Y - y and its sender holds y, and the larger
part of Y has at least half as many givers; the bytes are counted at the receiver if they are fewer than half, else at the sender,
too. Passing on is the same backwards. Ranks with several ports need one alpha, and then have all their links' rates. And all but
what one of the two ranks has for the other one is gathered or passed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.net import Net


@dataclass(frozen=True, slots=True)
class Carriage:
    """Limit on how much can come over some links together.

    Attributes
    ----------
    alpha_us, rate_mb_per_us
        Nothing before an alpha, then at a rate, which is infinite where nothing limits it.
    is_single
        Whether all messages take turns at one port.
    """

    alpha_us: float
    rate_mb_per_us: float
    is_single: bool

    @staticmethod
    def over(net: Net, finder: CutFinder, links: IntArray) -> Carriage:
        """Over some links of a machine."""
        if not len(links):
            return Carriage(math.inf, 0.0, is_single=True)
        resources = finder.cheapest_cover(links)
        if resources is None:
            return Carriage(0.0, math.inf, is_single=False)
        rate = float((1 / net.beta_us_per_mb[resources]).sum())
        return Carriage(float(net.alpha_us[resources].min()), rate, is_single=len(resources) == 1)

    @staticmethod
    def best(carriages: Iterable[Carriage]) -> Carriage:
        """The least alpha of any, and the highest rate."""
        each = list(carriages)
        return Carriage(
            min(c.alpha_us for c in each), max(c.rate_mb_per_us for c in each), all(c.is_single for c in each)
        )

    def doublings(self, givers: float) -> tuple[tuple[float, float], ...]:
        """Alphas, and how many times as much as of one giver there can be after these, if there are so many givers."""
        if math.isinf(self.alpha_us):
            return ((0.0, 1.0),)
        if not self.is_single:
            return ((0.0, 1.0), (self.alpha_us, math.inf))
        powers = range(math.ceil(math.log2(max(1.0, givers))))
        return (*((number * self.alpha_us, 2.0**number) for number in powers), (len(powers) * self.alpha_us, math.inf))


@dataclass(frozen=True, slots=True)
class PortPair:
    """Data that a rank has for another one, and the time that they take through a port between nodes."""

    megabytes: float
    each_us: float


@dataclass(frozen=True, slots=True)
class Ends:
    """Ways in which the sender of a message gets what is not its own, and in which its receiver passes on what is not for itself.

    Attributes
    ----------
    gathering, handing
        What limits it.
    elsewhere_us
        From when on a sender may also have got something in another way.
    """

    gathering: Carriage
    handing: Carriage
    elsewhere_us: float

    @staticmethod
    def of(net: Net, node_of: IntArray, ranks: Sequence[int], from_one: bool, to_one: bool) -> Ends:
        """The best of some ranks.

        Parameters
        ----------
        net, node_of
            The machine and its nodes.
        ranks
            One rank of each sort.
        from_one, to_one
            Whether messages come from one node, and go to one.
        """
        stays = node_of[net.src] == node_of[net.dst]
        comes = _over_each(net, net.dst, stays | (not from_one), ranks)
        goes = _over_each(net, net.src, stays | (not to_one), ranks)
        # Out of the node and back again.
        twice_us = 2 * float(net.least_message_us[~stays].min(initial=math.inf))
        return Ends(comes, goes, twice_us if from_one else math.inf)

    def most_pairs(
        self, start: EarliestMoment, left: EarliestMoment, room_us: FloatArray, pair: PortPair
    ) -> FloatArray:
        """Most pairs of messages that start at some times, or later, and leave some of the time behind them, or more.

        Parameters
        ----------
        start, left
            Where they start, and what they leave, in arrays that fit together; with the number of ranks that one giver gives for,
            and that one taker takes from.
        room_us
            What is left for their bytes if they do not start later nor leave more.
        pair
            A pair's data.
        """
        room = room_us / pair.each_us
        limit = np.minimum(room, self._both(start.time_us, left.time_us, room, pair))
        best = np.zeros(room.shape)
        goes = _held(self.handing, left, math.inf, pair, float(start.own.max()))
        for come in _held(self.gathering, start, self.elsewhere_us, pair, float(left.own.max())):
            for go in goes:
                # Waiting at either end, or at both, leaves less room.
                found = np.minimum(np.minimum(come.most, go.most), limit)
                for waits in ((come,), (go,), (come, go)):
                    slope = 1 + sum(each.slope for each in waits)
                    found = np.minimum(found, (room + sum(each.head for each in waits)) / slope)
                best = np.maximum(best, found)
        return best

    def _both(self, start_us: FloatArray, left_us: FloatArray, room: FloatArray, pair: PortPair) -> FloatArray:
        """Most pairs of which all but one, that of the two ranks themselves, are gathered or handed out."""
        rate = max(self.gathering.rate_mb_per_us, self.handing.rate_mb_per_us)
        slope = pair.megabytes / rate / pair.each_us if rate > 0 else 0.0
        come_us, go_us = start_us - self.gathering.alpha_us, left_us - self.handing.alpha_us
        used_us = np.maximum(np.maximum(come_us, go_us), come_us + go_us)
        found = np.maximum((room + slope + used_us / pair.each_us) / (1 + slope), 1.0)
        return np.where(start_us >= self.elsewhere_us, room, found)


@dataclass(frozen=True)
class EarliestMoment:
    """A time at one end of a message, and how many pairs' data one rank accounts for there."""

    time_us: FloatArray
    own: FloatArray


@dataclass(frozen=True)
class _Held:
    """Amount that one end of a message can hold after some alphas: at most so much, which takes room: slope times that, less a head."""

    most: FloatArray
    slope: float
    head: FloatArray


def _over_each(net: Net, ends: IntArray, counts: BoolArray, ranks: Sequence[int]) -> Carriage:
    finder = CutFinder(net)
    return Carriage.best(Carriage.over(net, finder, np.flatnonzero(counts & (ends == rank))) for rank in ranks)


def _held(
    carriage: Carriage, moment: EarliestMoment, elsewhere_us: float, pair: PortPair, givers: float
) -> list[_Held]:
    free = moment.time_us >= elsewhere_us
    each_us = pair.megabytes / carriage.rate_mb_per_us if carriage.rate_mb_per_us > 0 else 0.0
    found = []
    for alphas_us, times in carriage.doublings(givers):
        most = np.where(free, math.inf, moment.own * times)
        head = (moment.own * each_us - alphas_us + moment.time_us) / pair.each_us
        found.append(_Held(most, each_us / pair.each_us, np.where(free, math.inf, head)))
    return found
