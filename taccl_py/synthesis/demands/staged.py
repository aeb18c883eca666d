"""Engines ``greedy``, ``milp`` and ``steps`` for demands: the stages of the engines of collectives on pieces of nearly equal size.

Copies are routed on the machine, sums for one rank as copies on the reversed machine, and a sum that several want as both: to one of them, and from
there. A stage says which links each piece uses and when; the messages are then timed like those of all plans.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

import numpy as np

from taccl_py.demand import DataDemand
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.demands.classes import ChunkClass, DemandCut, Part
from taccl_py.synthesis.demands.dispatch import PlannedMessage
from taccl_py.synthesis.demands.packing import builder_by_length
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import DemandPlan
from taccl_py.synthesis.demands.trees import TreeEdge
from taccl_py.synthesis.greedy import efficient_plan, urgent_plan
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.models.cp_steps import fewest_steps, solve_steps
from taccl_py.synthesis.models.linear_routing import solve_routing
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.plan import Plan, plan_end
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.routes import Routes
from taccl_py.synthesis.traffic import PieceTraffic
from taccl_py.topology.model import Topology
from taccl_py.work import count_work


@dataclass(frozen=True)
class _StagedPiece:
    """A piece of a class, and the rank at which it is completed if it is a sum."""

    parts: tuple[Part, ...]
    each: ChunkClass
    owner: int

    @property
    def size_bytes(self) -> int:
        return sum(size for *_, size in self.parts)

    @property
    def gathered(self) -> ChunkClass | None:
        """The sum at the owner."""
        return replace(self.each, wants=(self.owner,)) if self.each.is_sum else None

    @property
    def copied(self) -> ChunkClass | None:
        """The copies, if there are any."""
        if not self.each.is_sum:
            return self.each
        wants = tuple(rank for rank in self.each.wants if rank != self.owner)
        return replace(self.each, terms=((self.owner,),), wants=wants) if wants else None


@dataclass(frozen=True)
class _RoutedLink:
    """A link that a piece uses, when, and the message that takes it there."""

    start: float
    message: int


# Of each piece, by its number, the links that it uses.
_Routing = dict[int, dict[int, _RoutedLink]]


class _HalfModel:
    """Pieces that are copied on a machine, as what the stages see.

    Parameters
    ----------
    topology
        The machine, reversed for sums.
    traffic
        The pieces.
    piece_bytes
        Size of the largest one.
    whole_us
        A lower bound.
    """

    def __init__(self, topology: Topology, traffic: PieceTraffic, piece_bytes: int, whole_us: float) -> None:
        problem = Problem.build(topology, traffic, None, piece_bytes)
        self.quotient = Quotient.of(problem)
        self.grid = TimeGrid.of(self.quotient, max(whole_us, 1e-6) * PARAMS.listed_horizon)
        self.routes = Routes.of(self.quotient, self.grid)
        self.joins = _joins(self.quotient)
        count_work("timed", self.quotient.num_arcs)

    def task(self, upper: int) -> ModelTask:
        """Task for a model that has to end by then."""
        return ModelTask(self.quotient, self.grid, self.routes, self.joins, 0, upper)

    def listed(self, seed: int, limits: Limits) -> list[Plan]:
        """Plans of both rules of list scheduling with perturbed restarts, the fastest first."""
        found: list[Plan | None] = []
        over = limits.countdown()
        for restart in range(PARAMS.listings):
            if over() and any(found):
                break
            jitter = PARAMS.listing_jitter if restart else 0.0
            args = self.quotient, self.grid, self.routes
            found.append(urgent_plan(*args, jitter=jitter, seed=seed + restart))
            found.append(efficient_plan(*args, self.joins, jitter=jitter, seed=seed + restart))
        return sorted((plan for plan in found if plan is not None), key=plan_end)

    def routing(self, plan: Plan) -> _Routing:
        """Links of each piece in a plan."""
        found: _Routing = defaultdict(dict)
        for number, message in enumerate(plan):
            for arc in message.arcs:
                for piece, link in self.quotient.members(arc):
                    found[piece][link] = _RoutedLink(message.start, number)
        return found


# Plans of a half, the best first.
_Solve = Callable[[_HalfModel, Limits], list[Plan]]


def _greedy(half: _HalfModel, limits: Limits) -> list[Plan]:
    return half.listed(limits.seed, limits)[: PARAMS.listings_timed]


def _milp(half: _HalfModel, limits: Limits) -> list[Plan]:
    """Orders of the routes of the linear program."""
    first = half.listed(limits.seed, limits)[:1]
    if not first:
        return []
    task = replace(half.task(round(plan_end(first[0]))), predecessor={})
    arcs, _ = solve_routing(task, PolicyTerms.of(half.quotient), "highs", limits, first[0])
    if arcs is None:
        return first
    args = half.quotient, half.grid, half.routes
    orders = [
        urgent_plan(*args, arcs=arcs, jitter=PARAMS.listing_jitter if seed else 0.0, seed=seed)
        for seed in range(PARAMS.listings)
    ]
    found = sorted((plan for plan in orders if plan is not None), key=plan_end)
    return found[: PARAMS.listings_timed] or first


def _steps(half: _HalfModel, limits: Limits) -> list[Plan]:
    """Plans in the fewest steps, and in a few more."""
    first = half.listed(limits.seed, limits)[:1]
    if not first:
        return []
    task = half.task(round(plan_end(first[0])) * PARAMS.steps_slack)
    fewest, deadline, found = fewest_steps(task), limits.deadline(), []
    for steps in range(fewest, fewest + PARAMS.more_steps + 1):
        left = PARAMS.more_steps + 1 - (steps - fewest)
        plan, _ = solve_steps(task, steps, limits.within(deadline.left / left, PARAMS.steps_work), None)
        found += [] if plan is None else [plan]
        if deadline.over():
            break
    return found


@dataclass(frozen=True)
class StagedMethod:
    """A solver, the numbers of pieces of the largest class that it tries, and the pairs of pieces and links up to which it does.

    Attributes
    ----------
    solve
        Finds plans of a half, the best first.
    counts
        Numbers of pieces.
    most_pairs
        Pairs of pieces and links.
    """

    solve: _Solve
    counts: tuple[int, ...]
    most_pairs: int


# List scheduling (`taccl_py.synthesis.greedy`), TACCL's routing program, and synchronous steps (SCCL's rounds).
LISTED = StagedMethod(_greedy, PARAMS.listed_pieces, PARAMS.most_listed)
PROGRAMMED = StagedMethod(_milp, PARAMS.exact_pieces, PARAMS.most_literals)
STEPPED = StagedMethod(_steps, PARAMS.exact_pieces, PARAMS.most_literals)


def staged_plans(
    topology: Topology,
    demand: DataDemand,
    classes: Sequence[ChunkClass],
    whole_us: float,
    limits: Limits,
    method: StagedMethod,
) -> Iterator[DemandPlan]:
    """Plans with more and more pieces, while a model of them is small enough; the best of each number of pieces comes first.

    Parameters
    ----------
    topology, demand, classes
        The machine, what is wanted, and its chunks by class.
    whole_us
        Lower bound.
    limits
        Time, and the user's interrupt.
    method
        Solver of halves.

    Raises
    ------
    PackageMissing
        If the method's solver is not installed.
    """
    if len(classes) * len(topology.links) > method.most_pairs:
        return
    deadline = limits.deadline()
    far_us = _distances_us(topology)
    for count in method.counts:
        pieces = _pieces(demand, classes, count, far_us)
        if not pieces or len(pieces) * len(topology.links) > method.most_pairs:
            return
        plans = _Halves(topology, demand, pieces, whole_us, far_us).plans(
            method.solve, limits.within(deadline.left / 2)
        )
        if plans:
            yield min(plans, key=lambda plan: plan.timed().makespan_us)


def _distances_us(topology: Topology) -> list[list[float]]:
    """Least time of small messages to each rank from each, [to, from]."""
    net = Net.of(topology.reversed())
    found: list[list[float]] = net.quickest_from(range(net.num_ranks)).tolist()
    return found


def _pieces(
    demand: DataDemand, classes: Sequence[ChunkClass], count: int, far_us: Sequence[Sequence[float]]
) -> list[_StagedPiece]:
    """Pieces of nearly the same size, so many of the largest class; those who want a sum complete it in turns. None where no rank can."""
    most_bytes = max(each.size_bytes for each in classes) / count
    found: list[_StagedPiece] = []
    for each in classes:
        owners = _owners(each, far_us)
        if not owners:
            return []
        cut = each.cut(demand, max(1, round(each.size_bytes / most_bytes)))
        found += [_StagedPiece(parts, each, owners[number % len(owners)]) for number, parts in enumerate(cut)]
    return found


def _owners(each: ChunkClass, far_us: Sequence[Sequence[float]]) -> list[int]:
    """Ranks that may complete a sum: those who want it and add to it, else who want it, else any; of copies, which need none, those who want them."""
    if not each.is_sum:
        return list(each.wants)
    holders = {rank for term in each.terms for rank in term}
    adding = [rank for rank in each.wants if rank in holders]
    for ranks in (adding, each.wants, range(len(far_us))):
        able = [rank for rank in ranks if _may_complete(each, rank, far_us)]
        if able:
            return able
    return []


def _may_complete(each: ChunkClass, rank: int, far_us: Sequence[Sequence[float]]) -> bool:
    """True if all terms lead to a rank, and it to all who want the sum."""
    return all(any(math.isfinite(far_us[rank][one]) for one in term) for term in each.terms) and all(
        math.isfinite(far_us[want][rank]) for want in each.wants
    )


class _Halves:
    """Sums to their owners on the reversed machine, and copies on the machine."""

    def __init__(
        self,
        topology: Topology,
        demand: DataDemand,
        pieces: Sequence[_StagedPiece],
        whole_us: float,
        far_us: Sequence[Sequence[float]],
    ) -> None:
        self._topology, self._demand, self._pieces, self._whole_us = topology, demand, pieces, whole_us
        self._far_us = far_us

    def plans(self, solve: _Solve, limits: Limits) -> list[DemandPlan]:
        """Plans of a solver; none if it finds none for one of the halves."""
        gathered = {number: piece.gathered for number, piece in enumerate(self._pieces)}
        copied = {number: piece.copied for number, piece in enumerate(self._pieces)}
        deadline = limits.deadline()
        sums = self._routings(gathered, solve, limits.within(deadline.left / 2), backwards=True)
        copies = self._routings(copied, solve, limits.within(deadline.left), backwards=False)
        if not sums or not copies:
            return []
        most = max(len(sums), len(copies))
        return [self._plan(sums[min(i, len(sums) - 1)], copies[min(i, len(copies) - 1)]) for i in range(most)]

    def _routings(
        self, classes: dict[int, ChunkClass | None], solve: _Solve, limits: Limits, *, backwards: bool
    ) -> list[_Routing]:
        """Links of the pieces of a half in each of some plans, times turned back where they are of the reversed machine."""
        asked = {number: each for number, each in classes.items() if each is not None}
        if not asked:
            return [{}]
        machine = self._topology.reversed() if backwards else self._topology
        ends = [self._turned(each) if backwards else (each.terms[0], each.wants) for each in asked.values()]
        traffic = PieceTraffic(machine.num_ranks, tuple(held for held, _ in ends), tuple(wants for _, wants in ends))
        size = max(self._pieces[number].size_bytes for number in asked)
        half = _HalfModel(machine, traffic, size, self._whole_us)
        links = machine.reversed_link() if backwards else range(len(machine.links))
        found = []
        for plan in solve(half, limits):
            routing = half.routing(plan)
            found.append(
                {
                    number: {
                        links[link]: replace(one, start=-one.start) if backwards else one
                        for link, one in routing.get(place, {}).items()
                    }
                    for place, number in enumerate(asked)
                }
            )
        return found

    def _turned(self, each: ChunkClass) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Who has and who wants a sum on the reversed machine: its owner, and the nearest holder of each term."""
        (owner,) = each.wants
        chosen = []
        for holders in each.terms:
            if owner not in holders:
                chosen.append(min(holders, key=lambda rank: (self._far_us[owner][rank], rank)))
        return (owner,), tuple(dict.fromkeys(chosen))

    def _plan(self, sums: _Routing, copies: _Routing) -> DemandPlan:
        """Messages of both halves: what a solver sends together is one message, unless messages would then wait for each other."""
        try:
            return self._planned(sums, copies, is_joint=True)
        except CycleError:
            return self._planned(sums, copies, is_joint=False)

    def _planned(self, sums: _Routing, copies: _Routing, *, is_joint: bool) -> DemandPlan:
        """Messages of both halves.

        Raises
        ------
        CycleError
            If messages wait for each other.
        """
        cut = DemandCut(self._demand)
        chunks = [cut.number(piece.parts) for piece in self._pieces]
        groups: dict[tuple[bool, int, int, bool], list[tuple[int, int]]] = {}
        edges: list[tuple[TreeEdge, ...]] = []
        for number, piece in enumerate(self._pieces):
            first = self._half_edges(piece.gathered, sums.get(number, {}))
            second = self._half_edges(piece.copied, copies.get(number, {}))
            edges.append((*first, *(self._behind(piece, first, second) if piece.each.is_sum else second)))
            for index, edge in enumerate(edges[-1]):
                is_copy = index >= len(first)
                routed = (copies if is_copy else sums)[number][edge.link]
                message = routed.message if is_joint else number
                groups.setdefault((is_copy, message, edge.link, edge.reduce), []).append((number, index))
        of_edge = {one: key for key, ones in groups.items() for one in ones}
        after = {
            key: {of_edge[number, before] for number, index in ones for before in edges[number][index].after} - {key}
            for key, ones in groups.items()
        }
        order = list(TopologicalSorter(after).static_order())
        place = {key: i for i, key in enumerate(order)}
        messages = []
        for key in order:
            is_copy, _, link, reduce = key
            numbers = [number for number, _ in groups[key]]
            start = min((copies if is_copy else sums)[number][link].start for number in numbers)
            messages.append(
                PlannedMessage(
                    link,
                    tuple(chunk for number in numbers for chunk in chunks[number]),
                    sum(self._pieces[number].size_bytes for number in numbers),
                    tuple(sorted(place[before] for before in after[key])),
                    reduce,
                    start,
                )
            )
        return DemandPlan(self._topology, cut.demand(), tuple(messages))

    def _behind(self, piece: _StagedPiece, first: Sequence[TreeEdge], second: Sequence[TreeEdge]) -> Iterator[TreeEdge]:
        """Copies of a sum, behind what completes it where they begin; none to a rank that has passed all of it on to its owner."""
        builder = builder_by_length(self._topology, np.ones(len(self._topology.links)))
        complete = builder.complete(piece.each, piece.owner, first)
        place: dict[int, int] = {}
        for number, edge in enumerate(second):
            link = self._topology.links[edge.link]
            if link.dst in complete:
                continue
            place[number] = len(first) + len(place)
            begun = complete.get(link.src, tuple(place[before] for before in edge.after if before in place))
            yield replace(edge, after=begun)

    def _half_edges(self, each: ChunkClass | None, links: dict[int, _RoutedLink]) -> tuple[TreeEdge, ...]:
        if each is None or not links:
            return ()
        lengths = np.ones(len(self._topology.links))
        return builder_by_length(self._topology, lengths, np.array(sorted(links))).build(each, each.size_bytes)


def _joins(quotient: Quotient) -> dict[int, int]:
    """For each arc the one before it on its link: messages of demands are packed, so any pieces can go together."""
    found: dict[int, int] = {}
    last: dict[int, int] = {}
    for arc, link in enumerate(quotient.link.tolist()):
        if link in last:
            found[arc] = last[link]
        last[link] = arc
    return found
