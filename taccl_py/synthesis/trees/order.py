"""List schedules of transfers: which goes first, and which neighbours share a message."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from taccl_py.schedule.dispatch import Dispatch, followers
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.transfers import PieceTransfer
from taccl_py.tolerances import LAST_DIGITS
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
    message_chunks
        Chunks that one message can carry in the runtime.
    """

    resources: tuple[tuple[int, ...], ...]
    alpha_us: tuple[tuple[float, ...], ...]
    chunk_us: tuple[tuple[float, ...], ...]
    latency_us: tuple[float, ...]
    chunks: tuple[tuple[int, ...], ...]
    message_chunks: int

    @staticmethod
    def of(network: CapacityNetwork, chunk_bytes: float, chunks: Sequence[int]) -> PieceCosts:
        """Costs for pieces of so many chunks, alike for all roots."""
        costs, megabytes = network.link_costs, chunk_bytes / BYTES_PER_MB
        chunk = tuple(tuple(us_per_mb * megabytes for us_per_mb in row) for row in costs.us_per_mb)
        most = network.problem.message_chunks
        of_roots = (tuple(chunks),) * len(network.roots)
        return PieceCosts(costs.resources, costs.alpha_us, chunk, costs.latency_us, of_roots, most)

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
            steps = max(1, math.ceil(chunks / self.message_chunks))
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


def neighbours_of(setting: tuple[int, ...], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Settings that differ from one, which says positions in tables of such sizes, by one step in one of them."""
    for place, size in enumerate(sizes):
        for at in (setting[place] + 1, setting[place] - 1):
            if 0 <= at < size:
                yield (*setting[:place], at, *setting[place + 1 :])


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
    return TransferTimes(transfers, costs).list_schedule(rule)


class TransferTimes:
    """Transfers at some costs, with what every order of them asks for."""

    def __init__(self, transfers: Sequence[PieceTransfer], costs: PieceCosts) -> None:
        self.transfers, self.costs = transfers, costs
        self.sizes = [costs.size((transfer,)) for transfer in transfers]
        self.resources = [costs.resources[transfer.link] for transfer in transfers]

    def list_schedule(self, rule: DispatchRule) -> TreePlan:
        """See the function of that name."""
        if rule.in_turn:
            return self._in_turn(rule)
        messages = _SharedMessages(self, rule).messages()
        return self.left_shifted(mirrored(messages) if rule.backwards else messages)

    def _in_turn(self, rule: DispatchRule) -> TreePlan:
        """Sums as if they were sent in the other direction, then the rest; whatever can start sooner does."""
        sums, rest = self._halves
        one = sums.list_schedule(replace(rule, in_turn=False, backwards=not rule.backwards))
        two = rest.list_schedule(replace(rule, in_turn=False))
        return self.left_shifted(followed(one.messages, one.end_us, two.messages, len(sums.transfers)))

    @cached_property
    def _halves(self) -> tuple[TransferTimes, TransferTimes]:
        """The sums, and the rest as if these were there."""
        sums = [transfer for transfer in self.transfers if transfer.reduce]
        first = len(sums)
        rest = [
            replace(transfer, after=tuple(i - first for i in transfer.after if i >= first))
            for transfer in self.transfers[first:]
        ]
        return TransferTimes(sums, self.costs), TransferTimes(rest, self.costs)

    def left_shifted(self, messages: Sequence[TreeMessage]) -> TreePlan:
        """Earliest starts that keep the order on every resource."""
        transfers, sizes, resources = self.transfers, self.sizes, self.resources
        arrival = [0.0] * len(transfers)
        free: dict[int, float] = {}
        result = []
        for message in sorted(messages, key=lambda b: (b.start_us, b.transfers)):
            size, start, first = 0, 0.0, message.transfers[0]
            for index in message.transfers:
                size += sizes[index]
                for earlier in transfers[index].after:
                    start = max(start, arrival[earlier])
            for resource in resources[first]:
                start = max(start, free.get(resource, 0.0))
            cost = self.costs.of_message(transfers[first].link, size)
            for resource, time_us in cost.occupied:
                free[resource] = start + time_us
            end = start + cost.time_us
            for index in message.transfers:
                arrival[index] = end
            result.append(TreeMessage(message.transfers, start, end))
        return TreePlan(tuple(result), max(arrival, default=0.0))

    @cached_property
    def leads(self) -> list[list[int]]:
        """Transfers that each one waits for."""
        return [list(transfer.after) for transfer in self.transfers]

    @cached_property
    def follows(self) -> list[list[int]]:
        """Transfers that wait for each one."""
        return followers([transfer.after for transfer in self.transfers])

    @cached_property
    def path_us(self) -> list[float]:
        """Longest time from the start of a transfer to the end of what follows, when nothing is in the way."""
        return self._longest_us(self.follows, self.leads)

    @cached_property
    def path_back_us(self) -> list[float]:
        """Longest time, likewise, from the end to the beginning."""
        return self._longest_us(self.leads, self.follows)

    def _longest_us(self, follows: Sequence[Sequence[int]], leads: Sequence[Sequence[int]]) -> list[float]:
        costs = self.costs
        path_us = [costs.of_message(t.link, size).time_us for t, size in zip(self.transfers, self.sizes, strict=True)]
        missing = [len(following) for following in follows]
        longest = [0.0] * len(path_us)
        queue = [index for index, count in enumerate(missing) if not count]
        for index in queue:
            path_us[index] += longest[index]
            for lead in leads[index]:
                longest[lead] = max(longest[lead], path_us[index])
                missing[lead] -= 1
                if not missing[lead]:
                    queue.append(lead)
        return path_us

    @cached_property
    def work(self) -> list[float]:
        """Work of every resource, without alpha."""
        count = 1 + max((resource for resources in self.resources for resource in resources), default=-1)
        work = [0.0] * count
        for transfer, size, resources in zip(self.transfers, self.sizes, self.resources, strict=True):
            for resource, time_us in zip(resources, self.costs.chunk_us[transfer.link], strict=True):
                work[resource] += size * time_us
        return work

    @cached_property
    def longest_us(self) -> float:
        """Time that a message of usual size takes at most."""
        costs = self.costs
        usual = max((sum(chunks) / len(chunks) for chunks in costs.chunks), default=0.0)
        links = {transfer.link for transfer in self.transfers}
        return max((costs.of_message(link, usual).time_us for link in links), default=0.0)

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Numbers of the first piece and of the one that follows; equal only for the same root's data over the same link."""
        width = 1 + max((transfer.end for transfer in self.transfers), default=0)
        rows: dict[tuple[int, int, bool], int] = {}
        found = []
        for transfer in self.transfers:
            row = width * rows.setdefault((transfer.root, transfer.link, transfer.reduce), len(rows))
            found.append((row + transfer.piece, row + transfer.end))
        return found


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
    return TransferTimes(transfers, costs).left_shifted(messages)


class _SharedMessages(Dispatch):
    """Dispatch of transfers in which neighbours that are ready together share a message."""

    def __init__(self, times: TransferTimes, rule: DispatchRule) -> None:
        transfers, costs = times.transfers, times.costs
        count_work("placed", len(transfers))
        self._transfers, self._costs, self._rule = transfers, costs, rule
        self._sizes, self._resources, self._places = times.sizes, times.resources, times.places
        follows, leads = (times.leads, times.follows) if rule.backwards else (times.follows, times.leads)
        self._path_us = times.path_back_us if rule.backwards else times.path_us
        work = times.work
        self._left = max(work, default=0.0)
        self._fullest = work.index(self._left) if work else 0
        self._full = {resource for resource, time_us in enumerate(work) if time_us >= PARAMS.dispatch_full * self._left}
        self._longest = PARAMS.stretch * times.longest_us
        # Transfers that can start, by the place of the first of their pieces and of the one that follows.
        self._joins: dict[int, int] = {}
        self._joins_to: dict[int, int] = {}
        self._together: dict[int, tuple[int, ...]] = {}
        self._messages: list[TreeMessage] = []
        alone = [costs.of_message(t.link, size) for t, size in zip(transfers, self._sizes, strict=True)]
        super().__init__(
            len(work),
            [transfer.link for transfer in transfers],
            [cost.occupied for cost in alone],
            [cost.time_us for cost in alone],
            leads,
            self._order(),
            follows,
        )

    def _order(self) -> list[int]:
        """Transfers of early turns first, then those with the longest path to go from when they should; piece and number break ties."""
        rule, transfers = self._rule, self._transfers
        rng = random.Random(rule.seed)
        turn = self._turns() if rule.stay else {}
        pace_us = self._left * rule.paced * (-1 if rule.backwards else 1)
        rank = []
        for transfer, path_us in zip(transfers, self._path_us, strict=True):
            change = 1 + COMMON.jitter * rng.random() if rule.seed else 1.0
            urgency_us = path_us * change * (1 + turn.get((transfer.root, transfer.link), 0))
            rank.append((transfer.turn, transfer.ahead * pace_us - urgency_us, transfer.piece))
        return sorted(range(len(transfers)), key=rank.__getitem__)

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
        """All messages, in the order of their starts."""
        self.starts_us(LAST_DIGITS)
        return self._messages

    def _enter(self, complete: list[int]) -> list[int]:
        for i in complete:
            first, end = self._places[i]
            self._joins[first] = self._joins_to[end] = i
        return super()._enter(complete)

    def _arrive(self, i: int) -> list[int]:
        found = []
        for transfer in self._together.pop(i):
            found += super()._arrive(transfer)
        return found

    def _start(self, i: int, now: float) -> None:
        together, size = self._company(i)
        for transfer in together:
            first, end = self._places[transfer]
            del self._joins[first], self._joins_to[end]
            self._start_us[transfer] = now
        link = self._transfers[i].link
        cost = self._costs.of_message(link, size)
        self._together[i], self._uses[i], self._message_us[i] = together, cost.occupied, cost.time_us
        self._messages.append(TreeMessage(together, now, now + cost.time_us))
        for resource, chunk_us in zip(self._resources[i], self._costs.chunk_us[link], strict=True):
            if resource == self._fullest:
                self._left -= size * chunk_us
        super()._start(i, now)

    def _company(self, index: int) -> tuple[tuple[int, ...], int]:
        """A transfer and the neighbours that share its message, in order of piece, and how many chunks they have."""
        message, size = [index], self._sizes[index]
        for ready, side in ((self._joins, 1), (self._joins_to, 0)):
            place = self._places[index][side]
            while (other := ready.get(place)) is not None:
                together = size + self._sizes[other]
                if self._transfers[other].turn != self._transfers[index].turn or not self._may_join(
                    other, len(message) + 1, together
                ):
                    break
                message.append(other)
                size, place = together, self._places[other][side]
        if len(message) > 1:
            message.sort(key=lambda i: self._transfers[i].piece)
        return tuple(message), size

    def _may_join(self, index: int, number: int, size: int) -> bool:
        """True if a transfer may share a message, which then has so many transfers and chunks."""
        rule, costs, link = self._rule, self._costs, self._transfers[index].link
        message_us = costs.of_message(link, size).time_us
        if not self._users[index] and message_us <= self._longest:
            return True
        if rule.taper:
            return not self._full.isdisjoint(costs.resources[link]) and message_us <= rule.taper * self._left
        if message_us <= rule.least * max(costs.alpha_us[link]):
            return True
        return number * self._path_us[index] <= rule.patience * self._left
