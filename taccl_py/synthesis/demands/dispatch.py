"""Planned messages of demands: what they cost, and list scheduling of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.schedule.dispatch import Dispatch, OccupationTimes, tails_us
from taccl_py.schedule.ir import Message
from taccl_py.topology.model import Topology
from taccl_py.work import count_work


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """A message before it has a time.

    Attributes
    ----------
    link
        Index into ``topology.links``.
    chunks
        What it carries.
    size_bytes
        How much that is.
    after
        Messages, by number, that must have arrived before it starts; smaller numbers than its own.
    reduce
        Whether its receiver adds it.
    rank
        Place in an order of the planner's.
    """

    link: int
    chunks: tuple[int, ...]
    size_bytes: int
    after: tuple[int, ...] = ()
    reduce: bool = False
    rank: float = 0.0


class MessageCosts(OccupationTimes):
    """Times of the messages of a plan."""

    def __init__(self, topology: Topology, plan: Sequence[PlannedMessage]) -> None:
        super().__init__(topology, ((message.link, message.size_bytes) for message in plan))

    def loads_us(self, num_resources: int) -> list[float]:
        """For how long every resource is occupied by all messages."""
        found = [0.0] * num_resources
        for uses in self.uses:
            for resource, occupied_us in uses:
                found[resource] += occupied_us
        return found

    def tails_us(self, plan: Sequence[PlannedMessage]) -> list[float]:
        """Longest path from the start of each message to the end of what waits for it."""
        return tails_us(self.message_us, [message.after for message in plan])


def dispatch_plan(
    topology: Topology, plan: Sequence[PlannedMessage], order: Sequence[int], costs: MessageCosts
) -> list[float]:
    """Start of every message in microseconds, in an order of their numbers where there is a choice."""
    count_work("placed", len(plan))
    links, waits_for = [message.link for message in plan], [set(message.after) for message in plan]
    return Dispatch(topology.num_resources, links, costs.uses, costs.message_us, waits_for, order).starts_us()


def timed_messages(
    plan: Sequence[PlannedMessage], start_us: Sequence[float], costs: MessageCosts
) -> tuple[Message, ...]:
    """Messages of a plan that start then."""
    return tuple(
        Message(m.link, m.chunks, start, start + whole, m.reduce, len(m.chunks) > 1)
        for m, start, whole in zip(plan, start_us, costs.message_us, strict=True)
    )


def makespan_us(start_us: Sequence[float], costs: MessageCosts) -> float:
    """When the last message has arrived."""
    return max((start + whole for start, whole in zip(start_us, costs.message_us, strict=True)), default=0.0)
