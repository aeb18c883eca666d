"""``taccl simulate``: how long a schedule or a program takes, for any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from taccl_py.cli.options import SIZE, SIZE_RANGE, echo_json, json_option
from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.jsonio import read_text
from taccl_py.report.tables import plain_table, print_table
from taccl_py.runtimes import RUNTIMES
from taccl_py.units import BYTES_PER_MB, SizeRange, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    from taccl_py.schedule.ir import Schedule
    from taccl_py.simulate.timeline import Timeline

_CURVE_RANGE = SizeRange(1 << 10, 1 << 32)
# Options about the machine, which a schedule carries itself.
_MACHINE_OPTIONS = ("topology", "nodes", "sketch", "runtime", "instances")


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
    help="Runtime that an XML file is for: its rules, and what its connections hold.",
)
@click.option(
    "--instances",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Instances that an XML file was made with, to find its chunk on a TACCL profile.",
)
@click.option("--curve", is_flag=True, help="Print the time of a schedule as a piecewise-linear function of size.")
@click.option("--no-check", is_flag=True, help="Replay the file without asking the judge whether it is right.")
@json_option
def simulate(file: Path, curve: bool, no_check: bool, as_json: bool, **values: Any) -> None:  # fmt: skip
    """Replay FILE, a schedule.json or an MSCCL XML file, event by event under the alpha-beta and port model.

    Bandwidths are counted as nccl-tests does. A schedule carries its topology; an XML file needs --topology. The file is judged
    first, for the time of a wrong algorithm says little.

    \b
    Examples:
      taccl simulate out/schedule.json --sizes 1KiB:1GiB
      taccl simulate out/algorithm.xml --topology ndv2 --nodes 2 --size 16MB
      taccl simulate out/schedule.json --curve
    """
    if curve and values["size"]:
        raise InputError(
            "the curve is for a range of sizes; write --sizes instead", path="command line", field="--size"
        )
    subject = _load(file, values, judged=not no_check)
    sizes: SizeRange | None = values["sizes"]
    wanted = [*values["size"], *(sizes.doubled() if sizes is not None else ())]
    if wanted and not subject.sized:
        raise InputError("the machine's costs are per chunk of one size; leave --size and --sizes out", path=str(file))
    if curve:
        _print_curve(subject, file, sizes or _CURVE_RANGE, as_json)
        return
    asked: list[int | None] = list(wanted)
    timelines = [subject.replay(one) for one in asked or [None]]
    if as_json:
        echo_json({"file": str(file), "results": [_record(timeline) for timeline in timelines]})
        return
    rows = [_row(timeline) for timeline in timelines]
    print_table(plain_table(str(file), ("size", "time", "algbw", "busbw"), rows))


def _load(file: Path, values: dict[str, Any], *, judged: bool) -> _Subject:
    text = read_text(file)
    if file.suffix == ".json" or text.lstrip()[:1] == "{":
        return _load_schedule(file, text, judged=judged)
    return _load_program(file, text, values, judged=judged)


def _load_schedule(file: Path, text: str, *, judged: bool) -> _Subject:
    from taccl_py.schedule.files import read_schedule
    from taccl_py.simulate.schedule_replay import replay_schedule
    from taccl_py.verify.schedule import judge_schedule

    context = click.get_current_context()
    for name in _MACHINE_OPTIONS:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(
                f"is for XML files, but {file} is a schedule, which carries its machine; leave --{name} out",
                path="command line",
                field=f"--{name}",
            )
    schedule = read_schedule(text, str(file))
    if judged:
        _require_good(file, judge_schedule(schedule))

    def replay(size: int | None) -> Timeline:
        chunk = schedule.chunk_bytes if size is None else schedule.collective.chunk_bytes(size)
        return replay_schedule(schedule, chunk)

    return _Subject(replay, schedule, sized=not schedule.topology.chunk_costs)


def _load_program(file: Path, text: str, values: dict[str, Any], *, judged: bool) -> _Subject:
    from taccl_py.lowering.msccl_xml import parse_xml
    from taccl_py.lowering.program import chunks_of_size
    from taccl_py.pipeline import load_machine
    from taccl_py.simulate.program_replay import replay_program
    from taccl_py.verify.msccl import judge_program

    if not values["topology"]:
        raise InputError("an XML file does not say on which machine it runs; add --topology", path=str(file))
    runtime = RUNTIMES[values["runtime"]]
    program = parse_xml(text, str(file), runtime)
    topology = load_machine(values["topology"], values["sketch"], values["nodes"]).topology
    if values["instances"] != 1 and not topology.chunk_costs:
        raise InputError(
            f"is for TACCL profiles, but {topology.name} has costs by size; leave --instances out",
            path="command line",
            field="--instances",
        )
    if judged:
        _require_good(file, judge_program(text, runtime, kind=program.kind).violations)
    whole, slots = chunks_of_size(program, runtime), runtime.fifo_slots[program.protocol]

    def replay(size: int | None) -> Timeline:
        size_bytes = parse_size("1MB") if size is None else size
        chunk = BYTES_PER_MB / values["instances"] if topology.chunk_costs else size_bytes / whole
        try:
            return replay_program(program, topology, chunk, fifo_slots=slots, chunks_per_size=whole)
        except InputError as error:
            raise InputError(error.what, path=str(file), field="--topology") from None

    return _Subject(replay, None, sized=not topology.chunk_costs)


def _require_good(file: Path, violations: Sequence[Violation]) -> None:
    if violations:
        raise InvalidArtifact(str(file), violations)


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


def _print_curve(subject: _Subject, file: Path, sizes: SizeRange, as_json: bool) -> None:
    from taccl_py.simulate.cost_curve import cost_curve

    if subject.schedule is None:
        raise InputError("the order of an XML file is not fixed; the curve is that of a schedule.json", path=str(file))
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
