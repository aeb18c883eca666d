"""``taccl synth``: the main job."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.api.policy import (
    ENGINE_LIMIT_S,
    LIMIT_RANKS,
    MOST_LIMIT_S,
    RACE_LIMIT_S,
    RANGE_LIMIT_RANKS,
    RANGE_LIMIT_S,
)
from taccl_py.cli.asked import ASKED, demand_options, take_kind
from taccl_py.cli.delivery import (
    check_output,
    deliver_answer,
    is_schedule_alone,
    program_facts,
    runtime_facts,
    write_answer,
)
from taccl_py.cli.notes import program_notes
from taccl_py.cli.options import (
    FAILURES,
    OUTPUT,
    OUTPUT_FILE,
    RANKS,
    SIZE,
    SIZE_RANGE,
    RecordedCommand,
    budget_options,
    command_fact,
    degradation_options,
    echo_json,
    in_json,
    json_option,
    lowering_options,
    make_degradation,
    make_lowering_options,
    make_request,
    refuse_own_input,
    runtime_profile_option,
)
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError
from taccl_py.report.tables import print_table, record, summary_table, timed
from taccl_py.runtimes import MSCCLPP
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import ALL_ENGINE_NAMES
from taccl_py.synthesis.engine import Options
from taccl_py.units import SizeRange, format_time

if TYPE_CHECKING:
    from taccl_py.answer import Answer
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.pipeline.resolve import Request


@click.command(cls=RecordedCommand, short_help="Synthesize an algorithm and write schedule, MSCCL XML and summary.")
@click.argument("topology")
@click.argument("collective", type=ASKED)
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped or node-form topology."
)
@click.option(
    "--sketch",
    default="",
    help="Shipped sketch (sk-1, ndv2-sk-1), sketch file, ours or TACCL's, or auto to search one.",
)
@click.option(
    "--size",
    type=SIZE,
    default=None,
    help="Size as nccl-tests counts it: 64KiB, 1MB, 1G. Default 1MB; with a TACCL profile, chunks of the size that it was measured with.",
)
@click.option(
    "--sizes",
    type=SIZE_RANGE,
    default=None,
    help="Range such as 1KiB:4GiB: the best algorithm for every size, as files with disjoint size ranges.",
)
@click.option(
    "--chunks",
    type=click.IntRange(1),
    default=None,
    help="Chunks per rank; default: the sketch's, else what is fastest (milp and cp: 1).",
)
@click.option("--ranks", type=RANKS, default=None, help="Process group, for example 0-7 or 0,2,4-6.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of Broadcast, Reduce, Gather, Scatter.")
@click.option(
    "--engine",
    type=click.Choice(ALL_ENGINE_NAMES),
    default=None,
    help="Search method; default auto (a race of those that can win), and milp with --sketch or --solver. Demands have their own.",
)
@click.option(
    "--solver",
    default="auto",
    show_default=True,
    help="auto (CP-SAT, else HiGHS), cp-sat, highs, cbc, scip, gurobi, cplex or another PuLP solver.",
)
@click.option(
    "--trees",
    type=click.IntRange(1, 64),
    default=None,
    help="Spanning trees for each root, of --engine trees; default: what is fastest at the size.",
)
@budget_options(
    f"{RACE_LIMIT_S:g} s on up to {LIMIT_RANKS} ranks, {ENGINE_LIMIT_S:g} with another engine than auto, {RANGE_LIMIT_S:g} with --sketch auto; with "
    f"--sizes {RANGE_LIMIT_S:g} on up to {RANGE_LIMIT_RANKS}; in proportion on more ranks, up to {MOST_LIMIT_S:g}. What was found is then lowered "
    "and verified; the best one to lower of schedules that are nearly as fast may take 0.4 times as long again, and the files of --sizes some seconds more"
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option(
    "--scheduler",
    default="",
    help='Dask scheduler, such as tcp://host:8786, whose workers take starts of --engine greedy where that pays (extra "dask").',
)
@click.option(
    "-o",
    "--output",
    type=OUTPUT,
    default=None,
    help="Directory for schedule.json, algorithm.xml (plan.json with --runtime mscclpp) and summary.json, or one file ending in .xml or .json.",
)
@click.option(
    "--progress",
    type=OUTPUT_FILE,
    default=None,
    help="Write incumbent and bound over time to this file; taccl report draws progress.json beside a schedule.",
)
@click.option(
    "--only-schedule",
    is_flag=True,
    help="Make no program: for machines that are larger than what a runtime can load. Also what -o FILE.json does.",
)
@demand_options
@degradation_options
@click.option(
    "--single-failures",
    type=FAILURES,
    default=None,
    help="One schedule for each thing of a sort that may fail, and an index: nic (lost), gpu-link, gpu-port, or with the part of "
    "the bandwidth that is left, nic:0.5; several after commas. One search for those that are alike; --time-limit is for all of them.",
)
@lowering_options(MSCCLPP.name)
@runtime_profile_option
@json_option
def synth(as_json: bool, output: Path | None, **values: Any) -> None:  # fmt: skip
    """Synthesize an algorithm for COLLECTIVE on TOPOLOGY.

    TOPOLOGY is a shipped name (taccl topo list), a formula (ring:8, torus:4x4) or a file, ours or TACCL's. COLLECTIVE is
    allgather, reducescatter, allreduce, alltoall, broadcast, reduce, gather or scatter; or a demand: alltoallv, allgatherv, reducescatterv or
    sendrecv with --counts or --skew, moe-dispatch or moe-combine with --routing or drawn, or a demand file (.json) that says of every chunk who
    holds it, or whose contributions are added, and who wants it, or a collective that SCCL or msccl-tools saved as JSON. Demands get a schedule, a plan for MSCCL++ and XML for legacy MSCCL, as far as these
    can run it.

    The schedule is verified, lowered to MSCCL XML for the runtime, or to a plan with --runtime mscclpp, verified again as text, and replayed. Ctrl-C (or
    SIGTERM) ends the search with the best schedule so far; a second one, or one before there is an answer, ends the program. One
    that comes while the schedule is lowered leaves it in the directory of -o, as unlowered.json.

    \b
    Examples:
      taccl synth ndv2 allgather --nodes 2 --sketch sk-1 --size 16MB -o out/
      taccl synth torus:4x4 allreduce --size 64MiB -o ring.xml
      taccl synth ndv5 allreduce --size 64KiB --runtime mscclpp -o plan/
      taccl synth ndv4 allreduce --sizes 1KiB:4GiB -o algos/
      taccl synth dgx1 allgather --without-link 0-3 --slow-link 4-7:0.5
      taccl synth topo-ndv2-1MB.json alltoall --sketch sk1-ndv2-n2.json --json
      taccl synth ndv5 alltoallv --nodes 4 --skew zipf:0.5 --size 256MB
      taccl synth ndv5 moe-dispatch --nodes 2 --experts 64 --tokens 128 --topk 8 --token-bytes 7392
      taccl synth dgx1 my.json -o out/
      taccl synth ndv4 allreduce --nodes 3 --engine greedy --without-port 'node 1 ib3 in' --only-schedule
      taccl synth ndv4 allreduce --nodes 2 --size 64MiB --single-failures nic,nic:0.5 -o failures/
    """
    refuse_own_input(output, values["topology"], values["collective"].file or "")
    if not take_kind(values):
        from taccl_py.cli.demands import synth_demand

        synth_demand(values, output, as_json=as_json)
        return
    from taccl_py.api.search import search_for
    from taccl_py.cli.cache import verdicts
    from taccl_py.pipeline.resolve import resolve_machine
    from taccl_py.profiles.catalog import select_profile

    stop = threading.Event()
    request = _request(values, stop)
    topology = resolve_machine(request)
    if values["runtime"] == MSCCLPP.name:
        from taccl_py.cli.synth_plan import synth_plan

        synth_plan(request, topology, values, output, as_json=as_json)
        return
    options = make_lowering_options(values, topology)
    selection = select_profile(values["runtime_profile"], options.runtime.name, topology)
    profile = selection.profile
    request = replace(request, profile=profile)
    if values["single_failures"] is not None or values["sizes"] is not None:
        _synth_many(request, options, output, values, selection.note, as_json=as_json)
        return
    check_output(output, only_schedule=values["only_schedule"])
    over, settled_by = request.options.limits.to_lower(), request.options.limits.to_settle()
    with watched(stop, values["progress"]) as events:
        answer = search_for(request, options.runtime, events)
        events.stage("lowering")
        choice = None
        if not values["only_schedule"] and not is_schedule_alone(output):
            delivered = deliver_answer(answer, options, values["instances"], over, settled_by, stop, output)
            answer, choice = delivered.answer, delivered.choice
        lowered = None if choice is None else choice.lowered
        facts = {**record(answer, lowered, []), **program_facts(choice, options.runtime), **_switch_facts(answer)}
        facts |= {**runtime_facts(answer, selection.note), **command_fact()}
    files = write_answer(output, answer, lowered, facts)
    if lowered is not None and files:
        verdicts().remember_program(lowered.text, options.runtime, lowered.program.kind, lowered.verdict)
    result = timed({**facts, "files": files}, answer)
    notes = [] if lowered is None else program_notes(answer, lowered, options, output, cut_short=stop.is_set())
    by_switch = _faster_by_switch(result)
    notes += [by_switch] if by_switch else []
    if as_json:
        echo_json(result | in_json(notes))
        return
    print_table(summary_table(result))
    for note in notes:
        click.echo(note, err=True)
    for name in files:
        click.echo(f"wrote {name}", err=True)


def _request(values: dict[str, Any], stop: threading.Event) -> Request:
    """Request from the parsed options.

    Raises
    ------
    InputError
        If one contradicts another.
    """
    from taccl_py.api.search import with_defaults

    limits = Limits(seed=values["seed"], scheduler=values["scheduler"], stop=stop)
    request = replace(
        make_request(values),
        size_bytes=values["size"],
        chunks_per_rank=values["chunks"],
        options=Options(solver=values["solver"], limits=limits, trees=values["trees"]),
        degradation=make_degradation(values),
    )
    ranged = values["sizes"] is not None
    return with_defaults(
        request, engine=values["engine"], effort=values["effort"], time_limit=values["time_limit"], ranged=ranged
    )


def _synth_many(
    request: Request, options: LoweringOptions, output: Path | None, values: dict[str, Any], note: str, *, as_json: bool
) -> None:
    """Refuse what contradicts many searches, then synthesize for single failures, or for a range of sizes."""
    from taccl_py.cli.failures import synth_failures
    from taccl_py.cli.portfolio import synth_portfolio
    from taccl_py.pipeline.resolve import AUTO_SKETCH

    sizes: SizeRange | None = values["sizes"]
    failures = values["single_failures"] is not None
    contradictions = {
        "--sizes": failures and sizes is not None,
        "--sketch": failures and bool(request.sketch),
        "--size": not failures and request.size_bytes is not None,
        "--sketch auto": request.sketch == AUTO_SKETCH,
        "--engine": not failures and request.engine != "auto",
        "--min-bytes": not failures and options.min_bytes > 0,
        "--max-bytes": not failures and options.max_bytes is not None,
        "--progress": values["progress"] is not None,
    }
    what = "--single-failures, which makes many searches" if failures else "--sizes, which decides it for every size"
    for name, given in contradictions.items():
        if given:
            raise InputError(f"it contradicts {what}; leave it out", path="command line", field=name)
    if failures or sizes is None:
        synth_failures(request, options, output, values, note, as_json=as_json)
    else:
        synth_portfolio(request, sizes, options, output, values["instances"], note, as_json=as_json)


def _switch_facts(answer: Answer) -> dict[str, Any]:
    """Predicted time of a plan by switch for the same machine, collective and size, if there is one."""
    from taccl_py.pipeline.in_network import switch_times_us

    schedule = answer.schedule
    collective, topology = schedule.collective, schedule.topology
    (time_us,) = switch_times_us(topology, collective.kind, collective.root, [schedule.size_bytes])
    return {} if time_us is None else {"switch_us": time_us}


def _faster_by_switch(result: dict[str, Any]) -> str:
    """A note for people where the machine's switches could do it faster than any messages that were found."""
    time_us = result.get("switch_us", math.inf)
    if time_us >= result["makespan_us"]:
        return ""
    written = [name for name in result["files"] if name.endswith(".json") and Path(name).name != "summary.json"]
    schedule = written[0] if written else "SCHEDULE.json"
    return (
        f"note: on links and ports, a plan for MSCCL++ that uses what the machine's switches can do takes {format_time(time_us)} "
        f"instead of {format_time(result['makespan_us'])}: "
        f"taccl lower {schedule} --to mscclpp-json --switch -o plan.json"
    )
