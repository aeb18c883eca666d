"""Trials: a schedule's program, replayed at any size as if it had been lowered for any protocol and number of instances.

A schedule is lowered once. Where copies of its program do not fit beside each other, others with fewer threadblocks are made of what
was lowered. Messages can be cut into pieces, so that what is forwarded, summed or copied out need not wait for a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from taccl_py.errors import InvalidArtifact, LoweringError
from taccl_py.lowering.copies import OneInstance
from taccl_py.lowering.fold import folded, sent_steps
from taccl_py.lowering.limits import most_copies
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Program, Protocol
from taccl_py.lowering.protocol import flag_is_early, possible_protocols
from taccl_py.pipeline.deliver import BalancedPrograms, ReplayedProgram, TrialPrograms
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.profiles.view import machine_under, with_links_for_sums
from taccl_py.runtimes import MAX_DEPENDENCY_THREADBLOCK
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.timing import time_messages
from taccl_py.schedule.transform import in_pieces, largest_message, untimed_messages
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import Over, never
from taccl_py.topology.model import Topology
from taccl_py.verify.any_size import verify_any
from taccl_py.work import count_work, work_set_aside


@dataclass(frozen=True)
class Params:
    """Numbers of trials.

    Attributes
    ----------
    instances
        Numbers of instances that are tried: powers of two, as experts' files have them. Guess.
    worth_of_doubling
        Part of the time that twice as many instances have to save: threadblocks are taken from other kernels. Guess.
    near
        Protocols that by estimates are slower than the best by more than this factor are replayed only where no other is safe. Guess.
    least_cell_bytes
        Chunks are not cut into instances with fewer bytes. Guess.
    pieces
        Numbers of pieces into which the largest messages are cut, as long as each saves time over the one before. Measured: on mi300x,
        64 MiB, with up to 16 instead of 4 ReduceScatter 415 -> 321 us, AllToAll 261 -> 241.
    copied
        Part of the work of lowering that copies of a program take, with their replay. Measured: 84 programs in 19.5 s, with their
        instances laid out together in 84.1 s (`scripts/bench copies`).
    least_piece_bytes, most_messages
        Pieces have so many bytes at least, and schedules of pieces so many messages at most: an operation of Simple costs what some
        32 KiB take, and several instances share a piece. Measured: two mi300x, AllReduce of 64 MiB, with up to 4000 messages instead of 1500
        921 -> 528 us, and 18 instead of 12 s in all.
    """

    instances: tuple[int, ...] = (1, 2, 4, 8, 16)
    worth_of_doubling: float = 0.01
    near: float = 1.5
    least_cell_bytes: int = 16
    pieces: tuple[int, ...] = (1, 2, 4, 8, 16)
    copied: float = 0.25
    least_piece_bytes: float = 65536.0
    most_messages: int = 4000


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
    lowered, instance
        Its program with one instance, and that for copies of it, if there can be any.
    options, profile
        The runtime, and the runtime profile.
    any_call
        Whether there may be any number of instances where the call is not served by one of them: all programs to choose from have such chunks.
    narrower
        Programs of one instance by number of instances, where copies of `lowered` have too many threadblocks.
    others
        Trials of the schedule lowered for another protocol, of which there can be no copies of `lowered`.
    """

    def __init__(
        self,
        schedule: Schedule,
        lowered: ReplayedProgram,
        instance: OneInstance | None,
        options: LoweringOptions,
        profile: RuntimeProfile,
        *,
        any_call: bool = False,
    ) -> None:
        self.schedule, self.lowered, self.instance = schedule, lowered, instance
        self.options, self.profile, self.any_call = options, profile, any_call
        self.narrower: dict[int, OneInstance] = {}
        self.others: dict[Protocol, Trial] = {}
        self._replay = RuntimeReplay(lowered.program, schedule.topology, profile)
        self._narrower: dict[int, RuntimeReplay] = {}
        self._known: dict[tuple[float, Setting], float] = {}

    @cached_property
    def likely(self) -> tuple[Protocol, ...]:
        """Protocols that by estimates are not far slower at the schedule's size than the best one."""
        possible = protocols_for(self.schedule, self.options, self.profile)
        if len(possible) < 2:
            return possible
        estimates = estimated_us(self.schedule, possible, self.profile)
        return tuple(each for each in possible if estimates[each] <= PARAMS.near * min(estimates.values()))

    def add_narrower(self, instances: int, instance: OneInstance) -> None:
        """Let this many instances be copies of another program with fewer threadblocks."""
        self._forget(instances)
        self.narrower[instances] = instance
        self._narrower[instances] = RuntimeReplay(instance.program, self.schedule.topology, self.profile)

    def add_if_faster(self, instances: int, instance: OneInstance) -> None:
        """Let them be copies of that program if it takes less time than the one that there is."""
        before, before_us = self.narrower.get(instances), self.best_us(instances)
        self.add_narrower(instances, instance)
        if self.best_us(instances) < before_us:
            return
        self._forget(instances)
        del self.narrower[instances], self._narrower[instances]
        if before is not None:
            self.add_narrower(instances, before)

    def _forget(self, instances: int) -> None:
        self._known = {key: time_us for key, time_us in self._known.items() if key[1].instances != instances}

    def best_us(self, instances: int) -> float:
        """Time of the schedule's size with so many instances under the best likely protocol, as settings are ranked; infinite without room."""
        if not self.has_room_for(instances):
            return math.inf
        settings = [Setting(protocol, instances) for protocol in self.likely]
        times_us = (preferred_us(self.time_us(self.schedule.size_bytes, each), each) for each in settings)
        return min(times_us, default=math.inf)

    def copies(self, setting: Setting) -> Program:
        """Program of a setting as it is replayed: copies of one with one instance.

        Raises
        ------
        LoweringError
            If there can be none, or a limit of the runtime cannot be kept.
        """
        other = self.others.get(setting.protocol)
        if other is not None:
            return other.copies(setting)
        instance = self.narrower.get(setting.instances, self.instance)
        if instance is None:
            raise LoweringError(
                "ranks that are lowered one by one have no copies", runtime=self.options.runtime.name, limit="copies"
            )
        count_work("lowered", round(PARAMS.copied * 2 * len(self.schedule.messages) * setting.instances))
        return instance.copies(setting.instances, setting.protocol, self.options.max_bytes)

    def time_us(self, size_bytes: float, setting: Setting) -> float:
        """Time at a size as nccl-tests counts it; infinite where connections of the protocol hold too little, or it is for other programs."""
        other = self.others.get(setting.protocol)
        if other is not None:
            return other.time_us(size_bytes, setting)
        return math.inf if self._refuses(setting.protocol) else self._own_us(size_bytes, setting)

    def _own_us(self, size_bytes: float, setting: Setting) -> float:
        if (size_bytes, setting) not in self._known:
            self._known[size_bytes, setting] = math.inf
            with suppress(InvalidArtifact):
                self._known[size_bytes, setting] = self._replayed_us(size_bytes, setting)
        return self._known[size_bytes, setting]

    def _replayed_us(self, size_bytes: float, setting: Setting) -> float:
        replay = self._narrower.get(setting.instances, self._replay)
        return replay.time_us(size_bytes, protocol=str(setting.protocol), instances=setting.instances)

    def is_for_another(self, protocol: Protocol) -> bool:
        """True if the program would be fastest with a protocol which it would have to be lowered for, and is not."""
        if not self._refuses(protocol):
            return False
        size = self.schedule.size_bytes
        times = {
            each: min(self._own_us(size, setting) for setting in self.settings(size, (each,), None))
            for each in self.likely
        }
        return times[protocol] <= min(times.values())

    def _refuses(self, protocol: Protocol) -> bool:
        return flag_is_early(self.options.runtime, protocol) and protocol is not self.lowered.program.protocol

    def lowered_for(self, setting: Setting) -> ReplayedProgram | None:
        """Program of a setting, if it was lowered already."""
        other = self.others.get(setting.protocol)
        if other is not None:
            return other.lowered_for(setting)
        fits = setting.instances == 1 and 1 not in self.narrower and self.lowered.program.protocol is setting.protocol
        return self.lowered if fits else None

    def allows(self, size_bytes: float, setting: Setting) -> bool:
        """True if this many copies of the program fit into the runtime, and a call's chunks can be cut for them.

        The call is one of this size, or the nearest one where the ranks do not divide it.
        """
        other = self.others.get(setting.protocol)
        if other is not None:
            return other.allows(size_bytes, setting)
        runtime, number = self.options.runtime, setting.instances
        program = self._copied(number)
        collective, chunks = self.schedule.collective, program.num_chunks_per_loop
        cell_bytes = size_bytes / max(collective.chunks_per_size, 1)
        calls = (size_bytes, collective.served_bytes(size_bytes))
        is_unserved = self.any_call and all(call % chunks for call in calls)
        return (
            self.has_room_for(number)
            and program.num_channels * number <= runtime.max_channels
            and cell_bytes / number >= PARAMS.least_cell_bytes
            and (is_unserved or any(call % (chunks * number) == 0 for call in calls))
        )

    def _copied(self, instances: int) -> Program:
        """Program of which so many instances are copies."""
        return self.narrower[instances].program if instances in self.narrower else self.lowered.program

    def has_room_for(self, copies: int) -> bool:
        """True if the runtime has room for so many copies of their program."""
        program = self._copied(copies)
        most, instance = self.options.max_threadblocks or 1, self.narrower.get(copies, self.instance)
        return (
            program.num_threadblocks * copies <= most
            and copies <= most_copies(program)
            and (instance is None or instance.can_be(copies))
        )

    def settings(self, size_bytes: float, protocols: Sequence[Protocol], instances: int | None) -> Iterator[Setting]:
        """Settings for a call of a size: those that the runtime allows, or all with the instances that the user asks for."""
        for number in tried_instances(instances):
            for protocol in protocols:
                setting = Setting(protocol, number)
                if number == 1 or instances is not None or self.allows(size_bytes, setting):
                    yield setting


def trial_of(
    schedule: Schedule,
    options: LoweringOptions,
    profile: RuntimeProfile,
    stopped: Over = never,
    *,
    largest_bytes: float | None = None,
    any_call: bool = False,
) -> Trial:
    """Lower a schedule with one instance for trials, at sizes up to the largest; None is the schedule's own. `any_call` is as in `Trial`.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    plain = replace(options, instances=1, max_threadblocks=most_threadblocks(options, profile))

    def tried(arranged: LoweringOptions) -> Trial:
        programs = TrialPrograms(schedule, arranged)
        trial = Trial(schedule, programs.whole, programs.instance, arranged, profile, any_call=any_call)
        _add_narrower(trial, programs, largest_bytes or schedule.size_bytes, stopped)
        if programs.instance is not None and sums_count(schedule.topology, profile):
            balance(trial, stopped, programs.balanced)
        return trial

    trial = in_some_arrangement(tried, plain)
    for protocol in filter(trial.is_for_another, trial.likely):
        with suppress(LoweringError):
            trial.others[protocol] = in_some_arrangement(tried, replace(plain, protocol=protocol))
    return trial


def _add_narrower(trial: Trial, programs: TrialPrograms, largest_bytes: float, stopped: Over) -> None:
    """Give a trial programs for instances of which copies of its own have no room, as long as each saves time over those before.

    Time is that of the schedule's size, under likely protocols.
    """
    if programs.instance is None or not trial.likely:
        return
    wide = [number for number in PARAMS.instances if trial.has_room_for(number)]
    narrow = PARAMS.instances[len(wide) :]
    best_us = math.inf
    for number in (*wide[-1:], *narrow):
        if number in narrow:
            cell_bytes = largest_bytes / trial.schedule.collective.chunks_per_size / number
            instance = None if cell_bytes < PARAMS.least_cell_bytes or stopped() else programs.narrower(number)
            if instance is None:
                return
            trial.add_narrower(number, instance)
        time_us = trial.best_us(number)
        if time_us >= best_us:
            return
        best_us = time_us


def balance(trial: Trial, stopped: Over = never, programs: BalancedPrograms | None = None) -> None:
    """Give a trial programs with threadblocks in proportion to their work where they save time, of those of its schedule if there are some.

    They are for the best number of instances and half as many, which leaves more threadblocks to share out. Time is that of the schedule's
    size, under likely protocols.
    """
    if trial.instance is None or not trial.likely:
        return
    size, protocol = trial.schedule.size_bytes, trial.likely[0]
    best = min((n for n in PARAMS.instances if trial.allows(size, Setting(protocol, n))), key=trial.best_us, default=1)
    programs = programs or BalancedPrograms(trial.schedule, trial.options)
    for number in dict.fromkeys((best, max(1, best // 2))):
        balanced = None if stopped() else programs.of(number)
        if balanced is not None:
            trial.add_if_faster(number, balanced)


T = TypeVar("T")


def in_some_arrangement(lower: Callable[[LoweringOptions], T], options: LoweringOptions) -> T:
    """Lower with local work spread and the waits of sums gathered, and where that cannot be, without: then connections may be full.

    Raises
    ------
    LoweringError
        If neither can be lowered.
    """
    try:
        return lower(replace(options, times_blocks=True))
    except LoweringError:
        return lower(replace(options, times_blocks=False))


def most_threadblocks(options: LoweringOptions, profile: RuntimeProfile) -> int:
    """Threadblocks of the profile's GPU that run at the same time and can be waited for."""
    runtime = options.runtime
    most = min(runtime.max_threadblocks, runtime.resident_threadblocks, MAX_DEPENDENCY_THREADBLOCK + 1)
    return int(min(most, profile.most_threadblocks, options.max_threadblocks or most))


def protocols_for(schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile) -> tuple[Protocol, ...]:
    """Protocols that may be chosen: the user's, else what machine and collective allow."""
    if options.protocol is not None:
        return (options.protocol,)
    possible = possible_protocols(schedule.topology, schedule.collective.kind)
    return tuple(protocol for protocol in possible if str(protocol) in profile.protocols)


def estimated_us(schedule: Schedule, protocols: Iterable[Protocol], profile: RuntimeProfile) -> dict[Protocol, float]:
    """Estimates of a program's time before it is lowered: the schedule's on the machine as each protocol sees it.

    Under runtimes that add up by steps of their own, sums take longer than copies inside a node. Measured: mi250x, Reduce of 2 MiB, 25
    schedules whose programs take 124 to 345 us; without that the first two by their estimates take 209 and 215 us, with it 140 and 132.
    Between nodes, where sums go on while NICs carry what comes next, answers are slower with it: four MI300X, AllReduce of 16 MiB, 316
    -> 382 us.
    """
    schedule, times_us = folded(schedule), dict[Protocol, float]()
    untimed = [
        replace(message, chunks=chunks)
        for message, steps in zip(untimed_messages(schedule), sent_steps(schedule), strict=True)
        for chunks in steps
    ]
    are_apart = sums_count(schedule.topology, profile)
    instances = _instances_with_room(schedule, profile)
    if are_apart:
        untimed = [replace(each, link=2 * each.link + each.reduce) for each in untimed]
    with work_set_aside():  # by chunks, for which a single timing takes no time to speak of
        for protocol, machine in machines_seen(schedule, protocols, profile):
            costs = profile.costs_of(str(protocol))
            seen = with_links_for_sums(machine, costs, instances) if are_apart else machine
            end_us = max((each.end_us for each in time_messages(seen, schedule.chunk_bytes, untimed)), default=0.0)
            times_us[protocol] = costs.launch_us + end_us
    count_work("timed", len(untimed) * len(times_us))
    return times_us


def sums_count(topology: Topology, profile: RuntimeProfile) -> bool:
    """True if sums are steps of their own and there is no network, whose time is longer, behind which they are done.

    Programs with threadblocks in proportion to their work are then made for all trials. Measured: mi250x, ReduceScatter of 32 MiB, with
    those of the fastest three alone 511 us, of all 363; two MI300X, AllReduce of 64 MiB, 559 and 726, as they leave less time for others.
    """
    return profile.adds_apart and topology.num_nodes == 1


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


def pieces_of(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule, and valid ones with its messages in pieces: what is forwarded, summed or copied out need not wait for a whole one."""
    yield schedule
    messages = len(schedule.messages)
    for number in PARAMS.pieces:
        cut = cut_into(schedule, number)
        if cut is not None and len(cut.messages) > messages:
            messages = len(cut.messages)
            yield cut


def cut_into(schedule: Schedule, number: int) -> Schedule | None:
    """The schedule with its largest messages in so many pieces; None if these are small or too many, or it is not valid so."""
    if are_small(schedule, schedule.size_bytes, number):
        return None
    cut = in_pieces(schedule, number, PARAMS.most_messages)
    return None if cut is None or verify_any(cut) else replace(cut, origin=schedule.origin)


def are_small(schedule: Schedule, size_bytes: float, number: int = 1) -> bool:
    """True if pieces of a schedule's largest messages, so many of each, are too small at a size; by default the messages themselves are pieces."""
    largest_bytes = largest_message(schedule) * schedule.collective.chunk_bytes(size_bytes)
    return largest_bytes / number < PARAMS.least_piece_bytes


def tried_instances(asked: int | None) -> tuple[int, ...]:
    """Numbers of instances to try: the one that the user asks for, else powers of two."""
    return PARAMS.instances if asked is None else (asked,)


def preferred_us(time_us: float, setting: Setting) -> float:
    """Time by which settings are ranked: more instances take more of the GPU, and have to be worth it."""
    return time_us * (1 + PARAMS.worth_of_doubling * math.log2(setting.instances))
