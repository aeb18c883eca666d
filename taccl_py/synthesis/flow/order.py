"""Order of messages whose paths are fixed."""

from __future__ import annotations

from taccl_py.synthesis.greedy import efficient_plan, urgent_plan
from taccl_py.synthesis.models.cp_joint import solve_joint
from taccl_py.synthesis.neighbourhood import improve, regroup
from taccl_py.synthesis.search import Search

_JITTER = 0.3
# A schedule this close to the load of its fullest resource is not improved further.
_CLOSE = 0.002
# Restarts: fewer the more arcs there are.
_FEWEST_RESTARTS, _MOST_RESTARTS, _RESTART_ARCS = 2, 40, 60_000
# Arcs up to which the order is a model of its own, and its deterministic time.
_EXACT_ARCS, _WORK = 1_500, 1.0
# The same for batches, where all that waits is looked at at every moment; and the rounds of improvement.
_BATCH_RESTARTS, _BATCH_ARCS = 12, 4_000
_ROUNDS, _ROUND_ARCS = 6, 1_000


def order_parts(search: Search, load_us: float) -> None:
    """Offer orders of parts, most of them messages of their own, until one is close to the load of the fullest resource."""
    quotient, grid, routes = search.quotient, search.grid, search.routes
    for i in range(_count(search, _MOST_RESTARTS, _RESTART_ARCS)):
        if _enough(search, load_us) and i:
            return
        jitter, seed = (_JITTER if i else 0.0), search.limits.seed + i
        search.offer(urgent_plan(quotient, grid, routes, jitter=jitter, seed=seed))
        if search.joins and quotient.num_arcs <= _BATCH_ARCS:  # parts of one path may share messages after all
            search.offer(efficient_plan(quotient, grid, routes, search.joins, jitter=jitter, seed=seed))
    if search.best is not None and quotient.num_arcs <= _EXACT_ARCS and not _enough(search, load_us):
        task = search.task(joins=False)
        plan, _ = solve_joint(task, search.limits_for(0.3, _WORK), search.best_plan, search.progress())
        search.offer(plan)


def order_batches(search: Search, load_us: float) -> None:
    """Offer orders in which neighbours share messages, until one is close to the load of the fullest resource."""
    quotient, grid, routes = search.quotient, search.grid, search.routes
    for i in range(_count(search, _BATCH_RESTARTS, _BATCH_ARCS)):
        if _enough(search, load_us) and i:
            return
        jitter, seed = (_JITTER if i else 0.0), search.limits.seed + i
        search.offer(efficient_plan(quotient, grid, routes, search.joins, jitter=jitter, seed=seed))
    if search.best is not None and not _enough(search, load_us):
        regroup(search)
        improve(search, min(_ROUNDS, _ROUND_ARCS // max(1, quotient.num_arcs)))


def _count(search: Search, most: int, arcs: int) -> int:
    return max(_FEWEST_RESTARTS, min(most, arcs // max(1, search.quotient.num_arcs)))


def _enough(search: Search, load_us: float) -> bool:
    if search.done:
        return True
    return search.best is not None and search.best.makespan_us <= load_us * (1 + _CLOSE)
