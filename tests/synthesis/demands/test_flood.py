"""Flooding: rarest pieces first, and sums that two ranks complete for each other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.synthesis.demands.classes import classes_of
from taccl_py.synthesis.demands.flood import can_flood, flooded
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, full, is_near, ring, switch

MB = 10**6


def flood(topology, demand, count=1):
    return flooded(topology, demand, classes_of(demand), count)


def test_two_ranks_exchange_the_parts_of_a_sum_and_tell_a_third():
    """11 us for the exchange, 11 us for one of them to tell rank 2."""
    demand = demand_of(3, [{"bytes": MB, "adds": [0, 1], "wants": [0, 1, 2]}])
    schedule = flood(full(3, alpha=1.0, beta=10.0), demand)
    assert verify_demand_schedule(schedule, demand) == ()
    assert is_near(schedule.makespan_us, 22.0)
    assert [message.reduce for message in schedule.messages] == [True, True, False]


def test_a_broadcast_doubles_who_has_it():
    """Seven others in three steps through a switch."""
    demand = demand_of(8, [{"bytes": MB, "holds": [3], "wants": list(range(8))}])
    schedule = flood(switch(8, alpha=3.0, beta=2.0), demand)
    assert verify_demand_schedule(schedule, demand) == ()
    assert is_near(schedule.makespan_us, 15.0)


def test_where_not_all_want_the_same_it_is_for_others():
    assert (
        can_flood(
            classes_of(
                demand_of(3, [{"bytes": 4, "holds": [0], "wants": [1, 2]}, {"bytes": 4, "holds": [1], "wants": [2]}])
            )
        )
        is False
    )
    assert (
        can_flood(classes_of(demand_of(3, [{"bytes": 4, "holds": [r], "wants": [0, 1, 2]} for r in range(3)]))) is True
    )


def test_a_sum_of_three_parts_that_nobody_gathers_is_given_up():
    demand = demand_of(3, [{"bytes": 4, "adds": [0, 1, 2], "wants": [0, 1, 2]}])
    assert flood(full(3), demand) is None


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), held=st.data())
def test_floods_bring_everything_to_all(sizes, held):
    ranks = held.draw(st.integers(3, 6))
    chunks = [
        {
            "bytes": size,
            "holds": held.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=3, unique=True)),
            "wants": list(range(ranks)),
        }
        for size in sizes
    ]
    demand = demand_of(ranks, chunks)
    for topology in (full(ranks), ring(ranks), switch(ranks)):
        schedule = flood(topology, demand, 2)
        assert schedule is not None
        assert verify_demand_schedule(schedule, demand) == ()
