"""MILP: synchronous steps with joint messages; the model of `cp_steps` as a linear program for any MILP solver."""

from __future__ import annotations

from typing import Any

from taccl_py.solvers.limits import Limits
from taccl_py.solvers.linear import LinearModel, LinearOutcome
from taccl_py.synthesis.models.linear_routing import enter_once
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.plan import Plan, plan_of_steps


def solve_linear_steps(
    task: ModelTask, num_steps: int, solver: str, limits: Limits
) -> tuple[Plan | None, LinearOutcome]:
    """Best plan of `num_steps` steps, or None, and how the search ended."""
    q = task.quotient
    model = LinearModel("steps")
    x = {
        (a, s): model.binary(f"x_{a}_{s}")
        for a in range(q.num_arcs)
        if not q.source[int(q.head[a])]
        for s in range(task.routes.hops[int(q.tail[a])], num_steps)
    }
    length = [model.real(f"length_{s}", 0.0, float(task.upper)) for s in range(num_steps)]
    model.minimize([(one, 1.0) for one in length])
    run = _runs(model, task, x)
    enter_once(model, task, lambda a: [x[a, s] for s in range(num_steps) if (a, s) in x])
    _one_hop_a_step(model, task, x)
    _busiest_resource(model, task, x, run, length)
    _own_first(model, task, x, num_steps)
    outcome = model.solve(solver, limits)
    if not outcome.status.has_solution:
        return None, outcome
    crossed = (key for key, used in x.items() if (used.varValue or 0.0) > 0.5)
    return plan_of_steps(q, crossed, [max(each.varValue or 0.0, 1.0) for each in length]), outcome


_Uses = dict[tuple[int, int], Any]


def _runs(model: LinearModel, task: ModelTask, x: _Uses) -> _Uses:
    """Variables that are 1 if an arc starts a message: at least x minus its predecessor's x in the same step."""
    run = {}
    for (a, s), used in x.items():
        before = x.get((task.predecessor.get(a, -1), s))
        if before is None:
            run[a, s] = used
        else:
            run[a, s] = model.real(f"run_{a}_{s}", 0.0, 1.0)
            model.at_least([(run[a, s], 1.0), (used, -1.0), (before, 1.0)], 0.0)
    return run


def _one_hop_a_step(model: LinearModel, task: ModelTask, x: _Uses) -> None:
    q = task.quotient
    for (a, s), used in x.items():
        tail = int(q.tail[a])
        if not q.source[tail]:
            earlier = [(x[b, r], 1.0) for b in task.routes.into[tail] for r in range(s) if (b, r) in x]
            model.at_least([*earlier, (used, -1.0)], 0.0)


def _busiest_resource(model: LinearModel, task: ModelTask, x: _Uses, run: _Uses, length: list[Any]) -> None:
    q, grid = task.quotient, task.grid
    terms: dict[tuple[int, int], list[tuple[Any, float]]] = {}
    for (a, s), used in x.items():
        for resource in q.resources[a]:
            row = terms.setdefault((resource, s), [])
            row += [(run[a, s], -float(grid.alpha[a])), (used, -float(grid.beta[a]))]
    for (_, s), row in terms.items():
        model.at_least([(length[s], 1.0), *row], 0.0)


def _own_first(model: LinearModel, task: ModelTask, x: _Uses, num_steps: int) -> None:
    for own, other in task.routes.own_first_pairs:
        for s in range(num_steps):
            later = [(x[own, t], 1.0) for t in range(s + 1, num_steps) if (own, t) in x]
            if (other, s) in x and later:
                model.at_most([(x[other, s], 1.0), *later], 1.0)
