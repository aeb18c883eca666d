"""Table and JSON record of a portfolio; the same facts in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.portfolio.build import Portfolio
from taccl_py.portfolio.rows import PortfolioFile, SizeRow
from taccl_py.report.tables import machine_facts, plain_table
from taccl_py.units import algbw_gbps, format_gap, format_rate, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table


_COLUMNS = ("size", "time", "XML replayed", "bound", "gap", "algbw", "busbw", "engine", "range")
_RUNTIME_COLUMNS = (
    "size", "runtime time", "runtime bound", "gap", "algbw", "busbw", "links and ports", "bound", "gap", "engine", "range",
)  # fmt: skip


def portfolio_record(portfolio: Portfolio, files: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object of a portfolio; keys are stable. Times are microseconds, sizes bytes, rates GB/s.

    Parameters
    ----------
    portfolio
        It.
    files
        Name of the file of every member, or nothing if none were written.
    """
    demand = portfolio.demand
    names = list(files) or [""] * len(portfolio.members)
    return {
        "collective": str(demand.kind),
        **machine_facts(demand.topology),
        "root": demand.root,
        "sketch": demand.sketch.name if demand.sketch else "",
        "engine": "auto",
        "candidates": portfolio.num_candidates,
        "ranges": [_range(member, name) for member, name in zip(portfolio.members, names, strict=True)],
        "sizes": [_size(row, portfolio) for row in portfolio.rows],
        "runtime_profile": portfolio.profile.name if portfolio.profile else "neutral",
        "runtime_evidence": portfolio.profile.evidence if portfolio.profile else "",
        "files": list(files),
    }


def _range(member: PortfolioFile, name: str) -> dict[str, Any]:
    program, collective = member.lowered.program, member.schedule.collective
    return {
        "file": name,
        "min_bytes": member.min_bytes,
        "max_bytes": member.max_bytes,
        "engine": member.candidate.engine,
        "solver": member.candidate.solver,
        "chunks_per_rank": collective.chunks_per_rank,
        "steps": member.schedule.num_steps,
        "protocol": str(program.protocol),
        "instances": member.instances,
        "threadblocks": program.num_threadblocks,
        "channels": program.num_channels,
    }


def _size(row: SizeRow, portfolio: Portfolio) -> dict[str, Any]:
    member = portfolio.members[row.member]
    algbw = algbw_gbps(row.size_bytes, row.makespan_us)
    under = {}
    if row.runtime_us is not None and row.runtime_bound is not None:
        rate = algbw_gbps(row.size_bytes, row.runtime_us)
        under = {
            "runtime_us": row.runtime_us,
            "runtime_bound_us": row.runtime_bound.time_us,
            "runtime_algbw_gbps": rate,
            "runtime_busbw_gbps": rate * member.schedule.collective.busbw_factor,
        }
    return {
        "size_bytes": row.size_bytes,
        "makespan_us": row.makespan_us,
        "replay_us": row.replay_us,
        "bound_us": row.bound.time_us,
        "bound_reason": row.bound.reason,
        "gap": row.gap,
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * member.schedule.collective.busbw_factor,
        "engine": member.candidate.engine,
        "range": row.member,
        **under,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        format_size(row["size_bytes"]), format_time(row["makespan_us"]), format_time(row["replay_us"]),
        format_time(row["bound_us"]), format_gap(row["gap"]), format_rate(row["algbw_gbps"]),
        format_rate(row["busbw_gbps"]), row["engine"], str(row["range"]),
    ]  # fmt: skip


def _runtime_cells(row: dict[str, Any]) -> list[str]:
    return [
        format_size(row["size_bytes"]), format_time(row["runtime_us"]), format_time(row["runtime_bound_us"]),
        format_gap(row["runtime_us"] / row["runtime_bound_us"] - 1), format_rate(row["runtime_algbw_gbps"]),
        format_rate(row["runtime_busbw_gbps"]), format_time(row["makespan_us"]), format_time(row["bound_us"]),
        format_gap(row["gap"]), row["engine"], str(row["range"]),
    ]  # fmt: skip


def portfolio_tables(result: dict[str, Any]) -> list[Table]:
    """Tables of a record: one row for every size, and one for every file."""
    what = f"{result['collective']} on {result['topology']}, {result['num_ranks']} ranks"
    what += f", runtime profile {result['runtime_profile']} ({result['runtime_evidence'] or 'links and ports alone'})"
    is_replayed = "runtime_us" in result["sizes"][0]
    sizes = [_runtime_cells(row) if is_replayed else _cells(row) for row in result["sizes"]]
    ranges = [
        [
            str(index), f"{format_size(row['min_bytes'])} .. {format_size(row['max_bytes'])}", row["engine"],
            str(row["chunks_per_rank"]), str(row["steps"]), row["protocol"], str(row["instances"]),
            str(row["threadblocks"]), str(row["channels"]),
        ]
        for index, row in enumerate(result["ranges"])
    ]  # fmt: skip
    ended = f"; search ended: {result['ended']}" if "ended" in result else ""
    facts = ("range", "sizes", "engine", "chunks", "steps", "protocol", "instances", "threadblocks", "channels")
    return [
        plain_table(what, _RUNTIME_COLUMNS if is_replayed else _COLUMNS, sizes),
        plain_table(f"one file for each range of sizes{ended}", facts, ranges),
    ]
