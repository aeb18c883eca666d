"""MILP, stage 3 (TACCL's contiguity and exact scheduling): with routes and order fixed, who shares an alpha, and when.

Only arcs of a plan appear, in the plan's order on every link and port. ``g[a]``: arc a travels in one message with the arc
just before it on its link, which must carry the neighbouring chunk. ``finish[a]``: when a's bytes have left the link,
``start[a]``: start of its message, ``arrive[a]``: when the message is there.

minimize  T
  start[a] >= arrive[b]                                            b brings a's chunk to its sender
  finish[a] >= start[a] + alpha + beta                             (equality is not needed: late is never better)
  g[a] = 0:  start[a] >= finish of the piece before it on every link and port
  g[a] = 1:  start[a] = start[before],  finish[a] >= finish[before] + beta,  arrive[before] >= arrive[a]
  arrive[a] >= finish[a] + latency,   T >= arrive[a]

Unlike TACCL's released program the sharing is consistent: joined chunks really leave and arrive together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taccl_py.solvers.limits import Limits
from taccl_py.solvers.linear import LinearModel, LinearOutcome
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.plan import OrbitMessage, Plan


@dataclass
class _ContiguityVariables:
    start: dict[int, Any]
    finish: dict[int, Any]
    arrive: dict[int, Any]
    g: dict[int, Any]
    before: dict[int, int]  # arc -> arc that it may join


def solve_contiguity(task: ModelTask, order: Plan, solver: str, limits: Limits) -> tuple[Plan | None, LinearOutcome]:
    """Best plan with the routes and order of `order` (messages of one arc), or None, and how the search ended."""
    arcs = [message.arcs[0] for message in sorted(order, key=lambda b: (b.start, b.arcs))]
    model = LinearModel("contiguity")
    v = _variables(model, task, arcs)
    makespan = model.real("makespan", float(task.lower), float(task.upper))
    model.minimize([(makespan, 1.0)])
    _data(model, task, arcs, v, makespan)
    _order_on_resources(model, task, arcs, v)
    _joined_pieces(model, task, v)
    outcome = model.solve(solver, limits)
    if not outcome.status.has_solution:
        return None, outcome
    return _plan(task, arcs, v), outcome


def _variables(model: LinearModel, task: ModelTask, arcs: list[int]) -> _ContiguityVariables:
    q, upper = task.quotient, float(task.upper)
    last_on: dict[int, int] = {}
    before = {}
    for a in arcs:
        previous = [last_on.get(resource) for resource in q.resources[a]]
        candidate = task.predecessor.get(a)
        # Joining past a piece of another link on a shared port would change the order: only direct neighbours may.
        if candidate is not None and task.grid.alpha[a] > 0 and all(one == candidate for one in previous):
            before[a] = candidate
        for resource in q.resources[a]:
            last_on[resource] = a
    return _ContiguityVariables(
        {a: model.real(f"start_{a}", 0.0, upper) for a in arcs},
        {a: model.real(f"finish_{a}", 0.0, upper) for a in arcs},
        {a: model.real(f"arrive_{a}", 0.0, upper) for a in arcs},
        {a: model.binary(f"g_{a}") for a in before},
        before,
    )


def _data(model: LinearModel, task: ModelTask, arcs: list[int], v: _ContiguityVariables, makespan: Any) -> None:
    q, grid = task.quotient, task.grid
    brings = {int(q.head[a]): a for a in arcs}
    for a in arcs:
        model.at_least([(v.finish[a], 1.0), (v.start[a], -1.0)], float(grid.alpha[a] + grid.beta[a]))
        model.at_least([(v.arrive[a], 1.0), (v.finish[a], -1.0)], float(grid.latency[a]))
        model.at_least([(makespan, 1.0), (v.arrive[a], -1.0)], 0.0)
        feeder = brings.get(int(q.tail[a]))
        if feeder is not None:
            model.at_least([(v.start[a], 1.0), (v.arrive[feeder], -1.0)], 0.0)


def _order_on_resources(model: LinearModel, task: ModelTask, arcs: list[int], v: _ContiguityVariables) -> None:
    q, grid = task.quotient, task.grid
    last_on: dict[int, tuple[int, int]] = {}
    for a in arcs:
        for resource, units in zip(q.resources[a], grid.occupancy[a], strict=True):
            previous = last_on.get(resource)
            last_on[resource] = (a, units)
            if previous is None:
                continue
            other, busy = previous
            # A port that is faster than the link is free again before the piece has left the link.
            saved = float(grid.alpha[other] + grid.beta[other] - busy)
            terms = [(v.start[a], 1.0), (v.finish[other], -1.0)]
            if a in v.g:
                model.at_least([*terms, (v.g[a], float(task.upper) + saved)], -saved)
            else:
                model.at_least(terms, -saved)


def _joined_pieces(model: LinearModel, task: ModelTask, v: _ContiguityVariables) -> None:
    upper = float(task.upper)
    for a, joined in v.g.items():
        other, beta = v.before[a], float(task.grid.beta[a])
        for first, second in ((a, other), (other, a)):
            model.at_least([(v.start[first], 1.0), (v.start[second], -1.0), (joined, -upper)], -upper)
            model.at_least([(v.arrive[first], 1.0), (v.arrive[second], -1.0), (joined, -upper)], -upper)
        model.at_least([(v.finish[a], 1.0), (v.finish[other], -1.0), (joined, -upper - beta)], -upper)


def _plan(task: ModelTask, arcs: list[int], v: _ContiguityVariables) -> Plan:
    messages: list[list[int]] = []
    message_of: dict[int, list[int]] = {}
    for a in arcs:
        joined = v.g.get(a)
        if joined is not None and (joined.varValue or 0.0) > 0.5:
            message_of[a] = message_of[v.before[a]]
            message_of[a].append(a)
        else:
            message_of[a] = [a]
            messages.append(message_of[a])
    # A solver keeps rows but for a tolerance, and what starts before it has come would not be waited for.
    brings = {int(task.quotient.head[a]): message_of[a] for a in arcs}
    feeders = {a: brings.get(int(task.quotient.tail[a]), []) for a in arcs}
    return tuple(
        OrbitMessage(
            tuple(members),
            max(
                [
                    *(v.start[a].varValue for a in members),
                    *(v.arrive[feeder].varValue for a in members for feeder in feeders[a]),
                ]
            ),
            max(v.arrive[a].varValue for a in members),
        )
        for members in messages
    )
