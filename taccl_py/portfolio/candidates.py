"""Candidates: algorithms with their time as a function of size, raced at probe sizes spread over a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest

from taccl_py.pipeline.search import require_valid
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.cost_curve import CostCurve, cost_curve
from taccl_py.synthesis.auto import (
    constructive_runs,
    leading_runs,
    left_out_runs,
    quick_runs,
    searching_runs,
    second_runs,
)
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.synthesis.race import EngineRun, RaceOutcome, Racer
from taccl_py.tolerances import CLOSE_TO_BOUND, RELATIVE

# Engines that take longer run at one in so many probes.
_EVERY = 2
# An algorithm that is slower by less than this may have a program that is faster, as not every program keeps its schedule's time.
_NEAR = 0.03
# Between two sizes an engine is asked only if it may save more than this part, and not if it was slower by more than this at both; beyond
# all its sizes only if the line through the nearest two is not above the best by more than that, or `_NEAR` where it is behind at the
# nearest. Measured: two ND A100 v4 nodes and a DGX-1, all sizes; such lines were within 0.7 % of the time found, and 9 % above it once.
_LEAST_GAIN, _BEATEN = 0.005, 0.1
# Sizes asked in a first round lie no further apart than by this factor.
_FAR = 300.0
# Engines that construct are asked at so many sizes at a time, from the largest one down; searches from the widest gap on, until one time
# all of them find nothing better.
_SIZES_AT_ONCE = 2
# A size whose best time is this close to the bound is not raced again; the largest one, whose answer serves other large ones, if closer.
_CLOSE_AT_LAST = 1e-3


@dataclass(frozen=True)
class Candidate:
    """An algorithm.

    Attributes
    ----------
    engine, solver
        Engine that made it.
    schedule
        It, with the times of the size that it was made for.
    curve
        Its time at every size of the range.
    at_bytes
        Size for which it was found.
    """

    engine: str
    solver: str
    schedule: Schedule
    curve: CostCurve
    at_bytes: float = 0.0


@dataclass(frozen=True)
class Probe:
    """A size at which engines run.

    Attributes
    ----------
    demand
        The demand of this size.
    bound
        No algorithm is faster at this size.
    """

    demand: Demand
    bound: Bound

    def gap(self, candidates: Iterable[Candidate]) -> float:
        """Relative distance of the best candidate from the bound."""
        best = min((c.curve.time_us(self.demand.size_bytes) for c in candidates), default=math.inf)
        return best / self.bound.time_us - 1 if self.bound.time_us > 0 else math.inf


def race_candidates(probes: Sequence[Probe], racer: Racer, events: Events) -> list[Candidate]:
    """Candidates of all engines at all probes.

    Engines that construct answer before those begin that search, which take what time they get, and only where there is a gap, the widest
    one first: where they find nothing better there, they are not asked where the gap is narrower, and narrower and finer ones not at all.
    Should time run out, then where least is lost: the engine that is seldom beaten goes first, and all begin with sizes far apart,
    which leaves no size far from one that was answered; trees and flows, which are for large sizes, begin with these, at the largest
    one beside the second round of the others. What was found at other sizes tells where an engine need not be asked (`_Candidates.may_gain`).
    """
    low, high = (round(probes[i].demand.size_bytes) for i in (0, -1))
    found = _Candidates()
    fewer = [*probes[:-1:_EVERY], probes[-1]]

    def race(*several: tuple[Callable[[Demand], Iterable[EngineRun]], Iterable[Probe]]) -> None:
        if racer.over:  # to find the runs takes a search too
            return
        wanted = ((run, probe.bound) for runs, at in several for probe in at for run in runs(probe.demand))
        asked = [replace(run, bound=bound) for run, bound in wanted if run.asked is not None or found.may_gain(run)]
        if asked:
            found.add(racer.race_for(_Examination(low, high), asked, events))

    def following(demand: Demand) -> list[EngineRun]:
        return [run for run in quick_runs(demand) if run not in leading_runs(demand)]

    first, *others = _far_apart(fewer)
    race((leading_runs, first), (following, first))
    is_closed = probes[-1].gap(found.candidates) <= _CLOSE_AT_LAST
    largest = [] if is_closed else [probes[-1:]]
    for last, some in zip_longest(largest, others, fillvalue=()):
        # What takes longest is begun first, so that all processes have work to the end of a round.
        falling = sorted(some, key=lambda probe: -probe.demand.size_bytes)
        race((leading_runs, falling[:1]), (constructive_runs, last), (leading_runs, falling[1:]), (following, falling))
    if not any(found.has_answered(run.engine) for run in leading_runs(probes[-1].demand)):
        race((left_out_runs, fewer))
    smaller = iter(found.wide(fewer[:-1])[::-1])
    while some := list(islice(smaller, _SIZES_AT_ONCE)):
        race((constructive_runs, some))
    between = found.wide([probe for probe in probes if probe not in fewer])
    race((quick_runs, between[::-1]))
    for runs, some in _searches(fewer, found):
        race((runs, some))
    return found.candidates


def _searches(
    probes: Sequence[Probe], found: _Candidates
) -> Iterator[tuple[Callable[[Demand], list[EngineRun]], list[Probe]]]:
    """Searches, at the probes with the widest gap and so on until nothing better was found at those before; the first sort in vain is the last."""
    for runs in (searching_runs, second_runs):
        widest = iter(sorted(found.wide(probes), key=lambda probe: -probe.gap(found.candidates)))
        has_paid = False
        while some := list(islice(widest, _SIZES_AT_ONCE)):
            gaps = [probe.gap(found.candidates) for probe in some]
            yield runs, some
            pays = any(probe.gap(found.candidates) < gap for probe, gap in zip(some, gaps, strict=True))
            has_paid |= pays
            if found.candidates and not pays:
                break
        if found.candidates and not has_paid:
            return


def _far_apart(probes: Sequence[Probe]) -> Iterator[list[Probe]]:
    """The last one and the first one, and then always the middle of what lies between those before.

    One round after the other where a round may tell what is needless in the next one: not before its sizes are near to each other.
    """
    known = dict.fromkeys((len(probes) - 1, 0)) if probes else {}
    new = [*known]
    step = 1 << (len(probes) - 1).bit_length()
    while step > 1:
        sizes = sorted(probes[place].demand.size_bytes for place in known)
        if new and all(high <= _FAR * low for low, high in pairwise(sizes)):
            yield [probes[place] for place in new]
            new = []
        new += [place for place in range(step // 2, len(probes), step) if place not in known]
        known.update(dict.fromkeys(new))
        step //= 2
    if new:
        yield [probes[place] for place in new]


@dataclass(frozen=True)
class _Examination:
    """Makes candidates of an outcome, for sizes from `min_bytes` to `max_bytes`; its schedules have to be valid."""

    min_bytes: int
    max_bytes: int

    def __call__(self, outcome: RaceOutcome) -> list[Candidate]:
        """The answer first; none where there is no answer."""
        run, answer = outcome.run, outcome.synthesis
        if answer is None:
            return []
        found: list[Candidate] = []
        for schedule in (answer.schedule, *answer.runners_up):
            if any(_is_beaten(schedule, other.schedule) for other in found):
                continue
            curve = cost_curve(schedule, self.min_bytes, self.max_bytes)
            if not any(_makes_needless(other.curve, curve) for other in found):
                require_valid(schedule)
                found.append(Candidate(run.engine, answer.solver, schedule, curve, run.demand.size_bytes))
        return found


def _is_beaten(one: Schedule, other: Schedule) -> bool:
    """True if another schedule is faster by more than a little, and has no more messages, as is so much better at small sizes."""
    is_slower = one.makespan_us > (1 + _LEAST_GAIN) * other.makespan_us
    return is_slower and len(one.messages) >= len(other.messages)


class _Candidates:
    """Candidates so far, each kept once."""

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        # Times that each engine found at each size.
        self._times_us: dict[str, dict[float, float]] = {}

    def add(self, answers: Iterable[Sequence[Candidate]]) -> None:
        """Take what a round made of each outcome."""
        for answer in answers:
            for best in answer[:1]:
                self._times_us.setdefault(best.engine, {})[best.at_bytes] = best.schedule.makespan_us
            for new in answer:
                if not any(_makes_needless(other.curve, new.curve) for other in self.candidates):
                    self.candidates = [c for c in self.candidates if not _makes_needless(new.curve, c.curve)]
                    self.candidates.append(new)

    def has_answered(self, engine: str) -> bool:
        """True if an engine found anything anywhere."""
        return engine in self._times_us

    def wide(self, probes: Iterable[Probe]) -> list[Probe]:
        """Sizes whose best time is not close to the bound."""
        return [probe for probe in probes if probe.gap(self.candidates) > CLOSE_TO_BOUND]

    def may_gain(self, run: EngineRun) -> bool:
        """False if what an engine found at other sizes tells that it is hardly faster than the best so far at the run's.

        An algorithm's time is nearly a straight line over sizes, and so the least time of many is nearly concave: between two sizes an engine
        finds nothing below the line between its times there, and beyond all its sizes little below the line through the nearest two.
        """
        size, times_us = run.demand.size_bytes, self._times_us.get(run.engine, {})
        below = sorted((other for other in times_us if other < size), reverse=True)
        above = sorted(other for other in times_us if other > size)
        nearest = [*below[:1], *above[:1]] if below and above else (below or above)[:2]
        if len(nearest) < 2:
            return True
        low, high = sorted(nearest)
        line_us = times_us[low] + (times_us[high] - times_us[low]) * (size - low) / (high - low)
        if not low < size < high:
            is_ahead = times_us[nearest[0]] <= self._best_us(nearest[0]) * (1 + _LEAST_GAIN)
            return line_us < self._best_us(size) * (1 + (_BEATEN if is_ahead else _NEAR))
        is_beaten = all(times_us[other] > (1 + _BEATEN) * self._best_us(other) for other in nearest)
        return not is_beaten and line_us < self._best_us(size) * (1 - _LEAST_GAIN)

    def _best_us(self, size_bytes: float) -> float:
        """Least time at a size so far."""
        return min((candidate.curve.time_us(size_bytes) for candidate in self.candidates), default=math.inf)


def _makes_needless(one: CostCurve, other: CostCurve) -> bool:
    """True if one algorithm is clearly faster than another, or as fast, at every size: curves are straight between breakpoints."""
    borders = {one.min_bytes, one.max_bytes, *(p.from_bytes for c in (one, other) for p in c.pieces)}
    ratios = [one.time_us(size) / other.time_us(size) for size in borders]
    return max(ratios) <= 1 / (1 + _NEAR) or all(abs(ratio - 1) <= RELATIVE for ratio in ratios)
