"""Table and JSON record of lower bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.collective import Collective
from taccl_py.report.tables import machine_facts, plain_table
from taccl_py.synthesis.bounds import DemandBounds, helpful_switches
from taccl_py.synthesis.engine import Demand
from taccl_py.units import algbw_gbps, format_rate, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from taccl_py.synthesis.bounds.runtime import RuntimeBounds

_COLUMNS = ("size", "bound", "algbw <=", "busbw <=", "latency", "fan-out", "crossing", "bandwidth", "what binds")


def bounds_record(
    demand: Demand,
    bounds: DemandBounds,
    sizes: Sequence[float],
    *,
    by_switch: bool = False,
    runtime: RuntimeBounds | None = None,
) -> dict[str, Any]:
    """Return the JSON object of the bounds for some sizes; times are microseconds, rates GB/s.

    `switch` says whether they hold for algorithms that let switches multicast and add up (true), or for messages alone (false);
    it is null where no switch can. With bounds under a runtime profile, `runtime`, there are `runtime_bound_us` and its reason beside
    those on links and ports.
    """
    topology = demand.topology
    rows = []
    for size_bytes in sizes:
        found = bounds.by_sort(size_bytes)
        best, bandwidth, crossing = found.best, found.bandwidth, found.crossing
        row: dict[str, Any] = {
            "size_bytes": round(size_bytes),
            "bound_us": best.time_us,
            "bound_reason": best.reason,
            "algbw_gbps": None,
            "busbw_gbps": None,
            "latency_us": bounds.latency.time_us,
            "latency_reason": bounds.latency.reason,
            "fan_out_us": bounds.spread.time_us,
            "fan_out_reason": bounds.spread.reason,
            "crossing_us": crossing.time_us,
            "crossing_reason": crossing.reason,
            "bandwidth_us": bandwidth.time_us,
            "bandwidth_reason": bandwidth.reason,
        }
        if best.time_us > 0:
            row["algbw_gbps"] = algbw_gbps(size_bytes, best.time_us)
            # The factor depends on the kind and the number of ranks only.
            factor = Collective(demand.kind, topology.num_ranks, root=demand.root).busbw_factor
            row["busbw_gbps"] = row["algbw_gbps"] * factor
        if runtime is not None:
            under = runtime.at(size_bytes)
            row |= {"runtime_bound_us": under.time_us, "runtime_bound_reason": under.reason}
        rows.append(row)
    profile = (
        {}
        if runtime is None
        else {"runtime_profile": runtime.profile.name, "runtime_evidence": runtime.profile.evidence}
    )
    return {
        "collective": str(demand.kind),
        **machine_facts(topology),
        "root": demand.root,
        "switch": by_switch if helpful_switches(topology, demand.kind) else None,
        **profile,
        "results": rows,
    }


def bounds_table(result: dict[str, Any]) -> Table:
    """Table of a record."""
    claim = {
        None: "no algorithm is faster",
        False: "for algorithms that only send messages (--switch: for any)",
        True: "no algorithm is faster, switches included",
    }[result["switch"]]
    title = f"{result['collective']} on {result['topology']}, {result['num_ranks']} ranks: {claim}"
    if "runtime_profile" not in result:
        return plain_table(f"{title}; links and ports alone", _COLUMNS, [_row(row) for row in result["results"]])
    title += f"; runtime bound: profile {result['runtime_profile']}, {result['runtime_evidence']}"
    columns = (*_COLUMNS[:2], "runtime bound", *_COLUMNS[2:])
    rows = [
        [*cells[:2], format_time(row["runtime_bound_us"]), *cells[2:]]
        for row in result["results"]
        for cells in [_row(row)]
    ]
    return plain_table(title, columns, rows)


def _row(row: dict[str, Any]) -> list[str]:
    return [
        format_size(row["size_bytes"]),
        format_time(row["bound_us"]),
        *("" if row[rate] is None else format_rate(row[rate]) for rate in ("algbw_gbps", "busbw_gbps")),
        *(format_time(row[part]) for part in ("latency_us", "fan_out_us", "crossing_us", "bandwidth_us")),
        row["bound_reason"],
    ]
