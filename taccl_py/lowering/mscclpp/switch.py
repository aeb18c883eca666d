"""AllReduce by a switch that adds and multicasts: no messages, but loads of sums and stores to everybody.

Each chunk has an owner, which lets the switch add up what all ranks hold of it and store the sum at all of them (``glres``).
Nobody may load or store before all ranks have begun the call, and nobody may leave before all owners are done with its memory;
so all threadblocks with one number, one on each rank, greet each other, and tell each other when they are done. Instances share
out the cells among as many threadblocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from taccl_py.collective import Buffer, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.cells import Cells
from taccl_py.lowering.mscclpp.limits import beyond, require_threadblocks
from taccl_py.lowering.plan import MEMORY, SWITCH, Operation, PlanBlock, PlanGpu, SwitchGroup
from taccl_py.runtimes import MSCCLPP
from taccl_py.schedule.ir import Schedule
from taccl_py.topology.model import Topology

_NOP = Operation("nop")


def switch_gpus(schedule: Schedule, instances: int) -> tuple[PlanGpu, ...]:
    """Return the programs of all ranks for an AllReduce in place, in which chunks have the owners that they have in a schedule.

    Parameters
    ----------
    schedule
        A schedule to which the judge does not object.
    instances
        Threadblocks of every rank, each with one part of every chunk.

    Raises
    ------
    InputError
        If it is no AllReduce, or no switch of its topology adds and multicasts among all ranks.
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    _require_switch(schedule)
    num_ranks = schedule.collective.num_ranks
    owned: list[list[int]] = [[] for _ in range(num_ranks)]
    for chunk, owner in enumerate(find_owners(schedule)):
        owned[owner].append(chunk)
    _require_room(schedule.topology, max(map(len, owned)), instances)
    everybody = SwitchGroup(Buffer.INPUT, tuple(range(num_ranks)))
    num_cells = schedule.collective.input_chunks * instances
    return tuple(
        PlanGpu(
            rank=rank,
            input_chunks=num_cells,
            output_chunks=num_cells,
            scratch_chunks=0,
            peers={MEMORY: tuple(peer for peer in range(num_ranks) if peer != rank) * instances},
            remotes=(),
            num_semaphores=0,
            blocks=tuple(_block(owned[rank], number, instances, num_ranks) for number in range(instances)),
            groups=(everybody,) * instances,
        )
        for rank in range(num_ranks)
    )


def find_owners(schedule: Schedule) -> list[int]:
    """Rank that first hands out the sum of each chunk; where all add up for themselves, the one that owns the fewest so far."""
    first: dict[int, int] = {}
    for message in schedule.messages:  # in order of their starts
        if not message.reduce:
            for chunk in message.chunks:
                first.setdefault(chunk, schedule.topology.links[message.link].src)
    totals = Counter(first.values())
    owners = []
    for chunk in range(schedule.collective.num_chunks):
        if chunk not in first:
            first[chunk] = min(range(schedule.collective.num_ranks), key=lambda rank: (totals[rank], rank))
            totals[first[chunk]] += 1
        owners.append(first[chunk])
    return owners


def _require_switch(schedule: Schedule) -> None:
    collective, topology = schedule.collective, schedule.topology
    if collective.kind is not Kind.ALLREDUCE:
        raise InputError(
            f"a switch does allreduce alone here, and the schedule is of {collective.kind}; leave --switch out",
            path="command line",
            field="--switch",
        )
    everybody = set(range(topology.num_ranks))
    if not any(one.multicast and one.reduce and everybody <= set(one.ranks) for one in topology.switches):
        raise InputError(
            f"topology {topology.name} has no switch that multicasts and reduces among all its {topology.num_ranks} ranks; "
            "leave --switch out, or say so in the topology (multicast, reduce) where the device can",
            path="command line",
            field="--switch",
        )


def _require_room(topology: Topology, num_owned: int, instances: int) -> None:
    num_peers = topology.num_ranks - 1
    if num_peers > MSCCLPP.max_channels:
        raise beyond(
            "max_channels",
            f"each threadblock tells all {num_peers} others, and {MSCCLPP.title} has room for {MSCCLPP.max_channels} channels; "
            "leave --switch out",
        )
    num_operations = 4 * -(-num_peers // MSCCLPP.max_channels_at_once) + 3 + num_owned
    if num_operations > MSCCLPP.max_operations:
        raise beyond(
            "max_operations",
            f"a threadblock needs {num_operations} operations, and {MSCCLPP.title} has room for {MSCCLPP.max_operations}; use a "
            "schedule with fewer chunks",
        )
    require_threadblocks(0, instances)


def _block(owned: Sequence[int], number: int, instances: int, num_ranks: int) -> PlanBlock:
    channels = tuple(range(num_ranks - 1))
    operations = [*_on_channels("rlxsignal", channels), *_on_channels("rlxwait", channels), _NOP]
    for chunk in owned:
        cells = Cells(Buffer.INPUT, chunk * instances + number, 1)
        operations.append(Operation("glres", SWITCH, sources=(cells,), target=cells, switch=0))
    operations += [_NOP, *_on_channels("signal", channels), *_on_channels("wait", channels), _NOP]
    first = number * (num_ranks - 1)
    return PlanBlock(tuple(operations), {MEMORY: tuple(first + one for one in channels), SWITCH: (number,)}, {})


def _on_channels(name: str, channels: Sequence[int]) -> Iterator[Operation]:
    most = MSCCLPP.max_channels_at_once
    for first in range(0, len(channels), most):
        yield Operation(name, MEMORY, tuple(channels[first : first + most]))
