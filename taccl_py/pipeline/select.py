"""Protocol and instances of a program, and which schedule it carries out, chosen by replay under a runtime profile.

A schedule is lowered once, and its program is replayed at the size under every protocol and number of instances that the
runtime allows, as if it had been lowered for them (`taccl_py.simulate.runtime_replay`). The best few are then lowered in
earnest, verified, and replayed as they are; the fastest of these is the choice. Under the neutral profile none of this is
done: `deliver.lower_best` chooses as it always has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from taccl_py.errors import InputError, Interrupted, InvalidArtifact, LoweringError
from taccl_py.lowering.limits import most_copies
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import possible_protocols
from taccl_py.pipeline.deliver import Lowered, ReplayedProgram, lower_unverified, verified
from taccl_py.pipeline.search import chosen_instead, require_valid
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.profiles.view import machine_under
from taccl_py.runtimes import MAX_COUNT, MAX_DEPENDENCY_THREADBLOCK
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.timing import time_messages
from taccl_py.schedule.transform import in_pieces, untimed_messages
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import Limits, Over, never
from taccl_py.synthesis.bounds.runtime import RuntimeBound, RuntimeBounds
from taccl_py.synthesis.engine import Synthesis, unlike
from taccl_py.synthesis.messages import bounded_by_messages
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology
from taccl_py.verify.any_size import verify_any


@dataclass(frozen=True)
class Params:
    """Numbers of the choice.

    Attributes
    ----------
    instances
        Numbers of instances that are tried: powers of two, as experts' files have them. Guess.
    most_lowered
        Settings that are lowered in earnest for one choice. Guess.
    worth_of_doubling
        Part of the time that twice as many instances have to save: threadblocks are taken from other kernels. Guess.
    joined
        Threadblocks of all instances may be so many times as many as a GPU has, as lowering joins receiving and sending ones. Guess.
    least_cell_bytes
        Chunks are not cut into instances with fewer bytes. Guess.
    pieces
        Numbers of pieces into which messages are cut, as long as each saves time over the one before. Measured: on mi300x, 64 MiB, with up to
        16 instead of 4 ReduceScatter 415 -> 321 us, AllToAll 261 -> 241.
    least_piece_bytes, most_messages
        Pieces have so many bytes at least, and schedules of pieces so many messages at most: an operation of Simple costs what some
        32 KiB take, and several instances share a piece. Measured: two mi300x, AllReduce of 64 MiB, with up to 4000 messages instead of 1500
        921 -> 528 us, and 18 instead of 12 s in all.
    most_joined_messages
        Messages of a schedule up to which `joined` is tried, as it takes seconds. Guess.
    most_schedules
        Schedules that are lowered for one choice. Guess.
    hopeless
        A schedule that takes so many times as long on links and ports alone as the best program so far does in all is not lowered. Guess.
    bound_seconds
        Most time for bounds. Guess.
    """

    instances: tuple[int, ...] = (1, 2, 4, 8, 16)
    most_lowered: int = 5
    worth_of_doubling: float = 0.01
    joined: float = 2.0
    least_cell_bytes: int = 16
    pieces: tuple[int, ...] = (1, 2, 4, 8, 16)
    least_piece_bytes: float = 65536.0
    most_messages: int = 4000
    most_joined_messages: int = 600
    most_schedules: int = 8
    hopeless: float = 1.5
    bound_seconds: float = 5.0


PARAMS = Params()


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """A protocol and a number of instances."""

    protocol: Protocol
    instances: int


class Trial:
    """A lowered schedule that is replayed under a profile at any size and setting.

    Attributes
    ----------
    schedule
        The schedule, at the size that it was lowered for.
    lowered
        Its program with one instance.
    options, profile
        The runtime, and the runtime profile.
    joined
        Programs by number of instances where copies of the one with one instance do not fit, and lowering has to join threadblocks.
    """

    def __init__(
        self,
        schedule: Schedule,
        lowered: ReplayedProgram,
        options: LoweringOptions,
        profile: RuntimeProfile,
        joined: Mapping[int, ReplayedProgram],
    ) -> None:
        self.schedule, self.lowered = schedule, lowered
        self.options, self.profile = options, profile
        self.joined = joined
        self._replay = RuntimeReplay(lowered.program, schedule.topology, profile)
        self._joined = {
            number: RuntimeReplay(each.program, schedule.topology, profile) for number, each in joined.items()
        }
        self._most_copies = most_copies(lowered.program)
        self._known: dict[tuple[float, Setting], float] = {}

    def time_us(self, size_bytes: float, setting: Setting) -> float:
        """Time at a size as nccl-tests counts it; infinite where connections of the protocol hold too little for the program."""
        if (size_bytes, setting) not in self._known:
            self._known[size_bytes, setting] = math.inf
            with suppress(InvalidArtifact):
                self._known[size_bytes, setting] = self._replayed_us(size_bytes, setting)
        return self._known[size_bytes, setting]

    def _replayed_us(self, size_bytes: float, setting: Setting) -> float:
        protocol, number = str(setting.protocol), setting.instances
        if number in self._joined:
            return self._joined[number].time_us(size_bytes, protocol=protocol)
        return self._replay.time_us(size_bytes, protocol=protocol, instances=number)

    def lowered_for(self, setting: Setting) -> ReplayedProgram | None:
        """Program of a setting, if it was lowered already."""
        lowered = self.lowered if setting.instances == 1 else self.joined.get(setting.instances)
        return lowered if lowered is not None and lowered.program.protocol is setting.protocol else None

    def allows(self, size_bytes: float, setting: Setting) -> bool:
        """True if this many copies of the program fit into the runtime, and a call's chunks can be cut for them.

        The call is one of this size, or the nearest one where the ranks do not divide it.
        """
        program, runtime, number = self.lowered.program, self.options.runtime, setting.instances
        collective, whole = self.schedule.collective, program.num_chunks_per_loop * number
        cell_bytes = size_bytes / max(collective.chunks_per_size, 1)
        return (
            (number in self.joined or self._has_room_for(number))
            and program.num_channels * number <= runtime.max_channels
            and cell_bytes / number >= PARAMS.least_cell_bytes
            and (size_bytes % whole == 0 or collective.served_bytes(size_bytes) % whole == 0)
        )

    def _has_room_for(self, copies: int) -> bool:
        threadblocks = self.lowered.program.num_threadblocks * copies
        return threadblocks <= (self.options.max_threadblocks or 1) and copies <= self._most_copies

    def settings(self, size_bytes: float, protocols: Sequence[Protocol], instances: int | None) -> Iterator[Setting]:
        """Settings for a call of a size: those that the runtime allows, or all with the instances that the user asks for."""
        for number in tried_instances(instances):
            for protocol in protocols:
                setting = Setting(protocol, number)
                if number == 1 or instances is not None or self.allows(size_bytes, setting):
                    yield setting


@dataclass(frozen=True)
class ChosenProgram:
    """A schedule, its program, and its time under the profile in microseconds."""

    schedule: Schedule
    lowered: Lowered
    setting: Setting
    runtime_us: float

    @property
    def preferred_us(self) -> float:
        """See `preferred_us`."""
        return preferred_us(self.runtime_us, self.setting)


def lower_under(
    synthesis: Synthesis,
    options: LoweringOptions,
    profile: RuntimeProfile,
    instances: int | None,
    *,
    fixed_chunks: bool = False,
    over: Over = never,
    stopped: Over = never,
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
    over, stopped
        Whether time is up, and whether the user wants an end.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept by any schedule.
    """
    synthesis = bounded_by_messages(synthesis, MAX_COUNT, over)
    kept, found = synthesis.runners_up[: synthesis.kept], synthesis.runners_up[synthesis.kept :]
    ranked = sorted(found, key=lambda schedule: _estimated_us(schedule, options, profile))
    schedules = unlike([synthesis.schedule, *kept, *ranked])[: PARAMS.most_schedules]
    lowering = _TrialLowering(options, profile, instances, fixed_chunks, over, stopped)
    chosen = _choose(_trials(schedules, lowering, 1 + synthesis.kept), options, instances, over, stopped)
    if chosen.schedule is synthesis.schedule:
        return synthesis, chosen
    return chosen_instead(synthesis, chosen.schedule), chosen


def _estimated_us(schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile) -> float:
    """Estimate of a program's time before it is lowered: the schedule's on the machine as the best protocol sees it."""
    untimed, times_us = untimed_messages(schedule), [math.inf]
    for protocol, machine in machines_seen(schedule, protocols_for(schedule, options, profile), profile):
        end_us = max((each.end_us for each in time_messages(machine, schedule.chunk_bytes, untimed)), default=0.0)
        times_us.append(profile.protocols[str(protocol)].launch_us + end_us)
    return min(times_us)


def machines_seen(
    schedule: Schedule, protocols: Iterable[Protocol], profile: RuntimeProfile
) -> Iterator[tuple[Protocol, Topology]]:
    """A schedule's machine as each protocol sees it, with as many instances as have room."""
    instances = _instances_with_room(schedule, profile)
    for protocol in protocols:
        yield protocol, machine_under(schedule.topology, profile, str(protocol), instances)


def _instances_with_room(schedule: Schedule, profile: RuntimeProfile) -> int:
    """Instances for which a GPU has threadblocks, if each neighbour that a rank sends to or receives from takes one."""
    neighbours: list[set[int]] = [set() for _ in range(schedule.topology.num_ranks)]
    for message in schedule.messages:
        link = schedule.topology.links[message.link]
        neighbours[link.src].add(link.dst)
        neighbours[link.dst].add(link.src)
    each = max(map(len, neighbours), default=1)
    fitting = [number for number in PARAMS.instances if number * each <= profile.most_threadblocks]
    return max(fitting, default=1)


def choose_for(
    schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile, instances: int | None, stopped: Over = never
) -> ChosenProgram:
    """Lower one schedule with the protocol and the instances that are fastest at its size under a profile.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    lowering = _TrialLowering(options, profile, instances, fixed_chunks=False, over=never, stopped=stopped)
    return _choose(_trials([schedule], lowering), options, instances, never, stopped)


def bound_under(schedule: Schedule, profile: RuntimeProfile) -> RuntimeBound:
    """Lower bound under a profile for the collective, size and machine of a schedule."""
    collective, limits = schedule.collective, Limits(seconds=PARAMS.bound_seconds)
    over = limits.countdown()
    bounds = RuntimeBounds.of(schedule.topology, collective.kind, collective.root, profile, limits)
    return bounds.at(schedule.size_bytes, over=over)


def pieces_of(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule, and valid ones with its messages in pieces: what is forwarded, summed or copied out need not wait for a whole one."""
    yield schedule
    for number in PARAMS.pieces[1:]:
        cut = cut_into(schedule, number)
        if cut is not None:
            yield cut


def cut_into(schedule: Schedule, number: int) -> Schedule | None:
    """The schedule with each message in so many pieces; None if these are small or too many, or it is not valid so."""
    if are_small(schedule, schedule.size_bytes, number) or len(schedule.messages) * number > PARAMS.most_messages:
        return None
    cut = in_pieces(schedule, number)
    return None if verify_any(cut) else replace(cut, origin=schedule.origin)


def are_small(schedule: Schedule, size_bytes: float, number: int = 1) -> bool:
    """True if pieces of a schedule's chunks, so many of each, are too small at a size; by default the chunks themselves are pieces."""
    return schedule.collective.chunk_bytes(size_bytes) / number < PARAMS.least_piece_bytes


def _trials(schedules: Iterable[Schedule], lowering: _TrialLowering, needed: int = 1) -> list[Trial]:
    """Trials of the schedules that can be lowered, of one and of so many of the first at least; those that are slow by far are left out.

    Raises
    ------
    LoweringError
        If none can.
    """
    trials: list[Trial] = []
    failure: LoweringError | None = None
    best_us = math.inf
    for place, schedule in enumerate(schedules):
        if trials and place >= needed and lowering.over():
            break
        if schedule.makespan_us > PARAMS.hopeless * best_us:
            continue
        try:
            for trial, time_us in lowering.trials(schedule):
                trials.append(trial)
                best_us = min(best_us, time_us)
        except LoweringError as error:
            failure = failure or error
        except Interrupted:
            if trials:
                break
            raise
    if not trials:
        raise failure or ValueError("there is no schedule to lower")
    return trials


@dataclass(frozen=True)
class _TrialLowering:
    """Settings by which schedules are lowered for trials; arguments as those of `lower_under`."""

    options: LoweringOptions
    profile: RuntimeProfile
    instances: int | None
    fixed_chunks: bool
    over: Over
    stopped: Over

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
            if math.isfinite(before_us) and self.over():
                return
            trial = trial_of(cut, self.options, self.profile, self.stopped)
            time_us = min((each for each, _ in _times(trial, self.options, self.instances)), default=math.inf)
            yield trial, time_us
            if time_us >= before_us:
                return
            before_us = time_us


def trial_of(
    schedule: Schedule,
    options: LoweringOptions,
    profile: RuntimeProfile,
    stopped: Over = never,
    *,
    largest_bytes: float | None = None,
) -> Trial:
    """Lower a schedule with one instance for trials, at sizes up to the largest; None is the schedule's own.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    plain = replace(options, instances=1, max_threadblocks=_most_threadblocks(options, profile))

    def tried(arranged: LoweringOptions) -> Trial:
        lowered = lower_unverified(schedule, arranged, stopped, reorders=False)
        joined = _joined(schedule, lowered, arranged, stopped, largest_bytes or schedule.size_bytes)
        return Trial(schedule, lowered, arranged, profile, joined)

    return in_some_arrangement(tried, plain)


T = TypeVar("T")


def in_some_arrangement(lower: Callable[[LoweringOptions], T], options: LoweringOptions) -> T:
    """Lower with local work spread and the waits of sums gathered, and where that cannot be, without: then connections may be full.

    Raises
    ------
    LoweringError
        If neither can be lowered.
    """
    try:
        return lower(replace(options, times_local=True))
    except LoweringError:
        return lower(replace(options, times_local=False))


def _most_threadblocks(options: LoweringOptions, profile: RuntimeProfile) -> int:
    """Threadblocks of the profile's GPU that run at the same time and can be waited for."""
    runtime = options.runtime
    most = min(runtime.max_threadblocks, runtime.resident_threadblocks, MAX_DEPENDENCY_THREADBLOCK + 1)
    return int(min(most, profile.most_threadblocks, options.max_threadblocks or most))


def _joined(
    schedule: Schedule, lowered: ReplayedProgram, options: LoweringOptions, stopped: Over, largest_bytes: float
) -> dict[int, ReplayedProgram]:
    """Programs with instances that do not fit without joining threadblocks, as long as there are not too many of these."""
    most, blocks = options.max_threadblocks or 1, lowered.program.num_threadblocks
    found: dict[int, ReplayedProgram] = {}
    if len(schedule.messages) > PARAMS.most_joined_messages:
        return found
    for number in PARAMS.instances:
        cell_bytes = largest_bytes / schedule.collective.chunks_per_size / number
        if not most < blocks * number <= most * PARAMS.joined or cell_bytes < PARAMS.least_cell_bytes or stopped():
            continue
        with suppress(LoweringError):
            wanted = replace(options, instances=number)
            found[number] = lower_unverified(schedule, wanted, stopped, reorders=False)
    return found


def protocols_for(schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile) -> tuple[Protocol, ...]:
    """Protocols that may be chosen: the user's, else what machine and collective allow."""
    if options.protocol is not None:
        return (options.protocol,)
    possible = possible_protocols(schedule.topology, schedule.collective.kind)
    return tuple(protocol for protocol in possible if str(protocol) in profile.protocols)


def _choose(
    trials: Sequence[Trial], options: LoweringOptions, instances: int | None, over: Over, stopped: Over
) -> ChosenProgram:
    ranked = sorted(_ranked(trials, options, instances), key=lambda each: each[0])
    best: ChosenProgram | None = None
    failure: LoweringError | None = None
    tried: set[tuple[Setting, float]] = set()
    for estimate_us, _, trial, setting in ranked:
        if best is not None and (
            estimate_us >= best.preferred_us * (1 - RELATIVE) or len(tried) >= PARAMS.most_lowered or over()
        ):
            break
        if stopped() and trial.lowered_for(setting) is None:
            continue  # an interrupted user gets what is there
        # Of schedules that are as fast as each other in the same setting, which are often images of each other, one is enough.
        likeness = (setting, float(f"{estimate_us:.3g}"))
        if likeness in tried:
            continue
        tried.add(likeness)
        try:
            chosen = lower_as(trial, setting, options, stopped)
        except LoweringError as error:
            failure = failure or error
            continue
        except Interrupted:
            if best is not None:
                break
            raise
        if best is None or chosen.preferred_us < best.preferred_us * (1 - RELATIVE):
            best = chosen
    if best is None:
        raise failure or InputError("no protocol and number of instances is possible")
    return best


def _ranked(
    trials: Sequence[Trial], options: LoweringOptions, instances: int | None
) -> Iterator[tuple[float, int, Trial, Setting]]:
    """Every trial and setting with its time; of equal times the one with fewer instances of the earlier trial first."""
    for place, trial in enumerate(trials):
        yield from ((time_us, place, trial, setting) for time_us, setting in _times(trial, options, instances))


def _times(trial: Trial, options: LoweringOptions, instances: int | None) -> Iterator[tuple[float, Setting]]:
    """Every possible setting of a trial, and the time by which it is ranked."""
    size = trial.schedule.size_bytes
    protocols = protocols_for(trial.schedule, options, trial.profile)
    for setting in trial.settings(size, protocols, instances):
        time_us = trial.time_us(size, setting)
        if math.isfinite(time_us):
            yield preferred_us(time_us, setting), setting


def tried_instances(asked: int | None) -> tuple[int, ...]:
    """Numbers of instances to try: the one that the user asks for, else powers of two."""
    return PARAMS.instances if asked is None else (asked,)


def preferred_us(time_us: float, setting: Setting) -> float:
    """Time by which settings are ranked: more instances take more of the GPU, and have to be worth it."""
    return time_us * (1 + PARAMS.worth_of_doubling * math.log2(setting.instances))


def lower_as(trial: Trial, setting: Setting, options: LoweringOptions, stopped: Over = never) -> ChosenProgram:
    """Lower a trial's schedule for a setting and replay its program.

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
    lowered = verified(found, trial.schedule.collective, options.runtime)
    require_chosen(lowered, options)
    replay = RuntimeReplay(lowered.program, trial.schedule.topology, trial.profile)
    return ChosenProgram(trial.schedule, lowered, setting, replay.time_us(trial.schedule.size_bytes))


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
