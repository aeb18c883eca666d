"""Tables and JSON record of a profile; the same facts in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl_py.measure.plan import ProfilePlan
from taccl_py.measure.profiler import Profile
from taccl_py.report.fits import residual_warning
from taccl_py.report.tables import first_rows_table
from taccl_py.units import natural_key

if TYPE_CHECKING:
    from rich.table import Table


def profile_record(found: Profile) -> dict[str, Any]:
    """Return the JSON object of a profile; keys are stable."""
    return {
        "topology": found.topology.name,
        "num_ranks": found.topology.num_ranks,
        "complete": found.complete,
        "experiments": found.experiments,
        "not_measured": len(found.assumed),
        "classes": [
            {
                "links": len(members), "example": [members[0].src, members[0].dst], "alpha_us": line.alpha_us,
                "beta_us_per_mb": line.beta_us_per_mb, "alpha_error_us": line.alpha_error_us,
                "beta_error_us_per_mb": line.beta_error_us_per_mb, "residual": line.residual,
            }
            for line, members in found.lines
        ],
        "ports": [
            {
                "name": port.name, "links": len(port.links), "alpha_us": port.cost.alpha_us,
                "beta_us_per_mb": port.cost.beta_us_per_mb,
            }
            for port in found.ports
        ],
    }  # fmt: skip


def profile_tables(found: Profile) -> list[Table]:
    """Tables of the first classes of links, and of the first ports if there are any."""
    record = profile_record(found)
    rows = [
        (
            f"{one['example'][0]}->{one['example'][1]}", str(one["links"]), f"{one['alpha_us']:.4g}",
            f"{one['beta_us_per_mb']:.4g}", f"{100 * one['residual']:.2g} %",
        )
        for one in record["classes"]
    ]  # fmt: skip
    tables = [first_rows_table("Links", ("for example", "links", "alpha us", "beta us/MB", "residual"), rows)]
    ports = [
        (one["name"], str(one["links"]), f"{one['alpha_us']:.4g}", f"{one['beta_us_per_mb']:.4g}")
        for one in sorted(record["ports"], key=lambda port: natural_key(port["name"]))
    ]
    if ports:
        title = f"{len(ports)} ports"
        tables.append(first_rows_table(title, ("port", "links that share it", "alpha us", "beta us/MB"), ports))
    return tables


def profile_sentence(found: Profile) -> str:
    """Amount that was measured."""
    if found.complete:
        return f"{found.experiments} experiments"
    return (
        f"interrupted after {found.experiments} experiments: {len(found.assumed)} links are taken to be like the slowest, "
        "and ports may be missing"
    )


def profile_warning(found: Profile) -> str:
    """A sentence where times are far from the lines that were fitted to them; empty where they are near."""
    warning = residual_warning(line.residual for line, _ in found.lines)
    return warning and (
        f"{warning}: other work ran on the processors, or the transport changes with the size; measure an idle machine, or with "
        "--largest for the sizes that matter"
    )


def plan_sentence(plan: ProfilePlan) -> str:
    """Amount that is to be measured."""
    return (
        f"about {plan.experiments} experiments, about {plan.seconds:.0f} s; every pair at every size would be "
        f"{plan.all_pairs}, without any two of them together"
    )
