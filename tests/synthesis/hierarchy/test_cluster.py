"""Lanes of clusters: who carries for whom."""

import pytest

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, LinkChoice, degraded
from taccl_py.topology.model import Link, Port, Topology


def cluster_of(topology):
    return LaneCluster.of(TemplateSite(topology, 1e5))


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
    one_way = tuple(link for link in both if (link.src, link.dst) not in ((0, 2), (0, 3), (2, 1), (3, 1)))
    assert cluster_of(machine((0, 0, 1, 1), one_way)) is None


def test_ranks_that_count_rails_differently_are_lanes():
    both = tuple(Link(a, b, 1.0, 1.0) for a in range(4) for b in range(4) if a != b)
    crosswise = tuple(link for link in both if {link.src, link.dst} not in ({0, 2}, {1, 3}))
    assert cluster_of(machine((0, 0, 1, 1), crosswise)).carriers == ((0, 1), (3, 2))


def test_rails_that_nodes_have_lost_are_no_lanes_and_the_others_remain():
    """Nodes 1 and 2 have lost NICs of their own; the first seven, or six, ranks of each node are not on the same rails."""
    lost = ("node 1 nic2 *", "node 2 nic5 *")
    cluster = cluster_of(degraded(load_topology("hpn:4"), Degradation(missing_ports=lost)))
    assert cluster.carriers == tuple(tuple(8 * node + rail for rail in (0, 1, 3, 4, 6, 7)) for node in range(4))
    assert not cluster.is_even


def test_where_all_reach_all_one_missing_link_costs_no_lane():
    cluster = cluster_of(degraded(load_topology("ndv4-x3"), Degradation(missing=(LinkChoice(0, 8),))))
    assert cluster.carriers == ((0, 1, *range(2, 8)), (9, 8, *range(10, 16)), tuple(range(16, 24)))
