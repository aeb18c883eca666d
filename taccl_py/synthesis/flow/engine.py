"""Engine ``flow``: AllToAll, Gather and Scatter for sizes at which throughput rules.

1. The multicommodity flow says how fast the fullest link or port lets all data through, and along which paths.
2. Every pair's data is cut into k parts; an integer program puts each part on a path so that the fullest link or port has
   next to no more to carry than in the flow. k is chosen by that load.
3. The order is found by list scheduling with restarts, exactly where the quotient is small, and part by part elsewhere;
   neighbours on one path share alpha where that pays. Plans are justified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from taccl_py.collective import Kind
from taccl_py.errors import InputError, LimitReached
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound, demand_bound, raised
from taccl_py.synthesis.commodity_flow import Commodities, CommodityFlow, solve_flow
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis, timed_stage
from taccl_py.synthesis.flow.params import PARAMS
from taccl_py.synthesis.flow.paths import FlowPair, find_pairs
from taccl_py.synthesis.flow.rounding import Rounding, Routing
from taccl_py.synthesis.flow.shards import in_parts, whole_shards, with_port_owners, with_rails
from taccl_py.synthesis.greedy import efficient_plan, urgent_plan
from taccl_py.synthesis.models.cp_joint import solve_joint
from taccl_py.synthesis.neighbourhood import improve, regroup
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.search import Search
from taccl_py.synthesis.uneven import fit_to_size
from taccl_py.tolerances import CLOSE_TO_BOUND, RELATIVE

KINDS = (Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER)


def synthesize_flow(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. Shares are cut as the size asks for, unless it is given.

    Raises
    ------
    InputError
        If the collective is not one in which every chunk is wanted by one rank.
    """
    if demand.kind not in KINDS:
        raise InputError(f"engine flow is for {', '.join(KINDS)}, found {demand.kind}; use --engine milp or trees")
    entries = demand.collective(demand.chunks_per_rank or 1).num_chunks * len(demand.topology.links)
    if entries > PARAMS.most_entries:
        raise InputError(
            f"{demand.kind} on {demand.topology.name} has {entries} pairs of chunk and link, engine flow manages "
            f"{PARAMS.most_entries}; take fewer ranks or a machine file with fewer links"
        )
    run = _FlowRun(demand, options, events, Bound(0.0, "nothing has to move"))
    run.search()
    if not run.answers:
        raise LimitReached("no schedule was found; give more time with --time-limit")
    best, *others = sorted(run.answers, key=lambda schedule: schedule.makespan_us)
    near = [other for other in others if other.makespan_us <= best.makespan_us * COMMON.runner_up_factor]
    answer = Synthesis.of([best, *near], run.bound, "highs, cp-sat", run.stage_seconds)
    return fit_to_size(answer, demand, options.limits.within(run.deadline.left))


@dataclass
class _FlowRun:
    """One call of the engine."""

    demand: Demand
    options: Options
    events: Events
    bound: Bound
    answers: list[Schedule] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limits = self.options.limits
        self.deadline, self.soon = self.limits.deadline(), self.limits.within(PARAMS.soon_seconds).deadline()

    def search(self) -> None:
        """Try all paths that are permitted, then fewer of them for a better order or larger messages."""
        problem = whole_shards(self.demand)
        with self._stage("flow"):
            flow = self._flow(problem)
            self.bound = self._bound(problem, flow)
            self.events.bound(self.bound.time_us)
        self._route(problem, flow)
        owned = with_port_owners(problem)
        if owned is not None and (flow := self._flow_near(owned)) is not None:
            self._route(owned, flow)
        if self.deadline.over() or self._is_close or self.demand.chunks_per_rank not in (None, 1):
            return
        fewer = owned or problem
        railed = (with_rails(fewer) or fewer).with_order_kept()
        if (flow := self._flow_near(railed)) is not None:
            self._gather(railed, flow)

    def _is_in_vain(self) -> bool:
        """True if the user said stop, or a race is over, and a first answer is not soon there."""
        return self.limits.stop.is_set() and not self.answers and not self.soon.left

    @property
    def _is_close(self) -> bool:
        return any(schedule.makespan_us <= self.bound.time_us * (1 + CLOSE_TO_BOUND) for schedule in self.answers)

    def _flow(self, problem: Problem) -> CommodityFlow | None:
        return solve_flow(Commodities.of(problem), self._part(0.3))

    def _flow_near(self, problem: Problem) -> CommodityFlow | None:
        """Flow of a narrower problem, or None if it is no match for the best schedule."""
        if self.deadline.over() or not self.answers:
            return None
        with self._stage("flow"):
            flow = self._flow(problem)
        best_us = min(schedule.makespan_us for schedule in self.answers)
        return flow if flow is not None and flow.load_us <= best_us * COMMON.runner_up_factor else None

    def _bound(self, problem: Problem, flow: CommodityFlow | None) -> Bound:
        """Best of what holds for every algorithm on the machine and what holds under the sketch's restrictions."""
        collective = problem.collective
        size_bytes = problem.chunk_bytes * collective.chunks_per_size
        bound = self.options.bound or demand_bound(
            problem.topology, collective.kind, collective.root, size_bytes, self._part(0.2)
        )
        if flow is None:
            return bound
        reason = "bandwidth: the flow of all data over the links and ports that the sketch leaves"
        return raised(bound, [Bound(flow.load_us, reason)])

    def _route(self, problem: Problem, flow: CommodityFlow | None) -> None:
        """Offer schedules of a problem in parts, those of about the least load first, fewer parts before more."""
        with self._stage("parts"):
            pairs = find_pairs(problem, flow or CommodityFlow.unknown(problem.topology), self._is_in_vain)
            routings = self._routings(problem, pairs)
        best: Schedule | None = None
        about_us = min(routing.load_us for routing in routings) * (1 + PARAMS.least_gain)
        for routing in sorted(routings, key=lambda r: (max(r.load_us, about_us), r.parts))[: PARAMS.most_ordered]:
            if best is not None and (
                self.deadline.over() or routing.load_us >= best.makespan_us * (1 - PARAMS.least_gain)
            ):
                break
            found = self._order(in_parts(problem, pairs, routing), _order_parts, routing.load_us)
            if found is not None and (best is None or found.makespan_us < best.makespan_us * (1 - RELATIVE)):
                best = found
        self._offer(best)

    def _gather(self, problem: Problem, flow: CommodityFlow) -> None:
        """Offer a schedule in which few links carry large messages."""
        with self._stage("parts"):
            pairs = find_pairs(problem, flow)
            routing = Rounding(problem, pairs).gathered(self._part(0.2))
        self._offer(self._order(in_parts(problem, pairs, routing), _order_joined, routing.load_us))

    def _offer(self, schedule: Schedule | None) -> None:
        if schedule is not None:
            self.answers.append(schedule)
            self.events.incumbent(min(answer.makespan_us for answer in self.answers))

    def _routings(self, problem: Problem, pairs: tuple[FlowPair, ...]) -> list[Routing]:
        rounding = Rounding(problem, pairs)
        if self.demand.chunks_per_rank is not None:
            return [rounding.to_parts(self.demand.chunks_per_rank, self._part(0.2))]
        routings = [rounding.to_parts(1, self._part(0.1))]
        messages = sum(pair.members * len(path) for pair, (path,) in zip(pairs, routings[0].links, strict=True))
        entries = problem.permitted.size
        for parts in range(2, PARAMS.most_parts + 1):
            if self.deadline.over() or messages * parts > PARAMS.most_messages or entries * parts > PARAMS.most_entries:
                break
            routings.append(rounding.to_parts(parts, self._part(0.05)))
        return routings

    def _order(self, problem: Problem, order: Callable[[Search, float], None], load_us: float) -> Schedule | None:
        with self._stage("order"):
            search = Search.of(Quotient.of(problem), self.bound, self.limits, self.deadline, Events())
            order(search, load_us)
        return search.best

    def _part(self, part: float) -> Limits:
        return self.limits.within(self.deadline.left * part)

    def _stage(self, name: str) -> AbstractContextManager[None]:
        """Time a stage and announce it."""
        return timed_stage(name, self.events, self.stage_seconds)


def _restarts(search: Search, load_us: float, most: int, arcs: int) -> Iterator[tuple[float, int]]:
    """Random change and seed of each order that is tried, the first one plain, until one is close to the load of the fullest resource."""
    for i in range(max(PARAMS.fewest_restarts, min(most, arcs // max(1, search.quotient.num_arcs)))):
        if i and _enough(search, load_us):
            return
        yield (COMMON.jitter if i else 0.0), search.limits.seed + i


def _order_parts(search: Search, load_us: float) -> None:
    """Offer orders of parts, most of them messages of their own, until one is close to the load of the fullest resource."""
    quotient, grid, routes = search.quotient, search.grid, search.routes
    for jitter, seed in _restarts(search, load_us, PARAMS.most_restarts, PARAMS.restart_arcs):
        search.offer(urgent_plan(quotient, grid, routes, jitter=jitter, seed=seed))
        # Parts of one path may share messages after all.
        if search.joins and quotient.num_arcs <= PARAMS.joined_restart_arcs:
            search.offer(efficient_plan(quotient, grid, routes, search.joins, jitter=jitter, seed=seed))
    if search.best is not None and quotient.num_arcs <= PARAMS.most_exact_arcs and not _enough(search, load_us):
        task = search.task(joins=False)
        plan, _ = solve_joint(task, search.limits_for(0.3, PARAMS.exact_work), search.best_plan, search.progress())
        search.offer(plan)


def _order_joined(search: Search, load_us: float) -> None:
    """Offer orders in which neighbours share messages, until one is close to the load of the fullest resource."""
    quotient, grid, routes = search.quotient, search.grid, search.routes
    for jitter, seed in _restarts(search, load_us, PARAMS.most_joined_restarts, PARAMS.joined_restart_arcs):
        search.offer(efficient_plan(quotient, grid, routes, search.joins, jitter=jitter, seed=seed))
    if search.best is not None and not _enough(search, load_us):
        regroup(search)
        improve(search, min(PARAMS.most_rounds, PARAMS.round_arcs // max(1, quotient.num_arcs)))


def _enough(search: Search, load_us: float) -> bool:
    if search.done:
        return True
    return search.best is not None and search.best.makespan_us <= load_us * (1 + PARAMS.enough_gap)
