"""List schedules of jobs: which goes first, and which neighbours share a message."""

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
from taccl_py.synthesis.trees.jobs import PieceMessage, followers
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.params import PARAMS
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

    def size(self, jobs: Iterable[PieceMessage]) -> int:
        """Chunks of some jobs."""
        total = 0
        for job in jobs:
            sizes = self.chunks[job.root]
            total += sizes[job.piece] if job.span == 1 else sum(sizes[job.piece : job.end])
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
    """Jobs of neighbouring pieces that go over one link together, in order of piece."""

    jobs: tuple[int, ...]
    start_us: float
    end_us: float


@dataclass(frozen=True)
class TreePlan:
    """Batches with their times.

    Attributes
    ----------
    batches
        In the order in which they were planned.
    end_us
        When the last one has arrived.
    """

    batches: tuple[TreeMessage, ...]
    end_us: float


@dataclass(frozen=True)
class OrderChoice:
    """A plan, what it is a plan of, how many chunks a rank has in it, how it was found, and whether sizes were chosen for it."""

    jobs: tuple[PieceMessage, ...]
    costs: PieceCosts
    num_chunks: int
    rule: DispatchRule
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


def _work(jobs: Sequence[PieceMessage], costs: PieceCosts) -> list[float]:
    """Work of every resource, without alpha."""
    count = 1 + max((resource for job in jobs for resource in costs.resources[job.link]), default=-1)
    work = [0.0] * count
    for job in jobs:
        size = costs.size((job,))
        for resource, time_us in zip(costs.resources[job.link], costs.chunk_us[job.link], strict=True):
            work[resource] += size * time_us
    return work


@dataclass(frozen=True, slots=True)
class DispatchRule:
    """Rule of dispatch: the order of messages, and what shares one.

    Attributes
    ----------
    patience
        Neighbours that are ready together share a message while the way of all of them takes at most this part of the work
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


def list_schedule(jobs: Sequence[PieceMessage], costs: PieceCosts, rule: DispatchRule) -> TreePlan:
    """Plan in which whatever has the longest path still to go starts as soon as its link and ports are free."""
    if rule.in_turn:
        return _in_turn(jobs, costs, rule)
    follows = followers(jobs)
    leads = [list(job.after) for job in jobs]
    if not rule.backwards:
        return left_shifted(jobs, costs, _ListScheduling(jobs, costs, leads, follows, rule).batches())
    turned = _ListScheduling(jobs, costs, follows, leads, rule).batches()
    return left_shifted(jobs, costs, mirrored(turned))


def _in_turn(jobs: Sequence[PieceMessage], costs: PieceCosts, rule: DispatchRule) -> TreePlan:
    """Sums as if they were sent the other way, then the rest; whatever can start sooner does."""
    sums = [job for job in jobs if job.reduce]
    first = len(sums)
    rest = [replace(job, after=tuple(i - first for i in job.after if i >= first)) for job in jobs[first:]]
    one = list_schedule(sums, costs, replace(rule, in_turn=False, backwards=not rule.backwards))
    two = list_schedule(rest, costs, replace(rule, in_turn=False))
    return left_shifted(jobs, costs, followed(one.batches, one.end_us, two.batches, first))


def mirrored(batches: Sequence[TreeMessage]) -> list[TreeMessage]:
    """Batches backwards, before time 0."""
    return [TreeMessage(batch.jobs, -batch.end_us, -batch.start_us) for batch in batches]


def followed(first: Sequence[TreeMessage], end_us: float, second: Sequence[TreeMessage], by: int) -> list[TreeMessage]:
    """Batches, and behind their end others, whose jobs have numbers that are so many larger."""
    later = [
        TreeMessage(tuple(by + index for index in batch.jobs), end_us + batch.start_us, end_us + batch.end_us)
        for batch in second
    ]
    return [*first, *later]


def left_shifted(jobs: Sequence[PieceMessage], costs: PieceCosts, batches: Sequence[TreeMessage]) -> TreePlan:
    """Earliest starts that keep the order on every resource."""
    arrival = [0.0] * len(jobs)
    free: dict[int, float] = {}
    result = []
    for batch in sorted(batches, key=lambda b: (b.start_us, b.jobs)):
        link, size = jobs[batch.jobs[0]].link, costs.size(jobs[index] for index in batch.jobs)
        start = max((arrival[j] for index in batch.jobs for j in jobs[index].after), default=0.0)
        start = max(start, *(free.get(resource, 0.0) for resource in costs.resources[link]))
        cost = costs.of_message(link, size)
        for resource, time_us in cost.occupied:
            free[resource] = start + time_us
        end = start + cost.time_us
        for index in batch.jobs:
            arrival[index] = end
        result.append(TreeMessage(batch.jobs, start, end))
    return TreePlan(tuple(result), max(arrival, default=0.0))


# What goes first: jobs of early turns, then those with the longest path to go from when they should; piece and number of the job break ties.
_Rank = tuple[int, float, int, int]


class _ListScheduling:
    """Event-driven list scheduling. A job that cannot start waits at one of the resources that hold it up."""

    def __init__(
        self,
        jobs: Sequence[PieceMessage],
        costs: PieceCosts,
        leads: Sequence[Sequence[int]],
        follows: Sequence[Sequence[int]],
        rule: DispatchRule,
    ) -> None:
        count_work("placed", len(jobs))
        self._jobs, self._costs, self._follows = jobs, costs, follows
        self._rule = rule
        self._way = _ways(jobs, costs, follows)
        self._missing = [len(lead) for lead in leads]
        rng = random.Random(rule.seed)
        change = [1 + COMMON.jitter * rng.random() if rule.seed else 1.0 for _ in jobs]
        work = _work(jobs, costs)
        self._left = max(work, default=0.0)
        self._fullest = work.index(self._left) if work else 0
        self._full = {resource for resource, time_us in enumerate(work) if time_us >= PARAMS.dispatch_full * self._left}
        turn = self._turns() if rule.stay else {}
        pace_us = self._left * rule.paced * (-1 if rule.backwards else 1)
        urgency = [way * change[i] * (1 + turn.get((jobs[i].root, jobs[i].link), 0)) for i, way in enumerate(self._way)]
        self._rank = [(job.turn, job.ahead * pace_us - urgency[i], job.piece, i) for i, job in enumerate(jobs)]
        usual = max((sum(chunks) / len(chunks) for chunks in costs.chunks), default=0.0)
        self._longest = PARAMS.stretch * max(
            (costs.of_message(link, usual).time_us for link in {job.link for job in jobs}), default=0.0
        )
        self._free = [0.0] * len(work)
        self._waiting: list[list[_Rank]] = [[] for _ in work]
        # Jobs that can start, by the first of their pieces and by the one that follows.
        self._ready: dict[tuple[int, int, bool, int], int] = {}
        self._ready_to: dict[tuple[int, int, bool, int], int] = {}
        self._begun = [False] * len(jobs)
        self._batches: list[TreeMessage] = []
        # (time, resource that becomes free or -1, jobs that arrive)
        self._events: list[tuple[float, int, tuple[int, ...]]] = []

    def _turns(self) -> dict[tuple[int, int], int]:
        """Number of links that a root uses later, for each of its links at a full port, by root and link."""
        links: dict[tuple[int, int], dict[int, None]] = {}
        for job in self._jobs:
            # The first resource is the link itself.
            for port in self._costs.resources[job.link][1:] if not job.after else ():
                if port in self._full:
                    links.setdefault((job.root, port), {})[job.link] = None
        turns: dict[tuple[int, int], int] = {}
        for (root, _), found in links.items():
            for place, link in enumerate(sorted(found, reverse=True)):
                turns[root, link] = max(turns.get((root, link), 0), place)
        return turns

    def batches(self) -> list[TreeMessage]:
        """Run to the end."""
        self._serve([self._enter(i) for i, missing in enumerate(self._missing) if not missing], 0.0)
        while self._events:
            now = self._events[0][0]
            candidates = []
            while self._events and self._events[0][0] <= now * (1 + RELATIVE):
                _, resource, arrived = heapq.heappop(self._events)
                for job in arrived:
                    candidates += self._released(job)
                if resource >= 0 and self._waiting[resource]:
                    candidates.append((heapq.heappop(self._waiting[resource]), resource))
            self._serve(candidates, now)
        return self._batches

    def _enter(self, index: int) -> tuple[_Rank, int]:
        job = self._jobs[index]
        self._ready[job.root, job.link, job.reduce, job.piece] = index
        self._ready_to[job.root, job.link, job.reduce, job.end] = index
        return self._rank[index], -1

    def _released(self, job: int) -> list[tuple[_Rank, int]]:
        released = []
        for follower in self._follows[job]:
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
                for resource in self._costs.resources[self._jobs[index].link]:
                    if self._free[resource] > soon:
                        heapq.heappush(self._waiting[resource], rank)
                        break
                else:
                    self._begin(self._company(index), now)
            if origin >= 0 and self._waiting[origin] and self._free[origin] <= soon:
                heapq.heappush(candidates, (heapq.heappop(self._waiting[origin]), origin))

    def _company(self, index: int) -> tuple[int, ...]:
        """A job and the neighbours that share its message."""
        job = self._jobs[index]
        batch = [index]
        for ready, first in ((self._ready, job.end), (self._ready_to, job.piece)):
            piece = first
            while (other := ready.get((job.root, job.link, job.reduce, piece))) is not None:
                if self._jobs[other].turn != job.turn or not self._may_join(other, batch):
                    break
                batch.append(other)
                piece = self._jobs[other].end if ready is self._ready else self._jobs[other].piece
        return tuple(sorted(batch, key=lambda i: self._jobs[i].piece))

    def _may_join(self, index: int, batch: Sequence[int]) -> bool:
        """True if a job may share the message of others."""
        rule, costs, link = self._rule, self._costs, self._jobs[index].link
        message_us = costs.of_message(link, costs.size(self._jobs[i] for i in (*batch, index))).time_us
        if not self._follows[index] and message_us <= self._longest:
            return True
        if rule.taper:
            return not self._full.isdisjoint(costs.resources[link]) and message_us <= rule.taper * self._left
        if message_us <= rule.least * max(costs.alpha_us[link]):
            return True
        return (len(batch) + 1) * self._way[index] <= rule.patience * self._left

    def _begin(self, batch: tuple[int, ...], now: float) -> None:
        link, size = self._jobs[batch[0]].link, self._costs.size(self._jobs[index] for index in batch)
        for index in batch:
            job = self._jobs[index]
            del self._ready[job.root, job.link, job.reduce, job.piece]
            del self._ready_to[job.root, job.link, job.reduce, job.end]
            self._begun[index] = True
        cost = self._costs.of_message(link, size)
        end = now + cost.time_us
        self._batches.append(TreeMessage(batch, now, end))
        for position, (resource, time_us) in enumerate(cost.occupied):
            self._free[resource] = now + time_us
            if time_us > 0:
                heapq.heappush(self._events, (now + time_us, resource, ()))
            if resource == self._fullest:
                self._left -= size * self._costs.chunk_us[link][position]
        heapq.heappush(self._events, (end, -1, batch))


def _ways(jobs: Sequence[PieceMessage], costs: PieceCosts, follows: Sequence[Sequence[int]]) -> list[float]:
    """Longest time from the start of a job to the end of what follows, when nothing is in the way."""
    way = [costs.of_message(job.link, costs.size((job,))).time_us for job in jobs]
    missing = [len(following) for following in follows]
    lead_of: list[list[int]] = [[] for _ in jobs]
    for index, following in enumerate(follows):
        for later in following:
            lead_of[later].append(index)
    longest = [0.0] * len(jobs)
    queue = [index for index, count in enumerate(missing) if not count]
    for index in queue:
        way[index] += longest[index]
        for lead in lead_of[index]:
            longest[lead] = max(longest[lead], way[index])
            missing[lead] -= 1
            if not missing[lead]:
                queue.append(lead)
    return way
