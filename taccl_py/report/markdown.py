"""The report as Markdown, for pull requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taccl_py.report.items import Item, SizePoint, SizeSweep
from taccl_py.report.page import commands_of, model_words, summary_rows
from taccl_py.units import format_gap, format_rate, format_size, format_time

_COLUMNS = ("size", "fastest", "busbw", "bound", "gap", "algorithm")


def report_markdown(title: str, items: Sequence[Item], sweeps: Sequence[SizeSweep]) -> str:
    """Text with a table of all algorithms, a table of every sweep, and the commands that make them again."""
    columns, rows = summary_rows(items)
    lines = [f"## {_escaped(title)}", "", model_words(items), "", *_table(columns, rows)]
    for sweep in sweeps:
        lines += ["", f"### {_escaped(sweep.title)}", "", *_sweep(sweep)]
    commands = [f"* {_escaped(name)}: `{command}`" for name, command in commands_of(items)]
    if commands:
        lines += ["", "### To make them again", "", *commands]
    return "\n".join(lines) + "\n"


def _sweep(sweep: SizeSweep) -> list[str]:
    """The fastest algorithm of every size; under runtime profiles a table of its own, before that of links and ports."""
    lines: list[str] = []
    for line in (one for one in sweep.lines if one.profile):
        rows = [_row(point, point.bound_us, point.name) for point in line.points]
        lines += [f"{_escaped(line.name)}:", "", *_table(_COLUMNS, rows), ""]
    rows = []
    plain = [one for one in sweep.lines if not one.profile]
    for bound in sweep.bound:
        at_size = [
            (p.time_us, p.name or line.name, p)
            for line in plain
            for p in line.points
            if p.size_bytes == bound.size_bytes
        ]
        if at_size:
            _, name, point = min(at_size, key=lambda found: found[:2])
            rows.append(_row(point, bound.time_us, name))
    return [*lines, *(["On links and ports alone:", ""] if lines else []), *_table(_COLUMNS, rows)]


def _row(point: SizePoint, bound_us: float, name: str) -> list[str]:
    size, rate = format_size(point.size_bytes), format_rate(point.busbw_gbps)
    return [size, format_time(point.time_us), rate, format_time(bound_us), format_gap(point.gap), name]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    every = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in every]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
