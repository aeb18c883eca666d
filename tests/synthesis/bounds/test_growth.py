"""How fast something can become known node by node."""

import numpy as np
import pytest

from taccl_py.synthesis.bounds.growth import Classes, growth_bound
from taccl_py.synthesis.bounds.net import Net
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import full, machine, nodes_with_nics, two_nodes


def growth_us(topology, starts=(0,), inward=False):
    net = Net.of(topology)
    return growth_bound(net.reversed() if inward else net, list(starts), inward).time_us


@pytest.mark.parametrize("inward", [False, True])
def test_a_nic_for_each_rank_lets_both_nodes_grow(inward):
    """NVSwitch port 0.3 us, NIC 2.6 us. By 2.6 all 8 ranks of node 0 know. In node 1 one knows at 2.6, by 2.9 it has told
    another and the rank told at 0.3 has told a third; by 3.2 these three have told three, and two of node 0 two more: 8."""
    assert growth_us(load_topology("ndv4-x2"), inward=inward) == pytest.approx(3.2)


@pytest.mark.parametrize("inward", [False, True])
def test_one_nic_a_node_is_passed_once_and_then_the_node_is_told(inward):
    """2 NDv2 nodes: 2.6 us across, then every rank of the cube mesh is at most two NVLinks of 0.3 us away."""
    assert growth_us(load_topology("ndv2-x2"), inward=inward) == pytest.approx(2.6 + 0.6)


def test_the_last_of_four_nodes_is_entered_second():
    """One message of 10 us a NIC: nodes know at 0, 10, 20, 20; the last still tells its 4 ranks in two steps of 1 us."""
    assert growth_us(nodes_with_nics(4, 4, 1.0, 10.0)) == pytest.approx(22.0)
    assert growth_us(nodes_with_nics(4, 4, 1.0, 10.0), inward=True) == pytest.approx(22.0)


def test_nics_do_not_wait_for_each_other():
    """4 NDv4 nodes: the other three nodes' 24 ranks, were they one node, count 1, 3, 8, 20, 24 from 2.6 us on, every 0.3."""
    assert growth_us(load_topology("ndv4-x4")) == pytest.approx(2.6 + 4 * 0.3)


def test_a_single_node_is_left_to_the_fan_out():
    assert growth_us(full(9, alpha_us=2.0)) == 0.0


def test_without_ports_everything_starts_together():
    """Two ranks a node, all linked: 7 us across both ways at once; nothing is gained by the 1 us inside."""
    topology = two_nodes(2, {0: (0, 1), 1: (0, 1)}, inside=(1.0, 1.0), between=(7.0, 1.0))
    assert growth_us(topology) == 7.0


def test_a_longer_message_before_does_not_delay_the_count_too_much():
    """Two links into node 1 behind a port of 4 us, one of them 10 us slower: the quick one may arrive first, at 4."""
    links = [
        Link(0, 1, 4.0, 1.0, ports=(0,)),
        Link(0, 2, 14.0, 1.0, ports=(0,)),
        Link(1, 0, 4.0, 1.0),
        Link(2, 0, 4.0, 1.0),
    ]
    topology = machine(3, links, [Port("out", 4.0, 1.0)], (0, 1, 1))
    # The slow one starts first: 14 for rank 2, and rank 1 is told by 4 + 4.
    assert growth_us(topology) <= 14.0


def test_who_knows_is_counted_class_by_class():
    classes = Classes.of(Net.of(nodes_with_nics(2, 2, 1.0, 10.0)), np.array([0, 0, 1, 1]))
    learned = [(each.time_us, each.group) for each in classes.grown(0)]
    assert learned == [(0.0, 0), (1.0, 0), (10.0, 1), (11.0, 1)]
    assert [each.time_us for each in classes.grown(1, inside=frozenset({1}))] == [0.0, 1.0]
