"""Plans that let switches multicast and add up: judged, replayed, and set beside what no algorithm can beat."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taccl_py.collective import Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.mscclpp import LoweredPlan, PlanOptions, Rails, lower_plan, needs_rails
from taccl_py.pipeline import lower_plan_and_judge
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.simulate.timeline import Timeline
from taccl_py.synthesis.bounds import Bound, DemandBounds

_PIECES = (1, 2, 3, 4, 6, 8, 12, 16)
# Collectives in which nodes can pass on what several others need.
_RELAYED = frozenset({Kind.ALLREDUCE, Kind.BROADCAST})


@dataclass(frozen=True)
class SwitchPlan:
    """A plan to which the judge does not object.

    Attributes
    ----------
    lowered
        The plan and its text.
    options
        What it was made with: over several nodes the fastest number of pieces was looked for.
    replay
        How long it takes at the schedule's size.
    bound
        What no algorithm on that machine can beat, whatever its switches do.
    """

    lowered: LoweredPlan
    options: PlanOptions
    replay: Timeline
    bound: Bound

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return max(0.0, self.replay.makespan_us / self.bound.time_us - 1) if self.bound.time_us > 0 else 0.0


def lower_by_switch(schedule: Schedule, options: PlanOptions) -> SwitchPlan:
    """Make, judge and replay the plan that does by switch what the messages of a schedule do.

    Raises
    ------
    InputError
        If no switch of the machine can do it.
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the judge objects to the text.
    """
    collective, topology = schedule.collective, schedule.topology
    size_bytes = schedule.chunk_bytes * collective.chunks_per_size
    best = replace(options, switch=True)
    if needs_rails(schedule):
        best = _fastest_cut(schedule, best, size_bytes)
    lowered = lower_plan_and_judge(schedule, best)
    replay = replay_plan(lowered.plan, collective.kind, topology, size_bytes / lowered.plan.chunks_per_size)
    bounds = DemandBounds.by_switch(topology, collective.kind, collective.root)
    return SwitchPlan(lowered, best, replay, bounds.at(size_bytes))


def _fastest_cut(schedule: Schedule, options: PlanOptions, size_bytes: float) -> PlanOptions:
    """Options with the number of pieces and the rails that are fastest at a size; a size that the pieces do not divide is not run.

    More pieces follow each other more closely, and pay alpha more often; so trying ends when more of them are slower.
    """
    found: list[_Tried] = []
    refusal: LoweringError | None = None
    for rails in Rails if schedule.topology.num_nodes > 2 and schedule.collective.kind in _RELAYED else (Rails.DIRECT,):
        times: list[float] = []
        for pieces in _PIECES:
            tried = replace(options, pieces=pieces, rails=rails)
            try:
                plan = lower_plan(schedule, tried).plan
            except LoweringError as error:
                refusal = refusal or error
                break
            replay = replay_plan(plan, schedule.collective.kind, schedule.topology, size_bytes / plan.chunks_per_size)
            odd = round(size_bytes) % (plan.alignment_bytes * plan.chunks_per_size) != 0
            found.append(_Tried(odd, replay.makespan_us, len(found), tried))
            times.append(replay.makespan_us)
            if len(times) > 1 and times[-1] > times[-2]:
                break
    if not found:
        raise refusal or ValueError("no number of pieces was tried")
    return min(found, key=lambda one: (one.odd, one.time_us, one.number)).options


@dataclass(frozen=True, slots=True)
class _Tried:
    """Options that were tried: whether the size is no multiple of their chunks, their time, and their place in the order."""

    odd: bool
    time_us: float
    number: int
    options: PlanOptions
