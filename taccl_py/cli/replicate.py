"""``taccl replicate``: thousands of ranks; one root is solved and symmetry does the rest."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import click

from taccl_py.answer import Ended
from taccl_py.cli.options import (
    KIND,
    OUTPUT,
    SIZE,
    budget_options,
    budgeted,
    echo_json,
    json_option,
    refuse_own_input,
)
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError
from taccl_py.jsonio import write_atomically

# Seconds of effort normal.
_SECONDS = 60.0


@click.command(short_help="Solve one root of a symmetric machine and replicate it, for thousands of ranks.")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option("--size", type=SIZE, default=None, help="Size as nccl-tests counts it: 64KiB, 1MB, 1G. Default 1MB.")
@click.option("--chunks", type=click.IntRange(1, 64), default=None, help="Chunks per rank. Default: the best found.")
@budget_options("60 s at most")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option("--rank", type=click.IntRange(0), default=None, help="Add to the JSON what this rank sends and receives.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="File for the group schedule.")
@json_option
def replicate(as_json: bool, output: Path | None, rank: int | None, **values: Any) -> None:
    """Synthesize COLLECTIVE (AllGather, ReduceScatter, AllReduce, AllToAll) on TOPOLOGY, whose ranks are alike, or play few roles.

    Where commuting symmetries take rank 0 to every rank (rings, tori, hypercubes, full meshes, switches, fat trees, clusters of
    equal nodes with a NIC for each rank) it is enough to find out what becomes of rank 0's data: everyone does the same with their own.
    Where they leave ranks with different roles (nodes whose ranks share NICs or have unequal links, dragonflies) one rank of each is
    solved, all together. The file holds that and the symmetry; it is verified, and its time is exact, without the whole ever being
    written down.

    \b
    Examples:
      taccl replicate torus:16x16 allgather --size 256MiB -o group.json
      taccl replicate hpn:8 alltoall --size 1GiB
      taccl replicate ndv2 allgather --nodes 16 --size 1GiB
      taccl replicate torus:4x4 allreduce --rank 5 --json
    """
    from taccl_py.pipeline.resolve import Request
    from taccl_py.pipeline.search import synthesize_group
    from taccl_py.report.group import group_record, group_table, part_record
    from taccl_py.report.tables import print_table
    from taccl_py.schedule.group_files import write_group
    from taccl_py.synthesis.engine import Options, Proof

    if rank is not None and not as_json:
        raise InputError("the part of a rank is JSON; add --json", path="command line", field="--rank")
    refuse_own_input(output, values["topology"])
    stop = threading.Event()
    limits = budgeted(values, _SECONDS, stop)
    request = Request(
        topology=values["topology"],
        kind=values["collective"],
        nodes=values["nodes"],
        size_bytes=values["size"],
        chunks_per_rank=values["chunks"],
        engine="replicate",
        options=Options(limits=limits),
    )
    with watched(stop) as events:
        synthesis = synthesize_group(request, events)
    schedule = synthesis.schedule
    result = group_record(synthesis)
    result["ended"] = str(Ended.of(limits, is_proved=result["status"] != Proof.FEASIBLE))
    if rank is not None:
        if rank >= schedule.topology.num_ranks:
            most = schedule.topology.num_ranks - 1
            raise InputError(f"rank {rank} does not exist, ranks are 0..{most}", path="command line", field="--rank")
        result["part"] = part_record(rank, schedule.sent_by(rank), schedule.received_by(rank))
    if output is not None:
        write_atomically(output, write_group(schedule))
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json(result)
        return
    print_table(group_table(result))
