"""From a plan to a schedule: the one place where messages are charged their time.

A plan fixes which chunks go together over which links and in which order. Times follow: every message starts as soon as its
chunks are at the sender and its link and ports have served the messages planned before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from taccl_py.collective import Collective
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.layout import Draft, choose_scratch, contiguous_runs
from taccl_py.topology.model import Topology

# What moments that are the same can differ by: as a part of themselves, and of the whole plan.
_ROUNDING, _PLAN_ROUNDING = 1e-9, 1e-12


def build_schedule(
    topology: Topology, collective: Collective, chunk_bytes: float, drafts: Sequence[Draft], *, as_named: bool = False
) -> Schedule:
    """Place chunks, cut batches that are not contiguous, and time the messages exactly.

    Parameters
    ----------
    topology, collective, chunk_bytes
        The problem.
    drafts
        Planned messages; their times must be consistent with each other (a chunk arrives before it is sent on).
    as_named
        How scratch is laid out, see `taccl_py.schedule.layout.choose_scratch`.
    """
    scratch = choose_scratch(topology, collective, drafts, as_named=as_named)
    runs = contiguous_runs(topology, collective, scratch, drafts)
    return Schedule(topology, collective, chunk_bytes, time_messages(topology, chunk_bytes, runs), scratch)


def time_messages(topology: Topology, chunk_bytes: float, drafts: Sequence[Draft]) -> tuple[Message, ...]:
    """Earliest times of messages that keep the plan's order on every link and port and wait for the same deliveries."""
    clock = _Clock(topology, _sizes_bytes(chunk_bytes, drafts), drafts)
    for i in clock.order:
        clock.send(i)
    return tuple(clock.message(i) for i in clock.order)


def dispatch_messages(topology: Topology, chunk_bytes: float, drafts: Sequence[Draft]) -> tuple[Message, ...]:
    """Times of messages that wait for the plan's deliveries in an order of their own.

    Of the messages that could start first, the one with the longest way to go starts, counted to the end of what waits for it.
    """
    clock = _Clock(topology, _sizes_bytes(chunk_bytes, drafts), drafts)
    return tuple(clock.message(i) for i in clock.dispatch())


def dispatch_drafts(topology: Topology, sizes_bytes: Sequence[float], drafts: Sequence[Draft]) -> list[Draft]:
    """The plan with the times of `dispatch_messages`, every message having a size of its own."""
    clock = _Clock(topology, sizes_bytes, drafts)
    clock.dispatch()
    return [replace(d, start=clock.start_us[i], end=clock.end_us[i]) for i, d in enumerate(drafts)]


def time_drafts(topology: Topology, sizes_bytes: Sequence[float], drafts: Sequence[Draft]) -> list[Draft]:
    """The plan with the times of `time_messages`, every message having a size of its own."""
    clock = _Clock(topology, sizes_bytes, drafts)
    for i in clock.order:
        clock.send(i)
    return [replace(d, start=clock.start_us[i], end=clock.end_us[i]) for i, d in enumerate(drafts)]


def plan_us(topology: Topology, sizes_bytes: Sequence[float], drafts: Sequence[Draft]) -> float:
    """When the last message of a plan has arrived, every message having a size of its own and the plan's order being kept."""
    return max((draft.end for draft in time_drafts(topology, sizes_bytes, drafts)), default=0.0)


def _sizes_bytes(chunk_bytes: float, drafts: Sequence[Draft]) -> list[float]:
    return [len(draft.chunks) * chunk_bytes for draft in drafts]


def plan_order(drafts: Sequence[Draft]) -> list[int]:
    """Positions of messages in the order in which links and ports serve them."""
    return sorted(range(len(drafts)), key=lambda i: (drafts[i].start, i))


def find_deliveries(topology: Topology, drafts: Sequence[Draft]) -> list[set[int]]:
    """Messages that bring chunks of each message to its sender, as far as the plan has them arrive before it starts.

    What is added at the receiver also waits for what is stored there before, which it would be lost under.
    """
    brings: dict[tuple[int, int], list[int]] = {}
    stores: dict[tuple[int, int], list[int]] = {}
    for i in plan_order(drafts):
        for chunk in drafts[i].chunks:
            key = (chunk, topology.links[drafts[i].link].dst)
            brings.setdefault(key, []).append(i)
            if not drafts[i].reduce:
                stores.setdefault(key, []).append(i)
    # Where a plan was turned around in time, moments near 0 are differences of late ones.
    rounding = _PLAN_ROUNDING * max((abs(draft.end) for draft in drafts), default=0.0)
    found = []
    for draft in drafts:
        link = topology.links[draft.link]
        latest = draft.start + max(_ROUNDING * abs(draft.start), rounding)
        candidates = {j for chunk in draft.chunks for j in brings.get((chunk, link.src), ())}
        if draft.reduce:
            candidates |= {j for chunk in draft.chunks for j in stores.get((chunk, link.dst), ())}
        found.append({j for j in candidates if drafts[j].end <= latest})
    return found


class _Clock:
    """When links and ports are free and what has been sent."""

    def __init__(self, topology: Topology, sizes_bytes: Sequence[float], drafts: Sequence[Draft]) -> None:
        self.topology, self.sizes_bytes, self.drafts = topology, sizes_bytes, drafts
        self.order = plan_order(drafts)
        self.deliveries = find_deliveries(topology, drafts)
        self.free_us = [0.0] * topology.num_resources
        self.start_us = [0.0] * len(drafts)
        self.end_us = [0.0] * len(drafts)

    def earliest(self, i: int) -> float:
        """When a message can start: its deliveries have arrived, its link and ports are free."""
        free_us = [self.free_us[r] for r in self.topology.resources_of[self.drafts[i].link]]
        return max(0.0, *free_us, *(self.end_us[j] for j in self.deliveries[i]))

    def send(self, i: int) -> None:
        """Send a message now."""
        link, size, start = self.drafts[i].link, self.sizes_bytes[i], self.earliest(i)
        for r in self.topology.resources_of[link]:
            self.free_us[r] = start + self.topology.occupancy_us(r, size)
        self.start_us[i] = start
        self.end_us[i] = start + self.topology.message_us(link, size)

    def message(self, i: int) -> Message:
        """A message that has been sent."""
        draft = self.drafts[i]
        return Message(draft.link, draft.chunks, self.start_us[i], self.end_us[i], draft.reduce, draft.packed)

    def dispatch(self) -> list[int]:
        """Send all, of those that could start first always the one with the longest way to go; in which order."""
        waiting = [set(deliveries) for deliveries in self.deliveries]
        users: list[list[int]] = [[] for _ in self.drafts]
        way_us = [self.topology.message_us(d.link, size) for d, size in zip(self.drafts, self.sizes_bytes, strict=True)]
        for i in reversed(self.order):
            way_us[i] += max((way_us[user] for user in users[i]), default=0.0)
            for j in self.deliveries[i]:
                users[j].append(i)
        queue = [(0.0, -way_us[i], i) for i in self.order if not waiting[i]]
        heapq.heapify(queue)
        sent = []
        while queue:
            known, _, i = heapq.heappop(queue)
            start = self.earliest(i)
            if start > known:  # something else has been sent there meanwhile
                heapq.heappush(queue, (start, -way_us[i], i))
                continue
            self.send(i)
            sent.append(i)
            for user in users[i]:
                waiting[user].discard(i)
                if not waiting[user]:
                    heapq.heappush(queue, (self.earliest(user), -way_us[user], user))
        return sent
