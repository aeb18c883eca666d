"""List scheduling of planned messages on links and ports.

At every moment, of the messages whose data have arrived and whose link and ports are all free, the first by priority starts. The first one of a
link that cannot start is kept with one of the resources that it lacks and looked at again when that becomes free, so that a hundred thousand
messages take seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

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


class MessageCosts:
    """Times for which messages of a plan occupy their resources, and when they arrive; many are alike."""

    def __init__(self, topology: Topology, plan: Sequence[PlannedMessage]) -> None:
        known: dict[tuple[int, int], tuple[tuple[tuple[int, float], ...], float]] = {}
        self.uses: list[tuple[tuple[int, float], ...]] = []
        self.message_us: list[float] = []
        for message in plan:
            key = (message.link, message.size_bytes)
            if key not in known:
                uses = tuple(
                    (r, topology.occupancy_us(r, message.size_bytes)) for r in topology.resources_of[message.link]
                )
                known[key] = (uses, topology.message_us(message.link, message.size_bytes))
            uses, whole_us = known[key]
            self.uses.append(uses)
            self.message_us.append(whole_us)

    def loads_us(self, num_resources: int) -> list[float]:
        """For how long every resource is occupied by all messages."""
        found = [0.0] * num_resources
        for uses in self.uses:
            for resource, occupied_us in uses:
                found[resource] += occupied_us
        return found

    def tails_us(self, plan: Sequence[PlannedMessage]) -> list[float]:
        """Longest path from the start of each message to the end of what waits for it."""
        behind = [0.0] * len(plan)
        found = [0.0] * len(plan)
        for i in reversed(range(len(plan))):
            found[i] = self.message_us[i] + behind[i]
            for before in plan[i].after:
                behind[before] = max(behind[before], found[i])
        return found


def dispatch_plan(
    topology: Topology, plan: Sequence[PlannedMessage], order: Sequence[int], costs: MessageCosts
) -> list[float]:
    """Start of every message in microseconds, in an order of their numbers where there is a choice."""
    count_work("placed", len(plan))
    return _DispatchState(topology, plan, order, costs).run()


class _DispatchState:
    """State of a dispatch: what is free, what waits for data, and what waits for a resource."""

    def __init__(
        self,
        topology: Topology,
        plan: Sequence[PlannedMessage],
        order: Sequence[int],
        costs: MessageCosts,
    ) -> None:
        self._uses, self._message_us = costs.uses, costs.message_us
        self._place = [0] * len(plan)
        for place, i in enumerate(order):
            self._place[i] = place
        self._at_place = order
        self._missing = [len(set(message.after)) for message in plan]
        self._users: list[list[int]] = [[] for _ in plan]
        for i, message in enumerate(plan):
            for before in set(message.after):
                self._users[before].append(i)
        self._free_us = [0.0] * topology.num_resources
        # Messages of each link whose data have arrived, and links, by their first message, that wait for a resource.
        self._links = [message.link for message in plan]
        self._ready: list[list[int]] = [[] for _ in topology.links]
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_resources)]
        self._start_us = [-1.0] * len(plan)
        # Events: (time, resource that becomes free) and (time, number of resources + message that arrives).
        self._events: list[tuple[float, int]] = []
        self._first_message = topology.num_resources

    def run(self) -> list[float]:
        """Start all messages."""
        self._serve(0.0, sorted(self._place[i] for i, missing in enumerate(self._missing) if not missing), [])
        while self._events:
            now = self._events[0][0]
            ready: list[int] = []
            freed: list[int] = []
            while self._events and self._events[0][0] <= now:
                event = heapq.heappop(self._events)[1]
                if event < self._first_message:
                    freed.append(event)
                else:
                    ready += self._arrive(event - self._first_message)
            heapq.heapify(ready)
            self._serve(now, ready, freed)
        return self._start_us

    def _arrive(self, i: int) -> list[int]:
        """Places of the messages that have waited for this one alone."""
        found = []
        for user in self._users[i]:
            self._missing[user] -= 1
            if not self._missing[user]:
                found.append(self._place[user])
        return found

    def _serve(self, now: float, ready: list[int], freed: list[int]) -> None:
        """Start what can start: of what is ready, and of what waits for resources that are free now."""
        heads = [(self._waiting[r][0], r) for r in freed if self._waiting[r]]
        heapq.heapify(heads)
        while ready or heads:
            if heads and (not ready or heads[0][0][0] < ready[0]):
                _, resource = heapq.heappop(heads)
                if self._free_us[resource] > now or not self._waiting[resource]:
                    continue
                place, link = heapq.heappop(self._waiting[resource])
                if self._ready[link] and self._ready[link][0] == place:
                    self._start_or_park(link, now)
                if self._free_us[resource] <= now and self._waiting[resource]:
                    heapq.heappush(heads, (self._waiting[resource][0], resource))
            else:
                place = heapq.heappop(ready)
                link = self._links[self._at_place[place]]
                heapq.heappush(self._ready[link], place)
                if self._ready[link][0] == place:
                    self._start_or_park(link, now)

    def _start_or_park(self, link: int, now: float) -> None:
        """Start the first message of a link, and the next ones where that takes no time of the link."""
        free_us, ready = self._free_us, self._ready[link]
        while ready:
            i = self._at_place[ready[0]]
            for resource, _ in self._uses[i]:
                if free_us[resource] > now:
                    heapq.heappush(self._waiting[resource], (ready[0], link))
                    return
            heapq.heappop(ready)
            self._start_us[i] = now
            for resource, occupied_us in self._uses[i]:
                free_us[resource] = now + occupied_us
                heapq.heappush(self._events, (now + occupied_us, resource))
            heapq.heappush(self._events, (now + self._message_us[i], self._first_message + i))


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
