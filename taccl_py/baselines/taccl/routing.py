"""Stage 1: which links each chunk takes.

Letters: ``x[a]`` is 1 if arc a (an orbit of chunk and link) is taken, ``t[q]`` is when the chunk of state q arrives, ``T`` the
makespan, ``u[p]`` is 1 if a pair of ranks of a switch talks. Nothing is ordered: links and switch ports only bound T from
below by what they carry. The NSDI paper's relaxed routing problem; the objective has no term for alphas that are shared.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from taccl_py.baselines.taccl.view import TacclView
from taccl_py.errors import LimitReached
from taccl_py.sketch.model import Policy
from taccl_py.solvers.cp_sat import import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.quotient import Quotient

_UNITS_PER_SMALLEST_COST = 1000
# The solver may take so many times as long as the first routing, which does not keep a sketch's order of chunks.
_SLACK = 2


@dataclass(frozen=True, slots=True)
class RoutedChunk:
    """One chunk over one link.

    Attributes
    ----------
    chunk, link
        A chunk, and the link that it crosses.
    start_us
        When stage 1 sends it.
    """

    chunk: int
    link: int
    start_us: float


@dataclass
class _RoutingModel:
    view: TacclView
    q: Quotient
    cp: Any
    units_per_us: float
    cost: list[int]
    x: list[Any]
    t: list[Any]
    makespan: Any


def solve_routing(view: TacclView, limits: Limits) -> tuple[RoutedChunk, ...]:
    """Return the links that all chunks take, of a cheapest or the best routing found.

    Raises
    ------
    LimitReached
        If the limits end the search without a routing.
    """
    m = _model(view)
    _every_state_is_entered_at_most_once(m)
    _chunks_are_sent_after_they_arrive(m)
    _links_and_ports_carry_their_load(m)
    _ports_carry_what_a_rank_sends_on(m)
    _own_chunks_go_first(m)
    m.cp.minimize(_UNITS_PER_SMALLEST_COST * m.makespan + _pairs_that_talk(m))
    outcome = solve_cp(m.cp, limits)
    if not outcome.status.has_solution:
        raise LimitReached("TACCL's routing found no schedule; give more time with --time-limit")
    taken = _useful(m.q, [bool(outcome.value(x)) for x in m.x])
    heads = m.q.head.tolist()
    hops = []
    for arc in taken:
        start_us = (outcome.value(m.t[heads[arc]]) - m.cost[arc]) / m.units_per_us
        hops += [RoutedChunk(chunk, link, start_us) for chunk, link in m.q.members(arc)]
    return tuple(hops)


def _model(view: TacclView) -> _RoutingModel:
    q = Quotient.of(view.problem)
    costs_us = [view.cost_us(link) for link in q.link.tolist()]
    scale = _UNITS_PER_SMALLEST_COST / min(costs_us)
    cost = [round(each * scale) for each in costs_us]
    cp = import_cp_model().CpModel()
    first = _flood(view, q, cost)
    horizon = _SLACK * max(first.arrives, default=1)
    x = [cp.new_bool_var(f"x{a}") for a in range(q.num_arcs)]
    t = [0 if q.source[s] else cp.new_int_var(0, horizon, f"t{s}") for s in range(q.num_states)]
    used = set(_useful(q, first.taken))
    for arc, literal in enumerate(x):
        cp.add_hint(literal, arc in used)
    for state, time in enumerate(first.arrives):
        if not q.source[state]:
            cp.add_hint(t[state], time)
    return _RoutingModel(view, q, cp, scale, cost, x, t, cp.new_int_var(0, horizon, "T"))


@dataclass(frozen=True)
class _FirstRouting:
    """A first routing, for the solver to start from: whether an arc is taken, and when each state's chunk arrives."""

    taken: list[bool]
    arrives: list[int]


def _flood(view: TacclView, q: Quotient, cost: list[int]) -> _FirstRouting:
    """Everybody sends everything on as soon as links and ports are free; what arrives first counts."""
    leaving: dict[int, list[int]] = defaultdict(list)
    for arc, tail in enumerate(q.tail.tolist()):
        leaving[tail].append(arc)
    heads, tails = q.head.tolist(), q.tail.tolist()
    held = [bool(each) for each in q.source]
    taken, arrives = [False] * q.num_arcs, [0] * q.num_states
    free: dict[int, int] = defaultdict(int)
    used = [[int(q.resource_orbit[r]) for r in view.resources(link)] for link in q.link.tolist()]
    queue = [(cost[arc], arc) for state in range(q.num_states) if held[state] for arc in leaving[state]]
    heapq.heapify(queue)
    while queue:
        known, arc = heapq.heappop(queue)
        if held[heads[arc]]:
            continue
        end = max([arrives[tails[arc]], *(free[resource] for resource in used[arc])]) + cost[arc]
        if end > known:  # something else has been sent there meanwhile
            heapq.heappush(queue, (end, arc))
            continue
        held[heads[arc]], taken[arc], arrives[heads[arc]] = True, True, end
        free.update((resource, end) for resource in used[arc])
        for onward in leaving[heads[arc]]:
            heapq.heappush(queue, (end + cost[onward], onward))
    return _FirstRouting(taken, arrives)


def _every_state_is_entered_at_most_once(m: _RoutingModel) -> None:
    """Exactly once if the chunk is wanted there; what is not brought cannot be sent on."""
    into: dict[int, list[Any]] = defaultdict(list)
    for arc, head in enumerate(m.q.head.tolist()):
        into[head].append(m.x[arc])
    for state in range(m.q.num_states):
        if m.q.source[state]:
            continue
        (m.cp.add_exactly_one if m.q.required[state] else m.cp.add_at_most_one)(into[state])
    for arc, tail in enumerate(m.q.tail.tolist()):
        if not m.q.source[tail] and not m.q.required[tail]:
            m.cp.add_bool_or([*into[tail], ~m.x[arc]])


def _chunks_are_sent_after_they_arrive(m: _RoutingModel) -> None:
    """t[head] >= t[tail] + cost if x, and T >= t."""
    for arc, (tail, head) in enumerate(zip(m.q.tail.tolist(), m.q.head.tolist(), strict=True)):
        if not m.q.source[head]:
            m.cp.add(m.t[head] >= m.t[tail] + m.cost[arc]).only_enforce_if(m.x[arc])
    for state in range(m.q.num_states):
        if not m.q.source[state] and m.q.required[state]:
            m.cp.add(m.makespan >= m.t[state])


def _resources(m: _RoutingModel, arc: int) -> list[int]:
    """Orbits of the link and of the ports that take turns."""
    return [int(m.q.resource_orbit[resource]) for resource in m.view.resources(int(m.q.link[arc]))]


def _links_and_ports_carry_their_load(m: _RoutingModel) -> None:
    """T >= sum of what crosses a link, or a port."""
    load: dict[int, list[Any]] = defaultdict(list)
    for arc in range(m.q.num_arcs):
        for resource in _resources(m, arc):
            load[resource].append(m.cost[arc] * m.x[arc])
    for terms in load.values():
        m.cp.add(m.makespan >= sum(terms))


def _ports_carry_what_a_rank_sends_on(m: _RoutingModel) -> None:
    """T >= t[tail] + what the rank sends of that chunk through one port, if it sends it."""
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for arc, tail in enumerate(m.q.tail.tolist()):
        for resource in _resources(m, arc)[1:2]:
            sent[tail, resource].append(arc)
    for (tail, _), arcs in sent.items():
        for arc in arcs:
            total = sum(m.cost[other] * m.x[other] for other in arcs)
            m.cp.add(m.makespan >= m.t[tail] + total).only_enforce_if(m.x[arc])


def _own_chunks_go_first(m: _RoutingModel) -> None:
    """On a link between nodes a sender's own chunks leave before others, if the sketch says so."""
    on_link: dict[int, list[int]] = defaultdict(list)
    for arc, link in enumerate(m.q.link_orbit.tolist()):
        on_link[link].append(arc)
    heads = m.q.head.tolist()
    for arcs in on_link.values():
        own = [arc for arc in arcs if m.view.problem.goes_first(*m.q.members(arc)[0])]
        for first in own:
            for other in arcs:
                if other not in own:
                    after = m.t[heads[other]] >= m.t[heads[first]] + m.cost[other]
                    m.cp.add(after).only_enforce_if([m.x[first], m.x[other]])


def _pairs_that_talk(m: _RoutingModel) -> Any:
    """Number of pairs inside a node that talk: added for uc-min, subtracted for uc-max, for the first switch's policy."""
    policy = m.view.sketch.switches[0].policy if m.view.sketch.switches else Policy.FREE
    if policy is Policy.FREE:
        return 0
    on_link: dict[int, list[Any]] = defaultdict(list)
    size: dict[int, int] = {}
    for arc, orbit in enumerate(m.q.link_orbit.tolist()):
        if m.view.ports[int(m.q.link[arc])]:
            on_link[orbit].append(m.x[arc])
            size[orbit] = len({link for _, link in m.q.members(arc)})
    total = []
    for orbit, literals in on_link.items():
        used = m.cp.new_bool_var(f"u{orbit}")
        m.cp.add_max_equality(used, literals)
        total.append(size[orbit] * used)
    sign = 1 if policy is Policy.UC_MIN else -1
    return sum(total) * sign * (_UNITS_PER_SMALLEST_COST // m.view.topology.num_nodes)


def _useful(q: Quotient, taken: list[bool]) -> list[int]:
    """Arcs that lead on to where a chunk is wanted."""
    tails, heads = q.tail.tolist(), q.head.tolist()
    kept = {arc for arc in range(q.num_arcs) if taken[arc]}
    while True:
        sending = {tails[arc] for arc in kept}
        idle = {arc for arc in kept if not q.required[heads[arc]] and heads[arc] not in sending}
        if not idle:
            return sorted(kept)
        kept -= idle
