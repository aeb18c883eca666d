"""Protocol and instances of a program, and which schedule it carries out, chosen by replay under a runtime profile.

A schedule is lowered once, and its program is replayed at the size under every likely protocol and number of instances that the
runtime allows, as copies of it would run (`taccl_py.pipeline.trials`). The best few are then made of copies and replayed as they are.
Where steps carry data of several ranks' shards, which cannot be copied, and while there is time, they are lowered with their instances
laid out together. The fastest that the verifier accepts is the choice. Under the neutral profile none of this is done:
`deliver.lower_best` chooses as it always has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import chain, zip_longest

from taccl_py.errors import InputError, Interrupted, LoweringError
from taccl_py.lowering.fold import folded, sent_steps
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Program, Protocol
from taccl_py.pipeline.deliver import Lowered, ReplayedProgram, lower_unverified, replay_at, verified
from taccl_py.pipeline.search import chosen_instead, require_valid
from taccl_py.pipeline.trials import (
    Setting,
    Trial,
    balance,
    estimated_us,
    in_some_arrangement,
    pieces_of,
    preferred_us,
    protocols_for,
    sums_count,
    trial_of,
    tried_instances,
)
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import MAX_COUNT
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import Limits, Over, never
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.bounds.runtime import RuntimeBounds
from taccl_py.synthesis.engine import Synthesis, unlike
from taccl_py.synthesis.messages import bounded_by_messages


@dataclass(frozen=True)
class Params:
    """Numbers of the choice.

    Attributes
    ----------
    most_lowered
        Settings of which programs are made for one choice. Guess.
    margin
        A program is made of a setting if its first replay is not slower than the best program by this factor. Measured: 93 % of 84
        programs of copies take 0.97 to 1.03 of that replay (`scripts/bench copies`).
    most_schedules
        Schedules that are lowered for one choice. Guess.
    hopeless
        A schedule that takes so many times as long on links and ports alone as the best program so far does in all is not lowered. Guess.
    promise
        Power of its time by which a schedule has to wait longer for its trial than its messages say. Measured: mi250x, AllReduce of 4 MiB
        174 us with 0, 156 with 2 and 3; two ndv4, ReduceScatter of 16 MiB 104.0 us with 0 and 2, 110.7 with 3; two ndv5, AllReduce of 16
        MiB 122 us with 2 and 3, 144 with 8.
    most_balanced
        Trials, the fastest, of which programs with threadblocks in proportion to their work are made over nodes, where sums are steps of
        their own. Measured: two MI250X, AllReduce of 16 MiB, 610 -> 566 us; with fused sums two ndv4, AllReduce of 16 MiB, 199 -> 202 us.
    bound_seconds
        Most time for bounds. Guess.
    """

    most_lowered: int = 5
    margin: float = 1.03
    most_schedules: int = 8
    hopeless: float = 1.5
    promise: float = 2.0
    most_balanced: int = 3
    bound_seconds: float = 5.0


PARAMS = Params()


@dataclass(frozen=True)
class LoweringEnds:
    """Tests for the end of lowering.

    Attributes
    ----------
    over, settled
        Whether time is up for trials, and for lowering the best of them with their instances together.
    stopped
        Whether the user wants an end.
    """

    over: Over = never
    settled: Over = never
    stopped: Over = never


@dataclass(frozen=True)
class ChosenProgram:
    """A schedule, its program, and its time under the profile in microseconds."""

    schedule: Schedule
    lowered: Lowered
    setting: Setting
    runtime_us: float


def lower_under(
    synthesis: Synthesis,
    options: LoweringOptions,
    profile: RuntimeProfile,
    instances: int | None,
    *,
    fixed_chunks: bool = False,
    ends: LoweringEnds | None = None,
) -> tuple[Synthesis, ChosenProgram]:
    """Lower the schedule whose program is fastest under a profile; the choice is the synthesis' schedule.

    Parameters
    ----------
    synthesis
        An answer with its runners-up.
    options
        Runtime, placement, and protocol if the user asks for one.
    profile
        The runtime profile; not the neutral one.
    instances
        Number that the user asks for, or None to choose it.
    fixed_chunks
        Whether the number of chunks is the user's or a sketch's, or the bound is for it, so that messages are not cut into pieces.
    ends
        Tests for the end; None is as long as it takes.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept by any schedule.
    """
    ends = ends or LoweringEnds()
    synthesis = bounded_by_messages(synthesis, MAX_COUNT, ends.over)
    kept, found = synthesis.runners_up[: synthesis.kept], synthesis.runners_up[synthesis.kept :]
    # An answer whose messages take several steps each is not as fast as it seems, and takes long to lower: it has to wait for its turn.
    is_first = all(len(steps) == 1 for steps in sent_steps(folded(synthesis.schedule)))
    first, found = ([synthesis.schedule], found) if is_first else ([], (synthesis.schedule, *found))
    estimates_us = {id(schedule): _estimated_us(schedule, options, profile) for schedule in found}
    ranked = sorted(found, key=lambda schedule: estimates_us[id(schedule)])
    schedules = _in_turn(unlike([*first, *kept, *ranked]), 1 + synthesis.kept)[: PARAMS.most_schedules]
    lowering = _TrialLowering(options, profile, instances, fixed_chunks, any_call=fixed_chunks, ends=ends)
    trials = _trials(schedules, lowering, 1 + synthesis.kept, estimates_us)
    chosen = _choose(trials, lowering)
    if chosen.schedule is synthesis.schedule:
        return synthesis, chosen
    return chosen_instead(synthesis, chosen.schedule), chosen


def _in_turn(schedules: Sequence[Schedule], first: int) -> list[Schedule]:
    """Schedules, after so many first ones, with the engines that found them taking turns: programs of one engine's are much alike."""
    turns: dict[str, list[Schedule]] = {}
    for schedule in schedules[first:]:
        turns.setdefault(schedule.finder, []).append(schedule)
    taken = chain.from_iterable(zip_longest(*turns.values()))
    return [*schedules[:first], *(schedule for schedule in taken if schedule is not None)]


def _estimated_us(schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile) -> float:
    """Estimate of a program's time before it is lowered, under the best protocol."""
    return min(estimated_us(schedule, protocols_for(schedule, options, profile), profile).values(), default=math.inf)


def choose_for(
    schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile, instances: int | None
) -> ChosenProgram:
    """Lower one schedule with the protocol and the instances that are fastest at its size under a profile.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    lowering = _TrialLowering(options, profile, instances, fixed_chunks=False, any_call=True, ends=LoweringEnds())
    return _choose(_trials([schedule], lowering, 1, {}), lowering)


def bound_under(schedule: Schedule, profile: RuntimeProfile) -> Bound:
    """Lower bound under a profile for the collective, size and machine of a schedule."""
    collective, limits = schedule.collective, Limits(seconds=PARAMS.bound_seconds)
    over = limits.countdown()
    bounds = RuntimeBounds.of(schedule.topology, collective.kind, collective.root, profile, limits)
    return bounds.at(schedule.size_bytes, over=over)


def _trials(
    schedules: Iterable[Schedule], lowering: _TrialLowering, needed: int, estimates_us: Mapping[int, float]
) -> list[Trial]:
    """Trials of the schedules that can be lowered, of one and of so many of the first at least; those that are slow by far are left out.

    The first of each engine comes first if its estimate, by its identity, is below what was found until then. Of all others, as they are or
    cut into ever more pieces, those of few messages do, which take little time, and what promises to be fast.

    Raises
    ------
    LoweringError
        If none can.
    """
    found = _FoundTrials()
    try:
        finders = set[str]()
        for place, schedule in enumerate(schedules):
            is_of_another = schedule.finder not in finders
            finders.add(schedule.finder)
            trials, estimate_us = lowering.trials(schedule), estimates_us.get(id(schedule), 0.0)
            promises = is_of_another and estimate_us < found.best_us
            if place < needed or (promises and not lowering.ends.over()):  # time counts from when it is first asked for
                found.go_on(place, trials)
            else:
                found.wait(place, schedule, estimate_us, trials)
        while found.go_on_with_next(lowering.ends.over):
            pass
    except Interrupted:
        if not found.trials:
            raise
    if not found.trials:
        raise found.failure or ValueError("there is no schedule to lower")
    return found.trials


class _FoundTrials:
    """Trials as they are found.

    Attributes
    ----------
    trials
        All of them.
    unfinished
        Heap of what goes on: when its turn is, place of the schedule, and its next trials.
    best_us
        Least time of all; infinite if there is none.
    failure
        The first that could not be lowered.
    """

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.unfinished: list[tuple[float, int, Iterator[tuple[Trial, float]]]] = []
        self.best_us = math.inf
        self.failure: LoweringError | None = None

    def wait(self, place: int, schedule: Schedule, estimate_us: float, trials: Iterator[tuple[Trial, float]]) -> None:
        """Let the schedule of this place wait for its first trial."""

        def unless_hopeless() -> Iterator[tuple[Trial, float]]:
            if schedule.makespan_us <= PARAMS.hopeless * self.best_us:
                yield from trials

        heappush(self.unfinished, (_turn(schedule, estimate_us), place, unless_hopeless()))

    def go_on_with_next(self, over: Over) -> bool:
        """Take the trial whose turn it is; False if there is none, or no time for more than one."""
        if not self.unfinished or (self.trials and over()):
            return False
        _, place, trials = heappop(self.unfinished)
        self.go_on(place, trials)
        return True

    def go_on(self, place: int, trials: Iterator[tuple[Trial, float]]) -> None:
        """Take the next trial of the schedule of this place, if there is one and it can be lowered."""
        try:
            following = next(trials, None)
        except LoweringError as error:
            self.failure = self.failure or error
            return
        if following is not None:
            trial, time_us = following
            self.trials.append(trial)
            self.best_us = min(self.best_us, time_us)
            estimate_us = _estimated_us(trial.schedule, trial.options, trial.profile)
            heappush(self.unfinished, (_turn(trial.schedule, min(time_us, estimate_us)), place, trials))


def _turn(schedule: Schedule, promised_us: float) -> float:
    """Turn of a schedule whose next trial may take so long, the least first."""
    return len(schedule.messages) * math.pow(promised_us, PARAMS.promise)


@dataclass(frozen=True)
class _TrialLowering:
    """Settings by which schedules are lowered for trials; arguments as those of `lower_under` and `Trial`."""

    options: LoweringOptions
    profile: RuntimeProfile
    instances: int | None
    fixed_chunks: bool
    any_call: bool
    ends: LoweringEnds

    def trials(self, schedule: Schedule) -> Iterator[tuple[Trial, float]]:
        """Trials of a schedule, and of it with its messages in ever more pieces as long as that helps, each with its least time.

        Raises
        ------
        LoweringError
            If a limit of the runtime cannot be kept.
        """
        require_valid(schedule)
        before_us = math.inf
        for cut in (schedule,) if self.fixed_chunks else pieces_of(schedule):
            trial = trial_of(cut, self.options, self.profile, self.ends.stopped, any_call=self.any_call)
            time_us = min((each for each, _ in _times(trial, self.instances, trial.likely)), default=math.inf)
            yield trial, time_us
            if time_us >= before_us:
                return
            before_us = time_us


def _choose(trials: Sequence[Trial], lowering: _TrialLowering) -> ChosenProgram:
    settled = _SettledTrials(lowering.options, lowering.ends)
    if lowering.instances is None and lowering.profile.adds_apart:
        _balance_best(trials, lowering.ends)
    for are_likely in (True, False):
        ranked = sorted(_ranked(trials, lowering.instances, are_likely=are_likely), key=lambda each: each[0])
        chosen = _first_verified(settled, ranked)
        if chosen is not None:
            return chosen
    raise settled.failure or InputError("no protocol and number of instances is possible")


def _balance_best(trials: Sequence[Trial], ends: LoweringEnds) -> None:
    """Give the fastest trials programs with threadblocks in proportion to their work, unless all have them."""
    ranked = sorted(trials, key=lambda trial: min(map(trial.best_us, tried_instances(None))))
    for trial in ranked[: PARAMS.most_balanced]:
        if not sums_count(trial.schedule.topology, trial.profile) and not ends.settled():
            with suppress(LoweringError, Interrupted):  # an interrupted user gets what is there
                balance(trial, ends.stopped)


def _first_verified(
    settled: _SettledTrials, ranked: Sequence[tuple[float, int, Trial, Setting]]
) -> ChosenProgram | None:
    """The fastest program that the verifier accepts, of the best few that are ranked; None if there is none."""
    tried: set[tuple[Setting, float]] = set()
    for estimate_us, _, trial, setting in ranked:
        while settled.trials:
            if estimate_us < settled.worth_us and len(tried) < PARAMS.most_lowered and not settled.over():
                break
            if (chosen := settled.verified_best()) is not None:
                return chosen
        if settled.stopped() and settled.trials:
            break
        # Of schedules that are as fast as each other in the same setting, which are often images of each other, one is enough.
        likeness = (setting, float(f"{estimate_us:.3g}"))
        if likeness in tried:
            continue
        tried.add(likeness)
        settled.add(trial, setting)
    while settled.trials:
        if (chosen := settled.verified_best()) is not None:
            return chosen
    return None


def _ranked(
    trials: Sequence[Trial], instances: int | None, *, are_likely: bool
) -> Iterator[tuple[float, int, Trial, Setting]]:
    """Every trial and setting of likely protocols, or of others, with its time; of equal times fewer instances of the earlier trial first."""
    for place, trial in enumerate(trials):
        possible = protocols_for(trial.schedule, trial.options, trial.profile)
        protocols = [each for each in possible if (each in trial.likely) is are_likely]
        yield from ((time_us, place, trial, setting) for time_us, setting in _times(trial, instances, protocols))


def _times(trial: Trial, instances: int | None, protocols: Sequence[Protocol]) -> Iterator[tuple[float, Setting]]:
    """Every possible setting of a trial under some protocols, and the time by which it is ranked."""
    size = trial.schedule.size_bytes
    for setting in trial.settings(size, protocols, instances):
        time_us = trial.time_us(size, setting)
        if math.isfinite(time_us):
            yield preferred_us(time_us, setting), setting


@dataclass(frozen=True, eq=False)
class SettledTrial:
    """A trial's program for a setting, which nobody has verified, and its time under the profile in microseconds.

    The program is one of copies, with no replay of links and ports alone, unless it was `lowered` for the setting.
    """

    trial: Trial
    setting: Setting
    program: Program
    runtime_us: float
    lowered: ReplayedProgram | None = None

    @property
    def preferred_us(self) -> float:
        """See `preferred_us`."""
        return preferred_us(self.runtime_us, self.setting)

    def chosen(self, options: LoweringOptions) -> ChosenProgram:
        """Return the program, verified.

        Raises
        ------
        LoweringError
            If its flags come too early.
        """
        schedule, runtime = self.trial.schedule, options.runtime
        found = self.lowered
        if found is None:
            replay = replay_at(self.program, schedule, runtime, self.setting.instances)
            found = ReplayedProgram(self.program, replay, self.trial.options.port_order)
        lowered = verified(found, schedule.collective, runtime)
        require_chosen(lowered, options)
        return ChosenProgram(schedule, lowered, self.setting, self.runtime_us)


def settle(trial: Trial, setting: Setting, stopped: Over = never) -> SettledTrial:
    """A trial's program for a setting, of copies as it was replayed; where there can be none, lowered for the setting.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    if trial.lowered_for(setting) is None:
        with suppress(LoweringError):
            return _timed(trial, setting, trial.copies(setting))
    return settle_together(trial, setting, stopped)


def settle_together(trial: Trial, setting: Setting, stopped: Over = never) -> SettledTrial:
    """A trial's schedule lowered for a setting, its instances laid out together.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    found = trial.lowered_for(setting)
    if found is None:
        wanted = replace(trial.options, protocol=setting.protocol, instances=setting.instances)
        found = in_some_arrangement(
            lambda each: lower_unverified(trial.schedule, each, stopped, reorders=False), wanted
        )
    return _timed(trial, setting, found.program, found)


def _timed(trial: Trial, setting: Setting, program: Program, found: ReplayedProgram | None = None) -> SettledTrial:
    replay = RuntimeReplay(program, trial.schedule.topology, trial.profile)
    return SettledTrial(trial, setting, program, replay.time_us(trial.schedule.size_bytes), found)


class _SettledTrials:
    """Programs of trials, of which the fastest is verified; `failure` is the first that could not be lowered or was refused."""

    def __init__(self, options: LoweringOptions, ends: LoweringEnds) -> None:
        self.trials: list[SettledTrial] = []
        self.failure: LoweringError | Interrupted | None = None
        self.over, self.stopped = ends.settled, ends.stopped
        self._options = options
        self._tried_together: set[SettledTrial] = set()

    @property
    def worth_us(self) -> float:
        """Time by the first replay below which a setting is worth a program."""
        return PARAMS.margin * min(each.preferred_us for each in self.trials)

    def add(
        self, trial: Trial, setting: Setting, made: Callable[[Trial, Setting, Over], SettledTrial] = settle
    ) -> None:
        """Make the program of a trial for a setting, if that can be done."""
        try:
            self.trials.append(made(trial, setting, self.stopped))
        except (LoweringError, Interrupted) as error:  # an interrupted user gets what is there
            self.failure = self.failure or error

    def _lower_together(self) -> None:
        """As long as there is time, lower the best few with their instances together too, which once in a while is faster than copies."""
        for each in sorted(self.trials, key=lambda each: each.preferred_us):
            if self.over() or self.stopped() or each.preferred_us > self.worth_us:
                break
            if each.lowered is None and each.setting.instances > 1 and each not in self._tried_together:
                self._tried_together.add(each)
                self.add(each.trial, each.setting, settle_together)

    def verified_best(self) -> ChosenProgram | None:
        """The fastest program; None if it is refused, and then it is left out."""
        self._lower_together()
        fastest = min(self.trials, key=lambda each: each.preferred_us)
        try:
            return fastest.chosen(self._options)
        except LoweringError as error:
            self.failure = self.failure or error
            self.trials.remove(fastest)
            return None


def require_chosen(lowered: Lowered, options: LoweringOptions) -> None:
    """Refuse a program whose protocol nobody asked for and whose flags the runtime raises before their data have been read.

    Raises
    ------
    LoweringError
        If that is so.
    """
    facts = lowered.verdict.facts
    if options.protocol is None and facts is not None and facts.flags_early:
        raise LoweringError(
            f"with protocol {lowered.program.protocol} flags come before what is sent has been read; use another one",
            runtime=options.runtime.name,
            limit="protocol",
        )
