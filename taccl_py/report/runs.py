"""Tables and JSON records of programs that ran on real data, in the columns of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl_py.errors import Violation
from taccl_py.report.tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from taccl_py.execute.plan import ExecutablePlan
    from taccl_py.execute.runs import CallOutcome

_COLUMNS = (
    "size (B)", "count", "type", "redop", "root", "placement", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong",
    "predicted (us)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunRow:
    """An outcome, and the time that the cost model predicts for it on the machine (None: no machine was named)."""

    outcome: CallOutcome
    predicted_us: float | None


def run_record(plan: ExecutablePlan, row: RunRow) -> dict[str, Any]:
    """Return the JSON object of one run; times are microseconds, sizes bytes, rates GB/s."""
    outcome, call = row.outcome, row.outcome.call
    wrong = outcome.first_wrong
    return {
        "size_bytes": outcome.size_bytes,
        "asked_bytes": call.size_bytes,
        "count": outcome.count,
        "type": str(call.data_type),
        "redop": str(call.operator) if plan.reduces else "none",
        "root": plan.root,
        "in_place": call.in_place,
        "time_us": outcome.time_us,
        "algbw_gbps": outcome.algbw_gbps,
        "busbw_gbps": outcome.busbw_gbps,
        "num_wrong": outcome.num_wrong,
        "first_wrong": None if wrong is None else {
            "rank": wrong.rank,
            "buffer": str(wrong.buffer),
            "chunk": wrong.chunk,
            "offset": wrong.offset,
            "found": wrong.found,
            "wanted": wrong.wanted,
        },
        "predicted_us": row.predicted_us,
    }  # fmt: skip


def rounding_notes(plan: ExecutablePlan, records: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on the sizes that were run instead of those that were asked for, each once."""
    chunks = plan.chunks_per_size
    found = {(row["asked_bytes"], row["size_bytes"], row["type"]): None for row in records}
    return [
        f"ran {ran} bytes instead of {asked}, so that each of {chunks} equal chunks holds whole elements of {data_type}"
        for asked, ran, data_type in found
        if asked != ran
    ]


def run_violation(plan: ExecutablePlan, outcome: CallOutcome) -> Violation | None:
    """Error to wrong results, or None."""
    if outcome.first_wrong is None:
        return None
    call = outcome.call
    how = f"{call.data_type} {call.operator}" if plan.reduces else str(call.data_type)
    where = f"{how}, {_placement(in_place=call.in_place)}, {outcome.size_bytes} bytes"
    return Violation(where, "wrong-result", f"{outcome.num_wrong} elements are wrong; {outcome.first_wrong}")


def run_table(title: str, records: Sequence[dict[str, Any]]) -> Table:
    """Table of records."""
    rows = [
        (
            str(record["size_bytes"]), str(record["count"]), record["type"], record["redop"], str(record["root"]),
            _placement(in_place=record["in_place"]), f"{record['time_us']:.2f}", f"{record['algbw_gbps']:.3f}",
            f"{record['busbw_gbps']:.3f}", str(record["num_wrong"]),
            "" if record["predicted_us"] is None else f"{record['predicted_us']:.2f}",
        )
        for record in records
    ]  # fmt: skip
    return plain_table(title, _COLUMNS, rows)


def _placement(*, in_place: bool) -> str:
    return "in place" if in_place else "out of place"
