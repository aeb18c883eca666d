"""``taccl profile``: measure alpha, beta and shared ports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import OUTPUT, echo_json, json_option
from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.jsonio import canonical_json, write_atomically
from taccl_py.report.tables import plain_table, print_table
from taccl_py.topology.files import topology_to_json

if TYPE_CHECKING:
    from taccl_py.measure.experiment import Bench
    from taccl_py.measure.profiler import Profile

_MOST_ROWS = 64
_START_SECONDS = 0.001  # of one run, beside the time of its messages


@click.command(short_help="Measure alpha, beta and the ports that links share.")
@click.option(
    "--with",
    "transport",
    type=click.Choice(["mpi"]),
    default=None,
    help="Profile the processes that mpiexec started, one for each rank.",
)
@click.option(
    "--emulate", default="", metavar="TOPOLOGY", help="Profile an emulated machine: a name, a formula or a file."
)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of that machine.")
@click.option(
    "--noise", type=click.FloatRange(0, 1), default=0.0, help="Relative noise of emulated times, for example 0.01."
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Runs of each experiment; the median counts.",
)
@click.option(
    "--record", type=OUTPUT, default=None, help="Keep every result in this file, and go on from what is in it."
)
@click.option(
    "--against", default="", metavar="TOPOLOGY", help="End with exit code 4 where the machine is worse than this."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.1,
    show_default=True,
    help="Relative difference that --against allows.",
)
@click.option(
    "--plan",
    is_flag=True,
    help="Only print how many experiments a profile of a machine like that of --emulate takes, and about how long.",
)
@click.option("-o", "--output", type=OUTPUT, default=None, help="Topology file to write.")
@json_option
def profile(as_json: bool, output: Path | None, **values: Any) -> None:  # fmt: skip
    """Measure a machine: alpha and beta of its links, and which of them share a port.

    Links that take as long as each other are one class, of which one is measured at all sizes. Ports are inferred: links run
    together, in stars and matchings; what takes longer than links alone and the ports found so far explain is narrowed down by
    group testing. An interrupted profile with --record goes on where it stopped.

    \b
    Examples:
      taccl profile --emulate dgx2 --noise 0.005 -o measured.json
      taccl profile --emulate ndv2 --nodes 2 --against ndv2-x2
      taccl profile --plan --emulate ndv4 --nodes 4

    Under MPI: mpiexec -n 4 taccl profile --with mpi -o measured.json
    """
    from taccl_py.pipeline import load_machine

    if values["plan"] and not values["emulate"]:
        raise InputError("it needs a machine like yours; add --emulate TOPOLOGY", path="command line", field="--plan")
    if (values["transport"] is None) is not bool(values["emulate"]):
        raise InputError(
            "name the machine to profile with --with mpi or --emulate TOPOLOGY, one of them", path="command line"
        )
    reference = load_machine(values["against"]).topology if values["against"] else None
    found = _measure(values) if values["transport"] is None else _measure_mpi(values)
    if found is None:
        return  # another rank than 0
    if values["plan"]:
        _show_plan(found, values["repeats"], as_json=as_json)
        return
    if output is not None:
        write_atomically(output, canonical_json(topology_to_json(found.topology)))
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json(_record(found))
    else:
        _show(found)
    if reference is not None:
        from taccl_py.topology.difference import differences

        try:
            worse = [one for one in differences(reference, found.topology, values["tolerance"]) if one.is_worse]
        except InputError as error:
            raise InputError(error.what, path=values["against"]) from None
        if worse:
            remedy = (
                f"in the machine measured now, not as in {values['against']}; repair it, or record the machine again"
            )
            violations = [Violation(one.what, "drift", f"is {one.change} {remedy}") for one in worse]
            raise InvalidArtifact(found.topology.name, violations)


def _show_plan(found: Profile, repeats: int, *, as_json: bool) -> None:
    """How many experiments a profile of such a machine takes, and how long."""
    from taccl_py.measure.profiler import SIZES_BYTES

    pairs = found.topology.num_ranks * (found.topology.num_ranks - 1)
    seconds = found.busy_us / 1e6 + found.experiments * repeats * _START_SECONDS
    plan = {"experiments": found.experiments, "all_pairs": pairs * len(SIZES_BYTES), "seconds": seconds}
    if as_json:
        echo_json(plan)
        return
    click.echo(
        f"{plan['experiments']} experiments, about {seconds:.0f} s; every pair at every size would be {plan['all_pairs']}, "
        "without any two of them together"
    )


def _measure(values: dict[str, Any]) -> Profile:
    """Profile an emulated machine."""
    from taccl_py.measure.emulate import EmulatedBench
    from taccl_py.pipeline import load_machine

    truth = load_machine(values["emulate"], "", values["nodes"]).topology
    return _measure_on(EmulatedBench(truth, values["noise"]), values)


def _measure_mpi(values: dict[str, Any]) -> Profile | None:
    """Profile the processes of mpiexec; None on all ranks but 0."""
    from taccl_py.execute.mpi import load_mpi
    from taccl_py.measure.mpi_bench import MpiBench

    bench = MpiBench(load_mpi())
    if len(bench.node_of) < 2:
        raise InputError(
            "one process has nobody to send to; start several, as in mpiexec -n 4 taccl profile --with mpi",
            path="command line",
            field="--with",
        )
    if bench.rank:
        bench.serve()
        return None
    try:
        return _measure_on(bench, values)
    finally:
        bench.finish()


def _measure_on(bench: Bench, values: dict[str, Any]) -> Profile:
    from taccl_py.measure.experiment import Counted
    from taccl_py.measure.profiler import profile as measure
    from taccl_py.measure.record import Record

    counted = Counted(bench, values["repeats"])
    if values["record"] is not None:
        record = Record(values["record"], bench.name, len(bench.node_of))
        counted.known, counted.keep = record.known, record.keep
    return measure(counted)


def _record(found: Profile) -> dict[str, Any]:
    return {
        "topology": found.topology.name,
        "num_ranks": found.topology.num_ranks,
        "experiments": found.experiments,
        "classes": [
            {
                "links": len(members), "example": [members[0].src, members[0].dst], "alpha_us": line.alpha_us,
                "beta_us_per_mb": line.beta_us_per_mb, "residual": line.residual,
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


def _show(found: Profile) -> None:
    record = _record(found)
    rows = [
        (
            f"{one['example'][0]}->{one['example'][1]}", str(one["links"]), f"{one['alpha_us']:.4g}",
            f"{one['beta_us_per_mb']:.4g}", f"{100 * one['residual']:.2g} %",
        )
        for one in record["classes"]
    ]  # fmt: skip
    print_table(plain_table("Links", ("for example", "links", "alpha us", "beta us/MB", "residual"), rows[:_MOST_ROWS]))
    ports = [
        (one["name"], str(one["links"]), f"{one['alpha_us']:.4g}", f"{one['beta_us_per_mb']:.4g}")
        for one in record["ports"]
    ]
    if ports:
        title = f"{len(ports)} ports"
        print_table(plain_table(title, ("port", "links that share it", "alpha us", "beta us/MB"), ports[:_MOST_ROWS]))
    click.echo(f"{record['experiments']} experiments")
