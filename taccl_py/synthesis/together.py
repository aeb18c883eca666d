"""Several process groups that share a machine: their schedules at once, on links and ports that some of them share.

Every group has a schedule of its own. One after the other they take the sum of their times; at once all messages go as soon as
their data and their ports allow, in one of several orders, and what ends first is best. So it never takes longer than one after
the other.
"""

from __future__ import annotations

from bisect import bisect_right
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


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A process group and its collective.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order.
    kind, size_bytes
        The collective, and its size as nccl-tests counts it.
    release_us
        When it may start.
    """

    ranks: tuple[int, ...]
    kind: Kind
    size_bytes: float
    release_us: float = 0.0


@dataclass(frozen=True)
class GroupMember:
    """A process group and its schedule.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order.
    schedule
        On the machine that the group sees, ``machine.subset(ranks)``; its clock starts at the release.
    release_us
        When it may start.
    """

    ranks: tuple[int, ...]
    schedule: Schedule
    release_us: float = 0.0

    @property
    def end_us(self) -> float:
        """Time at which it is done where the others are silent."""
        return self.release_us + self.schedule.makespan_us


def orders(machine: Topology, members: Sequence[GroupMember]) -> list[tuple[Schedule, ...]]:
    """Schedules of all groups on the clock of the machine, for several orders, the one that ends first in front.

    Parameters
    ----------
    machine
        What they share.
    members
        The groups; a rank may be in several.
    """
    longest_us = max(member.end_us for member in members)

    def as_planned(group: int, start_us: float) -> float:
        return members[group].release_us + start_us

    def ending_together(group: int, start_us: float) -> float:
        return start_us + longest_us - members[group].schedule.makespan_us

    def by_group(group: int, start_us: float) -> float:
        return group * longest_us + start_us

    if _share_nothing(machine, members):
        return [tuple(_moved(member.schedule, member.release_us) for member in members)]
    found = [_at_once(machine, members, rule) for rule in (as_planned, ending_together, by_group)]
    found.append(in_turn(members))
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


def in_turn(members: Sequence[GroupMember]) -> tuple[Schedule, ...]:
    """Schedules of all groups, one after the other in the order of their releases."""
    begin_us, found = 0.0, {}
    for number in sorted(range(len(members)), key=lambda number: members[number].release_us):
        begin_us = max(begin_us, members[number].release_us)
        found[number] = _moved(members[number].schedule, begin_us)
        begin_us += members[number].schedule.makespan_us
    return tuple(found[number] for number in range(len(members)))


def _moved(schedule: Schedule, begin_us: float) -> Schedule:
    if not begin_us:
        return schedule
    moved = (replace(m, start_us=m.start_us + begin_us, end_us=m.end_us + begin_us) for m in schedule.messages)
    return replace(schedule, messages=tuple(moved))


def _at_once(
    machine: Topology, members: Sequence[GroupMember], rule: Callable[[int, float], float]
) -> tuple[Schedule, ...]:
    """All messages in one order of places, given by group and planned start."""
    queued: list[QueuedMessage] = []
    first: list[QueuedMessage] = []
    released: list[tuple[float, Barrier]] = []
    # Chunks of all groups are numbered one behind the other, so that they tell whose a message is.
    bases: list[int] = [0]
    links: list[list[int]] = []
    for group, member in enumerate(members):
        schedule = member.schedule
        links.append(_links(machine, member))
        chunk_mb = schedule.chunk_bytes / BYTES_PER_MB
        begin = len(queued)
        for m in schedule.messages:
            link, place = links[group][m.link], rule(group, m.start_us)
            chunks = tuple(bases[group] + chunk for chunk in m.chunks)
            queued.append(
                QueuedMessage(link, chunks, m.reduce, len(m.chunks) * chunk_mb, place, Barrier(missing=1), m.packed)
            )
        bases.append(bases[group] + schedule.collective.num_chunks)
        release = Barrier(missing=1)
        for each, needed in zip(
            queued[begin:], find_deliveries(schedule.topology, untimed_messages(schedule)), strict=True
        ):
            if not needed:
                if member.release_us:
                    each.wait(release)
                else:
                    first.append(each)
                continue
            barrier = Barrier()
            each.wait(barrier)
            for number in sorted(needed):
                told = queued[begin + number].tells
                if told is not None:
                    barrier.after(told)
        released.append((member.release_us, release))
    messages: list[list[Message]] = [[] for _ in members]
    own = [{link: number for number, link in enumerate(each)} for each in links]
    for message in dispatch(machine, first, (), released):
        group = bisect_right(bases, message.chunks[0]) - 1
        chunks = tuple(chunk - bases[group] for chunk in message.chunks)
        messages[group].append(replace(message, link=own[group][message.link], chunks=chunks))
    return tuple(replace(m.schedule, messages=tuple(each)) for m, each in zip(members, messages, strict=True))


def _links(machine: Topology, member: GroupMember) -> list[int]:
    """Link of the machine for every link that the group sees."""
    seen = member.schedule.topology
    return [
        machine.links_between[member.ranks[link.src], member.ranks[link.dst]][seen.lane[number]]
        for number, link in enumerate(seen.links)
    ]


def together_bound(machine: Topology, tasks: Sequence[GroupTask]) -> Bound:
    """Lower bound for the collectives of all groups at once: the slowest one alone, and what all bring through the nodes' ports.

    Parameters
    ----------
    machine
        What they share.
    tasks
        The groups, and what each does when.
    """
    found = [_alone(machine, task) for task in tasks]
    net, finder = Net.of(machine), CutFinder(Net.of(machine))
    usable = np.zeros(net.num_links, dtype=bool)
    for task in tasks:
        is_member = np.isin(np.arange(machine.num_ranks), task.ranks)
        usable |= is_member[net.src] & is_member[net.dst]
    size_bytes = max(task.size_bytes for task in tasks)
    data = "a group" if len({task.size_bytes for task in tasks}) == 1 else "the largest group"
    idle_us = idle_times(net, np.zeros(machine.num_ranks), np.zeros(machine.num_ranks))
    for node, inside in enumerate(machine.node_ranks):
        is_inside = np.isin(np.arange(machine.num_ranks), inside)
        for is_near, direction in ((is_inside, "out"), (~is_inside, "in")):
            amount = sum(
                _crossing(task.kind, [bool(is_near[rank]) for rank in task.ranks]) * task.size_bytes / size_bytes
                for task in tasks
            )
            resources = finder.cheapest_cover(np.flatnonzero(usable & is_near[net.src] & ~is_near[net.dst]))
            if amount > 0 and resources is not None:
                reason = f"bandwidth: {amount:.3g} times the data of {data} through node {node}'s ports {direction}"
                found.append(Charge.cut(net, resources, idle_us, amount, reason).at(size_bytes))
    node_of = net.node_of
    resources = finder.cheapest_cover(np.flatnonzero(usable & (node_of[net.src] != node_of[net.dst])))
    amount = sum(
        _transfers(task.kind, np.bincount(node_of[list(task.ranks)])) * task.size_bytes / size_bytes for task in tasks
    )
    if amount > 0 and resources is not None:
        reason = f"bandwidth: {amount:.3g} transfers of the data of {data} between nodes"
        found.append(Charge.cut(net, resources, idle_us, amount, reason).at(size_bytes))
    return best_of(found)


def _alone(machine: Topology, task: GroupTask) -> Bound:
    """Bound of a group by itself, behind its release."""
    bound = demand_bound(machine.subset(task.ranks), task.kind, 0, task.size_bytes)
    reason = f"{bound.reason}, behind the release at {task.release_us:g} us" if task.release_us else bound.reason
    return replace(bound, time_us=bound.time_us + task.release_us, reason=reason)


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
