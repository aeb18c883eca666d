"""``taccl report``: results as a page, a picture or Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import OUTPUT, SIZE_RANGE, echo_json, json_option
from taccl_py.errors import InputError
from taccl_py.jsonio import write_atomically

if TYPE_CHECKING:
    from taccl_py.report.items import Item, SizeSweep

_FORMATS = ("html", "md", "png", "svg")


@click.command(short_help="Make a page, a picture or Markdown of results.")
@click.argument("results", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("-o", "--output", type=OUTPUT, required=True, help="File to write, for example report.html.")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default=None, help="Default: what the file's name ends in."
)
@click.option("--sizes", type=SIZE_RANGE, default="1KiB:4GiB", show_default=True, help="Range of sizes to compare at.")
@click.option(
    "--details",
    type=click.IntRange(0),
    default=6,
    show_default=True,
    help="How many algorithms get figures of their own in a page.",
)
@click.option("--title", default="", help="Heading; default: what the results are.")
@json_option  # fmt: skip
def report(results: tuple[Path, ...], output: Path, form: str | None, as_json: bool, **values: Any) -> None:
    """Make a report of RESULTS: schedule files, folders of taccl synth, pareto and groups, catalogues of taccl sweep.

    Folders of taccl synth are also those with --sizes or --single-failures, and of demands.

    The HTML page is one file that needs no network: time, bandwidth and gap at every size, the machine with the load of its
    links, a timeline to zoom into with the critical path, the path of every chunk, and tables. The files of a portfolio (--sizes)
    are one line, the best at every size; where a summary has times under a runtime profile they come first. Demands have sizes of
    their own and no figure over sizes. Pages need the extra "report"
    (pip install '.[report]'), and so do pictures; Markdown does not.

    \b
    Examples:
      taccl report out/ -o report.html
      taccl report out/schedule.json -o report.md --sizes 1KiB:1GiB
      taccl report out/ -o report.svg
    """
    from taccl_py.campaign.results import read_results
    from taccl_py.report.items import size_sweeps, title_of
    from taccl_py.report.markdown import report_markdown
    from taccl_py.report.page import report_page
    from taccl_py.report.picture import draw

    form = form or output.suffix.removeprefix(".")
    if form not in _FORMATS:
        raise InputError(
            f"its name does not end in .{', .'.join(_FORMATS)}; rename it or add --format", path=str(output)
        )
    if output.is_dir():
        raise InputError("is a directory; name a file", path=str(output))
    if form in ("png", "svg") and output.suffix != f".{form}":
        raise InputError(f"is a picture's name of another kind; end it in .{form}", path=str(output))
    items = _renamed([item for path in results for item in read_results(path)])
    sweeps = size_sweeps(items, values["sizes"])
    title = values["title"] or (title_of(items[0]) if len(items) == 1 else _title(items, sweeps))
    if form == "html":
        write_atomically(output, report_page(title, items, sweeps, values["details"]))
    elif form == "md":
        write_atomically(output, report_markdown(title, items, sweeps))
    else:
        write_atomically(output, draw(items, sweeps, form))
    if as_json:
        echo_json({"file": str(output), "format": form, "algorithms": [item.name for item in items]})
    else:
        click.echo(f"wrote {output}", err=True)


def _title(items: Sequence[Item], sweeps: Sequence[SizeSweep]) -> str:
    """Heading of several algorithms: what they do where that is one thing, and how many they are."""
    files = "files of a portfolio" if all(item.portfolio for item in items) else "algorithms"
    is_one_thing = len(sweeps) == 1 and not any(item.is_demand for item in items)
    return f"{sweeps[0].title}: {len(items)} {files}" if is_one_thing else f"{len(items)} {files}"


def _renamed(items: list[Item]) -> list[Item]:
    """Items with names of their own."""
    counts = Counter(item.name for item in items)
    seen: Counter[str] = Counter()
    found = []
    for item in items:
        seen[item.name] += 1
        again = counts[item.name] > 1
        found.append(replace(item, name=f"{item.name} ({seen[item.name]})") if again else item)
    return found
