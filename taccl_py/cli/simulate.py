"""``taccl simulate``: how long a schedule or a program takes, for any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.api.subject import runtime_times
from taccl_py.cli.notes import undeclared_note
from taccl_py.cli.options import (
    SIZE,
    SIZE_RANGE,
    chosen_profile,
    echo_json,
    json_option,
    runtime_profile_option,
)
from taccl_py.cli.subject import GivenFile, load_subject, machine_options
from taccl_py.errors import InputError
from taccl_py.report.tables import plain_table, print_table
from taccl_py.units import SizeRange, algbw_gbps, format_rate, format_size, format_time

if TYPE_CHECKING:
    from taccl_py.profiles.model import RuntimeProfile
    from taccl_py.simulate.timeline import Timeline

_CURVE_RANGE = SizeRange(1 << 10, 1 << 32)


@dataclass(frozen=True)
class _RuntimeTime:
    """Times of a program or a plan under a runtime profile, by size; `time_us` is None under the neutral one."""

    profile: RuntimeProfile
    time_us: Callable[[float], float] | None


@click.command(short_help="Replay a schedule, an MSCCL XML file or an MSCCL++ plan for any size.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--size",
    type=SIZE,
    multiple=True,
    help="Size as nccl-tests counts it; may be repeated. Default: the schedule's own, or 1MB, or the nearest that the file declares itself for.",
)
@click.option("--sizes", type=SIZE_RANGE, default=None, help="Range of sizes, doubling: 1KiB:1GiB.")
@machine_options
@runtime_profile_option
@click.option("--curve", is_flag=True, help="Print the time of a schedule as a piecewise-linear function of size.")
@click.option("--no-check", is_flag=True, help="Replay the file without asking the verifier whether it is right.")
@json_option
def simulate(file: Path, curve: bool, no_check: bool, as_json: bool, **values: Any) -> None:  # fmt: skip
    """Replay FILE, a schedule.json, an MSCCL XML file or an MSCCL++ plan, event by event under the alpha-beta and port model.

    Bandwidths are counted as nccl-tests does. A schedule carries its topology; an XML file or a plan needs --topology. The file is verified
    first, for the time of a wrong algorithm says little.

    The threadblocks of an XML file or a plan are also replayed under a runtime profile, which says what launch, protocols and
    threadblocks cost on the machine's GPUs. A schedule has no threadblocks: its time is that of links and ports alone.

    \b
    Examples:
      taccl simulate out/schedule.json --sizes 1KiB:1GiB
      taccl simulate out/algorithm.xml --topology ndv2 --nodes 2 --size 16MB
      taccl simulate plan.json --topology full:2 --size 16MB --runtime-profile mscclpp-h100
      taccl simulate out/schedule.json --curve
    """
    from taccl_py.api.prediction import require_threadblocks

    if curve and values["size"]:
        raise InputError(
            "the curve is for a range of sizes; write --sizes instead", path="command line", field="--size"
        )
    subject = load_subject(file, values, verified=not no_check)
    if subject.schedule is not None or subject.demand is not None:
        require_threadblocks(str(file), values["runtime_profile"])
    sizes: SizeRange | None = values["sizes"]
    wanted = [*values["size"], *(sizes.doubled() if sizes is not None else ())]
    if wanted and subject.why_one_size:
        raise InputError(f"{subject.why_one_size}; leave --size and --sizes out", path=str(file))
    if curve:
        _print_curve(subject, file, sizes or _CURVE_RANGE, as_json)
        return
    asked: list[int | None] = list(wanted)
    if subject.replay is None:
        raise ValueError("a subject with a machine has no replay")
    timelines = [subject.replay(one) for one in asked or [None]]
    runtime = _runtime(subject, values)
    if note := _unused_sizes(subject, timelines):
        click.echo(note, err=True)
    if as_json:
        echo_json({"file": str(file), "results": [_record(timeline, runtime) for timeline in timelines]})
        return
    timed = runtime is not None and runtime.time_us is not None
    columns = ("size", "links and ports", "runtime", "algbw", "busbw") if timed else ("size", "time", "algbw", "busbw")
    rows = [_row(timeline, runtime) for timeline in timelines]
    print_table(plain_table(_title(file, runtime), columns, rows))


def _runtime(subject: GivenFile, values: dict[str, Any]) -> _RuntimeTime | None:
    """Times under the profile that is asked for; None for a schedule."""
    topology = subject.topology
    if subject.schedule is not None or subject.demand is not None or topology is None:
        return None
    profile = chosen_profile(values["runtime_profile"], subject.runtime, topology)
    return _RuntimeTime(profile, runtime_times(subject, profile))


def _title(file: Path, runtime: _RuntimeTime | None) -> str:
    """Title of the table, which says what the times are of."""
    if runtime is None:
        return f"{file}: links and ports alone, a schedule has no threadblocks"
    return f"{file}: runtime profile {runtime.profile.label}"


def _unused_sizes(subject: GivenFile, timelines: Sequence[Timeline]) -> str:
    """A note about sizes at which a runtime would not take the file, and which are predicted all the same."""
    made = subject.program or subject.plan
    if made is None or subject.asked is not None:
        return ""
    return undeclared_note([round(one.size_bytes) for one in timelines], made)


def _record(timeline: Timeline, runtime: _RuntimeTime | None) -> dict[str, Any]:
    runtime_us = _runtime_us(timeline, runtime)
    algbw = None if runtime_us is None else algbw_gbps(timeline.size_bytes, runtime_us)
    return {
        "size_bytes": round(timeline.size_bytes),
        "time_us": timeline.makespan_us,
        "makespan_us": timeline.makespan_us,
        "algbw_gbps": timeline.algbw_gbps,
        "busbw_gbps": timeline.busbw_gbps,
        "runtime_profile": None if runtime is None else runtime.profile.name,
        "runtime_measured": None if runtime is None else runtime.profile.is_measured,
        "runtime_us": runtime_us,
        "runtime_algbw_gbps": algbw,
        "runtime_busbw_gbps": None if algbw is None else algbw * timeline.busbw_factor,
    }


def _runtime_us(timeline: Timeline, runtime: _RuntimeTime | None) -> float | None:
    """Time under the profile; None for a schedule."""
    if runtime is None:
        return None
    return timeline.makespan_us if runtime.time_us is None else runtime.time_us(timeline.size_bytes)


def _row(timeline: Timeline, runtime: _RuntimeTime | None) -> tuple[str, ...]:
    if timeline.algbw_gbps is None or timeline.busbw_gbps is None:
        return (format_size(timeline.size_bytes), format_time(timeline.makespan_us), "", "")
    row = (format_size(timeline.size_bytes), format_time(timeline.makespan_us))
    runtime_us = None if runtime is None or runtime.time_us is None else _runtime_us(timeline, runtime)
    if runtime_us is None:
        return (*row, format_rate(timeline.algbw_gbps), format_rate(timeline.busbw_gbps))
    algbw = algbw_gbps(timeline.size_bytes, runtime_us)
    return (*row, format_time(runtime_us), format_rate(algbw), format_rate(algbw * timeline.busbw_factor))


def _print_curve(subject: GivenFile, file: Path, sizes: SizeRange, as_json: bool) -> None:
    from taccl_py.simulate.cost_curve import cost_curve

    if subject.schedule is None:
        is_demand = subject.demand is not None
        why = "a demand has its own sizes" if is_demand else "the order of an XML file or a plan is not fixed"
        raise InputError(f"{why}; the curve is that of a collective's schedule.json", path=str(file))
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
