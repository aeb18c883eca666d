"""``taccl groups``: collectives of several process groups at once, on one machine."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.answer import Ended
from taccl_py.cli.options import (
    KIND,
    OUTPUT,
    SIZE,
    ParsedType,
    budget_options,
    budgeted,
    degradation_options,
    echo_json,
    json_option,
    make_degradation,
)
from taccl_py.cli.progress import watched
from taccl_py.collective import parse_kind
from taccl_py.errors import InputError
from taccl_py.jsonio import write_all
from taccl_py.synthesis.catalog import ENGINE_NAMES
from taccl_py.synthesis.engine import Options
from taccl_py.units import MAX_COST_US, parse_ranks, parse_size

if TYPE_CHECKING:
    from taccl_py.pipeline.process_groups import AskedGroup, GroupsSynthesis


# Seconds of effort normal.
_SECONDS = 30.0
_GROUPS = re.compile(r"(?P<ranks>[^=@]+)(=(?P<kind>[^:@]+)(:(?P<size>[^@]+))?)?(@(?P<release>[0-9]+(\.[0-9]+)?))?")


def parse_groups(text: str) -> tuple[AskedGroup, ...]:
    """Groups of a word such as ``0-7/8-15=allreduce:64MiB@100``.

    Raises
    ------
    InputError
        If it is none.
    """
    from taccl_py.pipeline.process_groups import AskedGroup

    match = _GROUPS.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} names no groups; write for example 0-7, or 0-7/8-15=allreduce:64MiB@100")
    kind = None if match["kind"] is None else parse_kind(match["kind"])
    size = None if match["size"] is None else parse_size(match["size"])
    release_us = float(match["release"] or 0.0)
    if release_us > MAX_COST_US:
        raise InputError(f"found a start at {match['release']} us, at most {MAX_COST_US:g} is possible")
    return tuple(AskedGroup(parse_ranks(ranks), kind, size, release_us) for ranks in match["ranks"].split("/"))


GROUPS = ParsedType("groups", tuple, parse_groups)


@click.command(short_help="Synthesize collectives of several process groups that run at once.")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option(
    "--group",
    type=GROUPS,
    multiple=True,
    required=True,
    help="Ranks of a group, as in 0-31, or of several that do the same, 0-7/8-15; behind them their own collective, size and start: "
    "0-7/8-15=allreduce:64MiB@100 (microseconds). Once or more.",
)
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

    A group may do something else than COLLECTIVE, and ranks may be in several groups. Each group gets a schedule of its own for its communicator. All of them are on one clock: no link or port serves two messages
    at a time, whichever group's they are, and together they take no longer than one after the other. Groups that see the same
    machine are solved once.

    \b
    Examples:
      taccl groups ndv2 allreduce --nodes 2 --group 0-3,8-11 --group 4-7,12-15 --size 16MiB
      taccl groups ndv4 allreduce --nodes 2 --size 16MiB --group 0-7/8-15 --group 0,8/1,9/2,10=allgather:1MiB@50
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
        asked = [group for family in values["group"] for group in family]
        found: GroupsSynthesis = synthesize_groups(request, asked, events)
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
