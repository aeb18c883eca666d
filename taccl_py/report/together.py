"""Table and JSON record of several process groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.report.tables import ON_WIRES, plain_table
from taccl_py.units import format_gap, format_ranks, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from taccl_py.pipeline.process_groups import GroupsSynthesis


def groups_record(found: GroupsSynthesis, files: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object of several groups; times are microseconds, sizes bytes."""
    rows = zip(found.groups, found.schedules, found.alone_us, strict=True)
    return {
        "collective": str(found.schedules[0].collective.kind),
        "num_ranks": sum(map(len, found.groups)),
        "makespan_us": found.makespan_us,
        "one_after_another_us": sum(found.alone_us),
        "bound_us": found.bound.time_us,
        "bound_reason": found.bound.reason,
        "gap": found.gap,
        "groups": [
            {
                "ranks": list(ranks),
                "size_bytes": schedule.size_bytes,
                "makespan_us": schedule.makespan_us,
                "alone_us": alone_us,
                "messages": len(schedule.messages),
            }
            for ranks, schedule, alone_us in rows
        ],
        "files": list(files),
    }


def groups_table(result: dict[str, Any]) -> Table:
    """Table of a record."""
    rows = [
        ("all done", format_time(result["makespan_us"])),
        ("one after another", format_time(result["one_after_another_us"])),
        ("lower bound", f"{format_time(result['bound_us'])}  ({result['bound_reason']})"),
        ("gap", format_gap(result["gap"])),
    ]
    if "ended" in result:
        rows.append(("search ended", result["ended"]))
    for number, group in enumerate(result["groups"]):
        times = f"{format_time(group['makespan_us'])}, alone {format_time(group['alone_us'])}"
        rows.append((f"group {number}", f"{times}  (ranks {format_ranks(group['ranks'])})"))
    size = result["groups"][0]["size_bytes"]
    title = f"{result['collective']} of {len(result['groups'])} groups at once"
    title += "" if size is None else f", {format_size(size)} each; {ON_WIRES}"
    return plain_table(title, ("", "together"), rows)
