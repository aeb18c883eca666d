"""Files of a portfolio under a runtime profile: algorithm, protocol and instances for every size, chosen by replay.

1. Candidates are ranked at every probe size by their schedules' times on the machine as protocols see it.
2. The best few are lowered once, and replayed under protocols and instances (`taccl_py.selection`).
3. A path over all sizes is chosen that minimizes the product of times. A change costs as much as `Params.change`, and protocols
   only rise from LL over LL128 to Simple, so that no file alternates with another.
4. Each file ends where the next choice becomes faster, or where it is no longer safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, pairwise

from taccl_py.errors import InvalidArtifact, LoweringError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.portfolio.candidates import Candidate
from taccl_py.portfolio.variants import at_size
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.profiles.view import machine_under
from taccl_py.schedule.ir import Schedule
from taccl_py.selection import Setting, Trial, pieces_of, preferred_us, protocols_for, trial_of, tried_instances
from taccl_py.simulate.cost_curve import CostCurve, cost_curve
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.race import Racer

_RISING = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)


@dataclass(frozen=True)
class Params:
    """Numbers of the choice.

    Attributes
    ----------
    change
        Another choice than at the size before must be faster by this part (RUNTIME_MODEL: 3 %, which files' ranges are worth).
    lowered_per_size
        Candidates that are lowered for one probe size. Guess.
    alike
        Candidates of one engine whose times differ by less than this factor are taken for one. Guess.
    near
        A candidate whose schedule is slower than the best by more than this factor is not lowered for a size. Guess.
    keep
        Choices within this factor of the best at some size are replayed at all sizes. Guess.
    halvings
        Steps by which the end of a file's range is found.
    """

    change: float = 0.03
    lowered_per_size: int = 3
    alike: float = 1.005
    near: float = 1.5
    keep: float = 1.03
    halvings: int = 5


PARAMS = Params()


@dataclass(frozen=True, slots=True)
class Choice:
    """A trial, by its number, and a setting."""

    trial: int
    setting: Setting


@dataclass(frozen=True)
class Stretch:
    """Sizes from `low` to `high`, both included, with what is to serve them, the best first."""

    low: int
    high: int
    choices: tuple[Choice, ...]


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
        Whether time is up.

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
        self._sizes, self._options, self.profile, self._instances = tuple(sizes), options, profile, instances
        chosen = list(_in_pieces(_worth_lowering(candidates, self._sizes, options, profile, racer), self._sizes))
        made = racer.spread(_tried, (_Job(each, size, options, profile) for each, size in chosen))
        kept = [(pair[0], trial) for pair, trial in zip(chosen, made, strict=True) if isinstance(trial, Trial)]
        if not kept:
            raise next((each for each in made if isinstance(each, LoweringError)), ValueError("there is no candidate"))
        self.candidates = [candidate for candidate, _ in kept]
        self.trials = [trial for _, trial in kept]
        self._protocols = protocols_for(self.trials[0].schedule, options, profile)
        self._over = over
        self._racer = racer
        self._ranks = self._estimates()

    def _estimates(self) -> list[list[int]]:
        """For every size the trials worth a replay, the best first."""
        curves = [_curves(candidate, self._sizes, self._protocols, self.profile) for candidate in self.candidates]
        found = []
        for size in self._sizes:
            times = [min(curve.time_us(size) + launch for curve, launch in of_one) for of_one in curves]
            order = sorted(range(len(times)), key=times.__getitem__)
            near = [place for place in order if times[place] <= PARAMS.near * times[order[0]]]
            found.append(near[: PARAMS.lowered_per_size + 1])
        return found

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

    def time_us(self, choice: Choice, size: int) -> float:
        """Time of a choice at a size, a little more for more instances."""
        return preferred_us(self.trials[choice.trial].time_us(size, choice.setting), choice.setting)

    def _times(self) -> list[dict[Choice, float]]:
        """For every size the times of choices that matter at any size."""
        first = self._racer.spread(_replayed, (
            _Replays(self.trials[trial], trial, size, self._protocols, self._instances)
            for place, size in enumerate(self._sizes) for trial in self._ranks[place]
        ))  # fmt: skip
        by_size: list[dict[Choice, float]] = [{} for _ in self._sizes]
        place_of = {size: place for place, size in enumerate(self._sizes)}
        for size, times in first:
            by_size[place_of[size]].update(times)
        for place, times in enumerate(by_size):
            if not times:  # as they are, all programs stop at this size; lowered for it they may not
                times.update(self._assumed(place))
        matter: dict[Choice, None] = {}
        for times in by_size:
            for protocol in self._protocols:
                of_one = {c: t for c, t in times.items() if c.setting.protocol is protocol}
                best_us = min(of_one.values(), default=math.inf)
                if best_us <= PARAMS.keep**4 * min(times.values()):
                    matter.update(dict.fromkeys(c for c, t in of_one.items() if t <= PARAMS.keep * best_us))
        for place, size in enumerate(self._sizes):
            for choice in matter:
                trial = self.trials[choice.trial]
                if choice not in by_size[place] and trial.allows(size, choice.setting):
                    time_us = self.time_us(choice, size)
                    by_size[place] |= {choice: time_us} if math.isfinite(time_us) else {}
        return by_size

    def _assumed(self, place: int) -> dict[Choice, float]:
        """Times by schedules alone where no program can be replayed."""
        size, found = self._sizes[place], {}
        for trial in self._ranks[place]:
            curves = _curves(self.candidates[trial], self._sizes, self._protocols, self.profile)
            for protocol, (curve, launch_us) in zip(self._protocols, curves, strict=True):
                found[Choice(trial, Setting(protocol, 1))] = curve.time_us(size) + launch_us
        return found

    def _end(self, choice: Choice, following: Choice, low: int, high: int) -> int:
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


def _best_path(times: Sequence[dict[Choice, float]]) -> list[Choice]:
    """Choice at every size: least product of times with the cost of changes, protocols never falling."""
    change = math.log1p(PARAMS.change)
    costs: dict[Choice, float] = {choice: math.log(time) for choice, time in times[0].items()}
    back: list[dict[Choice, Choice]] = []
    for of_size in times[1:]:
        nexts: dict[Choice, float] = {}
        origin: dict[Choice, Choice] = {}
        for choice, time in of_size.items():
            level = _RISING.index(choice.setting.protocol)
            allowed = [c for c in costs if _RISING.index(c.setting.protocol) <= level]
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
class _Job:
    """A candidate to be lowered for trials at a size."""

    candidate: Candidate
    size: int
    options: LoweringOptions
    profile: RuntimeProfile


def _tried(job: _Job) -> Trial | LoweringError:
    try:
        return trial_of(at_size(job.candidate.schedule, job.size), job.options, job.profile)
    except LoweringError as error:
        return error
    except InvalidArtifact as error:
        return LoweringError(str(error), runtime=job.options.runtime.name, limit="verifier")


@dataclass(frozen=True)
class _Replays:
    """A trial to be replayed at a size."""

    trial: Trial
    number: int
    size: int
    protocols: tuple[Protocol, ...]
    instances: int | None


def _replayed(job: _Replays) -> tuple[int, dict[Choice, float]]:
    """Times of a trial at a size: instances are raised as long as that helps."""
    times: dict[Choice, float] = {}
    for protocol in job.protocols:
        best_us = math.inf
        for number in tried_instances(job.instances):
            setting = Setting(protocol, number)
            if number > 1 and not job.trial.allows(job.size, setting):
                continue
            time_us = preferred_us(job.trial.time_us(job.size, setting), setting)
            if not math.isfinite(time_us):
                continue
            times[Choice(job.number, setting)] = time_us
            if time_us > best_us:
                break
            best_us = time_us
    return job.size, times


def _worth_lowering(
    candidates: Sequence[Candidate],
    sizes: Sequence[int],
    options: LoweringOptions,
    profile: RuntimeProfile,
    racer: Racer,
) -> list[tuple[Candidate, int]]:
    """Candidates with a size to lower them for: the best few of every size, by schedules on the machine as protocols see it."""
    protocols = protocols_for(candidates[0].schedule, options, profile)
    curves = racer.spread(_curves_of, [(each, tuple(sizes), protocols, profile) for each in candidates])
    found: dict[int, list[int]] = {}
    for size in sizes:
        times = [min(curve.time_us(size) + launch for curve, launch in of_one) for of_one in curves]
        for place in _different(candidates, times):
            found.setdefault(place, []).append(size)
    return [(candidates[place], of_one[len(of_one) // 2]) for place, of_one in found.items()]


def _in_pieces(chosen: Sequence[tuple[Candidate, int]], sizes: Sequence[int]) -> Iterator[tuple[Candidate, int]]:
    """What was chosen, and the same with messages in pieces."""
    for candidate, size in chosen:
        yield candidate, size
        for schedule in islice(pieces_of(at_size(candidate.schedule, size)), 1, None):
            yield replace(candidate, schedule=schedule, curve=cost_curve(schedule, sizes[0], sizes[-1])), size


def _different(candidates: Sequence[Candidate], times: Sequence[float]) -> list[int]:
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


def _curves_of(
    job: tuple[Candidate, tuple[int, ...], tuple[Protocol, ...], RuntimeProfile],
) -> list[tuple[CostCurve, float]]:
    return _curves(*job)


def _curves(
    candidate: Candidate, sizes: Sequence[int], protocols: Sequence[Protocol], profile: RuntimeProfile
) -> list[tuple[CostCurve, float]]:
    """Cost curves of a candidate's schedule as protocols see the machine, each with the launch in microseconds."""
    schedule = candidate.schedule
    found = []
    instances = _room(schedule, profile)
    for protocol in protocols:
        machine = machine_under(schedule.topology, profile, str(protocol), instances)
        curve = cost_curve(replace(schedule, topology=machine), sizes[0], sizes[-1])
        found.append((curve, profile.protocols[str(protocol)].launch_us))
    return found


def _room(schedule: Schedule, profile: RuntimeProfile) -> int:
    """Instances for which a GPU has threadblocks, if each neighbour that a rank sends to or receives from takes one."""
    neighbours: list[set[int]] = [set() for _ in range(schedule.topology.num_ranks)]
    for message in schedule.messages:
        link = schedule.topology.links[message.link]
        neighbours[link.src].add(link.dst)
        neighbours[link.dst].add(link.src)
    each = max(map(len, neighbours), default=1)
    fitting = [number for number in tried_instances(None) if number * each <= profile.most_threadblocks]
    return max(fitting, default=1)


def settings_after(stretch: Stretch, floor: Protocol) -> Iterator[Choice]:
    """Choices of a stretch whose protocol is no lower than one that was used before."""
    level = _RISING.index(floor)
    return (choice for choice in stretch.choices if _RISING.index(choice.setting.protocol) >= level)


LOWEST = _RISING[0]
