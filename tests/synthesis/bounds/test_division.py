"""Which groups of ranks say most about sums, against all groups of small machines."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import never
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.bounds.division import worst_divisions
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.hub import both_directions
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, machine, ring

GB = 1000 * MB


def divisions(topology):
    return [tuple(found.tolist()) for found in worst_divisions(Net.of(topology), OrbitMembers.of_machine(topology))]


def both(one, other, beta_us_per_mb, ports=((), ()), alpha_us=0.0):
    return [
        Link(one, other, alpha_us, beta_us_per_mb, ports=ports[0]),
        Link(other, one, alpha_us, beta_us_per_mb, ports=ports[1]),
    ]


def pairs_in_a_ring(num_pairs):
    """Ranks 2i and 2i + 1 are joined at 1 us per MB, and each pair with the next one at 10."""
    links = [link for i in range(num_pairs) for link in both(2 * i, 2 * i + 1, 1.0)]
    links += [k for i in range(num_pairs) for k in both(2 * i + 1, 2 * (i + 1) % (2 * num_pairs), 10.0)]
    return machine(2 * num_pairs, links)


def partitions(members):
    """All ways to divide some ranks into groups."""
    if not members:
        yield []
        return
    first, *rest = members
    for division in partitions(rest):
        yield [[first], *division]
        for i, group in enumerate(division):
            yield [*division[:i], [first, *group], *division[i + 1 :]]


def time_of(topology, group_of):
    """What sums cost between groups, in us per MB, on a machine without ports."""
    crossing = [k for k in topology.links if group_of[k.src] != group_of[k.dst]]
    return 2 * (len(set(group_of)) - 1) / sum(1 / k.beta_us_per_mb for k in crossing) if crossing else 0.0


def test_between_fast_pairs_everything_is_moved_more_often_than_between_ranks_for_what_links_let_through():
    """Between pairs 2 * 3 transfers over 8 links of 0.1 MB/us; between all ranks it would be 14 over 8.8 MB/us."""
    topology = pairs_in_a_ring(4)
    assert divisions(topology)[0] == (0, 0, 2, 2, 4, 4, 6, 6)
    bound = demand_bound(topology, Kind.ALLREDUCE, 0, MB)
    assert bound.time_us == pytest.approx(6 / 0.8)
    assert bound.reason == "bandwidth: 2(4-1) transfers of everything between 4 groups of ranks, 0-1 one of them"


def test_the_chips_of_an_mi250x_are_such_pairs():
    bound = demand_bound(load_topology("mi250x"), Kind.ALLREDUCE, 0, GB)
    assert "2(8-1) transfers of everything between 8 groups of ranks, 0-1 one of them" in bound.reason


def test_where_all_links_are_alike_ranks_are_the_groups():
    assert divisions(ring(4)) == [(0, 1, 2, 3)]


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_without_ports_no_groups_say_more(seed):
    rng = random.Random(seed)
    num_ranks = rng.randrange(2, 7)
    links = [
        link
        for rank in range(1, num_ranks)
        for link in both(rng.randrange(rank), rank, rng.choice([1.0, 2.0, 5.0, 10.0]))
    ]
    for one, other in ((a, b) for b in range(num_ranks) for a in range(b)):
        if rng.random() < 0.4:
            links += both(one, other, rng.choice([1.0, 2.0, 5.0, 10.0]))
    topology = machine(num_ranks, links)
    tried = 0.0
    for division in partitions(list(range(num_ranks))):
        group_of = [next(i for i, group in enumerate(division) if rank in group) for rank in range(num_ranks)]
        tried = max(tried, time_of(topology, group_of))
    assert max(time_of(topology, group_of) for group_of in divisions(topology)) == pytest.approx(tried)


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_no_trees_that_sums_and_results_share_are_faster(seed):
    """The trees' own program, with a root and directions, is an AllReduce without alphas; here with a port for each rank's links."""
    rng = random.Random(seed)
    num_ranks = rng.randrange(2, 7)
    ports = [Port(f"port {i}", 0.0, rng.choice([1.0, 2.0, 4.0])) for i in range(num_ranks)]
    links = []
    for one, other in ((a, b) for b in range(num_ranks) for a in range(b)):
        if one == other - 1 or rng.random() < 0.4:
            links += both(one, other, rng.choice([1.0, 2.0, 5.0]), ((one,), (one,)) if rng.random() < 0.5 else ((), ()))
    topology = machine(num_ranks, links, ports)
    problem = Problem.build(topology, Collective(Kind.BROADCAST, num_ranks), None, MB)
    load_us = pack_trees(both_directions(CapacityNetwork.of(problem.without_symmetry())), never).load_us
    assert demand_bound(topology, Kind.ALLREDUCE, 0, GB).time_us <= 1000 * load_us * (1 + 1e-6)


def test_links_without_limit_have_no_price():
    assert divisions(machine(2, both(0, 1, 0.0, alpha_us=1.0))) == []
    endless = machine(3, [*both(0, 1, 0.0, alpha_us=1.0), *both(1, 2, 4.0)])
    assert divisions(endless) == [(0, 0, 2)]
    assert np.isfinite(demand_bound(endless, Kind.ALLREDUCE, 0, MB).time_us)
