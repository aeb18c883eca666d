"""Table and JSON record of what differs between two topologies; the same facts in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.report.tables import first_rows_table
from taccl_py.topology.difference import ComparedCosts, Difference

if TYPE_CHECKING:
    from rich.table import Table


def difference_record(found: Sequence[Difference], tolerance: float) -> dict[str, Any]:
    """Return the JSON object of a comparison of topologies; keys are stable. Times are microseconds, beta is us per MB."""
    return {
        "tolerance": tolerance,
        "worse": sum(one.is_worse for one in found),
        "differences": [
            {
                "what": one.what,
                "change": str(one.change),
                "worse": one.is_worse,
                "before": _costs(one.before),
                "after": _costs(one.after),
            }
            for one in found
        ],
    }


def _costs(costs: ComparedCosts | None) -> dict[str, float] | None:
    if costs is None:
        return None
    return {"alpha_us": costs.alpha_us, "beta_us_per_mb": costs.beta_us_per_mb, "latency_us": costs.latency_us}


def difference_table(found: Sequence[Difference], title: str) -> Table:
    """Table of differences, with latencies where there are any."""
    names = {"alpha_us": "alpha us", "beta_us_per_mb": "beta us/MB", "latency_us": "latency us"}
    if not any(costs.latency_us for one in found for costs in (one.before, one.after) if costs is not None):
        del names["latency_us"]
    rows = [
        (
            one.what,
            str(one.change),
            *(
                f"{getattr(costs, name):.4g}" if costs is not None else ""
                for name in names
                for costs in (one.before, one.after)
            ),
        )
        for one in found
    ]
    columns = ("what", "change", *(column for word in names.values() for column in (f"{word} before", "after")))
    return first_rows_table(title, columns, rows)
