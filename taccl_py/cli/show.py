"""``taccl show`` and ``taccl trace``: see what an algorithm does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from taccl_py.cli.options import (
    OUTPUT,
    RANKS,
    SIZE,
    chosen_profile,
    echo_json,
    json_option,
    refuse_own_input,
    runtime_profile_option,
)
from taccl_py.cli.subject import GivenFile, load_subject, machine_options
from taccl_py.errors import InputError
from taccl_py.jsonio import write_atomically

# Ranks in a timeline and rows in a table of links, unless more are asked for.
_MOST_RANKS, _MOST_ROWS = 32, 12


@click.command(short_help="Show what a schedule, an MSCCL XML file or an MSCCL++ plan does, in the terminal.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--size",
    type=SIZE,
    default=None,
    help="Size as nccl-tests counts it; default: the schedule's own, or 1MB, or the nearest that the file declares itself for.",
)
@click.option("--ranks", type=RANKS, default=None, help=f"Ranks in the timeline; default: the first {_MOST_RANKS}.")
@click.option(
    "--rows", type=click.IntRange(1), default=_MOST_ROWS, show_default=True, help="Rows in the table of links."
)
@machine_options
@json_option  # fmt: skip
def show(file: Path, as_json: bool, **values: Any) -> None:
    """Show FILE, a schedule.json, an MSCCL XML file or an MSCCL++ plan: steps, a timeline of who sends when, traffic on links.

    Of an XML file it says which rings, chains or trees its chunks take.

    An XML file or a plan does not say on which machine it runs: without --topology its threadblocks and its traffic in chunks are shown.
    The timeline has a line for every rank; a digit or letter is the step of the message that it sends then; of a plan,
    # is a message, * what a switch stores at several ranks for it, and + the same after adding up. Times are those of links and
    ports alone; taccl simulate says what launch, protocols and threadblocks add.

    \b
    Examples:
      taccl show out/schedule.json
      taccl show out/algorithm.xml
      taccl show out/algorithm.xml --topology ndv2 --nodes 2 --size 16MB --ranks 0-7
    """
    from taccl_py.report.tables import print_table
    from taccl_py.report.view import critical_line, timeline_lines, view_tables

    subject = load_subject(file, values, verified=True, needs_machine=False)
    record = _record(subject, file, values["size"])
    if as_json:
        echo_json({"file": str(file), **record})
        return
    ranks = values["ranks"]
    most = max(ranks or (0,))
    if most >= record["num_ranks"]:
        raise InputError(
            f"rank {most} does not exist, ranks are 0..{record['num_ranks'] - 1}", path="command line", field="--ranks"
        )
    tables = view_tables(record, values["rows"])
    print_table(tables[0])
    for phase in record.get("structure", ()):
        click.echo(phase["text"])
    if "transfers" in record:
        columns = shutil.get_terminal_size().columns
        for line in timeline_lines(record, ranks or range(min(record["num_ranks"], _MOST_RANKS)), columns):
            click.echo(line)
        if "critical_path" in record:
            click.echo(critical_line(record, columns))
        if ranks is None and record["num_ranks"] > _MOST_RANKS:
            click.echo(f"{_MOST_RANKS} of {record['num_ranks']} ranks; --ranks shows others")
    for table in tables[1:]:
        print_table(table)


def _record(subject: GivenFile, file: Path, size: int | None) -> dict[str, Any]:
    from taccl_py.report.view import plan_record, program_record, schedule_record

    if size is not None and subject.why_one_size:
        raise InputError(f"{subject.why_one_size}; leave --size out", path=str(file))
    timeline = subject.replay(size) if subject.replay is not None else None
    if subject.program is not None:
        return program_record(subject.program, subject.topology, timeline, subject.asked.name if subject.asked else "")
    if subject.plan is not None:
        name = subject.plan.collective if subject.asked is None else subject.asked.name
        return plan_record(subject.plan, name, subject.topology, timeline)
    schedule = subject.demand if subject.schedule is None else subject.schedule
    if schedule is None or timeline is None:
        raise ValueError("a file holds neither a schedule nor a program")
    return schedule_record(schedule, timeline)


@click.command(short_help="Write a trace for chrome://tracing and Perfetto.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=OUTPUT, required=True, help="File to write, for example trace.json.")
@click.option(
    "--size",
    type=SIZE,
    default=None,
    help="Size as nccl-tests counts it; default: the schedule's own, or 1MB, or the nearest that the file declares itself for.",
)
@machine_options
@runtime_profile_option
@json_option  # fmt: skip
def trace(file: Path, output: Path, as_json: bool, **values: Any) -> None:
    """Write the replay of FILE, a schedule.json, an MSCCL XML file or an MSCCL++ plan, as Chrome trace events.

    Open the trace in https://ui.perfetto.dev or chrome://tracing. For an XML file under a runtime profile: a process for every rank, a
    thread for every threadblock, a slice for every step, from when it begins to move data, arrows from sends to receives, and the
    launch; of a large call the first iterations. For schedules and plans, and under neutral, times are those of links and ports
    alone: a thread for every link (or threadblock), a slice for every message, arrows from what brings data to what waits for it,
    and the ports.

    \b
    Examples:
      taccl trace out/schedule.json -o trace.json
      taccl trace out/algorithm.xml --topology ndv2 --nodes 2 --size 16MiB -o trace.json
    """
    from taccl_py.jsonio import canonical_json

    refuse_own_input(output, file)
    subject = load_subject(file, values, verified=True)
    if values["size"] is not None and subject.why_one_size:
        raise InputError(f"{subject.why_one_size}; leave --size out", path=str(file))
    if output.is_dir():
        raise InputError("is a directory; name a file", path=str(output))
    result, profile, what = _traced(file, subject, values["size"], values["runtime_profile"])
    write_atomically(output, canonical_json(result))
    if as_json:
        echo_json({"file": str(output), "events": len(result["traceEvents"]), "runtime_profile": profile})
    else:
        click.echo(f"wrote {output}: {what}", err=True)


def _traced(file: Path, subject: GivenFile, size: int | None, asked: str) -> tuple[dict[str, Any], str, str]:
    """Trace, name of its runtime profile, and in words what its times are of."""
    from taccl_py.api.prediction import require_threadblocks
    from taccl_py.profiles.catalog import AUTO, load_profile
    from taccl_py.profiles.model import NEUTRAL
    from taccl_py.report.trace import chrome_trace, runtime_trace
    from taccl_py.simulate.runtime_replay import RuntimeReplay

    if subject.replay is None or subject.topology is None:
        raise ValueError("a subject with a machine has no replay")
    timeline = subject.replay(size)
    if subject.program is not None:
        profile = chosen_profile(asked, subject.runtime, subject.topology)
        if not profile.is_neutral:
            replay = RuntimeReplay(subject.program, subject.topology, profile)
            own = timeline.size_bytes if subject.asked is None else subject.asked.longest_bytes
            steps = replay.steps(float(own))
            part = f", the first {steps.shown} of {steps.iterations} iterations" * (steps.shown < steps.iterations)
            return runtime_trace(subject.program, steps), profile.name, f"runtime profile {profile.label}{part}"
    elif subject.plan is None:
        require_threadblocks(str(file), asked)
    elif asked != AUTO and not load_profile(asked).is_neutral:
        raise InputError(
            "is for XML files: traces of plans have times of links and ports alone; leave it out",
            path="command line", field="--runtime-profile",
        )  # fmt: skip
    return chrome_trace(subject.topology, timeline, subject.schedule), NEUTRAL, "times of links and ports alone"
