"""Tables and JSON record of a comparison; the same facts in both."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from taccl_py.baselines.compare import BaselineComparison, ComparedSize, MeasuredLog, MeasuredSize
from taccl_py.baselines.library import Family
from taccl_py.baselines.nccl_time import ALGORITHMS
from taccl_py.report.tables import machine_facts, plain_table
from taccl_py.runtimes import RCCL
from taccl_py.units import format_gap, format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table


def comparison_record(comparison: BaselineComparison) -> dict[str, Any]:
    """Return the JSON object of a comparison; keys are stable. Times are microseconds, sizes bytes, rates GB/s.

    ``speedup`` is over the fastest baseline, ``speedup_nccl`` over the schedule of NCCL's choice; both are null where there is
    none. ``nccl.expected_us`` is NCCL's own expectation, which is on a scale of its own.

    Keys with ``runtime`` are under the runtime profile: of our file, and of each of NCCL's algorithms in its best protocol, the
    fastest of which is ``nccl_runtime_us``. ``remedy`` says what to do where that is faster than ours, and is empty elsewhere;
    ``left_to_nccl`` has these sizes as ranges. ``ours_us`` and ``runtime_us`` are null where no installed file is for the size.
    """
    demand, nccl = comparison.demand, comparison.nccl
    tuner = None
    if nccl is not None:
        tuner = {
            "gpu": str(nccl.gpu), "channels": nccl.graph.channels, "intra_gbps": nccl.graph.intra_gbps,
            "inter_gbps": nccl.graph.inter_gbps, "nvls": nccl.nvls is not None, "amd_cpu": nccl.amd_cpu,
        }  # fmt: skip
    return {
        "collective": str(demand.kind),
        **machine_facts(demand.topology),
        "root": demand.root,
        "sketch": demand.sketch.name if demand.sketch else "",
        "nccl_tuner": tuner,
        "runtime_profile": comparison.profile.name,
        "runtime_evidence": "" if comparison.profile.is_neutral else comparison.profile.evidence,
        "library": "RCCL" if comparison.profile.runtime == RCCL.name else "NCCL",
        "left_to_nccl": [[each.low_bytes, each.high_bytes] for each in comparison.left],
        "sizes": [_size(row) for row in comparison.rows],
        "measured": [_measured(log) for log in comparison.measured],
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
        "speedup": _over(best.time_us if best is not None else None, row.ours_us),
        "speedup_nccl": _over(chosen.time_us if chosen is not None else None, row.ours_us),
        **_runtime(row),
    }


def _over(time_us: float | None, ours_us: float | None) -> float | None:
    return time_us / ours_us if time_us is not None and ours_us is not None and ours_us > 0 else None


def _runtime(row: ComparedSize) -> dict[str, Any]:
    """Times of one size under the runtime profile."""
    best = row.nccl_best
    return {
        "runtime_us": row.runtime_us,
        "nccl_runtime_us": best.time_us if best is not None else None,
        "nccl_runtime_algorithm": best.algorithm if best is not None else "",
        "nccl_runtime_protocol": str(best.protocol) if best is not None else "",
        "nccl_runtime": {
            each.algorithm: {"time_us": each.time_us, "protocol": str(each.protocol)} for each in row.nccl_runtime
        },
        "speedup_runtime": _over(best.time_us if best is not None else None, row.runtime_us),
        "remedy": "leave this size to NCCL (taccl install --leave)" if row.is_slower else "",
    }


def _measured(log: MeasuredLog) -> dict[str, Any]:
    rows = [_measured_size(row) for row in log.rows]
    return {
        "log": log.path,
        "of": log.subject,
        "rows": rows,
        "nccl_median_error": _median_error(row["nccl_error"] for row in rows),
        "ours_median_error": _median_error(row["ours_error"] for row in rows),
    }


def _measured_size(row: MeasuredSize) -> dict[str, Any]:
    """One size of a log; an error is predicted over measured, less 1."""
    nccl_us = row.nccl.time_us if row.nccl is not None else None
    return {
        "size_bytes": row.size_bytes,
        "measured_us": row.measured_us,
        "nccl_us": nccl_us,
        "nccl_algorithm": row.nccl.algorithm if row.nccl is not None else "",
        "nccl_protocol": str(row.nccl.protocol) if row.nccl is not None else "",
        "nccl_error": None if nccl_us is None else nccl_us / row.measured_us - 1,
        "ours_us": row.ours_us,
        "ours_error": None if row.ours_us is None else row.ours_us / row.measured_us - 1,
    }


def _median_error(errors: Iterable[float | None]) -> float | None:
    """Median factor by which predictions are off, at least 1."""
    found = [abs(math.log1p(error)) for error in errors if error is not None]
    return math.exp(statistics.median(found)) if found else None


def remedy(result: dict[str, Any], directory: str) -> str:
    """Sentence that names the sizes at which NCCL is faster and the command that leaves them to it; empty if there are none."""
    if not result["left_to_nccl"]:
        return ""
    spans = [f"{low}:{high}" for low, high in result["left_to_nccl"]]
    sizes = {row["size_bytes"] for row in result["sizes"]}
    words = ", ".join(_span_in_words(low, high, sizes) for low, high in result["left_to_nccl"])
    leave = " ".join(f"--leave {result['collective']}:{span}" for span in spans)
    profile, library = f"runtime profile {result['runtime_profile']}", result["library"]
    if all(row["remedy"] for row in result["sizes"]):
        return f"note: under {profile} {library} is faster at every size, {words}: install no file for them"
    return (
        f"note: under {profile} {library} is faster at {words}; leave these sizes to it: "
        f"taccl install {shlex.quote(directory)} -o INSTALLED {leave}"
    )


def _span_in_words(low: int, high: int, sizes: Collection[int]) -> str:
    """Sizes of a span, of which the last one may be the byte below a size at which ours is faster."""
    if low == high:
        return format_size(low)
    last = f"below {format_size(high + 1)}" if high + 1 in sizes else format_size(high)
    return f"{format_size(low)} to {last}"


def comparison_tables(result: dict[str, Any]) -> list[Table]:
    """Tables of a record, the one by which ours was chosen first: on links and ports, under the runtime profile; one for each log."""
    tables = [comparison_table(result), _runtime_table(result)]
    if result["runtime_evidence"]:
        tables.reverse()
    return [*tables, *(_log_table(log, result) for log in result["measured"])]


def _under(result: dict[str, Any]) -> str:
    evidence = result["runtime_evidence"] or "links and ports alone"
    return f"runtime profile {result['runtime_profile']}, {evidence}"


def _runtime_table(result: dict[str, Any]) -> Table:
    rows, library = result["sizes"], result["library"]
    names = [name for name in ALGORITHMS if any(name in row["nccl_runtime"] for row in rows)]
    columns = [
        "size",
        "ours",
        *(f"{library} {name}" for name in names),
        f"{library}'s best",
        f"over {library}",
        "remedy",
    ]
    title = f"{result['collective']} on {result['topology']}: predicted times, {_under(result)}"
    return plain_table(title, columns, [_runtime_cells(row, names, library) for row in rows])


def _runtime_cells(row: dict[str, Any], names: list[str], library: str) -> list[str]:
    found = [row["nccl_runtime"].get(name) for name in names]
    return [
        format_size(row["size_bytes"]),
        _time(row["runtime_us"]),
        *(_time(None if each is None else each["time_us"]) for each in found),
        f"{row['nccl_runtime_algorithm']} {row['nccl_runtime_protocol']}",
        "-" if row["speedup_runtime"] is None else f"{row['speedup_runtime']:.2f}x",
        f"slower: leave to {library}" if row["remedy"] else "",
    ]


def _time(time_us: float | None) -> str:
    return "-" if time_us is None else format_time(time_us)


def _log_table(log: dict[str, Any], result: dict[str, Any]) -> Table:
    library = result["library"]
    medians = [
        f"{name} off by x{log[key]:.2f} in the median"
        for name, key in ((library, "nccl_median_error"), ("ours", "ours_median_error")) if log[key] is not None
    ]  # fmt: skip
    whose = {"nccl": f" of {library}", "ours": " of our files"}.get(log["of"], "")
    title = (
        f"Measured{whose}: {log['log']}; predicted under {_under(result)}; {', '.join(medians) or 'nothing to compare'}"
    )
    columns = ("size", "measured", f"{library} predicted", "as", "error", "ours predicted", "error")
    rows = [
        (
            format_size(row["size_bytes"]), format_time(row["measured_us"]), _time(row["nccl_us"]),
            f"{row['nccl_algorithm']} {row['nccl_protocol']}".strip() or "-", _percent(row["nccl_error"]),
            _time(row["ours_us"]), _percent(row["ours_error"]),
        )
        for row in log["rows"]
    ]  # fmt: skip
    return plain_table(title, columns, rows)


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.0f} %"


def comparison_table(result: dict[str, Any]) -> Table:
    """Table on links and ports, one row for every size; baselines that the machine does not allow have no column.

    Ours has none where it was chosen under a runtime profile: on links and ports alone each of its instances pays alphas of its own.
    """
    rows, under_profile = result["sizes"], bool(result["runtime_evidence"])
    families = [str(family) for family in Family if any(str(family) in row["baselines"] for row in rows)]
    columns = ["size", "ours", *families, "NCCL chooses", "bound", "speed-up", "over NCCL's", "gap"]
    title = f"{result['collective']} on {result['topology']}, {result['num_ranks']} ranks: predicted times, links and ports alone"
    cells = [_cells(row, families) for row in rows]
    if under_profile:
        title += "; baselines, and the bound of any algorithm"
        kept = [place for place, name in enumerate(columns) if name not in ("ours", "speed-up", "over NCCL's", "gap")]
        columns, cells = [columns[place] for place in kept], [[row[place] for place in kept] for row in cells]
    return plain_table(title, columns, cells)


def _cells(row: dict[str, Any], families: list[str]) -> list[str]:
    nccl = row["nccl"]
    found = [row["baselines"].get(family) for family in families]
    return [
        format_size(row["size_bytes"]),
        _time(row["ours_us"]),
        *("-" if each is None else format_time(each["time_us"]) for each in found),
        "-" if nccl is None else f"{nccl['algorithm']} {nccl['protocol']}".rstrip(),
        format_time(row["bound_us"]),
        *("-" if row[key] is None else f"{row[key]:.2f}x" for key in ("speedup", "speedup_nccl")),
        "-" if row["gap"] is None else format_gap(row["gap"]),
    ]
