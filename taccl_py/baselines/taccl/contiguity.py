"""Stage 3: exact times in the order of stage 2, and which chunks share the alpha of a link between nodes.

Letters: ``s[h]`` is when hop h starts, ``j[h]`` is 1 if it goes in one message with the hop before it on its link, ``n[h]`` is
how many go in its message. Only neighbours in the order go together, at most six, and only between nodes; whether they are
neighbours in the buffers is not looked at. What goes together starts together and lasts ``alpha + n * beta``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from taccl_py.baselines.taccl.ordering import OrderedRouting
from taccl_py.solvers.cp_sat import import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits

_MOST_TOGETHER = 6
_UNITS_PER_SMALLEST_COST = 1000
# Least gain for which chunks to send together are searched.
_WORTH_IT = 1e-3


@dataclass(frozen=True)
class HopTimes:
    """Starts and arrivals of the hops of a plan, in us, [hop]."""

    plan: OrderedRouting
    start_us: tuple[float, ...]
    end_us: tuple[float, ...]

    @property
    def makespan_us(self) -> float:
        """Arrival of the last one: the time that TACCL predicts."""
        return max(self.end_us, default=0.0)


def solve_contiguity(plan: OrderedRouting, limits: Limits) -> HopTimes:
    """Return the best times found; those of single chunks, which always fit, if the solver finds no better ones.

    Parameters
    ----------
    plan
        Result of stage 2.
    limits
        When to stop.
    """
    alone = _timed(plan, frozenset())
    if alone is None:
        raise ValueError("the order of stage 2 has hops that wait for each other")
    pairs = [pair for hops in _remote_queues(plan) for pair in pairwise(hops)]
    candidates = [h for before, h in pairs if _may_join(plan, before, h)]
    if alone.makespan_us <= _without_alphas_us(plan) * (1 + _WORTH_IT):
        return alone
    joined = _solve(plan, candidates, alone, limits) if candidates else frozenset()
    together = _timed(plan, joined) if joined else None
    return alone if together is None else min(alone, together, key=lambda each: each.makespan_us)


def _queues(plan: OrderedRouting) -> list[list[int]]:
    """Hops of every link and port, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    for h, hop in enumerate(plan.hops):
        for resource in plan.view.resources(hop.link):
            found[resource].append(h)
    return list(found.values())


def _remote_queues(plan: OrderedRouting) -> list[list[int]]:
    """Hops of every link between nodes, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    for h, hop in enumerate(plan.hops):
        if plan.view.is_remote(hop.link):
            found[hop.link].append(h)
    return list(found.values())


def _without_alphas_us(plan: OrderedRouting) -> float:
    """Time in the plan's order if links between nodes had no alpha, which no choice of what goes together beats."""
    view = plan.view
    alphas = tuple(0.0 if view.is_remote(link) else alpha_us for link, alpha_us in enumerate(view.alpha_us))
    free = _timed(replace(plan, view=replace(view, alpha_us=alphas)), frozenset())
    return free.makespan_us if free is not None else 0.0


def _may_join(plan: OrderedRouting, before: int, h: int) -> bool:
    """True if TACCL considers sending two neighbours of a link between nodes together."""
    source = plan.view.collective.source
    return not plan.sums or source[plan.hops[before].chunk] == source[plan.hops[h].chunk]


def _groups(plan: OrderedRouting, joined: Iterable[int]) -> list[int]:
    """Position of the first hop of each hop's message, [hop]."""
    first = list(range(len(plan.hops)))
    chosen = set(joined)
    for hops in _remote_queues(plan):
        for before, h in pairwise(hops):
            if h in chosen:
                first[h] = first[before]
    return first


def _timed(plan: OrderedRouting, joined: frozenset[int]) -> HopTimes | None:
    """Earliest times with these joins, or None if messages would wait for each other."""
    group = _groups(plan, joined)
    cost_us = {g: plan.view.cost_us(plan.hops[g].link, count) for g, count in Counter(group).items()}
    waits: dict[int, set[int]] = {g: set() for g in cost_us}
    for h, parents in enumerate(plan.after):
        waits[group[h]].update(group[parent] for parent in parents)
    for hops in _queues(plan):
        for before, h in pairwise(hops):
            if group[h] != group[before]:
                waits[group[h]].add(group[before])
    start_us = _longest_paths(waits, cost_us)
    if start_us is None:
        return None
    return HopTimes(plan, tuple(start_us[g] for g in group), tuple(start_us[g] + cost_us[g] for g in group))


def _longest_paths(waits: dict[int, set[int]], cost_us: dict[int, float]) -> dict[int, float] | None:
    """Start of each message if it waits for the end of others, or None if there is a cycle."""
    users: dict[int, list[int]] = defaultdict(list)
    for g, before in waits.items():
        for other in before:
            users[other].append(g)
    missing = {g: len(before) for g, before in waits.items()}
    ready = [g for g, count in missing.items() if not count]
    start_us = dict.fromkeys(waits, 0.0)
    for g in ready:
        for user in users[g]:
            start_us[user] = max(start_us[user], start_us[g] + cost_us[g])
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return start_us if len(ready) == len(waits) else None


@dataclass
class _ContiguityModel:
    plan: OrderedRouting
    cp: Any
    units_per_us: float
    s: list[Any]
    j: dict[int, Any]
    lasts: list[Any]


def _solve(plan: OrderedRouting, candidates: list[int], alone: HopTimes, limits: Limits) -> frozenset[int]:
    """Hops that go together with the hop before them; none if no better times were found."""
    cp = import_cp_model().CpModel()
    scale = _UNITS_PER_SMALLEST_COST / min(plan.view.cost_us(hop.link) for hop in plan.hops)
    # Costs are rounded up below, so the times of single chunks need a little more room than they take.
    horizon = round(alone.makespan_us * scale) + 2 * len(plan.hops)
    s = [cp.new_int_var(0, horizon, f"s{h}") for h in range(len(plan.hops))]
    j = {h: cp.new_bool_var(f"j{h}") for h in candidates}
    m = _ContiguityModel(plan, cp, scale, s, j, [_units(plan.view.cost_us(hop.link), scale) for hop in plan.hops])
    for hops in _remote_queues(plan):
        _messages_last_as_long_as_they_are(m, hops)
    _hops_wait_for_their_chunks(m)
    _links_and_ports_keep_the_order(m)
    makespan = cp.new_int_var(0, horizon, "T")
    for h in range(len(plan.hops)):
        cp.add(makespan >= s[h] + m.lasts[h])
    cp.minimize(makespan)
    for h in range(len(plan.hops)):
        cp.add_hint(s[h], round(alone.start_us[h] * scale))
    for literal in j.values():
        cp.add_hint(literal, 0)
    outcome = solve_cp(cp, limits)
    if not outcome.status.has_solution:
        return frozenset()
    return frozenset(h for h, literal in j.items() if outcome.value(literal))


def _units(cost_us: float, scale: float) -> int:
    return max(1, round(cost_us * scale))


def _messages_last_as_long_as_they_are(m: _ContiguityModel, hops: list[int]) -> None:
    """Counts: p is how many hops of a message there are up to one of them, n is p of the last; joined hops start together."""
    view, cp = m.plan.view, m.cp
    link = m.plan.hops[hops[0]].link
    alpha, chunk = _units(view.alpha_us[link], m.units_per_us), _units(view.chunk_us[link], m.units_per_us)
    p = [cp.new_int_var(1, _MOST_TOGETHER, f"p{h}") for h in hops]
    n = [cp.new_int_var(1, _MOST_TOGETHER, f"n{h}") for h in hops]
    cp.add(p[0] == 1)
    cp.add(n[-1] == p[-1])
    for i, (before, h) in enumerate(pairwise(hops)):
        joined = m.j.get(h, m.cp.new_constant(0))
        cp.add(p[i + 1] == p[i] + 1).only_enforce_if(joined)
        cp.add(p[i + 1] == 1).only_enforce_if(~joined)
        cp.add(n[i] == n[i + 1]).only_enforce_if(joined)
        cp.add(n[i] == p[i]).only_enforce_if(~joined)
        cp.add(m.s[h] == m.s[before]).only_enforce_if(joined)
    for i, h in enumerate(hops):
        m.lasts[h] = alpha + chunk * n[i]


def _hops_wait_for_their_chunks(m: _ContiguityModel) -> None:
    """s[h] >= s[parent] + how long that lasts."""
    for h, parents in enumerate(m.plan.after):
        for parent in parents:
            m.cp.add(m.s[h] >= m.s[parent] + m.lasts[parent])


def _links_and_ports_keep_the_order(m: _ContiguityModel) -> None:
    """s[h] >= s[before] + how long that lasts, unless they go together."""
    for hops in _queues(m.plan):
        for before, h in pairwise(hops):
            row = m.cp.add(m.s[h] >= m.s[before] + m.lasts[before])
            if h in m.j and m.plan.hops[h].link == m.plan.hops[before].link:
                row.only_enforce_if(~m.j[h])
