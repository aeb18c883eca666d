"""``taccl bound``: lower bounds on the time of any algorithm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from taccl_py.api.policy import known_runtime
from taccl_py.cli.asked import ASKED, demand_options, take_kind
from taccl_py.cli.options import (
    RANKS,
    SIZE,
    SIZE_RANGE,
    degradation_options,
    echo_json,
    json_option,
    make_degradation,
    make_request,
    runtime_option,
    runtime_profile_option,
)
from taccl_py.errors import InputError
from taccl_py.runtimes import MSCCLPP

if TYPE_CHECKING:
    from taccl_py.profiles.model import RuntimeProfile
    from taccl_py.synthesis.engine import Demand


@click.command(short_help="Print lower bounds on the time of any algorithm.")
@click.argument("topology")
@click.argument("collective", type=ASKED)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option("--sketch", default="", help="Sketch that completes a TACCL profile; of no other importance here.")
@click.option("--ranks", type=RANKS, default=None, help="Process group, for example 0-7 or 0,2,4-6.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of Broadcast, Reduce, Gather, Scatter.")
@click.option("--size", type=SIZE, default=None, help="Size as nccl-tests counts it: 64KiB, 1MB, 1G. Default 1MB.")
@click.option("--sizes", type=SIZE_RANGE, default=None, help="Range of sizes, for example 1KiB:1GiB.")
@demand_options
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of --skew and --tokens."
)
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
    worst cut through links and ports, all cuts together where links share ports, or a flow over all of them. The largest binds.

    Under a runtime profile there is a second bound beside it, for any algorithm in that runtime: with its launch, operations, hops, flags
    and threadblocks, and the usable share of the wires.

    These are for messages from rank to rank. With --switch, what a switch stores at many ranks leaves its sender once, and what it
    adds up enters a rank once: latency and cuts remain, and the other bounds fall.

    COLLECTIVE may be a demand, as for taccl synth: its bound is what must cross a cut, and the farthest rank.

    \b
    Examples:
      taccl bound ndv4 allgather --nodes 2 --sizes 1KiB:1GiB
      taccl bound torus:8x8 alltoall --size 64MiB
      taccl bound dgx1 broadcast --root 3 --json
      taccl bound ndv5 alltoallv --nodes 4 --skew zipf:1
      taccl bound ndv5 allreduce --nodes 2 --switch
      taccl bound dgx1 allgather --without-link 0-3 --slow-link 4-7:0.5
    """
    if not take_kind(values):
        from taccl_py.cli.demands import bound_demand

        bound_demand(values, as_json=as_json)
        return
    from taccl_py.api.search import analyse, wanted_sizes
    from taccl_py.pipeline.resolve import make_demand
    from taccl_py.report.bounds import bounds_record, bounds_table
    from taccl_py.report.tables import print_table

    size, sizes = values["size"], values["sizes"]
    if size is not None and sizes is not None:
        raise InputError(
            "--size and --sizes contradict each other; leave one out", path="command line", field="--sizes"
        )
    demand = make_demand(
        replace(
            make_request(values),
            size_bytes=size if sizes is None else sizes.low_bytes,
            degradation=make_degradation(values),
        )
    )
    wanted = wanted_sizes(demand, sizes)
    analysis = analyse(
        demand.topology,
        demand.kind,
        demand.root,
        wanted,
        _profile(demand, values, by_switch=by_switch),
        by_switch=by_switch,
    )
    result = bounds_record(demand, analysis.physical, wanted, by_switch=by_switch, runtime=analysis.runtime)
    if as_json:
        echo_json(result)
        return
    print_table(bounds_table(result))


def _profile(demand: Demand, values: dict[str, Any], *, by_switch: bool) -> RuntimeProfile:
    """Runtime profile of the bound; bounds by switch are of links and ports alone."""
    from taccl_py.profiles.catalog import neutral_profile, select_profile

    if by_switch:
        return neutral_profile()
    name = known_runtime(values["runtime"], demand.topology).name
    return select_profile(values["runtime_profile"], name, demand.topology).profile
