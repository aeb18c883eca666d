"""The engine for demands: several planners, each under several orders, and the best of all.

Planners (`taccl_py.synthesis.demands.families`) are trees with different numbers of pieces and weights of length, trees of a linear program
(`taccl_py.synthesis.demands.packing`), for what goes from one rank to one other the balance of a node's lanes, where all want the same flooding,
and on few ranks the schedule of a collective that is nearly the demand (`taccl_py.synthesis.demands.cover`). Of the best plan other orders are tried. Small
demands are then solved by CP-SAT (`taccl_py.synthesis.demands.exact`). All of it is deterministic; the budget only decides how much is tried.

All is compared on links and ports alone. The best of the other planners go along, as their programs may be faster (`taccl_py.pipeline.demand_programs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl_py.demand import DataDemand
from taccl_py.errors import InputError
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Origin
from taccl_py.solvers.limits import Limits, Over
from taccl_py.synthesis.bounds.bound import Bound, raised
from taccl_py.synthesis.demands.bound import cut_bound
from taccl_py.synthesis.demands.classes import ChunkClass, classes_of
from taccl_py.synthesis.demands.cover import covered
from taccl_py.synthesis.demands.exact import exact_schedules, fits_exactly
from taccl_py.synthesis.demands.families import (
    AUTO,
    BALANCE,
    CP,
    DIRECT,
    FLOW,
    GREEDY,
    MILP,
    MULTICAST,
    STEPS,
    PlanFamilies,
    PlanFamily,
    is_large,
)
from taccl_py.synthesis.demands.packing import pack_demand
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import DemandPlan
from taccl_py.synthesis.engine import Events, Proof, unlike
from taccl_py.topology.model import Topology
from taccl_py.units import relative_gap

_ENGINE = "demands"
# Demands and machines that each planner is for; trees are for all.
_PLANS_FOR = {
    BALANCE: "for what goes from one rank to one other, between nodes with the same NICs",
    MULTICAST: "for copies from one rank, or sums at one rank, between nodes with the same NICs",
    DIRECT: "for what single links can carry to all who want it",
    GREEDY: f"for what the same ranks want, or up to {PARAMS.most_listed} pairs of a piece and a link",
    FLOW: f"for up to {PARAMS.most_packed} triples of a rank that holds something, one that wants it, and a link",
    STEPS: f"for up to {PARAMS.most_literals} pairs of a piece and a link",
    MILP: f"for up to {PARAMS.most_literals} pairs of a piece and a link",
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
    runners_up
        Of each other planner the best schedule, which may be much slower on links and ports, and whose program may be faster.
    """

    schedule: DemandSchedule
    bound: Bound
    proof: Proof
    runners_up: tuple[DemandSchedule, ...] = ()

    @staticmethod
    def of(
        schedule: DemandSchedule, bound: Bound, found_by: str, seed: int, *, is_proved: bool = False
    ) -> DemandSynthesis:
        """Answer with its provenance; one that is proved is the fastest with its pieces, on a solver's grid of times."""
        proof = Proof.of(schedule.makespan_us, bound)
        if is_proved and proof is Proof.FEASIBLE:
            proof = Proof.IN_CLASS
        return DemandSynthesis(_with_origin(schedule, bound, proof, found_by, seed), bound, proof)

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.schedule.makespan_us, self.bound.time_us)

    @property
    def is_near(self) -> bool:
        """True if it is so near the bound that the engines of a collective are not asked for a large one."""
        return self.gap <= PARAMS.large_near_gap


def _with_origin(schedule: DemandSchedule, bound: Bound, proof: Proof, found_by: str, seed: int) -> DemandSchedule:
    origin = Origin(_ENGINE, "none", "", seed, str(proof), bound.time_us, bound.reason, found_by=found_by)
    return schedule.with_origin(origin)


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
    bound = cut_bound(topology, classes)
    share = PARAMS.share if engine == AUTO else 1.0
    packing = pack_demand(topology, classes, limits.within(share * limits.seconds).countdown())
    bound = bound if packing is None else raised(bound, [packing.bound])
    events.bound(bound.time_us)
    events.stage("search")
    search = _DemandSearch(topology, demand, bound, limits, events, share)
    families = PlanFamilies(topology, demand, classes, bound.time_us, packing)
    if classes:
        search.plan(_first_families(families, engine, search))
    if classes and search.best is None and engine != AUTO:
        reason = f": it is {_PLANS_FOR[engine]}" if engine in _PLANS_FOR else ""
        raise InputError(
            f"engine {engine} has no schedule for this demand on {topology.name}{reason}; use --engine {AUTO}",
            path="command line",
            field="--engine",
        )
    if classes and engine == AUTO:
        search.go_on(families)
    search.reorder()
    if classes and (engine == CP or (engine == AUTO and search.is_far)):
        search.solve(classes)
    if search.best is None:
        return DemandSynthesis.of(DemandSchedule(topology, demand, ()), bound, "copies", limits.seed)
    answer = DemandSynthesis.of(search.best, bound, search.finder, limits.seed, is_proved=search.is_proved)
    return replace(answer, runners_up=search.runners_up(families)) if engine == AUTO else answer


def _first_families(families: PlanFamilies, engine: str, search: _DemandSearch) -> Iterator[PlanFamily]:
    if engine == CP:
        return families.beginnings()
    return families.all(search) if engine == AUTO else families.of(engine, search)


class _DemandSearch:
    """The best schedule so far, and who found it."""

    def __init__(
        self, topology: Topology, demand: DataDemand, bound: Bound, limits: Limits, events: Events, share: float
    ) -> None:
        self._topology, self._demand, self._bound, self._limits, self._events = topology, demand, bound, limits, events
        self._deadline, self._over = limits.deadline(), limits.countdown()
        self._share = share
        self._shares: dict[str, Over] = {}
        self._seen: list[DemandSchedule] = []
        self._near_gap = PARAMS.near_gap
        self.best: DemandSchedule | None = None
        self.finder = ""
        # Of each planner the best schedule, and its plan, if it has one; and the first plan that was too slow to be timed.
        self._best_of: dict[str, tuple[DemandSchedule, DemandPlan | None]] = {}
        self._untimed: dict[str, DemandPlan] = {}
        self.is_proved = False

    @property
    def ended(self) -> bool:
        """True if time is over, or nothing much better exists."""
        return self.best is not None and (self._over() or self._is_within(PARAMS.enough_gap))

    @property
    def is_far(self) -> bool:
        """True if there is time, and the best schedule is far enough from the bound to look for another."""
        return self.best is not None and not (self._over() or self._is_within(self._near_gap))

    @property
    def is_settled(self) -> bool:
        """True if a good part of the budget is spent, and the best schedule is near the bound."""
        return self._is_within(PARAMS.near_gap) and self._deadline.left <= PARAMS.settling * self._limits.seconds

    def _is_within(self, gap: float) -> bool:
        """True if the best schedule is so near the bound."""
        return self.best is not None and self.best.makespan_us <= self._bound.time_us * (1 + gap)

    def even_out(self) -> None:
        """Take note that NICs of a large demand have been evened out, beside which trees and the schedule of a collective gain little."""
        self._near_gap = PARAMS.evened_gap

    def limits_for(self, part: float) -> Limits:
        """Limits with a part of what is left of the budget."""
        return self._limits.within(self._deadline.left * part)

    def is_spent(self, name: str) -> bool:
        """True if a planner has had its share of the budget, which is counted from when this is first asked."""
        if name not in self._shares:
            self._shares[name] = self._limits.within(self._share * self._limits.seconds).countdown()
        return self._shares[name]()

    def plan(self, families: Iterator[PlanFamily]) -> None:
        """Try families of plans; one that gains nothing ends its family."""
        for name, family in families:
            last_us = math.inf
            for found in family:
                if self.is_settled:
                    return
                if self.best is not None and isinstance(found, DemandPlan) and found.least_us >= self.best.makespan_us:
                    self._untimed.setdefault(name, found)
                    continue
                schedule = found.timed() if isinstance(found, DemandPlan) else found
                self._seen.append(schedule)
                if schedule.makespan_us >= last_us * (1 - PARAMS.least_step):
                    break
                last_us = schedule.makespan_us
                self._offer(schedule, name)
                if name not in self._best_of or schedule.makespan_us < self._best_of[name][0].makespan_us:
                    self._best_of[name] = schedule, found if isinstance(found, DemandPlan) else None
                if self._over() or self.is_spent(name):
                    break
            if self.ended:
                return

    def go_on(self, families: PlanFamilies) -> None:
        """Try the schedule of a nearby collective, and what is for small demands, where the best plan is far from the bound."""
        if self.is_far and self._topology.num_ranks <= PARAMS.most_covered:
            limits = self.limits_for(PARAMS.covering)
            self.plan(iter([("covered", covered(self._topology, self._demand, families.classes, limits))]))
        if self.is_far:
            self.plan(families.small(self))

    def reorder(self) -> None:
        """Try other orders of the messages of each planner's best plan, if it is nearly the best, for a part of what is left of the budget."""
        if self.best is None:
            return
        most_us = self.best.makespan_us * (1 + PARAMS.reordered_gap)
        best = [(found.makespan_us, name, plan) for name, (found, plan) in self._best_of.items()]
        near = [(us, name, plan) for us, name, plan in best if plan is not None and us <= most_us]
        for place, (_, name, plan) in enumerate(sorted(near, key=lambda each: each[0])):
            if len(plan.messages) <= PARAMS.most_justified and self.is_far:
                self._reorder(plan, name, PARAMS.reordering / (1 + place))

    def _reorder(self, plan: DemandPlan, name: str, part: float) -> None:
        """Try other orders of a plan's messages."""
        over = self.limits_for(part).countdown()
        self._offer(plan.searched(self._limits.seed, lambda: over() or not self.is_far), name)

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

    def runners_up(self, families: PlanFamilies) -> tuple[DemandSchedule, ...]:
        """Best schedule of each planner but the one that found the best; single links have one also where they were not tried, as it is soon made."""
        found = {name: schedule for name, (schedule, _) in self._best_of.items()}
        untimed = dict(self._untimed)
        if DIRECT not in {*found, *untimed} and not is_large(len(families.classes)):
            untimed.update((DIRECT, plan) for plan in families.direct())
        for name, plan in untimed.items():
            if name not in found and len(plan.messages) <= PARAMS.most_in_runners_up:
                found[name] = plan.timed()
        found.pop(self.finder, None)
        others = [
            _with_origin(schedule, self._bound, Proof.of(schedule.makespan_us, self._bound), name, self._limits.seed)
            for name, schedule in found.items()
        ]
        return tuple(unlike([*filter(None, [self.best]), *others])[1:])

    def _offer(self, schedule: DemandSchedule, name: str) -> bool:
        if self.best is not None and schedule.makespan_us >= self.best.makespan_us * (1 - PARAMS.least_step):
            return False
        self.best, self.finder = schedule, name
        self._events.incumbent(schedule.makespan_us)
        return True


def is_planned_first(num_pairs: int) -> bool:
    """True if an AllToAll of so many pairs of ranks goes to the planners of demands before the engines of AllToAll."""
    return num_pairs >= PARAMS.planned_pairs
