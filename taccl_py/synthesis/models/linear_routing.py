"""MILP, stage 1 (TACCL's routing): which links each chunk uses, with bandwidth relaxed to load.

Letters as in `cp_joint`; ``hold[q]``: time at which state q holds, ``T``: makespan. Times in grid units.

minimize  T + mu * policy
  sum of x over arcs into a wanted state = 1, into a relay state <= 1, a relay is left only if entered
  hold[q] >= hold[f] + d[a] - M (1 - x[a])                     big-M tight from earliest times and the upper bound
  T >= hold[q]                                                  wanted q
  T >= first[r] + sum of occupancy over arcs on link or port r  relaxed bandwidth (load, no order)
  T >= hold[f] + occupancy of all arcs that leave f through r   fan-out
  sum of x over arcs that enter a node which lacks the chunk >= 1   box cut

The box cut and variables per orbit are what makes this solvable by HiGHS, CBC and SCIP within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taccl_py.solvers.limits import Limits
from taccl_py.solvers.linear import LinearModel, LinearOutcome
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.plan import Plan


def solve_routing(
    task: ModelTask, policy: PolicyTerms, solver: str, limits: Limits, hint: Plan | None
) -> tuple[tuple[int, ...] | None, LinearOutcome]:
    """Arcs of the best routing found, or None, and how the search ended."""
    q = task.quotient
    model = LinearModel("routing")
    x = {a: model.binary(f"x_{a}") for a in range(q.num_arcs) if not q.source[int(q.head[a])]}
    hold = {
        state: model.real(f"hold_{state}", float(_earliest(task, state)), float(task.upper))
        for state in range(q.num_states)
        if not q.source[state]
    }
    makespan = model.real("makespan", float(task.lower), float(task.upper))
    model.minimize([(makespan, 1.0), *policy.linear_terms(model, task, x)])
    enter_once(model, task, lambda a: [x[a]] if a in x else [])
    _causality(model, task, x, hold, makespan)
    _load(model, task, x, hold, makespan)
    _box_cuts(model, task, x)
    _own_first(model, task, x, hold)
    if hint is not None:
        model.set_start(_start(task, x, hold, makespan, hint))
    outcome = model.solve(solver, limits)
    if not outcome.status.has_solution:
        return None, outcome
    return tuple(a for a, used in x.items() if (used.varValue or 0.0) > 0.5), outcome


def _earliest(task: ModelTask, state: int) -> int:
    """Least time at which a state holds; not above the lower bound where it need not hold, so that T may be below it."""
    most = task.upper if task.quotient.required[state] else task.lower
    return min(task.routes.earliest[state], most)


def enter_once(model: LinearModel, task: ModelTask, uses: Callable[[int], Sequence[Any]]) -> None:
    """Let one arc enter every wanted state, and at most one every other; an arc has variables that say that it is used."""
    q = task.quotient
    for state, arcs in enumerate(task.routes.into):
        terms = [(used, 1.0) for arc in arcs for used in uses(arc)]
        if q.source[state] or (not terms and not q.required[state]):
            continue
        if q.required[state]:
            model.equal(terms, 1.0)
        else:
            model.at_most(terms, 1.0)


def _causality(
    model: LinearModel, task: ModelTask, x: Mapping[int, Any], hold: Mapping[int, Any], makespan: Any
) -> None:
    q = task.quotient
    for state, variable in hold.items():
        if q.required[state]:
            model.at_least([(makespan, 1.0), (variable, -1.0)], 0.0)
    for a, used in x.items():
        tail, head = int(q.tail[a]), int(q.head[a])
        duration = task.grid.duration(a)
        if q.source[tail]:
            model.at_least([(hold[head], 1.0), (used, float(-duration))], 0.0)
            continue
        slack = max(0, task.upper + duration - _earliest(task, head))
        model.at_least([(hold[head], 1.0), (hold[tail], -1.0), (used, float(-slack))], float(duration - slack))
        if not q.required[tail]:
            model.at_most([(used, 1.0), *((x[b], -1.0) for b in task.routes.into[tail] if b in x)], 0.0)


def _load(model: LinearModel, task: ModelTask, x: Mapping[int, Any], hold: Mapping[int, Any], makespan: Any) -> None:
    """Load of every link and port, alone and behind the state that feeds it."""
    q, routes = task.quotient, task.routes
    users: dict[int, list[tuple[int, int]]] = {}
    fan: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for a in x:
        for resource, units in zip(q.resources[a], task.grid.occupancy[a], strict=True):
            users.setdefault(resource, []).append((a, units))
            fan.setdefault((int(q.tail[a]), resource), []).append((a, units))
    for arcs in users.values():
        # Not above the lower bound: a link that is not used at all says nothing.
        first = min(task.lower, *(routes.earliest[int(q.tail[a])] for a, _ in arcs))
        model.at_least([(makespan, 1.0), *((x[a], float(-units)) for a, units in arcs)], float(first))
    for (state, _), arcs in fan.items():
        if len(arcs) > 1 and state in hold:
            terms = [(makespan, 1.0), (hold[state], -1.0), *((x[a], float(-units)) for a, units in arcs)]
            model.at_least(terms, 0.0)


def _box_cuts(model: LinearModel, task: ModelTask, x: Mapping[int, Any]) -> None:
    """A chunk that some rank of a foreign node wants enters that node at least once."""
    q = task.quotient
    topology, traffic = q.problem.topology, q.problem.traffic
    if topology.num_nodes == 1:
        return
    node = topology.node_of
    holders, wanted = traffic.holders, traffic.wanted
    entering: dict[tuple[int, int], list[tuple[Any, float]]] = {}
    for a, used in x.items():
        for chunk, index in q.members(a):
            link = topology.links[index]
            if node[link.src] != node[link.dst] and all(node[link.dst] != node[rank] for rank in holders[chunk]):
                entering.setdefault((chunk, node[link.dst]), []).append((used, 1.0))
    seen = set()
    for (chunk, box), terms in sorted(entering.items()):
        key = tuple(sorted(variable.name for variable, _ in terms))
        if key not in seen and any(node[rank] == box for rank in wanted[chunk]):
            seen.add(key)
            model.at_least(terms, 1.0)


def _own_first(model: LinearModel, task: ModelTask, x: Mapping[int, Any], hold: Mapping[int, Any]) -> None:
    q = task.quotient
    for own, other in task.routes.own_first_pairs:
        if own in x and other in x:
            before, after = hold[int(q.head[own])], hold[int(q.head[other])]
            slack = float(task.upper)
            model.at_least([(after, 1.0), (before, -1.0), (x[own], -slack), (x[other], -slack)], -2 * slack)


def _start(
    task: ModelTask, x: Mapping[int, Any], hold: Mapping[int, Any], makespan: Any, hint: Plan
) -> dict[Any, float]:
    values: dict[Any, float] = dict.fromkeys(x.values(), 0.0)
    values |= {variable: float(variable.lowBound) for variable in hold.values()}
    for message in hint:
        for a in message.arcs:
            head = int(task.quotient.head[a])
            if a in x:
                values[x[a]] = 1.0
                values[hold[head]] = message.end
    values[makespan] = max((message.end for message in hint), default=0.0)
    return values
