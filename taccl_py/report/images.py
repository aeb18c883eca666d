"""The report as a picture, made with Matplotlib: sweeps over sizes, and the first algorithm's timeline."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from taccl_py.errors import PackageMissing
from taccl_py.report.items import Item, SizeSweep, title_of
from taccl_py.units import format_size

_MOST_ROWS = 64


def draw(items: Sequence[Item], sweeps: Sequence[SizeSweep], form: str) -> bytes:
    """Bytes of a picture, png or svg. The same report gives the same ones.

    Raises
    ------
    PackageMissing
        If Matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PackageMissing(f"matplotlib cannot be imported ({error})", "pip install 'taccl-py[report]'") from None
    rows = len(sweeps) + 1
    with mpl.rc_context({"svg.hashsalt": "taccl", "font.size": 9}):
        figure = Figure(figsize=(11, 3.4 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(rows, 3)
        for number, sweep in enumerate(sweeps):
            _sweep(sweep, [figure.add_subplot(grid[number, column]) for column in range(3)])
        _timeline(items[0], figure.add_subplot(grid[rows - 1, :]), mpl)
        # Date and version would make the same picture another file.
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        picture = BytesIO()
        figure.savefig(picture, format=form, dpi=110, metadata=metadata)
    return picture.getvalue()


def _sweep(sweep: SizeSweep, axes: Sequence[Any]) -> None:
    bound = [point.size_bytes for point in sweep.bound]
    for line in sweep.lines:
        sizes = [point.size_bytes for point in line.points]
        axes[0].loglog(sizes, [point.time_us for point in line.points], marker=".", label=line.name)
        axes[1].semilogx(sizes, [point.busbw_gbps for point in line.points], marker=".")
        with_gap = [point for point in line.points if point.gap is not None]
        axes[2].semilogx([p.size_bytes for p in with_gap], [100 * (p.gap or 0.0) for p in with_gap], marker=".")
    axes[0].loglog(bound, [point.time_us for point in sweep.bound], "--", color="grey", label="lower bound")
    axes[1].semilogx(bound, [point.busbw_gbps for point in sweep.bound], "--", color="grey")
    for axis, what in zip(axes, ("time, us", "busbw, GB/s", "gap, %"), strict=True):
        axis.set_ylabel(what)
        axis.set_xlabel("size")
        every = max(1, len(bound) // 5)
        axis.set_xticks(bound[::every], [format_size(size) for size in bound[::every]])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_title(sweep.title, loc="left")
    if len(sweep.lines) <= 10:
        axes[0].legend(fontsize=7)


def _timeline(item: Item, axis: Any, mpl: Any) -> None:
    topology, colours = item.schedule.topology, mpl.colormaps["turbo"]
    shown = min(topology.num_ranks, _MOST_ROWS)
    for move in item.timeline.transfers:
        if move.src < shown:
            source = item.source_of(item.schedule.messages[move.message].chunks[0])
            critical = move.message in item.critical
            axis.barh(
                move.src, move.end_us - move.start_us, left=move.start_us, height=0.8, alpha=0.8,
                color=colours((source + 0.5) / topology.num_ranks), linewidth=1.5 if critical else 0.2,
                edgecolor="black" if critical else "white", zorder=2 if critical else 1,
            )  # fmt: skip
    axis.set_yticks(range(shown), [f"rank {rank}" for rank in range(shown)], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlim(0, item.timeline.makespan_us or 1)
    axis.set_xlabel("time, us" if item.schedule.size_bytes is not None else "time, the profile's unit")
    axis.set_title(f"{title_of(item)}: sends by rank, the critical path framed", loc="left")
