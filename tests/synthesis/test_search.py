import time

import pytest
from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events
from taccl_py.synthesis.greedy import efficient_plan, urgent_plan
from taccl_py.synthesis.plan import lift, plan_end
from taccl_py.synthesis.problem import Problem
from taccl_py.verify.schedule import verify_schedule
from tests.instances import one_way_ring, small_messages
from tests.random_machines import random_machine
from tests.synthesis.drawn import node_problems
from tests.synthesis.restrictions import breaks_own_first
from tests.synthesis.tasks import empty_search, search_for


class Heard(Events):
    def __init__(self):
        self.stages, self.incumbents, self.bounds = [], [], []

    def stage(self, name):
        self.stages.append(name)

    def incumbent(self, time_us):
        self.incumbents.append(time_us)

    def bound(self, time_us):
        self.bounds.append(time_us)


def begin(instance, limits=None):
    heard = Heard()
    problem = Problem.build(instance.topology, instance.collective, instance.sketch, instance.chunk_bytes)
    return empty_search(problem, limits, heard), heard


def plans(search):
    found = [urgent_plan(search.quotient, search.grid, search.routes)]
    for seed in range(12):
        found.append(efficient_plan(search.quotient, search.grid, search.routes, search.joins, jitter=0.3, seed=seed))
    return [plan for plan in found if plan is not None]


def test_the_better_plan_is_kept_and_reported():
    search, heard = begin(small_messages())
    assert heard.bounds == [search.bound.time_us]
    for plan in plans(search):
        before = search.best
        better = search.offer(plan)
        assert better == (search.best is not before)
        if before is not None and better:
            key = [(round(s.makespan_us, 6), len(s.messages)) for s in (search.best, before)]
            assert key[0] < key[1]
    assert heard.incumbents == sorted(heard.incumbents, reverse=True)
    assert heard.incumbents[-1] == search.best.makespan_us == pytest.approx(125.0)
    assert verify_schedule(search.best) == ()


def test_what_has_gaps_is_justified():
    """AllToAll of 1 MB on a machine whose links differ, as it is dispatched."""
    machine = random_machine(14)
    search = empty_search(Problem.build(machine, Collective(Kind.ALLTOALL, machine.num_ranks, 1), None, 1e6))
    plan = urgent_plan(search.quotient, search.grid, search.routes)
    assert search.offer(plan)
    assert search.best.makespan_us < 0.995 * lift(search.quotient, plan).makespan_us
    assert verify_schedule(search.best) == ()


@settings(max_examples=60)
@given(node_problems())
def test_what_a_sketch_lets_go_first_still_does(drawn):
    search = search_for(drawn)
    assert search.best is None or not breaks_own_first(search.best, drawn.sketch)


def test_nothing_and_the_same_again_are_not_better():
    search, heard = begin(one_way_ring())
    assert not search.offer(None)
    plan = plans(search)[0]
    assert search.offer(plan)
    assert not search.offer(plan)
    assert len(heard.incumbents) == 1


def test_the_incumbents_plan_and_schedule_say_the_same_time():
    search = search_for(small_messages())
    assert plan_end(search.best_plan) / search.grid.units_per_us == pytest.approx(search.best.makespan_us)
    assert search.upper == plan_end(search.best_plan)
    assert search.lower <= search.upper


def test_a_search_ends_at_its_bound():
    search, _ = begin(one_way_ring())
    assert not search.done
    search.offer(plans(search)[0])
    assert search.is_optimal
    assert search.done
    assert not search_for(small_messages()).done


def test_a_search_ends_at_its_deadline_or_when_told():
    search, _ = begin(small_messages())
    search.deadline = Limits(seconds=0).deadline()
    assert search.done
    search, _ = begin(small_messages(), Limits(seconds=50.0))
    search.limits.stop.set()
    assert search.done


def test_a_stage_gets_a_share_of_the_time_left():
    search, _ = begin(small_messages(), Limits(seconds=10.0, seed=4))
    limits = search.limits_for(0.5, 0.25)
    assert 4.0 < limits.seconds <= 5.0
    assert (limits.work, limits.seed) == (0.25, 4)


def test_stages_are_announced_and_timed_even_when_they_fail():
    search, heard = begin(one_way_ring())
    with search.stage("greedy"):
        time.sleep(0.01)
    with pytest.raises(ValueError, match="broken"), search.stage("routing"):
        raise ValueError("broken")
    assert heard.stages == ["greedy", "routing"]
    assert search.stage_seconds["greedy"] >= 0.01
    assert "routing" in search.stage_seconds


def test_a_task_knows_what_is_known():
    search = search_for(small_messages())
    assert search.task(joins=False).predecessor == {}
    task = search.task(joins=True)
    assert task.predecessor == search.joins != {}
    assert task.lower <= task.upper == search.upper


def test_without_alpha_nothing_is_joined():
    search, _ = begin(one_way_ring())
    assert search.joins
    flat, _ = begin(type(one_way_ring())("flat", *_flat_ring()))
    assert flat.joins == {}


def _flat_ring():
    from taccl_py.collective import Collective, Kind
    from tests.instances import ring

    return ring(4, alpha_us=0.0), Collective(Kind.ALLGATHER, 4), 30.0


def test_every_state_has_a_representative():
    search = search_for(one_way_ring())
    links = search.quotient.problem.topology.links
    for arc in range(search.quotient.num_arcs):
        state = int(search.quotient.head[arc])
        brought = {(chunk, links[link].dst) for chunk, link in search.quotient.members(arc)}
        assert (search.chunk_of[state], search.rank_of[state]) in brought
