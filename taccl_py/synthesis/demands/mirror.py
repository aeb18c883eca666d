"""Sums for one rank each, sent as copies on the reversed machine and run backwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.synthesis.demands.classes import ChunkClass
from taccl_py.synthesis.demands.dispatch import PlannedMessage
from taccl_py.synthesis.demands.plan import DemandPlan
from taccl_py.topology.model import Topology


def mirrored_classes(classes: Sequence[ChunkClass]) -> tuple[ChunkClass, ...] | None:
    """Classes of copies from those who want a sum to those who add to it; None unless all are sums for one rank, each term on one rank."""
    if not all(each.is_sum and len(each.wants) == 1 and all(len(term) == 1 for term in each.terms) for each in classes):
        return None
    return tuple(
        ChunkClass(
            (each.wants,), tuple(rank for (rank,) in each.terms if rank not in each.wants), each.chunks, each.size_bytes
        )
        for each in classes
    )


def run_backwards(machine: Topology, schedule: DemandSchedule) -> DemandSchedule:
    """Schedule of sums on a machine of one that copies the mirrored classes on the reversed machine."""
    links = schedule.topology.reversed_link()
    came: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    found: list[PlannedMessage] = []
    for number, message in enumerate(sorted(schedule.messages, key=lambda message: -message.end_us)):
        link = links[message.link]
        src, dst = machine.links[link].src, machine.links[link].dst
        after = sorted({before for chunk in message.chunks for before in came[chunk, src]})
        size = schedule.size_bytes(message.chunks)
        rank = schedule.makespan_us - message.end_us
        found.append(PlannedMessage(link, message.chunks, size, tuple(after), reduce=True, rank=rank))
        for chunk in message.chunks:
            came[chunk, dst].append(number)
    return DemandPlan(machine, schedule.demand, tuple(found)).timed()
