"""The engine for demands: several planners, each under several orders, and the best of all.

Planners are trees with different numbers of pieces and weights of length (`taccl_py.synthesis.demands.trees`), for what goes from one rank to
one other the balance of a node's lanes (`taccl_py.synthesis.demands.balance`), where all want the same flooding (`taccl_py.synthesis.demands.flood`),
and on few ranks the schedule of a collective that is nearly the demand (`taccl_py.synthesis.demands.cover`). Small demands are then solved by CP-SAT
(`taccl_py.synthesis.demands.exact`). All of it is deterministic; the budget only decides how much is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from taccl_py.demand import DataDemand
from taccl_py.errors import InputError
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Origin
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.catalog import DEMAND_ENGINES
from taccl_py.synthesis.demands.balance import balanced_plans
from taccl_py.synthesis.demands.bound import bound_of_demand
from taccl_py.synthesis.demands.classes import ChunkClass, classes_of
from taccl_py.synthesis.demands.cover import covered
from taccl_py.synthesis.demands.exact import exact_schedules, fits_exactly
from taccl_py.synthesis.demands.flood import can_flood, flooded
from taccl_py.synthesis.demands.mirror import mirrored_classes, run_backwards
from taccl_py.synthesis.demands.multicast import multicast_plans
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import DemandPlan, RoutedPiece, bundled, plan_of
from taccl_py.synthesis.demands.trees import TreeRouter, direct_edges
from taccl_py.synthesis.engine import Events, Proof
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB, relative_gap

_ENGINE = "demands"
# Every planner, the planners in the order in which they are tried, and CP-SAT's model.
AUTO, _BALANCE, _MULTICAST, _DIRECT, _FLOOD, _TREES, CP = DEMAND_ENGINES
# Demands and machines that each planner is for; trees are for all.
_PLANS_FOR = {
    _BALANCE: "for what goes from one rank to one other, between nodes with the same NICs",
    _MULTICAST: "for copies from one rank, or sums at one rank, between nodes with the same NICs",
    _DIRECT: "for what single links can carry to all who want it",
    _FLOOD: "for what the same ranks want, three or more of them",
}


@dataclass(frozen=True)
class DemandSynthesis:
    """Answer to a demand.

    Attributes
    ----------
    schedule
        Best schedule found.
    bound
        Best proven lower bound.
    proof
        See `taccl_py.synthesis.engine.Proof`.
    """

    schedule: DemandSchedule
    bound: Bound
    proof: Proof

    @staticmethod
    def of(
        schedule: DemandSchedule, bound: Bound, found_by: str, seed: int, *, is_proved: bool = False
    ) -> DemandSynthesis:
        """Answer with its provenance; one that is proved is the fastest with its pieces, on a solver's grid of times."""
        proof = Proof.of(schedule.makespan_us, bound)
        if is_proved and proof is Proof.FEASIBLE:
            proof = Proof.IN_CLASS
        origin = Origin(_ENGINE, "none", "", seed, str(proof), bound.time_us, bound.reason, found_by=found_by)
        return DemandSynthesis(schedule.with_origin(origin), bound, proof)

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.schedule.makespan_us, self.bound.time_us)

    @property
    def is_near(self) -> bool:
        """True if it is so near the bound that the engines of a collective are not asked for a large one."""
        return self.gap <= PARAMS.large_near_gap


def solve_demand(
    topology: Topology, demand: DataDemand, limits: Limits, events: Events | None = None, engine: str = AUTO
) -> DemandSynthesis:
    """Schedule for a demand.

    Parameters
    ----------
    topology, demand
        The machine and what must move on it.
    limits
        When to stop.
    events
        Told of progress.
    engine
        One of `DEMAND_ENGINES`: all planners, one of them, or CP-SAT's model after those that share its pieces.

    Raises
    ------
    Infeasible
        If some rank cannot be reached.
    InputError
        If CP-SAT is asked for, and there is too much to move for it, or a planner that is not for this demand.
    """
    events = events or Events()
    classes = classes_of(demand)
    if engine == CP and not fits_exactly(topology, classes, 1):
        raise InputError(
            f"engine cp weighs every piece on every link, and {len(classes)} sorts of chunks on {len(topology.links)} links are more than "
            f"{PARAMS.most_literals} pairs; use --engine {AUTO}",
            path="command line", field="--engine",
        )  # fmt: skip
    events.stage("bound")
    bound = bound_of_demand(topology, demand)
    events.bound(bound.time_us)
    events.stage("search")
    search = _DemandSearch(topology, demand, bound, limits, events)
    search.plan(_beginnings(topology, demand, bound) if engine == CP else search.families(engine))
    if classes and search.best is None and engine != AUTO:
        reason = f": it is {_PLANS_FOR[engine]}" if engine in _PLANS_FOR else ""
        raise InputError(
            f"engine {engine} has no schedule for this demand on {topology.name}{reason}; use --engine {AUTO}",
            path="command line",
            field="--engine",
        )
    if engine == AUTO and topology.num_ranks <= PARAMS.most_covered and search.is_far:
        search.plan(iter([("covered", covered(topology, demand, classes, search.limits_for(PARAMS.covering)))]))
    if classes and (engine == CP or (engine == AUTO and search.is_far)):
        search.solve(classes)
    if search.best is None:
        return DemandSynthesis.of(DemandSchedule(topology, demand, ()), bound, "copies", limits.seed)
    return DemandSynthesis.of(search.best, bound, search.finder, limits.seed, is_proved=search.is_proved)


class _DemandSearch:
    """The best schedule so far, and who found it."""

    def __init__(self, topology: Topology, demand: DataDemand, bound: Bound, limits: Limits, events: Events) -> None:
        self._topology, self._demand, self._bound, self._limits, self._events = topology, demand, bound, limits, events
        self._deadline, self._over = limits.deadline(), limits.countdown()
        self._seen: list[DemandSchedule] = []
        self._near_gap = PARAMS.near_gap
        self.best: DemandSchedule | None = None
        self.finder = ""
        self.is_proved = False

    @property
    def ended(self) -> bool:
        """True if time is over, or nothing much better exists."""
        return self.best is not None and (
            self._over() or self.best.makespan_us <= self._bound.time_us * (1 + PARAMS.enough_gap)
        )

    @property
    def is_far(self) -> bool:
        """True if there is time, and the best schedule is far enough from the bound to look for another."""
        return self.best is not None and not (
            self._over() or self.best.makespan_us <= self._bound.time_us * (1 + self._near_gap)
        )

    def families(self, engine: str) -> Iterator[tuple[str, Iterator[DemandSchedule]]]:
        """Families of schedules with the names of their planners, of one or of all, the likeliest first."""
        for family in _planned(self, self._topology, self._demand, self._bound, is_whole=engine == AUTO):
            if engine in (AUTO, family[0]):
                yield family

    def even_out(self) -> None:
        """Take note that NICs of a large demand have been evened out, beside which trees and the schedule of a collective gain little."""
        self._near_gap = PARAMS.evened_gap

    def limits_for(self, part: float) -> Limits:
        """Limits with a part of what is left of the budget."""
        return self._limits.within(self._deadline.left * part)

    def plan(self, families: Iterator[tuple[str, Iterator[DemandSchedule]]]) -> None:
        """Try families of schedules; one that gains nothing ends its family."""
        for name, family in families:
            last_us = math.inf
            for schedule in family:
                self._seen.append(schedule)
                if schedule.makespan_us >= last_us * (1 - PARAMS.least_step):
                    break
                last_us = schedule.makespan_us
                self._offer(schedule, name)
                if self._over():
                    break
            if self.ended:
                return

    def solve(self, classes: Sequence[ChunkClass]) -> None:
        """Solve CP-SAT's model, where it is small enough, with more and more pieces."""
        for place, count in enumerate(PARAMS.exact_pieces):
            if self.ended or not fits_exactly(self._topology, classes, count):
                return
            limits = self._limits.within(self._deadline.left / (len(PARAMS.exact_pieces) - place))
            steps = exact_schedules(self._topology, self._demand, classes, count, self._seen, self._bound, limits)
            for step in steps:
                if self._offer(step.schedule, CP):
                    self.is_proved = False
                if step.is_proved and self.best is step.schedule:
                    self.is_proved = True

    def _offer(self, schedule: DemandSchedule, name: str) -> bool:
        if self.best is not None and schedule.makespan_us >= self.best.makespan_us * (1 - PARAMS.least_step):
            return False
        self.best, self.finder = schedule, name
        self._events.incumbent(schedule.makespan_us)
        return True


def _beginnings(topology: Topology, demand: DataDemand, bound: Bound) -> Iterator[tuple[str, Iterator[DemandSchedule]]]:
    """Schedules with the pieces of CP-SAT's model, in which it begins."""
    classes = classes_of(demand)
    if not classes:
        return
    yield _DIRECT, _direct(topology, demand, classes)
    for count in PARAMS.exact_pieces:
        if not fits_exactly(topology, classes, count):
            return
        for shortness in PARAMS.shortness:
            counts = (count,) * len(classes)
            yield _TREES, islice(_of_trees(topology, demand, classes, counts, bound.time_us, shortness), 1)
        if can_flood(classes):
            schedule = flooded(topology, demand, classes, count)
            yield _FLOOD, iter([schedule] if schedule is not None else [])


def _planned(
    search: _DemandSearch, topology: Topology, demand: DataDemand, bound: Bound, *, is_whole: bool
) -> Iterator[tuple[str, Iterator[DemandSchedule]]]:
    """Families of all planners; where the search is whole, those are left out that win nothing beside the ones before."""
    classes = classes_of(demand)
    if not classes:
        return
    made: list[int] = []
    for is_ordered in (True, False):
        plans = balanced_plans(topology, demand, classes, is_ordered=is_ordered)
        yield _BALANCE, (plan.timed() for plan in _counted(plans, made))
    if made and is_large(len(classes)):
        return
    is_evened = bool(made) and not fits_exactly(topology, classes, 1)
    if is_evened:
        search.even_out()
    for is_matched in () if made and len(classes) > PARAMS.few_exchanges else (False, True):
        yield _MULTICAST, (plan.timed() for plan in multicast_plans(topology, demand, classes, is_matched=is_matched))
    yield _DIRECT, _direct(topology, demand, classes)
    if can_flood(classes):
        yield _FLOOD, _of_floods(topology, demand, classes)
    mirrored = mirrored_classes(classes)
    if mirrored is not None and can_flood(mirrored):
        floods = _of_floods(topology.reversed(), demand, mirrored)
        yield _FLOOD, (run_backwards(topology, found) for found in floods)
    is_huge = len(classes) * len(topology.links) > PARAMS.most_looks
    if is_whole and ((is_evened and not search.is_far) or (is_huge and _is_direct(topology, classes))):
        return
    rates_us = sorted({topology.resource_cost[r][1] for links in topology.resources_of for r in links} - {0.0})
    slowest_us = min(rates_us[-1], PARAMS.slowest_factor * rates_us[0]) if rates_us else 0.0
    tried: set[tuple[tuple[int, ...], float]] = set()
    for count in PARAMS.trees:
        for shortness in PARAMS.shortness:
            pieces = _few(
                [_pieces_of(each, slowest_us, bound.time_us / count) for each in classes],
                PARAMS.most_looks // len(topology.links),
            )
            if (pieces, shortness) not in tried:
                tried.add((pieces, shortness))
                yield _TREES, _of_trees(topology, demand, classes, pieces, bound.time_us, shortness)


def is_planned_first(num_pairs: int) -> bool:
    """True if an AllToAll of so many pairs of ranks goes to the planners of demands before the engines of AllToAll."""
    return num_pairs >= PARAMS.planned_pairs


def is_large(num_classes: int) -> bool:
    """True if there are so many classes of chunks that one plan for all of them takes most of the time of a search."""
    return num_classes > PARAMS.enough_messages


def _counted(plans: Iterator[DemandPlan], made: list[int]) -> Iterator[DemandPlan]:
    """The plans; their numbers of messages are put on a list."""
    for plan in plans:
        made.append(len(plan.messages))
        yield plan


def _few(pieces: Sequence[int], most: int) -> tuple[int, ...]:
    """Numbers of pieces, lowered in proportion where there are more than so many; one of each class at least."""
    total = sum(pieces)
    return tuple(pieces) if total <= most else tuple(max(1, count * most // total) for count in pieces)


def _is_direct(topology: Topology, classes: Sequence[ChunkClass]) -> bool:
    """True if every class can go over single links."""
    return all(direct_edges(topology, each, each.size_bytes) is not None for each in classes)


def _direct(topology: Topology, demand: DataDemand, classes: Sequence[ChunkClass]) -> Iterator[DemandSchedule]:
    """The schedule in which everything goes over single links, if there is one."""
    routed = []
    for number, each in enumerate(classes):
        edges = direct_edges(topology, each, each.size_bytes)
        if edges is None:
            return
        routed.append(RoutedPiece(each.cut(demand, 1)[0], edges, float(number)))
    yield bundled(plan_of(topology, demand, routed)).timed()


def _of_floods(topology: Topology, demand: DataDemand, classes: Sequence[ChunkClass]) -> Iterator[DemandSchedule]:
    """Floods with more and more pieces, as long as looking at all links for each message is soon done."""
    wanted = sum(len(each.wants) for each in classes)
    for count in PARAMS.floods:
        if count * wanted * len(topology.links) > PARAMS.most_flooded:
            return
        schedule = flooded(topology, demand, classes, count)
        if schedule is None:
            return
        yield schedule


def _of_trees(
    topology: Topology,
    demand: DataDemand,
    classes: tuple[ChunkClass, ...],
    pieces: tuple[int, ...],
    whole_us: float,
    shortness: float,
) -> Iterator[DemandSchedule]:
    """Schedules over the same trees, with more and more pieces that follow each other on each tree."""
    routed = route_pieces(topology, demand, classes, pieces, whole_us, shortness)
    messages = sum(len(piece.edges) for piece in routed)
    for parts in PARAMS.pieces:
        if parts > 1 and parts * messages > PARAMS.most_messages:
            break
        yield plan_of(
            topology, demand, [part for piece in routed for part in piece.split(parts, demand.element_bytes)]
        ).timed()


def _pieces_of(each: ChunkClass, slowest_us: float, piece_us: float) -> int:
    """Pieces of a class that each take about so long where a megabyte takes longest."""
    return max(1, round(each.size_bytes / BYTES_PER_MB * slowest_us / max(piece_us, 1e-9)))


def route_pieces(
    topology: Topology,
    demand: DataDemand,
    classes: tuple[ChunkClass, ...],
    pieces: tuple[int, ...],
    whole_us: float,
    shortness: float,
) -> list[RoutedPiece]:
    """Trees for so many pieces of each class, those of all classes side by side, and once again when all others have theirs."""
    router = TreeRouter(topology, whole_us, shortness)
    waiting = sorted(
        ((index + 0.5) / len(cut), number, index, parts)
        for number, (each, count) in enumerate(zip(classes, pieces, strict=True))
        for cut in [each.cut(demand, count)]
        for index, parts in enumerate(cut)
    )
    sizes = [sum(size for _, _, size in parts) for *_, parts in waiting]
    total, done = sum(sizes), 0
    trees = []
    for (_, number, _, _), size in zip(waiting, sizes, strict=True):
        done += size
        trees.append(router.route(classes[number], size, done / total))
    for i, ((_, number, _, _), size) in enumerate(zip(waiting, sizes, strict=True)):
        router.unroute(trees[i], size)
        trees[i] = router.route(classes[number], size)
    return [RoutedPiece(parts, edges, place) for (place, _, _, parts), edges in zip(waiting, trees, strict=True)]
