"""AllToAllv between nodes: Birkhoff's matchings, and the gap on H100 nodes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.demand.counts import zipf_counts
from taccl_py.demand.variable import alltoallv
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import families, solve_demand
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
    for is_ordered in (True, False):
        assert list(balanced_plans(topology, demand, classes_of(demand), is_ordered=is_ordered))
        assert not list(balanced_plans(full(8), demand, classes_of(demand), is_ordered=is_ordered))


def even_lanes(count, alpha_us):
    """NICs of 10 us per MB on three nodes."""
    return Lanes(((),) * 3, ((),) * 3, (10.0,) * count, alpha_us)


def test_pairs_of_nodes_take_few_lanes_where_alphas_count():
    """Three nodes of two lanes, 1 MB a pair: two messages of 0.5 MB on each lane, or one of 1 MB, which is passed on twice inside."""
    sizes = {(a, b): 10**6 for a in range(3) for b in range(3) if a != b}
    assert even_lanes(2, 0.0).rotation(sizes, 3, 0.0) == (2, 10.0)
    assert even_lanes(2, 0.0).rotation(sizes, 3, 1.0) == (2, 10.5)
    assert even_lanes(2, 3.0).rotation(sizes, 3, 1.0) == (1, 15.0)
    assert even_lanes(2, 3.0).rotation(sizes, 3, 2.0) == (2, 17.0)
    assert even_lanes(2, 3.0).fullest_us(sizes) == 16.0
    assert Lanes(((),) * 3, ((),) * 3, (10.0, 20.0), 0.0).rotation(sizes, 3, 0.0) is None


def test_a_rotation_waits_for_the_slower_of_two_nodes():
    """One lane: 0 to 1 takes 30 us, all else 10; so 0 to 2 and 2 to 1, which come next, begin at 30."""
    sizes = {(0, 1): 3 * 10**6, (1, 2): 10**6, (2, 0): 10**6, (0, 2): 10**6, (2, 1): 10**6, (1, 0): 10**6}
    assert even_lanes(1, 0.0).rotation(sizes, 3, 0.0) == (1, 40.0)
    assert even_lanes(1, 0.0).fullest_us(sizes) == 40.0


def test_lanes_of_pairs_take_turns():
    lanes = even_lanes(4, 0.0)
    for count in (1, 2, 4):
        taken = [lane for b in range(1, 5) for lane in lanes.taken((0, b), count, 5)]
        assert sorted(taken) == sorted([*range(4)] * count)
    assert [list(lanes.taken((1, b), 2, 4)) for b in (2, 3, 0)] == [[0, 1], [2, 3], [0, 1, 2, 3]]


@pytest.mark.slow
def test_a_large_nearly_even_exchange_is_near_its_bound():
    """24 nodes of 8, 64 KiB a pair, 1 % of them twice: alphas of all NICs' messages are 11 % of the bound where each pair of nodes takes them all."""
    topology, twice = load_machine("ndv4", "", 24).topology, random.Random(0)
    ranks = range(topology.num_ranks)
    demand = alltoallv([[(1 + (twice.random() < 0.01)) * 65536 * (s != d) for d in ranks] for s in ranks])
    found = solve_demand(topology, demand, Limits(seconds=5.0, by_work=True))
    assert found.schedule.origin.found_by == "balance"
    assert found.schedule.makespan_us <= 1.1 * found.bound.time_us
    assert verify_demand_schedule(found.schedule, demand) == ()


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "exponent"), [(2, 1.0), (4, 0.0), (4, 1.0), (8, 0.5)])
def test_skewed_alltoallv_is_near_its_bound(nodes, exponent):
    topology = load_machine("ndv5", "", nodes).topology
    demand = alltoallv(zipf_counts(8 * nodes, 256 * 10**6, exponent, seed=1))
    found = solve_demand(topology, demand, Limits(seconds=0.5, by_work=True))
    assert verify_demand_schedule(found.schedule, demand) == ()
    assert found.schedule.makespan_us <= 1.05 * found.bound.time_us


def test_trees_are_not_looked_for_where_lanes_are_near_the_bound(monkeypatch):
    def refuse(*_arguments):
        pytest.fail("trees were looked for")

    monkeypatch.setattr(families, "route_pieces", refuse)
    topology = load_machine("ndv4", "", 2).topology
    demand = alltoallv(zipf_counts(16, 256 * 10**6, 0.5, seed=1))
    answer = solve_demand(topology, demand, Limits())
    assert 0.02 < answer.gap < 0.1  # farther than where the search of anything ends


def test_a_pair_of_nodes_with_next_to_nothing_is_served_last():
    """One element from node 0 to node 2, beside gigabytes: too little for a matching."""
    counts = [[0] * 24 for _ in range(24)]
    counts[0][8], counts[8][0], counts[0][16] = 2 * 10**10, 2 * 10**10, 1
    machine = load_machine("ndv4", "", 3).topology
    demand = alltoallv(counts, "uint8")
    found = solve_demand(machine, demand, Limits(seconds=1.0, by_work=True))
    assert verify_demand_schedule(found.schedule, demand) == ()
