"""The report as a picture, made with Matplotlib: sweeps over sizes, and the first algorithm's timeline."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from taccl_py.errors import PackageMissing
from taccl_py.report.figures import bound_name
from taccl_py.report.items import Item, SizeSweep, title_of
from taccl_py.units import format_size

_MOST_ROWS = 64
# Lines up to which a legend tells their names.
_MOST_NAMES = 24


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
        raise PackageMissing(f"matplotlib cannot be imported ({error})", "pip install '.[report]'") from None
    rows = len(sweeps) + 1
    with mpl.rc_context({"svg.hashsalt": "taccl", "font.size": 9}):
        figure = Figure(figsize=(11, 3.7 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        parts = figure.subfigures(rows, 1, squeeze=False)[:, 0]
        for sweep, part in zip(sweeps, parts, strict=False):
            _sweep(sweep, part)
        _timeline(items[0], parts[-1].subplots(), mpl)
        # Date and version would make the same picture another file.
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        picture = BytesIO()
        figure.savefig(picture, format=form, dpi=110, metadata=metadata)
    return picture.getvalue()


def _sweep(sweep: SizeSweep, part: Any) -> None:
    """Time, bus bandwidth and gap beside each other, and a legend below them."""
    axes = part.subplots(1, 3)
    bound = [point.size_bytes for point in sweep.bound]
    for line in sweep.lines:
        sizes = [point.size_bytes for point in line.points]
        axes[0].loglog(sizes, [point.time_us for point in line.points], marker=".", label=line.name)
        axes[1].semilogx(sizes, [point.busbw_gbps for point in line.points], marker=".")
        axes[2].semilogx(sizes, [100 * point.gap for point in line.points], marker=".")
    for number, line in enumerate(sweep.runtime_bounds):
        sizes = [point.size_bytes for point in line.points]
        # A line of one point is seen by its mark alone.
        style = {"color": f"C{number}", "linestyle": ":", "marker": "_" if len(sizes) == 1 else "", "markersize": 9}
        axes[0].loglog(sizes, [point.time_us for point in line.points], label=line.name, **style)
        axes[1].semilogx(sizes, [point.busbw_gbps for point in line.points], **style)
    axes[0].loglog(bound, [point.time_us for point in sweep.bound], "--", color="grey", label=bound_name(sweep))
    axes[1].semilogx(bound, [point.busbw_gbps for point in sweep.bound], "--", color="grey")
    for axis, what in zip(axes, ("time, us", "busbw, GB/s", "gap, %"), strict=True):
        axis.set_ylabel(what)
        axis.set_xlabel("size")
        every = max(1, len(bound) // 5)
        axis.set_xticks(bound[::every], [format_size(size) for size in bound[::every]])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[2].set_ylim(bottom=0)
    part.suptitle(sweep.title, x=0.01, horizontalalignment="left")
    if len(sweep.lines) <= _MOST_NAMES:
        part.legend(fontsize=7, loc="outside lower center", ncols=3)


def _timeline(item: Item, axis: Any, mpl: Any) -> None:
    topology, colours = item.schedule.topology, mpl.colormaps["turbo"]
    shown = min(topology.num_ranks, _MOST_ROWS)
    for transfer in item.timeline.transfers:
        if transfer.src < shown:
            source = item.source_of(item.schedule.messages[transfer.message].chunks[0])
            critical = transfer.message in item.critical
            axis.barh(
                transfer.src, transfer.end_us - transfer.start_us, left=transfer.start_us, height=0.8, alpha=0.8,
                color=colours((source + 0.5) / topology.num_ranks), linewidth=1.5 if critical else 0.2,
                edgecolor="black" if critical else "white", zorder=2 if critical else 1,
            )  # fmt: skip
    axis.set_yticks(range(shown), [f"rank {rank}" for rank in range(shown)], fontsize=7)
    axis.set_ylim(shown - 0.5, -0.5)  # the first rank above, and room for one that sends nothing
    axis.set_xlim(0, item.timeline.makespan_us or 1)
    axis.set_xlabel("time, us")
    axis.set_title(f"{title_of(item)}: sends by rank, the critical path framed", loc="left")
