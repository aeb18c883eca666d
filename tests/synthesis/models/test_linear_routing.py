from dataclasses import replace

import pytest
from hypothesis import given, settings

from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.greedy import urgent_plan
from taccl_py.synthesis.models.linear_routing import solve_routing
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.plan import lift
from taccl_py.verify.schedule import verify_schedule
from tests.instances import ROUTED, quiet_pulp, relay_between_nodes
from tests.synthesis.drawn import problems
from tests.synthesis.restrictions import breaks_own_first
from tests.synthesis.tasks import search_for

pytestmark = quiet_pulp
ENOUGH = Limits(seconds=30.0)


def route(search, solver="highs", hint=True):
    policy = PolicyTerms.of(search.quotient)
    return solve_routing(search.task(joins=False), policy, solver, ENOUGH, search.best_plan if hint else None)


def makespan_us(search, outcome):
    return outcome.objective / search.grid.units_per_us


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("instance", ROUTED, ids=str)
def test_routes_reach_everybody_and_their_time_is_no_more_than_the_optimum_allows(instance, solver):
    search = search_for(instance)
    arcs, outcome = route(search, solver)
    assert outcome.status is Status.OPTIMAL
    plan = urgent_plan(search.quotient, search.grid, search.routes, arcs=arcs)
    assert verify_schedule(lift(search.quotient, plan)) == ()
    heads = [int(search.quotient.head[arc]) for arc in arcs]
    assert len(set(heads)) == len(heads), "nothing is brought twice"
    if not any(search.grid.alpha):
        assert makespan_us(search, outcome) <= instance.optimum_us * (1 + 1e-6), "order is relaxed"


def test_load_is_counted_on_links_between_nodes():
    search = search_for(relay_between_nodes())
    _, outcome = route(search)
    assert 100.0 * (1 - 1e-6) <= makespan_us(search, outcome) <= 110.0 * (1 + 1e-6)


@settings(max_examples=20)
@given(problems(alphas_us=(0.0,)))
def test_a_routing_is_between_the_latency_and_the_best_greedy_schedule(drawn):
    search = search_for(drawn, symmetric=False)
    arcs, outcome = route(search)
    assert outcome.status is Status.OPTIMAL
    assert makespan_us(search, outcome) <= search.best.makespan_us * (1 + 1e-6)
    earliest = max(
        search.routes.earliest[state] for state in range(search.quotient.num_states) if search.quotient.required[state]
    )
    assert outcome.objective >= earliest * (1 - 1e-6)
    assert urgent_plan(search.quotient, search.grid, search.routes, arcs=arcs) is not None


def test_without_a_hint_the_routing_is_as_good():
    for instance in ROUTED[:4]:
        search = search_for(instance)
        hinted, plain = (route(search, hint=hint)[1] for hint in (True, False))
        assert hinted.objective == pytest.approx(plain.objective, rel=1e-6)


def test_own_first_is_part_of_the_routing():
    instance = relay_between_nodes()
    sketch = replace(instance.sketch, relays={1: (0, 1)}, own_first=True)
    search = search_for(replace(instance, sketch=sketch))
    arcs, outcome = route(search)
    assert outcome.status is Status.OPTIMAL
    plan = urgent_plan(search.quotient, search.grid, search.routes, arcs=arcs)
    assert breaks_own_first(lift(search.quotient, plan), sketch) == []
