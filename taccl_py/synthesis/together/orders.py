"""Orders of all messages of several groups: their schedules at once, on links and ports that some of them share.

Every group has a schedule of its own. One after the other they take the sum of their times; at once all messages go as soon as
their data and their ports allow, in one of several orders, and what ends first is best. So it never takes longer than one after
the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.timing import find_deliveries
from taccl_py.schedule.transform import untimed_messages
from taccl_py.synthesis.matching.dispatch import Barrier, QueuedMessage, dispatch
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class GroupMember:
    """A process group and its schedule.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order, and behind them those outside of it that pass its data on.
    schedule
        Of a collective or a demand, on the machine that these ranks see, ``machine.subset(ranks)``; its clock starts at the release.
    release_us
        When it may start.
    """

    ranks: tuple[int, ...]
    schedule: Schedule | DemandSchedule
    release_us: float = 0.0

    @property
    def end_us(self) -> float:
        """Time at which it is done where the others are silent."""
        return self.release_us + self.schedule.makespan_us

    def on(self, machine: Topology) -> GroupMember:
        """The same messages on another machine with the same links, where their times are but places in an order."""
        return replace(self, schedule=replace(self.schedule, topology=machine.subset(self.ranks)))


def orders(machine: Topology, members: Sequence[GroupMember]) -> list[tuple[Schedule | DemandSchedule, ...]]:
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


def makespan_us(schedules: Sequence[Schedule | DemandSchedule]) -> float:
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


def in_turn(members: Sequence[GroupMember]) -> tuple[Schedule | DemandSchedule, ...]:
    """Schedules of all groups, one after the other in the order of their releases."""
    begin_us, found = 0.0, {}
    for number in sorted(range(len(members)), key=lambda number: members[number].release_us):
        begin_us = max(begin_us, members[number].release_us)
        found[number] = _moved(members[number].schedule, begin_us)
        begin_us += members[number].schedule.makespan_us
    return tuple(found[number] for number in range(len(members)))


def _moved(schedule: Schedule | DemandSchedule, begin_us: float) -> Schedule | DemandSchedule:
    if not begin_us:
        return schedule
    moved = (replace(m, start_us=m.start_us + begin_us, end_us=m.end_us + begin_us) for m in schedule.messages)
    return replace(schedule, messages=tuple(moved))


def _at_once(
    machine: Topology, members: Sequence[GroupMember], rule: Callable[[int, float], float]
) -> tuple[Schedule | DemandSchedule, ...]:
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
        begin = len(queued)
        for m in schedule.messages:
            link, place = links[group][m.link], rule(group, m.start_us)
            chunks = tuple(bases[group] + chunk for chunk in m.chunks)
            queued.append(
                QueuedMessage(link, chunks, m.reduce, _megabytes(schedule, m), place, Barrier(missing=1), m.packed)
            )
        bases.append(bases[group] + _num_chunks(schedule))
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


def _num_chunks(schedule: Schedule | DemandSchedule) -> int:
    return len(schedule.demand.chunks) if isinstance(schedule, DemandSchedule) else schedule.collective.num_chunks


def _megabytes(schedule: Schedule | DemandSchedule, message: Message) -> float:
    """Size of a message."""
    if isinstance(schedule, DemandSchedule):
        return schedule.size_bytes(message.chunks) / BYTES_PER_MB
    return len(message.chunks) * schedule.chunk_bytes / BYTES_PER_MB


def _links(machine: Topology, member: GroupMember) -> list[int]:
    """Link of the machine for every link that the group sees."""
    seen = member.schedule.topology
    return [
        machine.links_between[member.ranks[link.src], member.ranks[link.dst]][seen.lane[number]]
        for number, link in enumerate(seen.links)
    ]
