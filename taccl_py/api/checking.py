"""The independent verifiers on schedules and algorithm files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from taccl_py.answer import Answer
from taccl_py.api.arguments import kind_of, names_arguments, path_of
from taccl_py.api.files import LoweredFile
from taccl_py.api.policy import runtime_named
from taccl_py.collective import Kind
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError, Violation, require_verdict
from taccl_py.jsonio import format_of, is_json, parse_json, read_text
from taccl_py.pipeline.demands import DemandAnswer
from taccl_py.runtimes import LEGACY, MSCCLPP, Runtime
from taccl_py.schedule.demand_files import read_demand_schedule
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT, GROUP_FORMAT, read_schedule
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.group import GroupSchedule
from taccl_py.schedule.group_files import read_group
from taccl_py.schedule.ir import Schedule
from taccl_py.verify.any_size import verify_any
from taccl_py.verify.demand import verify_demand_schedule
from taccl_py.verify.group import verify_group
from taccl_py.verify.msccl import ProgramVerdict, verify_program
from taccl_py.verify.mscclpp import PlanVerdict, is_plan, verify_plan

if TYPE_CHECKING:
    from taccl_py.pipeline.conversion import Conversion


@names_arguments
def check(
    what: Answer | Schedule | DemandAnswer | DemandSchedule | GroupSchedule | LoweredFile | Conversion | str | Path,
    *,
    kind: Kind | str | None = None,
    root: int | None = None,
    demand: DataDemand | None = None,
    runtime: str = "executor",
) -> tuple[Violation, ...]:
    """Verify a schedule or an algorithm file of any origin, as ``taccl check``.

    A schedule is tested for its result, causality, links, and overlap on links and ports. A program is parsed as its runtime would,
    executed symbolically, and searched for deadlocks and races.

    Parameters
    ----------
    what
        An answer, a schedule, what `taccl_py.lower` or `taccl_py.convert` made, or a file: a schedule, MSCCL XML or an MSCCL++ plan.
    kind, root
        Collective and root that it must be for, if that matters.
    demand
        Demand that the schedule, XML file or plan of one must be for; what `lower` made of a demand knows its own.
    runtime
        Runtime whose rules an XML file must keep: ``executor``, ``rccl`` or ``legacy``; what `lower` and `convert` made knows its own.

    Returns
    -------
    tuple of Violation
        Errors, each with ``where``, ``rule`` and ``what``; empty if there are none.

    Raises
    ------
    InputError
        If a file cannot be read or an argument is wrong.
    Unsupported
        If a file is neither right nor wrong to the verifier, as it uses what that does not know.
    """
    wanted = None if kind is None else kind_of(kind)
    target = runtime_named(runtime, None)
    if isinstance(what, DemandAnswer | DemandSchedule):
        schedule = what if isinstance(what, DemandSchedule) else what.schedule
        return _demand_violations(schedule, demand, wanted, root)
    if isinstance(what, LoweredFile) and what.demand is not None:
        _refuse_kind(wanted, root)
        return _program_violations(what, demand=demand or what.demand)
    if isinstance(what, str | Path):
        return _file_violations(path_of(what), demand, wanted, root, target)
    if demand is not None:
        _refuse_demand()
    if isinstance(what, Answer | Schedule):
        return verify_any(what.schedule if isinstance(what, Answer) else what, kind=wanted, root=root)
    if isinstance(what, GroupSchedule):
        return group_violations(what, wanted, root)
    if isinstance(what, LoweredFile):
        return _program_violations(what, wanted, root)
    return _conversion_violations(what, wanted, root)


def _file_violations(
    file: Path, demand: DataDemand | None, wanted: Kind | None, root: int | None, target: Runtime
) -> tuple[Violation, ...]:
    text, name = read_text(file), str(file)
    of_json = is_json(file, text)
    if of_json and format_of(text, name) == DEMAND_SCHEDULE_FORMAT:
        return _demand_violations(read_demand_schedule(text, name), demand, wanted, root)
    if demand is not None:
        if of_json and not is_plan(parse_json(text, name)):
            _refuse_demand()
        _refuse_kind(wanted, root)
        target = LEGACY
    if not of_json:
        return _decided(name, verify_program(text, target, kind=wanted, root=root, demand=demand))
    if format_of(text, name) == GROUP_FORMAT:
        return group_violations(read_group(text, name), wanted, root)
    if is_plan(parse_json(text, name)):
        return _decided(name, verify_plan(text, name, kind=wanted, root=root, demand=demand))
    return verify_any(read_schedule(text, name), kind=wanted, root=root)


def _refuse_demand() -> NoReturn:
    raise InputError(
        "is for schedules and programs of demands, and this is for a collective; leave it out",
        path="arguments",
        field="demand",
    )


def _demand_violations(
    schedule: DemandSchedule, demand: DataDemand | None, kind: Kind | None, root: int | None
) -> tuple[Violation, ...]:
    _refuse_kind(kind, root)
    return verify_demand_schedule(schedule, demand)


def _program_violations(
    what: LoweredFile, kind: Kind | None = None, root: int | None = None, demand: DataDemand | None = None
) -> tuple[Violation, ...]:
    if what.runtime == MSCCLPP.name:
        return _decided("plan.json", verify_plan(what.text, "plan.json", kind=kind, root=root, demand=demand))
    runtime = runtime_named(what.runtime, None)
    return _decided("algorithm.xml", verify_program(what.text, runtime, kind=kind, root=root, demand=demand))


def _refuse_kind(kind: Kind | None, root: int | None) -> None:
    for field, value in (("kind", kind), ("root", root)):
        if value is not None:
            raise InputError(
                "is for the eight collectives, and this is the schedule of a demand; name the demand instead",
                path="arguments", field=field,
            )  # fmt: skip


def _decided(name: str, verdict: ProgramVerdict | PlanVerdict) -> tuple[Violation, ...]:
    """Errors of a verdict that is valid or invalid."""
    if not verdict.violations:
        require_verdict(name, (), verdict.unsupported)
    return verdict.violations


def _conversion_violations(what: Conversion, kind: Kind | None, root: int | None) -> tuple[Violation, ...]:
    from taccl_py.pipeline.conversion import Conversion

    if isinstance(what, Conversion):
        return _decided("algorithm.xml", verify_program(what.text, what.runtime, kind=kind, root=root))
    raise InputError(
        f"found {type(what).__name__}, an Answer, a Schedule, what lower made or a file is needed",
        path="arguments", field="what",
    )  # fmt: skip


def group_violations(schedule: GroupSchedule, kind: Kind | None, root: int | None) -> tuple[Violation, ...]:
    """Errors in a group schedule that must be for a collective and a root, if these are given."""
    found = verify_group(schedule)
    if kind is not None and kind is not schedule.kind:
        what = f"the schedule is for {schedule.kind}, and {kind} was asked for"
        found = (Violation("", "collective", what), *found)
    if root is not None:
        what = f"{schedule.kind} has no root, and root {root} was asked for"
        found = (Violation("", "wrong-root", what), *found)
    return found
