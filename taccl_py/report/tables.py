"""Tables and JSON records of results; the same facts in both."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.answer import Answer, ScopedBound
from taccl_py.collective import busbw_factor, parse_kind
from taccl_py.sketch.files import sketch_to_json
from taccl_py.units import algbw_gbps, format_count, format_gap, format_rate, format_size, format_time, relative_gap

if TYPE_CHECKING:
    from rich.table import Column, Table

    from taccl_py.pipeline.deliver import Lowered
    from taccl_py.synthesis.suggest import Suggestion
    from taccl_py.topology.model import Topology

# Formats of files that tell of schedules and are none: of one answer, of a range of sizes, of a front, of an answer in a catalogue.
SUMMARY_FORMAT, PORTFOLIO_FORMAT, FRONT_FORMAT, RESULT_FORMAT = (
    "taccl-summary", "taccl-portfolio", "taccl-front", "taccl-result",
)  # fmt: skip
# Chunks in all messages up to which steps are counted, for which each of them is looked at.
_MOST_COUNTED = 20_000_000
# Cells of more characters are texts, which may take several lines.
_LONGEST_FIGURE = 24
# Rows of a table of many like ones.
_MOST_ROWS = 64
# Wider than any table.
_ANY_WIDTH = 100_000
INDEX_FORMATS = (SUMMARY_FORMAT, PORTFOLIO_FORMAT, FRONT_FORMAT, RESULT_FORMAT)
# Summary in the folder of one answer, and of one in a catalogue.
SUMMARY_FILE, RESULT_FILE = "summary.json", "result.json"


def machine_facts(topology: Topology) -> dict[str, Any]:
    """Name and size of a machine, in the JSON objects of results on it."""
    return {"topology": topology.name, "num_ranks": topology.num_ranks, "num_nodes": topology.num_nodes}


def record(answer: Answer, lowered: Lowered | None, files: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object of an answer; keys are stable, other programs rely on them.

    Times are microseconds, sizes bytes, rates GB/s (1 GB = 10^9 bytes). Steps of a schedule of
    millions of messages are not counted: null.
    """
    schedule, provenance, own = answer.schedule, answer.provenance, answer.own_bound
    collective, topology = schedule.collective, schedule.topology
    moved = sum(len(message.chunks) for message in schedule.messages)
    result: dict[str, Any] = {
        "collective": str(collective.kind),
        **machine_facts(topology),
        "root": collective.root,
        "chunks_per_rank": collective.chunks_per_rank,
        "sketch": provenance.sketch,
        "engine": provenance.engine,
        "found_by": provenance.found_by,
        "solver": provenance.solver,
        "seed": provenance.seed,
        "status": str(answer.proof),
        "ended": str(answer.ended),
        "makespan_us": schedule.makespan_us,
        "bound_us": own.time_us,
        "bound_reason": own.reason,
        "gap": relative_gap(schedule.makespan_us, own.time_us),
        "bounds": bounds_json(answer.wire_bounds, schedule.makespan_us),
        "size_bytes": round(schedule.size_bytes),
        "algbw_gbps": schedule.algbw_gbps,
        "busbw_gbps": schedule.busbw_gbps,
        "messages": len(schedule.messages),
        "steps": schedule.num_steps if moved <= _MOST_COUNTED else None,
    }
    if lowered is not None:
        from taccl_py.lowering.program import count_divisor

        program = lowered.program
        result |= {
            "replay_us": lowered.replay.makespan_us,
            "threadblocks": program.num_threadblocks,
            "threadblock_steps": program.num_steps,
            "channels": program.num_channels,
            "protocol": str(program.protocol),
            "in_place": program.in_place,
            "out_of_place": program.out_of_place,
            "min_bytes": program.min_bytes,
            "max_bytes": program.max_bytes,
            "count_divisor": count_divisor(program),
            "scratch_chunks": max(gpu.scratch_chunks for gpu in program.gpus),
        }
    return result | {"files": list(files)}


def timed(result: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """Return a record with the wall-clock times of the solvers, which files leave out to stay the same from run to run."""
    seconds = {name: round(value, 3) for name, value in answer.stage_seconds.items()}
    return result | {"solver_seconds": round(sum(answer.stage_seconds.values()), 3), "stage_seconds": seconds}


# Said of times that no runtime profile is in.
ON_WIRES = "links and ports alone"


def summary_table(result: dict[str, Any]) -> Table:
    """Table of a timed record."""
    what = f"{result['collective']} on {result['topology']}, {result['num_ranks']} ranks, {format_size(result['size_bytes'])}"
    return fact_table(what, _rows(result))


def fact_table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """Table of facts, a name and a text each."""
    from rich.table import Table

    table = Table(title=title, show_header=False, title_justify="left", min_width=46)
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    return table


def bounds_json(bounds: Sequence[ScopedBound], time_us: float) -> list[dict[str, Any]]:
    """JSON of bounds, each with the distance of a time from it."""
    return [
        {
            "scope": str(bound.scope),
            "time_us": bound.time_us,
            "reason": bound.reason,
            "holds_for": bound.holds_for,
            "gap": relative_gap(time_us, bound.time_us),
        }
        for bound in bounds
    ]


def _bound_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Every bound with the schedules that it holds for, and the gaps."""
    rows = [
        (f"bound ({each['holds_for']})", f"{format_time(each['time_us'])}  ({each['reason']})")
        for each in result["bounds"]
    ]
    gaps = [f"{format_gap(each['gap'])} to {each['holds_for']}" for each in result["bounds"]]
    return [*rows, ("gap", f"{', '.join(gaps)}  ({result['status']})")]


def _runtime_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows on the time under a runtime profile; none without one."""
    if "runtime_us" not in result:
        return []
    size_bytes, time_us, bound_us = result["size_bytes"], result["runtime_us"], result["runtime_bound_us"]
    rate = algbw_gbps(size_bytes, time_us)
    return [
        (
            "runtime time",
            f"{format_time(time_us)}  (profile {result['runtime_profile']}, {result['runtime_evidence']})",
        ),
        ("runtime bound", f"{format_time(bound_us)}  ({result['runtime_bound_reason']})"),
        ("runtime gap", format_gap(time_us / bound_us - 1)),
        ("algbw", format_rate(rate)),
        ("busbw", format_rate(rate * busbw_factor(parse_kind(result["collective"]), result["num_ranks"]))),
    ]


def _setting(result: dict[str, Any]) -> str:
    instances = result.get("instances", 1)
    return f"protocol {result['protocol']}" + (f", {instances} instances" if instances > 1 else "")


def _selectable(result: dict[str, Any]) -> str:
    """Sizes at which a runtime may choose the file."""
    sizes = f"{format_size(result['min_bytes']) if result['min_bytes'] else 0} to {format_size(result['max_bytes'])}"
    if "unit_bytes" in result:
        return f"{sizes}, in multiples of {result['unit_bytes']} bytes"
    divisor = result["count_divisor"]
    return sizes if divisor == 1 else f"{sizes}, for counts that {divisor} divides"


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    rows = _runtime_rows(result)
    if not rows and "runtime_profile" in result:
        note = f": {result['runtime_note']}" if "runtime_note" in result else ""
        rows = [("runtime profile", f"{result['runtime_profile']}, {ON_WIRES}{note}")]
    # The replay on links and ports charges alpha for every instance, which says nothing where instances were chosen otherwise.
    is_timed = "runtime_us" in result
    rows.append(
        ("predicted time on links and ports" if is_timed else "predicted time", format_time(result["makespan_us"]))
    )
    if "replay_us" in result and not is_timed:
        rows.append(("plan replayed" if "unit_bytes" in result else "XML replayed", format_time(result["replay_us"])))
    rows += _bound_rows(result)
    if "runtime_us" not in result:
        rows += [("algbw", format_rate(result["algbw_gbps"])), ("busbw", format_rate(result["busbw_gbps"]))]
    steps = "not counted" if result["steps"] is None else result["steps"]
    rows.append(("steps", f"{steps}  ({result['messages']} messages)"))
    if "threadblocks" in result:
        buffers = [name for name, on in (("in", result["in_place"]), ("out of", result["out_of_place"])) if on]
        rows += [
            (
                "threadblocks",
                f"{result['threadblocks']} a GPU, at most {format_count(result['threadblock_steps'], 'step')} each",
            ),
            ("channels", f"{result['channels']}, {_setting(result)}, {' and '.join(buffers)} place"),
            ("selectable", _selectable(result)),
        ]
    if "ended" in result:
        rows.append(("search ended", result["ended"]))
    if result.get("found_by", result["engine"]) != result["engine"]:
        rows.append(("found by", f"engine {result['found_by']} (--engine {result['engine']} is a race)"))
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in result.get("stage_seconds", {}).items())
    if stages:
        rows.append(("solver", f"{result['solver']}: {result['solver_seconds']:.2f} s  ({stages})"))
    return rows


def suggestion_record(suggestion: Suggestion) -> dict[str, Any]:
    """Return the JSON object of a suggested sketch; times are microseconds."""
    schedule = suggestion.synthesis.schedule
    return {
        "makespan_us": schedule.makespan_us,
        "algbw_gbps": schedule.algbw_gbps,
        "status": str(suggestion.synthesis.proof),
        "sketch": sketch_to_json(suggestion.sketch),
    }


def suggestion_table(suggestions: Sequence[Suggestion]) -> Table:
    """Table of suggested sketches in the order given."""
    rows = []
    for one in suggestions:
        schedule = one.synthesis.schedule
        rate = format_rate(schedule.algbw_gbps) if schedule.algbw_gbps is not None else ""
        count = str(one.sketch.chunks_per_rank)
        rows.append([one.sketch.name, format_time(schedule.makespan_us), rate, count, one.sketch.purpose])
    return plain_table("Sketches by predicted time", ("sketch", "time", "algbw", "chunks", "what it does"), rows)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Table with a header; numbers to the right is the caller's business."""
    from rich.table import Table

    # A title is broken where the table ends; a file's name should not be.
    table = Table(title=title, title_justify="left", min_width=len(title))
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table


def first_rows_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Table of the first rows, whose title says if there are more, which the command's ``--json`` has."""
    more = f"{title}, {_MOST_ROWS} of {len(rows)} rows; --json shows all" if len(rows) > _MOST_ROWS else title
    return plain_table(more, columns, rows[:_MOST_ROWS])


def print_table(table: Table) -> None:
    """Print a table on stdout, as wide as its content where stdout is not a terminal.

    On a terminal that is too narrow headers and long texts take several lines; where that is not enough the table is wider than
    the terminal, for a figure that is cut short is a wrong one.
    """
    from rich.console import Console

    # Names are the user's: what looks like rich's mark-up in them is none.
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=200, highlight=False, markup=False, emoji=False)
    unlimited = console.options.update(max_width=_ANY_WIDTH)
    if table.min_width is not None:  # for the sake of the title, which may be broken
        table.min_width = min(table.min_width, console.width)
    if console.measure(table, options=unlimited).maximum > console.width:
        for column in table.columns:
            _narrow(column)
        console.width = max(console.width, console.measure(table, options=unlimited).minimum)
    # Written here, since rich has an exit code of its own for a reader that has gone away.
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write(captured.get())


def _narrow(column: Column) -> None:
    """Let a column's header take several lines, and its cells if they are texts, but not if they are figures or names."""
    from rich.cells import cell_len

    longest = max((cell_len(str(cell)) for cell in column.cells), default=0)
    if longest > _LONGEST_FIGURE:
        column.min_width, column.overflow = _LONGEST_FIGURE, "fold"
    else:
        column.width = max(longest, *map(cell_len, [*str(column.header).split(), ""]))
