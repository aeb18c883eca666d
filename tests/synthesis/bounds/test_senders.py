"""What can leave the root's node, and when."""

import numpy as np
import pytest

from taccl_py.synthesis.bounds.crossing import Gate, NodeClasses
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.bounds.senders import Inflow, RootPath, senders_of
from taccl_py.topology.catalog import load_topology

NIC = Gate(2.6, 40.0, 2.6)


def senders(name, root=0):
    return senders_of(NodeClasses.of(Net.of(load_topology(name))), root)


def test_the_root_has_everything_from_the_start():
    assert RootPath(NIC, ()).known(np.array([0.0, 1.0]), 5.0).tolist() == [1.0, 1.0]


def test_others_have_what_came_to_them():
    """From 0.5 us on with 0.3 us a message and 2 MB per us, from 2 us on with 1 us and 4 MB per us; there are 8 MB in all."""
    sender = RootPath(NIC, (Inflow(0.5, 0.3, 2.0), Inflow(2.0, 1.0, 4.0)))
    known = sender.known(np.array([0.5, 0.8, 1.3, 3.0, 3.5, 9.0]), 8.0)
    assert known * 8 == pytest.approx([0.0, 0.0, 1.0, 4.4, 7.4, 8.0])


def test_ranks_with_a_nic_each_begin_as_knowledge_doubles():
    """Eight ranks on a switch, 0.3 us a message: one is told first, then two, then four; they were sent to 0.3 us sooner."""
    found = senders("ndv4-x2", root=5)
    assert sum(number for _, number in found) == 8
    assert [(sender.gate, number) for sender, number in found] == [(NIC, 1), (NIC, 1), (NIC, 2), (NIC, 4)]
    since_us = [sender.inflows[0].since_us for sender, _ in found[1:]]
    assert since_us == pytest.approx([0.0, 0.3, 0.6])
    assert all(sender.inflows[0].rate_mb_per_us == pytest.approx(0.3) for sender, _ in found[1:])
    assert not found[0][0].inflows


def test_the_only_nic_of_a_node_is_the_root_s():
    ((sender, number),) = senders("ndv2-x2", root=6)
    assert (sender.inflows, number) == ((), 1)


@pytest.mark.parametrize("name", ["ndv2-x3", "ndv4-x4"])
def test_more_nodes_are_not_looked_at(name):
    assert senders(name) == ()
