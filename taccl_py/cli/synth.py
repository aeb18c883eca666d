"""``taccl synth``: the main job."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import click

from taccl_py.cli.options import KIND, RANKS, SIZE, echo_json, json_option, lowering_options, make_lowering_options
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json, write_all
from taccl_py.pipeline import Lowered, Request, lower_best, synthesize
from taccl_py.report.tables import SUMMARY_FORMAT, print_table, record, summary_table, timed
from taccl_py.schedule.files import write_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import ENGINE_NAMES
from taccl_py.synthesis.engine import Options, Synthesis

_DEFAULT_TIME_LIMIT_S = 7.0
# A replay that is slower than the schedule by more than this is worth a word.
_REPLAY_TOLERANCE = 0.01


@click.command(short_help="Synthesize an algorithm and write schedule, MSCCL XML and summary.")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped or node-form topology."
)
@click.option("--sketch", default="", help="Shipped sketch (sk-1, ndv2-sk-1) or sketch file, ours or TACCL's.")
@click.option(
    "--size",
    type=SIZE,
    default=None,
    help="Size as nccl-tests counts it: 64KiB, 1MB, 1G. Default 1MB; left out with a TACCL profile.",
)
@click.option("--chunks", type=click.IntRange(1), default=None, help="Chunks per rank; default: the sketch's, else 1.")
@click.option("--ranks", type=RANKS, default=None, help="Process group, for example 0-7 or 0,2,4-6.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of Broadcast, Reduce, Gather, Scatter.")
@click.option("--engine", type=click.Choice(list(ENGINE_NAMES)), default="milp", show_default=True)
@click.option(
    "--solver",
    default="auto",
    show_default=True,
    help="auto (CP-SAT, else HiGHS), cp-sat, highs, cbc, scip, gurobi, cplex or another PuLP solver.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0.1),
    default=_DEFAULT_TIME_LIMIT_S,
    show_default=True,
    help="Seconds for the search; the best answer so far comes out with its gap.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    help="Directory for schedule.json, algorithm.xml and summary.json, or one file ending in .xml or .json.",
)
@lowering_options
@json_option
def synth(as_json: bool, output: Path | None, **values: Any) -> None:  # fmt: skip
    """Synthesize an algorithm for COLLECTIVE on TOPOLOGY.

    TOPOLOGY is a shipped name (taccl topo list), a formula (ring:8, torus:4x4) or a file, ours or TACCL's. COLLECTIVE is
    allgather, reducescatter, allreduce, alltoall, broadcast, reduce, gather or scatter.

    The schedule is judged, lowered to MSCCL XML for the runtime, judged again as text, and replayed. Ctrl-C ends the search
    with the best schedule so far; a second Ctrl-C ends the program.

    \b
    Examples:
      taccl synth ndv2 allgather --nodes 2 --sketch sk-1 --size 16MB -o out/
      taccl synth torus:4x4 allreduce --size 64MiB -o ring.xml
      taccl synth topo-ndv2-1MB.json alltoall --sketch sk1-ndv2-n2.json --json
    """
    stop = threading.Event()
    limits = Limits(seconds=values["time_limit"], seed=values["seed"], stop=stop)
    request = Request(
        topology=values["topology"],
        kind=values["collective"],
        sketch=values["sketch"],
        nodes=values["nodes"],
        size_bytes=values["size"],
        ranks=values["ranks"],
        root=values["root"],
        chunks_per_rank=values["chunks"],
        engine=values["engine"],
        options=Options(solver=values["solver"], limits=limits),
    )
    _check_output(output)
    options = make_lowering_options(values)
    with watched(stop) as events:
        synthesis = synthesize(request, events)
        events.stage("lowering")
        lowered = None
        if not _only_schedule(output):
            synthesis, lowered = lower_best(synthesis, options)
    files = _write(output, synthesis, lowered, request)
    result = timed(record(synthesis, lowered, request.engine, files), synthesis)
    if as_json:
        echo_json(result)
        return
    print_table(summary_table(result))
    if lowered is not None and lowered.replay.makespan_us > synthesis.schedule.makespan_us * (1 + _REPLAY_TOLERANCE):
        click.echo(
            "note: ranks that share a port (a NIC) cannot wait for each other in MSCCL; the replay is the safer prediction",
            err=True,
        )
    for name in files:
        click.echo(f"wrote {name}", err=True)


def _only_schedule(output: Path | None) -> bool:
    return output is not None and output.suffix == ".json"


def _check_output(output: Path | None) -> None:
    """Refuse what cannot be written before any work is done."""
    if output is None or output.suffix in (".json", ".xml"):
        if output is not None and output.is_dir():
            raise InputError("is a directory; name a file, or a directory without .xml or .json", path=str(output))
        return
    if output.is_file():
        raise InputError("is a file; name a directory, or a file ending in .xml or .json", path=str(output))


def _write(output: Path | None, synthesis: Synthesis, lowered: Lowered | None, request: Request) -> list[str]:
    """Write what was asked for; every text is complete before the first file is."""
    if output is None:
        return []
    schedule = write_schedule(synthesis.schedule)
    if output.suffix == ".json":
        texts = {output: schedule}
    elif lowered is None or output.suffix == ".xml":
        texts = {output: lowered.text if lowered else ""}
    else:
        paths = [output / name for name in ("schedule.json", "algorithm.xml", "summary.json")]
        names = [path.name for path in paths]
        summary = canonical_json({"format": SUMMARY_FORMAT, **record(synthesis, lowered, request.engine, names)})
        texts = dict(zip(paths, (schedule, lowered.text, summary), strict=True))
    write_all(texts)
    return [str(path) for path in texts]
