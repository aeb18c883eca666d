"""Nodes whose ranks are numbered differently, put in an order in which they look the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.topology.alignment import align_nodes
from taccl_py.topology.automorphism import image_of_links
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port, Topology


def mixed_up(topology, shuffles):
    """The machine with the ranks of each node in another order, and nobody told of its symmetry."""
    order = [ranks[i] for ranks, shuffle in zip(topology.node_ranks, shuffles, strict=True) for i in shuffle]
    return replace(topology.subset(order), symmetry=())


MACHINES = [("ndv2", 2), ("ndv2", 3), ("ndv4", 2), ("mi250x", 2), ("dgx2", 2)]


@given(st.sampled_from(MACHINES), st.data())
def test_any_numbering_is_put_right(named, data):
    topology = load_topology(*named)
    size = len(topology.node_ranks[0])
    shuffles = [data.draw(st.permutations(range(size))) for _ in range(topology.num_nodes)]
    found = align_nodes(mixed_up(topology, shuffles), 0.05)
    assert [sorted(order) for order in found.orders] == [list(range(size))] * topology.num_nodes
    turned = tuple((rank + size) % topology.num_ranks for rank in range(topology.num_ranks))
    assert not isinstance(image_of_links(found.topology, turned), str)
    assert turned in found.topology.symmetry


def chain(ends, beta=(10.0, 20.0, 10.0)):
    """Node of a chain: links both ways along these ranks."""
    pairs = zip(ends, ends[1:], beta, strict=False)
    return [link for a, b, cost in pairs for link in (Link(a, b, 1.0, cost), Link(b, a, 1.0, cost))]


def test_the_rank_at_the_nic_is_found():
    """Chains 0-1-2 and 4-5-3, whose first links are fast: the NIC is at 0 here and at 4 there."""
    links = [*chain([0, 1, 2]), *chain([4, 5, 3]), Link(0, 4, 2.0, 50.0, ports=(0,)), Link(4, 0, 2.0, 50.0, ports=(1,))]
    ports = (Port("out of 0", 2.0, 50.0), Port("out of 1", 2.0, 50.0))
    found = align_nodes(Topology("chains", "", (0, 0, 0, 1, 1, 1), ports, tuple(links)), 0.05)
    assert found.orders == ((0, 1, 2), (1, 2, 0))
    assert found.changes
    assert [(link.src, link.dst) for link in found.topology.links if link.ports] == [(0, 3), (3, 0)]


def test_noise_below_the_tolerance_is_evened_out_and_more_is_not():
    node = [
        *chain([0, 1, 2], (10.0, 20.0)),
        *chain([3, 4, 5], (10.2, 19.8)),
        Link(0, 3, 2.0, 50.0),
        Link(3, 0, 2.0, 51.0),
    ]
    machine = Topology("chains", "", (0, 0, 0, 1, 1, 1), (), tuple(node))
    found = align_nodes(machine, 0.05)
    assert not found.changes
    assert {link.beta_us_per_mb for link in found.topology.links} == {10.1, 19.9, 50.5}
    with pytest.raises(InputError, match="node 1 is not like node 0"):
        align_nodes(machine, 0.001)


def test_nodes_that_are_not_alike_are_named():
    three = load_topology("ndv2", 3)
    slow = tuple(
        replace(k, beta_us_per_mb=2 * k.beta_us_per_mb) if (k.src, k.dst) == (17, 18) else k for k in three.links
    )
    with pytest.raises(InputError, match="node 2 is not like node 0"):
        align_nodes(replace(three, links=slow, symmetry=()), 0.05)
    with pytest.raises(InputError, match="one node"):
        align_nodes(load_topology("ndv2", 1), 0.05)
    with pytest.raises(InputError, match="no order makes them alike"):
        align_nodes(load_topology("ndv2", 2).subset(range(15)), 0.05)


def test_a_slow_link_among_sixteen_ranks_that_are_all_alike_is_soon_seen():
    """No order helps, and nobody tries the 16! of them."""
    two = load_topology("dgx2", 2)
    slow = tuple(
        replace(k, beta_us_per_mb=2 * k.beta_us_per_mb) if (k.src, k.dst) == (20, 27) else k for k in two.links
    )
    with pytest.raises(InputError, match="node 1 is not like node 0"):
        align_nodes(replace(two, links=slow, symmetry=()), 0.05)
