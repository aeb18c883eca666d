"""Collectives by a switch that multicasts and adds up: no messages, but stores to everybody, and loads of sums.

A rank lets the switch store its data at all ranks (``gstore``): its shard of an AllGather, the root's data of a Broadcast. In an
AllReduce ranks, all or some, let the switch add up what all ranks hold of their part and store the sum at all of them
(``glres``).

No rank may load or store before all ranks have begun the call, and none may leave before all that is stored in its memory is
there; so all threadblocks with one number, one on each rank, signal those that store, and get a signal when these are done.
Instances divide the cells among as many threadblocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.blocks import Post
from taccl_py.lowering.mscclpp.rails import NodeRails, RailSite, rails_gpus
from taccl_py.lowering.mscclpp.script import Lengths, Script
from taccl_py.lowering.plan import PlanGpu, SwitchChannel
from taccl_py.schedule.ir import Schedule
from taccl_py.topology.model import Switch, Topology

_KINDS = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST)


@dataclass(frozen=True, slots=True)
class SwitchCut:
    """Cut of the work.

    Attributes
    ----------
    instances
        Threadblocks of every kind on every rank, each with one part of everything.
    owners
        Ranks of a node that let the switch add up a part of an AllReduce, or over several nodes hand out a part of a Broadcast; None
        is all. Fewer pay alpha less often at every port, and load their own ports more.
    pieces
        Over several nodes: pieces that each of them does one after the other.
    rails
        Over several nodes: how data that several of them need gets there.
    """

    instances: int = 1
    owners: int | None = None
    pieces: int = 1
    rails: NodeRails = NodeRails.DIRECT


@dataclass(frozen=True, slots=True)
class _Work:
    """Work on one node; `owners` are the ranks that let the switch store something, each a part of an AllReduce."""

    collective: Collective
    owners: tuple[int, ...]
    instances: int
    in_place: bool

    @property
    def lengths(self) -> Lengths:
        """Cells of input and output: one for everything that a threadblock lets the switch store."""
        if self.collective.kind is Kind.ALLGATHER:
            return Lengths(self.instances, self.collective.num_ranks * self.instances)
        return Lengths(len(self.owners) * self.instances, len(self.owners) * self.instances)

    def group(self, buffer: Buffer) -> SwitchChannel:
        """Switch channel of all ranks."""
        return SwitchChannel(buffer, tuple(range(self.collective.num_ranks)))

    def cell(self, post: Post, buffer: Buffer) -> CellRange:
        """Cell of a threadblock; the input of an AllGather is the rank's own shard alone."""
        is_shard = self.collective.kind is Kind.ALLGATHER and buffer is Buffer.INPUT
        first = 0 if is_shard else self.owners.index(post.rank) * self.instances
        return CellRange(buffer, first + post.instance, 1)


def switch_gpus(schedule: Schedule, cut: SwitchCut, *, in_place: bool) -> tuple[PlanGpu, ...]:
    """Return the programs of all ranks that let the switch do what the messages of a schedule do.

    Parameters
    ----------
    schedule
        Collective and machine; its chunks and messages are not looked at.
    cut
        How the work is cut.
    in_place
        Whether input and output are the same memory.

    Raises
    ------
    InputError
        If it is another collective, or no switch of its topology can do that for all ranks or all ranks of a node.
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    collective, topology, instances = schedule.collective, schedule.topology, cut.instances
    if needs_rails(schedule):
        nodes, most = topology.node_ranks, len(topology.node_ranks[0])
        num_owners = most if cut.owners is None or collective.kind is Kind.ALLGATHER else min(most, cut.owners)
        first = topology.local_rank[collective.root]
        site = RailSite(nodes, instances, cut.pieces, in_place, cut.rails, num_owners, first)
        return rails_gpus(collective, topology.node_of, site)
    script = Script(topology.node_of)
    owners = tuple(range(collective.num_ranks))
    if collective.kind is not Kind.ALLGATHER:
        owners = (collective.root,) if collective.kind is Kind.BROADCAST else owners[: cut.owners]
    work = _Work(collective, owners, instances, in_place)
    for number in range(instances):
        for rank in range(collective.num_ranks):
            _write_block(script, work, Post(rank, 0, number))
    return script.gpus(work.lengths)


def serving_switches(topology: Topology, kind: Kind, ranks: Sequence[int]) -> list[Switch]:
    """Switches that can do for these ranks what a collective needs: multicast, and for sums also add up."""
    return [
        one
        for one in topology.switches
        if one.multicast and (one.reduce or kind is not Kind.ALLREDUCE) and set(ranks) <= set(one.ranks)
    ]


def needs_rails(schedule: Schedule) -> bool:
    """True if switches serve nodes, and not all ranks at once.

    Raises
    ------
    InputError
        See `switch_gpus`.
    """
    kind, topology = schedule.collective.kind, schedule.topology
    if kind not in _KINDS:
        raise InputError(
            f"a switch does {', '.join(_KINDS)} here, and the schedule is of {kind}; leave --switch out",
            path="command line",
            field="--switch",
        )
    if serving_switches(topology, kind, range(topology.num_ranks)):
        return False
    needed = "multicasts and reduces" if kind is Kind.ALLREDUCE else "multicasts"
    nodes = topology.node_ranks
    if len(nodes) == 1 or not all(len(ranks) > 1 and serving_switches(topology, kind, ranks) for ranks in nodes):
        among = f"all its {topology.num_ranks} ranks" if len(nodes) == 1 else "all ranks of every node"
        raise InputError(
            f"topology {topology.name} has no switch that {needed} among {among}; "
            "leave --switch out, or say so in the topology (multicast, reduce) where the device can",
            path="command line",
            field="--switch",
        )
    if not topology.has_even_nodes or any(
        (a, b) not in topology.links_between for rail in zip(*nodes, strict=True) for a in rail for b in rail if a != b
    ):
        raise InputError(
            f"nodes of topology {topology.name} differ in size, or ranks of one local number have no links to each other, which "
            "plans by switch need; leave --switch out",
            path="command line",
            field="--switch",
        )
    return True


def _write_block(script: Script, work: _Work, post: Post) -> None:
    """Write the block of a rank in one instance: all others signal the ranks that store, and these signal when they are done."""
    others = [Post(rank, post.peer, post.instance) for rank in range(work.collective.num_ranks) if rank != post.rank]
    storing = [other for other in others if other.rank in work.owners]
    served = others if post.rank in work.owners else []
    script.on_channels(post, "rlxsignal", storing)
    script.on_channels(post, "rlxwait", served)
    script.sync_threads(post)
    if post.rank in work.owners:
        _store(script, work, post)
        script.sync_threads(post)
    script.on_channels(post, "signal", served)
    script.on_channels(post, "wait", storing)
    script.sync_threads(post)


def _store(script: Script, work: _Work, post: Post) -> None:
    if work.collective.kind is Kind.ALLREDUCE:
        # In place the input is the output; one name is enough for both.
        given, wanted = Buffer.INPUT, Buffer.INPUT if work.in_place else Buffer.OUTPUT
        source, target = work.cell(post, given), work.cell(post, wanted)
        script.sum_by_switch(post, work.group(given), source, work.group(wanted), target)
        return
    target = work.cell(post, Buffer.OUTPUT)
    source = target if work.in_place else work.cell(post, Buffer.INPUT)
    script.multicast(post, source, work.group(Buffer.OUTPUT), target)
