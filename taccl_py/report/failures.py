"""Table and JSON record of what serves every single failure of a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.api.failures import FailurePlan, ServedClass, ServedFailure
from taccl_py.portfolio.failure_index import FORMAT, VERSION, degradation_json
from taccl_py.report.tables import plain_table
from taccl_py.topology.failures import Failure
from taccl_py.units import format_gap, format_time, relative_gap

if TYPE_CHECKING:
    from rich.table import Table


def failures_record(
    plan: FailurePlan, served: Sequence[ServedFailure], folders: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """JSON object of an index; keys are stable. Times are microseconds.

    Parameters
    ----------
    plan
        Search, as far as it came.
    served
        Failures that have a schedule.
    folders
        Name of the folder of each failure.
    facts
        Further facts for people.
    """
    known = {each.failure for each in served}
    reasons = {failure: reason for failure, reason in plan.missing}
    everyone = [image.failure for each in plan.classes for image in each.images]
    return {
        "format": FORMAT,
        "version": VERSION,
        "topology": plan.topology.name,
        "num_ranks": plan.topology.num_ranks,
        "collective": str(plan.request.kind),
        **facts,
        "healthy_us": _healthy_us(plan),
        "classes": [_class(plan, number, each) for number, each in enumerate(plan.done)],
        "failures": [
            {
                **_failure(each.failure),
                "class": each.number,
                "folder": folders[each.failure.what],
                "makespan_us": each.answer.time_us,
                "runtime_us": None if each.choice is None else each.choice.runtime_us,
                "bound_us": each.answer.own_bound.time_us,
            }
            for each in served
        ],
        "missing": [
            {**_failure(failure), "reason": reasons.get(failure, "interrupted before it")}
            for failure in everyone
            if failure not in known
        ],
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {"failure": failure.what, "sort": str(failure.sort), **degradation_json(failure.degradation)}


def _healthy_us(plan: FailurePlan) -> float | None:
    """Time of the whole machine, which also runs what serves a failure."""
    known = [each.answer.time_us for each in plan.done if each.answer is not None]
    return min([*known, *([] if plan.healthy_us is None else [plan.healthy_us])], default=None)


def _class(plan: FailurePlan, number: int, found: ServedClass) -> dict[str, Any]:
    answer, healthy_us = found.answer, _healthy_us(plan)
    record: dict[str, Any] = {
        "class": number, "failure": found.failures.first.what, "number": len(found.failures.images), "reason": found.reason,
    }  # fmt: skip
    if answer is None:
        return record
    time_us, bound = answer.time_us, answer.own_bound
    return record | {
        "makespan_us": time_us,
        "over_healthy": None if healthy_us is None else time_us / healthy_us - 1,
        "bound_us": bound.time_us,
        "gap": relative_gap(time_us, bound.time_us),
        "found_by": answer.provenance.found_by,
        "status": str(answer.proof),
        "ended": str(answer.ended),
    }


def failures_table(record: Mapping[str, Any]) -> Table:
    """One row for each class, links and ports alone."""
    rows = []
    for each in record["classes"]:
        name = each["failure"] + (f" and {each['number'] - 1} like it" if each["number"] > 1 else "")
        if "makespan_us" not in each:
            rows.append((name, "none", "", "", "", each["reason"]))
            continue
        over = each["over_healthy"]
        rows.append((
            name, format_time(each["makespan_us"]), "" if over is None else f"+{format_gap(over)}", format_time(each["bound_us"]),
            format_gap(each["gap"]), f"engine {each['found_by']}",
        ))  # fmt: skip
    healthy_us = record["healthy_us"]
    whole = "" if healthy_us is None else f"; whole machine {format_time(healthy_us)}"
    title = f"{record['collective']} on {record['topology']} after one failure, links and ports alone{whole}"
    return plain_table(title, ("failure", "time", "over whole", "bound", "gap", "found by"), rows)
