"""Several process groups that share a machine: their schedules at once, on links and ports that some of them share.

Every group has a schedule of its own. One after the other they take the sum of their times; at once all messages go as soon as
their data and their ports allow, in one of several orders, and what ends first is best. So it never takes longer than one after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.timing import find_deliveries
from taccl_py.schedule.transform import untimed_messages
from taccl_py.synthesis.bounds import Bound, demand_bound
from taccl_py.synthesis.bounds.bound import best_of
from taccl_py.synthesis.bounds.charge import Charge, idle_times
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.matching.dispatch import Barrier, QueuedMessage, dispatch
from taccl_py.synthesis.symmetry import IntArray
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class GroupMember:
    """A process group and its schedule.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order.
    schedule
        On the machine that the group sees, ``machine.subset(ranks)``.
    """

    ranks: tuple[int, ...]
    schedule: Schedule


def orders(machine: Topology, members: Sequence[GroupMember]) -> list[tuple[Schedule, ...]]:
    """Schedules of all groups on the clock of the machine, for several orders, the one that ends first in front.

    Parameters
    ----------
    machine
        What they share.
    members
        Groups without common ranks.
    """
    longest_us = max(member.schedule.makespan_us for member in members)

    def as_planned(group: int, start_us: float) -> float:  # noqa: ARG001
        return start_us

    def ending_together(group: int, start_us: float) -> float:
        return start_us + longest_us - members[group].schedule.makespan_us

    def by_group(group: int, start_us: float) -> float:
        return group * longest_us + start_us

    if _share_nothing(machine, members):
        return [tuple(member.schedule for member in members)]
    found = [_at_once(machine, members, rule) for rule in (as_planned, ending_together, by_group)]
    found.append(_in_turn(members))
    return sorted(found, key=makespan_us)


def makespan_us(schedules: Sequence[Schedule]) -> float:
    """Time at which the last group is done."""
    return max(schedule.makespan_us for schedule in schedules)


def _share_nothing(machine: Topology, members: Sequence[GroupMember]) -> bool:
    """True if no port is used by two groups."""
    taken: set[int] = set()
    for member in members:
        links = _links(machine, member)
        used = {message.link for message in member.schedule.messages}
        resources = {resource for link in used for resource in machine.resources_of[links[link]]}
        if taken & resources:
            return False
        taken |= resources
    return True


def _in_turn(members: Sequence[GroupMember]) -> tuple[Schedule, ...]:
    begin_us, found = 0.0, []
    for member in members:
        schedule = member.schedule
        moved = (replace(m, start_us=m.start_us + begin_us, end_us=m.end_us + begin_us) for m in schedule.messages)
        found.append(replace(schedule, messages=tuple(moved)))
        begin_us += schedule.makespan_us
    return tuple(found)


def _at_once(
    machine: Topology, members: Sequence[GroupMember], rule: Callable[[int, float], float]
) -> tuple[Schedule, ...]:
    """All messages in one order of places, given by group and planned start."""
    queued: list[QueuedMessage] = []
    first: list[QueuedMessage] = []
    group_of: dict[int, int] = {}
    links: list[list[int]] = []
    for group, member in enumerate(members):
        schedule = member.schedule
        links.append(_links(machine, member))
        group_of.update(dict.fromkeys(member.ranks, group))
        chunk_mb = schedule.chunk_bytes / BYTES_PER_MB
        begin = len(queued)
        for m in schedule.messages:
            link, place = links[group][m.link], rule(group, m.start_us)
            queued.append(
                QueuedMessage(link, m.chunks, m.reduce, len(m.chunks) * chunk_mb, place, Barrier(missing=1), m.packed)
            )
        for each, needed in zip(
            queued[begin:], find_deliveries(schedule.topology, untimed_messages(schedule)), strict=True
        ):
            if not needed:
                first.append(each)
                continue
            barrier = Barrier()
            each.wait(barrier)
            for number in sorted(needed):
                told = queued[begin + number].tells
                if told is not None:
                    barrier.after(told)
    messages: list[list[Message]] = [[] for _ in members]
    own = [{link: number for number, link in enumerate(each)} for each in links]
    for message in dispatch(machine, first, ()):
        group = group_of[machine.links[message.link].src]
        messages[group].append(replace(message, link=own[group][message.link]))
    return tuple(replace(m.schedule, messages=tuple(each)) for m, each in zip(members, messages, strict=True))


def _links(machine: Topology, member: GroupMember) -> list[int]:
    """Link of the machine for every link that the group sees."""
    seen = member.schedule.topology
    return [
        machine.links_between[member.ranks[link.src], member.ranks[link.dst]][seen.lane[number]]
        for number, link in enumerate(seen.links)
    ]


def together_bound(machine: Topology, groups: Sequence[Sequence[int]], kind: Kind, size_bytes: float) -> Bound:
    """Lower bound for a collective of all groups at once: the slowest one alone, and what all bring through the nodes' ports.

    Parameters
    ----------
    machine
        What they share.
    groups
        Ranks of each.
    kind, size_bytes
        The collective of each group, and its size as nccl-tests counts it.
    """
    alone = [demand_bound(machine.subset(ranks), kind, 0, size_bytes) for ranks in groups]
    net, finder = Net.of(machine), CutFinder(Net.of(machine))
    group_of = np.full(machine.num_ranks, -1)
    for number, ranks in enumerate(groups):
        group_of[list(ranks)] = number
    usable = (group_of[net.src] >= 0) & (group_of[net.src] == group_of[net.dst])
    idle_us = idle_times(net, np.zeros(machine.num_ranks), np.zeros(machine.num_ranks))
    found = list(alone)
    for node, inside in enumerate(machine.node_ranks):
        is_inside = np.isin(np.arange(machine.num_ranks), inside)
        for is_near, direction in ((is_inside, "out"), (~is_inside, "in")):
            amount = sum(_crossing(kind, [bool(is_near[rank]) for rank in ranks]) for ranks in groups)
            resources = finder.cheapest_cover(np.flatnonzero(usable & is_near[net.src] & ~is_near[net.dst]))
            if amount > 0 and resources is not None:
                reason = f"bandwidth: {amount:.3g} times the data of a group through node {node}'s ports {direction}"
                found.append(Charge.cut(net, resources, idle_us, amount, reason).at(size_bytes))
    node_of = net.node_of
    resources = finder.cheapest_cover(np.flatnonzero(usable & (node_of[net.src] != node_of[net.dst])))
    amount = sum(_transfers(kind, np.bincount(node_of[list(ranks)])) for ranks in groups)
    if amount > 0 and resources is not None:
        reason = f"bandwidth: {amount:.3g} transfers of the data of a group between nodes"
        found.append(Charge.cut(net, resources, idle_us, amount, reason).at(size_bytes))
    return best_of(found)


def _transfers(kind: Kind, members: IntArray) -> float:
    """Least multiple of a group's data that goes from node to node.

    What a rank has must get into every other node of the group; a sum must be gathered from as many and handed out to as many.

    Parameters
    ----------
    kind
        The collective.
    members
        Ranks of the group in every node.
    """
    size, others = int(members.sum()), int((members > 0).sum()) - 1
    across = size * size - int((members * members).sum())
    times = {
        Kind.ALLREDUCE: 2.0 * others,
        Kind.ALLGATHER: float(others),
        Kind.REDUCESCATTER: float(others),
        Kind.ALLTOALL: across / size,
    }
    return times.get(kind, 0.0)


def _crossing(kind: Kind, is_near: Sequence[bool]) -> float:
    """Part of its size that a group has to send from its near ranks to the others."""
    near, size = sum(is_near), len(is_near)
    far = size - near
    if not near or not far:
        return 0.0
    shares = {
        Kind.ALLREDUCE: 1.0,
        Kind.ALLGATHER: near / size,
        Kind.REDUCESCATTER: far / size,
        Kind.ALLTOALL: near * far / size,
    }
    return shares.get(kind, 0.0)
