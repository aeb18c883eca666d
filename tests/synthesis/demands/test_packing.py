"""Packing of trees for demands, and the bound that its prices give: optima worked out by hand, and programs of all trees."""

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.demand.variable import alltoallv, of_collective, reducescatterv
from taccl_py.errors import Infeasible
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.demands import bound_of_demand, packing, solve_demand
from taccl_py.synthesis.demands.bound import cut_bound
from taccl_py.synthesis.demands.classes import classes_of
from taccl_py.synthesis.demands.packing import CheapTrees, least_price, pack_demand, packed_pieces
from taccl_py.synthesis.demands.plan import plan_of
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, demands, full, is_near, ring, switch
from tests.random_machines import random_machine

MB = 10**6


def machine(costs, ranks, ports=(), uses=None):
    """Links by their ends, with no alpha."""
    links = tuple(Link(a, b, 0.0, beta, 0.0, (uses or {}).get((a, b), ())) for (a, b), beta in sorted(costs.items()))
    return Topology("by hand", "test", (0,) * ranks, ports, links)


def packed(topology, demand):
    return pack_demand(topology, classes_of(demand))


def test_two_paths_carry_in_proportion_to_their_links():
    """0 to 3 over 1 at 10 us/MB and over 2 at 30: 3/4 and 1/4 of 4 MB, 30 us each."""
    costs = {(0, 1): 10.0, (1, 3): 10.0, (0, 2): 30.0, (2, 3): 30.0}
    found = packed(machine(costs, 4), demand_of(4, [{"bytes": 4 * MB, "holds": [0], "wants": [3]}]))
    assert is_near(found.load_us, 30.0)
    assert is_near(found.bound.time_us, 30.0)
    assert sorted(round(tree.part, 9) for tree in found.trees) == [0.25, 0.75]


def test_flows_over_several_hops_fill_links_more_than_any_cut_says():
    """Round a ring of three, each rank wants 1 MB of the next but one: two hops for each, 2 MB over every link, where 1 MB enters each rank."""
    topology = machine({(0, 1): 10.0, (1, 2): 10.0, (2, 0): 10.0}, 3)
    demand = demand_of(3, [{"bytes": MB, "holds": [rank], "wants": [(rank + 2) % 3]} for rank in range(3)])
    assert is_near(packed(topology, demand).bound.time_us, 20.0)
    assert is_near(cut_bound(topology, classes_of(demand)).time_us, 10.0)
    assert is_near(bound_of_demand(topology, demand).time_us, 20.0)
    assert solve_demand(topology, demand, Limits(seconds=0.1, by_work=True)).proof == "optimal"


def test_a_port_that_two_pairs_share():
    """0 to 1 and 2 to 3 over one port of 10 us/MB that lies at none of them."""
    costs, shared = {(0, 1): 5.0, (2, 3): 5.0, (1, 2): 5.0, (3, 0): 5.0}, {(0, 1): (0,), (2, 3): (0,)}
    topology = machine(costs, 4, (Port("bus", 0.0, 10.0),), shared)
    demand = demand_of(4, [{"bytes": MB, "holds": [0], "wants": [1]}, {"bytes": MB, "holds": [2], "wants": [3]}])
    assert is_near(packed(topology, demand).bound.time_us, 20.0)


def test_copies_branch_where_that_is_cheap():
    """Rank 0 feeds 1 over the only link out of it; 1 feeds 2 and 3: one copy leaves, 10 us."""
    costs = {(0, 1): 10.0, (1, 2): 10.0, (1, 3): 10.0}
    found = packed(machine(costs, 4), demand_of(4, [{"bytes": MB, "holds": [0], "wants": [2, 3]}]))
    assert is_near(found.load_us, 10.0)
    assert is_near(found.bound.time_us, 10.0)
    assert len(found.trees) == 1


def test_alphas_count_once_for_each_resource_in_use():
    found = packed(full(2, alpha=3.0, beta=10.0), demand_of(2, [{"bytes": MB, "holds": [0], "wants": [1]}]))
    assert is_near(found.load_us, 10.0)
    assert is_near(found.bound.time_us, 13.0)


def test_sums_meet_on_their_path():
    """Ranks 0 and 1 add over 2 to 3: one partial sum crosses the last link."""
    costs = {(0, 2): 5.0, (1, 2): 5.0, (2, 3): 10.0}
    demand = demand_of(4, [{"bytes": MB, "adds": [0, 1, 2], "wants": [3]}])
    found = packed(machine(costs, 4), demand)
    assert is_near(found.load_us, 10.0)
    assert is_near(found.bound.time_us, 10.0)


def test_nothing_to_move_and_too_much_to_price():
    assert packed(full(3), demand_of(3, [{"bytes": 5, "holds": [0, 1], "wants": [1]}])) is None
    assert packed(full(3), demand_of(3, [{"bytes": 5, "holds": [0], "wants": [1]}])) is not None


def test_large_demands_are_not_packed(monkeypatch):
    monkeypatch.setattr(packing, "PARAMS", packing.PARAMS.__class__(most_packed=5))
    assert packed(full(3), demand_of(3, [{"bytes": 5, "holds": [0], "wants": [1]}])) is None


def test_a_rank_that_nothing_leads_to_is_named():
    with pytest.raises(Infeasible, match="rank 2"):
        bound_of_demand(
            machine({(0, 1): 1.0, (1, 0): 1.0}, 3), demand_of(3, [{"bytes": 4, "holds": [0], "wants": [2]}])
        )


def _every_tree_price(topology, each, lengths):
    """Price of the cheapest set of links that brings a class where it is wanted, over all sets."""
    best = np.inf
    links = topology.links
    for chosen in range(1 << len(links)):
        used = [i for i in range(len(links)) if chosen >> i & 1]
        price = sum(lengths[i] for i in used)
        if price < best and all(_leads(links, used, holders, want) for holders in each.terms for want in each.wants):
            best = price
    return best


def _leads(links, used, holders, want):
    reached = set(holders)
    for _ in links:
        reached |= {links[i].dst for i in used if links[i].src in reached}
    return want in reached


@settings(max_examples=60, deadline=None)
@given(demand=demands(most_ranks=4, most_chunks=2), seed=st.integers(0, 10**6))
def test_ascent_is_below_every_tree_and_cheap_trees_above(demand, seed):
    """On machines of four ranks all sets of links are looked at."""
    topology, rng = ring(demand.num_ranks) if demand.num_ranks == 4 else full(3), random.Random(seed)
    lengths = np.array([float(rng.randrange(0, 9)) for _ in topology.links])
    net = Net.of(topology)
    for each in classes_of(demand):
        least = _every_tree_price(topology, each, lengths)
        assert least_price(net, each, lengths) <= least + 1e-9
        assert CheapTrees(net, lengths).cheap_tree(each)[1] >= least - 1e-9


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.BROADCAST, Kind.ALLTOALL, Kind.GATHER])
@pytest.mark.parametrize("number", [1, 2, 7])
def test_where_all_ranks_take_part_the_bound_is_that_of_the_collective(kind, number):
    """Spanning trees and flows have exact programs of their own."""
    topology = random_machine(number, 6, 8)
    demand = of_collective(Collective(kind, topology.num_ranks), MB)
    own = demand_bound(topology, kind, 0, MB * Collective(kind, topology.num_ranks).chunks_per_size).time_us
    found = packed(topology, demand)
    # Each knows of alphas, of at most 1.5 us here, what the other does not.
    assert found.bound.time_us <= own + 1.5
    assert found.load_us >= found.bound.time_us - 1.5
    assert found.bound.time_us >= (0.9 if kind is Kind.BROADCAST else 0.98) * own


@settings(max_examples=40, deadline=None)
@given(demand=demands(), number=st.integers(0, 200))
@example(demand=reducescatterv([100, 300, 200, 50, 70]), number=3)
def test_packings_are_schedules_and_bounds_hold(demand, number):
    topology = random_machine(number, demand.num_ranks, demand.num_ranks)
    classes = classes_of(demand)
    found = pack_demand(topology, classes)
    if found is None:
        assert not classes
        return
    parts = {number: 0.0 for number in range(len(classes))}
    for tree in found.trees:
        parts[tree.number] += tree.part
    assert all(is_near(part, 1.0, 1e-6) for part in parts.values())
    for count in (1, 3):
        pieces = packed_pieces(topology, demand, classes, found, found.load_us / count)
        schedule = plan_of(topology, demand, pieces).timed()
        assert verify_demand_schedule(schedule, demand) == ()
        assert schedule.makespan_us >= found.bound.time_us * (1 - 1e-9)


def test_uneven_exchanges_on_irregular_machines_come_near_the_flow():
    """Without the flow's trees they were up to ten times as far from bounds that saw cuts alone."""
    for number, gap in ((0, 0.16), (1, 0.09), (2, 0.09), (3, 0.03)):
        topology = random_machine(number)
        ranks = topology.num_ranks
        counts = [[MB * (1 + (source * target) % 5) // ranks for target in range(ranks)] for source in range(ranks)]
        found = solve_demand(topology, alltoallv(counts), Limits(seconds=1.0, by_work=True))
        assert found.gap <= gap, (number, found.gap)


def test_a_switch_is_at_its_bound():
    """Its ports carry as much as cuts say: the flow adds nothing, and one answer keeps one reason."""
    demand = alltoallv([[0, 4 * MB, MB], [MB, 0, MB], [MB, MB, 0]])
    topology = switch(3, alpha=0.0)
    assert bound_of_demand(topology, demand).reason == cut_bound(topology, classes_of(demand)).reason
