"""``taccl sweep``: a whole catalogue of algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taccl_py.cli.campaign import carry_out_watched, force_options
from taccl_py.cli.options import OUTPUT, echo_json, json_option
from taccl_py.errors import InputError, SynthesisError
from taccl_py.units import format_count, format_gap, format_time


@click.command(short_help="Synthesize a matrix of instances into a folder, and resume where it stopped.")
@click.argument("suite", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=OUTPUT, required=True, help="Folder of the catalogue.")
@force_options
@json_option
def sweep(suite: Path, output: Path, as_json: bool, **values: Any) -> int:
    """Synthesize all instances of SUITE, a TOML file as for taccl regress, into a catalogue.

    The folder gets index.json and, for every result, schedule.json, algorithm.xml (of a collective) and result.json. What is there and up to
    date (inputs, engine, code, solver versions) is not computed again, so a sweep that was stopped or killed goes on where it
    was, and one of some instances (--only) leaves the others in the index. Exit code 3 if an instance has no result; the others are kept.

    \b
    Examples:
      taccl sweep suite.toml -o catalogue/
      taccl sweep suite.toml -o catalogue/ --workers 2 --json
    """
    from taccl_py.campaign.index import write_index
    from taccl_py.campaign.store import Store
    from taccl_py.campaign.suite import read_suite
    from taccl_py.campaign.work import known_outcome
    from taccl_py.report.tables import ON_WIRES, plain_table, print_table

    every = read_suite(suite).cases
    cases = [case for case in every if values["only"] in case.name]
    if not cases:
        raise InputError(f"no instance has {values['only']!r} in its name", path="command line", field="--only")
    if output.exists() and not output.is_dir():
        raise InputError("is a file; name a folder", path=str(output))
    if any(output.glob("*.xml")):
        raise InputError(
            "holds algorithm files, which nobody would find in a catalogue; name another folder", path=str(output)
        )
    store = Store(output)
    outcomes = carry_out_watched(cases, store, values)
    # What was left out this time stays in the index if its result is up to date.
    left_out = (known_outcome(case, store) for case in every if case not in cases)
    index = write_index(output, [*outcomes, *(each for each in left_out if each is not None and each.kept is not None)])
    computed = sum(outcome.computed for outcome in outcomes)
    if as_json:
        echo_json({"folder": str(output), "computed": computed, **index})
    else:
        rows = [_row(name, entry) for name, entry in index["results"].items()]
        print_table(
            plain_table(
                f"{output}: {ON_WIRES}", ("instance", "time", "gap", "status", "steps", "threadblocks", "result"), rows
            )
        )
        for name, error in index["failed"].items():
            click.echo(f"{name} has no result: {error}")
        click.echo(
            f"{format_count(len(outcomes), 'instance')}, {computed} computed, {len(index['failed'])} without a result",
            err=True,
        )
    return SynthesisError.exit_code if index["failed"] else 0


def _row(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    steps = "not counted" if entry["steps"] is None else str(entry["steps"])
    threadblocks = str(entry["threadblocks"]) if "threadblocks" in entry else "no program"
    return (
        name, format_time(entry["makespan_us"]), format_gap(entry["gap"]), entry["status"], steps, threadblocks, entry["result"],
    )  # fmt: skip
