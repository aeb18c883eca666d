"""Table and JSON record of group schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.report.tables import ON_WIRES, machine_facts, plain_table
from taccl_py.schedule.ir import Message
from taccl_py.units import algbw_gbps, format_gap, format_rate, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from taccl_py.pipeline.search import GroupSynthesis

# Keys of ``stage_seconds`` that stay as they are in JSON, in the words of the tables.
_STAGES = {"judge": "verify"}


def group_record(synthesis: GroupSynthesis) -> dict[str, Any]:
    """Return the JSON object of a group schedule; times are microseconds, rates GB/s."""
    schedule, topology = synthesis.schedule, synthesis.schedule.topology
    return {
        "collective": str(schedule.kind),
        **machine_facts(topology),
        "chunks_per_rank": schedule.chunks_per_rank,
        "size_bytes": round(schedule.size_bytes),
        "status": schedule.origin.status if schedule.origin else "",
        "makespan_us": schedule.makespan_us,
        "bound_us": synthesis.bound.time_us,
        "bound_reason": synthesis.bound.reason,
        "gap": synthesis.gap,
        "algbw_gbps": algbw_gbps(schedule.size_bytes, schedule.makespan_us),
        "busbw_gbps": schedule.busbw_gbps,
        "roots": list(schedule.roots),
        "base_messages": len(schedule.base),
        "messages": schedule.num_messages,
        "stage_seconds": dict(synthesis.stage_seconds),
    }


def group_table(result: dict[str, Any]) -> Table:
    """Table of a record."""
    seconds = ", ".join(
        f"{_STAGES.get(stage, stage)} {time_s:.2f}" for stage, time_s in result["stage_seconds"].items()
    )
    rows = [
        ("predicted time", format_time(result["makespan_us"])),
        ("lower bound", f"{format_time(result['bound_us'])}  ({result['bound_reason']})"),
        ("gap", f"{format_gap(result['gap'])}  ({result['status']})"),
        ("algbw", format_rate(result["algbw_gbps"])),
        ("busbw", format_rate(result["busbw_gbps"])),
        ("messages", f"{result['base_messages']} of {_roots(result['roots'])}, {result['messages']} in all"),
        ("chunks", f"{result['chunks_per_rank']} per rank"),
        *[("search ended", result["ended"])] * ("ended" in result),
        ("seconds", seconds),
    ]
    size = format_size(result["size_bytes"])
    title = f"{result['collective']} on {result['topology']}, {result['num_ranks']} ranks, {size}; {ON_WIRES}"
    return plain_table(
        title, ("", "one root of each role, replicated" if len(result["roots"]) > 1 else "one root, replicated"), rows
    )


def _roots(roots: Sequence[int]) -> str:
    if len(roots) == 1:
        return "rank 0"
    return f"{len(roots)} ranks ({', '.join(map(str, roots[:8]))}{', ...' if len(roots) > 8 else ''})"


def part_record(rank: int, sent: Sequence[Message], received: Sequence[Message]) -> dict[str, Any]:
    """Record of one rank: the messages that it sends and receives, in order of time."""
    return {
        "rank": rank,
        "sends": [_message(message) for message in sent],
        "receives": [_message(message) for message in received],
    }


def _message(message: Message) -> dict[str, Any]:
    return {
        "link": message.link,
        "chunks": list(message.chunks),
        "start_us": message.start_us,
        "end_us": message.end_us,
        "reduce": message.reduce,
    }
