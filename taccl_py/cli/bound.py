"""``taccl bound``: lower bounds on the time of any algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import (
    KIND,
    RANKS,
    SIZE,
    SIZE_RANGE,
    chosen_runtime,
    degradation_options,
    echo_json,
    json_option,
    make_degradation,
    runtime_option,
    runtime_profile_option,
)
from taccl_py.errors import InputError
from taccl_py.runtimes import MSCCLPP

if TYPE_CHECKING:
    from taccl_py.synthesis.bounds.runtime import RuntimeBounds
    from taccl_py.synthesis.engine import Demand

_STEP = 4.0


@click.command(short_help="Print lower bounds on the time of any algorithm.")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option("--sketch", default="", help="Sketch that completes a TACCL profile; of no other importance here.")
@click.option("--ranks", type=RANKS, default=None, help="Process group, for example 0-7 or 0,2,4-6.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of Broadcast, Reduce, Gather, Scatter.")
@click.option("--size", type=SIZE, default=None, help="Size as nccl-tests counts it: 64KiB, 1MB, 1G. Default 1MB.")
@click.option("--sizes", type=SIZE_RANGE, default=None, help="Range of sizes, for example 1KiB:1GiB.")
@degradation_options
@runtime_option("Runtime of the bound under a runtime profile", MSCCLPP.name)
@runtime_profile_option
@click.option(
    "--switch",
    "by_switch",
    is_flag=True,
    help="Also for algorithms that let the machine's switches multicast and add up, as the topology says they can.",
)
@json_option
def bound(as_json: bool, by_switch: bool, **values: Any) -> None:
    """Print lower bounds on the time of COLLECTIVE on TOPOLOGY, for every algorithm and however it cuts the data.

    Latency is the quickest path between the ranks that are farthest apart; fan-out counts how many ranks can know something in
    so much time; crossing counts the few messages between nodes, before which data is gathered and behind which it is handed
    out, and for up to 32 ranks proves whether some choice of them serves everyone, which can take seconds; bandwidth is the
    worst cut through links and ports, or a flow over all of them. The largest binds.

    Under a runtime profile there is a second bound beside it, for any algorithm in that runtime: with its launch, operations, hops, flags
    and threadblocks, and the usable share of the wires.

    These are for messages from rank to rank. With --switch, what a switch stores at many ranks leaves its sender once, and what it
    adds up enters a rank once: latency and cuts remain, and the other bounds fall.

    \b
    Examples:
      taccl bound ndv4 allgather --nodes 2 --sizes 1KiB:1GiB
      taccl bound torus:8x8 alltoall --size 64MiB
      taccl bound dgx1 broadcast --root 3 --json
      taccl bound ndv5 allreduce --nodes 2 --switch
      taccl bound dgx1 allgather --without-link 0-3 --slow-link 4-7:0.5
    """
    from taccl_py.pipeline import Request, make_demand
    from taccl_py.report.bounds import bounds_record, bounds_table
    from taccl_py.report.tables import print_table
    from taccl_py.synthesis.bounds import DemandBounds

    size, sizes = values["size"], values["sizes"]
    if size is not None and sizes is not None:
        raise InputError(
            "--size and --sizes contradict each other; leave one out", path="command line", field="--sizes"
        )
    demand = make_demand(
        Request(
            topology=values["topology"],
            kind=values["collective"],
            sketch=values["sketch"],
            nodes=values["nodes"],
            ranks=values["ranks"],
            root=values["root"],
            size_bytes=size if sizes is None else sizes.low_bytes,
            degradation=make_degradation(values),
        )
    )
    wanted = [demand.size_bytes] if sizes is None else sizes.stepped(_STEP)
    if demand.topology.chunk_costs:
        collective = demand.collective(demand.chunks_per_rank or 1)
        wanted = [demand.chunk_bytes(collective) * collective.chunks_per_size]
    if by_switch:
        bounds = DemandBounds.by_switch(demand.topology, demand.kind, demand.root)
    else:
        bounds = DemandBounds.of(demand.topology, demand.kind, demand.root, relays_from=wanted[0])
    result = bounds_record(
        demand, bounds, wanted, by_switch=by_switch, runtime=None if by_switch else _runtime(demand, values)
    )
    if as_json:
        echo_json(result)
        return
    print_table(bounds_table(result))


def _runtime(demand: Demand, values: dict[str, Any]) -> RuntimeBounds | None:
    """Bounds under the runtime profile; None if that is neutral."""
    from taccl_py.profiles.catalog import select_profile
    from taccl_py.solvers.limits import Limits
    from taccl_py.synthesis.bounds.runtime import RuntimeBounds

    asked = values["runtime"]
    runtime = asked if asked == MSCCLPP.name else chosen_runtime(asked, demand.topology).name
    profile = select_profile(values["runtime_profile"], runtime, demand.topology).profile
    if profile.is_neutral:
        return None
    return RuntimeBounds.of(demand.topology, demand.kind, demand.root, profile, Limits())
