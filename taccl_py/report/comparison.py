"""Table and JSON record of a comparison; the same facts in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl_py.baselines.compare import ComparedSize, Comparison
from taccl_py.baselines.library import Family
from taccl_py.report.tables import plain_table
from taccl_py.units import format_gap, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON object of a comparison; keys are stable. Times are microseconds, sizes bytes, rates GB/s.

    ``speedup`` is over the fastest baseline, ``speedup_nccl`` over the schedule of NCCL's choice; both are null where there is
    none. ``nccl.expected_us`` is NCCL's own expectation, which is on a scale of its own.
    """
    demand, job = comparison.portfolio.demand, comparison.job
    tuner = None
    if job is not None:
        tuner = {
            "gpu": str(job.gpu), "channels": job.graph.channels, "intra_gbps": job.graph.intra_gbps,
            "inter_gbps": job.graph.inter_gbps, "nvls": job.nvls is not None, "amd_cpu": job.amd_cpu,
        }  # fmt: skip
    return {
        "collective": str(demand.kind),
        "topology": demand.topology.name,
        "num_ranks": demand.topology.num_ranks,
        "num_nodes": demand.topology.num_nodes,
        "root": demand.root,
        "sketch": demand.sketch.name if demand.sketch else "",
        "nccl_tuner": tuner,
        "sizes": [_size(row) for row in comparison.rows],
    }


def _size(row: ComparedSize) -> dict[str, Any]:
    best, chosen = row.best, row.chosen
    nccl: dict[str, Any] | None = None
    if row.is_direct:
        nccl = {"algorithm": "send and receive", "protocol": "", "expected_us": None}
    if row.nccl is not None:
        nccl = {
            "algorithm": str(row.nccl.algorithm), "protocol": str(row.nccl.protocol), "expected_us": row.nccl.time_us,
        }  # fmt: skip
    return {
        "size_bytes": row.size_bytes,
        "ours_us": row.ours_us,
        "engine": row.engine,
        "bound_us": row.bound_us,
        "gap": row.gap,
        "baselines": {str(each.family): {"time_us": each.time_us, "variant": each.variant} for each in row.baselines},
        "nccl": nccl,
        "speedup": best.time_us / row.ours_us if best is not None and row.ours_us > 0 else None,
        "speedup_nccl": chosen.time_us / row.ours_us if chosen is not None and row.ours_us > 0 else None,
    }


def comparison_table(result: dict[str, Any]) -> Table:
    """Table of a record, one row for every size; baselines that the machine does not allow have no column."""
    rows = result["sizes"]
    families = [str(family) for family in Family if any(str(family) in row["baselines"] for row in rows)]
    columns = ["size", "ours", *families, "NCCL chooses", "bound", "speed-up", "over NCCL's", "gap"]
    title = f"{result['collective']} on {result['topology']}, {result['num_ranks']} ranks: predicted times"
    return plain_table(title, columns, [_cells(row, families) for row in rows])


def _cells(row: dict[str, Any], families: list[str]) -> list[str]:
    nccl = row["nccl"]
    found = [row["baselines"].get(family) for family in families]
    return [
        format_size(row["size_bytes"]),
        format_time(row["ours_us"]),
        *("-" if each is None else format_time(each["time_us"]) for each in found),
        "-" if nccl is None else f"{nccl['algorithm']} {nccl['protocol']}".rstrip(),
        format_time(row["bound_us"]),
        *("-" if row[key] is None else f"{row[key]:.2f}x" for key in ("speedup", "speedup_nccl")),
        format_gap(row["gap"]),
    ]
