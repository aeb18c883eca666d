"""Families of plans for demands, by the planner that makes them, the likeliest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from taccl_py.demand import DataDemand
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import DEMAND_ENGINES
from taccl_py.synthesis.demands.balance import balanced_plans
from taccl_py.synthesis.demands.classes import ChunkClass
from taccl_py.synthesis.demands.exact import fits_exactly
from taccl_py.synthesis.demands.flood import can_flood, flooded
from taccl_py.synthesis.demands.mirror import mirrored_classes, run_backwards
from taccl_py.synthesis.demands.multicast import multicast_plans
from taccl_py.synthesis.demands.packing import DemandPacking, packed_pieces, pieces_by_time
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import DemandPlan, RoutedPiece, bundled, plan_of
from taccl_py.synthesis.demands.staged import LISTED, PROGRAMMED, STEPPED, staged_plans
from taccl_py.synthesis.demands.trees import TreeRouter, direct_edges
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB

# A planner's name, and its plans, or schedules where times are part of what it plans.
PlanFamily = tuple[str, Iterator[DemandPlan | DemandSchedule]]

# Every planner, the planners in the order in which they are tried, and CP-SAT's model.
AUTO, BALANCE, MULTICAST, DIRECT, GREEDY, FLOW, TREES, STEPS, MILP, CP = DEMAND_ENGINES

# Engines whose stages see pieces of a demand.
_STAGES = {GREEDY: LISTED, MILP: PROGRAMMED, STEPS: STEPPED}


class PlanSearch(Protocol):
    """The search that tries the plans."""

    @property
    def is_far(self) -> bool:
        """True if there is time, and the best schedule is far enough from the bound to look for another."""

    def even_out(self) -> None:
        """Take note that NICs of a large demand have been evened out."""

    def limits_for(self, part: float) -> Limits:
        """Limits with a part of what is left of the budget."""

    def is_spent(self, name: str) -> bool:
        """True if a planner has had its share of the budget."""


@dataclass(frozen=True)
class PlanFamilies:
    """Plans for a demand.

    Attributes
    ----------
    topology, demand, classes
        The machine, what must move on it, and its classes.
    whole_us
        Lower bound.
    packing
        Its packing, if there is one.
    """

    topology: Topology
    demand: DataDemand
    classes: tuple[ChunkClass, ...]
    whole_us: float
    packing: DemandPacking | None

    def beginnings(self) -> Iterator[PlanFamily]:
        """Plans with the pieces of CP-SAT's model, in which it begins."""
        yield DIRECT, self.direct()
        for count in PARAMS.exact_pieces:
            if not fits_exactly(self.topology, self.classes, count):
                return
            for shortness in PARAMS.shortness:
                yield TREES, islice(self._trees(self._pieces_by((count,) * len(self.classes), shortness)), 1)
            if can_flood(self.classes):
                schedule = flooded(self.topology, self.demand, self.classes, count)
                yield GREEDY, iter([schedule] if schedule is not None else [])

    def of(self, engine: str, search: PlanSearch) -> Iterator[PlanFamily]:
        """Plans of one engine."""
        makers: dict[str, Callable[[], Iterator[PlanFamily]]] = {
            BALANCE: lambda: self._balanced([]),
            MULTICAST: self._multicast,
            DIRECT: lambda: iter([(DIRECT, self.direct())]),
            GREEDY: self._floods,
            FLOW: lambda: self._packed(search),
            TREES: lambda: self._routed(search),
        }
        if engine in makers:
            yield from makers[engine]()
        if engine in _STAGES:
            yield self._staged(engine, search.limits_for(1.0))

    def all(self, search: PlanSearch) -> Iterator[PlanFamily]:
        """Plans of all planners, but for those that win nothing beside the ones before."""
        made: list[int] = []
        yield from self._balanced(made)
        if made and is_large(len(self.classes)):
            return
        is_evened = bool(made) and not fits_exactly(self.topology, self.classes, 1)
        if is_evened:
            search.even_out()
        if not made or len(self.classes) <= PARAMS.few_exchanges:
            yield from self._multicast()
        yield DIRECT, self.direct()
        yield from self._floods()
        if is_evened and not search.is_far:
            return
        yield self._staged(GREEDY, search.limits_for(PARAMS.staging))
        yield from self._packed(search)
        if len(self.classes) * len(self.topology.links) <= PARAMS.most_looks or not self._is_direct:
            yield from self._routed(search)

    def _staged(self, engine: str, limits: Limits) -> PlanFamily:
        """Plans of an engine of collectives on pieces."""
        return engine, staged_plans(self.topology, self.demand, self.classes, self.whole_us, limits, _STAGES[engine])

    def small(self, search: PlanSearch) -> Iterator[PlanFamily]:
        """Plans of those engines of collectives whose models are for few pieces."""
        for engine in (STEPS, MILP):
            yield self._staged(engine, search.limits_for(PARAMS.staging))

    def _balanced(self, made: list[int]) -> Iterator[PlanFamily]:
        """Evened lanes of nodes; the plans' numbers of messages are put on a list."""
        for is_ordered in (True, False):
            plans = balanced_plans(self.topology, self.demand, self.classes, is_ordered=is_ordered)
            yield BALANCE, _counted(plans, made)

    def _multicast(self) -> Iterator[PlanFamily]:
        for is_matched in (False, True):
            yield MULTICAST, multicast_plans(self.topology, self.demand, self.classes, is_matched=is_matched)

    @property
    def _is_direct(self) -> bool:
        """True if every class can go over single links."""
        return all(direct_edges(self.topology, each, each.size_bytes) is not None for each in self.classes)

    def direct(self) -> Iterator[DemandPlan]:
        """The plan in which everything goes over single links, if there is one."""
        routed = []
        for number, each in enumerate(self.classes):
            edges = direct_edges(self.topology, each, each.size_bytes)
            if edges is None:
                return
            routed.append(RoutedPiece(each.cut(self.demand, 1)[0], edges, float(number)))
        yield bundled(plan_of(self.topology, self.demand, routed))

    def _floods(self) -> Iterator[PlanFamily]:
        """Floods of what all want, forwards, or backwards where it is summed."""
        if can_flood(self.classes):
            yield GREEDY, _of_floods(self.topology, self.demand, self.classes)
        mirrored = mirrored_classes(self.classes)
        if mirrored is not None and can_flood(mirrored):
            floods = _of_floods(self.topology.reversed(), self.demand, mirrored)
            yield GREEDY, (run_backwards(self.topology, found) for found in floods)

    def _packed(self, search: PlanSearch) -> Iterator[PlanFamily]:
        """Trees of the packing, in smaller and smaller pieces; any number of them may be the best."""
        if self.packing is None:
            return
        before: list[RoutedPiece] = []
        for count in PARAMS.packing_pieces:
            pieces = packed_pieces(self.topology, self.demand, self.classes, self.packing, self.whole_us / count)
            if pieces == before:
                continue
            before = pieces
            plan = plan_of(self.topology, self.demand, pieces)
            yield FLOW, iter([plan])
            if len(plan.messages) > PARAMS.most_justified or search.is_spent(FLOW):
                return

    def _routed(self, search: PlanSearch) -> Iterator[PlanFamily]:
        """Trees by the loads of links and ports, for several numbers of pieces and weights of length."""
        links = self.topology.resources_of
        rates_us = sorted({self.topology.resource_cost[r][1] for resources in links for r in resources} - {0.0})
        largest_bytes = max(each.size_bytes for each in self.classes)
        usual_us = self.whole_us / (largest_bytes / BYTES_PER_MB)
        slowest_us = min(rates_us[-1], PARAMS.slowest_factor * max(rates_us[0], usual_us)) if rates_us else 0.0
        tried: set[tuple[tuple[int, ...], float]] = set()
        found: list[list[RoutedPiece]] = []
        for count in PARAMS.trees:
            for shortness in PARAMS.shortness:
                wished = [pieces_by_time(each.size_bytes, slowest_us, self.whole_us / count) for each in self.classes]
                pieces = _few(wished, PARAMS.most_looks // len(links))
                if (pieces, shortness) not in tried:
                    tried.add((pieces, shortness))
                    routed = self._pieces_by(pieces, shortness)
                    if routed not in found:
                        found.append(routed)
                        yield TREES, self._trees(routed)
                    if search.is_spent(TREES):
                        return

    def _pieces_by(self, pieces: tuple[int, ...], shortness: float) -> list[RoutedPiece]:
        """So many pieces of every class on trees of a weight of length."""
        return route_pieces(self.topology, self.demand, self.classes, pieces, self.whole_us, shortness)

    def _trees(self, routed: Sequence[RoutedPiece]) -> Iterator[DemandPlan]:
        """Plans over the same trees, with more and more pieces that follow each other on each tree."""
        messages = sum(len(piece.edges) for piece in routed)
        for parts in PARAMS.pieces:
            if parts > 1 and parts * messages > PARAMS.most_messages:
                break
            split = [part for piece in routed for part in piece.split(parts, self.demand.element_bytes)]
            yield plan_of(self.topology, self.demand, split)


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
