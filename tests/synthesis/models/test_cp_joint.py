from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.greedy import efficient_plan
from taccl_py.synthesis.models.cp_joint import Focus, solve_joint
from taccl_py.synthesis.plan import lift, on_grid, plan_end
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import ROUTED, Instance, small_messages, two_way_ring
from tests.synthesis.drawn import node_problems, problems
from tests.synthesis.exhaustive import least_time_us
from tests.synthesis.restrictions import breaks_own_first
from tests.synthesis.tasks import search_for

ENOUGH = Limits(seconds=30.0)


@pytest.mark.parametrize("instance", ROUTED, ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_optimum_of_every_instance_is_found(instance, symmetric):
    search = search_for(instance, symmetric)
    plan, outcome = solve_joint(search.task(joins=True), ENOUGH, search.best_plan)
    assert outcome.status is Status.OPTIMAL
    schedule = lift(search.quotient, plan)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(instance.optimum_us)
    assert plan_end(plan) / search.grid.units_per_us == pytest.approx(instance.optimum_us)


def test_without_joins_every_chunk_pays_alpha():
    search = search_for(small_messages())
    plan, outcome = solve_joint(search.task(joins=False), ENOUGH, search.best_plan)
    assert outcome.status is Status.OPTIMAL
    assert lift(search.quotient, plan).makespan_us == pytest.approx(222.0)


@settings(max_examples=30)
@given(problems(alphas_us=(0.0,)))
def test_without_alpha_its_optimum_is_that_of_trying_everything(drawn):
    search = search_for(drawn, symmetric=False)
    best_us = least_time_us(search.quotient.problem, batches=False, most=5_000)
    if best_us is None:
        return
    plan, outcome = solve_joint(search.task(joins=False), ENOUGH, search.best_plan)
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective / search.grid.units_per_us == pytest.approx(best_us)
    assert lift(search.quotient, plan).makespan_us == pytest.approx(best_us)


def test_a_neighbourhood_changes_only_what_is_free():
    torus = Instance("torus", load_topology("torus:3x3"), Collective(Kind.ALLGATHER, 9), 0.0)
    search = search_for(torus, symmetric=False)
    heads = search.quotient.head.tolist()
    free = frozenset(heads[batch.arcs[0]] for batch in search.best_plan[:10])
    task = replace(search.task(joins=True), lower=0)
    plan, _ = solve_joint(task, ENOUGH, search.best_plan, focus=Focus(search.best_plan, free))
    kept_before = {a for batch in search.best_plan for a in batch.arcs if heads[a] not in free}
    kept_after = {a for batch in plan for a in batch.arcs if heads[a] not in free}
    assert kept_after == kept_before
    assert plan_end(plan) <= plan_end(search.best_plan)
    assert verify_schedule(lift(search.quotient, plan)) == ()


def test_a_hint_that_is_optimal_is_kept():
    search = search_for(two_way_ring())
    first, _ = solve_joint(search.task(joins=True), ENOUGH, None)
    again, outcome = solve_joint(search.task(joins=True), ENOUGH, first)
    assert outcome.status is Status.OPTIMAL
    assert plan_end(again) == plan_end(first)


def test_own_chunks_go_first_where_the_sketch_says_so():
    instance = small_messages()
    sketch = replace(instance.sketch, relays={1: (0, 1)}, own_first=True)
    search = search_for(replace(instance, sketch=sketch))
    for joins in (True, False):
        plan, outcome = solve_joint(search.task(joins=joins), ENOUGH, search.best_plan)
        assert outcome.status is Status.OPTIMAL
        assert breaks_own_first(lift(search.quotient, plan), sketch) == []


@settings(max_examples=60, deadline=None)
@given(problems(most_chunks=32) | node_problems(), st.integers(0, 3))
def test_a_plan_is_in_its_own_neighbourhood(drawn, seed):
    """With the times of its messages free it is no slower, also where a port is done with a message before the link is."""
    search = search_for(drawn, symmetric=False)
    plan = efficient_plan(search.quotient, search.grid, search.routes, search.joins, jitter=0.3, seed=seed)
    if plan is None:
        return
    plan = on_grid(search.quotient, search.grid, search.joins, plan)
    end = round(plan_end(plan))
    task = replace(search.task(joins=True), lower=min(search.lower, end), upper=end)
    found, outcome = solve_joint(task, ENOUGH, plan, focus=Focus(plan, frozenset()))
    assert outcome.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert plan_end(found) <= end
    assert verify_schedule(lift(search.quotient, found)) == ()
