"""The report as Markdown, for pull requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taccl_py.report.items import Item, SizeSweep
from taccl_py.report.page import SUMMARY_COLUMNS, summary_cells
from taccl_py.units import format_gap, format_rate, format_size, format_time

_MODEL = "Times are predictions for links and ports alone (runtime profile neutral), without launch, protocols and threadblocks."


def report_markdown(title: str, items: Sequence[Item], sweeps: Sequence[SizeSweep]) -> str:
    """Text with a table of all algorithms, a table of every sweep, and the commands that make them again."""
    lines = [f"## {_escaped(title)}", "", _MODEL, "", *_table(SUMMARY_COLUMNS, map(summary_cells, items))]
    for sweep in sweeps:
        lines += ["", f"### {_escaped(sweep.title)}", "", *_sweep(sweep)]
    commands = [f"* {_escaped(item.name)}: `{item.command}`" for item in items if item.command]
    if commands:
        lines += ["", "### To make them again", "", *commands]
    return "\n".join(lines) + "\n"


def _sweep(sweep: SizeSweep) -> list[str]:
    """The fastest algorithm of every size."""
    rows = []
    for bound in sweep.bound:
        at_size = [
            (p.time_us, line.name, p) for line in sweep.lines for p in line.points if p.size_bytes == bound.size_bytes
        ]
        if not at_size:
            continue
        time_us, name, point = min(at_size, key=lambda found: found[:2])
        gap = "" if point.gap is None else format_gap(point.gap)
        row = [format_size(bound.size_bytes), format_time(time_us), format_rate(point.busbw_gbps)]
        rows.append([*row, format_time(bound.time_us), gap, name])
    return _table(("size", "fastest", "busbw", "bound", "gap", "algorithm"), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    every = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in every]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
