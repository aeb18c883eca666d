"""``taccl run``: a program on real data."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from taccl_py.cli.asked import refuse_others
from taccl_py.cli.demands import DemandSession, is_demand_schedule, run_demand_program, run_demand_schedule
from taccl_py.cli.options import KIND, SIZE, SIZE_RANGE, FiniteRange, echo_json, json_option
from taccl_py.cli.subject import refuse_folder
from taccl_py.errors import InputError, Interrupted, InvalidArtifact, TacclError, Violation
from taccl_py.execute.plan import Backend, DataType, ExecutablePlan, Operator
from taccl_py.jsonio import is_json, read_text
from taccl_py.report.runs import RunRow, rounding_notes, run_record, run_table, run_violation
from taccl_py.report.tables import print_table
from taccl_py.runtimes import RUNTIMES, Runtime
from taccl_py.units import BYTES_PER_MB

if TYPE_CHECKING:
    from taccl_py.api.subject import GivenFile
    from taccl_py.execute.demand import RunnableDemand
    from taccl_py.execute.runs import Call, CallOutcome, Conditions
    from taccl_py.topology.model import Topology

_Made = TypeVar("_Made")
_LOCAL, _MPI, _TORCH, _MSCCLPP = "local", "mpi", "torch", "mscclpp"
_ALL = "all"
# Parameters that mean something for the schedule of a demand.
_OF_DEMANDS = ("file", "executor", "backend", "timeout", "seed", "repeats", "as_json")
_OF_DEMAND_PROGRAMS = ("file", "executor", "demand", "backend", "timeout", "seed", "repeats", "shuffle", "as_json")
_PLACEMENTS = {"in": (True,), "out": (False,)}


@dataclass(frozen=True)
class _RunFile:
    """A plan, and what predicts its time for a size (None without a machine)."""

    plan: ExecutablePlan
    predict: Callable[[int], float] | None


@click.command("run", short_help="Execute a schedule, an MSCCL XML file or an MSCCL++ plan on real data.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--with",
    "executor",
    type=click.Choice([_LOCAL, _MPI, _TORCH, _MSCCLPP]),
    default=_LOCAL,
    show_default=True,
    help="What executes it: all ranks in this process, one process for each rank under mpiexec or torchrun, or, under mpiexec, "
    "MSCCL++ on GPUs (plans only).",
)
@click.option(
    "--backend",
    type=click.Choice([*map(str, Backend)]),
    default=str(Backend.AUTO),
    show_default=True,
    help="What carries torch's messages: gloo on CPUs or nccl on GPUs, which ranks may share; auto is nccl where each rank has "
    "a GPU for itself.",
)
@click.option(
    "--size",
    type=SIZE,
    multiple=True,
    help="Size as nccl-tests counts it; may be repeated. Default: 1MB, or the nearest that the file declares itself for.",
)
@click.option("--sizes", type=SIZE_RANGE, default=None, help="Range of sizes, doubling: 1KiB:1GiB.")
@click.option(
    "--datatype",
    type=click.Choice([*map(str, DataType), _ALL]),
    multiple=True,
    default=("float32",),
    show_default=True,
    help="Type of the elements; may be repeated.",
)
@click.option(
    "--op",
    type=click.Choice([*map(str, Operator), _ALL]),
    multiple=True,
    help="Operator of a combining collective; may be repeated.  [default: sum]",
)
@click.option(
    "--placement",
    type=click.Choice(["declared", "in", "out", "both"]),
    default="declared",
    show_default=True,
    help="How the buffers lie: as the file says that it is for, in place, out of place, or both.",
)
@click.option("--root", type=click.IntRange(0), default=None, help="Root, where the steps of an XML file do not tell.")
@click.option("--collective", type=KIND, default=None, help='What an XML file with coll="custom" is meant to do.')
@click.option(
    "--demand",
    type=click.Path(path_type=Path),
    default=None,
    help="Demand of an XML file or a plan (local) that is for one; it runs at the demand's own size and type.",
)
@click.option(
    "--runtime",
    type=click.Choice(list(RUNTIMES)),
    default="executor",
    show_default=True,
    help="Runtime for which a schedule is lowered, and what its connections hold.",
)
@click.option(
    "--topology", default="", help="Machine of an XML file or a plan, to predict its time: name, formula or file."
)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of that machine.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each call.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the data.")
@click.option(
    "--timeout",
    type=FiniteRange(0.1),
    default=60.0,
    show_default=True,
    help="Seconds without anything moving after which processes count as stopped (mpi, torch).",
)
@click.option("--shuffle", is_flag=True, help="Let threadblocks take turns at random (local), which shows races.")
@json_option
def run_command(file: Path, executor: str, as_json: bool, **values: Any) -> int:  # fmt: skip
    """Execute FILE (a schedule.json, any MSCCL XML file or an MSCCL++ plan) on real data, and compare with what is promised.

    Threadblocks run as on a GPU: steps in order, connections with the slots of the runtime, large chunks in slices. The result
    is compared with the collective's definition, computed on whole buffers. The schedule of a demand runs message by message, at its own size,
    and a program of one with --demand, with which it is compared. An XML file is not verified first; a schedule is lowered. A size that equal chunks of whole elements do not make up is rounded, and a note says what was run. The columns are
    those of nccl-tests; times are of this machine, the predicted ones of the topology.

    Exit code 0 if all is right, 4 if an element is wrong or the program comes to a stop.

    \b
    Examples:
      taccl run out/algorithm.xml --datatype all --sizes 1KiB:64KiB
      taccl run out/schedule.json --size 1MB --placement in --shuffle
      taccl run out/algorithm.xml --topology ndv2 --nodes 2 --size 16MB
      taccl run mine/plan.json --demand my.json --shuffle --repeats 3
      mpiexec -n 16 taccl run out/algorithm.xml --with mpi
      torchrun --nproc-per-node 16 --no-python taccl run out/algorithm.xml --with torch
      mpiexec -n 16 taccl run plan.json --with mscclpp
    """
    values["executor"] = executor
    session = _open_session(executor, values)
    try:
        try:
            if executor != _MSCCLPP and session.share(lambda: is_demand_schedule(file)):
                _refuse_demand(file, values["demand"])
                refuse_others(_OF_DEMANDS, str(file))
                run_demand_schedule(session, file, values["seed"], values["repeats"], as_json=as_json)
            elif values["demand"] is not None:
                refuse_others(_OF_DEMAND_PROGRAMS, str(values["demand"]))
                run_demand_program(session, file, values["demand"], values, as_json=as_json)
            else:
                _run(session, file, values, as_json=as_json)
        finally:
            session.close()
    except (TacclError, KeyboardInterrupt) as error:
        # A launcher also interrupts those that are not done when another one has told what is wrong.
        if session.speaks:
            raise
        return error.exit_code if isinstance(error, TacclError) else Interrupted.exit_code
    return 0


def _refuse_demand(file: Path, demand: Path | None) -> None:
    """Refuse another demand for a file that carries its own."""
    if demand is not None:
        raise InputError(
            f"is for XML files and plans, but {file} is a schedule, which carries it; leave --demand out",
            path="command line",
            field="--demand",
        )


class _Session(DemandSession, Protocol):
    """The ranks, or one of them."""

    def run(self, plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
        """Make a call."""

    def close(self) -> None:
        """Let go of the others."""


class _Here:
    """All ranks in this process."""

    speaks = True
    measure = None

    def share(self, make: Callable[[], _Made]) -> _Made:
        """Return what is made."""
        return make()

    def mail(self, name: str) -> None:  # noqa: ARG002
        """There is nobody else."""
        return

    def require_ranks(self, plan: ExecutablePlan | RunnableDemand) -> None:
        """Any number is good."""

    def run(self, plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
        """Make a call."""
        from taccl_py.execute.one_sided_local import run_any

        return run_any(plan, call, conditions)

    def end_all_at_exit(self, exit_code: int) -> None:
        """There is nobody else."""

    def close(self) -> None:
        """There is nobody else."""


def _open_session(executor: str, values: dict[str, Any]) -> _Session:
    timeout_seconds: float = values["timeout"]
    if values["backend"] != Backend.AUTO and executor != _TORCH:
        raise InputError(f"is for --with {_TORCH}; leave it out", path="command line", field="--backend")
    if values["shuffle"] and executor != _LOCAL:
        raise InputError(f"is for --with {_LOCAL}; leave it out", path="command line", field="--shuffle")
    if values["demand"] is not None and executor == _MSCCLPP:
        raise InputError(
            f"is not for --with {_MSCCLPP}, which calls collectives; leave --with out, and the plan runs with all ranks in this process",
            path="command line",
            field="--demand",
        )
    if executor == _MPI:
        from taccl_py.execute.mpi import MpiSession

        return MpiSession(timeout_seconds)
    if executor == _MSCCLPP:
        from taccl_py.execute.mscclpp_ranks import MscclppSession

        return MscclppSession(timeout_seconds)
    if executor == _TORCH:
        from taccl_py.execute.torch_ranks import TorchSession

        return TorchSession(timeout_seconds, Backend(values["backend"]), os.environ)
    return _Here()


def _run(session: _Session, file: Path, values: dict[str, Any], *, as_json: bool) -> None:
    """Make all calls; what there is to say is said by the first process."""
    from taccl_py.execute.runs import Conditions

    prepared: list[_RunFile] = []

    def prepare() -> ExecutablePlan:
        prepared.append(_load(file, values))
        return prepared[0].plan

    plan = session.share(prepare)
    session.require_ranks(plan)
    conditions = Conditions(
        RUNTIMES[values["runtime"]], values["repeats"], values["seed"], shuffled=values["shuffle"],
        timeout_seconds=values["timeout"],
    )  # fmt: skip
    rows: list[RunRow] = []
    violations: list[Violation] = []
    stopped = False
    try:
        for call in _calls(plan, values):
            outcome = session.run(plan, call, conditions)
            predict = prepared[0].predict if prepared else None
            rows.append(RunRow(outcome, None if predict is None else predict(outcome.size_bytes)))
            wrong = run_violation(plan, outcome)
            violations += [] if wrong is None else [wrong]
    except InvalidArtifact as error:
        stopped = True
        violations += error.violations
    if session.speaks:
        _print(file, plan, rows, violations, as_json=as_json)
    if stopped:
        session.end_all_at_exit(InvalidArtifact.exit_code)
    if violations:
        raise InvalidArtifact(str(file), violations)


def _calls(plan: ExecutablePlan, values: dict[str, Any]) -> list[Call]:
    from taccl_py.execute.runs import Call

    if values["op"] and not plan.reduces:
        raise InputError(f"{plan.kind} combines nothing; leave --op out", path="command line", field="--op")
    declared = tuple(kept for kept, on in ((False, plan.out_of_place), (True, plan.in_place)) if on)
    placements = {**_PLACEMENTS, "both": (False, True), "declared": declared or (False,)}[values["placement"]]
    sizes = [*values["size"], *(values["sizes"].doubled() if values["sizes"] else ())]
    sizes = sizes or [plan.declared_bytes(BYTES_PER_MB)]
    types = list(DataType) if _ALL in values["datatype"] else [DataType(name) for name in values["datatype"]]
    operators = list(Operator) if _ALL in values["op"] else [Operator(name) for name in values["op"] or ("sum",)]
    return [
        Call(size, data_type, operator, in_place)
        for data_type, operator, size, in_place in product(types, operators, sizes, placements)
    ]


def _load(file: Path, values: dict[str, Any]) -> _RunFile:
    from taccl_py.execute.one_sided import is_one_sided
    from taccl_py.execute.reader import read_plan

    refuse_folder(file)
    text = read_text(file)
    runtime = RUNTIMES[values["runtime"]]
    if text.lstrip()[:1] == "{" and is_one_sided(text, str(file)):
        return _load_one_sided(file, text, values)
    if is_json(file, text):
        return _load_schedule(file, text, values, runtime)
    plan = read_plan(text, str(file), kind=values["collective"], root=values["root"])
    return _RunFile(plan, _predictor(file, text, values, runtime))


def _load_one_sided(file: Path, text: str, values: dict[str, Any]) -> _RunFile:
    from taccl_py.execute.one_sided import read_one_sided

    if values["collective"]:
        raise InputError(
            f"is for XML files, but {file} is an MSCCL++ plan, which says it; leave --collective out",
            path="command line",
            field="--collective",
        )
    if values["executor"] not in (_LOCAL, _MSCCLPP):
        raise InputError(
            f"{values['executor']} executes XML files and schedules, but {file} is an MSCCL++ plan; use --with {_LOCAL} or "
            f"{_MSCCLPP}",
            path="command line",
            field="--with",
        )
    return _RunFile(read_one_sided(text, str(file), root=values["root"]), _plan_predictor(file, text, values))


def _load_schedule(file: Path, text: str, values: dict[str, Any], runtime: Runtime) -> _RunFile:
    from taccl_py.execute.reader import read_plan
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.pipeline.deliver import lower_and_verify, replay_at
    from taccl_py.pipeline.search import require_valid
    from taccl_py.schedule.files import read_schedule

    for name in ("root", "collective", "topology", "nodes"):
        if values[name] not in (None, ""):
            raise InputError(
                f"is for XML files, but {file} is a schedule, which carries it; leave --{name} out",
                path="command line",
                field=f"--{name}",
            )
    schedule = read_schedule(text, str(file))
    require_valid(schedule, str(file))
    lowered = lower_and_verify(schedule, LoweringOptions(runtime))
    collective = schedule.collective
    plan = read_plan(lowered.text, str(file), kind=collective.kind, root=collective.root)

    def predict(size_bytes: int) -> float:
        sized = replace(schedule, chunk_bytes=collective.chunk_bytes(size_bytes))
        return replay_at(lowered.program, sized, runtime, 1).makespan_us

    return _RunFile(plan, predict)


def _machine(values: dict[str, Any]) -> Topology | None:
    """Return the machine that times are predicted for, if one was named."""
    from taccl_py.sketch.machine import load_machine

    if not values["topology"]:
        if values["nodes"] is not None:
            raise InputError("is the number of nodes of --topology; add that", path="command line", field="--nodes")
        return None
    return load_machine(values["topology"], "", values["nodes"]).topology


def _plan_predictor(file: Path, text: str, values: dict[str, Any]) -> Callable[[int], float] | None:
    from taccl_py.api.subject import plan_subject
    from taccl_py.lowering.plan_reader import kind_of_plan, parse_plan

    topology = _machine(values)
    if topology is None:
        return None
    plan = parse_plan(text, str(file))
    return _times(plan_subject(plan, kind_of_plan(plan, str(file)), topology, str(file)))


def _predictor(file: Path, text: str, values: dict[str, Any], runtime: Runtime) -> Callable[[int], float] | None:
    from taccl_py.api.subject import program_subject
    from taccl_py.lowering.msccl_xml import parse_xml

    topology = _machine(values)
    if topology is None:
        return None
    return _times(program_subject(parse_xml(text, str(file), runtime), runtime, topology, str(file)))


def _times(subject: GivenFile) -> Callable[[int], float] | None:
    """Predicted times by size."""
    replay = subject.replay
    return None if replay is None else lambda size_bytes: replay(size_bytes).makespan_us


def _print(
    file: Path, plan: ExecutablePlan, rows: Sequence[RunRow], violations: Sequence[Violation], *, as_json: bool
) -> None:
    records = [run_record(plan, row) for row in rows]
    if as_json:
        echo_json({
            "file": str(file),
            "collective": str(plan.kind),
            "num_ranks": plan.num_ranks,
            "good": not violations,
            "results": records,
            "violations": [{"where": v.where, "rule": v.rule, "what": v.what} for v in violations],
        })  # fmt: skip
        return
    if records:
        for note in rounding_notes(plan, records):
            click.echo(f"note: {note}", err=True)
        print_table(run_table(f"{file}: {plan.kind}, {plan.num_ranks} ranks, {plan.protocol}", records))
