"""Orders of all messages of several groups: their schedules at once, on links and ports that some of them share.

Every group has a schedule of its own. One after the other they take the sum of their times; at once all messages go as soon as
their data and their ports allow, in one of several orders, and what ends first is best. So it never takes longer than one after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from taccl_py.schedule.dispatch import Dispatch, OccupationTimes
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message, Schedule, sort_messages
from taccl_py.schedule.timing import find_deliveries
from taccl_py.schedule.transform import untimed_messages
from taccl_py.topology.model import Topology
from taccl_py.work import count_work


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
    loads: list[tuple[int, float]] = []
    places: list[float] = []
    waits_for: list[Collection[int]] = []
    number = sum(len(member.schedule.messages) for member in members)
    for group, member in enumerate(members):
        first, links = len(loads), _links(machine, member)
        for message in member.schedule.messages:
            loads.append((links[message.link], _num_bytes(member.schedule, message)))
            places.append(rule(group, message.start_us))
        # What waits for nothing else waits for the release of its group, whose number is behind those of all messages.
        for needed in find_deliveries(member.schedule.topology, untimed_messages(member.schedule)):
            waits_for.append([first + one for one in needed] or [number + group])
    count_work("timed", len(loads))
    starts_us, lasting_us = _dispatched(machine, loads, places, waits_for, [member.release_us for member in members])
    times = zip(starts_us, lasting_us, strict=True)
    return tuple(
        replace(
            member.schedule,
            messages=sort_messages(
                replace(message, start_us=start_us, end_us=start_us + us)
                for message, (start_us, us) in zip(
                    member.schedule.messages, islice(times, len(member.schedule.messages)), strict=True
                )
            ),
        )
        for member in members
    )


def _dispatched(
    machine: Topology,
    loads: Sequence[tuple[int, float]],
    places: Sequence[float],
    waits_for: Sequence[Collection[int]],
    releases_us: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Starts of messages, each a link and its bytes, and how long they take; they wait for each other, and for releases, numbered behind them."""
    times, number = OccupationTimes(machine, loads), len(loads)
    every = number + len(releases_us)
    # A release is a message that occupies nothing; it goes before all others.
    starts_us = Dispatch(
        machine.num_resources,
        [*(link for link, _ in loads), *[len(machine.links)] * len(releases_us)],
        [*times.uses, *[()] * len(releases_us)],
        [*times.message_us, *releases_us],
        [*waits_for, *[()] * len(releases_us)],
        [*range(number, every), *sorted(range(number), key=places.__getitem__)],
    ).starts_us()
    return starts_us[:number], times.message_us


def _num_bytes(schedule: Schedule | DemandSchedule, message: Message) -> float:
    """Size of a message."""
    if isinstance(schedule, DemandSchedule):
        return schedule.size_bytes(message.chunks)
    return len(message.chunks) * schedule.chunk_bytes


def _links(machine: Topology, member: GroupMember) -> list[int]:
    """Link of the machine for every link that the group sees."""
    seen = member.schedule.topology
    return [
        machine.links_between[member.ranks[link.src], member.ranks[link.dst]][seen.lane[number]]
        for number, link in enumerate(seen.links)
    ]
