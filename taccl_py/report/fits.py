"""Table and JSON record of fits; the same facts in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from taccl_py.measure.assemble import Fitted
from taccl_py.report.tables import first_rows_table
from taccl_py.units import format_size

if TYPE_CHECKING:
    from rich.table import Table

_MOST_NAMED = 3
_HIGH_RESIDUAL = 0.1  # root mean square of relative errors


def fits_record(fitted: Fitted) -> dict[str, Any]:
    """Return the JSON object of fits; keys are stable. Errors are half 95 % intervals, null where there are too few points."""
    return {
        "topology": fitted.topology.name,
        "num_ranks": fitted.topology.num_ranks,
        "fits": [
            {
                "links": group.name, "alpha_assumed": group.alpha_assumed,
                "breaks_bytes": list(group.fit.breaks_bytes),
                "lines": [
                    {
                        "alpha_us": line.alpha_us, "alpha_error_us": line.alpha_error_us,
                        "beta_us_per_mb": line.beta_us_per_mb, "beta_error_us_per_mb": line.beta_error_us_per_mb,
                        "residual": line.residual, "points": line.points, "outliers": line.outliers,
                        "least_bytes": line.least_bytes, "most_bytes": line.most_bytes,
                    }
                    for line in group.fit.lines
                ],
            }
            for group in fitted.groups
        ],
        "ports": [
            {
                "name": port.name, "links": sum(index in link.ports for link in fitted.topology.links),
                "alpha_us": port.alpha_us, "beta_us_per_mb": port.beta_us_per_mb,
            }
            for index, port in enumerate(fitted.topology.ports)
        ],
    }  # fmt: skip


def fits_table(fitted: Fitted) -> Table:
    """Table of fits, a row for each line."""
    rows = []
    for group in fitted.groups:
        for line in group.fit.lines:
            rate = f"{1000 / line.beta_us_per_mb:.4g}" if line.beta_us_per_mb > 0 else ""
            rows.append((
                group.name, f"{format_size(line.least_bytes)} - {format_size(line.most_bytes)}",
                _with_error(line.alpha_us, line.alpha_error_us) + (" (assumed)" if group.alpha_assumed else ""), _with_error(line.beta_us_per_mb, line.beta_error_us_per_mb),
                rate, f"{100 * line.residual:.2g} %", str(line.points), str(line.outliers),
            ))  # fmt: skip
    columns = ("links", "sizes", "alpha us", "beta us/MB", "GB/s", "residual", "samples", "outliers")
    return first_rows_table("Fits", columns, rows)


def fit_warnings(fitted: Fitted, size_bytes: int | None) -> list[str]:
    """Sentences on lines that predict little: those for messages of a size (None: of the largest) are looked at."""
    lines = [(group.name, group.fit.at(size_bytes)) for group in fitted.groups]
    flat = [name for name, line in lines if line.beta_us_per_mb <= 0]
    few = [name for name, line in lines if line.outliers > line.points]
    found = []
    if flat:
        found.append(
            f"times of links {_named(flat)} do not grow with the size, so that beta is 0 and any size is sent in the same "
            "time; correct the samples, or measure larger messages"
        )
    if few:
        found.append(
            f"most samples of links {_named(few)} are outliers of the line that was fitted; correct them, or measure again"
        )
    worst = residual_warning(line.residual for _, line in lines)
    return found + [f"{worst}; measure again, or name the sizes that matter with --size"] * bool(worst)


def residual_warning(residuals: Iterable[float]) -> str:
    """The beginning of a sentence where times are far from the lines that were fitted to them; empty where they are near."""
    worst = max(residuals, default=0.0)
    if worst < _HIGH_RESIDUAL:
        return ""
    return (
        f"times are up to {100 * worst:.0f} % off the lines that were fitted to them (root mean square), so alpha and beta "
        "predict no better"
    )


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.4g}" + ("" if error is None else f" ± {error:.2g}")
