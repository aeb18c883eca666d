"""AllToAllv between nodes: Birkhoff's matchings, and the gap on H100 nodes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.demand.counts import zipf_counts
from taccl_py.demand.variable import alltoallv
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from taccl_py.synthesis.demands.balance import Lanes, balanced_plans
from taccl_py.synthesis.demands.birkhoff import birkhoff
from taccl_py.synthesis.demands.classes import classes_of
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import full, hosts


def test_matchings_of_a_small_matrix():
    """Rows and columns sum to at most 3: three of A to B and of B to A cross at once, which is all that there is."""
    assert [(m.duration, m.pairs) for m in birkhoff([[0, 3], [3, 0]])] == [(3, ((0, 1), (1, 0)))]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(2, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_matchings_add_up_in_the_time_of_the_largest_sum(rows):
    found = birkhoff(rows)
    size = range(len(rows))
    sums = [[0.0] * len(rows) for _ in rows]
    for matching in found:
        assert len({a for a, _ in matching.pairs}) == len({b for _, b in matching.pairs}) == len(matching.pairs)
        for a, b in matching.pairs:
            sums[a][b] += matching.duration
    assert all(abs(sums[a][b] - rows[a][b]) < 1e-6 for a in size for b in size)
    largest = max([sum(row) for row in rows] + [sum(column) for column in zip(*rows, strict=True)])
    assert sum(matching.duration for matching in found) <= largest + 1e-6


def test_lanes_are_nics():
    lanes = Lanes.of(load_machine("ndv5", "", 2).topology)
    assert lanes is not None
    assert lanes.senders[1] == tuple((rank,) for rank in range(8, 16))
    assert Lanes.of(full(4)) is None
    shared = Lanes.of(hosts(2))
    assert shared is not None
    assert shared.senders == (((0, 1, 2, 3),), ((4, 5, 6, 7),))


def test_what_is_not_from_one_to_one_is_left_to_trees():
    topology = hosts(2)
    demand = alltoallv([[1] * 8] * 8)
    assert list(balanced_plans(topology, demand, classes_of(demand)))
    assert not list(balanced_plans(full(8), demand, classes_of(demand)))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_skewed_alltoallv_is_near_its_bound(nodes, exponent):
    topology = load_machine("ndv5", "", nodes).topology
    demand = alltoallv(zipf_counts(8 * nodes, 256 * 10**6, exponent, seed=1))
    found = solve_demand(topology, demand, Limits(seconds=0.5, by_work=True))
    assert verify_demand_schedule(found.schedule, demand) == ()
    assert found.schedule.makespan_us <= 1.05 * found.bound.time_us


def test_a_pair_of_nodes_with_next_to_nothing_is_served_last():
    """One element from node 0 to node 2, beside gigabytes: too little for a matching."""
    counts = [[0] * 24 for _ in range(24)]
    counts[0][8], counts[8][0], counts[0][16] = 2 * 10**10, 2 * 10**10, 1
    machine = load_machine("ndv4", "", 3).topology
    demand = alltoallv(counts, "uint8")
    found = solve_demand(machine, demand, Limits(seconds=1.0, by_work=True))
    assert verify_demand_schedule(found.schedule, demand) == ()
