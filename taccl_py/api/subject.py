"""Algorithm files and schedules with the machine on which they run: to replay, to show and to report them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from taccl_py.api.policy import AUTO, chosen_runtime
from taccl_py.errors import InputError, require_verdict
from taccl_py.jsonio import format_of, is_json, parse_json, read_text
from taccl_py.runtimes import CUSTOM, LEGACY, MSCCLPP, Runtime
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT
from taccl_py.units import nearest_within

if TYPE_CHECKING:
    from taccl_py.collective import Kind
    from taccl_py.demand import DataDemand
    from taccl_py.lowering.plan import Plan
    from taccl_py.lowering.program import Program
    from taccl_py.profiles.model import RuntimeProfile
    from taccl_py.schedule.for_demand import DemandSchedule
    from taccl_py.schedule.ir import Schedule
    from taccl_py.simulate.timeline import Timeline
    from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class GivenFile:
    """Content of a file.

    Attributes
    ----------
    replay
        Its timeline at a size in bytes (None: at the size that it was made for; the machine's default for an XML file or a plan, or the
        nearest size that it declares itself for). None if the machine is not known.
    schedule, program, plan, demand
        One of them; the last one is the schedule of a demand.
    topology
        The machine, or None.
    kind
        Collective of a plan.
    runtime
        Name of the runtime that a program or a plan is for; empty for a schedule.
    asked
        Demand that a program or a plan is for, or None.
    """

    replay: Callable[[int | None], Timeline] | None
    schedule: Schedule | None
    program: Program | None
    topology: Topology | None
    plan: Plan | None = None
    kind: Kind | None = None
    runtime: str = ""
    demand: DemandSchedule | None = None
    asked: DataDemand | None = None

    @property
    def why_one_size(self) -> str:
        """Reason for which sizes other than its own are not possible, or empty."""
        if self.replay is None:
            return "without --topology there is no time"
        return "" if self.asked is None else "a program of a demand is for the demand's sizes"


@dataclass(frozen=True)
class Placed:
    """Machine on which an XML file or a plan runs, and the demand that it is for, as a user names them; a schedule carries its own.

    Attributes
    ----------
    topology
        Name, formula, file, or the machine itself; empty: not known.
    nodes, sketch
        Number of nodes, and the sketch that completes a TACCL profile.
    runtime
        Runtime that an XML file is for, or ``auto``.
    demand
        File of the demand that the file is for; None for one of a collective.
    named
        Which of these the user names, as options that are refused where the file says it or has none.
    """

    topology: str | Topology = ""
    nodes: int | None = None
    sketch: str = ""
    runtime: str = AUTO
    demand: Path | None = None
    named: tuple[str, ...] = ()

    def asked(self) -> DataDemand | None:
        """Return the demand, if there is one.

        Raises
        ------
        InputError
            If the file is wrong.
        """
        from taccl_py.demand.msccl_collective import read_demand_file

        return None if self.demand is None else read_demand_file(self.demand)

    def machine(self) -> Topology | None:
        """Return the machine, if it is known.

        Raises
        ------
        InputError
            If there is no such machine.
        """
        from taccl_py.sketch.machine import load_machine

        if self.topology == "":
            return None
        return load_machine(self.topology, self.sketch, self.nodes).topology


def load_subject(file: Path, placed: Placed, *, verified: bool, needs_machine: bool = True) -> GivenFile:
    """Read and verify a file.

    Parameters
    ----------
    file
        A schedule, an MSCCL XML file or an MSCCL++ plan.
    placed
        The machine.
    verified
        Whether the verifier is asked.
    needs_machine
        Whether an XML file without a machine is refused.

    Raises
    ------
    InputError
        If the file or an option is wrong.
    InvalidArtifact
        If the verifier reports errors.
    """
    from taccl_py.verify.mscclpp import is_plan

    text = read_text(file)
    if is_json(file, text):
        if format_of(text, str(file)) is None and is_plan(parse_json(text, str(file))):
            return _load_plan(file, text, placed, verified=verified, needs_machine=needs_machine)
        why = f"is for XML files, but {file} is a schedule, which carries its machine"
        _refuse(placed, ("topology", "nodes", "sketch", "runtime"), why)
        if format_of(text, str(file)) == DEMAND_SCHEDULE_FORMAT:
            return _load_demand_schedule(file, text, placed, verified=verified)
        return _load_schedule(file, text, placed, verified=verified)
    if needs_machine and placed.topology == "":
        raise InputError("an XML file does not say on which machine it runs; add --topology", path=str(file))
    return _load_program(file, text, placed, verified=verified)


def _refuse(placed: Placed, names: Sequence[str], why: str) -> None:
    for name in names:
        if name in placed.named:
            raise InputError(f"{why}; leave --{name} out", path="command line", field=f"--{name}")


def _load_schedule(file: Path, text: str, placed: Placed, *, verified: bool) -> GivenFile:
    from taccl_py.schedule.files import read_schedule
    from taccl_py.verify.any_size import verify_any

    _refuse(placed, ("demand",), f"is for demands, but {file} is the schedule of a collective")
    schedule = read_schedule(text, str(file))
    if verified:
        require_verdict(str(file), verify_any(schedule))
    return schedule_subject(schedule)


def _load_demand_schedule(file: Path, text: str, placed: Placed, *, verified: bool) -> GivenFile:
    from taccl_py.schedule.demand_files import read_demand_schedule
    from taccl_py.verify.demand import verify_demand_schedule

    schedule = read_demand_schedule(text, str(file))
    if verified:
        require_verdict(str(file), verify_demand_schedule(schedule, placed.asked()))
    return demand_subject(schedule)


def demand_subject(schedule: DemandSchedule) -> GivenFile:
    """Subject of the schedule of a demand; sizes are all bytes that have to come somewhere."""
    from taccl_py.simulate.demand_replay import replay_demand

    def replay(size: int | None) -> Timeline:
        return replay_demand(schedule, size)

    return GivenFile(replay, None, None, schedule.topology, demand=schedule)


def schedule_subject(schedule: Schedule) -> GivenFile:
    """Subject of a schedule."""
    from taccl_py.simulate.schedule_replay import replay_schedule

    def replay(size: int | None) -> Timeline:
        chunk = schedule.chunk_bytes if size is None else schedule.collective.chunk_bytes(size)
        return replay_schedule(schedule, chunk)

    return GivenFile(replay, schedule, None, schedule.topology)


def _load_plan(file: Path, text: str, placed: Placed, *, verified: bool, needs_machine: bool) -> GivenFile:
    from taccl_py.lowering.plan_reader import kind_of_plan, parse_plan
    from taccl_py.verify.mscclpp import verify_plan

    _refuse(placed, ("runtime",), f"is for XML files, but {file} is an MSCCL++ plan")
    if needs_machine and placed.topology == "":
        raise InputError("a plan does not say on which machine it runs; add --topology", path=str(file))
    asked, plan = placed.asked(), parse_plan(text, str(file))
    if asked is None and plan.collective == CUSTOM:
        raise InputError("is for a demand, and does not say for which; add --demand", path=str(file))
    if verified:
        plan_verdict = verify_plan(text, str(file), demand=asked)
        require_verdict(str(file), plan_verdict.violations, plan_verdict.unsupported)
    kind = None if asked is not None else kind_of_plan(plan, str(file))
    topology = placed.machine()
    if topology is None:
        return GivenFile(None, None, None, None, runtime=MSCCLPP.name, plan=plan, asked=asked)
    return plan_subject(plan, kind, topology, str(file), asked)


@contextmanager
def _machine_to_blame(name: str) -> Iterator[None]:
    """Errors of a replay are those of a file on a machine that it is not for."""
    try:
        yield
    except InputError as error:
        raise InputError(error.what, path=name, field="--topology") from None


def _default_bytes(made: Program | Plan, topology: Topology, chunks: int) -> int:
    """Size in bytes for who names none: the machine's default, or the nearest one for which the program declares itself."""
    return nearest_within(topology.default_bytes(chunks), made.min_bytes, made.max_bytes)


def plan_subject(
    plan: Plan, kind: Kind | None, topology: Topology, name: str, asked: DataDemand | None = None
) -> GivenFile:
    """Subject of a plan on a machine, which errors call by its name; of a collective, or of the demand that was asked for."""
    from taccl_py.simulate.plan_replay import replay_plan

    if asked is not None:
        sent = demand_program_replay(plan, topology, name, asked)
        return GivenFile(sent, None, None, topology, runtime=MSCCLPP.name, plan=plan, asked=asked)

    def replay(size: int | None) -> Timeline:
        size_bytes = _default_bytes(plan, topology, plan.chunks_per_size) if size is None else size
        with _machine_to_blame(name):
            return replay_plan(plan, kind, topology, size_bytes / plan.chunks_per_size)

    return GivenFile(replay, None, None, topology, runtime=MSCCLPP.name, plan=plan, kind=kind)


def _load_program(file: Path, text: str, placed: Placed, *, verified: bool) -> GivenFile:
    from taccl_py.lowering.msccl_xml import parse_xml
    from taccl_py.verify.msccl import verify_program

    topology = placed.machine()
    runtime = chosen_runtime(placed.runtime, topology)
    asked = placed.asked()
    program = parse_xml(text, str(file), runtime, of_demand=asked is not None)
    if verified:
        verdict = verify_program(text, runtime if asked is None else LEGACY, kind=program.kind, demand=asked)
        require_verdict(str(file), verdict.violations, verdict.unsupported)
    if topology is None:
        return GivenFile(None, None, program, None, runtime=runtime.name, asked=asked)
    if asked is not None:
        return demand_program_subject(program, topology, str(file), asked)
    return program_subject(program, runtime, topology, str(file))


def demand_program_subject(program: Program, topology: Topology, name: str, asked: DataDemand) -> GivenFile:
    """Subject of the program of a demand on a machine, which errors call by its name."""
    sent = demand_program_replay(program, topology, name, asked)
    return GivenFile(sent, None, program, topology, runtime=LEGACY.name, asked=asked)


def demand_program_replay(
    program: Program | Plan, topology: Topology, name: str, asked: DataDemand
) -> Callable[[int | None], Timeline]:
    """Replay of the program of a demand, at the demand's own size."""
    from taccl_py.lowering.plan import Plan
    from taccl_py.simulate.plan_replay import replay_plan
    from taccl_py.simulate.program_replay import replay_program

    if isinstance(program, Plan):
        plan = program
        return _at_own_size(lambda chunk: replay_plan(plan, None, topology, chunk), asked, plan.chunks_per_size, name)
    xml, slots = program, LEGACY.fifo_slots[program.protocol]
    return _at_own_size(
        lambda chunk: replay_program(xml, topology, chunk, fifo_slots=slots), asked, xml.num_chunks_per_loop, name
    )  # fmt: skip


def _at_own_size(
    replay: Callable[[float], Timeline], asked: DataDemand, chunks: int, name: str
) -> Callable[[int | None], Timeline]:
    """Replay of a program of a demand with chunks as long as the demand makes them, so many in the longest buffer."""
    chunk_bytes = asked.longest_bytes / chunks

    def own(_size: int | None) -> Timeline:
        with _machine_to_blame(name):
            return replace(replay(chunk_bytes), size_bytes=float(asked.total_bytes))

    return own


def program_subject(program: Program, runtime: Runtime, topology: Topology, name: str) -> GivenFile:
    """Subject of a program on a machine, which errors call by its name."""
    from taccl_py.lowering.program import chunks_of_size
    from taccl_py.simulate.program_replay import replay_at_size

    whole = chunks_of_size(program, runtime)

    def replay(size: int | None) -> Timeline:
        size_bytes = _default_bytes(program, topology, whole) if size is None else size
        with _machine_to_blame(name):
            return replay_at_size(program, runtime, topology, size_bytes)

    return GivenFile(replay, None, program, topology, runtime=runtime.name)


def runtime_times(subject: GivenFile, profile: RuntimeProfile) -> Callable[[float], float] | None:
    """Time of a program or a plan under a runtime profile by size in bytes, in microseconds; None under the neutral one, or for a schedule."""
    from taccl_py.simulate.plan_replay import RuntimePlanReplay
    from taccl_py.simulate.runtime_replay import RuntimeReplay

    topology = subject.topology
    if topology is None or profile.is_neutral:
        return None
    if subject.plan is not None:
        times = RuntimePlanReplay(subject.plan, subject.kind, topology, profile).time_us
    elif subject.program is not None:
        times = RuntimeReplay(subject.program, topology, profile).time_us
    else:
        return None
    if subject.asked is None:
        return times
    own_bytes = float(subject.asked.longest_bytes)
    return lambda _size: times(own_bytes)
