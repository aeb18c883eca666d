"""Programs of demands: lowered for the runtimes that take a collective of their own, and verified with the demand.

Under the runtime profile of the machine's GPUs the best schedules of several planners are lowered, and the fastest program is the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taccl_py.demand import DataDemand
from taccl_py.errors import InputError, LoweringError, require_verdict
from taccl_py.lowering.demand_xml import lower_demand_program
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.lowering.mscclpp import LoweredPlan
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.lowering.plan import Plan
from taccl_py.lowering.program import Program
from taccl_py.pipeline.plan_choice import WORTH, doubled, fastest_among
from taccl_py.profiles.catalog import AUTO, select_profile
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import LEGACY, MSCCLPP, RUNTIMES
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.simulate.plan_replay import RuntimePlanReplay
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import Over, never
from taccl_py.verify.demand import verify_demand_schedule
from taccl_py.verify.msccl import verify_program
from taccl_py.verify.mscclpp import verify_plan
from taccl_py.work import count_work


@dataclass(frozen=True)
class Params:
    """Numbers of the lowering of demands.

    Attributes
    ----------
    grouped
        Work of a plan with groups, as times that of one without. Measured: two ndv5, moe-combine of 16 tokens, 0.4 s without groups, 0.9 to 1.4
        with groups of 2 to 8.
    refused
        Work after which it is known that a plan finds no room, as times that of one that does. Measured: ten plans of moe-dispatch and
        moe-combine on one and two nodes of ndv4 and ndv5, 0.7 to 10.
    """

    grouped: float = 2.5
    refused: float = 3.0


PARAMS = Params()


@dataclass(frozen=True, slots=True)
class DemandProgram:
    """A program of a demand, and its text.

    Attributes
    ----------
    program
        For MSCCL++ a plan, else for XML.
    text
        What is written to a file.
    unit_bytes
        Bytes of one of its chunks.
    group
        Threadblocks that share every operation; 1 in XML.
    runtime_us, profile
        Time under the runtime profile of the machine's GPUs, by which the program was chosen, in microseconds, and the profile's name; None
        without one.
    """

    program: Plan | Program
    text: str
    unit_bytes: int
    group: int = 1
    runtime_us: float | None = None
    profile: str | None = None

    @property
    def runtime_facts(self) -> dict[str, Any]:
        """Group of a plan, time and runtime profile, as they stand in summaries; empty without a profile."""
        if self.runtime_us is None:
            return {}
        group = {"group": self.group} if isinstance(self.program, Plan) else {}
        return {**group, "runtime_us": self.runtime_us, "runtime_profile": self.profile}


@dataclass(frozen=True, slots=True)
class DemandTarget:
    """A runtime that takes demands.

    Attributes
    ----------
    runtime, file
        Its name, and the name of the file.
    draft
        Makes the program of a schedule, under a name (None is that of demand and machine), with groups of so many threadblocks (None: what is
        fastest under the shipped runtime profile of the machine's GPUs, and 1 without one).
    verify
        Refuses a program's text that is wrong for the demand.
    most_messages
        Messages up to which a program is made in seconds.
    """

    runtime: str
    file: str
    draft: Callable[[DemandSchedule, str | None, int | None], DemandProgram]
    verify: Callable[[str, DataDemand], None]
    most_messages: int

    def lower(
        self, schedule: DemandSchedule, demand: DataDemand, name: str | None = None, group: int | None = None
    ) -> DemandProgram:
        """Program of a schedule that the verifier accepts.

        Parameters
        ----------
        schedule, demand
            The schedule, and the demand with which its program is verified.
        name, group
            As for `draft`.

        Raises
        ------
        LoweringError
            If a limit of the runtime cannot be kept.
        InputError
            If a group is asked for, which XML does not have.
        InvalidArtifact, Unsupported
            If the verifier does not accept the text.
        """
        made = self.draft(schedule, name, group)
        self.verify(made.text, demand)
        return made

    def soon_lowered(self, schedules: Sequence[DemandSchedule]) -> list[DemandSchedule]:
        """Schedules of an answer of which a program is soon made: the answer's own, and then those that have the least to lower.

        Without a runtime profile, by which programs are compared, there is at most the answer's own, which is the first.
        """
        first, *others = schedules
        if select_profile(AUTO, self.runtime, first.topology).profile.is_neutral:
            others = []
        few = [each for each in others if len(each.messages) <= self.most_messages]
        few.sort(key=lambda each: _num_moved(each.coalesced()))
        return [first, *few] if len(first.messages) <= self.most_messages else few

    def lower_best(
        self, schedules: Sequence[DemandSchedule], demand: DataDemand, over: Over = never
    ) -> tuple[DemandSchedule, DemandProgram]:
        """The schedule whose program is fastest under the runtime profile of the machine's GPUs, and the program.

        Parameters
        ----------
        schedules
            What is tried, the answer's own first.
        demand
            The demand with which the program is verified.
        over
            True once time is up, asked as soon as there is a program; no other is made then.

        Raises
        ------
        LoweringError
            If a limit of the runtime cannot be kept by any of them; the error is that of the first.
        InvalidArtifact, Unsupported
            If the verifier does not accept the schedule or the text.
        """
        schedule, made = fastest_among(schedules, lambda each: self.draft(each, None, None), over)
        if schedule is not schedules[0]:
            require_verdict("schedule", verify_demand_schedule(schedule, demand))
        self.verify(made.text, demand)
        return schedule, made


def _num_moved(schedule: DemandSchedule) -> int:
    """Number of chunks that messages carry, each a send and a receive."""
    return sum(len(message.chunks) for message in schedule.messages)


@dataclass(frozen=True, slots=True)
class _GroupedPlan:
    """A plan with groups of threadblocks, and its time under a profile."""

    group: int
    lowered: LoweredPlan
    runtime_us: float


def _draft_plan(schedule: DemandSchedule, name: str | None, group: int | None) -> DemandProgram:
    """Plan for MSCCL++, see `DemandTarget`."""
    schedule = schedule.coalesced()
    profile = select_profile(AUTO, MSCCLPP.name, schedule.topology).profile
    if profile.is_neutral:
        best, lowered = None, lower_demand_plan(schedule, name, group or 1)
    else:
        best = _grouped(schedule, name, group or 1, profile)
        best = _in_the_best_groups(schedule, name, best, profile) if group is None else best
        lowered = best.lowered
    longest = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in lowered.plan.gpus)
    unit_bytes = schedule.demand.longest_bytes // longest
    if best is None:
        return DemandProgram(lowered.plan, lowered.text, unit_bytes, group or 1)
    return DemandProgram(lowered.plan, lowered.text, unit_bytes, best.group, best.runtime_us, profile.name)


def _verify_plan(text: str, demand: DataDemand) -> None:
    verdict = verify_plan(text, "plan.json", demand=demand)
    require_verdict("plan.json", verdict.violations, verdict.unsupported)


def _grouped(schedule: DemandSchedule, name: str | None, group: int, profile: RuntimeProfile) -> _GroupedPlan:
    """The plan with groups of so many threadblocks, timed at the demand's own size."""
    steps = 2 * _num_moved(schedule)
    try:
        lowered = lower_demand_plan(schedule, name, group)
    except LoweringError:
        count_work("lowered", PARAMS.refused * steps)
        raise
    count_work("lowered", steps if group == 1 else PARAMS.grouped * steps)
    replay = RuntimePlanReplay(lowered.plan, None, schedule.topology, profile)
    return _GroupedPlan(group, lowered, replay.time_us(schedule.demand.longest_bytes))


def _in_the_best_groups(
    schedule: DemandSchedule, name: str | None, single: _GroupedPlan, profile: RuntimeProfile
) -> _GroupedPlan:
    """The plan with groups as large as pays: each doubling of the threadblocks has to be worth it."""
    best = single
    most = MSCCLPP.max_threadblocks // single.lowered.plan.num_threadblocks
    for group in doubled():
        if not 1 < group <= most:
            continue
        try:
            trial = _grouped(schedule, name, group, profile)
        except LoweringError:
            break  # larger groups share out the same tasks, and need more threadblocks
        if trial.runtime_us > WORTH * best.runtime_us:
            break
        best = trial
    return best


def _draft_xml(schedule: DemandSchedule, name: str | None, group: int | None) -> DemandProgram:
    """XML for legacy MSCCL, as a custom collective, see `DemandTarget`."""
    if group is not None:
        raise InputError("is for MSCCL++ (mscclpp-json); leave it out", path="command line", field="--group")
    program = lower_demand_program(schedule, LEGACY, name)
    count_work("lowered", sum(len(block.steps) for gpu in program.gpus for block in gpu.threadblocks))
    text, longest_bytes = emit_xml(program, LEGACY), schedule.demand.longest_bytes
    unit_bytes = longest_bytes // program.num_chunks_per_loop
    profile = select_profile(AUTO, LEGACY.name, schedule.topology).profile
    if profile.is_neutral:
        return DemandProgram(program, text, unit_bytes)
    runtime_us = RuntimeReplay(program, schedule.topology, profile).time_us(longest_bytes)
    return DemandProgram(program, text, unit_bytes, runtime_us=runtime_us, profile=profile.name)


def _verify_xml(text: str, demand: DataDemand) -> None:
    verdict = verify_program(text, LEGACY, demand=demand)
    require_verdict("algorithm.xml", verdict.violations, verdict.unsupported)


DEMAND_TARGETS = (
    DemandTarget(MSCCLPP.name, "plan.json", _draft_plan, _verify_plan, 1000),
    DemandTarget(LEGACY.name, "algorithm.xml", _draft_xml, _verify_xml, 5000),
)


def refuse_runtime(runtime: str) -> LoweringError:
    """Return the error that a runtime takes no demand, with the reason."""
    title = RUNTIMES[runtime].title
    return LoweringError(
        f"{title} selects files by the collective that is called, and no call is for a demand, so it would never use one; lower it to a "
        f"plan for {MSCCLPP.title} (mscclpp-json), or for {LEGACY.title} (runtime {LEGACY.name})",
        runtime=runtime,
        limit="collective",
    )
