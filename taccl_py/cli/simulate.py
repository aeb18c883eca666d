"""``taccl simulate``: how long a schedule or a program takes, for any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import SIZE, SIZE_RANGE, echo_json, json_option
from taccl_py.errors import InputError
from taccl_py.jsonio import read_text
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.report.tables import plain_table, print_table
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.files import read_schedule
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.simulate.program_replay import replay_program
from taccl_py.simulate.schedule_replay import replay_schedule
from taccl_py.simulate.timeline import Timeline
from taccl_py.units import BYTES_PER_MB, SizeRange, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    from taccl_py.schedule.ir import Schedule


@dataclass(frozen=True)
class _Subject:
    """Something that can be replayed at a size (None: at the size that it was made for)."""

    replay: Callable[[int | None], Timeline]
    schedule: Schedule | None
    sized: bool


@click.command(short_help="Replay a schedule or an MSCCL XML file for any size.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--size", type=SIZE, multiple=True, help="Size as nccl-tests counts it; may be repeated.")
@click.option("--sizes", type=SIZE_RANGE, default=None, help="Range of sizes, doubling: 1KiB:1GiB.")
@click.option("--topology", default="", help="Topology for an XML file: name, formula or file.")
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of that topology.")
@click.option("--sketch", default="", help="Sketch that completes a TACCL profile.")
@click.option(
    "--runtime",
    type=click.Choice(list(RUNTIMES)),
    default="executor",
    show_default=True,
    help="Runtime whose connection buffers an XML file gets.",
)
@click.option(
    "--instances",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Instances that an XML file was made with, to find its chunk on a TACCL profile.",
)
@click.option("--curve", is_flag=True, help="Print the time of a schedule as a piecewise-linear function of size.")
@json_option
def simulate(file: Path, size: tuple[int, ...], sizes: SizeRange | None, curve: bool, as_json: bool, **where: Any) -> None:  # fmt: skip
    """Replay FILE, a schedule.json or an MSCCL XML file, event by event under the alpha-beta and port model.

    Bandwidths are counted as nccl-tests does. A schedule carries its topology; an XML file needs --topology.

    \b
    Examples:
      taccl simulate out/schedule.json --sizes 1KiB:1GiB
      taccl simulate out/algorithm.xml --topology ndv2 --nodes 2 --size 16MB
      taccl simulate out/schedule.json --curve
    """
    subject = _load(file, where)
    wanted = _sizes(size, sizes)
    if wanted and not subject.sized:
        raise InputError("the machine's costs are per chunk of one size; leave --size and --sizes out", path=str(file))
    if curve:
        _print_curve(subject, file, wanted, as_json)
        return
    asked: list[int | None] = list(wanted)
    timelines = [subject.replay(one) for one in asked or [None]]
    if as_json:
        echo_json({"file": str(file), "results": [_record(timeline) for timeline in timelines]})
        return
    rows = [_row(timeline) for timeline in timelines]
    print_table(plain_table(str(file), ("size", "time", "algbw", "busbw"), rows))


def _load(file: Path, where: dict[str, Any]) -> _Subject:
    text = read_text(file)
    if file.suffix == ".json" or text.lstrip()[:1] == "{":
        schedule = read_schedule(text, str(file))

        def replay(size: int | None) -> Timeline:
            chunk = schedule.chunk_bytes if size is None else schedule.collective.chunk_bytes(size)
            return replay_schedule(schedule, chunk)

        return _Subject(replay, schedule, sized=not schedule.topology.chunk_costs)
    return _load_program(file, text, where)


def _load_program(file: Path, text: str, where: dict[str, Any]) -> _Subject:
    from taccl_py.collective import Kind
    from taccl_py.pipeline import load_machine

    if not where["topology"]:
        raise InputError("an XML file does not say on which machine it runs; add --topology", path=str(file))
    runtime = RUNTIMES[where["runtime"]]
    program = parse_xml(text, str(file), runtime)
    topology = load_machine(where["topology"], where["sketch"], where["nodes"]).topology
    whole = program.num_chunks_per_loop
    if program.kind in (Kind.GATHER, Kind.SCATTER) and runtime.name != "legacy":
        whole *= len(program.gpus)

    def replay(size: int | None) -> Timeline:
        if topology.chunk_costs:
            chunk = BYTES_PER_MB / where["instances"]
        else:
            chunk = (parse_size("1MB") if size is None else size) / whole
        return replay_program(program, topology, chunk, fifo_slots=runtime.fifo_slots[program.protocol])

    return _Subject(replay, None, sized=not topology.chunk_costs)


def _sizes(size: tuple[int, ...], sizes: SizeRange | None) -> list[int]:
    wanted = list(size)
    if sizes is not None:
        current = sizes.low_bytes
        while current <= sizes.high_bytes:
            wanted.append(current)
            current *= 2
    return wanted


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


def _print_curve(subject: _Subject, file: Path, wanted: list[int], as_json: bool) -> None:
    if subject.schedule is None:
        raise InputError("the order of an XML file is not fixed; the curve is that of a schedule.json", path=str(file))
    low, high = (min(wanted), max(wanted)) if len(wanted) > 1 else (parse_size("1KiB"), parse_size("4GiB"))
    curve = cost_curve(subject.schedule, low, high)
    if as_json:
        pieces = [
            {
                "from_bytes": p.from_bytes,
                "to_bytes": p.to_bytes,
                "intercept_us": p.intercept_us,
                "us_per_mb": p.us_per_mb,
            }
            for p in curve.pieces
        ]
        echo_json({"file": str(file), "pieces": pieces})
        return
    rows = [
        (format_size(p.from_bytes), format_size(p.to_bytes), f"{p.intercept_us:.6g}", f"{p.us_per_mb:.6g}")
        for p in curve.pieces
    ]
    print_table(plain_table("time = a + b * size", ("from", "to", "a us", "b us/MB"), rows))
