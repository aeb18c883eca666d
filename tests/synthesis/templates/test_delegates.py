"""Every rank talks to one other node at most; times that follow from the alphas by hand."""

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.delegates import Delegates
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule


def delegates(name):
    return Delegates.of(TemplateSite(load_topology(name), 32.0))


def test_every_node_meets_every_other_in_each_group():
    found = delegates("ndv4-x4")
    # Groups of four ranks: two meetings of every two nodes, each both ways.
    nodes = [(src // 8, dst // 8) for src, dst in found.meetings]
    assert sorted(set(nodes)) == [(a, b) for a in range(4) for b in range(4) if a != b]
    assert all(nodes.count(pair) == 2 for pair in set(nodes))
    assert len({src for src, _ in found.meetings}) == len({dst for _, dst in found.meetings}) == 24
    assert all((dst, src) in found.meetings for src, dst in found.meetings)


def test_ways_go_inside_across_and_inside():
    """Rank 1 of node 0 to place 6 of node 2: the delegate to node 2 in the upper group is at place 4 + 2."""
    way = delegates("ndv4-x4").path
    assert way(1, 16 + 6) == (1, 0, 2, 6, 16 + 6, 16 + 6, 16 + 6)
    assert way(1, 16 + 5) == (1, 0, 2, 6, 16 + 6, 16 + 7, 16 + 5)
    assert way(1, 6) == (1, 0, 2, 6)


@pytest.mark.parametrize("name", ["ndv4", "ndv4-x3", "full:8"])
def test_one_node_or_three_have_none(name):
    topology = load_topology(name, 1) if "-" not in name and ":" not in name else load_topology(name)
    assert Delegates.of(TemplateSite(topology, 32.0)) is None


# Three doublings of 0.3 us in a node, 2.6 across, two doublings in a group of four. Two ranks of a DGX-2 share a NIC: one of
# them is the delegate, after four doublings.
@pytest.mark.parametrize(
    ("name", "kind", "alphas_us"),
    [
        ("ndv4-x4", Kind.ALLGATHER, 3 * 0.3 + 2.6 + 2 * 0.3),
        pytest.param("ndv4-x4", Kind.ALLREDUCE, 3 * 0.3 + 2.6 + 2 * 0.3, marks=pytest.mark.slow),
        ("ndv4-x4", Kind.ALLTOALL, 3 * 0.3 + 2.6 + 2 * 0.3),
        pytest.param("ndv4-x4", Kind.REDUCESCATTER, 3 * 0.3 + 2.6 + 2 * 0.3, marks=pytest.mark.slow),
        ("dgx2-x2", Kind.ALLTOALL, 4 * 0.3 + 2.6 + 0.3),
    ],
)
def test_four_nodes_take_one_message_across(name, kind, alphas_us):
    found = template_schedules(Demand(load_topology(name), kind, 1024))
    schedule = next(each.schedule for each in found if each.name == "delegates")
    assert alphas_us <= schedule.makespan_us <= 1.05 * alphas_us
    assert verify_schedule(schedule) == ()
