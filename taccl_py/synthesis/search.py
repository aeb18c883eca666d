"""Search: the state that the stages of an engine share while they look for better plans of one quotient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property

from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.synthesis.adjacency import predecessors
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Events, timed_stage
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.justify import justified_schedule
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.plan import Plan, lift, on_grid, plan_end
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.routes import Routes
from taccl_py.tolerances import DIGITS, FINE_DIGITS, RELATIVE


@dataclass(frozen=True)
class Params:
    """Numbers of a search.

    Attributes
    ----------
    horizon_factor
        Times the bound that the time grid resolves: greedy schedules of small sizes can be far above it. Guess.
    pool_size
        Schedules that a search keeps. Guess.
    most_justified_messages
        Messages up to which schedules are justified. Guess.
    """

    horizon_factor: float = 200.0
    pool_size: int = 6
    most_justified_messages: int = 12_000


PARAMS = Params()


@dataclass
class Search:
    """Incumbent, bound, limits and timings.

    Attributes
    ----------
    quotient, grid, routes
        The problem and its costs in whole units.
    joins
        Predecessors of arcs that may share alpha (see `taccl_py.synthesis.adjacency`); empty where alpha is 0 anyway.
    bound
        Best lower bound.
    limits, deadline
        What the caller allows.
    events
        Where progress goes.
    best, best_plan
        Incumbent schedule, and the plan that it came from, timed on the grid.
    proven
        Whether a solver closed the class of symmetric schedules.
    stage_seconds
        Wall-clock time by stage.
    pool
        The best few schedules of different makespan.
    """

    quotient: Quotient
    grid: TimeGrid
    routes: Routes
    joins: dict[int, int]
    bound: Bound
    limits: Limits
    deadline: Deadline
    events: Events
    best: Schedule | None = None
    best_plan: Plan | None = None
    proven: bool = False
    stage_seconds: dict[str, float] = field(default_factory=dict)
    pool: list[Schedule] = field(default_factory=list)
    _ends: set[int] = field(default_factory=set)

    @property
    def runners_up(self) -> tuple[Schedule, ...]:
        """Schedules nearly as fast as the incumbent."""
        limit = self.best.makespan_us * COMMON.runner_up_factor if self.best else 0.0
        return tuple(s for s in self.pool if s is not self.best and s.makespan_us <= limit)

    @staticmethod
    def of(quotient: Quotient, bound: Bound, limits: Limits, deadline: Deadline, events: Events) -> Search:
        """Begin a search."""
        grid = TimeGrid.of(quotient, max(bound.time_us, 1e-6) * PARAMS.horizon_factor)
        joins = predecessors(quotient) if any(grid.alpha) else {}
        events.bound(bound.time_us)
        return Search(quotient, grid, Routes.of(quotient, grid), joins, bound, limits, deadline, events)

    @property
    def done(self) -> bool:
        """True if nothing better exists, or no time is left, or the user said stop."""
        return self.is_optimal or self.is_over

    @property
    def is_over(self) -> bool:
        """True if no time is left, or the user said stop."""
        return self.deadline.over()

    @property
    def is_optimal(self) -> bool:
        """True if the incumbent equals the bound."""
        return self.best is not None and self.bound.is_reached_by(self.best.makespan_us)

    @property
    def lower(self) -> int:
        """Bound in units, rounded down."""
        return int(self.bound.time_us * self.grid.units_per_us * (1 - RELATIVE))

    @property
    def upper(self) -> int:
        """Time of the incumbent's plan in units."""
        return round(plan_end(self.best_plan or ()))

    def task(self, joins: bool) -> ModelTask:
        """Task for a model, between the bound and the incumbent."""
        predecessor = self.joins if joins else {}
        return ModelTask(self.quotient, self.grid, self.routes, predecessor, min(self.lower, self.upper), self.upper)

    @cached_property
    def chunk_of(self) -> list[int]:
        """Some chunk of every state's orbit, [state]."""
        return [chunk for chunk, _ in self._representatives]

    @cached_property
    def rank_of(self) -> list[int]:
        """The rank that goes with it, [state]."""
        return [rank for _, rank in self._representatives]

    @cached_property
    def _representatives(self) -> list[tuple[int, int]]:
        links = self.quotient.problem.topology.links
        found = [(-1, -1)] * self.quotient.num_states
        for arc in range(self.quotient.num_arcs):
            chunk, link = self.quotient.members(arc)[0]
            found[int(self.quotient.head[arc])] = (chunk, links[link].dst)
        return found

    def offer(self, plan: Plan | None) -> bool:
        """Time a plan (made on the grid) exactly on the full problem, keep it if it is better, and say whether it was."""
        if plan is None or self._is_hopeless(plan_end(plan)):
            return False
        schedule = self._justified(lift(self.quotient, plan))
        self._note(schedule)
        key = (round(schedule.makespan_us, FINE_DIGITS), len(schedule.messages))
        if self.best is not None and key >= (round(self.best.makespan_us, FINE_DIGITS), len(self.best.messages)):
            return False
        self.best = schedule
        self.best_plan = on_grid(self.quotient, self.grid, self.joins, plan)
        self.events.incumbent(schedule.makespan_us)
        return True

    def _justified(self, schedule: Schedule) -> Schedule:
        """The schedule, justified if it has gaps, not too many messages, and no order that a sketch asks for."""
        is_best = self.bound.is_reached_by(schedule.makespan_us)
        if is_best or self.routes.own_first_pairs or len(schedule.messages) > PARAMS.most_justified_messages:
            return schedule
        return justified_schedule(schedule)

    def _is_hopeless(self, end: float) -> bool:
        """True if a plan cannot become the incumbent or a runner-up worth keeping."""
        if self.best_plan is None:
            return False
        best = plan_end(self.best_plan)
        return end > best and (end > best * COMMON.runner_up_factor or round(end) in self._ends)

    def _note(self, schedule: Schedule) -> None:
        """Keep the best few schedules of different makespan."""
        self._ends.add(round(schedule.makespan_us * self.grid.units_per_us))
        known = {round(other.makespan_us, DIGITS) for other in self.pool}
        if round(schedule.makespan_us, DIGITS) not in known:
            self.pool = sorted([*self.pool, schedule], key=lambda s: s.makespan_us)[: PARAMS.pool_size]

    def prefer(self, plan: Plan | None, policy: PolicyTerms) -> None:
        """Take a plan that serves a sketch's policy better and is not slower."""
        if plan is None or self.best is None or self.best_plan is None:
            return
        task = self.task(joins=True)
        schedule = lift(self.quotient, plan)
        as_fast = schedule.makespan_us <= self.best.makespan_us * (1 + RELATIVE)
        if as_fast and policy.value(task, plan) < policy.value(task, self.best_plan):
            self.best, self.best_plan = schedule, on_grid(self.quotient, self.grid, self.joins, plan)

    def adopt(self, other: Search) -> None:
        """Take over a better incumbent from a search on another quotient of the same problem; plans stay behind."""
        for schedule in other.pool:
            self._note(schedule)
        if other.best is not None and (
            self.best is None or other.best.makespan_us < self.best.makespan_us * (1 - RELATIVE)
        ):
            self.best, self.best_plan, self.proven = other.best, None, False

    def limits_for(self, part: float, work: float | None) -> Limits:
        """Limits of one solve: a part of the time left, and an amount of work."""
        return self.limits.within(self.deadline.left * part, work)

    def progress(self) -> Callable[[float], None]:
        """Return a callback that reports a solver's objective in microseconds."""
        return lambda objective: self.events.incumbent(objective / self.grid.units_per_us)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time a stage and announce it."""
        return timed_stage(name, self.events, self.stage_seconds)
