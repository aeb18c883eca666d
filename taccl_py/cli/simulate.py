"""``taccl simulate``: how long a schedule or a program takes, for any size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import SIZE, SIZE_RANGE, echo_json, json_option
from taccl_py.cli.subject import Subject, load_subject, machine_options
from taccl_py.errors import InputError
from taccl_py.report.tables import plain_table, print_table
from taccl_py.units import SizeRange, format_rate, format_size, format_time

if TYPE_CHECKING:
    from taccl_py.simulate.timeline import Timeline

_CURVE_RANGE = SizeRange(1 << 10, 1 << 32)


@click.command(short_help="Replay a schedule, an MSCCL XML file or an MSCCL++ plan for any size.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--size", type=SIZE, multiple=True, help="Size as nccl-tests counts it; may be repeated.")
@click.option("--sizes", type=SIZE_RANGE, default=None, help="Range of sizes, doubling: 1KiB:1GiB.")
@machine_options
@click.option("--curve", is_flag=True, help="Print the time of a schedule as a piecewise-linear function of size.")
@click.option("--no-check", is_flag=True, help="Replay the file without asking the judge whether it is right.")
@json_option
def simulate(file: Path, curve: bool, no_check: bool, as_json: bool, **values: Any) -> None:  # fmt: skip
    """Replay FILE, a schedule.json, an MSCCL XML file or an MSCCL++ plan, event by event under the alpha-beta and port model.

    Bandwidths are counted as nccl-tests does. A schedule carries its topology; an XML file or a plan needs --topology. The file is judged
    first, for the time of a wrong algorithm says little.

    \b
    Examples:
      taccl simulate out/schedule.json --sizes 1KiB:1GiB
      taccl simulate out/algorithm.xml --topology ndv2 --nodes 2 --size 16MB
      taccl simulate plan.json --topology full:2 --size 16MB
      taccl simulate out/schedule.json --curve
    """
    if curve and values["size"]:
        raise InputError(
            "the curve is for a range of sizes; write --sizes instead", path="command line", field="--size"
        )
    subject = load_subject(file, values, judged=not no_check)
    sizes: SizeRange | None = values["sizes"]
    wanted = [*values["size"], *(sizes.doubled() if sizes is not None else ())]
    if wanted and not subject.sized:
        raise InputError("the machine's costs are per chunk of one size; leave --size and --sizes out", path=str(file))
    if curve:
        _print_curve(subject, file, sizes or _CURVE_RANGE, as_json)
        return
    asked: list[int | None] = list(wanted)
    if subject.replay is None:
        raise ValueError("a subject with a machine has no replay")
    timelines = [subject.replay(one) for one in asked or [None]]
    if note := _unused_sizes(subject, timelines):
        click.echo(note, err=True)
    if as_json:
        echo_json({"file": str(file), "results": [_record(timeline) for timeline in timelines]})
        return
    rows = [_row(timeline) for timeline in timelines]
    print_table(plain_table(str(file), ("size", "time", "algbw", "busbw"), rows))


def _unused_sizes(subject: Subject, timelines: Sequence[Timeline]) -> str:
    """A note about sizes at which a runtime would not take the file, and which are predicted all the same."""
    made = subject.program or subject.plan
    if made is None:
        return ""
    sizes = [round(one.size_bytes) for one in timelines if one.size_bytes is not None]
    outside = [size for size in sizes if not made.min_bytes <= size <= made.max_bytes]
    if not outside:
        return ""
    low = format_size(made.min_bytes) if made.min_bytes > 0 else "0"
    return (
        f"note: no runtime takes the file at {', '.join(map(format_size, outside))}, as it declares itself for {low} to "
        f"{format_size(made.max_bytes)}"
    )


def _record(timeline: Timeline) -> dict[str, Any]:
    return {
        "size_bytes": None if timeline.size_bytes is None else round(timeline.size_bytes),
        "time_us": timeline.makespan_us,
        "makespan_us": timeline.makespan_us,
        "algbw_gbps": timeline.algbw_gbps,
        "busbw_gbps": timeline.busbw_gbps,
    }


def _row(timeline: Timeline) -> tuple[str, str, str, str]:
    if timeline.size_bytes is None or timeline.algbw_gbps is None or timeline.busbw_gbps is None:
        return ("one chunk", f"{timeline.makespan_us:.6g} of the profile's unit", "", "")
    return (
        format_size(timeline.size_bytes),
        format_time(timeline.makespan_us),
        format_rate(timeline.algbw_gbps),
        format_rate(timeline.busbw_gbps),
    )


def _print_curve(subject: Subject, file: Path, sizes: SizeRange, as_json: bool) -> None:
    from taccl_py.simulate.cost_curve import cost_curve

    if subject.schedule is None:
        raise InputError(
            "the order of an XML file or a plan is not fixed; the curve is that of a schedule.json", path=str(file)
        )
    if not subject.sized:
        raise InputError("the machine's costs are per chunk of one size; leave --curve out", path=str(file))
    curve = cost_curve(subject.schedule, sizes.low_bytes, sizes.high_bytes)
    if as_json:
        keys = ("from_bytes", "to_bytes", "intercept_us", "us_per_mb")
        pieces = [{key: getattr(piece, key) for key in keys} for piece in curve.pieces]
        echo_json({"file": str(file), "pieces": pieces})
        return
    rows = [
        (format_size(p.from_bytes), format_size(p.to_bytes), f"{p.intercept_us:.6g}", f"{p.us_per_mb:.6g}")
        for p in curve.pieces
    ]
    print_table(plain_table(f"{file}: time = a + b * size", ("from", "to", "a us", "b us/MB"), rows))
