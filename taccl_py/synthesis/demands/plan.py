"""From routed pieces to a schedule: the demand cut into the pieces' parts, planned messages, and their times under the best of a few orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from taccl_py.demand import DataDemand
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.demands.classes import DemandCut, Part, cut_evenly
from taccl_py.synthesis.demands.dispatch import MessageCosts, PlannedMessage, dispatch_plan, makespan_us, timed_messages
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.trees import TreeEdge
from taccl_py.synthesis.justify import JustifiedMessages
from taccl_py.topology.model import Topology
from taccl_py.work import count_work

_Priority = list[tuple[float, ...]]


@dataclass(frozen=True)
class DemandPlan:
    """Messages without times.

    Attributes
    ----------
    topology
        The machine.
    demand
        What moves, in the chunks that the messages carry.
    messages
        Each behind those that it waits for.
    is_ordered
        Whether the planner's order is the one to try where there are too many messages for more than one.
    """

    topology: Topology
    demand: DataDemand
    messages: tuple[PlannedMessage, ...]
    is_ordered: bool = False

    @property
    def least_us(self) -> float:
        """Time for which the fullest link or port is busy, which no order shortens."""
        return max(self._costs.loads_us(self.topology.num_resources), default=0.0)

    def timed(self) -> DemandSchedule:
        """Schedule with the best of a few orders in which links and ports serve the messages."""
        return self._at(self._starts())

    def searched(self, seed: int, over: Over) -> DemandSchedule:
        """Schedule with the best of many orders, each a little different from the best before."""
        return self._at(self._line.searched(self._starts(), seed, over, PARAMS.more_attempts))

    @cached_property
    def _costs(self) -> MessageCosts:
        return MessageCosts(self.topology, self.messages)

    @cached_property
    def _line(self) -> JustifiedMessages:
        return JustifiedMessages((message.after for message in self.messages), self._costs.message_us, self._costs.uses)

    def _starts(self) -> list[float]:
        """Starts by the best of a few rules; those of few messages are then justified."""
        only = _as_planned if self.is_ordered else _by_tail
        rules = _RULES if len(self.messages) <= PARAMS.many_messages else (only,)
        orders = dict.fromkeys(_in_order(rule(self, self._costs)) for rule in rules)
        found = [dispatch_plan(self.topology, self.messages, order, self._costs) for order in orders]
        best = min(found, key=lambda start_us: makespan_us(start_us, self._costs))
        return self._line.justified(best) if len(self.messages) <= PARAMS.most_justified else best

    def _at(self, start_us: Sequence[float]) -> DemandSchedule:
        return DemandSchedule(self.topology, self.demand, timed_messages(self.messages, start_us, self._costs))


def _in_order(priority: _Priority) -> tuple[int, ...]:
    """Numbers of messages, the smallest priority first, and of equal ones the first."""
    return tuple(sorted(range(len(priority)), key=priority.__getitem__))


def _by_tail(plan: DemandPlan, costs: MessageCosts) -> _Priority:
    """The longest path to the end first."""
    return [(-tail,) for tail in costs.tails_us(plan.messages)]


def _by_load(plan: DemandPlan, costs: MessageCosts) -> _Priority:
    """Messages over the fullest links and ports first."""
    loads, tails = costs.loads_us(plan.topology.num_resources), costs.tails_us(plan.messages)
    fullest = [max(loads[resource] for resource, _ in uses) for uses in costs.uses]
    return [(-load - tail,) for load, tail in zip(fullest, tails, strict=True)]


def _as_planned(plan: DemandPlan, costs: MessageCosts) -> _Priority:
    """In the planner's order, the longest path to the end first."""
    return [(message.rank, -tail) for message, tail in zip(plan.messages, costs.tails_us(plan.messages), strict=True)]


_RULES: tuple[Callable[[DemandPlan, MessageCosts], _Priority], ...] = (_by_tail, _by_load, _as_planned)


@dataclass(frozen=True, slots=True)
class RoutedPiece:
    """Parts of chunks that go over the same messages.

    Attributes
    ----------
    parts
        What it is made of.
    edges
        Its messages.
    rank
        Place in the planner's order.
    """

    parts: tuple[Part, ...]
    edges: tuple[TreeEdge, ...]
    rank: float

    def split(self, count: int, unit: int) -> list[RoutedPiece]:
        """So many pieces (fewer if there are not so many elements of `unit` bytes) that follow each other over the same messages."""
        cut = cut_evenly(self.parts, count, unit)
        return [RoutedPiece(parts, self.edges, self.rank + index / len(cut)) for index, parts in enumerate(cut)]


def plan_of(topology: Topology, demand: DataDemand, pieces: Sequence[RoutedPiece]) -> DemandPlan:
    """Plan of routed pieces; what nobody needs to be sent stays whole."""
    cut = DemandCut(demand)
    messages: list[PlannedMessage] = []
    for piece in pieces:
        chunks = cut.number(piece.parts)
        size, first = sum(size for _, _, size in piece.parts), len(messages)
        messages += [
            PlannedMessage(edge.link, chunks, size, tuple(first + i for i in edge.after), edge.reduce, piece.rank)
            for edge in piece.edges
        ]
    count_work("timed", sum(len(piece.parts) for piece in pieces) + len(messages))
    return DemandPlan(topology, cut.demand(), tuple(messages))


class UnfinishedPlan:
    """A plan in the making: the demand that is being cut, and messages over the first link from a rank to another."""

    def __init__(self, topology: Topology, demand: DataDemand) -> None:
        self._topology, self.cut = topology, DemandCut(demand)
        self._messages: list[PlannedMessage] = []
        self._is_whole = True

    def send(
        self, src: int, dst: int, chunks: tuple[int, ...], size_bytes: int, after: tuple[int, ...], rank: float | None
    ) -> int:
        """Add a message, and return its number; without a rank it is behind all before it."""
        links = self._topology.links_between.get((src, dst), ())
        self._is_whole = self._is_whole and bool(links)
        place = float(len(self._messages)) if rank is None else rank
        self._messages.append(PlannedMessage(links[0] if links else 0, chunks, size_bytes, after, rank=place))
        return len(self._messages) - 1

    def plan(self, *, is_ordered: bool = False) -> DemandPlan | None:
        """The plan; None if links are missing. See `DemandPlan` for the parameter."""
        if not self._is_whole:
            return None
        return DemandPlan(self._topology, self.cut.demand(), tuple(self._messages), is_ordered)


def bundled(plan: DemandPlan) -> DemandPlan:
    """The plan with one message in place of those of a link that wait for nothing and for which nothing waits."""
    needed = {before for message in plan.messages for before in message.after}
    bundles: dict[tuple[int, bool], list[PlannedMessage]] = {}
    kept: list[PlannedMessage] = []
    place: dict[int, int] = {}
    for number, message in enumerate(plan.messages):
        if message.after or number in needed:
            place[number] = len(kept)
            kept.append(replace(message, after=tuple(place[before] for before in message.after)))
        else:
            bundles.setdefault((message.link, message.reduce), []).append(message)
    for messages in bundles.values():
        chunks = tuple(chunk for message in messages for chunk in message.chunks)
        kept.append(replace(messages[0], chunks=chunks, size_bytes=sum(message.size_bytes for message in messages)))
    return DemandPlan(plan.topology, plan.demand, tuple(kept))
