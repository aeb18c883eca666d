import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.models.cp_steps import fewest_steps, solve_steps
from taccl_py.synthesis.models.linear_steps import solve_linear_steps
from taccl_py.synthesis.plan import lift, plan_end
from taccl_py.verify.schedule import verify_schedule
from tests.instances import ROUTED, Instance, chain, full, one_way_ring, quiet_pulp, small_messages
from tests.synthesis.tasks import search_for

pytestmark = quiet_pulp
ENOUGH = Limits(seconds=30.0)


def hypercube_like(num_ranks=4):
    """AllGather where a message costs 100 us and a chunk 1: two steps of recursive doubling, 101 + 102, beat one of 3 sends.

    Every pair has a link of its own, so one step of single chunks (101) beats both.
    """
    return Instance("pairs", full(num_ranks, 100.0, 1.0), Collective(Kind.ALLGATHER, num_ranks), 101.0)


def test_the_fewest_steps_are_the_hops_to_the_farthest_rank():
    assert fewest_steps(search_for(one_way_ring()).task(joins=True)) == 3
    assert fewest_steps(search_for(hypercube_like()).task(joins=True)) == 1
    chained = Instance("chain", chain(5), Collective(Kind.BROADCAST, 5), 44.0)
    assert fewest_steps(search_for(chained).task(joins=True)) == 4


@pytest.mark.parametrize("instance", ROUTED, ids=str)
def test_a_plan_in_steps_is_a_valid_schedule_that_takes_no_longer_than_its_steps(instance):
    search = search_for(instance)
    task = search.task(joins=True)
    plan, outcome = solve_steps(task, fewest_steps(task), ENOUGH)
    if outcome.status is Status.INFEASIBLE:
        return  # the incumbent, which bounds the sum of the steps, is shorter than whole steps can be
    assert outcome.status is Status.OPTIMAL
    schedule = lift(search.quotient, plan)
    assert verify_schedule(schedule) == ()
    assert schedule.num_steps <= fewest_steps(task) * max(1, instance.collective.num_chunks)
    latency_us = max(link.latency_us for link in instance.topology.links)
    if not latency_us and not instance.topology.ports:
        assert schedule.makespan_us <= plan_end(plan) / search.grid.units_per_us * (1 + 1e-9)


def test_where_alpha_rules_neighbours_share_a_step():
    search = search_for(small_messages())
    plan, outcome = solve_steps(search.task(joins=True), 3, ENOUGH)
    assert outcome.status is Status.OPTIMAL
    assert lift(search.quotient, plan).makespan_us == pytest.approx(125.0)


def test_too_few_steps_are_infeasible():
    search = search_for(one_way_ring())
    task = search.task(joins=True)
    plan, outcome = solve_steps(task, 2, ENOUGH)
    assert plan is None
    assert outcome.status is Status.INFEASIBLE
    plan, linear = solve_linear_steps(task, 2, "highs", ENOUGH)
    assert plan is None
    assert linear.status is Status.INFEASIBLE


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("instance", ROUTED, ids=str)
def test_the_linear_model_of_steps_agrees(instance, solver):
    search = search_for(instance)
    task = search.task(joins=True)
    steps = fewest_steps(task)
    _, outcome = solve_steps(task, steps, ENOUGH)
    plan, linear = solve_linear_steps(task, steps, solver, ENOUGH)
    if outcome.status is Status.INFEASIBLE:
        return
    assert linear.status is Status.OPTIMAL
    assert linear.objective == pytest.approx(outcome.objective, rel=1e-5)
    assert verify_schedule(lift(search.quotient, plan)) == ()
