"""Plan: what an engine decides on a quotient, and its way back to a schedule of the full problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import Draft, leaders_first
from taccl_py.schedule.timing import build_schedule
from taccl_py.synthesis.grid import Grid
from taccl_py.synthesis.quotient import Quotient


@dataclass(frozen=True, slots=True)
class Batch:
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


Plan = tuple[Batch, ...]


def plan_end(plan: Plan) -> float:
    """Makespan of a plan in its own unit."""
    return max((batch.end for batch in plan), default=0.0)


def lift(quotient: Quotient, plan: Sequence[Batch]) -> Schedule:
    """Schedule of the full problem: every member of every batch, timed exactly."""
    problem = quotient.problem
    drafts = []
    for batch in sorted(plan, key=lambda b: (b.start, b.arcs)):
        chunks_on: dict[int, list[int]] = {}
        for arc in batch.arcs:
            for chunk, link in quotient.members(arc):
                chunks_on.setdefault(link, []).append(chunk)
        for link, chunks in sorted(chunks_on.items()):
            lead = frozenset(chunk for chunk in chunks if problem.goes_first(chunk, link))
            drafts.append(Draft(link, tuple(chunks), batch.start, batch.end, lead=lead))
    return build_schedule(problem.topology, problem.collective, problem.chunk_bytes, drafts)


def on_grid(quotient: Quotient, grid: Grid, joins: Mapping[int, int], plan: Sequence[Batch]) -> Plan:
    """The same plan, left-shifted with the grid's costs and cut where neighbours may not share alpha.

    Its times are consistent with what solvers see, so it can be their hint and its end their upper bound.
    """
    free = [0] * (int(quotient.resource_orbit.max()) + 1)
    holds = {state: 0 for state in range(quotient.num_states) if quotient.source[state]}
    result = []
    for batch in sorted(plan, key=lambda b: (b.start, b.arcs)):
        for arcs in leaders_first(chains(batch.arcs, joins), _leaders(quotient, batch.arcs)):
            first, size = arcs[0], len(arcs)
            start = max(holds[int(quotient.tail[arc])] for arc in arcs)
            start = max(start, *(free[resource] for resource in quotient.resources[first]))
            own = grid.alpha[first] + grid.beta[first]
            for resource, units in zip(quotient.resources[first], grid.occupancy[first], strict=True):
                free[resource] = start + units + (size - 1) * (grid.beta[first] if units == own else units)
            end = start + grid.duration(first) + (size - 1) * grid.beta[first]
            for arc in arcs:
                holds[int(quotient.head[arc])] = end
            result.append(Batch(arcs, float(start), float(end)))
    return tuple(result)


def _leaders(quotient: Quotient, arcs: Sequence[int]) -> set[int]:
    """Arcs whose chunks the sketch lets leave before those of the others."""
    if len(arcs) == 1:
        return set()
    return {arc for arc in arcs if quotient.problem.goes_first(*quotient.members(arc)[0])}


def chains(arcs: Sequence[int], joins: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Split arcs of one link into runs in which every arc follows its predecessor."""
    members = set(arcs)
    follower = {joins[arc]: arc for arc in arcs if joins.get(arc) in members}
    runs = []
    for arc in arcs:
        if joins.get(arc) in members:
            continue
        run = [arc]
        while run[-1] in follower:
            run.append(follower[run[-1]])
        runs.append(tuple(run))
    return runs
