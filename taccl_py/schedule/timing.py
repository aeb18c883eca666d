"""From a plan to a schedule: the one place where messages are charged their time.

A plan fixes which chunks go together over which links and in which order. Times follow: every message starts as soon as its
chunks are at the sender and its link and ports have served the messages planned before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from taccl_py.collective import Collective
from taccl_py.schedule.dispatch import Dispatch, OccupationTimes, longest_first
from taccl_py.schedule.ir import Message, Schedule, rounding_us, telling_chunks
from taccl_py.schedule.layout import ChunkBlocks, UntimedMessage, choose_scratch, contiguous_runs
from taccl_py.topology.model import Topology
from taccl_py.work import count_work


def build_schedule(
    topology: Topology,
    collective: Collective,
    chunk_bytes: float,
    untimed: Sequence[UntimedMessage],
    *,
    as_named: bool = False,
) -> Schedule:
    """Place chunks, cut groups that are not contiguous, and time the messages exactly.

    Parameters
    ----------
    topology, collective, chunk_bytes
        The problem.
    untimed
        Planned messages; their times must be consistent with each other (a chunk arrives before it is sent on).
    as_named
        How scratch is laid out, see `taccl_py.schedule.layout.choose_scratch`.
    """
    # With named scratch, the groups with most chunks come first.
    blocks = ChunkBlocks.single(collective) if as_named else ChunkBlocks.of(collective, untimed)
    coarse = [blocks.coarse(message) for message in untimed]
    scratch = choose_scratch(topology, blocks, coarse, as_named=as_named)
    runs = contiguous_runs(topology, blocks, scratch, coarse)
    timed = PlanDependences.of(topology, runs).in_order([blocks.size(run.chunks) * chunk_bytes for run in runs])
    messages = tuple(Message(d.link, blocks.chunks(d.chunks), d.start, d.end, d.reduce, d.packed) for d in timed)
    return Schedule(topology, collective, chunk_bytes, messages, blocks.fine_scratch(scratch))


def time_messages(topology: Topology, chunk_bytes: float, untimed: Sequence[UntimedMessage]) -> tuple[Message, ...]:
    """Earliest times of messages that keep the plan's order on every link and port and wait for the same deliveries."""
    clock = _ScheduleClock(PlanDependences.of(topology, untimed), _sizes_bytes(chunk_bytes, untimed))
    clock.send_in_order()
    return tuple(clock.message(i) for i in clock.plan.order)


def dispatch_messages(topology: Topology, chunk_bytes: float, untimed: Sequence[UntimedMessage]) -> tuple[Message, ...]:
    """Times of messages that wait for the plan's deliveries in an order of their own.

    Of the messages that could start first, the one with the longest path to go starts, counted to the end of what waits for it.
    """
    clock = _ScheduleClock(PlanDependences.of(topology, untimed), _sizes_bytes(chunk_bytes, untimed))
    return tuple(clock.message(i) for i in clock.dispatch())


def _sizes_bytes(chunk_bytes: float, untimed: Sequence[UntimedMessage]) -> list[float]:
    return [len(message.chunks) * chunk_bytes for message in untimed]


def plan_order(untimed: Sequence[UntimedMessage]) -> list[int]:
    """Positions of messages in the order in which links and ports serve them."""
    return sorted(range(len(untimed)), key=[message.start for message in untimed].__getitem__)


def find_deliveries(topology: Topology, untimed: Sequence[UntimedMessage]) -> list[set[int]]:
    """Messages that bring chunks of each message to its sender, as far as the plan has them arrive before it starts.

    A sum at the receiver also waits for values stored there before, which would overwrite it.
    """
    telling = telling_chunks([message.chunks for message in untimed])
    adds = any(message.reduce for message in untimed)
    # For every rank, of every chunk.
    brings: list[defaultdict[int, list[int]]] = [defaultdict(list) for _ in range(topology.num_ranks)]
    stores: list[defaultdict[int, list[int]]] = [defaultdict(list) for _ in range(topology.num_ranks)]
    for i in plan_order(untimed):
        dst = topology.links[untimed[i].link].dst
        for arrivals in (brings[dst], stores[dst]) if adds and not untimed[i].reduce else (brings[dst],):
            for chunk in telling[i]:
                arrivals[chunk].append(i)
    ends = [message.end for message in untimed]
    whole_us = max(map(abs, ends), default=0.0)
    found = []
    for message, chunks in zip(untimed, telling, strict=True):
        link = topology.links[message.link]
        latest = message.start + rounding_us(message.start, whole_us)
        held = brings[link.src]
        lists = [held[chunk] for chunk in chunks if chunk in held]
        if message.reduce:
            held = stores[link.dst]
            lists += [held[chunk] for chunk in chunks if chunk in held]
        found.append({j for arrivals in lists for j in arrivals if ends[j] <= latest})
    return found


@dataclass(frozen=True)
class PlanDependences:
    """Order and dependences of a plan's messages, whatever their sizes are.

    Attributes
    ----------
    topology, untimed
        The plan.
    order
        Positions of messages in the order in which links and ports serve them.
    deliveries
        Messages that each message waits for.
    """

    topology: Topology
    untimed: Sequence[UntimedMessage]
    order: Sequence[int]
    deliveries: Sequence[set[int]]

    @staticmethod
    def of(topology: Topology, untimed: Sequence[UntimedMessage]) -> PlanDependences:
        """Find them."""
        return PlanDependences(topology, untimed, plan_order(untimed), find_deliveries(topology, untimed))

    def cut(self, numbers: Sequence[int]) -> PlanDependences:
        """The plan with so many messages in place of each, one after the other; what waited for it waits for the last of them."""
        last = [end - 1 for end in accumulate(numbers)]
        untimed, deliveries = list[UntimedMessage](), list[set[int]]()
        for message, waits_for, number in zip(self.untimed, self.deliveries, numbers, strict=True):
            untimed += [message] * number
            deliveries += [{last[other] for other in waits_for if numbers[other]}] * number
        order = [part for i in self.order for part in range(last[i] - numbers[i] + 1, last[i] + 1)]
        return PlanDependences(self.topology, untimed, order, deliveries)

    def time_us(self, sizes_bytes: Sequence[float]) -> float:
        """Arrival of the last message, every message having a size of its own and the plan's order being kept."""
        clock = _ScheduleClock(self, sizes_bytes, again=True)
        clock.send_in_order()
        return max(clock.end_us, default=0.0)

    def in_order(self, sizes_bytes: Sequence[float]) -> list[UntimedMessage]:
        """The plan with the times of `time_messages`, every message having a size of its own."""
        clock = _ScheduleClock(self, sizes_bytes)
        clock.send_in_order()
        return clock.as_sent()

    def dispatched(self, sizes_bytes: Sequence[float], *, as_planned: bool = False) -> list[UntimedMessage]:
        """The plan with the times of `dispatch_messages`, or, `as_planned`, what it starts first goes first of what could start at a moment."""
        clock = _ScheduleClock(self, sizes_bytes)
        clock.dispatch(as_planned=as_planned)
        return clock.as_sent()

    def sent_by(self, start_us: Sequence[float], sizes_bytes: Sequence[float]) -> list[UntimedMessage]:
        """The plan in the order of other starts, none before those that it waits for, every message having a size of its own."""
        order = sorted(range(len(start_us)), key=lambda i: (start_us[i], i))
        return replace(self, order=order).in_order(sizes_bytes)


class _ScheduleClock:
    """State of a schedule being timed: when links and ports are free, and messages sent."""

    def __init__(self, plan: PlanDependences, sizes_bytes: Sequence[float], *, again: bool = False) -> None:
        topology, untimed = plan.topology, plan.untimed
        if again:
            count_work("ordered", len(untimed))
        else:
            count_work("timed", sum(len(message.chunks) for message in untimed))
        self.plan = plan
        self.times = OccupationTimes(topology, zip((message.link for message in untimed), sizes_bytes, strict=True))
        self.free_us = [0.0] * topology.num_resources
        self.start_us = [0.0] * len(untimed)
        self.end_us = [0.0] * len(untimed)

    def ready_us(self, i: int) -> float:
        """Time at which a message's deliveries have arrived."""
        deliveries = self.plan.deliveries[i]
        return max([self.end_us[j] for j in deliveries]) if deliveries else 0.0

    def earliest(self, i: int, ready_us: float) -> float:
        """Earliest start of a message that is ready then: its link and ports are free."""
        start = ready_us
        for resource, _ in self.times.uses[i]:
            free_us = self.free_us[resource]
            if free_us > start:
                start = free_us
        return start

    def send(self, i: int, start: float) -> None:
        """Send a message."""
        for resource, occupied_us in self.times.uses[i]:
            self.free_us[resource] = start + occupied_us
        self.start_us[i] = start
        self.end_us[i] = start + self.times.message_us[i]

    def send_in_order(self) -> None:
        """Send all in the plan's order."""
        for i in self.plan.order:
            self.send(i, self.earliest(i, self.ready_us(i)))

    def message(self, i: int) -> Message:
        """A message that has been sent."""
        message = self.plan.untimed[i]
        return Message(message.link, message.chunks, self.start_us[i], self.end_us[i], message.reduce, message.packed)

    def as_sent(self) -> list[UntimedMessage]:
        """The plan with the times at which messages were sent."""
        times = zip(self.plan.untimed, self.start_us, self.end_us, strict=True)
        return [UntimedMessage(d.link, d.chunks, start, end, d.reduce, d.lead, d.packed) for d, start, end in times]

    def dispatch(self, *, as_planned: bool = False) -> list[int]:
        """Send all, of those that could start first always the one with the longest path to go, or the plan's first one; in which order."""
        deliveries, uses, message_us = self.plan.deliveries, self.times.uses, self.times.message_us
        order = self.plan.order if as_planned else longest_first(message_us, deliveries, self.plan.order)
        links = [message.link for message in self.plan.untimed]
        self.start_us = Dispatch(
            self.plan.topology.num_resources, links, uses, message_us, deliveries, order
        ).starts_us()
        self.end_us = [start + lasts for start, lasts in zip(self.start_us, message_us, strict=True)]
        return sorted(order, key=self.start_us.__getitem__)
