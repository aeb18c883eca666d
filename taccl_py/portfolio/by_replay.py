"""Files of a portfolio under a runtime profile: algorithm, protocol and instances for every size, chosen by replay.

1. Candidates are ranked at every probe size by their schedules' times on the machine as protocols see it.
2. The best few are lowered once, also with messages in pieces for the sizes that are large enough, and replayed under protocols and
   instances (`taccl_py.pipeline.select`).
3. A path over all sizes is chosen that minimizes the product of times. A change costs as much as `Params.change`, and protocols
   only rise from LL over LL128 to Simple, so that no file alternates with another.
4. Each file ends where the next choice becomes faster, or where it is no longer safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise

from taccl_py.errors import LoweringError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.pipeline import trials
from taccl_py.pipeline.trials import (
    Setting,
    Trial,
    are_small,
    cut_into,
    machines_seen,
    preferred_us,
    protocols_for,
    trial_of,
)
from taccl_py.portfolio.candidates import Candidate
from taccl_py.portfolio.variants import at_size
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.race import Racer

RISING = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)


@dataclass(frozen=True)
class Params:
    """Numbers of the choice.

    Attributes
    ----------
    change
        Another choice than at the size before must be faster by this part: predictions are off by as much. Guess.
    lowered_per_size
        Candidates that are lowered for one probe size. Guess.
    replayed_per_size
        Trials that are replayed at one probe size in all their settings. Guess.
    every
        Trials are replayed at one in so many probe sizes, and the best ones at those between. Guess.
    alike
        Candidates of one engine whose times differ by less than this factor are taken for one. Guess.
    near
        A candidate whose schedule is slower than the best by more than this factor, as a protocol sees the machine, is not lowered or
        replayed for a size. Guess.
    keep
        Choices within this factor of the best at some size are replayed at the sizes around it. Guess.
    far
        Beyond a size at which they are slower than the best by this factor, they are not. Guess.
    halvings
        Steps by which the end of a file's range is found. Guess.
    """

    change: float = 0.03
    lowered_per_size: int = 3
    replayed_per_size: int = 6
    every: int = 2
    alike: float = 1.005
    near: float = 1.5
    keep: float = 1.03
    far: float = 1.3
    halvings: int = 5


PARAMS = Params()


@dataclass(frozen=True, slots=True)
class TrialChoice:
    """A trial, by its number, and a setting."""

    trial: int
    setting: Setting


@dataclass(frozen=True)
class Stretch:
    """Sizes from `low` to `high`, both included, with what is to serve them, the best first."""

    low: int
    high: int
    choices: tuple[TrialChoice, ...]


class ReplayedCover:
    """Trials of candidates at the probe sizes of a range, and the choice among them.

    Parameters
    ----------
    candidates
        Algorithms.
    sizes
        Probe sizes in bytes, in order.
    options
        Runtime, placement, and protocol if the user asks for one.
    profile
        The runtime profile.
    instances
        Number that the user asks for, or None.
    racer
        For what can be done side by side.
    over
        Whether time is up; then no more candidates are lowered than are there, and the best of each size alone are replayed beside it.

    Raises
    ------
    LoweringError
        If no candidate can be lowered.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        sizes: Sequence[int],
        options: LoweringOptions,
        profile: RuntimeProfile,
        instances: int | None,
        racer: Racer,
        over: Over,
    ) -> None:
        self.profile = profile
        self._sizes, self._instances, self._racer, self._over = tuple(sizes), instances, racer, over
        self._protocols = protocols_for(candidates[0].schedule, options, profile)
        estimating = [_Estimating(each, self._sizes, self._protocols, profile) for each in candidates]
        estimates = racer.spread(_estimated, estimating)
        tasks = list(_trial_tasks(candidates, self._sizes, estimates, options, profile, instances))
        made = list(racer.spread(_tried, _until_over(tasks, over)))
        lots = [
            (task.number, lot) for task, lot in zip(tasks, made, strict=False) if not isinstance(lot, LoweringError)
        ]
        if not lots:
            raise next((each for each in made if isinstance(each, LoweringError)), ValueError("there is no candidate"))
        self.candidates = [each.candidate for _, lot in lots for each in lot]
        self.trials = [each.trial for _, lot in lots for each in lot]
        self._estimates = [estimates[number] for number, lot in lots for _ in lot]
        self._is_cut = [place > 0 for _, lot in lots for place in range(len(lot))]

    def _worth_replaying(self, place: int) -> list[int]:
        """Trials of the best few candidates at a size, the best first, without pieces that would be small there."""
        size = self._sizes[place]
        times = [min(each[place].values()) for each in self._estimates]
        order = sorted(range(len(times)), key=times.__getitem__)
        near = [number for number in order if times[number] <= PARAMS.near * times[order[0]]]
        best = list(dict.fromkeys(times[number] for number in near))[: PARAMS.replayed_per_size]
        return [
            number
            for number in near
            if times[number] in best and not (self._is_cut[number] and are_small(self.trials[number].schedule, size))
        ]

    def _promising(self, number: int, place: int) -> tuple[Protocol, ...]:
        """Protocols under which a trial's schedule is not far slower at a size than the best one."""
        least_us = min(min(each[place].values()) for each in self._estimates)
        own = self._estimates[number][place]
        return tuple(protocol for protocol in self._protocols if own[protocol] <= PARAMS.near * least_us)

    def stretches(self, low: int, high: int) -> list[Stretch]:
        """Choices for all sizes of a range, in order."""
        times = self._times()
        path = _best_path(times)
        runs = [
            (choice, [place for place, _ in group]) for choice, group in groupby(enumerate(path), key=lambda e: e[1])
        ]
        ends = []
        for (choice, places), (following, _) in pairwise(runs):
            ends.append(self._end(choice, following, self._sizes[places[-1]], self._sizes[places[-1] + 1]))
        starts = [low, *(end + 1 for end in ends)]
        found = []
        for (choice, places), first, last in zip(runs, starts, [*ends, high], strict=True):
            middle = times[places[len(places) // 2]]
            others = sorted(middle, key=middle.__getitem__)
            found.append(Stretch(first, last, tuple(dict.fromkeys((choice, *others)))))
        return found

    def widened(self, stretch: Stretch) -> Stretch:
        """A stretch with all protocols of the trials at its middle size behind its choices, the best first: none of these may be safe."""
        place = min(
            range(len(self._sizes)),
            key=lambda each: abs(math.log(self._sizes[each] ** 2 / (stretch.low * stretch.high))),
        )
        sizes, times = [_SizeProtocols(place, self._sizes[place], self._protocols)], dict[TrialChoice, float]()
        for number in self._worth_replaying(place):
            for _, found in _replayed(_Replaying(self.trials[number], number, sizes, self._instances)):
                times.update(found)
        others = sorted(times, key=times.__getitem__)
        return replace(stretch, choices=tuple(dict.fromkeys((*stretch.choices, *others))))

    def time_us(self, choice: TrialChoice, size: int) -> float:
        """Time of a choice at a size, a little more for more instances."""
        return preferred_us(self.trials[choice.trial].time_us(size, choice.setting), choice.setting)

    def _times(self) -> list[dict[TrialChoice, float]]:
        """For every size the times of choices that matter at any size."""
        by_size = self._first_times()
        matter: dict[TrialChoice, None] = {}
        for times in filter(None, by_size):
            # Where time is over, the best one of each size is enough.
            matter.update(dict.fromkeys([min(times, key=times.__getitem__)] if self._over() else self._near(times)))
        least_us = [min(times.values(), default=math.inf) for times in by_size]
        known: dict[int, dict[TrialChoice, dict[int, float]]] = {}
        for choice in matter:
            times_us = {place: times[choice] for place, times in enumerate(by_size) if choice in times}
            known.setdefault(choice.trial, {})[choice] = times_us
        tasks = [_Extending(self.trials[number], each, self._sizes, least_us) for number, each in known.items()]
        for found in self._racer.spread_longest_first(_extended, tasks, _Extending.length):
            for choice, place, time_us in found:
                by_size[place][choice] = time_us
        for place, times in enumerate(by_size):
            if not times:  # as they are, all programs stop at this size; lowered for it they may not
                times.update(self._assumed(place))
        return by_size

    def _near(self, times: dict[TrialChoice, float]) -> Iterator[TrialChoice]:
        """Of the times at a size the choices that are near the best of their protocol, where that is not far from the best of all."""
        for protocol in self._protocols:
            of_one = {c: t for c, t in times.items() if c.setting.protocol is protocol}
            best_us = min(of_one.values(), default=math.inf)
            if best_us <= PARAMS.keep**4 * min(times.values()):
                yield from (c for c, t in of_one.items() if t <= PARAMS.keep * best_us)

    def _first_times(self) -> list[dict[TrialChoice, float]]:
        """Times of the trials that are worth replaying, at one in so many sizes."""
        wanted: dict[int, list[_SizeProtocols]] = {}
        for place, size in enumerate(self._sizes):
            if place % PARAMS.every == 0 or size == self._sizes[-1]:
                for number in self._worth_replaying(place):
                    wanted.setdefault(number, []).append(_SizeProtocols(place, size, self._promising(number, place)))
        tasks = [_Replaying(self.trials[number], number, sizes, self._instances) for number, sizes in wanted.items()]
        by_size: list[dict[TrialChoice, float]] = [{} for _ in self._sizes]
        for found in self._racer.spread_longest_first(_replayed, tasks, _Replaying.length):
            for place, times in found:
                by_size[place].update(times)
        return by_size

    def _assumed(self, place: int) -> dict[TrialChoice, float]:
        """Times by schedules alone where no program can be replayed."""
        return {
            TrialChoice(number, Setting(protocol, 1)): time_us
            for number, estimates in enumerate(self._estimates)
            for protocol, time_us in estimates[place].items()
        }

    def _end(self, choice: TrialChoice, following: TrialChoice, low: int, high: int) -> int:
        """Largest size, from `low` on and below `high`, at which a choice is no slower than the one that follows."""
        for _ in range(PARAMS.halvings):
            middle = _rounded(math.sqrt(low * high), low, high)
            if middle in (low, high):
                break
            if self.time_us(choice, middle) <= self.time_us(following, middle):
                low = middle
            else:
                high = middle
        return high - 1


def _rounded(size: float, low: int, high: int) -> int:
    """A size between two others with few digits in binary, which calls have."""
    unit = 1 << max(0, low.bit_length() - 4)
    return min(high, max(low, round(size / unit) * unit))


def _best_path(times: Sequence[dict[TrialChoice, float]]) -> list[TrialChoice]:
    """Choice at every size: least product of times with the cost of changes, protocols never falling."""
    change = math.log1p(PARAMS.change)
    costs: dict[TrialChoice, float] = {choice: math.log(time) for choice, time in times[0].items()}
    back: list[dict[TrialChoice, TrialChoice]] = []
    for of_size in times[1:]:
        nexts: dict[TrialChoice, float] = {}
        origin: dict[TrialChoice, TrialChoice] = {}
        for choice, time in of_size.items():
            level = RISING.index(choice.setting.protocol)
            allowed = [c for c in costs if RISING.index(c.setting.protocol) <= level]
            if not allowed:
                continue
            reached = {c: costs[c] + (c != choice) * change for c in allowed}
            best = min(reached, key=reached.__getitem__)
            nexts[choice] = reached[best] + math.log(time)
            origin[choice] = best
        costs = nexts
        back.append(origin)
    last = min(costs, key=costs.__getitem__)
    path = [last]
    for origin in reversed(back):
        path.append(origin[path[-1]])
    return path[::-1]


@dataclass(frozen=True)
class _Estimating:
    """A candidate whose time at every size is to be estimated by its schedule."""

    candidate: Candidate
    sizes: tuple[int, ...]
    protocols: tuple[Protocol, ...]
    profile: RuntimeProfile


def _estimated(task: _Estimating) -> list[dict[Protocol, float]]:
    """For every size the time in microseconds as each protocol sees the machine, its launch included."""
    schedule = task.candidate.schedule
    found: list[dict[Protocol, float]] = [{} for _ in task.sizes]
    for protocol, machine in machines_seen(schedule, task.protocols, task.profile):
        curve = cost_curve(replace(schedule, topology=machine), task.sizes[0], task.sizes[-1])
        launch_us = task.profile.protocols[str(protocol)].launch_us
        for size, times in zip(task.sizes, found, strict=True):
            times[protocol] = launch_us + curve.time_us(size)
    return found


@dataclass(frozen=True)
class _UnloweredTrials:
    """A candidate, by its number, to be lowered for trials, whole and in pieces, for those of all sizes at which it is among the best."""

    candidate: Candidate
    number: int
    best_at: list[int]
    sizes: tuple[int, ...]
    options: LoweringOptions
    profile: RuntimeProfile
    instances: int | None
    any_call: bool

    def least_us(self, trial: Trial, size: int) -> float:
        """Time of the fastest setting of a trial at a size."""
        settings = trial.settings(size, trial.likely, self.instances)
        return min((preferred_us(trial.time_us(size, each), each) for each in settings), default=math.inf)


def _trial_tasks(
    candidates: Sequence[Candidate],
    sizes: tuple[int, ...],
    estimates: Sequence[Sequence[dict[Protocol, float]]],
    options: LoweringOptions,
    profile: RuntimeProfile,
    instances: int | None,
) -> Iterator[_UnloweredTrials]:
    """The best few candidates of every size."""
    found: dict[int, list[int]] = {}
    any_call = len({candidate.schedule.collective.chunks_per_rank for candidate in candidates}) == 1
    for place, size in enumerate(sizes):
        for number in _best_few(candidates, [min(each[place].values()) for each in estimates]):
            found.setdefault(number, []).append(size)
    for number, best_at in found.items():
        yield _UnloweredTrials(candidates[number], number, best_at, sizes, options, profile, instances, any_call)


def _cut_for(whole: Candidate, best_at: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[Candidate, int]]:
    """A candidate, and the same with messages in pieces; each with the middle one of its sizes that are large enough, to be lowered for it.

    The middle one of all sizes must not decide about pieces: in a wide range it is too small for them.
    """
    yield whole, best_at[len(best_at) // 2]
    messages = len(whole.schedule.messages)
    for pieces in trials.PARAMS.pieces:
        fitting = [size for size in best_at if not are_small(whole.schedule, size, pieces)]
        if not fitting:
            return
        size = fitting[len(fitting) // 2]
        cut = cut_into(at_size(whole.schedule, size), pieces)
        if cut is not None and len(cut.messages) > messages:
            messages = len(cut.messages)
            yield replace(whole, schedule=cut, curve=cost_curve(cut, sizes[0], sizes[-1])), size


def _best_few(candidates: Sequence[Candidate], times: Sequence[float]) -> list[int]:
    """The best few at a size; of those of one engine that are as fast as each other, one."""
    chosen: list[int] = []
    for place in sorted(range(len(times)), key=times.__getitem__):
        if times[place] > PARAMS.near * min(times) or len(chosen) == PARAMS.lowered_per_size:
            break
        engine = candidates[place].engine
        if not any(
            candidates[other].engine == engine and times[place] <= PARAMS.alike * times[other] for other in chosen
        ):
            chosen.append(place)
    return chosen


def _until_over(tasks: Sequence[_UnloweredTrials], over: Over) -> Iterator[_UnloweredTrials]:
    """Tasks as long as there is time, the first one in any case."""
    for number, task in enumerate(tasks):
        if number and over():
            return
        yield task


@dataclass(frozen=True)
class _CandidateTrial:
    """A candidate, its messages in pieces or not, and its trial."""

    candidate: Candidate
    trial: Trial


def _tried(task: _UnloweredTrials) -> list[_CandidateTrial] | LoweringError:
    """Trials of a candidate, and of it in ever more pieces as long as that helps at the size that these are lowered for."""
    found: list[_CandidateTrial] = []
    for candidate, size in _cut_for(task.candidate, task.best_at, task.sizes):
        try:
            schedule, largest = at_size(candidate.schedule, size), task.best_at[-1]
            trial = trial_of(schedule, task.options, task.profile, largest_bytes=largest, any_call=task.any_call)
        except LoweringError as error:
            return found or error
        found.append(_CandidateTrial(candidate, trial))
        if len(found) > 1 and task.least_us(trial, size) >= task.least_us(found[-2].trial, size):
            break
    return found


@dataclass(frozen=True, slots=True)
class _SizeProtocols:
    """A size, by its place, and the protocols under which a trial is to be replayed there."""

    place: int
    size: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True)
class _Replaying:
    """A trial, by its number, to be replayed at some sizes: what it takes to send it to another process is taken once."""

    trial: Trial
    number: int
    sizes: list[_SizeProtocols]
    instances: int | None

    def length(self) -> float:
        """About how long it takes, in any unit."""
        return float(len(self.trial.schedule.messages) * len(self.sizes))


def _replayed(task: _Replaying) -> list[tuple[int, dict[TrialChoice, float]]]:
    """Places of sizes, and times of the trial there: instances are raised as long as that helps."""
    found = []
    for each in task.sizes:
        times: dict[TrialChoice, float] = {}
        for protocol in each.protocols:
            best_us = math.inf
            for setting in task.trial.settings(each.size, (protocol,), task.instances):
                time_us = preferred_us(task.trial.time_us(each.size, setting), setting)
                if not math.isfinite(time_us):
                    continue
                times[TrialChoice(task.number, setting)] = time_us
                if time_us > best_us:
                    break
                best_us = time_us
        found.append((each.place, times))
    return found


@dataclass(frozen=True)
class _Extending:
    """Choices of a trial with their times by place, to be replayed at other sizes; and the least time of any choice at each size."""

    trial: Trial
    known: dict[TrialChoice, dict[int, float]]
    sizes: tuple[int, ...]
    least_us: list[float]

    def length(self) -> float:
        """About how long it takes, in any unit."""
        return float(len(self.trial.schedule.messages) * len(self.known))


def _extended(task: _Extending) -> list[tuple[TrialChoice, int, float]]:
    """Times of choices at sizes next to those where they are known, as long as they are not far from the best there."""
    return [(choice, *found) for choice, known in task.known.items() for found in _beside(task, choice.setting, known)]


def _beside(task: _Extending, setting: Setting, known: dict[int, float]) -> Iterator[tuple[int, float]]:
    """Places and times of one choice."""
    times = dict(known)
    rising = range(len(task.sizes))
    for before, place in chain(pairwise(rising), pairwise(rising[::-1])):
        known_us = times.get(before, math.inf)
        is_near = known_us < math.inf and known_us <= PARAMS.far * min(known_us, task.least_us[before])
        if is_near and place not in times and task.trial.allows(task.sizes[place], setting):
            time_us = preferred_us(task.trial.time_us(task.sizes[place], setting), setting)
            if math.isfinite(time_us):
                times[place] = time_us
                yield place, time_us


def in_rising_order(stretch: Stretch, floor: Protocol) -> list[TrialChoice]:
    """Choices of a stretch, those whose protocol was passed already at smaller sizes last, for want of others."""
    level = RISING.index(floor)
    return sorted(stretch.choices, key=lambda choice: RISING.index(choice.setting.protocol) < level)


LOWEST = RISING[0]
