"""Order of messages whose paths are fixed."""

from __future__ import annotations

from taccl_py.synthesis.greedy import efficient_plan, urgent_plan
from taccl_py.synthesis.models.cp_joint import solve_joint
from taccl_py.synthesis.neighbourhood import improve, regroup
from taccl_py.synthesis.search import Search

_FEWEST_RESTARTS, _MOST_RESTARTS, _RESTART_ARCS = 4, 60, 60_000
_JITTER = 0.3
# A schedule this close to the load of its fullest resource is not improved further.
_CLOSE = 0.002
# Arcs up to which the order is a model of its own, and its deterministic time.
_EXACT_ARCS, _WORK = 1_500, 1.0
# Arcs up to which batches are looked for by trying every waiting one at every moment.
_BATCHED_ARCS = 3_000
_ROUNDS = 8


def find_order(search: Search, load_us: float) -> None:
    """Offer orders to a search until its incumbent is close to the load of the fullest resource."""
    quotient, grid, routes = search.quotient, search.grid, search.routes
    arcs = max(1, quotient.num_arcs)
    for i in range(max(_FEWEST_RESTARTS, min(_MOST_RESTARTS, _RESTART_ARCS // arcs))):
        if _enough(search, load_us) and i:
            break
        jitter, seed = (_JITTER if i else 0.0), search.limits.seed + i
        search.offer(urgent_plan(quotient, grid, routes, jitter=jitter, seed=seed))
        if search.joins and arcs <= _BATCHED_ARCS:
            search.offer(efficient_plan(quotient, grid, routes, search.joins, jitter=jitter, seed=seed))
    if search.best is None or _enough(search, load_us):
        return
    if arcs <= _EXACT_ARCS:
        task = search.task(joins=False)
        plan, _ = solve_joint(task, search.limits_for(0.3, _WORK), search.best_plan, search.progress())
        search.offer(plan)
    if search.joins and arcs <= _BATCHED_ARCS and not _enough(search, load_us):
        regroup(search)
        improve(search, _ROUNDS)


def _enough(search: Search, load_us: float) -> bool:
    if search.done:
        return True
    return search.best is not None and search.best.makespan_us <= load_us * (1 + _CLOSE)
