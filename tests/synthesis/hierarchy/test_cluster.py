"""Lanes of clusters: who carries for whom."""

import pytest

from taccl_py.synthesis.hierarchy.cluster import Cluster
from taccl_py.synthesis.templates.site import Site
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port, Topology


def cluster_of(topology):
    return Cluster.of(Site(topology, 1e5))


def test_every_rank_with_a_nic_of_its_own_is_a_lane():
    cluster = cluster_of(load_topology("ndv4", 3))
    assert cluster.is_even
    assert cluster.carriers == tuple(tuple(range(8 * node, 8 * node + 8)) for node in range(3))


def test_ranks_that_share_a_nic_share_a_lane():
    pairs, one = cluster_of(load_topology("dgx2", 2)), cluster_of(load_topology("ndv2", 2))
    assert pairs.carriers[1] == tuple(range(16, 32, 2))
    assert (pairs.sharing, pairs.lane_of[5]) == (2, 2)
    assert (one.width, one.sharing) == (1, 8)


def test_the_smallest_node_says_how_many_lanes_there_are():
    uneven = cluster_of(load_topology("ndv4", 2).subset([0, 1, 2, 3, 4, 8, 9]))
    assert uneven.carriers == ((0, 1), (5, 6))
    assert uneven.lane_of == (0, 1, 0, 1, 0, 0, 1)
    assert not uneven.is_even


def test_ranks_of_a_full_mesh_send_to_all_at_once_and_those_on_a_switch_do_not():
    assert cluster_of(load_topology("mi300x", 2)).at_once == 7
    assert cluster_of(load_topology("ndv4", 2)).at_once == 1


def test_times_are_those_of_the_slowest_link_of_a_sort():
    cluster = cluster_of(load_topology("ndv4", 2))
    # 0.3 us and 300 GB/s on NVSwitch, 2.6 us and 25 GB/s on the NIC.
    assert cluster.node_us(1e6) == pytest.approx(0.3 + 1000 / 300)
    assert cluster.lane_us(1e6) == pytest.approx(2.6 + 1000 / 25)


def machine(node_of, ends, ports=()):
    return Topology("small", "invented", node_of, tuple(Port(name, 1.0, 1.0) for name in ports), ends)


def test_one_node_or_nodes_in_pieces_or_lanes_without_links_are_no_cluster():
    assert cluster_of(load_topology("ndv4", 1)) is None
    both = tuple(Link(a, b, 1.0, 1.0) for a in range(4) for b in range(4) if a != b)
    assert cluster_of(machine((0, 0, 1, 1), both)) is not None
    in_pieces = tuple(link for link in both if {link.src, link.dst} != {0, 1})
    assert cluster_of(machine((0, 0, 1, 1), in_pieces)) is None
    crosswise = tuple(link for link in both if {link.src, link.dst} not in ({0, 2}, {1, 3}))
    assert cluster_of(machine((0, 0, 1, 1), crosswise)) is None
