"""Plans for MSCCL++ under a runtime profile: how a schedule is fastest at its size, by replay.

That is the protocol, how many threadblocks share the work (in groups, or as instances with chunks of their own), and whether they go
through pieces of it in loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from taccl_py.errors import LoweringError
from taccl_py.lowering.mscclpp import LoweredPlan, PlanOptions, lower_plan
from taccl_py.lowering.plan import PACKETS, SIMPLE
from taccl_py.pipeline.deliver import lower_plan_and_verify
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import MSCCLPP
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.plan_replay import RuntimePlanReplay
from taccl_py.solvers.limits import Over, never

_MOST_INSTANCES = 32
_MOST_SCHEDULES = 3  # of those that are nearly as fast on links and ports
_MOST_PASSES = 64  # of a loop
# Twice as many threadblocks, or passes of a loop, must be worth it.
WORTH = 0.98
_MOST_DOUBLINGS = 40  # of the size, at which packets have long lost


class TimedProgram(Protocol):
    """A program, and its time under a profile."""

    @property
    def runtime_us(self) -> float | None:
        """Time at the size that it is for, in microseconds; None under the neutral profile."""


_Candidate = TypeVar("_Candidate")
_Choice = TypeVar("_Choice", bound=TimedProgram)


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A verified plan.

    Attributes
    ----------
    lowered
        The plan and its text.
    options
        Instances, group and loop that it was made with.
    runtime_us
        Its time at the schedule's size under the profile; None under the neutral one.
    """

    lowered: LoweredPlan
    options: PlanOptions
    runtime_us: float | None


@dataclass(frozen=True, slots=True)
class _TimedPlan:
    """A plan that nobody has verified yet, with its options and its replay."""

    options: PlanOptions
    lowered: LoweredPlan
    replay: RuntimePlanReplay
    size_bytes: float
    runtime_us: float


@dataclass(frozen=True, slots=True)
class PlanWishes:
    """Wishes for a plan; None is whatever is fastest, and where one of the last three is asked for, the others are as few as can be.

    Attributes
    ----------
    protocol
        ``Simple`` or ``LL``.
    instances, group, loop_bytes
        See `PlanOptions`.
    """

    protocol: str | None = None
    instances: int | None = None
    group: int | None = None
    loop_bytes: int | None = None

    @property
    def says_cut(self) -> bool:
        """True if instances, groups or loops are asked for."""
        return any(one is not None for one in (self.instances, self.group, self.loop_bytes))

    def applied(self, options: PlanOptions) -> PlanOptions:
        """Options with what is asked for."""
        return replace(
            options, protocol=self.protocol or SIMPLE, instances=self.instances or 1, group=self.group or 1, loop_bytes=self.loop_bytes or 0
        )  # fmt: skip


def choose_plan(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile, wishes: PlanWishes
) -> PlanChoice:  # fmt: skip
    """Lower a schedule as is fastest at its size, and verify the text.

    A plan by packets that was chosen ends at the size from which on one by puts and signals is faster, if no other end is asked for.

    Parameters
    ----------
    schedule
        A valid schedule.
    options
        Placement, sizes and name.
    profile
        The runtime profile; under the neutral one it is protocol Simple, 1 instance, no group and no loop where nothing is asked for.
    wishes
        What is asked for.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier rejects the text.
    """
    size_bytes = schedule.size_bytes
    asked, protocol = wishes.applied(options), SIMPLE if wishes.loop_bytes else wishes.protocol
    if profile.is_neutral:
        return PlanChoice(lower_plan_and_verify(schedule, asked), asked, None)
    protocols = [name for name in (SIMPLE, PACKETS) if protocol in (None, name) and name in profile.protocols]
    best = _fastest_of(protocols, schedule, asked, profile, wishes, size_bytes)
    if not best:
        # No plan runs at the size itself, so they are timed at the nearest one at which one runs.
        made = lower_plan_and_verify(schedule, asked)
        unit = made.plan.unit_bytes
        size_bytes = float(max(1, round(size_bytes / unit)) * unit)
        best = _fastest_of(protocols, schedule, asked, profile, wishes, size_bytes)
    if not best:
        replay = RuntimePlanReplay(made.plan, schedule.collective.kind, schedule.topology, profile)
        return PlanChoice(made, asked, replay.time_us(schedule.size_bytes))
    chosen = min(best.values(), key=lambda trial: trial.runtime_us)
    plain = best.get(SIMPLE)
    wanted = chosen.options
    if chosen is not plain and plain is not None and options.max_bytes is None:
        wanted = replace(wanted, max_bytes=_end_of_packets(chosen, plain, size_bytes))
    return PlanChoice(lower_plan_and_verify(schedule, wanted), wanted, chosen.runtime_us)


def choose_among(
    schedules: Sequence[Schedule],
    options: PlanOptions,
    profile: RuntimeProfile,
    wishes: PlanWishes,
    over: Over = never,
) -> tuple[Schedule, PlanChoice]:
    """Plan of the first of some schedules that the runtime can hold; under a profile, of that one whose plan is fastest.

    Parameters
    ----------
    schedules
        Valid schedules, the fastest first.
    options, profile, wishes
        As for `choose_plan`.
    over
        True once time is up; no other schedule is tried then.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept by any of them; the error is that of the first.
    """
    return fastest_among(schedules[:_MOST_SCHEDULES], lambda each: choose_plan(each, options, profile, wishes), over)


def fastest_among(
    schedules: Iterable[_Candidate], make: Callable[[_Candidate], _Choice], over: Over = never
) -> tuple[_Candidate, _Choice]:
    """The first of some schedules of which a program can be made, and its program; with times under a profile, the one whose program is fastest.

    Parameters
    ----------
    schedules
        One or more, those that are tried in any case first.
    make
        Makes and times a program.
    over
        True once time is up, asked as soon as there is a program; no other schedule is tried then.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept by any of them; the error is that of the first.
    """
    best: tuple[_Candidate, _Choice] | None = None
    errors: list[LoweringError] = []
    for schedule in schedules:
        try:
            choice = make(schedule)
        except LoweringError as error:
            errors.append(error)
            continue
        if best is None or _time_us(choice) < _time_us(best[1]):
            best = schedule, choice
        if choice.runtime_us is None or over():
            break
    if best is None:
        raise errors[0]
    return best


def _time_us(choice: TimedProgram) -> float:
    return math.inf if choice.runtime_us is None else choice.runtime_us


def _fastest_of(
    protocols: Sequence[str], schedule: Schedule, asked: PlanOptions, profile: RuntimeProfile, wishes: PlanWishes,
    size_bytes: float,
) -> dict[str, _TimedPlan]:  # fmt: skip
    """The fastest plan with each protocol, of those that have one that the runtime runs at the size."""
    found = {}
    for name in protocols:
        fastest = _fastest(schedule, replace(asked, protocol=name), profile, wishes, size_bytes)
        if fastest is not None:
            found[name] = fastest
    return found


def _fastest(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile, wishes: PlanWishes, size_bytes: float
) -> _TimedPlan | None:
    """The fastest plan with a protocol; None if it has none that the runtime runs at the size."""

    def better(best: _TimedPlan | None, trials: Iterable[PlanOptions]) -> _TimedPlan | None:
        """The last of some trials that is worth it, each more than the one before."""
        for tried in trials:
            trial = None
            with suppress(LoweringError):
                trial = _tried(schedule, tried, profile, size_bytes)
            if trial is None or (best is not None and trial.runtime_us > WORTH * best.runtime_us):
                break
            best = trial
        return best

    single = better(None, [options])
    if wishes.says_cut or single is None:
        return single
    most = min(_MOST_INSTANCES, MSCCLPP.max_threadblocks // single.lowered.plan.num_threadblocks)
    widths = [*(number for number in doubled() if 1 < number < most), most][: None if most > 1 else 0]
    best = better(single, [replace(options, group=number) for number in widths]) or single
    if best is single or best.lowered.plan.num_operations > single.lowered.plan.num_operations:
        # Operations may have had to be cut for groups, as for instances they need not be.
        others = better(single, [replace(options, instances=number) for number in widths]) or single
        best = min(best, others, key=lambda one: one.runtime_us)
    looped = None if options.protocol == PACKETS else better(None, _loops(single, best))
    return best if looped is None or looped.runtime_us > WORTH * best.runtime_us else looped


def _loops(single: _TimedPlan, best: _TimedPlan) -> Iterator[PlanOptions]:
    """Options with loops of more and more passes, with about as many threadblocks as the best plan without has."""
    unit = MSCCLPP.alignment_bytes
    chunk_bytes = round(single.size_bytes) // single.lowered.plan.chunks_per_size
    most = best.options.instances * best.options.group
    instances = next(number for number in range(most, 0, -1) if chunk_bytes // unit % number == 0)
    passes, cell_bytes = 2, chunk_bytes // instances
    while passes <= _MOST_PASSES and cell_bytes > unit * passes:
        yield replace(single.options, instances=instances, loop_bytes=-(-cell_bytes // passes // unit) * unit)
        passes *= 2


def doubled() -> Iterator[int]:
    """Numbers of threadblocks that are tried."""
    return (1 << power for power in range(_MOST_INSTANCES.bit_length()))


def _tried(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile, size_bytes: float
) -> _TimedPlan | None:  # fmt: skip
    """A plan, timed; None if the runtime runs it neither at the size nor at the nearest one that the ranks divide."""
    lowered = lower_plan(schedule, options)
    calls = (size_bytes, schedule.collective.served_bytes(size_bytes))
    if all(round(call) % lowered.plan.unit_bytes for call in calls) or size_bytes < lowered.plan.min_bytes:
        return None
    replay = RuntimePlanReplay(lowered.plan, schedule.collective.kind, schedule.topology, profile)
    return _TimedPlan(options, lowered, replay, size_bytes, replay.time_us(size_bytes))


def _end_of_packets(packets: _TimedPlan, plain: _TimedPlan, size_bytes: float) -> int:
    """Largest of the doublings of a size at which packets are faster, or the plan ends."""
    last = round(size_bytes)
    for _ in range(_MOST_DOUBLINGS):
        more = 2 * last
        if more > packets.lowered.plan.max_bytes or packets.replay.time_us(more) >= plain.replay.time_us(more):
            break
        last = more
    return max(last, packets.lowered.plan.min_bytes)
