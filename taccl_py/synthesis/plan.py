"""Plan: what an engine decides on a quotient, and its lift to a schedule of the full problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from taccl_py.grouping import grouped
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import UntimedMessage, leaders_first
from taccl_py.schedule.timing import build_schedule
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.quotient import Quotient


@dataclass(frozen=True, slots=True)
class OrbitMessage:
    """Arc orbits of one link orbit that are sent together, with planned times.

    Attributes
    ----------
    arcs
        Arc orbits.
    start, end
        Planned start and arrival, in any one unit.
    """

    arcs: tuple[int, ...]
    start: float
    end: float


Plan = tuple[OrbitMessage, ...]


def plan_end(plan: Plan) -> float:
    """Makespan of a plan in its own unit."""
    return max((message.end for message in plan), default=0.0)


def plan_of_steps(quotient: Quotient, crossed: Iterable[tuple[int, int]], lasting: Sequence[float]) -> Plan:
    """Plan of steps that follow each other and last so long: arcs with the step in which they are crossed; those of one link are one message."""
    together: list[dict[int, list[int]]] = [{} for _ in lasting]
    for arc, step in crossed:
        together[step].setdefault(int(quotient.link_orbit[arc]), []).append(arc)
    start, messages = 0.0, list[OrbitMessage]()
    for by_link, lasts in zip(together, lasting, strict=True):
        messages += [OrbitMessage(tuple(joined), start, start + lasts) for _, joined in sorted(by_link.items())]
        start += lasts
    return tuple(messages)


def lift(quotient: Quotient, plan: Sequence[OrbitMessage]) -> Schedule:
    """Schedule of the full problem: every member of every message that is of use, timed exactly."""
    problem = quotient.problem
    untimed = []
    for message in _in_order(quotient, plan):
        chunks_on = grouped((link, chunk) for arc in message.arcs for chunk, link in quotient.members(arc))
        for link, chunks in sorted(chunks_on.items()):
            lead = frozenset(chunk for chunk in chunks if problem.goes_first(chunk, link))
            untimed.append(UntimedMessage(link, tuple(chunks), message.start, message.end, lead=lead))
    return build_schedule(problem.topology, problem.collective, problem.chunk_bytes, untimed)


def plan_of(quotient: Quotient, schedule: Schedule) -> Plan | None:
    """The plan of a schedule on a quotient without symmetry; None if it uses a chunk on a link that has no arc."""
    arc_of = {member: arc for arc in range(quotient.num_arcs) for member in quotient.members(arc)}
    plan = []
    for message in schedule.messages:
        arcs = [arc_of.get((chunk, message.link)) for chunk in message.chunks]
        if None in arcs:
            return None
        plan.append(OrbitMessage(tuple(arc for arc in arcs if arc is not None), message.start_us, message.end_us))
    return tuple(plan)


def on_grid(quotient: Quotient, grid: TimeGrid, joins: Mapping[int, int], plan: Sequence[OrbitMessage]) -> Plan:
    """The same plan, left-shifted with the grid's costs and cut where neighbours may not share alpha.

    Its times are consistent with what solvers see, so it can be their hint and its end their upper bound.
    """
    free = [0] * (int(quotient.resource_orbit.max()) + 1)
    holds = {state: 0 for state in range(quotient.num_states) if quotient.source[state]}
    result = []
    for message in _in_order(quotient, plan):
        for arcs in leaders_first(chains(message.arcs, joins), _leaders(quotient, message.arcs)):
            first, size = arcs[0], len(arcs)
            start = max(holds[int(quotient.tail[arc])] for arc in arcs)
            start = max(start, *(free[resource] for resource in quotient.resources[first]))
            for resource, units in zip(quotient.resources[first], grid.busy(first, size), strict=True):
                free[resource] = start + units
            end = start + grid.duration(first, size)
            for arc in arcs:
                holds[int(quotient.head[arc])] = end
            result.append(OrbitMessage(arcs, float(start), float(end)))
    return tuple(result)


def _in_order(quotient: Quotient, plan: Sequence[OrbitMessage]) -> list[OrbitMessage]:
    """Messages by start, without arcs to a relay that sends the chunk to nobody who wants it (models do not mind them)."""
    tails, heads = quotient.tail.tolist(), quotient.head.tolist()
    into = grouped((heads[arc], arc) for message in plan for arc in message.arcs)
    of_use = {state for state in into if quotient.required[state]}
    found = list(of_use)
    while found:
        before = {tails[arc] for arc in into.get(found.pop(), ())} - of_use
        of_use |= before
        found += before
    kept = [replace(message, arcs=tuple(arc for arc in message.arcs if heads[arc] in of_use)) for message in plan]
    return sorted((message for message in kept if message.arcs), key=lambda message: (message.start, message.arcs))


def _leaders(quotient: Quotient, arcs: Sequence[int]) -> set[int]:
    """Arcs whose chunks the sketch lets leave before those of the others."""
    if len(arcs) == 1:
        return set()
    return {arc for arc in arcs if quotient.problem.goes_first(*quotient.members(arc)[0])}


def chains(arcs: Sequence[int], joins: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Split arcs of one link into runs in which every arc follows its predecessor.

    A rotation can make arcs follow each other in a cycle; it is cut before the first of them.
    """
    members = set(arcs)
    follower = {joins[arc]: arc for arc in arcs if joins.get(arc) in members}
    runs, placed = [], set[int]()
    for arc in [*(arc for arc in arcs if joins.get(arc) not in members), *arcs]:
        if arc in placed:
            continue
        run = [arc]
        while (follows := follower.get(run[-1], arc)) != arc:
            run.append(follows)
        runs.append(tuple(run))
        placed.update(run)
    return runs
