from dataclasses import replace

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Policy, Sketch, Strategy, SwitchGroup
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.neighbourhood import serve_policy
from taccl_py.synthesis.plan import OrbitMessage
from taccl_py.topology.model import Link
from taccl_py.verify.schedule import verify_schedule
from tests.instances import Instance, full, machine, two_nodes
from tests.synthesis.restrictions import load_inside_nodes, pairs_inside_nodes
from tests.synthesis.tasks import search_for


def switched(policy, num_ranks=4):
    return Sketch("mine", strategy=Strategy.SWITCH, switches=(SwitchGroup(tuple(range(num_ranks)), Policy(policy)),))


def gathering(topology, sketch, chunks=1):
    instance = Instance("policy", topology, Collective(Kind.ALLGATHER, topology.num_ranks, chunks), 0.0, sketch=sketch)
    return search_for(instance, symmetric=False)


def test_a_sketch_without_policy_wants_nothing():
    for sketch in (None, Sketch("mine"), switched("free")):
        assert not PolicyTerms.of(gathering(full(4), sketch).quotient).active


@pytest.mark.parametrize(("policy", "sign"), [("uc-min", 1), ("uc-max", -1)])
def test_pairs_behind_a_switch_are_counted(policy, sign):
    search = gathering(full(4), switched(policy))
    terms = PolicyTerms.of(search.quotient)
    assert terms.active
    assert sorted(terms.counted.values()) == [sign] * 12
    used = len(pairs_inside_nodes(search.best))
    assert terms.value(search.task(joins=True), search.best_plan) == sign * used


def test_links_between_nodes_and_outside_of_switches_are_not_counted():
    topology = two_nodes(3, {0: (0,)})
    sketch = replace(switched("uc-min"), switches=(SwitchGroup((0, 1), Policy.UC_MIN),))
    terms = PolicyTerms.of(gathering(topology, sketch).quotient)
    assert len(terms.counted) == 2 * 2, "0 <-> 1 in both nodes"


def test_parallel_lanes_follow_the_policy_of_their_own_switch():
    links = [Link(a, b, 1.0, 10.0) for a in range(2) for b in range(2) if a != b for _ in range(2)]
    groups = (SwitchGroup((0, 1), Policy.UC_MIN), SwitchGroup((1, 0), Policy.UC_MAX))
    search = gathering(machine(2, links), Sketch("mine", strategy=Strategy.SWITCH, switches=groups))
    counted = PolicyTerms.of(search.quotient).counted
    lane = {int(search.quotient.link_orbit[a]): search.quotient.problem.topology.lane[k]
            for a, k in enumerate(search.quotient.link.tolist())}  # fmt: skip
    assert {orbit: 1 if lane[orbit] == 0 else -1 for orbit in counted} == counted


def test_the_value_of_a_load_strategy_is_the_busiest_or_the_idlest_link():
    for strategy, extreme, sign in ((Strategy.MINMAX, max, 1), (Strategy.MAXMIN, min, -1)):
        search = gathering(full(3), Sketch("mine", strategy=strategy), chunks=2)
        task, terms = search.task(joins=True), PolicyTerms.of(search.quotient)
        one_chunk = task.grid.alpha[0] + task.grid.beta[0]
        load = extreme(load_inside_nodes(search.best).values())
        assert terms.value(task, search.best_plan) == sign * load * one_chunk
        empty = (OrbitMessage((0,), 0.0, 1.0),)
        assert terms.value(task, empty) == sign * (one_chunk if extreme is max else 0)


@pytest.mark.parametrize("strategy", ["uc-min", "uc-max", "minmax", "maxmin"])
def test_serving_a_policy_costs_no_time_and_never_serves_it_worse(strategy):
    sketch = switched(strategy) if strategy.startswith("uc") else Sketch("mine", strategy=Strategy(strategy))
    search = gathering(full(4, alpha_us=0.0), sketch, chunks=2)
    terms = PolicyTerms.of(search.quotient)
    before, value = search.best, terms.value(search.task(joins=True), search.best_plan)
    serve_policy(search, terms, 8)
    assert search.best.makespan_us <= before.makespan_us * (1 + 1e-9)
    assert terms.value(search.task(joins=True), search.best_plan) <= value
    assert verify_schedule(search.best) == ()


def test_a_policy_is_served_where_there_is_room():
    """AllGather of one node where a chunk through the neighbour (20) costs no more than waiting for the slow link (20)."""
    links = [Link(a, b, 0.0, 10.0 if {a, b} != {0, 2} else 20.0) for a in range(3) for b in range(3) if a != b]
    pairs = {}
    for policy in ("uc-min", "uc-max"):
        instance = Instance("room", machine(3, links), Collective(Kind.ALLGATHER, 3), 20.0, sketch=switched(policy, 3))
        search = search_for(instance, symmetric=False, limits=Limits(seconds=30.0))
        assert search.best.makespan_us == pytest.approx(20.0)
        serve_policy(search, PolicyTerms.of(search.quotient), 12)
        assert search.best.makespan_us == pytest.approx(20.0)
        pairs[policy] = len(pairs_inside_nodes(search.best))
    assert pairs == {"uc-min": 4, "uc-max": 6}
