"""Justification: a plan's messages as late as they can be, the last one first, then as early as they can be, the first one first.

Every message goes into the first gap that its link and ports have for it. No message that is still to be placed loses the time that it
had, so a plan never becomes longer; where messages take two ports at once it often becomes much shorter, as a dispatcher leaves
gaps there which it cannot see in time (Valls, Ballestin and Quintanilla, "Justification and RCPSP", 2005).
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from typing import NamedTuple

from taccl_py.schedule.dispatch import OccupationTimes, followers
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.timing import PlanDependences
from taccl_py.schedule.transform import untimed_messages
from taccl_py.solvers.limits import Limits, Over
from taccl_py.synthesis.engine import Demand, Synthesis
from taccl_py.synthesis.sums import adds_up
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.translations import translations_of
from taccl_py.work import count_work


@dataclass(frozen=True)
class Params:
    """Numbers of justification.

    Attributes
    ----------
    most_passes
        Passes from one end of time to the other and back. Guess.
    windows
        Length of a window in which starts are changed at random, and the most by which they are, as parts of the whole time. Guess.
    window_messages
        Messages that all attempts of such a search may have together. Guess.
    most_messages
        Messages of an engine's schedule up to which it is done for it. Guess.
    enough_gap
        Gap to the bound within which it is not done. Guess.
    """

    most_passes: int = 4
    windows: tuple[tuple[float, float], ...] = ((0.4, 0.01), (0.05, 0.02), (0.15, 0.05), (1.0, 0.003))
    window_messages: int = 12_000
    most_messages: int = 6_000
    enough_gap: float = 0.005


PARAMS = Params()


def with_better_starts(answer: Synthesis, demand: Demand, limits: Limits) -> Synthesis:
    """An engine's answer with a faster schedule of the same messages, if there is one: where links and ports differ, many have gaps.

    Parameters
    ----------
    answer
        What an engine found; its schedule becomes the first runner-up then.
    demand
        What was asked; a sketch may say what goes first.
    limits
        Seed, time, and the user's interrupt.
    """
    schedule, over = answer.schedule, limits.countdown()
    translations = translations_of(schedule.topology)
    is_regular = translations is not None and translations.is_regular
    is_near = schedule.makespan_us <= answer.bound.time_us * (1 + PARAMS.enough_gap)
    has_order = demand.sketch is not None and demand.sketch.own_first
    if has_order or is_regular or is_near or len(schedule.messages) > PARAMS.most_messages or over():
        return answer
    better = searched_schedule(schedule, limits.seed, over)
    return answer if better is schedule else answer.with_schedules([better, schedule, *answer.runners_up])


def justified_schedule(schedule: Schedule) -> Schedule:
    """The same messages at times at which they end no later, where sums still add up: what one lacks depends on its time."""
    return _with_starts(schedule, JustifiedMessages.justified)


def searched_schedule(schedule: Schedule, seed: int, over: Over) -> Schedule:
    """The same messages at the best of many times, see `JustifiedMessages.searched`, where sums still add up."""
    return _with_starts(schedule, lambda line, start_us: line.searched(start_us, seed, over))


def _with_starts(
    schedule: Schedule, starts_us: Callable[[JustifiedMessages, Sequence[float]], Sequence[float]]
) -> Schedule:
    """The schedule with other starts, unless it becomes no faster by them, or its sums do not add up."""
    sizes_bytes = [len(each.chunks) * schedule.chunk_bytes for each in schedule.messages]
    plan = PlanDependences.of(schedule.topology, untimed_messages(schedule))
    times = OccupationTimes(schedule.topology, zip((each.link for each in schedule.messages), sizes_bytes, strict=True))
    line = JustifiedMessages(plan.deliveries, times.message_us, times.uses)
    timed = plan.sent_by(starts_us(line, [each.start for each in plan.untimed]), sizes_bytes)
    found = tuple(Message(d.link, d.chunks, d.start, d.end, d.reduce, d.packed) for d in timed)
    better = replace(schedule, messages=found)
    if better.makespan_us >= schedule.makespan_us or (schedule.collective.reduces and not adds_up(better)):
        return schedule
    return better


class _PortHold(NamedTuple):
    """A link or port, and when after its start a message begins and ends to occupy it; a tuple, as very many are looked at."""

    resource: int
    begin_us: float
    end_us: float


def _holds(whole_us: float, occupied_us: tuple[tuple[int, float], ...]) -> tuple[list[_PortHold], list[_PortHold]]:
    """Links and ports of a message that takes so long to arrive and occupies them from its start on, and the same backwards."""
    # Links and ports that symmetry exchanges are one, for the longest of their turns.
    longest: dict[int, float] = {}
    for resource, time_us in occupied_us:
        longest[resource] = max(time_us, longest.get(resource, 0.0))
    turns = [(resource, time_us) for resource, time_us in longest.items() if time_us > 0]
    return (
        [_PortHold(resource, 0.0, time_us) for resource, time_us in turns],
        [_PortHold(resource, whole_us - time_us, whole_us) for resource, time_us in turns],
    )


class JustifiedMessages:
    """Messages that take turns on links and ports, and times for them.

    Parameters
    ----------
    leads
        Messages, by number, that must have arrived before each of them starts.
    lasting_us
        How long each takes to arrive.
    occupied_us
        Links and ports of each, and how long from its start on it occupies them.
    """

    def __init__(
        self,
        leads: Iterable[Iterable[int]],
        lasting_us: Sequence[float],
        occupied_us: Iterable[Iterable[tuple[int, float]]],
    ) -> None:
        self._leads = [sorted(each) for each in leads]
        self._follows = followers(self._leads)
        self._lasting_us = lasting_us
        holds_of = cache(_holds)  # very many messages are alike
        holds = [holds_of(*each) for each in zip(lasting_us, map(tuple, occupied_us), strict=True)]
        self._turns, self._turns_back = [forth for forth, _ in holds], [back for _, back in holds]
        self._resources = 1 + max((turn.resource for turns in self._turns for turn in turns), default=-1)

    def end_us(self, start_us: Sequence[float]) -> float:
        """When the last message has arrived."""
        return max((s + lasting_us for s, lasting_us in zip(start_us, self._lasting_us, strict=True)), default=0.0)

    def justified(self, start_us: Sequence[float]) -> list[float]:
        """Starts that end no later, [message]."""
        best_us, end_us = list(start_us), self.end_us(start_us)
        for _ in range(PARAMS.most_passes):
            late_us = self.placed([-start for start in best_us], backwards=True)
            found_us = self.placed(late_us, backwards=False)
            gained = self.end_us(found_us) < end_us * (1 - RELATIVE)
            if gained or self.end_us(found_us) <= end_us:
                best_us, end_us = found_us, self.end_us(found_us)
            if not gained:
                break
        return best_us

    def searched(self, start_us: Sequence[float], seed: int, over: Over, factor: float = 1.0) -> list[float]:
        """The best of many starts, each a little different from the best before: changed at random in a window of time, and justified again.

        Parameters
        ----------
        start_us
            Starts, [message].
        seed
            Random seed.
        over
            Whether there is no time left.
        factor
            More attempts than usual, as a factor.
        """
        rng, best_us = random.Random(seed), self.justified(start_us)
        tries = int(factor * PARAMS.window_messages) // max(1, len(start_us))
        for _, (width, change) in zip(range(tries), cycle(PARAMS.windows), strict=False):
            if over():
                break
            other_us = self.justified(self.placed(self._changed(best_us, width, change, rng), backwards=False))
            if self.end_us(other_us) <= self.end_us(best_us):
                best_us = other_us
        return best_us

    def _changed(self, start_us: Sequence[float], width: float, change: float, rng: random.Random) -> list[float]:
        """Starts, some of which are changed at random: those in a window somewhere; its length and the most change are parts of the whole time."""
        end_us = self.end_us(start_us)
        first_us = rng.uniform(-width / 2, 1 - width / 2) * end_us
        last_us = first_us + width * end_us
        return [
            start + rng.uniform(-change, change) * end_us if first_us <= start <= last_us else start
            for start in start_us
        ]

    def placed(self, rank: Sequence[float], *, backwards: bool) -> list[float]:
        """Starts if every message is placed where it fits first, those of lower rank first; backwards from the end of time, 0."""
        count_work("justified", len(rank))
        leads, follows = (self._follows, self._leads) if backwards else (self._leads, self._follows)
        turns_of = self._turns_back if backwards else self._turns
        calendars = [_PortCalendar() for _ in range(self._resources)]
        missing = [len(lead) for lead in leads]
        ready = [(rank[number], number) for number, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        start_us = [0.0] * len(rank)
        while ready:
            _, number = heapq.heappop(ready)
            turns = [(calendars[resource], begin_us, end_us) for resource, begin_us, end_us in turns_of[number]]
            start = start_us[number] = _first_fit(turns, start_us[number])
            for calendar, begin_us, end_us in turns:
                calendar.take(start + begin_us, start + end_us)
            for follower in follows[number]:
                start_us[follower] = max(start_us[follower], start + self._lasting_us[number])
                missing[follower] -= 1
                if not missing[follower]:
                    heapq.heappush(ready, (rank[follower], follower))
        if backwards:
            return [-(start + lasting_us) for start, lasting_us in zip(start_us, self._lasting_us, strict=True)]
        return start_us


class _PortCalendar:
    """Times at which a link or port is taken, in their order; turns that follow each other without a gap are one."""

    __slots__ = ("_begins_us", "_ends_us")

    def __init__(self) -> None:
        self._begins_us: list[float] = []
        self._ends_us: list[float] = []

    def take(self, begin_us: float, end_us: float) -> None:
        """Give a turn away."""
        begins_us, ends_us, slack_us = self._begins_us, self._ends_us, RELATIVE * abs(end_us)
        place = bisect_left(begins_us, begin_us)
        is_behind = place > 0 and begin_us - ends_us[place - 1] <= slack_us
        is_before = place < len(begins_us) and begins_us[place] - end_us <= slack_us
        if is_behind and is_before:
            del begins_us[place]
            del ends_us[place - 1]
        elif is_behind:
            ends_us[place - 1] = end_us
        elif is_before:
            begins_us[place] = begin_us
        else:
            begins_us.insert(place, begin_us)
            ends_us.insert(place, end_us)

    def free_from(self, begin_us: float, end_us: float) -> float:
        """First time, not before the beginning of a turn, from which on there is room for it."""
        lasting_us, slack_us = end_us - begin_us, RELATIVE * end_us
        for place in range(bisect_right(self._ends_us, begin_us + slack_us), len(self._ends_us)):
            if self._begins_us[place] >= begin_us + lasting_us - slack_us:
                break
            begin_us = self._ends_us[place]
        return begin_us


def _first_fit(turns: Sequence[tuple[_PortCalendar, float, float]], start_us: float) -> float:
    """First start, not before a given one, at which a message finds all its links and ports free, each from when to when after its start."""
    while True:
        before_us = start_us
        for calendar, after_us, until_us in turns:
            begin_us = start_us + after_us
            start_us += calendar.free_from(begin_us, start_us + until_us) - begin_us
        if start_us == before_us:
            return start_us
