"""Greedy: event-driven list scheduling on a quotient, the start of every other stage and its fallback.

Two rules, both perturbed in restarts:

* *urgent*: chunks travel alone; at every moment the waiting arcs are served in order of how far their chunk still has to go
  (the critical-path rule of list scheduling, TACCL's ``to_travel``). Good where beta rules.
* *efficient*: neighbours travel together; at every moment the free link with the most progress per microsecond goes first,
  and a link may hold back until enough chunks have gathered. Good where alpha rules: recursive doubling and
  gather-relay-scatter patterns come out of it by themselves.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from taccl_py.grouping import grouped
from taccl_py.schedule.dispatch import Dispatch
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.plan import OrbitMessage, Plan, chains
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.routes import Routes
from taccl_py.work import count_work


@dataclass(frozen=True)
class Params:
    """Numbers of list scheduling on a quotient.

    Attributes
    ----------
    all_links_probability
        Probability that a restart uses all links, however long their alphas. Guess.
    """

    all_links_probability: float = 0.4


PARAMS = Params()


def urgent_plan(
    quotient: Quotient,
    grid: TimeGrid,
    routes: Routes,
    *,
    arcs: Collection[int] | None = None,
    jitter: float = 0.0,
    seed: int = 0,
) -> Plan | None:
    """Plan in which every chunk travels alone.

    Parameters
    ----------
    quotient, grid, routes
        The problem.
    arcs
        Arcs that may be used; None for all. With a tree for every chunk this only decides the order.
    jitter
        Relative random change of the priorities.
    seed
        Of the jitter.

    Returns
    -------
    Plan or None
        None if some wanted state was not reached (the arcs given do not lead there, or a poor choice blocked a relay).
    """
    run = _UrgentRun(quotient, grid, routes, arcs, jitter, random.Random(seed))
    return run.plan() if run.has_choice else run.in_order()


def efficient_plan(
    quotient: Quotient, grid: TimeGrid, routes: Routes, joins: Mapping[int, int], *, jitter: float = 0.0, seed: int = 0
) -> Plan | None:
    """Plan in which neighbours travel together.

    Parameters
    ----------
    quotient, grid, routes
        The problem.
    joins
        Arcs that may share alpha with their predecessor.
    jitter
        Relative random change of the scores; above 0, links also hold back at random.
    seed
        Of the jitter.

    Returns
    -------
    Plan or None
        None if some wanted state was not reached.
    """
    return _EfficientRun(quotient, grid, routes, joins, jitter, random.Random(seed)).plan()


class _GreedyState:
    """State that both rules share: what is free, what has been entered, what is still wanted."""

    def __init__(self, quotient: Quotient, grid: TimeGrid, routes: Routes) -> None:
        self.q, self.grid, self.routes = quotient, grid, routes
        self.heads = quotient.head.tolist()
        self.free = [0] * (int(quotient.resource_orbit.max()) + 1 if len(quotient.resource_orbit) else 0)
        self.entered = [bool(held) for held in quotient.source]
        self.wanted = int(quotient.required.sum())
        self.arrivals = [(0, state) for state in range(quotient.num_states) if quotient.source[state]]
        self.events = [0]
        self.messages: list[OrbitMessage] = []
        self.after = grouped((other, own) for own, other in routes.own_first_pairs)

    def next_moment(self) -> int:
        """Advance to the next event."""
        now = heapq.heappop(self.events)
        while self.events and self.events[0] <= now:
            heapq.heappop(self.events)
        return now

    def arrived(self, now: int) -> list[int]:
        """States that have come to hold by now, once each."""
        states = []
        while self.arrivals and self.arrivals[0][0] <= now:
            states.append(heapq.heappop(self.arrivals)[1])
        return states

    def is_free(self, arc: int, now: int) -> bool:
        return all(self.free[resource] <= now for resource in self.q.resources[arc])

    def may_go(self, run: tuple[int, ...]) -> bool:
        """True if the own chunks that have to go over the link before a run, or with it, have done so."""
        return all(own in run or self.entered[self.heads[own]] for arc in run for own in self.after.get(arc, ()))

    def start(self, arcs: tuple[int, ...], now: int) -> None:
        """Send arcs of one link as one message."""
        first, size = arcs[0], len(arcs)
        for resource, units in zip(self.q.resources[first], self.grid.busy(first, size), strict=True):
            self.free[resource] = now + units
            heapq.heappush(self.events, self.free[resource])
        end = now + self.grid.duration(first, size)
        heapq.heappush(self.events, end)
        for arc in arcs:
            head = self.heads[arc]
            self.entered[head] = True
            self.wanted -= bool(self.q.required[head])
            heapq.heappush(self.arrivals, (end, head))
        self.messages.append(OrbitMessage(arcs, float(now), float(end)))


# An arc that waits: the cost of the longest path behind it, negated so that the lowest goes first, how long it takes, and its number.
_Waiting = tuple[float, int, int]


class _UrgentRun(_GreedyState):
    def __init__(
        self,
        quotient: Quotient,
        grid: TimeGrid,
        routes: Routes,
        arcs: Collection[int] | None,
        jitter: float,
        rng: random.Random,
    ) -> None:
        super().__init__(quotient, grid, routes)
        usable = set(range(quotient.num_arcs)) if arcs is None else set(arcs)
        self.out = [
            [a for a in leaving if a in usable and (arcs is not None or routes.remaining[self.heads[a]])]
            for leaving in routes.out
        ]
        rank = [routes.remaining[self.heads[a]] * (1 + jitter * rng.random()) for a in range(quotient.num_arcs)]
        self.priority = [(-rank[a], grid.duration(a), a) for a in range(quotient.num_arcs)]
        # The arcs that enter a state which does not hold yet.
        self.into = grouped(
            (self.heads[arc], arc) for leaving in self.out for arc in leaving if not self.entered[self.heads[arc]]
        )

    @property
    def has_choice(self) -> bool:
        """True if some state can be entered by several arcs, or some arcs have to go before others of their link."""
        return bool(self.after) or any(len(arcs) > 1 for arcs in self.into.values())

    def in_order(self) -> Plan | None:
        """The plan where there is no choice but the order; arcs that lead to nothing that is wanted are left out."""
        before = self._needed()
        if before is None:
            return None
        count_work("placed", len(before))
        arcs = sorted(before, key=self.priority.__getitem__)
        number = {arc: place for place, arc in enumerate(arcs)}
        starts = Dispatch(
            len(self.free),
            [int(self.q.link_orbit[arc]) for arc in arcs],
            [[*zip(self.q.resources[arc], self.grid.busy(arc, 1), strict=True)] for arc in arcs],
            [self.grid.duration(arc) for arc in arcs],
            [() if (earlier := before[arc]) is None else (number[earlier],) for arc in arcs],
            range(len(arcs)),
        ).starts_us()
        messages = (
            OrbitMessage((arc,), at, at + self.grid.duration(arc)) for arc, at in zip(arcs, starts, strict=True)
        )
        return tuple(sorted(messages, key=lambda message: message.start))

    def _needed(self) -> dict[int, int | None] | None:
        """Arcs on the path to each wanted state, with the arc before each; None if some path begins where nothing is held."""
        tails, before = self.q.tail.tolist(), dict[int, int | None]()
        for state in np.flatnonzero(self.q.required).tolist():
            passed = set[int]()
            while not self.entered[state]:
                arcs = self.into.get(state, [])
                if not arcs or state in passed:
                    return None
                if arcs[0] in before:
                    break
                passed.add(state)
                state = tails[arcs[0]]
                before[arcs[0]] = None if self.entered[state] else self.into.get(state, [None])[0]
        return before

    def plan(self) -> Plan | None:
        """The plan where what waits is sent in order of its priority, each over the first of its links that is free."""
        link_of, waiting = self.q.link_orbit.tolist(), dict[int, list[_Waiting]]()
        come = set[int]()
        while self.wanted and self.events:
            now = self.next_moment()
            for arc in chain.from_iterable(self.out[state] for state in self.arrived(now)):
                heapq.heappush(waiting.setdefault(link_of[arc], []), self.priority[arc])
                come.add(arc)
            first = [queue[0] for queue in waiting.values() if queue and self.is_free(queue[0][-1], now)]
            heapq.heapify(first)
            count_work("routed", len(waiting) + len(first))
            held: list[int] = []
            while first:
                arc = heapq.heappop(first)[-1]
                queue = waiting[link_of[arc]]
                if not self.is_free(arc, now):  # the link has a port that is taken by now
                    continue
                heapq.heappop(queue)
                if any(own in come and not self.entered[self.heads[own]] for own in self.after.get(arc, ())):
                    held.append(arc)
                elif not self.entered[self.heads[arc]]:
                    self.start((arc,), now)
                if queue:
                    heapq.heappush(first, queue[0])
            for arc in held:
                heapq.heappush(waiting[link_of[arc]], self.priority[arc])
        return None if self.wanted else tuple(self.messages)


class _EfficientRun(_GreedyState):
    def __init__(
        self,
        quotient: Quotient,
        grid: TimeGrid,
        routes: Routes,
        joins: Mapping[int, int],
        jitter: float,
        rng: random.Random,
    ) -> None:
        super().__init__(quotient, grid, routes)
        self.joins, self.jitter, self.rng = joins, jitter, rng
        self.on_link = grouped(
            (int(quotient.link_orbit[arc]), arc)
            for arc in range(quotient.num_arcs)
            if routes.remaining[self.heads[arc]] and not quotient.source[self.heads[arc]]
        )
        for link in self._links_to_spare():
            del self.on_link[link]
        self.link_of = {arc: link for link, arcs in self.on_link.items() for arc in arcs}
        self.patience = {link: self._patience(len(arcs)) for link, arcs in self.on_link.items()}
        self.liking = {link: 1 + jitter * rng.random() for link in self.on_link}
        self.ready: dict[int, set[int]] = {link: set() for link in self.on_link}

    def _links_to_spare(self) -> list[int]:
        """Costly links that a restart does without: often one relay that joins chunks beats many that each pay alpha."""
        alpha = {link: self.grid.alpha[arcs[0]] for link, arcs in self.on_link.items()}
        costly = [link for link in alpha if alpha[link] == max(alpha.values())]
        if not self.jitter or len(costly) in (1, len(alpha)) or self.rng.random() < PARAMS.all_links_probability:
            return []
        kept = self.rng.choice([1, 1, 2, max(1, len(costly) // 4), max(1, len(costly) // 2)])
        return self.rng.sample(costly, max(0, len(costly) - kept))

    def _patience(self, most: int) -> int:
        """Number of chunks that a link waits for (fewer when fewer are left): none without jitter, else a random part."""
        if not self.jitter:
            return 1
        return max(1, self.rng.choice((1, 1, most // 4, most // 2, most)))

    def plan(self) -> Plan | None:
        while self.wanted and self.events:
            now = self.next_moment()
            for state in self.arrived(now):
                for arc in self.routes.out[state]:
                    if arc in self.link_of:
                        self.ready[self.link_of[arc]].add(arc)
            while (run := self._best_run(now)) is not None:
                self.start(run, now)
        return None if self.wanted else tuple(self.messages)

    def _best_run(self, now: int) -> tuple[int, ...] | None:
        best: tuple[float, tuple[int, ...]] | None = None
        count_work("routed", len(self.ready))
        for link, ready in self.ready.items():
            if not ready or not self.is_free(self.on_link[link][0], now):
                continue
            ready.difference_update([arc for arc in ready if self.entered[self.heads[arc]]])
            if not ready or (len(ready) < self.patience[link] and len(ready) < self._left(link)):
                continue
            for run in self._runs(sorted(ready)):
                score = self._score(link, run)
                if best is None or score > best[0]:
                    best = (score, run)
        return best[1] if best else None

    def _runs(self, ready: list[int]) -> list[tuple[int, ...]]:
        """Runs that may go; where own chunks must lead, also runs of the arcs that nothing holds back."""
        runs = chains(ready, self.joins)
        if not self.after:
            return runs
        leading = [arc for arc in ready if self.may_go((arc,))]
        return [run for run in dict.fromkeys([*runs, *chains(leading, self.joins)]) if self.may_go(run)]

    def _left(self, link: int) -> int:
        return sum(not self.entered[self.heads[arc]] for arc in self.on_link[link])

    def _score(self, link: int, run: tuple[int, ...]) -> float:
        cost = self.grid.alpha[run[0]] + len(run) * self.grid.beta[run[0]]
        worth = sum(self.routes.remaining[self.heads[arc]] for arc in run)
        noise = 1 + self.jitter * self.rng.random() if self.jitter else 1.0
        return float(worth / max(cost, 1) * self.liking[link] * noise)
