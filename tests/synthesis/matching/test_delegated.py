"""AllToAll by delegates, replicated: the whole that comes of one node's data is right, and as fast as the base says."""

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.matching.delegated import delegated
from taccl_py.synthesis.matching.replicate import replicate
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.verify.group import verify_group
from taccl_py.verify.schedule import verify_schedule


def demand_of(topology, size_bytes, chunks=None):
    return Demand(topology, Kind.ALLTOALL, float(size_bytes), chunks_per_rank=chunks)


@pytest.mark.parametrize(
    ("machine", "nodes"), [("hpn:3", None), ("hpn:10", None), ("ndv2", 3), ("dgx2", 2), ("mi300x", 3)]
)
def test_what_is_replicated_is_an_alltoall(machine, nodes):
    found = delegated(demand_of(load_topology(machine, nodes), 16 << 10))
    assert verify_group(found) == ()
    assert len(found.roots) == found.topology.num_ranks // found.topology.num_nodes
    whole = found.expanded()
    assert verify_schedule(whole) == ()
    assert whole.makespan_us == found.makespan_us


def test_a_message_takes_a_whole_node_s_data_to_another_one():
    """With nine nodes every rank of the first one goes to another node, with what its 8 ranks have for 8 others."""
    found = delegated(demand_of(formula_topology("hpn:9"), 9 << 10))
    node_of, links = found.topology.node_of, found.topology.links
    across = [m for m in found.base if node_of[links[m.link].src] != node_of[links[m.link].dst]]
    assert sorted(node_of[links[m.link].dst] for m in across) == list(range(1, 9))
    assert {len(message.chunks) for message in across} == {64}


def test_small_messages_are_several_times_as_fast_as_by_rails(monkeypatch):
    demand = demand_of(formula_topology("hpn:32"), 64 << 10)
    by_delegates = replicate(demand, Limits(), Bound(0.0, ""))
    monkeypatch.setattr("taccl_py.synthesis.matching.replicate.delegated", lambda _demand: None)
    by_rails = replicate(demand, Limits(), Bound(0.0, ""))
    assert by_rails.makespan_us > 5 * by_delegates.makespan_us


@pytest.mark.parametrize(
    ("topology", "chunks", "size_bytes"),
    [
        (formula_topology("torus:4x4"), None, 1 << 10),  # one node
        (formula_topology("hpn:3"), 2, 1 << 10),  # two chunks for each pair
        (formula_topology("hpn:3"), None, 1 << 30),  # too large to be copied together
        (load_topology("ndv4", 2).subset(range(15)), None, 1 << 10),  # nodes that differ
        (
            formula_topology("nvl72:2"),
            None,
            1 << 10,
        ),  # so many ranks that two nodes have more than a message for each other
    ],
)
def test_others_have_none(topology, chunks, size_bytes):
    assert delegated(demand_of(topology, size_bytes, chunks)) is None
