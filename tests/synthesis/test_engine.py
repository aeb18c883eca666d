from dataclasses import replace

import pytest

from taccl_py.errors import InputError
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.catalog import ENGINE_NAMES, load_engine
from taccl_py.synthesis.engine import Events, Proof, Synthesis, unlike
from taccl_py.synthesis.milp import synthesize_milp
from tests.instances import one_way_ring
from tests.synthesis.tasks import search_for


@pytest.mark.parametrize(("bound_us", "gap"), [(33.0, 0.0), (30.0, 0.1), (40.0, 0.0), (0.0, 0.0)])
def test_the_gap_is_the_distance_from_the_bound(bound_us, gap):
    schedule = search_for(one_way_ring()).best
    synthesis = Synthesis(schedule, Bound(bound_us, "by hand"), Proof.FEASIBLE, "none", {})
    assert synthesis.gap == pytest.approx(gap)


def test_events_may_be_ignored():
    events = Events()
    assert (events.stage("greedy"), events.incumbent(1.0), events.bound(1.0)) == (None, None, None)


def test_engines_are_found_by_name():
    assert "milp" in ENGINE_NAMES
    assert load_engine("milp") is synthesize_milp
    with pytest.raises(InputError, match="milp"):
        load_engine("magic")


@pytest.mark.parametrize(
    ("time_us", "proof"),
    [(10.0, Proof.OPTIMAL), (10.000009, Proof.OPTIMAL), (10.00002, Proof.FEASIBLE), (20.0, Proof.FEASIBLE)],
)
def test_a_schedule_at_its_bound_is_optimal_whoever_found_it(time_us, proof):
    assert Proof.of(time_us, Bound(10.0, "by hand")) is proof


def test_a_schedule_that_is_as_fast_with_as_many_messages_is_no_other_one():
    best = search_for(one_way_ring()).best
    later = replace(best, messages=tuple(replace(m, end_us=m.end_us + 1) for m in best.messages))
    image = replace(best, messages=best.messages[::-1])
    assert unlike([best, image, later]) == [best, later]
    assert unlike([]) == []
