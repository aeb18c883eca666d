"""``taccl groups``: collectives of several process groups at once, on one machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.answer import Ended
from taccl_py.cli.asked import ASKED, AskedDemand, parse_asked
from taccl_py.cli.options import (
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
from taccl_py.errors import InputError
from taccl_py.jsonio import read_text, write_all
from taccl_py.schedule.files import GROUP_INDEX
from taccl_py.synthesis.catalog import ENGINE_NAMES
from taccl_py.synthesis.engine import Options
from taccl_py.units import MAX_COST_US, parse_ranks, parse_size

if TYPE_CHECKING:
    from taccl_py.demand import DataDemand
    from taccl_py.pipeline.process_groups import AskedGroup, GroupsSynthesis


# Seconds of effort normal.
_SECONDS = 30.0
_GROUPS = re.compile(
    r"(?P<ranks>[^=@]+)(=(?P<what>[^:@]+)(:(?P<size>[^@:=]+))?(:root=(?P<root>[0-9]{1,9}))?)?(@(?P<release>[0-9]+(\.[0-9]+)?))?"
)


@dataclass(frozen=True, slots=True)
class GroupFamily:
    """Groups that do the same: their ranks, what they do (None for the command's), its size or file of counts, its root, and their start."""

    ranks: tuple[tuple[int, ...], ...]
    what: AskedDemand | None
    size: str | None
    root: int | None
    release_us: float

    def groups(self, default: AskedDemand) -> Iterator[AskedGroup]:
        """The groups; a demand is read or made for each number of ranks.

        Raises
        ------
        InputError
            If a file is wrong, or the parts of the word do not go together.
        """
        from taccl_py.pipeline.process_groups import AskedGroup

        asked = self.what or default
        for ranks in self.ranks:
            if asked.kind is not None:
                size = None if self.size is None else _in_group(parse_size, self.size)
                yield AskedGroup(ranks, asked.kind, size, self.root, self.release_us)
            else:
                yield AskedGroup(ranks, self._demand(asked, len(ranks)), release_us=self.release_us)

    def _demand(self, asked: AskedDemand, num_ranks: int) -> DataDemand:
        from taccl_py.demand.files import read_demand
        from taccl_py.demand.formula import by_counts, dtype_of, read_rows_of
        from taccl_py.demand.variable import Variable

        name = asked.file or asked.variable
        if self.root is not None:
            raise InputError(f"{name} has no root; leave root= out", path="command line", field="--group")
        if asked.file is not None:
            if self.size is not None:
                raise InputError(
                    f"{name} is a demand file, which says the size; leave :{self.size} out",
                    path="command line",
                    field="--group",
                )
            return read_demand(read_text(asked.file), str(asked.file))
        if not isinstance(asked.variable, Variable) or self.size is None:
            raise InputError(
                f"{name} of a group needs a file: a demand file (taccl synth -o writes demand.json), or counts, as in 0-7=alltoallv:counts.csv",
                path="command line", field="--group",
            )  # fmt: skip
        rows = read_rows_of(asked.variable, Path(self.size))
        try:
            return by_counts(asked.variable, rows, num_ranks, dtype_of(asked.variable, None))
        except InputError as error:
            raise InputError(error.what, path=self.size, field=error.field) from None


def parse_groups(text: str) -> GroupFamily:
    """Groups of a word such as ``0-7/8-15=allreduce:64MiB@100``.

    Raises
    ------
    InputError
        If it is none.
    """
    match = _GROUPS.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} names no groups; write for example 0-7, or 0-7/8-15=allreduce:64MiB@100")
    release_us = float(match["release"] or 0.0)
    if release_us > MAX_COST_US:
        raise InputError(f"found a start at {match['release']} us, at most {MAX_COST_US:g} is possible")
    ranks = tuple(parse_ranks(word) for word in match["ranks"].split("/"))
    what = None if match["what"] is None else parse_asked(match["what"])
    root = None if match["root"] is None else int(match["root"])
    if what is not None and what.kind is not None and match["size"] is not None:
        parse_size(match["size"])
    return GroupFamily(ranks, what, match["size"], root, release_us)


def _in_group(parse: Callable[[str], int], word: str) -> int:
    try:
        return parse(word)
    except InputError as error:
        raise InputError(error.what, path="command line", field="--group") from None


GROUPS = ParsedType("groups", GroupFamily, parse_groups)


@click.command(short_help="Synthesize collectives of several process groups that run at once.")
@click.argument("topology")
@click.argument("collective", type=ASKED)
@click.option(
    "--group",
    type=GROUPS,
    multiple=True,
    required=True,
    help="Ranks of a group, as in 0-31, or of several that do the same, 0-7/8-15; behind them their own collective, size, root and start "
    "(microseconds): 0-7/8-15=broadcast:64MiB:root=2@100; or a demand file, 0-7=my.json@100, or counts, 0-7=alltoallv:counts.csv. Once or more.",
)
@click.option(
    "--relay",
    is_flag=True,
    help="Data may pass through ranks outside of their group; with it one group alone is possible too.",
)
@click.option(
    "--root",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Root of COLLECTIVE, a number within each group.",
)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option(
    "--size", type=SIZE, default=None, help="Size of each group's collective, as nccl-tests counts it. Default 1MB."
)
@click.option("--chunks", type=click.IntRange(1), default=None, help="Chunks per rank. Default: the engine's choice.")
@click.option(
    "--engine",
    type=click.Choice(list(ENGINE_NAMES)),
    default=None,
    help="Search method. Default: greedy, with templates where a group ends well behind the bound, and auto for gather and scatter; "
    "demands have their own.",
)
@budget_options("30 s for each search at most")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="Directory for group-0.json, group-1.json and so on.")
@degradation_options
@json_option
def groups(as_json: bool, output: Path | None, **values: Any) -> None:
    """Synthesize COLLECTIVE for several process groups on TOPOLOGY that run at the same time and share NICs and switches.

    A group may do something else than COLLECTIVE, which may be a demand file too, and ranks may be in several groups. Each group gets a schedule of its own
    for its communicator. All of them are on one clock: no link or port serves two messages at a time, whichever group's they are, and together they take no
    longer than one after the other. Groups that see the same machine are solved once.

    With --relay a group's data may pass through ranks outside of it, where that is faster: its schedule is then one of a demand, for the group's ranks and,
    behind them, those that pass something on, which take part in the call with empty buffers. Its programs are written beside it.

    \b
    Examples:
      taccl groups ndv2 allreduce --nodes 2 --group 0-3,8-11 --group 4-7,12-15 --size 16MiB
      taccl groups ndv4 allreduce --nodes 2 --size 16MiB --group 0-7/8-15 --group 0,8/1,9/2,10=allgather:1MiB@50
      taccl groups ring:8 allgather --group 0-3 --group 4-7 -o out/
      taccl groups ndv4 sendrecv.json --nodes 2 --group 0,8 --group 1-7=broadcast:1MiB:root=3 --relay -o out/
    """
    from taccl_py.collective import Kind
    from taccl_py.pipeline.process_groups import synthesize_groups
    from taccl_py.pipeline.resolve import Request
    from taccl_py.report.tables import print_table
    from taccl_py.report.together import groups_record, groups_table

    stop = threading.Event()
    default: AskedDemand = values["collective"]
    request = Request(
        topology=values["topology"],
        kind=default.kind or Kind.ALLTOALL,
        nodes=values["nodes"],
        size_bytes=values["size"],
        root=values["root"],
        chunks_per_rank=values["chunks"],
        engine=values["engine"] or "",
        options=Options(limits=budgeted(values, _SECONDS, stop)),
        degradation=make_degradation(values),
    )
    asked = [group for family in values["group"] for group in family.groups(default)]
    _require_used(values, asked)
    with watched(stop) as events:
        found: GroupsSynthesis = synthesize_groups(request, asked, events, relay=values["relay"])
    texts: dict[Path, str] = {}
    programs = [] if output is None else [_write_group(found, number, output, texts) for number in range(len(asked))]
    result = groups_record(found, [str(path) for path in texts], programs)
    if output is not None:
        texts[output / GROUP_INDEX] = _index(found, output, texts)
        result["index"] = str(output / GROUP_INDEX)
    write_all(texts)
    result["ended"] = str(Ended.of(request.options.limits, is_proved=found.bound.is_reached_by(found.makespan_us)))
    if as_json:
        echo_json(result)
        return
    print_table(groups_table(result))
    for path in texts:
        click.echo(f"wrote {path}", err=True)
    for program in (program for of_group in programs for program in of_group if program["refused"] is not None):
        click.echo(f"note: no {program['file']}: {program['refused']}", err=True)


def _require_used(values: dict[str, Any], asked: Sequence[AskedGroup]) -> None:
    """Refuse options that no group has a use for."""
    from taccl_py.collective import ROOTED, Kind

    kinds = {group.what for group in asked if isinstance(group.what, Kind)}
    if values["root"] and not kinds & ROOTED:
        raise InputError("no group's collective has a root; leave --root out", path="command line", field="--root")
    for name in ("size", "chunks", "engine"):
        if not kinds and values[name] is not None:
            what = "is for collectives, and all groups have demands; leave it out"
            raise InputError(what, path="command line", field=f"--{name}")


def _write_group(found: GroupsSynthesis, number: int, output: Path, texts: dict[Path, str]) -> list[dict[str, Any]]:
    """Texts of a group's files: its schedule and, where that is one of a demand, the demand and the programs that runtimes take."""
    from taccl_py.cli.demands import lower_for_all
    from taccl_py.demand.files import write_demand
    from taccl_py.schedule.demand_files import write_demand_schedule
    from taccl_py.schedule.files import write_schedule
    from taccl_py.schedule.ir import Schedule

    schedule, name = found.schedules[number], f"group-{number}"
    if isinstance(schedule, Schedule):
        texts[output / f"{name}.json"] = write_schedule(schedule)
        return []
    demand = found.demand_of(number)
    texts[output / f"{name}.json"] = write_demand_schedule(schedule)
    texts[output / f"{name}.demand.json"] = write_demand(demand)
    return lower_for_all([schedule], demand, output, texts, prefix=f"{name}.")


def _index(found: GroupsSynthesis, output: Path, texts: Collection[Path]) -> str:
    """Text of the index of a folder with these files."""
    from taccl_py.cli.check import DEMAND_FILES
    from taccl_py.pipeline.group_index import IndexedGroup, write_group_index

    groups = []
    for number, (task, ranks) in enumerate(zip(found.tasks, found.ranks, strict=True)):
        names = {end: f"group-{number}.{end}" for end in ("json", "demand.json", *DEMAND_FILES)}
        there = {end: name for end, name in names.items() if output / name in texts}
        programs = tuple(there[end] for end in DEMAND_FILES if end in there)
        groups.append(IndexedGroup(ranks, task.release_us, names["json"], there.get("demand.json"), programs))
    return write_group_index(found.machine, groups)
