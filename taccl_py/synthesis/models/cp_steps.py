"""CP-SAT: synchronous steps with joint messages, for sizes where alpha matters more than beta.

The algorithm proceeds in S steps. ``x[a, s]``: arc a is used in step s; ``run[a, s]``: it starts a message there, because its
predecessor (the chunk just before its own on the same link) is not in the same step. A step lasts as long as its busiest
link or port: alpha for every message and beta for every chunk. The sum over the steps is minimized (SCCL's rounds with
alpha-beta costs). A plan made this way is timed asynchronously afterwards and never gets slower by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taccl_py.grouping import grouped
from taccl_py.solvers.cp_sat import SolverOutcome, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.plan import Plan, plan_of_steps


@dataclass
class _StepVariables:
    x: dict[tuple[int, int], Any]
    run: dict[tuple[int, int], Any]
    length: list[Any]


def fewest_steps(task: ModelTask) -> int:
    """Least number of steps in which every wanted state can be reached."""
    q, hops = task.quotient, task.routes.hops
    return max((hops[state] for state in range(q.num_states) if q.required[state]), default=0)


def solve_steps(
    task: ModelTask, num_steps: int, limits: Limits, on_progress: Callable[[float], None] | None = None
) -> tuple[Plan | None, SolverOutcome]:
    """Best plan of `num_steps` steps, or None, and how the search ended.

    ``task.upper`` bounds the sum of the step lengths; ``task.predecessor`` says what may share alpha.
    """
    model = import_cp_model().CpModel()
    v = _variables(model, task, num_steps)
    _every_wanted_state_is_entered_once(model, task, v, num_steps)
    _chunks_cross_one_link_a_step(model, task, v, num_steps)
    _a_step_lasts_as_long_as_its_busiest_resource(model, task, v, num_steps)
    _own_chunks_go_first(model, task, v, num_steps)
    model.minimize(sum(v.length))
    outcome = solve_cp(model, limits, on_progress)
    if not outcome.status.has_solution:
        return None, outcome
    crossed = (key for key, used in v.x.items() if outcome.value(used))
    return plan_of_steps(task.quotient, crossed, [outcome.value(each) for each in v.length]), outcome


def _variables(model: Any, task: ModelTask, num_steps: int) -> _StepVariables:
    q = task.quotient
    x = {}
    for a in range(q.num_arcs):
        if not q.source[int(q.head[a])]:
            for s in range(task.routes.hops[int(q.tail[a])], num_steps):
                x[a, s] = model.new_bool_var(f"x{a},{s}")
    run = {}
    for (a, s), used in x.items():
        before = x.get((task.predecessor.get(a, -1), s))
        if before is None:
            run[a, s] = used
            continue
        run[a, s] = model.new_bool_var(f"run{a},{s}")
        model.add_bool_or([run[a, s], used.negated(), before])
    length = [model.new_int_var(0, task.upper, f"length{s}") for s in range(num_steps)]
    model.add(sum(length) <= task.upper)
    return _StepVariables(x, run, length)


def _every_wanted_state_is_entered_once(model: Any, task: ModelTask, v: _StepVariables, num_steps: int) -> None:
    q = task.quotient
    for state, arcs in enumerate(task.routes.into):
        entering = [v.x[a, s] for a in arcs for s in range(num_steps) if (a, s) in v.x]
        if q.source[state]:
            continue
        if q.required[state]:
            model.add_exactly_one(entering)
        else:
            model.add_at_most_one(entering)


def _chunks_cross_one_link_a_step(model: Any, task: ModelTask, v: _StepVariables, num_steps: int) -> None:
    """x[a, s] needs the tail to have been entered in an earlier step."""
    q = task.quotient
    held: dict[tuple[int, int], list[Any]] = {}
    for state, arcs in enumerate(task.routes.into):
        for s in range(num_steps):
            held[state, s] = [v.x[a, r] for a in arcs for r in range(s) if (a, r) in v.x]
    for (a, s), used in v.x.items():
        tail = int(q.tail[a])
        if not q.source[tail]:
            model.add_bool_or([*held[tail, s], used.negated()])


def _a_step_lasts_as_long_as_its_busiest_resource(
    model: Any, task: ModelTask, v: _StepVariables, num_steps: int
) -> None:
    q, grid = task.quotient, task.grid
    users = grouped((resource, a) for a in range(q.num_arcs) for resource in q.resources[a])
    for arcs in users.values():
        for s in range(num_steps):
            terms = []
            for a in arcs:
                if (a, s) in v.x:
                    terms += [grid.alpha[a] * v.run[a, s], grid.beta[a] * v.x[a, s]]
            if terms:
                model.add(v.length[s] >= sum(terms))


def _own_chunks_go_first(model: Any, task: ModelTask, v: _StepVariables, num_steps: int) -> None:
    for own, other in task.routes.own_first_pairs:
        for s in range(num_steps):
            for later in range(s + 1, num_steps):
                if (other, s) in v.x and (own, later) in v.x:
                    model.add_bool_or([v.x[other, s].negated(), v.x[own, later].negated()])
