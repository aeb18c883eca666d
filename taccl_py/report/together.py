"""Table and JSON record of several process groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.demand import DataDemand
from taccl_py.report.tables import ON_WIRES, plain_table
from taccl_py.units import format_count, format_gap, format_ranks, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from taccl_py.pipeline.process_groups import GroupsSynthesis


def groups_record(
    found: GroupsSynthesis, files: Sequence[str], programs: Sequence[Sequence[dict[str, Any]]] = ()
) -> dict[str, Any]:
    """Return the JSON object of several groups; times are microseconds, sizes bytes.

    Parameters
    ----------
    found
        The groups.
    files
        Names of the files that are written.
    programs
        For every group what came of lowering for the runtimes that take demands; nothing where none is written.
    """
    groups = []
    for number, (task, schedule, alone_us) in enumerate(zip(found.tasks, found.schedules, found.alone_us, strict=True)):
        if isinstance(task.what, DataDemand):
            name, size_bytes = task.what.name, float(task.what.total_bytes)
        else:
            name, size_bytes = str(task.what.kind), float(task.what.size_bytes)
        groups.append(
            {
                "ranks": list(task.ranks),
                "relays": list(found.ranks[number][len(task.ranks) :]),
                "collective": name,
                "size_bytes": size_bytes,
                "makespan_us": schedule.makespan_us,
                "alone_us": alone_us,
                "release_us": task.release_us,
                "messages": len(schedule.messages),
                "programs": list(programs[number]) if programs else [],
            }
        )
    kinds = {str(group["collective"]) for group in groups}
    return {
        "collective": kinds.pop() if len(kinds) == 1 else "several",
        "num_ranks": len({rank for ranks in found.ranks for rank in ranks}),
        "makespan_us": found.makespan_us,
        "one_after_another_us": found.one_after_another_us,
        "bound_us": found.bound.time_us,
        "bound_reason": found.bound.reason,
        "gap": found.gap,
        "groups": groups,
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
    is_even = len({(group["collective"], group["size_bytes"]) for group in result["groups"]}) == 1
    for number, group in enumerate(result["groups"]):
        times = f"{format_time(group['makespan_us'])}, alone {format_time(group['alone_us'])}"
        times += f", from {format_time(group['release_us'])} on" if group["release_us"] else ""
        size = "" if is_even else f" of {format_size(group['size_bytes'])}"
        what = "" if is_even else f"{group['collective']}{size}, "
        relays = f", relayed by {format_ranks(group['relays'])}" if group["relays"] else ""
        rows.append((f"group {number}", f"{times}  ({what}ranks {format_ranks(group['ranks'])}{relays})"))
    size = result["groups"][0]["size_bytes"]
    what = result["collective"] if result["collective"] != "several" else "collectives"
    title = f"{what} of {format_count(len(result['groups']), 'group')} at once"
    title += f", {format_size(size)} each; {ON_WIRES}" if is_even else f"; {ON_WIRES}"
    return plain_table(title, ("", "together"), rows)
