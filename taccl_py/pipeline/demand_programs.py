"""Programs of demands: lowered for the runtimes that take a collective of their own, and verified with the demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taccl_py.demand import DataDemand
from taccl_py.errors import InputError, LoweringError, require_verdict
from taccl_py.lowering.demand_xml import lower_demand_program
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.lowering.mscclpp import LoweredPlan
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.lowering.plan import Plan
from taccl_py.lowering.program import Program
from taccl_py.pipeline.plan_choice import WORTH, doubled
from taccl_py.profiles.catalog import AUTO, select_profile
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import LEGACY, MSCCLPP, RUNTIMES
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.simulate.plan_replay import RuntimePlanReplay
from taccl_py.verify.msccl import verify_program
from taccl_py.verify.mscclpp import verify_plan


@dataclass(frozen=True, slots=True)
class DemandProgram:
    """A verified program of a demand, and its text.

    Attributes
    ----------
    program
        For MSCCL++ a plan, else for XML.
    text
        What is written to a file.
    unit_bytes
        Bytes of one of its chunks.
    group
        Threadblocks that share every operation.
    runtime_us, profile
        Time under the runtime profile of the machine's GPUs, by which the group was chosen, and the profile's name; None without one.
    """

    program: Plan | Program
    text: str
    unit_bytes: int
    group: int = 1
    runtime_us: float | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class DemandTarget:
    """A runtime that takes demands: its name, the name of the file, what makes that, and up to how many messages in seconds."""

    runtime: str
    file: str
    lower: Callable[[DemandSchedule, DataDemand, str | None, int | None], DemandProgram]
    most_messages: int


@dataclass(frozen=True, slots=True)
class _GroupedPlan:
    """A plan with groups of threadblocks, and its time under a profile."""

    group: int
    lowered: LoweredPlan
    runtime_us: float


def demand_to_plan(
    schedule: DemandSchedule, demand: DataDemand, name: str | None = None, group: int | None = None
) -> DemandProgram:
    """Plan for MSCCL++ of a schedule that the verifier accepts.

    Parameters
    ----------
    schedule, demand
        The schedule, and the demand with which its plan is verified.
    name
        None is that of demand and machine.
    group
        Threadblocks that share every operation. None: what is fastest under the shipped runtime profile of the machine's GPUs, and 1
        without one.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact, Unsupported
        If the verifier does not accept the text.
    """
    profile = select_profile(AUTO, MSCCLPP.name, schedule.topology).profile
    best = None
    if profile.is_neutral:
        lowered = lower_demand_plan(schedule, name, group or 1)
    else:
        best = _grouped(schedule, name, group or 1, profile)
        best = _in_the_best_groups(schedule, name, best, profile) if group is None else best
        lowered = best.lowered
    verdict = verify_plan(lowered.text, "plan.json", demand=demand)
    require_verdict("plan.json", verdict.violations, verdict.unsupported)
    longest = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in lowered.plan.gpus)
    unit_bytes = demand.longest_bytes // longest
    if best is None:
        return DemandProgram(lowered.plan, lowered.text, unit_bytes, group or 1)
    return DemandProgram(lowered.plan, lowered.text, unit_bytes, best.group, best.runtime_us, profile.name)


def _grouped(schedule: DemandSchedule, name: str | None, group: int, profile: RuntimeProfile) -> _GroupedPlan:
    """The plan with groups of so many threadblocks, timed at the demand's own size."""
    lowered = lower_demand_plan(schedule, name, group)
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


def demand_to_xml(
    schedule: DemandSchedule, demand: DataDemand, name: str | None = None, group: int | None = None
) -> DemandProgram:
    """XML for legacy MSCCL, as a custom collective; for the parameters and errors see `demand_to_plan`.

    Raises
    ------
    InputError
        If a group is asked for, which XML does not have.
    """
    if group is not None:
        raise InputError("is for MSCCL++ (mscclpp-json); leave it out", path="command line", field="--group")
    program = lower_demand_program(schedule, LEGACY, name)
    text = emit_xml(program, LEGACY)
    verdict = verify_program(text, LEGACY, demand=demand)
    require_verdict("algorithm.xml", verdict.violations, verdict.unsupported)
    return DemandProgram(program, text, demand.longest_bytes // program.num_chunks_per_loop)


DEMAND_TARGETS = (
    DemandTarget(MSCCLPP.name, "plan.json", demand_to_plan, 1000),
    DemandTarget(LEGACY.name, "algorithm.xml", demand_to_xml, 5000),
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
