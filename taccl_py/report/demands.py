"""JSON records and tables of demands: answers and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.report.tables import fact_table, machine_facts, plain_table
from taccl_py.units import format_gap, format_rate, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from taccl_py.demand import DataDemand
    from taccl_py.pipeline.demands import DemandAnswer
    from taccl_py.synthesis.bounds import Bound
    from taccl_py.synthesis.demands import KnownDemand
    from taccl_py.topology.model import Topology


def demand_record(answer: DemandAnswer) -> dict[str, Any]:
    """Return the JSON object of an answer; times are microseconds, sizes bytes, rates GB/s."""
    synthesis = answer.synthesis
    schedule, origin = synthesis.schedule, synthesis.schedule.origin
    return {
        **_asked(schedule.topology, schedule.demand, answer.known),
        "engine": origin.engine if origin is not None else "",
        "found_by": origin.found_by if origin is not None else "",
        "seed": origin.seed if origin is not None else 0,
        "status": str(synthesis.proof),
        "makespan_us": schedule.makespan_us,
        "bound_us": synthesis.bound.time_us,
        "bound_reason": synthesis.bound.reason,
        "gap": synthesis.gap,
        "algbw_gbps": schedule.algbw_gbps,
        "messages": len(schedule.messages),
        "ended": str(answer.ended),
    }


def _asked(topology: Topology, demand: DataDemand, known: KnownDemand | None) -> dict[str, Any]:
    return {
        "demand": demand.name,
        "collective": None if known is None else str(known.kind),
        **machine_facts(topology),
        "chunks": len(demand.chunks),
        "dtype": demand.dtype,
        "total_bytes": demand.total_bytes,
    }


def demand_table(result: dict[str, Any]) -> Table:
    """Table of a record."""
    rate = "" if result["algbw_gbps"] is None else f", {format_rate(result['algbw_gbps'])}"
    rows = [
        *_head(result),
        ("time", f"{format_time(result['makespan_us'])}{rate} (links and ports alone)"),
        ("bound (any algorithm)", f"{format_time(result['bound_us'])}  ({result['bound_reason']})"),
        ("gap", f"{format_gap(result['gap'])}  ({result['status']})"),
        ("messages", f"{result['messages']}, chunks {result['chunks']}"),
        ("found by", result["found_by"] or result["engine"]),
        ("search ended", result["ended"]),
        *_program_rows(result["programs"]),
    ]
    return fact_table(_title(result), rows)


def _program_rows(programs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Time of each program that has one under a runtime profile, and who found its schedule, which may be another one."""
    return [
        (program["file"], f"{format_time(program['runtime_us'])} under runtime profile {program['runtime_profile']}, found by {program['found_by']}")
        for program in programs
        if "runtime_us" in program
    ]  # fmt: skip


def _title(result: dict[str, Any]) -> str:
    return f"{result['demand']} on {result['topology']}, {result['num_ranks']} ranks, {format_size(result['total_bytes'])} to deliver"


def _head(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [] if result["collective"] is None else [("is", f"{result['collective']}, answered by its engines")]


def demand_bound_record(
    topology: Topology, demand: DataDemand, bound: Bound, known: KnownDemand | None
) -> dict[str, Any]:
    """Return the JSON object of a bound; times are microseconds."""
    return {**_asked(topology, demand, known), "bound_us": bound.time_us, "bound_reason": bound.reason}


def demand_bound_table(result: dict[str, Any]) -> Table:
    """Table of a bound."""
    rows = [*_head(result), ("bound (any algorithm)", f"{format_time(result['bound_us'])}  ({result['bound_reason']})")]
    return fact_table(_title(result), rows)


def demand_run_record(file: str, demand: DataDemand, runs: int, time_us: float, num_wrong: int) -> dict[str, Any]:
    """Return the JSON object of so many runs on data; the time is the mean, in microseconds, of this machine."""
    return {
        "file": file,
        "demand": demand.name,
        "num_ranks": demand.num_ranks,
        "dtype": demand.dtype,
        "total_bytes": demand.total_bytes,
        "runs": runs,
        "time_us": time_us,
        "num_wrong": num_wrong,
    }


def demand_run_table(result: dict[str, Any]) -> Table:
    """Table of runs on data."""
    row = (
        result["demand"], str(result["num_ranks"]), result["dtype"], format_size(result["total_bytes"]), f"{result['time_us']:.2f}",
        str(result["num_wrong"]),
    )  # fmt: skip
    return plain_table(result["file"], ("demand", "ranks", "type", "to deliver", "time (us)", "#wrong"), [row])
