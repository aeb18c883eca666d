"""List schedules of transfers: which goes first, and which neighbours share a message."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from taccl_py.runtimes import MAX_COUNT
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.transfers import PieceTransfer, followers
from taccl_py.tolerances import RELATIVE
from taccl_py.units import BYTES_PER_MB
from taccl_py.work import count_work

_Setting = TypeVar("_Setting", bound=Hashable)


@dataclass(frozen=True, slots=True)
class MessageCost:
    """Cost of a message: for how long it occupies each resource, [(resource, us)], and its time from start to arrival."""

    occupied: tuple[tuple[int, float], ...]
    time_us: float


@dataclass(frozen=True)
class PieceCosts:
    """Costs of pieces at one size.

    Attributes
    ----------
    resources
        Resource orbits that a message on a link occupies, [link].
    alpha_us, chunk_us
        For how long, for each of these: once and for every chunk, [link].
    latency_us
        What comes after, [link].
    chunks
        Chunks of every piece, [root][piece].
    """

    resources: tuple[tuple[int, ...], ...]
    alpha_us: tuple[tuple[float, ...], ...]
    chunk_us: tuple[tuple[float, ...], ...]
    latency_us: tuple[float, ...]
    chunks: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(network: CapacityNetwork, chunk_bytes: float, chunks: Sequence[int]) -> PieceCosts:
        """Costs for pieces of so many chunks, alike for all roots."""
        topology, megabytes = network.problem.topology, chunk_bytes / BYTES_PER_MB
        occupied = topology.resources_of
        alpha = tuple(tuple(topology.resource_cost[r][0] for r in resources) for resources in occupied)
        chunk = tuple(tuple(topology.resource_cost[r][1] * megabytes for r in resources) for resources in occupied)
        orbits = tuple(
            tuple(row[: len(resources)]) for row, resources in zip(network.resources.tolist(), occupied, strict=True)
        )
        latency = tuple(link.latency_us for link in topology.links)
        return PieceCosts(orbits, alpha, chunk, latency, (tuple(chunks),) * len(network.roots))

    def scaled(self, factor: float) -> PieceCosts:
        """Costs for chunks so many times as large."""
        return replace(self, chunk_us=tuple(tuple(factor * time_us for time_us in row) for row in self.chunk_us))

    def size(self, transfers: Iterable[PieceTransfer]) -> int:
        """Chunks of some transfers."""
        total = 0
        for transfer in transfers:
            sizes = self.chunks[transfer.root]
            total += sizes[transfer.piece] if transfer.span == 1 else sum(sizes[transfer.piece : transfer.end])
        return total

    @cached_property
    def _of_messages(self) -> dict[tuple[int, float], MessageCost]:
        return {}

    def of_message(self, link: int, chunks: float) -> MessageCost:
        """Cost of so many chunks on a link; what is more than a step can carry is several messages."""
        found = self._of_messages.get((link, chunks))
        if found is None:
            steps = max(1, math.ceil(chunks / MAX_COUNT))
            times = [steps * a + chunks * c for a, c in zip(self.alpha_us[link], self.chunk_us[link], strict=True)]
            occupied = tuple(zip(self.resources[link], times, strict=True))
            found = self._of_messages[link, chunks] = MessageCost(occupied, max(times) + self.latency_us[link])
        return found


@dataclass(frozen=True, slots=True)
class TreeMessage:
    """Transfers of neighbouring pieces that go over one link together, in order of piece."""

    transfers: tuple[int, ...]
    start_us: float
    end_us: float


@dataclass(frozen=True)
class TreePlan:
    """Messages with their times.

    Attributes
    ----------
    messages
        In the order in which they were planned.
    end_us
        When the last one has arrived.
    """

    messages: tuple[TreeMessage, ...]
    end_us: float


@dataclass(frozen=True)
class OrderChoice:
    """A plan, what it is a plan of, how many chunks a rank has in it, by which rule it was found, if by one, and whether sizes were chosen for it."""

    transfers: tuple[PieceTransfer, ...]
    costs: PieceCosts
    num_chunks: int
    rule: DispatchRule | None
    plan: TreePlan
    sized: bool = False


def climb(
    first: Sequence[_Setting],
    planned: Callable[[_Setting], OrderChoice | None],
    neighbours: Callable[[_Setting], Iterable[_Setting]],
    over: Over,
    most: float = math.inf,
) -> OrderChoice | None:
    """The best plan found from some settings on: the neighbours of the best one are tried as long as there is a better one.

    Parameters
    ----------
    first
        Settings to begin with; all are tried before any neighbour is.
    planned
        The plan of a setting, if there is one.
    neighbours
        Settings next to one.
    over
        Whether time is up; the first plan is waited for.
    most
        Settings that are tried.
    """
    best: OrderChoice | None = None
    known: set[_Setting] = set()
    front, ahead = list(first), len(first)
    while front and len(known) < most and not (over() and best is not None):
        setting = front.pop(0)
        ahead = max(0, ahead - 1)
        if setting in known:
            continue
        known.add(setting)
        choice = planned(setting)
        if choice is not None and (best is None or choice.plan.end_us < best.plan.end_us):
            best, front = choice, [*front[:ahead], *neighbours(setting)]
    return best


def _work(transfers: Sequence[PieceTransfer], costs: PieceCosts) -> list[float]:
    """Work of every resource, without alpha."""
    count = 1 + max((resource for transfer in transfers for resource in costs.resources[transfer.link]), default=-1)
    work = [0.0] * count
    for transfer in transfers:
        size = costs.size((transfer,))
        for resource, time_us in zip(costs.resources[transfer.link], costs.chunk_us[transfer.link], strict=True):
            work[resource] += size * time_us
    return work


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """Rule of dispatch: the order of messages, and what shares one.

    Attributes
    ----------
    patience
        Neighbours that are ready together share a message while the path of all of them takes at most this part of the work
        that is left; where nobody waits for them, they share it in any case.
    least
        They also share it while it takes at most so many times its alpha.
    backwards
        Whether to decide from the end to the beginning, so that the last messages rather than the first come without pauses.
    in_turn
        Whether all sums are planned by themselves, and everything else after them.
    seed
        0 for the plain order, else of a random change of it.
    taper
        If not 0, only what goes over the fullest links and ports shares messages, while they take at most this part of the
        work that is left: large ones first, where alpha is all that is lost, and ever smaller ones to the end.
    stay
        Whether a root that has a full port sends all to one receiver before it turns to the next. What goes there can share
        messages, and only the last receiver needs small ones.
    paced
        Whether every tree's pieces have their turns, as if they went down it evenly for as long as the fullest link or port has
        work, instead of all pieces of links near to a root before those of links far from it: where many pieces follow each
        other, what lies behind those would have nothing to do for half of the time.
    """

    patience: float = 0.0
    least: float = 0.0
    backwards: bool = False
    in_turn: bool = False
    seed: int = 0
    taper: float = 0.0
    stay: bool = False
    paced: bool = False


def list_schedule(transfers: Sequence[PieceTransfer], costs: PieceCosts, rule: DispatchRule) -> TreePlan:
    """Plan in which whatever has the longest path still to go starts as soon as its link and ports are free."""
    if rule.in_turn:
        return _in_turn(transfers, costs, rule)
    follows = followers(transfers)
    leads = [list(transfer.after) for transfer in transfers]
    if not rule.backwards:
        return left_shifted(transfers, costs, _ListScheduling(transfers, costs, leads, follows, rule).messages())
    turned = _ListScheduling(transfers, costs, follows, leads, rule).messages()
    return left_shifted(transfers, costs, mirrored(turned))


def _in_turn(transfers: Sequence[PieceTransfer], costs: PieceCosts, rule: DispatchRule) -> TreePlan:
    """Sums as if they were sent in the other direction, then the rest; whatever can start sooner does."""
    sums = [transfer for transfer in transfers if transfer.reduce]
    first = len(sums)
    rest = [
        replace(transfer, after=tuple(i - first for i in transfer.after if i >= first))
        for transfer in transfers[first:]
    ]
    one = list_schedule(sums, costs, replace(rule, in_turn=False, backwards=not rule.backwards))
    two = list_schedule(rest, costs, replace(rule, in_turn=False))
    return left_shifted(transfers, costs, followed(one.messages, one.end_us, two.messages, first))


def mirrored(messages: Sequence[TreeMessage]) -> list[TreeMessage]:
    """Messages backwards, before time 0."""
    return [TreeMessage(message.transfers, -message.end_us, -message.start_us) for message in messages]


def followed(first: Sequence[TreeMessage], end_us: float, second: Sequence[TreeMessage], by: int) -> list[TreeMessage]:
    """Messages, and after their end others, whose transfers have numbers that are so many larger."""
    later = [
        TreeMessage(
            tuple(by + index for index in message.transfers), end_us + message.start_us, end_us + message.end_us
        )
        for message in second
    ]
    return [*first, *later]


def left_shifted(transfers: Sequence[PieceTransfer], costs: PieceCosts, messages: Sequence[TreeMessage]) -> TreePlan:
    """Earliest starts that keep the order on every resource."""
    arrival = [0.0] * len(transfers)
    free: dict[int, float] = {}
    result = []
    for message in sorted(messages, key=lambda b: (b.start_us, b.transfers)):
        link, size = transfers[message.transfers[0]].link, costs.size(transfers[index] for index in message.transfers)
        start = max((arrival[j] for index in message.transfers for j in transfers[index].after), default=0.0)
        start = max(start, *(free.get(resource, 0.0) for resource in costs.resources[link]))
        cost = costs.of_message(link, size)
        for resource, time_us in cost.occupied:
            free[resource] = start + time_us
        end = start + cost.time_us
        for index in message.transfers:
            arrival[index] = end
        result.append(TreeMessage(message.transfers, start, end))
    return TreePlan(tuple(result), max(arrival, default=0.0))


# What goes first: transfers of early turns, then those with the longest path to go from when they should; piece and number of the transfer break ties.
_Rank = tuple[int, float, int, int]


class _ListScheduling:
    """Event-driven list scheduling. A transfer that cannot start waits at one of the resources that hold it up."""

    def __init__(
        self,
        transfers: Sequence[PieceTransfer],
        costs: PieceCosts,
        leads: Sequence[Sequence[int]],
        follows: Sequence[Sequence[int]],
        rule: DispatchRule,
    ) -> None:
        count_work("placed", len(transfers))
        self._transfers, self._costs, self._follows = transfers, costs, follows
        self._rule = rule
        self._path_us = _longest_paths_us(transfers, costs, follows)
        self._missing = [len(lead) for lead in leads]
        rng = random.Random(rule.seed)
        change = [1 + COMMON.jitter * rng.random() if rule.seed else 1.0 for _ in transfers]
        work = _work(transfers, costs)
        self._left = max(work, default=0.0)
        self._fullest = work.index(self._left) if work else 0
        self._full = {resource for resource, time_us in enumerate(work) if time_us >= PARAMS.dispatch_full * self._left}
        turn = self._turns() if rule.stay else {}
        pace_us = self._left * rule.paced * (-1 if rule.backwards else 1)
        urgency = [
            path_us * change[i] * (1 + turn.get((transfers[i].root, transfers[i].link), 0))
            for i, path_us in enumerate(self._path_us)
        ]
        self._rank = [
            (transfer.turn, transfer.ahead * pace_us - urgency[i], transfer.piece, i)
            for i, transfer in enumerate(transfers)
        ]
        usual = max((sum(chunks) / len(chunks) for chunks in costs.chunks), default=0.0)
        self._longest = PARAMS.stretch * max(
            (costs.of_message(link, usual).time_us for link in {transfer.link for transfer in transfers}), default=0.0
        )
        self._free = [0.0] * len(work)
        self._waiting: list[list[_Rank]] = [[] for _ in work]
        # Transfers that can start, by the first of their pieces and by the one that follows.
        self._ready: dict[tuple[int, int, bool, int], int] = {}
        self._ready_to: dict[tuple[int, int, bool, int], int] = {}
        self._begun = [False] * len(transfers)
        self._messages: list[TreeMessage] = []
        # (time, resource that becomes free or -1, transfers that arrive)
        self._events: list[tuple[float, int, tuple[int, ...]]] = []

    def _turns(self) -> dict[tuple[int, int], int]:
        """Number of links that a root uses later, for each of its links at a full port, by root and link."""
        links: dict[tuple[int, int], dict[int, None]] = {}
        for transfer in self._transfers:
            # The first resource is the link itself.
            for port in self._costs.resources[transfer.link][1:] if not transfer.after else ():
                if port in self._full:
                    links.setdefault((transfer.root, port), {})[transfer.link] = None
        turns: dict[tuple[int, int], int] = {}
        for (root, _), found in links.items():
            for place, link in enumerate(sorted(found, reverse=True)):
                turns[root, link] = max(turns.get((root, link), 0), place)
        return turns

    def messages(self) -> list[TreeMessage]:
        """Run to the end."""
        self._serve([self._enter(i) for i, missing in enumerate(self._missing) if not missing], 0.0)
        while self._events:
            now = self._events[0][0]
            candidates = []
            while self._events and self._events[0][0] <= now * (1 + RELATIVE):
                _, resource, arrived = heapq.heappop(self._events)
                for transfer in arrived:
                    candidates += self._released(transfer)
                if resource >= 0 and self._waiting[resource]:
                    candidates.append((heapq.heappop(self._waiting[resource]), resource))
            self._serve(candidates, now)
        return self._messages

    def _enter(self, index: int) -> tuple[_Rank, int]:
        transfer = self._transfers[index]
        self._ready[transfer.root, transfer.link, transfer.reduce, transfer.piece] = index
        self._ready_to[transfer.root, transfer.link, transfer.reduce, transfer.end] = index
        return self._rank[index], -1

    def _released(self, transfer: int) -> list[tuple[_Rank, int]]:
        released = []
        for follower in self._follows[transfer]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                released.append(self._enter(follower))
        return released

    def _serve(self, candidates: list[tuple[_Rank, int]], now: float) -> None:
        """Start candidates in order; one that leaves its resource free makes room for the next that waits there."""
        soon = now * (1 + RELATIVE)
        heapq.heapify(candidates)
        while candidates:
            rank, origin = heapq.heappop(candidates)
            index = rank[-1]
            if not self._begun[index]:
                for resource in self._costs.resources[self._transfers[index].link]:
                    if self._free[resource] > soon:
                        heapq.heappush(self._waiting[resource], rank)
                        break
                else:
                    self._begin(self._company(index), now)
            if origin >= 0 and self._waiting[origin] and self._free[origin] <= soon:
                heapq.heappush(candidates, (heapq.heappop(self._waiting[origin]), origin))

    def _company(self, index: int) -> tuple[int, ...]:
        """A transfer and the neighbours that share its message."""
        transfer = self._transfers[index]
        message = [index]
        for ready, first in ((self._ready, transfer.end), (self._ready_to, transfer.piece)):
            piece = first
            while (other := ready.get((transfer.root, transfer.link, transfer.reduce, piece))) is not None:
                if self._transfers[other].turn != transfer.turn or not self._may_join(other, message):
                    break
                message.append(other)
                piece = self._transfers[other].end if ready is self._ready else self._transfers[other].piece
        return tuple(sorted(message, key=lambda i: self._transfers[i].piece))

    def _may_join(self, index: int, message: Sequence[int]) -> bool:
        """True if a transfer may share the message of others."""
        rule, costs, link = self._rule, self._costs, self._transfers[index].link
        message_us = costs.of_message(link, costs.size(self._transfers[i] for i in (*message, index))).time_us
        if not self._follows[index] and message_us <= self._longest:
            return True
        if rule.taper:
            return not self._full.isdisjoint(costs.resources[link]) and message_us <= rule.taper * self._left
        if message_us <= rule.least * max(costs.alpha_us[link]):
            return True
        return (len(message) + 1) * self._path_us[index] <= rule.patience * self._left

    def _begin(self, message: tuple[int, ...], now: float) -> None:
        link, size = self._transfers[message[0]].link, self._costs.size(self._transfers[index] for index in message)
        for index in message:
            transfer = self._transfers[index]
            del self._ready[transfer.root, transfer.link, transfer.reduce, transfer.piece]
            del self._ready_to[transfer.root, transfer.link, transfer.reduce, transfer.end]
            self._begun[index] = True
        cost = self._costs.of_message(link, size)
        end = now + cost.time_us
        self._messages.append(TreeMessage(message, now, end))
        for position, (resource, time_us) in enumerate(cost.occupied):
            self._free[resource] = now + time_us
            if time_us > 0:
                heapq.heappush(self._events, (now + time_us, resource, ()))
            if resource == self._fullest:
                self._left -= size * self._costs.chunk_us[link][position]
        heapq.heappush(self._events, (end, -1, message))


def _longest_paths_us(
    transfers: Sequence[PieceTransfer], costs: PieceCosts, follows: Sequence[Sequence[int]]
) -> list[float]:
    """Longest time from the start of a transfer to the end of what follows, when nothing is in the way."""
    path_us = [costs.of_message(transfer.link, costs.size((transfer,))).time_us for transfer in transfers]
    missing = [len(following) for following in follows]
    lead_of: list[list[int]] = [[] for _ in transfers]
    for index, following in enumerate(follows):
        for later in following:
            lead_of[later].append(index)
    longest = [0.0] * len(transfers)
    queue = [index for index, count in enumerate(missing) if not count]
    for index in queue:
        path_us[index] += longest[index]
        for lead in lead_of[index]:
            longest[lead] = max(longest[lead], path_us[index])
            missing[lead] -= 1
            if not missing[lead]:
                queue.append(lead)
    return path_us
