"""Order of messages whose paths are fixed."""

from __future__ import annotations

from taccl_py.synthesis.flow.params import PARAMS
from taccl_py.synthesis.greedy import efficient_plan, urgent_plan
from taccl_py.synthesis.models.cp_joint import solve_joint
from taccl_py.synthesis.neighbourhood import improve, regroup
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.search import Search


def order_parts(search: Search, load_us: float) -> None:
    """Offer orders of parts, most of them messages of their own, until one is close to the load of the fullest resource."""
    quotient, grid, routes = search.quotient, search.grid, search.routes
    for i in range(_count(search, PARAMS.most_restarts, PARAMS.restart_arcs)):
        if _enough(search, load_us) and i:
            return
        jitter, seed = (COMMON.jitter if i else 0.0), search.limits.seed + i
        search.offer(urgent_plan(quotient, grid, routes, jitter=jitter, seed=seed))
        if (
            search.joins and quotient.num_arcs <= PARAMS.joined_restart_arcs
        ):  # parts of one path may share messages after all
            search.offer(efficient_plan(quotient, grid, routes, search.joins, jitter=jitter, seed=seed))
    if search.best is not None and quotient.num_arcs <= PARAMS.most_exact_arcs and not _enough(search, load_us):
        task = search.task(joins=False)
        plan, _ = solve_joint(task, search.limits_for(0.3, PARAMS.exact_work), search.best_plan, search.progress())
        search.offer(plan)


def order_joined(search: Search, load_us: float) -> None:
    """Offer orders in which neighbours share messages, until one is close to the load of the fullest resource."""
    quotient, grid, routes = search.quotient, search.grid, search.routes
    for i in range(_count(search, PARAMS.most_joined_restarts, PARAMS.joined_restart_arcs)):
        if _enough(search, load_us) and i:
            return
        jitter, seed = (COMMON.jitter if i else 0.0), search.limits.seed + i
        search.offer(efficient_plan(quotient, grid, routes, search.joins, jitter=jitter, seed=seed))
    if search.best is not None and not _enough(search, load_us):
        regroup(search)
        improve(search, min(PARAMS.most_rounds, PARAMS.round_arcs // max(1, quotient.num_arcs)))


def _count(search: Search, most: int, arcs: int) -> int:
    return max(PARAMS.fewest_restarts, min(most, arcs // max(1, search.quotient.num_arcs)))


def _enough(search: Search, load_us: float) -> bool:
    if search.done:
        return True
    return search.best is not None and search.best.makespan_us <= load_us * (1 + PARAMS.enough_gap)
