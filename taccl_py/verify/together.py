"""The verifier of several schedules that share a machine: each is right alone, and no link or port serves two messages at a time.

Nothing is taken from the code that puts them together. Times are compared as in `taccl_py.verify.schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl_py.demand import DataDemand
from taccl_py.errors import Violation
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.tolerances import SAME_MOMENT
from taccl_py.topology.model import Topology
from taccl_py.verify.demand import verify_demand_schedule
from taccl_py.verify.moments import slack_us
from taccl_py.verify.schedule import verify_schedule


@dataclass(frozen=True)
class TimedGroup:
    """A process group and its schedule, on the clock of the machine.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order, and behind them those that only pass its data on.
    schedule
        Of a collective or of a demand, on the machine that these ranks see.
    release_us
        When it may start.
    asked
        Demand that the schedule is meant for, between the group's own ranks; None for a collective.
    """

    ranks: tuple[int, ...]
    schedule: Schedule | DemandSchedule
    release_us: float = 0.0
    asked: DataDemand | None = None


@dataclass(frozen=True, slots=True)
class _MachineUse:
    """A message on a link or port of the machine."""

    start_us: float
    free_us: float
    where: str


def verify_together(machine: Topology, parts: Sequence[TimedGroup]) -> tuple[Violation, ...]:
    """Return all errors to schedules of several groups on one machine; none means that they are correct.

    Parameters
    ----------
    machine
        Machine that they share.
    parts
        The groups.

    Rules: ``rank-twice``, ``no-such-rank``, ``other-machine``, ``too-early``, ``overlap``, and those of `verify_schedule` and
    `taccl_py.verify.demand.verify_demand_schedule`.
    """
    found = list(_check_ranks(machine, parts))
    if found:
        return tuple(found)
    for number, part in enumerate(parts):
        for violation in _check_alone(part):
            found.append(replace(violation, where=f"group {number} {violation.where}".strip()))
        found += _check_links(machine, number, part)
        found += _check_release(number, part)
    return tuple(found) or tuple(_check_overlaps(machine, parts))


def _check_alone(part: TimedGroup) -> tuple[Violation, ...]:
    """Errors to a group's schedule by itself."""
    if isinstance(part.schedule, Schedule):
        return verify_schedule(part.schedule)
    return verify_demand_schedule(part.schedule, None if part.asked is None else _with_relays(part.asked, part))


def _with_relays(asked: DataDemand, part: TimedGroup) -> DataDemand:
    """The demand with the ranks that only pass data on: they have nothing, and nothing is for them."""
    none = (0,) * (len(part.ranks) - asked.num_ranks)
    return replace(
        asked,
        num_ranks=len(part.ranks),
        input_bytes=asked.input_bytes + none,
        output_bytes=asked.output_bytes + none,
    )


def _check_ranks(machine: Topology, parts: Sequence[TimedGroup]) -> Iterator[Violation]:
    for number, part in enumerate(parts):
        if len(part.ranks) != part.schedule.topology.num_ranks:
            yield Violation(f"group {number}", "other-machine", "its schedule is for another number of ranks")
        for rank in part.ranks:
            if not 0 <= rank < machine.num_ranks:
                yield Violation(f"group {number}", "no-such-rank", f"rank {rank} does not exist")
        if len(set(part.ranks)) < len(part.ranks):
            yield Violation(f"group {number}", "rank-twice", "names a rank twice")


def _image(machine: Topology, part: TimedGroup, message: Message) -> int | None:
    """Link of the machine that a message of a group uses, or None if there is none."""
    seen = part.schedule.topology
    link = seen.links[message.link]
    lanes = machine.links_between.get((part.ranks[link.src], part.ranks[link.dst]), ())
    lane = seen.lane[message.link]
    return lanes[lane] if lane < len(lanes) else None


def _message_bytes(schedule: Schedule | DemandSchedule, message: Message) -> float:
    if isinstance(schedule, Schedule):
        return len(message.chunks) * schedule.chunk_bytes
    return sum(schedule.demand.chunks[chunk].size_bytes for chunk in message.chunks)


def _check_links(machine: Topology, number: int, part: TimedGroup) -> Iterator[Violation]:
    """Links and ports that a group uses cost what they cost on the machine."""
    seen = part.schedule.topology
    for place, message in enumerate(part.schedule.messages):
        link, image = seen.links[message.link], _image(machine, part, message)
        if image is not None:
            real = machine.links[image]
            costs = [(k.alpha_us, k.beta_us_per_mb, k.latency_us) for k in (link, real)]
            mine, theirs = ([(p.alpha_us, p.beta_us_per_mb) for p in ports] for ports in (
                [seen.ports[port] for port in link.ports], [machine.ports[port] for port in real.ports]
            ))  # fmt: skip
            if costs[0] == costs[1] and mine == theirs:
                continue
        yield Violation(
            f"group {number} message {place}", "other-machine", "uses a link that the machine does not have"
        )


def _check_release(number: int, part: TimedGroup) -> Iterator[Violation]:
    """No message of a group starts before its release."""
    for place, message in enumerate(part.schedule.messages):
        if message.start_us < part.release_us * (1 - SAME_MOMENT):
            what = f"starts at {message.start_us:.9g} us, before the release at {part.release_us:.9g} us"
            yield Violation(f"group {number} message {place}", "too-early", what)


def _check_overlaps(machine: Topology, parts: Sequence[TimedGroup]) -> Iterator[Violation]:
    """A link and a port of the machine serve one message at a time, whichever group's it is."""
    uses: dict[int, list[_MachineUse]] = {}
    for number, part in enumerate(parts):
        for place, message in enumerate(part.schedule.messages):
            image = _image(machine, part, message)
            size_bytes = _message_bytes(part.schedule, message)
            for resource in machine.resources_of[image] if image is not None else ():
                taken_us = machine.occupancy_us(resource, size_bytes)
                end_us = message.start_us + taken_us
                free_us = end_us - slack_us(taken_us, end_us)
                use = _MachineUse(message.start_us, free_us, f"group {number} message {place}")
                uses.setdefault(resource, []).append(use)
    for resource in sorted(uses):
        free_us, holder = -math.inf, ""
        for use in sorted(uses[resource], key=lambda u: (u.start_us, u.free_us)):
            if use.start_us < free_us:
                name = machine.resource_name(resource)
                yield Violation(use.where, "overlap", f"starts while {name} is busy with {holder}")
            if use.free_us > free_us:
                free_us, holder = use.free_us, use.where
