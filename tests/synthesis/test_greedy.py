import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Sketch
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import lower_bound
from taccl_py.synthesis.engine import Events
from taccl_py.synthesis.greedy import _UrgentRun, efficient_plan, urgent_plan
from taccl_py.synthesis.plan import lift
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.search import Search
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, ROUTED, one_way_ring, small_messages, two_nodes
from tests.synthesis.drawn import node_problems, problems
from tests.synthesis.restrictions import breaks_own_first


def search_of(drawn, symmetric=True):
    problem = Problem.build(drawn.topology, drawn.collective, drawn.sketch, drawn.chunk_bytes)
    problem = problem if symmetric else problem.without_symmetry()
    return Search.of(Quotient.of(problem), lower_bound(problem), Limits(), Limits(seconds=60).deadline(), Events())


def urgent(search, **how):
    return urgent_plan(search.quotient, search.grid, search.routes, **how)


def efficient(search, **how):
    return efficient_plan(search.quotient, search.grid, search.routes, search.joins, **how)


RULES = {"urgent": urgent, "efficient": efficient}
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@rules
@pytest.mark.parametrize("instance", ROUTED, ids=str)
def test_a_greedy_plan_is_a_valid_schedule_and_no_better_than_the_optimum(rule, instance):
    search = search_of(instance)
    schedule = lift(search.quotient, rule(search))
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us >= instance.optimum_us * (1 - 1e-9)


def test_on_a_ring_greed_is_optimal():
    instance = one_way_ring()
    search = search_of(instance)
    assert lift(search.quotient, urgent(search)).makespan_us == instance.optimum_us


def test_where_alpha_rules_the_efficient_rule_lets_neighbours_travel_together():
    instance = small_messages()
    search = search_of(instance)
    alone = lift(search.quotient, urgent(search))
    assert all(len(message.chunks) == 1 for message in alone.messages)
    plans = [efficient(search, jitter=0.3 if seed else 0.0, seed=seed) for seed in range(20)]
    best = min((lift(search.quotient, plan) for plan in plans if plan), key=lambda schedule: schedule.makespan_us)
    assert max(len(message.chunks) for message in best.messages) == 2
    assert best.makespan_us < 0.7 * alone.makespan_us


@settings(max_examples=80)
@given(problems(most_chunks=32) | node_problems(), st.sampled_from(list(RULES.values())), st.integers(0, 5))
def test_greedy_plans_of_random_problems_are_valid_schedules_above_the_bound(drawn, rule, seed):
    search = search_of(drawn)
    plan = rule(search, jitter=0.3 if seed else 0.0, seed=seed)
    if plan is None:
        search = search_of(drawn, symmetric=False)
        plan = rule(search, jitter=0.3 if seed else 0.0, seed=seed)
    if plan is None:
        return
    schedule = lift(search.quotient, plan)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us >= search.bound.time_us * (1 - 1e-9)
    permitted = search.quotient.problem.permitted
    assert all(permitted[chunk, message.link] for message in schedule.messages for chunk in message.chunks)
    assert not breaks_own_first(schedule, drawn.sketch)


@settings(max_examples=60)
@given(problems(most_chunks=32), st.integers(0, 5))
def test_where_there_is_one_path_to_every_state_it_is_dispatched_at_the_times_at_which_each_would_be_found_free(
    drawn, seed
):
    search = search_of(drawn, symmetric=False)
    chosen = {arc for message in urgent(search) for arc in message.arcs}

    def run(arcs):
        jitter = 0.3 if seed else 0.0
        return _UrgentRun(search.quotient, search.grid, search.routes, arcs, jitter, random.Random(seed))

    if run(chosen).has_choice:
        return
    dispatched = run(chosen).in_order()
    needed = {arc for message in dispatched for arc in message.arcs}
    looked_for = run(needed).plan()
    assert sorted(dispatched, key=lambda message: message.arcs) == sorted(looked_for, key=lambda message: message.arcs)
    assert needed <= chosen


@settings(max_examples=80)
@given(problems(most_chunks=32) | node_problems(), st.integers(0, 5))
def test_the_urgent_rule_serves_all_that_waits_in_order_of_priority(drawn, seed):
    """At every event, whatever waits goes in order if its link and ports are free; here all of it is looked at."""
    search = search_of(drawn)

    def run():
        jitter = 0.3 if seed else 0.0
        return _UrgentRun(search.quotient, search.grid, search.routes, None, jitter, random.Random(seed))

    slow, waiting = run(), set()
    while slow.wanted and slow.events:
        now = slow.next_moment()
        for state in slow.arrived(now):
            waiting.update(slow.out[state])
        for arc in sorted(waiting, key=slow.priority.__getitem__):
            before = [own for own in slow.after.get(arc, ()) if own in waiting and not slow.entered[slow.heads[own]]]
            if not before and not slow.entered[slow.heads[arc]] and slow.is_free(arc, now):
                slow.start((arc,), now)
            if slow.entered[slow.heads[arc]]:
                waiting.discard(arc)
    assert run().plan() == (None if slow.wanted else tuple(slow.messages))


def test_arcs_that_do_not_begin_where_data_is_lead_to_no_plan():
    """Of the arcs of a chunk round a ring the first one is missing."""
    search = search_of(one_way_ring(), symmetric=False)
    plan = urgent(search)
    chunk_of = search.chunk_of
    of_one = [m.arcs[0] for m in plan if chunk_of[int(search.quotient.head[m.arcs[0]])] == 0]
    rest = {message.arcs[0] for message in plan} - set(of_one)
    assert urgent(search, arcs=rest | set(of_one)) is not None
    assert urgent(search, arcs=rest | set(of_one[1:])) is None


@settings(max_examples=40)
@given(problems(most_chunks=32))
def test_the_urgent_rule_always_finds_a_schedule_where_nothing_is_held_back(drawn):
    assert urgent(search_of(drawn, symmetric=False)) is not None


@rules
def test_the_same_seed_gives_the_same_plan_and_another_seed_another(rule):
    topology = load_topology("torus:3x3")
    search = search_of(
        replace(one_way_ring(), topology=topology, collective=Collective(Kind.ALLGATHER, 9, 2)), symmetric=False
    )
    plans = [rule(search, jitter=0.3, seed=seed) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert rule(search) == rule(search, seed=5), "without jitter there is nothing random"


def test_only_the_given_arcs_are_used():
    search = search_of(replace(one_way_ring(), topology=load_topology("full:4")), symmetric=False)
    q = search.quotient
    ring = {
        arc for arc in range(q.num_arcs)
        for _, k in q.members(arc)
        if (q.problem.topology.links[k].src + 1) % 4 == q.problem.topology.links[k].dst
    }  # fmt: skip
    plan = urgent(search, arcs=ring)
    assert {arc for batch in plan for arc in batch.arcs} <= ring
    assert lift(q, plan).num_steps == 3
    rng = random.Random(0)
    too_few = rng.sample(sorted(ring), len(ring) // 2)
    assert urgent(search, arcs=too_few) is None


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL])
@pytest.mark.parametrize("sender", [0, 1])
def test_own_chunks_leave_a_node_before_relayed_ones(kind, sender):
    topology = two_nodes(2, {sender: (0,)}, inside=(1.0, 1.0), between=(10.0, 5.0))
    collective = Collective(kind, 4)
    sketch = Sketch("mine", connections={sender: (0,)}, relays={sender: (0, 1)}, own_first=True)
    problem = Problem.build(topology, collective, sketch, MB)
    search = Search.of(Quotient.of(problem), lower_bound(problem), Limits(), Limits(seconds=60).deadline(), Events())
    found = 0
    for seed in range(10):
        for rule in RULES.values():
            plan = rule(search, jitter=0.3 if seed else 0.0, seed=seed)
            if plan is not None:
                found += 1
                assert not breaks_own_first(lift(search.quotient, plan), sketch)
    assert found
