"""Cuts and divisions together over shared ports: hand-worked machines, and all trees and paths of small ones."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.solvers.limits import never
from taccl_py.synthesis.bounds import DemandBounds, demand_bound, loads
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.loads import copy_loads, sum_loads
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, machine
from tests.random_machines import random_machine
from tests.synthesis.bounds.packings import best_paths_us, best_sums_us, best_trees_us
from tests.synthesis.drawn import draw_machine

# What rounding of prices may take from a bound.
NEAR = 1e-6
GB = 1000 * MB


def machine_of(seed, most_ranks=5):
    rng = random.Random(seed)
    return draw_machine(rng, rng.randrange(3, most_ranks + 1))


def alone(topology):
    """No symmetry."""
    return OrbitMembers.of_images(topology, [])


def copied_us(topology, kind, root=0):
    """Bandwidth of a collective in us for each megabyte of size, by the program alone."""
    ranks = topology.num_ranks
    from_root = kind in (Kind.BROADCAST, Kind.REDUCE)
    to_one = kind in (Kind.GATHER, Kind.SCATTER)
    net = Net.of(topology)
    net = net.reversed() if kind in (Kind.REDUCE, Kind.REDUCESCATTER, Kind.SCATTER) else net
    supply = (np.arange(ranks) == root).astype(float) if from_root else np.full(ranks, 1 / ranks)
    sinks = [root] if to_one else [rank for rank in range(ranks) if not (from_root and rank == root)]
    return copy_loads(net, alone(topology), supply, sinks).amount_us


def three_behind_one_port():
    """Rank 0 sends to each of 1, 2 and 3 over one port of 10 us per MB; no rank sends on, but 1, 2 and 3 answer at 1 us per MB."""
    out = [Link(0, rank, 0.0, 1.0, ports=(0,)) for rank in (1, 2, 3)]
    return machine(4, [*out, *(Link(rank, 0, 0.0, 1.0) for rank in (1, 2, 3))], [Port("out", 0.0, 10.0)])


def test_a_port_carries_what_every_set_of_ranks_behind_it_must_get():
    """Each cut alone lets a Broadcast through in 10 us per MB; the port sends it three times."""
    topology = three_behind_one_port()
    assert copied_us(topology, Kind.BROADCAST) == pytest.approx(30, rel=NEAR)
    found = demand_bound(topology, Kind.BROADCAST, 0, GB)
    assert found.time_us == pytest.approx(30 * 1000, rel=NEAR)
    assert (
        found.reason
        == "bandwidth: 100 % of the data through rank 1's ports in, and 2 more cuts that share links and ports"
    )


def test_of_an_allgather_every_leaf_lacks_what_the_others_have():
    """Over the port go three quarters of the data to each of three ranks."""
    assert copied_us(three_behind_one_port(), Kind.ALLGATHER) == pytest.approx(3 * 0.75 * 10, rel=NEAR)
    assert copied_us(three_behind_one_port(), Kind.SCATTER) == pytest.approx(0.75 * 10, rel=NEAR)
    assert copied_us(three_behind_one_port(), Kind.GATHER) == pytest.approx(0.25, rel=NEAR)


def test_cuts_that_share_a_port_are_weighed_against_each_other():
    """0 -> 1 -> 2 -> 0 at 1 us per MB; 0 -> 1 and 1 -> 2 share a port of 4, which a Broadcast from 0 passes twice."""
    ring = [Link(a, b, 0.0, 1.0, ports=(0,) if a < b else ()) for a, b in ((0, 1), (1, 2), (2, 0))]
    topology = machine(3, ring, [Port("shared", 0.0, 4.0)])
    assert copied_us(topology, Kind.BROADCAST) == pytest.approx(8, rel=NEAR)
    # With a way around it at 4 us per MB, half of rank 2's data takes that: 4 * (1 + 1/2) would be 6, but the port of 4 need
    # only carry 1 + 1 - x while x goes over the link in 4 x: 4 (2 - x) = 4 x at x = 1.
    wider = machine(3, [*ring, Link(0, 2, 0.0, 4.0)], [Port("shared", 0.0, 4.0)])
    assert copied_us(wider, Kind.BROADCAST) == pytest.approx(4, rel=NEAR)


def test_sums_pass_a_shared_port_for_cuts_and_divisions_at_once():
    """A line 0 - 1 - 2 whose links out of the middle share a port of 10: a sum leaves the middle to either side."""
    links = [Link(0, 1, 0.0, 1.0), Link(2, 1, 0.0, 1.0), *(Link(1, end, 0.0, 1.0, ports=(0,)) for end in (0, 2))]
    topology = machine(3, links, [Port("out", 0.0, 10.0)])
    found = sum_loads(Net.of(topology), alone(topology), [])
    assert found.amount_us == pytest.approx(20, rel=NEAR)
    assert demand_bound(topology, Kind.ALLREDUCE, 0, GB).time_us == pytest.approx(20_000, rel=NEAR)


def test_the_weights_are_a_proof_by_themselves():
    """Weighted by them, every tree of a Broadcast loads links and ports at least as much as the bound says."""
    for seed in range(12):
        topology = machine_of(seed)
        net = Net.of(topology)
        supply = (np.arange(net.num_ranks) == 0).astype(float)
        found = copy_loads(net, alone(topology), supply, list(range(1, net.num_ranks)))
        network = CapacityNetwork.of(Problem.build(topology, Collective(Kind.BROADCAST, net.num_ranks, 1), None, MB))
        packing = pack_trees(network, never)
        assert found.weights.sum() == pytest.approx(1)
        for tree in packing.known:
            carried = np.zeros(net.num_links)
            carried[tree.used()] = 1
            assert found.weights @ (net.sum_over_resources(carried) * net.beta_us_per_mb) >= found.amount_us * (
                1 - 1e-12
            )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_broadcast_and_allgather_are_the_best_of_all_trees(seed):
    topology = machine_of(seed)
    ranks = range(topology.num_ranks)
    assert copied_us(topology, Kind.BROADCAST, 1) == pytest.approx(best_trees_us(topology, [1]), rel=NEAR)
    assert copied_us(topology, Kind.ALLGATHER) == pytest.approx(best_trees_us(topology, ranks), rel=NEAR)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6))
def test_reduce_and_reducescatter_are_those_of_the_machine_turned_around(seed):
    topology = machine_of(seed)
    back = topology.reversed()
    assert copied_us(topology, Kind.REDUCE, 1) == pytest.approx(best_trees_us(back, [1]), rel=NEAR)
    assert copied_us(topology, Kind.REDUCESCATTER) == pytest.approx(
        best_trees_us(back, range(back.num_ranks)), rel=NEAR
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_gather_and_scatter_are_the_best_of_all_paths(seed):
    topology = machine_of(seed)
    assert copied_us(topology, Kind.GATHER, 1) == pytest.approx(best_paths_us(topology, 1), rel=NEAR)
    assert copied_us(topology, Kind.SCATTER, 1) == pytest.approx(best_paths_us(topology.reversed(), 1), rel=NEAR)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_no_allreduce_of_trees_is_below_cuts_and_divisions(seed):
    topology = machine_of(seed, most_ranks=4)
    found = sum_loads(Net.of(topology), alone(topology), [])
    assert found.amount_us <= best_sums_us(topology) * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_all_cuts_together_say_no_less_than_the_worst_one(seed):
    topology = machine_of(seed, most_ranks=6)
    net, ranks = Net.of(topology), topology.num_ranks
    worst = CutFinder(net).worst(np.full(ranks, 1 / ranks), list(range(ranks)))
    if worst is not None:
        cut_us = worst.supply / float((1 / net.beta_us_per_mb[worst.resources]).sum())
        assert copied_us(topology, Kind.ALLGATHER) >= cut_us * (1 - NEAR)


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from(list(Kind)))
def test_bounds_grow_with_the_size_and_never_fall_below_latency(seed, kind):
    topology = machine_of(seed, most_ranks=6)
    bounds = DemandBounds.of(topology, kind, 1 if kind in ROOTED else 0)
    times = [bounds.at(float(size)).time_us for size in (1, 1 << 12, 1 << 26)]
    assert times[0] >= bounds.latency.time_us
    assert all(one <= other for one, other in pairwise(times))


@pytest.mark.parametrize("name", ["ndv4-x2", "dgx1", "switch:8", "ndv2-x2"])
def test_symmetry_changes_no_bound(name):
    topology = load_topology(name)
    net, ranks = Net.of(topology), topology.num_ranks
    orbits = OrbitMembers.of_machine(topology)
    supply = np.full(ranks, 1 / ranks)
    whole = copy_loads(net, alone(topology), supply, list(range(ranks)))
    folded = copy_loads(net, orbits, supply, orbits.ranks())
    assert folded.amount_us == pytest.approx(whole.amount_us, rel=NEAR)
    assert sum_loads(net, orbits, []).amount_us == pytest.approx(
        sum_loads(net, alone(topology), []).amount_us, rel=NEAR
    )


def test_a_machine_that_is_too_large_keeps_its_single_cuts(monkeypatch):
    monkeypatch.setattr(loads, "_MOST_COLUMNS", 3)
    topology = three_behind_one_port()
    assert demand_bound(topology, Kind.BROADCAST, 0, GB).time_us == pytest.approx(10_000, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.BROADCAST])
def test_on_random_machines_the_bound_is_the_optimum_of_packing_trees(kind):
    """Machines of 6 to 24 ranks; the trees are found by column generation, which shares nothing with rows of cuts."""
    for number in range(25):
        topology = random_machine(number)
        ranks = topology.num_ranks
        problem = Problem.build(topology, Collective(kind, ranks, 1), None, MB)
        packing = pack_trees(CapacityNetwork.of(problem), never)
        parts = ranks if kind is Kind.ALLGATHER else 1
        size_mb = (64 << 20) / MB
        found = DemandBounds.of(topology, kind).bandwidth(64 << 20)
        least_us = packing.load_us / parts * size_mb
        assert packing.bound_us == pytest.approx(packing.load_us, rel=NEAR)
        # Alpha, latency and the path from the root come on top of the load, once.
        assert least_us * (1 - NEAR) <= found.time_us <= least_us + 20.0, number


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE, Kind.BROADCAST])
def test_data_that_takes_no_time_where_it_must_pass_is_no_bound(kind):
    """Ranks 0 and 1 reach each other in no time but for alpha; only a third link, which nobody needs, takes time for data."""
    links = [Link(0, 1, 1.0, 0.0), Link(1, 0, 1.0, 0.0), Link(0, 1, 1.0, 5.0, ports=(0,))]
    topology = machine(2, links, [Port("idle", 0.0, 5.0)])
    assert DemandBounds.of(topology, kind, 0).at(MB).time_us <= 2.0
