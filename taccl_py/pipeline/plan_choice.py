"""Plans for MSCCL++ under a runtime profile: protocol and instances with which a schedule is fastest at its size, by replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from taccl_py.errors import LoweringError
from taccl_py.lowering.mscclpp import LoweredPlan, PlanOptions, lower_plan
from taccl_py.lowering.plan import PACKETS, SIMPLE
from taccl_py.pipeline.deliver import lower_plan_and_verify
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.plan_replay import RuntimePlanReplay

_MOST_INSTANCES = 32
# Twice as many instances take twice as many threadblocks, and leave sizes without a plan: they must be worth it.
_WORTH = 0.98
_MOST_DOUBLINGS = 40  # of the size, at which packets have long lost


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A verified plan.

    Attributes
    ----------
    lowered
        The plan and its text.
    instances
        Parts of every chunk.
    runtime_us
        Its time at the schedule's size under the profile; None under the neutral one, and for costs of an unstated size.
    """

    lowered: LoweredPlan
    instances: int
    runtime_us: float | None


@dataclass(frozen=True, slots=True)
class _TimedPlan:
    """A plan that nobody has verified yet, with its options and its replay."""

    options: PlanOptions
    lowered: LoweredPlan
    replay: RuntimePlanReplay
    runtime_us: float


def choose_plan(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile, protocol: str | None, instances: int | None
) -> PlanChoice:  # fmt: skip
    """Lower a schedule with the protocol and the instances that are fastest at its size, and verify the text.

    A plan by packets that was chosen ends at the size from which on one by puts and signals is faster, if no other end is asked for.

    Parameters
    ----------
    schedule
        A valid schedule.
    options
        Placement, sizes and name.
    profile
        The runtime profile; under the neutral one it is protocol Simple and 1 instance where nothing is asked for.
    protocol, instances
        What is asked for; None is whatever is fastest.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier rejects the text.
    """
    size_bytes = schedule.size_bytes
    asked = replace(options, protocol=protocol or SIMPLE, instances=instances or 1)
    if profile.is_neutral or size_bytes is None:
        return PlanChoice(lower_plan_and_verify(schedule, asked), asked.instances, None)
    protocols = [name for name in (SIMPLE, PACKETS) if protocol in (None, name) and name in profile.protocols]
    best = {name: _fastest(schedule, replace(asked, protocol=name), profile, instances) for name in protocols}
    trials = [trial for trial in best.values() if trial is not None]
    if not trials:
        made = lower_plan_and_verify(schedule, asked)
        replay = RuntimePlanReplay(made.plan, schedule.collective.kind, schedule.topology, profile)
        return PlanChoice(made, asked.instances, replay.time_us(size_bytes))
    chosen = min(trials, key=lambda trial: trial.runtime_us)
    plain = best.get(SIMPLE)
    wanted = chosen.options
    if chosen is not plain and plain is not None and options.max_bytes is None:
        wanted = replace(wanted, max_bytes=_end_of_packets(chosen, plain, size_bytes))
    return PlanChoice(lower_plan_and_verify(schedule, wanted), wanted.instances, chosen.runtime_us)


def _fastest(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile, instances: int | None
) -> _TimedPlan | None:
    """The fastest plan with a protocol; None if it has none that the runtime runs at the size."""
    best: _TimedPlan | None = None
    for number in [instances] if instances is not None else _doubled():
        trial = None
        with suppress(LoweringError):
            trial = _tried(schedule, replace(options, instances=number), profile)
        if trial is None or (best is not None and trial.runtime_us > _WORTH * best.runtime_us):
            break
        best = trial
    return best


def _doubled() -> Iterator[int]:
    number = 1
    while number <= _MOST_INSTANCES:
        yield number
        number *= 2


def _tried(schedule: Schedule, options: PlanOptions, profile: RuntimeProfile) -> _TimedPlan | None:
    """A plan, timed; None if the runtime does not run it at the schedule's size."""
    size_bytes = schedule.size_bytes
    lowered = lower_plan(schedule, options)
    if size_bytes is None or round(size_bytes) % lowered.plan.unit_bytes:
        return None
    replay = RuntimePlanReplay(lowered.plan, schedule.collective.kind, schedule.topology, profile)
    return _TimedPlan(options, lowered, replay, replay.time_us(size_bytes))


def _end_of_packets(packets: _TimedPlan, plain: _TimedPlan, size_bytes: float) -> int:
    """Largest of the doublings of a size at which packets are faster, or the plan ends."""
    last = round(size_bytes)
    for _ in range(_MOST_DOUBLINGS):
        more = 2 * last
        if more > packets.lowered.plan.max_bytes or packets.replay.time_us(more) >= plain.replay.time_us(more):
            break
        last = more
    return max(last, packets.lowered.plan.min_bytes)
