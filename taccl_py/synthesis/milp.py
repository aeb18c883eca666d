"""Engines ``milp`` and ``cp``: TACCL's method on the symmetry quotient.

Routing, ordering, contiguity and exact times (Shah et al., TACCL, NSDI'23, section 5), with two families of solvers:

* a linear solver through PuLP (HiGHS, CBC, SCIP, Gurobi, ...): routing MILP, list scheduling with restarts, contiguity MILP;
* CP-SAT: the three stages as one model with exact order (no-overlap), which proves much more.

Where alpha counts, both also solve the synchronous-step model, which batches chunks into few messages. Everything starts
from a greedy schedule and stops at the lower bound.

Engine ``cp`` is the second family, which goes on without the symmetry when the symmetric search has ended above the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError, LimitReached
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import allreduce, combining, dispatched, is_reversible, links_of_own_reverse, mirrored
from taccl_py.sketch.model import Sketch
from taccl_py.solvers.choice import CP_SAT, choose_solver
from taccl_py.solvers.cp_sat import Status
from taccl_py.synthesis.bounds import Bound, allreduce_bound, best_bound, demand_bound
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.synthesis.greedy import efficient_plan, urgent_plan
from taccl_py.synthesis.models.cp_joint import solve_joint
from taccl_py.synthesis.models.cp_steps import fewest_steps, solve_steps
from taccl_py.synthesis.models.linear_contiguity import solve_contiguity
from taccl_py.synthesis.models.linear_routing import solve_routing
from taccl_py.synthesis.models.linear_steps import solve_linear_steps
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.neighbourhood import improve, regroup, serve_policy
from taccl_py.synthesis.plan import Plan, plan_end, plan_of
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.search import Search
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class Params:
    """Numbers of engines ``milp``, ``cp`` and ``steps``.

    Attributes
    ----------
    fewest_restarts
        Restarts of list scheduling, at least. Guess.
    most_restarts
        Restarts of list scheduling, at most. Guess.
    restart_arcs
        Arcs that all restarts may schedule together. Guess.
    orderings
        Random orders that are tried for the routes of the linear model. Guess.
    extra_steps
        Steps beyond the fewest that are tried. Guess.
    small_size_part
        A size is small where alpha is at least this part of a chunk's cost on some link. Guess.
    joint_work
        Deterministic time of the joint model of CP-SAT; about as many seconds on two cores. Guess.
    steps_work
        Deterministic time of the model in synchronous steps. Guess.
    most_step_arcs
        Arcs times steps up to which that model is solved: CP-SAT does not count what its presolve does. Measured: AllToAll on irregular
        machines of 17 to 24 ranks, four chunks a rank, 100,000 to 450,000 take 6 to 50 s of which 2 are counted, and nothing is found.
    most_regrouped_arcs
        Arcs up to which it is decided again which neighbours share alpha, and then everything in small parts. Measured: the same machines,
        16,000 and 28,000 take 53 and 75 s for the former, of which 4 and 3 are counted, and nothing is found; AllGather on a mesh of 4 x 4,
        2,880, 6 s of which 4 are.
    policy_rounds
        Rounds in which a sketch's policy is served. Guess.
    asymmetric_rounds
        Rounds of neighbourhood search without symmetry. Guess.
    most_asymmetric_pairs
        Pairs of chunk and link up to which there are such rounds. Guess.
    most_pairs
        Pairs of chunk and link up to which a problem is built, in minutes. Guess.
    most_chunks_per_rank
        Chunks per rank: the time of the first schedule grows with their square, and a ring of four takes seconds for so
        many. Guess.
    fewest_rounds
        Rounds of neighbourhood search, at least. Guess.
    most_rounds
        Rounds of neighbourhood search, at most. Guess.
    round_size
        States and arcs that all rounds may have together. Guess.
    """

    fewest_restarts: int = 2
    most_restarts: int = 40
    restart_arcs: int = 40_000
    orderings: int = 200
    extra_steps: int = 2
    small_size_part: float = 0.2
    joint_work: float = 0.6
    steps_work: float = 0.5
    most_step_arcs: int = 60_000
    most_regrouped_arcs: int = 10_000
    policy_rounds: int = 12
    asymmetric_rounds: int = 40
    most_asymmetric_pairs: int = 20_000
    most_pairs: int = 40_000_000
    most_chunks_per_rank: int = 256
    fewest_rounds: int = 6
    most_rounds: int = 40
    round_size: int = 15_000


PARAMS = Params()


def synthesize_milp(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. One chunk per rank unless the demand says otherwise."""
    solver = choose_solver(options.solver)
    return _synthesize(demand, options, events, solver, _CP_STAGES if solver == CP_SAT else _LINEAR_STAGES)


def synthesize_cp(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. One chunk per rank unless the demand says otherwise.

    Raises
    ------
    InputError
        If another solver is asked for.
    """
    if options.solver not in ("auto", CP_SAT):
        raise InputError(
            f"engine cp solves with {CP_SAT}, found {options.solver!r}; leave --solver out or use --engine milp",
            path="command line", field="--solver",
        )  # fmt: skip
    return _synthesize(demand, options, events, CP_SAT, (*_CP_STAGES, _cp_without_symmetry))


def _synthesize(demand: Demand, options: Options, events: Events, solver: str, stages: tuple[_Stage, ...]) -> Synthesis:
    topology, sketch = demand.topology, demand.sketch
    collective = demand.collective(demand.chunks_per_rank or 1)
    _require_room(collective, topology)
    run = _MilpRun(demand, demand.chunk_bytes(collective), solver, stages, options, events)
    dual = collective.dual()
    if collective.kind is Kind.ALLREDUCE:
        found = run.allreduce(Collective(Kind.ALLGATHER, collective.num_ranks, collective.chunks_per_rank))
    elif dual is not None:
        found = run.combining(collective, dual)
    else:
        found = run.routed(topology, sketch, collective, "")
    best, *runners_up = found.schedules
    proof = Proof.of(best.makespan_us, found.bound)
    if found.in_class and proof is Proof.FEASIBLE:
        proof = Proof.IN_CLASS
    return Synthesis(best, found.bound, proof, solver, run.stage_seconds, tuple(runners_up))


def _require_room(collective: Collective, topology: Topology) -> None:
    """Refuse what would take all memory and minutes before time is looked at: a table of every chunk on every link."""
    if collective.chunks_per_rank > PARAMS.most_chunks_per_rank:
        raise InputError(
            f"engines milp and cp take too long for {collective.chunks_per_rank} chunks a rank, {PARAMS.most_chunks_per_rank} are the most; "
            "use another one (auto, hierarchy, templates) or fewer chunks",
            path="command line",
            field="--engine",
        )
    pairs = collective.num_chunks * len(topology.links)
    if pairs > PARAMS.most_pairs:
        raise InputError(
            f"engines milp and cp weigh every chunk on every link, and {collective.num_chunks} chunks on {len(topology.links)} links "
            f"are more than {PARAMS.most_pairs} pairs; use another one (auto, greedy, hierarchy, templates) or fewer chunks",
            path="command line",
            field="--engine",
        )


@dataclass(frozen=True)
class _MilpFindings:
    """Schedules, the best first, their bound, and whether a solver closed their class."""

    schedules: tuple[Schedule, ...]
    bound: Bound
    in_class: bool

    def through(self, transform: Callable[[Schedule], Schedule]) -> _MilpFindings:
        """Return the same with every schedule transformed."""
        schedules = sorted(map(transform, self.schedules), key=lambda schedule: schedule.makespan_us)
        return replace(self, schedules=tuple(schedules))


# Improves the incumbent of a search with a solver.
_Stage = Callable[[Search, str], None]


class _MilpRun:
    """One call of the engine: options, the common deadline and the timings of all stages."""

    def __init__(
        self,
        demand: Demand,
        chunk_bytes: float,
        solver: str,
        stages: tuple[_Stage, ...],
        options: Options,
        events: Events,
    ) -> None:
        self.demand, self.topology, self.sketch, self.chunk_bytes = demand, demand.topology, demand.sketch, chunk_bytes
        self.solver, self.stages, self.options, self.events = solver, stages, options, events
        self.deadline = options.limits.deadline()
        self.stage_seconds: dict[str, float] = {}

    def allreduce(self, gather: Collective) -> _MilpFindings:
        """ReduceScatter and AllGather; one search serves both where the machine is the same backwards, else each has half of the time."""
        whole = self.deadline
        if links_of_own_reverse(self.topology) is None:
            self.deadline = self.options.limits.within(whole.left / 2).deadline()
        forward = self.routed(self.topology, self.sketch, gather, "")
        self.deadline = whole
        pairs = [(schedule, mirrored(schedule)) for schedule in forward.schedules]
        if pairs[0][1] is None:
            backward = self.backward(gather, "reduce: ").schedules[0]
            pairs = [(forward.schedules[0], backward)]
        schedules = sorted(
            (allreduce(one, other) for one, other in pairs if other is not None),
            key=lambda schedule: schedule.makespan_us,
        )
        limits = self.options.limits.within(self.deadline.left)
        return _MilpFindings(tuple(schedules), allreduce_bound(self.topology, gather, self.chunk_bytes, limits), False)

    def combining(self, collective: Collective, dual: Collective) -> _MilpFindings:
        """Best schedules of sums: those of the routed collective on the reversed machine, run backwards."""
        found = self.backward(dual, "").through(lambda schedule: combining(schedule, self.topology))
        if is_reversible(self.topology, self.chunk_bytes):
            return found
        # Backwards latency passes before a message occupies a port and not after it, on which bounds of ports depend.
        size_bytes, limits = (
            self.chunk_bytes * collective.chunks_per_size,
            self.options.limits.within(self.deadline.left),
        )
        return replace(found, bound=demand_bound(self.topology, collective.kind, collective.root, size_bytes, limits))

    def backward(self, collective: Collective, prefix: str) -> _MilpFindings:
        """Best schedules of a routed collective on the reversed machine."""
        topology = self.topology.reversed()
        sketch = None if self.sketch is None else self.sketch.for_sums(topology)
        found = self.routed(topology, sketch, collective, prefix)
        return replace(found, in_class=found.in_class and is_reversible(topology, self.chunk_bytes))

    def routed(self, topology: Topology, sketch: Sketch | None, collective: Collective, prefix: str) -> _MilpFindings:
        """Best schedules of a routed collective."""
        problem = Problem.build(topology, collective, sketch, self.chunk_bytes)
        bound = self._bound(problem)
        search = self._begin(problem, bound)
        ordered = problem.with_order_kept()
        if ordered is not problem and not (search.done and search.best is not None) and _is_small(search):
            search = _better(search, self._begin(ordered, bound))
        if search.best is None and problem.generators:
            search = self._begin(problem.without_symmetry(), bound)
        if search.best is None:
            raise LimitReached("no schedule was found; give more time with --time-limit or loosen the sketch")
        for stage in self.stages:
            stage(search, self.solver)
        for name, seconds in search.stage_seconds.items():
            key = prefix + name
            self.stage_seconds[key] = self.stage_seconds.get(key, 0.0) + seconds
        found = _MilpFindings((search.best, *search.runners_up), bound, search.proven)
        return found if sketch is not None and sketch.own_first else _in_better_order(found)

    def _bound(self, problem: Problem) -> Bound:
        is_asked = problem.topology is self.topology and problem.collective.kind is self.demand.kind
        known = self.options.bound if is_asked else None
        return best_bound(problem, self.options.limits.within(self.deadline.left / 4), known)

    def _begin(self, problem: Problem, bound: Bound) -> Search:
        search = Search.of(Quotient.of(problem), bound, self.options.limits, self.deadline, self.events)
        _start(search)
        return search


def _in_better_order(found: _MilpFindings) -> _MilpFindings:
    """The schedules, their messages in an order of their own at links and ports where that is faster.

    A plan's order at a port is that in which it was decided what goes there; what was decided first is waited for while others would be
    ready. Until a search has come to its end that can double the time.
    """
    other = found.through(dispatched)
    is_faster = other.schedules[0].makespan_us < found.schedules[0].makespan_us * (1 - RELATIVE)
    return replace(other, in_class=found.in_class and not is_faster)


def _better(one: Search, other: Search) -> Search:
    """The search with the faster incumbent, the first if they are equal."""
    if one.best is None or other.best is None:
        return one if other.best is None else other
    return other if other.best.makespan_us < one.best.makespan_us * (1 - RELATIVE) else one


def _start(search: Search) -> None:
    """Greedy schedules, which everything else improves: both rules, with perturbed restarts, cheaper ones the more arcs."""
    q, grid, routes = search.quotient, search.grid, search.routes
    restarts = max(PARAMS.fewest_restarts, min(PARAMS.most_restarts, PARAMS.restart_arcs // max(1, q.num_arcs)))
    with search.stage("greedy"):
        for i in range(restarts):
            if search.done and search.best is not None:
                return
            jitter, seed = (0.3 if i else 0.0), search.limits.seed + i
            search.offer(urgent_plan(q, grid, routes, jitter=jitter, seed=seed))
            if search.joins and not (search.is_over and search.best is not None):
                search.offer(efficient_plan(q, grid, routes, search.joins, jitter=jitter, seed=seed))


def _is_small(search: Search) -> bool:
    """True if alpha is a large part of the cost of a chunk on some link."""
    grid = search.grid
    return any(a > 0 and a >= PARAMS.small_size_part * (a + b) for a, b in zip(grid.alpha, grid.beta, strict=True))


def _cp_alone(search: Search, _solver: str) -> None:
    """Joint routing, order and times with one chunk in a message."""
    if search.done or (_is_small(search) and search.joins):
        return
    with search.stage("routing and order"):
        task = search.task(joins=False)
        plan, outcome = solve_joint(
            task, search.limits_for(0.6, PARAMS.joint_work), search.best_plan, search.progress()
        )
        search.offer(plan)
        search.proven = outcome.status is Status.OPTIMAL and _closes_the_class(search.quotient.problem)


def _closes_the_class(problem: Problem) -> bool:
    """True if an optimum with one chunk a message over the allowed links is one of all schedules of the same symmetry.

    It is not where two chunks may use a link that, or a port of which, has an alpha: scratch can make any two neighbours.
    """
    topology = problem.topology
    shared = np.flatnonzero(problem.allowed.sum(axis=0) > 1).tolist()
    return not problem.narrowed and all(alpha_us == 0 for link in shared for alpha_us, _ in topology.link_costs[link])


def _cp_steps(search: Search, _solver: str) -> None:
    """Synchronous steps, for small sizes; tried from the fewest steps up."""

    def solve(steps: int) -> Plan | None:
        return solve_steps(
            search.task(joins=True), steps, search.limits_for(0.3, PARAMS.steps_work), search.progress()
        )[0]

    _steps(search, solve)


def _cp_contiguity(search: Search, _solver: str) -> None:
    """Contiguity with fixed routes and order, then everything at once in small parts."""
    if search.done or search.quotient.num_arcs > PARAMS.most_regrouped_arcs:
        return
    with search.stage("contiguity"):
        if search.joins:
            regroup(search)
        rounds = PARAMS.round_size // (2 * search.quotient.num_states + search.quotient.num_arcs)
        improve(search, max(PARAMS.fewest_rounds, min(PARAMS.most_rounds, rounds)))


def _cp_policy(search: Search, _solver: str) -> None:
    """Among schedules as fast as the incumbent, serve the sketch's policy (few or many pairs, even or uneven links)."""
    policy = PolicyTerms.of(search.quotient)
    if not policy.active or search.limits.stop.is_set() or search.best_plan is None:
        return
    with search.stage("policy"):
        serve_policy(search, policy, PARAMS.policy_rounds)


def _cp_without_symmetry(search: Search, _solver: str) -> None:
    """Neighbourhood search on the whole problem, where chunks that the symmetry exchanges may take different paths."""
    problem = search.quotient.problem
    if (
        search.done
        or search.best is None
        or not problem.generators
        or int(problem.allowed.sum()) > PARAMS.most_asymmetric_pairs
    ):
        return
    with search.stage("without symmetry"):
        whole = Search.of(
            Quotient.of(problem.without_symmetry()), search.bound, search.limits, search.deadline, search.events
        )
        whole.offer(plan_of(whole.quotient, search.best))
        improve(whole, PARAMS.asymmetric_rounds)
        search.adopt(whole)


def _steps(search: Search, solve: Callable[[int], Plan | None]) -> None:
    if not _is_small(search):
        return
    fewest = fewest_steps(search.task(joins=True))
    with search.stage("steps"):
        for steps in range(fewest, fewest + PARAMS.extra_steps + 1):
            if search.done or steps * search.quotient.num_arcs > PARAMS.most_step_arcs:
                return
            search.offer(solve(steps))


def _linear_routing(search: Search, solver: str) -> None:
    """Stages 1 and 2: routing MILP, then list scheduling of its routes with restarts."""
    if search.done:
        return
    with search.stage("routing"):
        policy = PolicyTerms.of(search.quotient)
        task = search.task(joins=False)
        limits = search.limits_for(0.5, None)
        arcs, _ = solve_routing(task, policy, solver, limits, search.best_plan)
    if arcs is None:
        return
    with search.stage("ordering"):
        q, grid, routes = search.quotient, search.grid, search.routes
        plans = [urgent_plan(q, grid, routes, arcs=arcs)]
        plans += [urgent_plan(q, grid, routes, arcs=arcs, jitter=0.3, seed=i) for i in range(PARAMS.orderings)]
        found = [plan for plan in plans if plan is not None]
        search.offer(min(found, key=plan_end) if found else None)


def _linear_contiguity(search: Search, solver: str) -> None:
    """Stage 3: contiguity and exact times in the incumbent's order."""
    if search.done or not search.joins:
        return
    alone = tuple(message for message in search.best_plan or () if len(message.arcs) == 1)
    if len(alone) != len(search.best_plan or ()):
        return
    with search.stage("contiguity"):
        plan, _ = solve_contiguity(search.task(joins=True), alone, solver, search.limits_for(0.5, None))
        search.offer(plan)


def _linear_steps(search: Search, solver: str) -> None:
    """Synchronous steps by MILP, for small sizes."""
    _steps(
        search,
        lambda steps: solve_linear_steps(search.task(joins=True), steps, solver, search.limits_for(0.3, None))[0],
    )


_CP_STAGES = (_cp_alone, _cp_steps, _cp_contiguity, _cp_policy)
_LINEAR_STAGES = (_linear_routing, _linear_contiguity, _linear_steps)
