"""Collectives by a switch that multicasts and adds up: no messages, but stores to everybody, and loads of sums.

What a rank has to hand out, it lets the switch store at all ranks (``gstore``): its share of an AllGather, the root's data of a
Broadcast. In an AllReduce each rank lets the switch add up what all ranks hold of its share and store the sum at all of them
(``glres``).

Nobody may load or store before all ranks have begun the call, and nobody may leave before all that is stored in its memory is
there; so all threadblocks with one number, one on each rank, greet those that store, and are told when they are done. Instances
share out the cells among as many threadblocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.cells import Cells
from taccl_py.lowering.mscclpp.blocks import Post
from taccl_py.lowering.mscclpp.rails import Rails, Site, rails_gpus
from taccl_py.lowering.mscclpp.script import Lengths, Script
from taccl_py.lowering.plan import PlanGpu, SwitchGroup
from taccl_py.schedule.ir import Schedule
from taccl_py.topology.model import Topology

_KINDS = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST)


@dataclass(frozen=True, slots=True)
class SwitchCut:
    """How work is cut.

    Attributes
    ----------
    instances
        Threadblocks of every kind on every rank, each with one part of everything.
    pieces
        Over several nodes: pieces that each of them does one after the other.
    rails
        Over several nodes: how data that several of them need gets there.
    """

    instances: int = 1
    pieces: int = 1
    rails: Rails = Rails.DIRECT


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring chunks that a rank hands out: the first in its input, the first in all outputs, and how many."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class _Work:
    """What is done: by each rank (`runs`; None: nothing), in so many parts."""

    kind: Kind
    runs: tuple[_Run | None, ...]
    instances: int
    in_place: bool

    def group(self, buffer: Buffer) -> SwitchGroup:
        """Switch channel of all ranks."""
        return SwitchGroup(buffer, tuple(range(len(self.runs))))

    def part(self, buffer: Buffer, first: int, count: int, number: int) -> Cells:
        """Cells of an instance: one part of all cells of some chunks."""
        return Cells(buffer, first * self.instances + number * count, count)


def switch_gpus(schedule: Schedule, cut: SwitchCut, *, in_place: bool) -> tuple[PlanGpu, ...]:
    """Return the programs of all ranks that let the switch do what the messages of a schedule do.

    Parameters
    ----------
    schedule
        Collective, chunks and machine; its messages are not looked at.
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
        site = Site(topology.node_ranks, instances, cut.pieces, in_place, cut.rails)
        return rails_gpus(collective, topology.node_of, site)
    script = Script(topology.node_of)
    work = _Work(collective.kind, _runs(collective), instances, in_place)
    for number in range(instances):
        for rank in range(collective.num_ranks):
            _write_block(script, work, Post(rank, 0, number))
    return script.gpus(Lengths(collective.input_chunks * instances, collective.output_chunks * instances))


def _can_serve(topology: Topology, kind: Kind, ranks: Sequence[int]) -> bool:
    """Whether some switch can do for these ranks what a collective needs: multicast, and for sums also add up."""
    return any(
        one.multicast and (one.reduce or kind is not Kind.ALLREDUCE) and set(ranks) <= set(one.ranks)
        for one in topology.switches
    )


def needs_rails(schedule: Schedule) -> bool:
    """Whether switches serve nodes, and not all ranks at once.

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
    if _can_serve(topology, kind, range(topology.num_ranks)):
        return False
    needed = "multicasts and reduces" if kind is Kind.ALLREDUCE else "multicasts"
    nodes = topology.node_ranks
    if len(nodes) == 1 or not all(len(ranks) > 1 and _can_serve(topology, kind, ranks) for ranks in nodes):
        among = f"all its {topology.num_ranks} ranks" if len(nodes) == 1 else "all ranks of every node"
        raise InputError(
            f"topology {topology.name} has no switch that {needed} among {among}; "
            "leave --switch out, or say so in the topology (multicast, reduce) where the device can",
            path="command line",
            field="--switch",
        )
    if len({len(ranks) for ranks in nodes}) > 1 or any(
        (a, b) not in topology.links_between for rail in zip(*nodes, strict=True) for a in rail for b in rail if a != b
    ):
        raise InputError(
            f"nodes of topology {topology.name} differ in size, or ranks of one local number have no links to each other, which "
            "plans by switch need; leave --switch out",
            path="command line",
            field="--switch",
        )
    return True


def _runs(collective: Collective) -> tuple[_Run | None, ...]:
    """What each rank hands out: its own share, but all of it the root of a Broadcast."""
    ranks, share = range(collective.num_ranks), collective.chunks_per_rank
    if collective.kind is Kind.BROADCAST:
        return tuple(_Run(0, 0, share) if rank == collective.root else None for rank in ranks)
    first = 0 if collective.kind is Kind.ALLGATHER else share  # the input is the rank's share, or all shares
    return tuple(_Run(first * rank, share * rank, share) for rank in ranks)


def _write_block(script: Script, work: _Work, post: Post) -> None:
    """What a rank does in one instance: the ranks that store are greeted by all others, and tell them when they are done."""
    others = [Post(rank, post.peer, post.instance) for rank in range(len(work.runs)) if rank != post.rank]
    storing = [other for other in others if work.runs[other.rank] is not None]
    served = others if work.runs[post.rank] is not None else []
    script.tell(post, "rlxsignal", storing)
    script.tell(post, "rlxwait", served)
    script.meet(post)
    run = work.runs[post.rank]
    if run is not None:
        _store(script, work, post, run)
        script.meet(post)
    script.tell(post, "signal", served)
    script.tell(post, "wait", storing)
    script.meet(post)


def _store(script: Script, work: _Work, post: Post, run: _Run) -> None:
    if work.kind is Kind.ALLREDUCE:
        # In place the input is the output; one name is enough for both.
        stored = Buffer.INPUT if work.in_place else Buffer.OUTPUT
        source = work.part(Buffer.INPUT, run.source, run.count, post.instance)
        target = work.part(stored, run.target, run.count, post.instance)
        script.sum_by_switch(post, work.group(Buffer.INPUT), source, work.group(stored), target)
        return
    target = work.part(Buffer.OUTPUT, run.target, run.count, post.instance)
    source = target if work.in_place else work.part(Buffer.INPUT, run.source, run.count, post.instance)
    script.multicast(post, source, work.group(Buffer.OUTPUT), target)
