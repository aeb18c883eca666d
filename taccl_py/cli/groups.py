"""``taccl groups``: one collective of several process groups at once, on one machine."""

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
    SIZE,
    budget_options,
    budgeted,
    degradation_options,
    echo_json,
    json_option,
    make_degradation,
)
from taccl_py.cli.progress import watched
from taccl_py.jsonio import write_all
from taccl_py.synthesis.catalog import ENGINE_NAMES
from taccl_py.synthesis.engine import Options

if TYPE_CHECKING:
    from taccl_py.pipeline.process_groups import GroupsSynthesis


# Seconds of effort normal.
_SECONDS = 30.0


@click.command(short_help="Synthesize a collective for several process groups that run at once.")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option("--group", type=RANKS, multiple=True, required=True, help="Ranks of a group, as in 0-31; once for each.")
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option(
    "--size", type=SIZE, default=None, help="Size of each group's collective, as nccl-tests counts it. Default 1MB."
)
@click.option("--chunks", type=click.IntRange(1), default=None, help="Chunks per rank. Default: the engine's choice.")
@click.option(
    "--engine", type=click.Choice(list(ENGINE_NAMES)), default="greedy", show_default=True, help="Search method."
)
@budget_options("30 s for each search at most")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="Directory for group-0.json, group-1.json and so on.")
@degradation_options
@json_option
def groups(as_json: bool, output: Path | None, **values: Any) -> None:
    """Synthesize COLLECTIVE for several process groups on TOPOLOGY that run at the same time and share NICs and switches.

    Each group gets a schedule of its own for its communicator. All of them are on one clock: no link or port serves two messages
    at a time, whichever group's they are, and together they take no longer than one after the other. Groups that see the same
    machine are solved once.

    \b
    Examples:
      taccl groups ndv2 allreduce --nodes 2 --group 0-3,8-11 --group 4-7,12-15 --size 16MiB
      taccl groups ring:8 allgather --group 0-3 --group 4-7 -o out/
    """
    from taccl_py.pipeline.process_groups import synthesize_groups
    from taccl_py.pipeline.resolve import Request
    from taccl_py.report.tables import print_table
    from taccl_py.report.together import groups_record, groups_table
    from taccl_py.schedule.files import write_schedule

    stop = threading.Event()
    request = Request(
        topology=values["topology"],
        kind=values["collective"],
        nodes=values["nodes"],
        size_bytes=values["size"],
        chunks_per_rank=values["chunks"],
        engine=values["engine"],
        options=Options(limits=budgeted(values, _SECONDS, stop)),
        degradation=make_degradation(values),
    )
    with watched(stop) as events:
        found: GroupsSynthesis = synthesize_groups(request, values["group"], events)
    texts = {}
    if output is not None:
        texts = {output / f"group-{n}.json": write_schedule(schedule) for n, schedule in enumerate(found.schedules)}
        write_all(texts)
    result = groups_record(found, [str(path) for path in texts])
    result["ended"] = str(Ended.of(request.options.limits, is_proved=found.bound.is_reached_by(found.makespan_us)))
    if as_json:
        echo_json(result)
        return
    print_table(groups_table(result))
    for path in texts:
        click.echo(f"wrote {path}", err=True)
