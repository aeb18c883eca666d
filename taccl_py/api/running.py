"""Programs on real data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from taccl_py.api.arguments import names_arguments, path_of, size_of
from taccl_py.api.files import LoweredFile
from taccl_py.api.policy import runtime_named
from taccl_py.errors import InputError
from taccl_py.execute.demand import DemandRun, RunnableDemand, draw_inputs, run_demand
from taccl_py.execute.demand_programs import read_demand_program, run_demand_program
from taccl_py.execute.one_sided import is_one_sided, read_one_sided
from taccl_py.execute.one_sided_local import run_any
from taccl_py.execute.plan import DataType, ExecutablePlan, Operator
from taccl_py.execute.reader import read_plan
from taccl_py.execute.runs import Call, CallOutcome, Conditions
from taccl_py.jsonio import read_text
from taccl_py.lowering.plan import Plan as OneSidedProgram
from taccl_py.pipeline.demands import DemandAnswer
from taccl_py.runtimes import EXECUTOR, MSCCLPP
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.units import BYTES_PER_MB


@overload
def run(what: DemandAnswer | DemandSchedule, *, seed: int = 0) -> DemandRun: ...


@overload
def run(
    what: str | Path,
    size: int | float | str | None = None,
    *,
    datatype: str = "float32",
    op: str = "sum",
    in_place: bool | None = None,
    runtime: str = "executor",
    seed: int = 0,
) -> CallOutcome: ...


@overload
def run(
    what: LoweredFile,
    size: int | float | str | None = None,
    *,
    datatype: str = "float32",
    op: str = "sum",
    in_place: bool | None = None,
    runtime: str = "executor",
    seed: int = 0,
) -> CallOutcome | DemandRun: ...


@names_arguments
def run(
    what: LoweredFile | DemandAnswer | DemandSchedule | str | Path,
    size: int | float | str | None = None,
    *,
    datatype: str = "float32",
    op: str = "sum",
    in_place: bool | None = None,
    runtime: str = "executor",
    seed: int = 0,
) -> CallOutcome | DemandRun:
    """Execute a program on real data with all ranks in this process, and compare every element with the collective's definition.

    ``taccl run`` also runs on MPI, PyTorch and MSCCL++ under their launchers.

    Parameters
    ----------
    what
        Result of `taccl_py.lower`, or a file: MSCCL XML or an MSCCL++ plan; or an answer to a demand, or its schedule, which has sizes and
        types of its own.
    size
        Size as nccl-tests counts it: bytes, or a text such as ``64KiB``. None: 1 MB, or the nearest that the file declares itself for. The
        call has the largest size up to that of whole elements in every chunk.
    datatype
        Type of the elements, such as ``float32``, ``bfloat16``, ``int8``.
    op
        ``sum``, ``prod``, ``max``, ``min`` or ``avg``, of a combining collective.
    in_place
        How the buffers lie; None: out of place if the file is for that, else in place.
    runtime
        Runtime whose connections an XML file has: ``executor``, ``rccl`` or ``legacy``.
    seed
        Seed of the data.

    Returns
    -------
    CallOutcome or DemandRun
        ``num_wrong`` elements, ``first_wrong``, and ``time_us`` of this process, in microseconds, which tells nothing of GPUs. Of the schedule
        of a demand ``outputs`` too, the elements that every rank has in the end.

    Raises
    ------
    InputError
        If the file cannot be read, an argument is wrong, or the buffers do not fit into memory.
    InvalidArtifact
        If the program comes to a stop, or does what cannot be done.
    """
    asked = what.demand if isinstance(what, LoweredFile) else None
    if size is not None and (asked is not None or isinstance(what, DemandAnswer | DemandSchedule)):
        raise InputError("a demand has its own sizes; leave it out", path="arguments", field="size")
    if isinstance(what, LoweredFile) and asked is not None:
        program = read_demand_program(what.text, "the program", asked)
        measured = run_demand_program(program, asked, seed=seed)
        found = measured.comparison
        return DemandRun((), found.num_wrong, "" if found.first is None else str(found.first), measured.time_us)
    if isinstance(what, DemandAnswer | DemandSchedule):
        schedule = what if isinstance(what, DemandSchedule) else what.schedule
        runnable = RunnableDemand.read(write_demand_schedule(schedule), "the schedule")
        return run_demand(runnable, draw_inputs(runnable.demand, seed))
    plan = _plan(what)
    if in_place is None:
        in_place = not plan.out_of_place and plan.in_place
    name = what.runtime if isinstance(what, LoweredFile) else runtime
    target = EXECUTOR if name == MSCCLPP.name else runtime_named(name, None)
    call = Call(
        size_of(size) or plan.declared_bytes(BYTES_PER_MB), _one_of(DataType, datatype, "datatype"), _one_of(Operator, op, "op"),
        in_place,
    )  # fmt: skip
    return run_any(plan, call, Conditions(target, seed=seed))


def _plan(what: LoweredFile | str | Path) -> ExecutablePlan:
    if isinstance(what, LoweredFile) and isinstance(what.schedule, Schedule):
        collective = what.schedule.collective
        if isinstance(what.program, OneSidedProgram):
            return read_one_sided(what.text, "the plan", root=collective.root)
        return read_plan(what.text, "the program", kind=collective.kind, root=collective.root)
    if not isinstance(what, str | Path):
        raise InputError(
            f"found {type(what).__name__}, what lower made or a file is needed", path="arguments", field="what"
        )
    file = path_of(what)
    text, name = read_text(file), str(file)
    if text.lstrip()[:1] != "{":
        return read_plan(text, name)
    if is_one_sided(text, name):
        return read_one_sided(text, name)
    raise InputError("is no MSCCL XML and no MSCCL++ plan; lower a schedule first", path=name)


def _one_of(kind: type[DataType] | type[Operator], name: str, field: str) -> Any:
    if name not in tuple(kind):
        raise InputError(f"found {name!r}, use one of: {', '.join(kind)}", path="arguments", field=field)
    return kind(name)
