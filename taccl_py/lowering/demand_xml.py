"""Schedule of a demand -> program for a runtime that takes collectives of its own: legacy MSCCL's ``custom``.

All buffers count as long as the longest, in units of one size; chunks of unequal size are runs of units. A rank that neither sends, receives nor
copies has an empty threadblock, as a kernel needs one.
"""

from __future__ import annotations

from dataclasses import replace

from taccl_py.demand import DataDemand
from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.demand_cells import coarsest_unit_bytes, finest_unit_bytes, unit_cells
from taccl_py.lowering.lower import LoweringOptions, lower
from taccl_py.lowering.program import Gpu, Program, Threadblock
from taccl_py.runtimes import MAX_OFFSET, Runtime
from taccl_py.schedule.for_demand import DemandSchedule

# Units of the longest buffer up to which cuts keep their places; more units are more steps.
_ENOUGH_UNITS = 1024


def lower_demand_program(schedule: DemandSchedule, runtime: Runtime, name: str | None = None) -> Program:
    """Make the program that carries out the schedule of a demand; it is for the demand's sizes, out of place.

    Parameters
    ----------
    schedule
        One that the verifier accepts.
    runtime
        One that takes collectives of its own.
    name
        None is that of demand and machine.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept, such as the number of units.
    InputError
        If the schedule is not valid.
    """
    schedule = schedule.coalesced()
    unit_bytes = _unit_bytes(schedule.demand, runtime)
    size_bytes = schedule.demand.longest_bytes
    options = LoweringOptions(
        runtime, CallPlacement.OUT_OF_PLACE, min_bytes=size_bytes, max_bytes=size_bytes, name=name or schedule.name
    )
    program = lower(unit_cells(schedule, unit_bytes), options)
    return replace(program, gpus=tuple(map(_with_threadblock, program.gpus)))


def _with_threadblock(gpu: Gpu) -> Gpu:
    return gpu if gpu.threadblocks else replace(gpu, threadblocks=(Threadblock(-1, -1, 0, ()),))


def _unit_bytes(demand: DataDemand, runtime: Runtime) -> int:
    """Unit in which the longest buffer has few units, but as many as cuts need, up to `_ENOUGH_UNITS`."""
    longest, finest, coarsest = demand.longest_bytes, finest_unit_bytes(demand), coarsest_unit_bytes(demand)
    if longest // finest <= _ENOUGH_UNITS:
        return finest
    if longest // coarsest > MAX_OFFSET:
        raise LoweringError(
            f"{runtime.title} counts in chunks of one size, of which a buffer can have {MAX_OFFSET}; the greatest common divisor of all sizes "
            f"and places of this demand is {coarsest} bytes, which makes {longest // coarsest}: use sizes with a larger one",
            runtime=runtime.name,
            limit="chunks",
        )
    parts = max(1, _ENOUGH_UNITS * coarsest // longest)
    whole = coarsest // demand.element_bytes
    return coarsest // next(number for number in range(parts, 0, -1) if whole % number == 0)
