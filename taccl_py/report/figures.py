"""Figures of a report, made with Plotly: sweeps over sizes, machines with the load of their links, timelines."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taccl_py.errors import import_package
from taccl_py.report.items import Item, SizePoint, SizeSweep
from taccl_py.simulate.timeline import Transfer
from taccl_py.units import format_size, format_time

# More bars or lines than this make a page slow; what is left out is said.
MOST_BARS, MOST_PAIRS = 20_000, 600
# Rows up to which a timeline begins with a row for every link; beyond, with one for every rank.
_MOST_LINK_ROWS = 64
_ROW_PIXELS, _MARGIN_PIXELS = 18, 130
_CRITICAL = "black"
# Letters of a line in a legend.
_LEGEND_LETTERS = 28
# The drawing of the machine: its width, margins, height at most, and dots, in pixels.
_MAP_WIDTH, _MAP_MARGIN, _LEAST_MAP, _MOST_MAP = 1100, 24, 460, 1000
_DOT, _DOT_SPACING = 24, 1.35


def import_plotly() -> Any:
    """Plotly's figures, imported when they are needed.

    Raises
    ------
    PackageMissing
        If Plotly is not installed.
    """
    return import_package("plotly.graph_objects", "plotly", "pip install '.[report]'")


def colour_of(source: int, num_ranks: int) -> str:
    """Colour of a rank's chunks; neighbours differ."""
    # The golden angle keeps any two of the first colours apart.
    hue = source * 137.508 % 360
    lightness = 45 if source % 2 == 0 or num_ranks < 12 else 62
    return f"hsl({hue:.0f},65%,{lightness}%)"


def sweep_figure(sweep: SizeSweep) -> Any:
    """Time, bus bandwidth and gap as functions of size, below each other."""
    graph_objects = import_plotly()
    figure = graph_objects.Figure()
    rows = ("y", "y2", "y3")
    for number, line in enumerate(sweep.lines):
        sizes = [point.size_bytes for point in line.points]
        values = (
            [point.time_us for point in line.points],
            [point.busbw_gbps for point in line.points],
            [100 * point.gap for point in line.points],
        )
        for axis, found in zip(rows, values, strict=True):
            figure.add_scatter(
                x=sizes, y=found, yaxis=axis, name=_wrapped(line.name), legendgroup=line.name, showlegend=axis == "y",
                mode="lines+markers", marker={"size": 5, "color": colour_of(number, 1)},
                line={"color": colour_of(number, 1)}, text=[_point_text(point, line.name) for point in line.points],
                hovertemplate="%{text}: %{y:.4g}<extra></extra>",
            )  # fmt: skip
    for number, line in enumerate(sweep.runtime_bounds):
        # A line of one point is seen by its mark alone.
        mode, mark = "markers" if len(line.points) == 1 else "lines", {"symbol": "line-ew-open", "size": 12}
        for axis, found in (("y", [p.time_us for p in line.points]), ("y2", [p.busbw_gbps for p in line.points])):
            figure.add_scatter(
                x=[p.size_bytes for p in line.points], y=found, yaxis=axis, name=_wrapped(line.name),
                legendgroup=f"bound {number}", showlegend=axis == "y", mode=mode, line={"color": colour_of(number, 1), "dash": "dot"},
                marker={**mark, "color": colour_of(number, 1)},
                text=[format_size(p.size_bytes) for p in line.points], hovertemplate="%{text}: %{y:.4g}<extra></extra>",
            )  # fmt: skip
    bound = [point.size_bytes for point in sweep.bound]
    for axis, found in (("y", [p.time_us for p in sweep.bound]), ("y2", [p.busbw_gbps for p in sweep.bound])):
        figure.add_scatter(
            x=bound, y=found, yaxis=axis, name=_wrapped(bound_name(sweep)), legendgroup="bound", showlegend=axis == "y",
            mode="lines", line={"color": "#888", "dash": "dash"}, text=[format_size(size) for size in bound],
            hovertemplate="%{text}: %{y:.4g}<extra>lower bound</extra>",
        )  # fmt: skip
    ticks = [size for index, size in enumerate(bound) if index % 2 == 0]
    figure.update_layout(
        height=760, margin={"t": 20, "l": 80, "r": 20, "b": 60}, legend={"x": 1.01, "xanchor": "left", "y": 1.0, "yanchor": "top"},
        xaxis={"type": "log", "title": "size", "tickvals": ticks, "ticktext": [format_size(s) for s in ticks], "anchor": "y3"},
        yaxis={"type": "log", "title": "time, us", "domain": [0.55, 1.0]},
        yaxis2={"title": "busbw, GB/s", "domain": [0.28, 0.5], "rangemode": "tozero"},
        yaxis3={"title": "gap, %", "domain": [0.0, 0.23], "rangemode": "tozero"},
    )  # fmt: skip
    return figure


def bound_name(sweep: SizeSweep) -> str:
    """Name of the bound on links and ports in a legend."""
    return "bound, links and ports alone" if sweep.runtime_bounds else "lower bound, any algorithm"


def _wrapped(name: str) -> str:
    """Name in lines short enough for a legend beside the figure."""
    return "<br>".join(textwrap.wrap(name, _LEGEND_LETTERS)) or name


def _point_text(point: SizePoint, line: str) -> str:
    return f"{format_size(point.size_bytes)}, {point.name if point.name not in ('', line) else line}"


@dataclass(frozen=True, slots=True)
class _FigurePlace:
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class _Map:
    """Places of the ranks, one unit or more apart, the height of the drawing and the size of a dot, in pixels."""

    places: list[_FigurePlace]
    height: float
    dot: float


def _map_of(item: Item) -> _Map:
    """Ranks on a cycle, those of a node together; nodes around a larger cycle, none of which reaches into another."""
    topology = item.schedule.topology
    nodes = topology.node_ranks
    largest = max(map(len, nodes))
    small = _radius(largest, 1.0)
    # Nodes are at least two units further apart than their own cycles are wide.
    radius = _radius(len(nodes), 2 * small + 2.0)
    places = [_FigurePlace(0.0, 0.0)] * topology.num_ranks
    for number, ranks in enumerate(nodes):
        turn = 2 * math.pi * number / len(nodes) + math.pi
        for position, rank in enumerate(ranks):
            angle = 2 * math.pi * position / len(ranks) + math.pi / 2
            x = radius * math.cos(turn) + small * math.cos(angle)
            places[rank] = _FigurePlace(x, radius * math.sin(turn) + small * math.sin(angle))
    width, height = (max(side) - min(side) + 1.0 for side in zip(*((p.x, p.y) for p in places), strict=True))
    wanted = height * _DOT * _DOT_SPACING + 2 * _MAP_MARGIN
    pixels = min(_MOST_MAP, max(_LEAST_MAP, wanted))
    unit = min((pixels - 2 * _MAP_MARGIN) / height, (_MAP_WIDTH - 2 * _MAP_MARGIN) / width)
    return _Map(places, pixels, min(float(_DOT), unit / _DOT_SPACING))


def _radius(number: int, apart: float) -> float:
    """Radius of a cycle on which so many points are so far apart."""
    return 0.0 if number == 1 else apart / (2 * math.sin(math.pi / number))


def topology_figure(item: Item) -> Any:
    """The machine: a dot for every rank, an arrow-less line for every two ranks of which one sends to the other.

    The trace of a pair carries it as its ``meta``; width and colour say how busy the busier direction is.
    """
    graph_objects = import_plotly()
    figure = graph_objects.Figure()
    drawn, makespan_us = _map_of(item), item.timeline.makespan_us
    places = drawn.places
    load = pair_load(item)
    for src, dst in sorted(load, key=lambda pair: (-load[pair], pair))[:MOST_PAIRS]:
        one, two = places[src], places[dst]
        # The two directions are drawn beside each other.
        length = math.hypot(two.x - one.x, two.y - one.y) or 1.0
        shift_x, shift_y = -(two.y - one.y) / length * 0.04, (two.x - one.x) / length * 0.04
        busy = load[src, dst] / makespan_us if makespan_us > 0 else 0.0
        figure.add_scatter(
            x=[one.x + shift_x, (one.x + two.x) / 2 + shift_x, two.x + shift_x],
            y=[one.y + shift_y, (one.y + two.y) / 2 + shift_y, two.y + shift_y],
            mode="lines", meta=[src, dst], showlegend=False, hoverinfo="text", opacity=0.85,
            line={"width": 1 + 5 * min(1.0, busy), "color": f"hsl({220 - 220 * min(1.0, busy):.0f},75%,50%)"},
            text=f"{src} -> {dst}: busy {100 * busy:.0f} % of the time",
        )  # fmt: skip
    num_ranks = item.schedule.topology.num_ranks
    figure.add_scatter(
        x=[place.x for place in places], y=[place.y for place in places], mode="markers+text", showlegend=False,
        text=[str(rank) for rank in range(num_ranks)], textfont={"color": "white", "size": max(1, round(0.45 * drawn.dot))}, hoverinfo="text",
        hovertext=[f"rank {rank}, node {item.schedule.topology.node_of[rank]}" for rank in range(num_ranks)],
        marker={"size": drawn.dot, "color": [colour_of(rank, num_ranks) for rank in range(num_ranks)]},
    )  # fmt: skip
    hidden = {"visible": False}
    figure.update_layout(
        height=drawn.height, margin=dict.fromkeys(("t", "l", "r", "b"), _MAP_MARGIN), plot_bgcolor="white", xaxis=hidden,
        yaxis={**hidden, "scaleanchor": "x"}, hovermode="closest",
    )  # fmt: skip
    return figure


def pair_load(item: Item) -> dict[tuple[int, int], float]:
    """Times of messages on their path from rank to rank, in microseconds, parallel links together."""
    load: dict[tuple[int, int], float] = {}
    for transfer in item.timeline.transfers:
        load[transfer.src, transfer.dst] = (
            load.get((transfer.src, transfer.dst), 0.0) + transfer.end_us - transfer.start_us
        )
    return load


def timeline_figure(item: Item) -> Any:
    """A bar for every message, by link or by rank, coloured by where its first chunk comes from; critical ones have a frame.

    The one trace's ``customdata`` are the chunks of every bar.
    """
    graph_objects = import_plotly()
    schedule, topology = item.schedule, item.schedule.topology
    transfers = sorted(
        item.timeline.transfers[:MOST_BARS],
        key=lambda transfer: (transfer.src, transfer.dst, transfer.link, transfer.start_us),
    )
    messages = [schedule.messages[transfer.message] for transfer in transfers]
    critical = [transfer.message in item.critical for transfer in transfers]
    by_link = [topology.resource_name(transfer.link) for transfer in transfers]
    by_rank = [f"rank {transfer.src}" for transfer in transfers]
    colours = [colour_of(item.source_of(message.chunks[0]), topology.num_ranks) for message in messages]
    starts_by_link = len(set(by_link)) <= _MOST_LINK_ROWS
    hover = [
        f"{transfer.src} -> {transfer.dst}, step {schedule.step_of[transfer.message]}, {'sum' if message.reduce else 'copy'} of "
        f"{_chunks_text(message.chunks)}<br>{_span(transfer)}{'<br>on the critical path' if is_critical else ''}"
        for transfer, message, is_critical in zip(transfers, messages, critical, strict=True)
    ]
    frames = {"color": [_CRITICAL if c else "white" for c in critical], "width": [2.5 if c else 0.5 for c in critical]}
    figure = graph_objects.Figure()
    figure.add_bar(
        orientation="h", y=by_link if starts_by_link else by_rank, base=[transfer.start_us for transfer in transfers],
        x=[transfer.end_us - transfer.start_us for transfer in transfers], customdata=[list(m.chunks) for m in messages],
        marker={"color": colours, "line": frames, "opacity": [0.9] * len(transfers)}, hovertext=hover, hoverinfo="text",
    )  # fmt: skip
    buttons = []
    for label, rows in (("by link", by_link), ("by rank", by_rank)):
        layout = {"height": _height(rows), "yaxis.categoryarray": list(dict.fromkeys(rows))}
        buttons.append({"label": label, "method": "update", "args": [{"y": [rows]}, layout]})
    _lay_out(figure, by_link if starts_by_link else by_rank)
    figure.update_layout(
        updatemenus=[{"type": "buttons", "direction": "right", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom",
                      "buttons": buttons, "active": 0 if starts_by_link else 1}]
    )  # fmt: skip
    return figure


def threadblock_figure(item: Item) -> Any:
    """A bar for every send of the program, by threadblock."""
    graph_objects = import_plotly()
    timeline = item.program_timeline
    if timeline is None:
        raise ValueError("a report's item without a replay of its program has no threadblocks")
    transfers = sorted(
        timeline.transfers[:MOST_BARS], key=lambda transfer: (transfer.src, transfer.threadblock, transfer.start_us)
    )
    rows = [f"rank {transfer.src} tb {transfer.threadblock}" for transfer in transfers]
    figure = graph_objects.Figure()
    figure.add_bar(
        orientation="h", y=rows, base=[transfer.start_us for transfer in transfers], x=[m.end_us - m.start_us for m in transfers],
        marker={"color": [colour_of(transfer.dst, item.schedule.topology.num_ranks) for transfer in transfers]}, hoverinfo="text",
        hovertext=[f"step {transfer.step} sends to {transfer.dst}<br>{_span(transfer)}" for transfer in transfers],
    )  # fmt: skip
    _lay_out(figure, rows)
    return figure


def progress_figure(item: Item) -> Any:
    """Incumbent and bound over the seconds of the search, the best so far of each."""
    graph_objects = import_plotly()
    figure = graph_objects.Figure()
    end = max(point.seconds for point in item.progress)
    news = {
        "best schedule": ([(p.seconds, p.incumbent_us) for p in item.progress if p.incumbent_us is not None], min),
        "lower bound": ([(p.seconds, p.bound_us) for p in item.progress if p.bound_us is not None], max),
    }
    for name, (found, better) in news.items():
        values = list(itertools.accumulate((value for _, value in found), better))
        seconds = [when for when, _ in found]
        if values:  # a line goes on to the end
            seconds, values = [*seconds, end], [*values, values[-1]]
        figure.add_scatter(x=seconds, y=values, name=name, mode="lines+markers", line={"shape": "hv"})
    figure.update_layout(
        height=300, margin={"t": 20, "l": 80, "r": 20, "b": 50}, xaxis={"title": "seconds of the search"},
        yaxis={"title": "time, us", "rangemode": "tozero"},
    )  # fmt: skip
    return figure


def _lay_out(figure: Any, rows: Sequence[str]) -> None:
    figure.update_layout(
        height=_height(rows), barmode="overlay", bargap=0.15, margin={"t": 50, "l": 150, "r": 20, "b": 50},
        plot_bgcolor="#fafafa", dragmode="zoom", showlegend=False, hovermode="closest",
        xaxis={"title": "time, us", "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": list(dict.fromkeys(rows)), "autorange": "reversed",
               "tickfont": {"size": 10}},
    )  # fmt: skip


def _height(rows: Sequence[str]) -> int:
    return _MARGIN_PIXELS + _ROW_PIXELS * max(4, len(set(rows)))


def _span(transfer: Transfer) -> str:
    return f"{format_time(transfer.start_us)} to {format_time(transfer.end_us)}, {format_size(transfer.size_bytes)}"


def _chunks_text(chunks: Sequence[int]) -> str:
    shown = ", ".join(map(str, chunks[:8]))
    return f"chunk{'s' if len(chunks) > 1 else ''} {shown}{' ...' if len(chunks) > 8 else ''}"
