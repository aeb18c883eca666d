"""Plans that let switches multicast and add up: judged, replayed, and set beside what no algorithm can beat."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taccl_py.lowering.mscclpp import LoweredPlan, PlanOptions
from taccl_py.pipeline import lower_plan_and_judge
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.simulate.timeline import Timeline
from taccl_py.synthesis.bounds import Bound, DemandBounds


@dataclass(frozen=True)
class SwitchPlan:
    """A plan to which the judge does not object.

    Attributes
    ----------
    lowered
        The plan and its text.
    replay
        How long it takes at the schedule's size.
    bound
        What no algorithm on that machine can beat, whatever its switches do.
    """

    lowered: LoweredPlan
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
    lowered = lower_plan_and_judge(schedule, replace(options, switch=True))
    replay = replay_plan(lowered.plan, collective.kind, topology, schedule.chunk_bytes / options.instances)
    bounds = DemandBounds.by_switch(topology, collective.kind, collective.root)
    return SwitchPlan(lowered, replay, bounds.at(schedule.chunk_bytes * collective.chunks_per_size))
