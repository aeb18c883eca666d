"""The report as one HTML page that needs no network: figures, tables, and the few lines of script that join them."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from taccl_py import __version__
from taccl_py.report.figures import (
    MOST_BARS,
    colour_of,
    import_plotly,
    progress_figure,
    sweep_figure,
    threadblock_figure,
    timeline_figure,
    topology_figure,
)
from taccl_py.report.items import Item, SizeSweep, title_of
from taccl_py.report.view import program_record, schedule_record
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import ANY_ALGORITHM, Origin
from taccl_py.units import format_gap, format_rate, format_size, format_time, relative_gap

_MOST_ROWS = 24
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em; } h2 { font-size: 1.3em; border-top: 1px solid #ddd; padding-top: 1em; margin-top: 2em; }
table { border-collapse: collapse; margin: 0.6em 0 1.2em; font-size: 0.92em; }
th, td { border: 1px solid #ddd; padding: 0.2em 0.7em; text-align: right; } th { background: #f4f4f4; }
td:first-child, th:first-child { text-align: left; }
code { background: #f4f4f4; padding: 0.15em 0.4em; } details { margin: 0.5em 0; } summary { cursor: pointer; }
.note { color: #555; } .rank { color: white; border-radius: 0.8em; padding: 0 0.5em; margin: 0 0.1em; font-size: 0.85em; }
"""
# Choosing a chunk fades bars without it, and lines between ranks that it does not cross.
_SCRIPT = """
function chooseChunk(number, value) {
  const chunk = value === "" ? null : Number(value);
  const time = document.getElementById("timeline-" + number);
  const map = document.getElementById("topology-" + number);
  const has = time.data[0].customdata.map(function (chunks) { return chunk === null || chunks.includes(chunk); });
  Plotly.restyle(time, {"marker.opacity": [has.map(function (on) { return on ? 0.9 : 0.07; })]}, [0]);
  const pairs = new Set(chunk === null ? [] : CHUNK_PAIRS[number][chunk].map(String));
  const lines = [], opacity = [];
  map.data.forEach(function (trace, index) {
    if (trace.mode !== "lines") { return; }
    lines.push(index);
    opacity.push(chunk === null ? 0.85 : pairs.has(String(trace.meta)) ? 1 : 0.05);
  });
  if (lines.length) { Plotly.restyle(map, {"opacity": opacity}, lines); }
}
"""
_INTRODUCTION = (
    "An <em>algorithm</em> says which rank (GPU) sends which chunk of data to which other rank, over which link, and when. "
    "Times are predictions of the alpha-beta model of the machine, not measurements: a message takes alpha, whatever its "
    "size, plus beta for every megabyte, and links and ports (NICs, switch ports) serve one message at a time. {model} The "
    "<em>lower bound</em> is a time that any algorithm needs at least on this machine, or any with the chunks and the sketch that are named; the <em>gap</em> is how far an algorithm is "
    "from it. <em>busbw</em> is the bus bandwidth as nccl-tests counts it."
)


def report_page(title: str, items: Sequence[Item], sweeps: Sequence[SizeSweep], most_details: int) -> str:
    """Return a page.

    Parameters
    ----------
    title
        Heading.
    items
        Algorithms; the first ones get figures of their own, all are in the table.
    sweeps
        Over sizes.
    most_details
        How many items get figures.

    Raises
    ------
    PackageMissing
        If Plotly is not installed.
    """
    import_plotly()
    from plotly.offline import get_plotlyjs

    detailed = items[:most_details]
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{_INTRODUCTION.format(model=html.escape(model_words(items)))}</p>"]
    for name, command in commands_of(items):
        if any(item.portfolio for item in items):
            parts.append(f"<p>To make {html.escape(name)}: <code>{html.escape(command)}</code></p>")
    parts += ["<h2>All algorithms</h2>", _summary(items)]
    for number, sweep in enumerate(sweeps):
        parts.append(f"<h2>{html.escape(sweep.title)}: every size</h2>")
        parts.append(
            "<p class=note>Both the sizes and the times are on logarithmic scales. Click a name to hide a line.</p>"
        )
        parts.append(_div(sweep_figure(sweep), f"sweep-{number}"))
    for number, item in enumerate(detailed):
        parts += _details(item, number)
    if len(items) > len(detailed):
        parts.append(f"<p class=note>{len(items) - len(detailed)} further algorithms are in the table above only.</p>")
    pairs = json.dumps([_chunk_pairs(item) for item in detailed], separators=(",", ":"))
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<script>{get_plotlyjs()}</script>\n"
        f"<script>const CHUNK_PAIRS = {pairs};{_SCRIPT}</script></head>\n<body>\n{body}\n"
        f"<p class=note>Made by taccl {__version__}.</p>\n</body></html>\n"
    )


def _div(figure: Any, name: str) -> str:
    text: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=name, default_width="100%",
        config={"displaylogo": False, "responsive": True, "scrollZoom": False},
    )  # fmt: skip
    return text


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table of cells that are escaped already."""
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _restriction(origin: Origin | None) -> str:
    return "" if origin is None or origin.holds_for == ANY_ALGORITHM else f" ({origin.holds_for})"


def summary_cells(item: Item) -> list[str]:
    """Facts of an item on links and ports, as text."""
    schedule, origin = item.schedule, item.schedule.origin
    bound_us = origin.bound_us if origin else 0.0
    # Bus bandwidth is a notion of the eight collectives.
    busbw = None if isinstance(schedule, DemandSchedule) else schedule.busbw_gbps
    return [
        item.name,
        title_of(item),
        format_time(schedule.makespan_us),
        format_time(bound_us) + _restriction(origin) if bound_us else "",
        format_gap(relative_gap(schedule.makespan_us, bound_us)) if bound_us else "",
        format_rate(schedule.algbw_gbps) if schedule.algbw_gbps is not None else "",
        format_rate(busbw) if busbw is not None else "",
        str(schedule.num_steps),
        schedule.finder,
        origin.status if origin else "",
    ]


_COLUMNS = ("name", "what", "time", "bound", "gap", "algbw", "busbw", "steps", "engine", "status")
_RUNTIME_COLUMNS = ("runtime time", "runtime bound", "runtime gap")


def summary_rows(items: Sequence[Item]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and rows of the table of all items, with times under runtime profiles where summaries tell some."""
    rows = [summary_cells(item) for item in items]
    if not any(item.runtime_point for item in items):
        return _COLUMNS, rows
    cells = [_runtime_cells(item) for item in items]
    return (*_COLUMNS[:2], *_RUNTIME_COLUMNS, *_COLUMNS[2:]), [
        [*row[:2], *more, *row[2:]] for row, more in zip(rows, cells, strict=True)
    ]


def _runtime_cells(item: Item) -> list[str]:
    """Time under the runtime profile, its bound and gap; with the size where that is not the schedule's own."""
    point = item.runtime_point
    if point is None:
        return ["", "", ""]
    other = "" if point.size_bytes == item.size_bytes else f" at {format_size(point.size_bytes)}"
    gap = format_gap(relative_gap(point.time_us, point.bound_us))
    return [f"{format_time(point.time_us)}{other}", format_time(point.bound_us), gap]


def model_words(items: Sequence[Item]) -> str:
    """Sentence on what the times of a report include."""
    plain = "of links and ports alone (runtime profile neutral), without launch, protocols and threadblocks"
    facts = [item.runtime_facts for item in items]
    profiles = sorted({one.title for one in facts if one is not None and one.points})
    if not profiles:
        return f"Times are predictions {plain}."
    return (
        f"Runtime times are predictions under runtime profile {'; '.join(profiles)}, with launch, protocols and threadblocks; "
        f"all other times are {plain}."
    )


def commands_of(items: Sequence[Item]) -> list[tuple[str, str]]:
    """Commands that make items again, with the names of what they make; one for a portfolio."""
    found = {}
    for item in items:
        if item.portfolio is not None:
            found[f"the portfolio {item.portfolio.name}"] = item.portfolio.command
        elif item.command:
            found[item.name] = item.command
    return list(found.items())


def _summary(items: Sequence[Item]) -> str:
    columns, rows = summary_rows(items)
    return _table(columns, [[html.escape(cell) for cell in row] for row in rows])


def _details(item: Item, number: int) -> list[str]:
    schedule = item.schedule
    origin = schedule.origin
    parts = [f"<h2>{html.escape(item.name)}: {html.escape(title_of(item))}</h2>"]
    if origin is not None:
        sketch = f", sketch {html.escape(origin.sketch)}" if origin.sketch else ""
        engine = f"{origin.found_by} in a race ({origin.engine})" if origin.found_by else origin.engine
        parts.append(
            f"<p>Found by engine {html.escape(engine)} (solver {html.escape(origin.solver)}{sketch}, seed {origin.seed}): "
            f"{html.escape(origin.status)}. The lower bound, for {html.escape(origin.holds_for)}, comes from {html.escape(origin.bound_reason)}.</p>"
        )
    if item.command:
        parts.append(f"<p>To make it again: <code>{html.escape(item.command)}</code></p>")
    if item.progress:
        parts.append(
            "<p class=note>The search: the best schedule so far, and the bound; for AllReduce they may be those of its halves.</p>"
        )
        parts.append(_div(progress_figure(item), f"progress-{number}"))
    options = "".join(
        f'<option value="{chunk}">{html.escape(item.describe_chunk(chunk))}</option>'
        for chunk in range(item.num_chunks)
    )
    parts.append(
        f'<p>Show <select id="chunk-{number}" onchange="chooseChunk({number}, this.value)">'
        f'<option value="">all chunks</option>{options}</select> on the machine and in the timeline.</p>'
    )
    parts.append("<p class=note>The machine: a dot is a rank; the wider and redder a line, the busier.</p>")
    parts.append(_div(topology_figure(item), f"topology-{number}"))
    cut = f" Only the first {MOST_BARS} messages are drawn." if len(schedule.messages) > MOST_BARS else ""
    parts.append(
        "<p class=note>The timeline: a bar is a message, its colour is the rank that its (first) chunk comes from, or, for sums, "
        f"whose shard it is; a black frame is the critical path, which decides how long everything takes.{cut} Drag to zoom, "
        f"double-click to see everything again.</p><p>{_legend(schedule.topology.num_ranks)}</p>"
    )
    parts.append(_div(timeline_figure(item), f"timeline-{number}"))
    parts += _tables(item)
    if item.program_timeline is not None:
        parts.append("<p class=note>The program: a bar is a send of a threadblock; its colour is the receiver.</p>")
        parts.append(_div(threadblock_figure(item), f"threadblocks-{number}"))
    return parts


def _legend(num_ranks: int) -> str:
    shown = range(min(num_ranks, 64))
    return "".join(
        f'<span class="rank" style="background:{colour_of(rank, num_ranks)}">{rank}</span>' for rank in shown
    )


def _tables(item: Item) -> list[str]:
    record = schedule_record(item.schedule, item.timeline)
    steps = [
        [str(row["step"]), format_time(row["start_us"]), format_time(row["end_us"]), str(row["messages"]), str(row["reduces"]),
         str(row["chunks"]), format_size(row["bytes"]), str(row["links"])]
        for row in record["steps"]
    ]  # fmt: skip
    traffic = [
        [html.escape(row["name"]), str(row["messages"]), format_size(row["bytes"]),
         format_time(row["busy_us"]), f"{100 * row['busy']:.1f} %"]
        for row in record["traffic"][:_MOST_ROWS]
    ]  # fmt: skip
    parts = [
        _folded("Steps", ("step", "first start", "last end", "messages", "sums", "chunks", "bytes", "links"), steps),
        _folded(
            "Links and ports, the busiest first", ("link or port", "messages", "bytes", "busy", "of the time"), traffic
        ),
    ]
    if item.program is not None:
        program = program_record(item.program, None, None)
        keys = ("rank", "threadblocks", "steps", "longest", "scratch_chunks", "sends", "receives", "waits")
        gpus = [[str(row[key]) for key in keys] for row in program["gpus"]]
        pairs = [
            [
                f"{row['src']} &rarr; {row['dst']}",
                ", ".join(map(str, row["channels"])),
                str(row["sends"]),
                str(row["chunks"]),
            ]
            for row in program["pairs"][: 4 * _MOST_ROWS]
        ]
        parts.append(_folded(f"Threadblocks ({program['protocol']})", [key.replace("_", " ") for key in keys], gpus))
        parts.append(_folded("Channels", ("from, to", "channels", "sends", "chunks"), pairs))
    return parts


def _folded(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<details><summary>{title}</summary>{_table(columns, rows)}</details>"


def _chunk_pairs(item: Item) -> list[list[list[int]]]:
    """For every chunk the pairs of ranks that it crosses."""
    found: list[dict[tuple[int, int], None]] = [{} for _ in range(item.num_chunks)]
    for message in item.schedule.messages:
        link = item.schedule.topology.links[message.link]
        for chunk in message.chunks:
            found[chunk][link.src, link.dst] = None
    return [[list(pair) for pair in pairs] for pairs in found]
