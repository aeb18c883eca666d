"""``taccl pareto``: synchronous algorithms between the fewest steps and the least traffic, with proofs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.answer import Ended
from taccl_py.cli.options import (
    KIND,
    OUTPUT,
    RANKS,
    SIZE_RANGE,
    budget_options,
    budgeted,
    echo_json,
    json_option,
    make_request,
)
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError, LimitReached
from taccl_py.jsonio import canonical_json, write_all
from taccl_py.report.tables import FRONT_FORMAT, print_table
from taccl_py.schedule.files import write_schedule

if TYPE_CHECKING:
    from taccl_py.synthesis.pareto import Front


# Seconds of effort normal.
_SECONDS = 120.0


@click.command(short_help="Enumerate synchronous algorithms between latency and bandwidth, with proofs.")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option("--sketch", default="", help="Shipped sketch or sketch file that restricts the links.")
@click.option("--ranks", type=RANKS, default=None, help="Process group, for example 0-7.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of Broadcast, Reduce, Gather, Scatter.")
@click.option(
    "--max-chunks",
    type=click.IntRange(1, 64),
    default=None,
    help="Largest C, chunks per rank. Default 6; 18 for Broadcast and Reduce, 3 for AllToAll.",
)
@click.option("--max-steps", type=click.IntRange(1, 64), default=8, show_default=True, help="Largest S.")
@click.option(
    "--extra-rounds",
    type=click.IntRange(0, 64),
    default=None,
    help="Largest R - S. Default 6; 0 for Broadcast and Reduce, which are pipelines.",
)
@click.option(
    "--sizes", type=SIZE_RANGE, default="1KiB:1GiB", show_default=True, help="Sizes to compare the points at."
)
@budget_options("120 s at most")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="Directory for the schedules.")
@json_option
def pareto(as_json: bool, output: Path | None, **values: Any) -> None:  # fmt: skip
    """Enumerate algorithms for COLLECTIVE on TOPOLOGY with S steps, R rounds and C chunks per rank.

    In a round every link carries as many chunks as its bandwidth is a multiple of the slowest one's. For each number of steps
    the least R/C is found; "proved" means that all smaller ones within --max-chunks and --extra-rounds were shown to be
    impossible. The walk ends where no algorithm can have a smaller R/C.

    AllReduce is ReduceScatter followed by AllGather of as many steps and rounds, as in SCCL, and "proved" is said of those only.
    Others may be better: the steps and the R/C that every AllReduce has at least are printed too, taccl bound prints lower bounds
    for all, and taccl synth looks for all sorts.

    \b
    Examples:
      taccl pareto dgx1 allgather
      taccl pareto ring:8 alltoall --max-chunks 2
      taccl pareto dgx1 broadcast --max-chunks 6 -o points/
    """
    from taccl_py.pipeline.resolve import make_demand
    from taccl_py.pipeline.search import require_valid
    from taccl_py.report.pareto import front_record, front_tables
    from taccl_py.synthesis.pareto import WalkLimits, pareto_front

    stop = threading.Event()
    request = make_request(values)
    if output is not None and (output.is_file() or output.suffix in (".json", ".xml")):
        raise InputError("several schedules are written; name a directory with -o", path=str(output))
    demand = make_demand(request)
    usual = WalkLimits.usual(demand.kind)
    extra = usual.extra_rounds if values["extra_rounds"] is None else values["extra_rounds"]
    walk = WalkLimits(values["max_chunks"] or usual.max_chunks, values["max_steps"], extra)
    limits = budgeted(values, _SECONDS, stop)
    with watched(stop) as events:
        front = pareto_front(demand, walk, limits, events)
        if not front.points:
            raise LimitReached("no point was found; give more --time-limit, --max-steps or --extra-rounds")
    for point in front.points:
        require_valid(point.schedule)
    ended = Ended.of(limits, is_proved=all(point.proved for point in front.points))
    result = front_record(demand, front, values["sizes"])
    result["ended"] = str(ended)
    if output is not None:
        _write(output, front, result)
    if as_json:
        echo_json(result)
        return
    for table in front_tables(result):
        print_table(table)


def _write(output: Path, front: Front, result: dict[str, Any]) -> None:
    texts = {output / "front.json": canonical_json({"format": FRONT_FORMAT, **result})}
    for point in front.points:
        shape = point.shape
        name = f"c{shape.chunks}-s{shape.steps}-r{shape.rounds}.json"
        texts[output / name] = write_schedule(point.schedule)
    write_all(texts)
    for path in texts:
        click.echo(f"wrote {path}", err=True)
