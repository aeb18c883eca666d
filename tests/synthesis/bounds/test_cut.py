"""The worst cut, against all cuts of small machines."""

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.net import Net
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import machine
from tests.synthesis.drawn import draw_machine


def worst_us(topology, supply, sinks):
    net = Net.of(topology)
    cut = CutFinder(net).worst(np.array(supply, dtype=float), sinks)
    return cut.supply / float((1 / net.beta_us_per_mb[cut.resources]).sum())


def cheapest_rate(topology, links):
    """Least total rate of resources of which each link uses one, by trying all choices."""
    resources = sorted({r for link in links for r in topology.resources_of[link]})
    best = float("inf")
    for size in range(len(resources) + 1):
        for chosen in combinations(resources, size):
            if all(set(topology.resources_of[link]) & set(chosen) for link in links):
                best = min(best, sum(1 / topology.resource_cost[r][1] for r in chosen))
    return best


def worst_by_trying(topology, supply, sinks):
    worst = 0.0
    for mask in range(1, 1 << topology.num_ranks):
        near = [rank for rank in range(topology.num_ranks) if mask >> rank & 1]
        if set(sinks) <= set(near):
            continue
        crossing = [i for i, k in enumerate(topology.links) if k.src in near and k.dst not in near]
        worst = max(worst, sum(supply[rank] for rank in near) / cheapest_rate(topology, crossing))
    return worst


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.booleans())
def test_no_cut_is_worse_and_without_shared_ports_one_is_as_bad(seed, everyone):
    rng = random.Random(seed)
    num_ranks = rng.randrange(2, 5)
    topology = draw_machine(rng, num_ranks)
    supply = [1.0] * num_ranks if everyone else [1.0] + [0.0] * (num_ranks - 1)
    sinks = list(range(num_ranks))
    found, tried = worst_us(topology, supply, sinks), worst_by_trying(topology, supply, sinks)
    assert found <= tried * (1 + 1e-9)
    if all(k.ports in ((), (2 * k.src, 2 * k.dst + 1)) for k in topology.links):
        assert found == pytest.approx(tried, rel=1e-6)


def test_the_cheapest_cover_takes_the_narrower_of_ports_and_links():
    """The slow port stands for two links; the third link alone is slower than the fast port."""
    links = [Link(0, 2, 0.0, 1.0, ports=(0,)), Link(1, 2, 0.0, 1.0, ports=(0,)), Link(3, 2, 0.0, 9.0, ports=(1,))]
    net = Net.of(machine(4, links, [Port("slow", 0.0, 5.0), Port("fast", 0.0, 2.0)]))
    assert sorted(CutFinder(net).cheapest_cover(np.arange(3)).tolist()) == [2, 3]


def test_what_has_no_beta_limits_nothing():
    net = Net.of(machine(2, [Link(0, 1, 1.0, 0.0)]))
    assert CutFinder(net).cheapest_cover(np.arange(1)) is None
    assert CutFinder(net).worst(np.array([1.0, 0.0]), [1]) is None


def test_a_nic_that_ranks_share_is_a_cut():
    """One NIC of 105 us a MB for a node: half of the data through it, at 16 shares."""
    topology = load_topology("ndv2-x2")
    assert worst_us(topology, [1.0] * 16, list(range(16))) == pytest.approx(8 * 105.0)
