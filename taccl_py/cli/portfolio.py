"""``taccl synth --sizes``: files for a whole range of sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from taccl_py.answer import Ended
from taccl_py.api.search import build_portfolio
from taccl_py.cli.cache import verdicts
from taccl_py.cli.notes import unserved_note
from taccl_py.cli.options import command_fact, echo_json, in_json
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.resolve import Request
from taccl_py.portfolio.build import Portfolio
from taccl_py.portfolio.directory import calls_name
from taccl_py.portfolio.rows import PortfolioFile
from taccl_py.portfolio.swap import NOTES, sole_user, swap_files
from taccl_py.report.portfolio import portfolio_record, portfolio_tables
from taccl_py.report.tables import PORTFOLIO_FORMAT, print_table
from taccl_py.schedule.files import write_schedule
from taccl_py.units import SizeRange, format_ranks, format_size, format_time

# Characters of a list of ranks in a file's name; of a longer one there is a digest.
_LONGEST_RANKS = 40


def synth_portfolio(
    request: Request,
    sizes: SizeRange,
    options: LoweringOptions,
    output: Path | None,
    instances: int | None,
    note: str,
    *,
    as_json: bool,
) -> None:
    """Synthesize, write and print a portfolio."""
    if output is not None and (output.suffix in (".json", ".xml") or output.is_file()):
        raise InputError("--sizes makes several files; name a directory with -o", path=str(output))
    with watched(request.options.limits.stop) as events:
        portfolio = build_portfolio(request, sizes, options, instances, events)
        stem = _stem(portfolio, request, options)
        names = [_name(stem, member) for member in portfolio.members] if output is not None else []
        result = portfolio_record(portfolio, names) | ({"runtime_note": note} if note else {})
        is_proved = all(row.bound.is_reached_by(row.makespan_us) for row in portfolio.rows)
        ended = Ended.of(request.options.limits, is_proved=is_proved)
        result |= {"runtime": options.runtime.name, "ended": str(ended), **command_fact()}
        events.stage("plans by switch")
        _add_switch_times(result, portfolio)
    if output is not None:
        summary = f"{NOTES}/{stem}-summary.json"
        texts = _texts(portfolio, names) | {summary: canonical_json({"format": PORTFOLIO_FORMAT, **result})}
        with sole_user(output):
            stale = [file for name in _written_before(output, stem) for file in (name, _schedule_name(name))]
            swap_files(output, texts, stale)
        remembered = verdicts()
        for member in portfolio.members:
            lowered = member.lowered
            remembered.remember_program(lowered.text, options.runtime, lowered.program.kind, lowered.verdict)
    served = [(row.size_bytes, portfolio.members[row.member].lowered.program) for row in portfolio.rows]
    notes = [note for note in (unserved_note(served, options.runtime), _faster_by_switch(result)) if note]
    if as_json:
        echo_json(result | in_json(notes))
        return
    for table in portfolio_tables(result):
        print_table(table)
    for note in notes:
        click.echo(note, err=True)
    for name in names:
        click.echo(f"wrote {output}/{name}", err=True)


def _add_switch_times(result: dict[str, Any], portfolio: Portfolio) -> None:
    """Add the predicted time of a plan by switch to every size at which there is one."""
    from taccl_py.pipeline.in_network import switch_times_us

    demand, rows = portfolio.demand, result["sizes"]
    times = switch_times_us(demand.topology, demand.kind, demand.root, [row["size_bytes"] for row in rows])
    for row, time_us in zip(rows, times, strict=True):
        if time_us is not None:
            row["switch_us"] = time_us


def _faster_by_switch(result: dict[str, Any]) -> str:
    """A note for people where the machine's switches could do it faster than any messages that were found."""
    faster = [row for row in result["sizes"] if row.get("switch_us", math.inf) < row["makespan_us"]]
    if not faster:
        return ""
    most = max(faster, key=lambda row: row["makespan_us"] / row["switch_us"])
    times = f"{format_time(most['switch_us'])} instead of {format_time(most['makespan_us'])}"
    return (
        f"note: at {len(faster)} of {len(result['sizes'])} sizes plans for MSCCL++ that use what the machine's switches can do "
        f"are faster ({format_size(most['size_bytes'])}: {times}): with a schedule of the size, taccl lower SCHEDULE.json "
        "--to mscclpp-json --switch -o plan.json"
    )


def _written_before(output: Path, stem: str) -> list[str]:
    """Files of an earlier portfolio of the same stem, whose size ranges would overlap the new ones."""
    if not output.is_dir():
        return []
    name = re.compile(re.escape(stem) + "-[0-9]{13,}-[0-9]{13,}[.]xml")
    return [path.name for path in output.iterdir() if name.fullmatch(path.name)]


def _stem(portfolio: Portfolio, request: Request, options: LoweringOptions) -> str:
    """Common beginning of all file names: calls, runtime and machine, and ranks and root if they are not all and 0.

    One directory may hold the files of several portfolios, and only those of the same stem replace each other.
    """
    machine = "".join(c if c.isalnum() or c in "._-" else "-" for c in portfolio.demand.topology.name)
    parts = [calls_name(portfolio.members[0].lowered.program), options.runtime.name, machine]
    if request.ranks is not None:
        ranks = format_ranks(request.ranks).replace(",", "_")
        parts.append("ranks-" + (ranks if len(ranks) <= _LONGEST_RANKS else sha256(ranks.encode()).hexdigest()[:16]))
    if request.root:
        parts.append(f"root-{request.root}")
    return "-".join(parts)


def _name(stem: str, member: PortfolioFile) -> str:
    """File name of a member; names sort by size."""
    return f"{stem}-{member.min_bytes:013d}-{member.max_bytes:013d}.xml"


def _texts(portfolio: Portfolio, names: Sequence[str]) -> dict[str, str]:
    """Programs, and beside them in a folder that runtimes do not look into their schedules."""
    members = list(zip(names, portfolio.members, strict=True))
    programs = {name: member.lowered.text for name, member in members}
    return programs | {_schedule_name(name): write_schedule(member.schedule) for name, member in members}


def _schedule_name(name: str) -> str:
    return f"{NOTES}/{Path(name).stem}.json"
