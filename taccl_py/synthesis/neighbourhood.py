"""Large-neighbourhood search: improve a plan by solving small parts of it exactly, over and over.

A part is a handful of states (the arrivals of some chunks, at some ranks, around some time, or at random) that may be entered
anew; everything else keeps its route and its order but not its times. Two parts are solved side by side in every round and
the better answer is kept, so the search uses two cores and is deterministic.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from taccl_py.grouping import grouped
from taccl_py.synthesis.models.cp_joint import Focus, solve_joint
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.plan import Plan, on_grid, plan_end
from taccl_py.synthesis.search import Search


@dataclass(frozen=True)
class Params:
    """Numbers of neighbourhood search.

    Attributes
    ----------
    parts_at_once
        Parts that are solved side by side. Guess.
    first_part_states
        States of a part at first; they grow where parts gain nothing. Guess.
    most_part_arcs
        Open arcs of a part: more make a round slow to build and to solve. Guess.
    part_work
        Deterministic time of one part. Guess.
    """

    parts_at_once: int = 2
    first_part_states: int = 6
    most_part_arcs: int = 250
    part_work: float = 0.05


PARAMS = Params()


def improve(search: Search, rounds: int) -> None:
    """Spend up to `rounds` rounds on the incumbent of a search."""
    if search.best_plan is None:
        return
    rng = random.Random(search.limits.seed)
    size = float(PARAMS.first_part_states)
    plan = search.best_plan
    with ThreadPoolExecutor(PARAMS.parts_at_once) as pool:
        for number in range(rounds):
            if search.done:
                return
            parts = [_part(search, plan, rng, round(size)) for _ in range(PARAMS.parts_at_once)]
            seeds = [number * PARAMS.parts_at_once + i for i in range(PARAMS.parts_at_once)]
            answers = list(pool.map(lambda pair: _solve(search, pair[0], pair[1]), zip(parts, seeds, strict=True)))
            better = min((a for a in answers if a is not None), key=lambda a: _quality(search, a), default=None)
            if better is None or _quality(search, better) >= _quality(search, plan):
                size += 0.5
                continue
            plan = better
            search.offer(plan)


def regroup(search: Search) -> None:
    """Decide again which neighbours share alpha, with the incumbent's routes and order (TACCL's contiguity stage)."""
    if search.best_plan is None:
        return
    plan = _solve(
        search, Focus(search.best_plan, frozenset(), regroup=True), search.limits.seed, work=20 * PARAMS.part_work
    )
    search.offer(plan)


def serve_policy(search: Search, policy: PolicyTerms, rounds: int) -> None:
    """Among schedules as fast as the incumbent, look for one that serves a sketch's policy better, part by part."""
    rng = random.Random(search.limits.seed)
    for number in range(rounds):
        plan = search.best_plan
        if plan is None or search.is_over:
            return
        focus = (
            _rarest_pair(search, plan, number)
            if number % 2 == 0
            else _part(search, plan, rng, PARAMS.first_part_states)
        )
        search.prefer(_found(search, focus, number, PARAMS.part_work / 2, policy), policy)


def _rarest_pair(search: Search, plan: Plan, number: int) -> Focus:
    """All that is sent over one of the links that carry least."""
    heads = search.quotient.head.tolist()
    arcs = (arc for message in plan for arc in message.arcs)
    entered = grouped((int(search.quotient.link_orbit[arc]), heads[arc]) for arc in arcs)
    order = sorted(entered.values(), key=lambda states: (len(states), states))
    return Focus(plan, frozenset(order[number // 2 % len(order)]))


def _solve(search: Search, focus: Focus, seed: int, work: float = PARAMS.part_work) -> Plan | None:
    plan = _found(search, focus, seed, work, None)
    return None if plan is None else on_grid(search.quotient, search.grid, search.joins, plan)


def _found(search: Search, focus: Focus, seed: int, work: float, policy: PolicyTerms | None) -> Plan | None:
    """A plan that takes no longer than the one in focus."""
    task = replace(search.task(joins=True), upper=round(plan_end(focus.plan)))
    task = replace(task, lower=min(task.lower, task.upper))
    limits = replace(search.limits_for(1.0, work), seed=seed)
    return solve_joint(task, limits, focus.plan, focus=focus, policy=policy)[0]


def _quality(search: Search, plan: Plan) -> tuple[float, float]:
    required, heads = search.quotient.required, search.quotient.head
    return plan_end(plan), sum(message.end for message in plan for arc in message.arcs if required[heads[arc]])


def _part(search: Search, plan: Plan, rng: random.Random, size: int) -> Focus:
    """Choose states that belong together by one of four rules, as many as `size` and the limit on arcs allow."""
    q = search.quotient
    heads = q.head.tolist()
    states = [heads[arc] for message in plan for arc in message.arcs]
    choice = rng.randrange(4)
    if choice == 0:  # around a time
        first = rng.randrange(len(states))
        order = states[first:] + states[:first][::-1]
    elif choice == 1:
        order = rng.sample(states, len(states))
    else:  # whole chunks, or whole ranks
        key = search.chunk_of if choice == 2 else search.rank_of
        groups = sorted({key[state] for state in states})
        place = {group: index for index, group in enumerate(rng.sample(groups, len(groups)))}
        order = sorted(states, key=lambda state: place[key[state]])
    free: set[int] = set()
    arcs = 0
    for state in order:
        if len(free) >= size or arcs > PARAMS.most_part_arcs:
            break
        free.add(state)
        arcs += len(search.routes.into[state])
    return Focus(plan, frozenset(free))
