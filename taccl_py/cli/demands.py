"""``taccl reshard``, and what ``taccl synth``, ``taccl bound`` and ``taccl run`` do with a demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from taccl_py.api.policy import AUTO, DEMAND_LIMIT_S, RACE_LIMIT_S, budget
from taccl_py.cli.asked import FORMULA_OPTIONS, make_asked_demand, refuse_others
from taccl_py.cli.options import (
    OUTPUT,
    RANKS,
    RecordedCommand,
    budget_options,
    command_fact,
    degradation_options,
    echo_json,
    json_option,
    make_degradation,
)
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError, InvalidArtifact, LoweringError, Violation
from taccl_py.jsonio import canonical_json, format_of, read_text, write_all
from taccl_py.report.tables import SUMMARY_FORMAT, print_table
from taccl_py.solvers.limits import Limits, Over, never
from taccl_py.synthesis.catalog import DEMAND_ENGINES

if TYPE_CHECKING:
    from taccl_py.demand import DataDemand
    from taccl_py.demand.reshard import Resharding
    from taccl_py.execute.demand import RunnableDemand
    from taccl_py.execute.demand_processes import DemandMail
    from taccl_py.execute.plan import ExecutablePlan
    from taccl_py.execute.runs import Measure
    from taccl_py.schedule.for_demand import DemandSchedule
    from taccl_py.topology.model import Topology

_T = TypeVar("_T")
_MACHINE = (
    "topology",
    "collective",
    "sketch",
    "nodes",
    "ranks",
    "without_link",
    "slow_link",
    "without_port",
    "slow_port",
    "as_json",
)
_FORMULA = (*FORMULA_OPTIONS, "size", "seed")
_SYNTH = (*_MACHINE, *_FORMULA, "engine", "effort", "time_limit", "output", "progress", "only_schedule")


def synth_demand(values: dict[str, Any], output: Path | None, *, as_json: bool) -> None:
    """Synthesize for a demand, and write its files."""
    asked = values["collective"]
    _refuse_runtime(values["runtime"])
    refuse_others(_SYNTH, str(asked.variable or asked.file))
    _require_output(output)
    topology = _machine(values)
    _search(topology, make_asked_demand(values, topology.num_ranks), values, output, as_json=as_json)


def _refuse_runtime(runtime: str) -> None:
    """Refuse a runtime that was given: it never uses the program of a demand, or has its program in any case."""
    from taccl_py.pipeline.demand_programs import DEMAND_TARGETS, refuse_runtime
    from taccl_py.runtimes import LEGACY, MSCCLPP, RUNTIMES

    if click.get_current_context().get_parameter_source("runtime") is not ParameterSource.COMMANDLINE:
        return
    if runtime in RUNTIMES and all(target.runtime != runtime for target in DEMAND_TARGETS):
        raise refuse_runtime(runtime)
    raise InputError(
        f"programs of a demand are for {MSCCLPP.title} and for {LEGACY.title}, both beside the schedule; leave it out",
        path="command line",
        field="--runtime",
    )


def bound_demand(values: dict[str, Any], *, as_json: bool) -> None:
    """Print the bound of a demand."""
    from taccl_py.pipeline.demands import demand_lower_bound
    from taccl_py.report.demands import demand_bound_record, demand_bound_table

    asked = values["collective"]
    refuse_others((*_MACHINE, *_FORMULA), str(asked.variable or asked.file))
    topology = _machine(values)
    demand = make_asked_demand(values, topology.num_ranks)
    bound, known = demand_lower_bound(topology, demand, Limits())
    result = demand_bound_record(topology, demand, bound, known)
    if as_json:
        echo_json(result)
    else:
        print_table(demand_bound_table(result))


@click.command(cls=RecordedCommand, short_help="Move a tensor from one sharding over a mesh of ranks to another.")
@click.argument("topology")
@click.option("--shape", required=True, help="Lengths of the tensor's dimensions: 1024x1024x512.")
@click.option("--dtype", default="float32", show_default=True, help="Type of its elements: fp32, bf16, int8 and so on.")
@click.option(
    "--from", "source", required=True, help="Where it is: ranks, mesh, and a placement for each axis, 0-15:4x4:S0,R."
)
@click.option("--to", "target", required=True, help="Where it is to be, in the same form.")
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped or node-form topology."
)
@click.option("--ranks", type=RANKS, default=None, help="Process group, for example 0-7 or 0,2,4-6.")
@click.option(
    "--engine",
    type=click.Choice(DEMAND_ENGINES),
    default=None,
    help="Search method; default auto (every planner).",
)
@budget_options(f"{RACE_LIMIT_S:g} s, {DEMAND_LIMIT_S:g} with another engine than auto")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option(
    "-o",
    "--output",
    type=OUTPUT,
    default=None,
    help="Directory for schedule.json, demand.json, boxes.json, summary.json and the programs that runtimes take, or one schedule.json.",
)
@degradation_options
@json_option  # fmt: skip
def reshard(as_json: bool, output: Path | None, **values: Any) -> None:
    """Synthesize what brings a tensor from one sharding to another on TOPOLOGY.

    Placements are those of PyTorch's DTensor: S0 is sharded along dimension 0 (as torch.chunk cuts it, so that the last shards may be shorter or
    empty), R is replicated, P holds a summand (--from only). The meshes may be the same ranks, overlap, or lie apart. Any rank that holds a part may send it,
    in pieces, over other ranks.

    A rank's buffers hold its boxes (parts of the tensor between the cuts of both sides) one behind the other; boxes.json says which.

    \b
    Examples:
      taccl reshard ndv4 --nodes 4 --shape 1024x1024x512 --dtype fp32 --from '0-15:4x4:S0,R' --to '16-31:4x4:R,S1' -o out/
      taccl reshard dgx1 --shape 4096x4096 --dtype bf16 --from 0-7:8:S0 --to 0-7:8:S1
    """
    from taccl_py.demand import dtype_named
    from taccl_py.demand.reshard import parse_shape, parse_sharding
    from taccl_py.demand.reshard import reshard as make_resharding

    _require_output(output)
    topology = _machine(values)
    shape = _parsed("--shape", parse_shape, values["shape"])
    dtype = _parsed("--dtype", dtype_named, values["dtype"])
    source, target = (
        _parsed(f"--{name}", parse_sharding, values[key]) for name, key in (("from", "source"), ("to", "target"))
    )
    try:
        found = make_resharding(shape, dtype, source, target, topology.num_ranks)
    except InputError as error:
        raise InputError(error.what, path="command line", field=error.field) from None
    _search(topology, found.demand, values, output, as_json=as_json, resharding=found)


def is_demand_schedule(file: Path) -> bool:
    """True if a file is the schedule of a demand."""
    from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT

    return file.suffix == ".json" and format_of(read_text(file), str(file)) == DEMAND_SCHEDULE_FORMAT


class DemandSession(Protocol):
    """The ranks that run the schedule or the program of a demand, or one of them."""

    @property
    def speaks(self) -> bool:
        """True if this process is the one that reports to the user."""

    def share(self, make: Callable[[], _T]) -> _T:
        """Return what the first rank makes."""

    def require_ranks(self, plan: ExecutablePlan | RunnableDemand) -> None:
        """Refuse what is for another number of ranks."""

    def mail(self, name: str) -> DemandMail | None:
        """Messages to the other processes; None where all ranks are in this one."""

    @property
    def measure(self) -> Measure | None:
        """Maker of calls of a program with the other processes; None where all ranks are in this one."""

    def end_all_at_exit(self, exit_code: int) -> None:
        """See to it that nobody is left behind."""


def run_demand_schedule(session: DemandSession, file: Path, seed: int, repeats: int, *, as_json: bool) -> None:
    """Run the schedule of a demand on data, and compare.

    Raises
    ------
    InputError
        If the file is wrong, or its data do not fit into memory.
    InvalidArtifact
        If an element is wrong, or a rank does not answer.
    """
    from taccl_py.execute.demand import RunnableDemand, draw_inputs, run_demand
    from taccl_py.execute.demand_processes import run_demand_among
    from taccl_py.report.demands import demand_run_record

    runnable = session.share(lambda: RunnableDemand.read(read_text(file), str(file)))
    session.require_ranks(runnable)
    mail = session.mail(str(file))
    runs = []
    try:
        for number in range(repeats):
            inputs = draw_inputs(runnable.demand, seed + number)
            runs.append(run_demand(runnable, inputs) if mail is None else run_demand_among(runnable, inputs, mail))
    except InputError as error:
        raise InputError(error.what, path=str(file)) from None
    except InvalidArtifact as error:
        session.end_all_at_exit(error.exit_code)
        raise
    if session.speaks:
        time_us = sum(run.time_us for run in runs) / repeats
        num_wrong = sum(run.num_wrong for run in runs)
        _print_runs(demand_run_record(str(file), runnable.demand, repeats, time_us, num_wrong), as_json=as_json)
    wrong = next((run for run in runs if run.num_wrong), None)
    if wrong is not None:
        raise _wrong_results(file, wrong.num_wrong, wrong.first_wrong)


def run_demand_program(
    session: DemandSession, file: Path, demand_file: Path, values: dict[str, Any], *, as_json: bool
) -> None:
    """Run the program of a demand on data, and compare.

    Parameters
    ----------
    session
        The ranks, or one of them.
    file, demand_file
        XML file or plan, and the demand that it is for.
    values
        Options of ``taccl run``.
    as_json
        Whether the result is JSON.

    Raises
    ------
    InputError
        If a file is wrong, the program is not for the demand, or the data do not fit into memory.
    InvalidArtifact
        If an element is wrong, the program comes to a stop, or a rank does not answer.
    """
    from taccl_py.demand.msccl_collective import read_demand_file
    from taccl_py.execute.demand_programs import read_demand_program
    from taccl_py.execute.demand_programs import run_demand_program as run_program
    from taccl_py.execute.one_sided import OneSidedPlan
    from taccl_py.report.demands import demand_run_record

    def read() -> tuple[DataDemand, ExecutablePlan]:
        demand = read_demand_file(demand_file)
        plan = read_demand_program(read_text(file), str(file), demand)
        if isinstance(plan, OneSidedPlan) and session.measure is not None:
            raise InputError(
                f"{values['executor']} executes XML files and schedules, but {file} is an MSCCL++ plan; leave --with out",
                path="command line",
                field="--with",
            )
        return demand, plan

    demand, plan = session.share(read)
    session.require_ranks(plan)
    repeats: int = values["repeats"]
    try:
        measured = run_program(
            plan, demand, repeats=repeats, seed=values["seed"], shuffled=values["shuffle"],
            timeout_seconds=values["timeout"], measure=session.measure,
        )  # fmt: skip
    except InputError as error:
        raise InputError(error.what, path=str(demand_file)) from None
    except InvalidArtifact as error:
        session.end_all_at_exit(error.exit_code)
        raise
    found = measured.comparison
    if session.speaks:
        _print_runs(demand_run_record(str(file), demand, repeats, measured.time_us, found.num_wrong), as_json=as_json)
    if found.first is not None:
        raise _wrong_results(file, found.num_wrong, str(found.first))


def _print_runs(result: dict[str, Any], *, as_json: bool) -> None:
    from taccl_py.report.demands import demand_run_table

    if as_json:
        echo_json(result)
    else:
        print_table(demand_run_table(result))


def _wrong_results(file: Path, num_wrong: int, first: str) -> InvalidArtifact:
    what = f"{num_wrong} elements are wrong; {first}"
    return InvalidArtifact(str(file), [Violation("", "wrong-result", what)])


def _parsed(field: str, parse: Callable[[str], _T], word: str) -> _T:
    """Value of an option, as a function makes it of its word, naming that in errors."""
    try:
        return parse(word)
    except InputError as error:
        raise InputError(error.what, path="command line", field=field) from None


def _require_output(output: Path | None) -> None:
    """Refuse what cannot be written before any work is done."""
    if output is None:
        return
    if output.suffix == ".xml":
        raise InputError(
            "is one file, and of a demand the schedule is written too; name a directory, or a schedule ending in .json",
            path=str(output),
        )
    if output.suffix == ".json" and output.is_dir():
        raise InputError("is a directory; name a file, or a directory without .json", path=str(output))
    if output.suffix != ".json" and output.exists() and not output.is_dir():
        raise InputError("is a file; name a directory, or a file ending in .json", path=str(output))


def _machine(values: dict[str, Any]) -> Topology:
    from taccl_py.collective import Kind
    from taccl_py.pipeline.resolve import Request, damaged_machine

    request = Request(
        topology=values["topology"], kind=Kind.ALLTOALL, sketch=values.get("sketch", ""), nodes=values["nodes"],
        ranks=values["ranks"], degradation=make_degradation(values),
    )  # fmt: skip
    machine, sketch = damaged_machine(request)
    if sketch is not None and machine.measured_chunk_bytes is None:
        raise InputError(
            "completes a TACCL profile, and means nothing else to a demand; leave it out",
            path="command line",
            field="--sketch",
        )
    return machine


def _search(
    topology: Topology,
    demand: DataDemand,
    values: dict[str, Any],
    output: Path | None,
    *,
    as_json: bool,
    resharding: Resharding | None = None,
) -> None:
    """Search, write and print."""
    from taccl_py.api.demands import demand_seconds
    from taccl_py.demand.files import write_demand
    from taccl_py.pipeline.demand_programs import DEMAND_TARGETS
    from taccl_py.pipeline.demands import synthesize_demand
    from taccl_py.report.demands import demand_record, demand_table
    from taccl_py.schedule.demand_files import write_demand_schedule

    stop = threading.Event()
    engine = values["engine"] or AUTO
    limits = budget(
        Limits(seed=values["seed"], stop=stop),
        demand_seconds(demand, engine),
        effort=values["effort"],
        time_limit=values["time_limit"],
    )
    ends = {target.runtime: limits.to_lower() for target in DEMAND_TARGETS}
    with watched(stop, values.get("progress")) as events:
        answer = synthesize_demand(topology, demand, limits, events, engine)
    facts = demand_record(answer) | command_fact()
    texts: dict[Path, str] = {}
    programs: list[dict[str, Any]] = []
    if output is not None:
        schedule = write_demand_schedule(answer.schedule)
        if output.suffix == ".json":
            texts = {output: schedule}
        else:
            texts = {output / "schedule.json": schedule, output / "demand.json": write_demand(demand)}
            if resharding is not None:
                texts[output / "boxes.json"] = canonical_json(
                    [{"low": list(box.low), "high": list(box.high)} for box in resharding.boxes]
                )
            if not values.get("only_schedule"):
                programs = lower_for_all(answer.schedules, demand, output, texts, ends=ends)
            facts["programs"] = programs
            names = [*(path.name for path in texts), "summary.json"]
            texts[output / "summary.json"] = canonical_json({"format": SUMMARY_FORMAT, **facts, "files": names})
        write_all(texts)
    result = {**facts, "programs": programs, "files": [str(path) for path in texts]}
    if as_json:
        echo_json(result)
        return
    print_table(demand_table(result))
    for path in texts:
        click.echo(f"wrote {path}", err=True)
    for program in programs:
        if program["refused"] is not None:
            click.echo(f"note: no {program['file']}: {program['refused']}", err=True)


def lower_for_all(
    schedules: Sequence[DemandSchedule],
    demand: DataDemand,
    output: Path,
    texts: dict[Path, str],
    prefix: str = "",
    ends: Mapping[str, Over] | None = None,
) -> list[dict[str, Any]]:
    """Lower for every runtime that takes demands, and record it; what one cannot do is told, and the schedule is there in any case.

    Parameters
    ----------
    schedules, demand
        The schedule, behind it others of which one is lowered where its program is faster, and the demand with which programs are verified.
    output, texts
        Directory, and texts of its files, to which those of programs are added.
    prefix
        Of the files' names.
    ends
        By runtime: true once no other schedule than the first is to be tried; None: as long as it takes.
    """
    from taccl_py.pipeline.demand_programs import DEMAND_TARGETS

    found = []
    for target in DEMAND_TARGETS:
        record: dict[str, Any] = {
            "runtime": target.runtime,
            "file": prefix + target.file,
            "found_by": None,
            "unit_bytes": None,
            "refused": None,
        }
        found.append(record)
        tried = target.soon_lowered(schedules)
        if not tried:
            record["refused"] = (
                f"more than {target.most_messages} messages, whose program takes longer than the search; taccl lower tries to make it of the schedule"
            )
            continue
        try:
            schedule, made = target.lower_best(tried, demand, never if ends is None else ends[target.runtime])
        except LoweringError as error:
            record["refused"] = str(error)
        else:
            texts[output / f"{prefix}{target.file}"] = made.text
            record |= {"found_by": schedule.finder, "unit_bytes": made.unit_bytes, **made.runtime_facts}
    return found
