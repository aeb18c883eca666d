"""Programs of demands: lowered for the runtimes that take a collective of their own, and verified with the demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taccl_py.demand import DataDemand
from taccl_py.errors import LoweringError, require_verdict
from taccl_py.lowering.demand_xml import lower_demand_program
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.lowering.plan import Plan
from taccl_py.lowering.program import Program
from taccl_py.runtimes import LEGACY, MSCCLPP, RUNTIMES
from taccl_py.schedule.for_demand import DemandSchedule
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
    """

    program: Plan | Program
    text: str
    unit_bytes: int


@dataclass(frozen=True, slots=True)
class DemandTarget:
    """A runtime that takes demands: its name, the name of the file, and what makes that."""

    runtime: str
    file: str
    lower: Callable[[DemandSchedule, DataDemand, str | None], DemandProgram]


def demand_to_plan(schedule: DemandSchedule, demand: DataDemand, name: str | None = None) -> DemandProgram:
    """Plan for MSCCL++ of a schedule that the verifier accepts.

    Parameters
    ----------
    schedule, demand
        The schedule, and the demand with which its plan is verified.
    name
        None is that of demand and machine.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact, Unsupported
        If the verifier does not accept the text.
    """
    lowered = lower_demand_plan(schedule, name)
    verdict = verify_plan(lowered.text, "plan.json", demand=demand)
    require_verdict("plan.json", verdict.violations, verdict.unsupported)
    longest = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in lowered.plan.gpus)
    return DemandProgram(lowered.plan, lowered.text, max(*demand.input_bytes, *demand.output_bytes) // longest)


def demand_to_xml(schedule: DemandSchedule, demand: DataDemand, name: str | None = None) -> DemandProgram:
    """XML for legacy MSCCL, as a custom collective; for the parameters and errors see `demand_to_plan`."""
    program = lower_demand_program(schedule, LEGACY, name)
    text = emit_xml(program, LEGACY)
    verdict = verify_program(text, LEGACY, demand=demand)
    require_verdict("algorithm.xml", verdict.violations, verdict.unsupported)
    return DemandProgram(program, text, max(*demand.input_bytes, *demand.output_bytes) // program.num_chunks_per_loop)


DEMAND_TARGETS = (
    DemandTarget(MSCCLPP.name, "plan.json", demand_to_plan),
    DemandTarget(LEGACY.name, "algorithm.xml", demand_to_xml),
)


def refuse_runtime(runtime: str) -> LoweringError:
    """Return the error that a runtime takes no demand, with the reason."""
    title = RUNTIMES[runtime].title
    return LoweringError(
        f"{title} selects files by the collective that is called, and no call is for a demand, so it would never use one; lower it for "
        f"{' or '.join(target.runtime for target in DEMAND_TARGETS)}",
        runtime=runtime,
        limit="collective",
    )
