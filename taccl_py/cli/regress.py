"""``taccl regress``: whether an algorithm has got worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taccl_py.cli.campaign import carry_out_watched, force_options
from taccl_py.cli.options import OUTPUT_FILE, UNPROBED_OUTPUT, echo_json, json_option, with_options
from taccl_py.errors import InputError, InvalidArtifact, SynthesisError
from taccl_py.jsonio import require_writable

if TYPE_CHECKING:
    from taccl_py.campaign.baseline import Verdict
    from taccl_py.campaign.demand_case import AnyCase
    from taccl_py.campaign.suite import Suite
    from taccl_py.campaign.work import CaseOutcome

F = TypeVar("F", bound=Callable[..., Any])


@click.group(short_help="Find out whether algorithms have got worse.")
def regress() -> None:
    """Compare the results of a suite of instances with a baseline that is kept with the code.

    Searches end by their own limits and never by the clock, so results are the same on every machine, however slow.

    \b
    Example:
      taccl regress accept suite.toml
      taccl regress check suite.toml
    """


def _common(command: F) -> F:
    decorators = [
        click.argument("suite", type=click.Path(path_type=Path)),
        click.option("--baseline", type=UNPROBED_OUTPUT, default=None, help="Baseline file; default: SUITE with .baseline.json."),
        click.option("--cache", type=UNPROBED_OUTPUT, default=None,
                     help="Folder of results: what is in it and up to date is not computed again, even after a kill."),
        force_options,
        json_option,
    ]  # fmt: skip
    return with_options(command, decorators)


@regress.command(short_help="Compare results with the baseline; exit code 4 if something got worse.")
@_common
@click.option("--junit", type=OUTPUT_FILE, default=None, help="Write JUnit XML to this file.")
@click.option(
    "--summary",
    type=OUTPUT_FILE,
    default=None,
    help='Append Markdown to this file, for example "$GITHUB_STEP_SUMMARY".',
)
def check(suite: Path, junit: Path | None, summary: Path | None, as_json: bool, **values: Any) -> int:
    """Carry out all instances of SUITE, a TOML file, and compare each with the baseline.

    Compared are predicted cost, the cost of the XML replayed, the lower bound, steps, threadblocks and channels, each with a
    threshold of its own that the suite may set. Exit code 0 if nothing got worse by more than that, else 4.

    \b
    Examples:
      taccl regress check suite.toml
      taccl regress check suite.toml --workers 2 --junit regress.xml --cache results/
    """
    from taccl_py.campaign.baseline import compare, read_baseline
    from taccl_py.campaign.verdicts import junit_xml, markdown, verdict_notes, verdict_record
    from taccl_py.jsonio import append_text, write_atomically

    path = values["baseline"] or _beside(suite)
    chosen = _choose(suite, values)
    if not path.is_file():
        raise InputError("there is no baseline; make one with taccl regress accept", path=str(path))
    known = read_baseline(path)
    ran = _carry_out(chosen, values)
    verdict = compare(ran.suite, ran.outcomes, known, is_whole=not values["only"])
    if junit is not None:
        write_atomically(junit, junit_xml([each.case.name for each in ran.outcomes], verdict))
    if summary is not None:
        append_text(summary, markdown(verdict))
    if as_json:
        echo_json({"suite": str(suite), "baseline": str(path), **verdict_record(verdict)})
    else:
        _print_changes(verdict)
        for note in verdict_notes(verdict):
            click.echo(note)
    return 0 if verdict.passes else InvalidArtifact.exit_code


@regress.command(short_help="Write the results into the baseline.")
@_common
def accept(suite: Path, as_json: bool, **values: Any) -> int:
    """Carry out all instances of SUITE and write the baseline, one line for each fact, so that the diff can be reviewed.

    \b
    Examples:
      taccl regress accept suite.toml
      taccl regress accept suite.toml --only templates
    """
    from taccl_py.campaign.baseline import compare, read_baseline, write_baseline
    from taccl_py.campaign.verdicts import verdict_notes, verdict_record

    path = values["baseline"] or _beside(suite)
    chosen = _choose(suite, values)
    require_writable(path, is_file=True)
    known = read_baseline(path) if path.is_file() else {}
    ran = _carry_out(chosen, values)
    verdict = compare(ran.suite, ran.outcomes, known, is_whole=not values["only"])
    if not verdict.failed:
        others = {name: entry for name, entry in known.items() if name not in verdict.gone}
        write_baseline(path, ran.outcomes, others)
    if as_json:
        echo_json({"suite": str(suite), "baseline": str(path), **verdict_record(verdict)})
    else:
        _print_changes(verdict)
    if verdict.failed:
        for note in verdict_notes(verdict)[: len(verdict.failed)]:
            click.echo(note, err=True)
        return SynthesisError.exit_code
    click.echo(f"wrote {path}", err=True)
    return 0


def _beside(suite: Path) -> Path:
    return suite.with_suffix(".baseline.json")


@dataclass(frozen=True)
class _Chosen:
    """A suite, and those of its instances that were asked for."""

    suite: Suite
    cases: list[AnyCase]


@dataclass(frozen=True)
class _Ran:
    """A suite, and what became of the instances that were asked for."""

    suite: Suite
    outcomes: list[CaseOutcome]


def _choose(path: Path, values: dict[str, Any]) -> _Chosen:
    from taccl_py.campaign.suite import read_suite

    suite = read_suite(path)
    cases = [case for case in suite.cases if values["only"] in case.name]
    if not cases:
        raise InputError(f"no instance has {values['only']!r} in its name", path="command line", field="--only")
    return _Chosen(suite, cases)


def _carry_out(chosen: _Chosen, values: dict[str, Any]) -> _Ran:
    from taccl_py.campaign.store import Store

    store = Store(values["cache"]) if values["cache"] is not None else None
    return _Ran(chosen.suite, carry_out_watched(chosen.cases, store, values))


def _print_changes(verdict: Verdict) -> None:
    from taccl_py.campaign.verdicts import COLUMNS, verdict_rows
    from taccl_py.report.tables import ON_WIRES, plain_table, print_table

    for rows in verdict_rows(verdict):
        print_table(plain_table(f"{rows.title} ({ON_WIRES})", COLUMNS, rows.cells))
