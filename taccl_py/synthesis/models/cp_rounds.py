"""CP-SAT: k-synchronous algorithms (SCCL: Cai et al., PPoPP'21, section 3): S steps of one or more rounds each, R rounds in all.

In one round a link carries as many chunks as its capacity says. ``x[a, s]``: arc a is used in step s; ``rounds[s]`` at least 1.
The question is only whether such an algorithm exists, so nothing is minimized, and the answer "no" is a proof for the
quotient that is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taccl_py.grouping import grouped
from taccl_py.solvers.cp_sat import SolverOutcome, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.plan import Plan, plan_of_steps
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.routes import hops_of_states


@dataclass(frozen=True)
class RoundsTask:
    """Question: an algorithm of so many steps and rounds.

    Attributes
    ----------
    quotient
        The problem; its chunk count is the algorithm's C.
    capacity
        Chunks that a resource lets through in one round, [resource orbit].
    num_steps, num_rounds
        S and R, S <= R.
    """

    quotient: Quotient
    capacity: Sequence[int]
    num_steps: int
    num_rounds: int


def solve_rounds(task: RoundsTask, limits: Limits) -> tuple[Plan | None, SolverOutcome]:
    """Return an algorithm as a plan whose times count rounds, or None, and how the search ended."""
    model = import_cp_model().CpModel()
    most = task.num_rounds - task.num_steps + 1
    rounds = [model.new_int_var(1, most, f"rounds{s}") for s in range(task.num_steps)]
    model.add(sum(rounds) == task.num_rounds)
    x = _crossings(model, task)
    _deliver(model, task, x)
    _keep_capacities(model, task, x, rounds)
    outcome = solve_cp(model, limits, kind="rounds")
    if not outcome.status.has_solution:
        return None, outcome
    crossed = (key for key, used in x.items() if outcome.value(used))
    return plan_of_steps(task.quotient, crossed, [outcome.value(each) for each in rounds]), outcome


def _crossings(model: Any, task: RoundsTask) -> dict[tuple[int, int], Any]:
    """Arc a in step s, only where its chunk can be by then and can still be of use."""
    q = task.quotient
    tails, heads = q.tail.tolist(), q.head.tolist()
    soonest, use = hops_of_states(q, q.source), hops_of_states(q, q.required, backwards=True)
    return {
        (a, s): model.new_bool_var(f"x{a},{s}")
        for a in range(q.num_arcs)
        if not q.source[heads[a]]
        for s in range(soonest[tails[a]], task.num_steps - use[heads[a]])
    }


def _deliver(model: Any, task: RoundsTask, x: dict[tuple[int, int], Any]) -> None:
    """Every wanted state is entered once, others at most once, and what leaves a state has come in a step before."""
    q = task.quotient
    entering = grouped((int(q.head[a]), (s, used)) for (a, s), used in x.items())
    for state in range(q.num_states):
        arrivals = [used for _, used in entering.get(state, [])]
        if q.required[state] and not q.source[state]:
            model.add_exactly_one(arrivals)
        elif arrivals:
            model.add_at_most_one(arrivals)
    for (a, s), used in x.items():
        tail = int(q.tail[a])
        if not q.source[tail]:
            before = [other for step, other in entering.get(tail, []) if step < s]
            model.add_bool_or([*before, used.negated()])


def _keep_capacities(model: Any, task: RoundsTask, x: dict[tuple[int, int], Any], rounds: list[Any]) -> None:
    q = task.quotient
    users = grouped(((resource, s), used) for (a, s), used in x.items() for resource in q.resources[a])
    for (resource, s), arcs in users.items():
        if len(arcs) > task.capacity[resource]:
            model.add(sum(arcs) <= task.capacity[resource] * rounds[s])
