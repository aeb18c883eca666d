"""Which templates win where, with times that follow from the machine by hand."""

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.synthesis.templates.spreading import camps, ring_sets
from tests.instances import MB
from tests.synthesis.templates.machines import load

KIB, MIB = 1 << 10, 1 << 20


def fastest(name, kind, size_bytes=KIB):
    found = template_schedules(Demand(load(name), kind, size_bytes))
    return min(found, key=lambda each: each.schedule.makespan_us)


@pytest.mark.parametrize(
    ("name", "kind", "alphas_us"),
    [
        ("ndv4", Kind.ALLGATHER, 3 * 0.3),  # three doublings behind one port
        ("ndv4", Kind.SCATTER, 3 * 0.3),
        ("dgx1", Kind.ALLTOALL, 2 * 0.7),  # inside a quad, then across: what goes on leaves first
        ("dgx1", Kind.GATHER, 2 * 0.7),
        ("mi300x", Kind.ALLREDUCE, 0.8),  # every pair has a link
        ("ndv4-x2", Kind.ALLTOALL, 3 * 0.3 + 2.6),  # inside along a cube, all that takes the same edge together
        ("dgx2", Kind.ALLTOALL, 4 * 0.3),
        ("mi250x", Kind.ALLTOALL, 5 * 0.8),
        ("ndv2-x2", Kind.ALLTOALL, 2 * 0.3 + 2.6 + 105 * 4096 * 1e-6 + 2 * 0.3),  # all in one message through the NIC
        ("mi300x-x2", Kind.ALLTOALL, 0.8 + 2.6),
        ("ndv4-x2", Kind.ALLGATHER, 3 * 0.3 + 2.6),
        ("ndv2-x2", Kind.ALLGATHER, 2 * 0.3 + 2.6 + 105 * 512e-6 + 2 * 0.3),
        # Halves exchanged in either order: 512 bytes over a single NVLink of 46 us/MB, twice.
        ("ndv2", Kind.ALLREDUCE, 2 * (0.3 + 46 * 512e-6)),
        ("dgx2-x2", Kind.ALLGATHER, 5 * 0.3 + 2.6),  # who shares a NIC meets first
    ],
)
def test_small_sizes_take_little_more_than_their_alphas(name, kind, alphas_us):
    makespan_us = fastest(name, kind).schedule.makespan_us
    assert alphas_us <= makespan_us <= 1.035 * alphas_us


@pytest.mark.parametrize(("name", "num_rings"), [("dgx1", 6), ("ring:8", 2), ("full:5", 4), ("switch:6", 1)])
def test_rings_are_as_many_as_links_and_ports_feed(name, num_rings):
    topology = load(name)
    assert max(len(rings) for rings in ring_sets(TemplateSite(topology, MB))) == num_rings


def test_rings_over_nodes_use_every_nic():
    topology = load("ndv4-x2")
    rings = max(ring_sets(TemplateSite(topology, MB)), key=len)
    leaving = {
        ring[i - 1] for ring in rings for i in range(16) if topology.node_of[ring[i - 1]] != topology.node_of[ring[i]]
    }
    assert leaving == set(range(16))


def test_large_shares_go_around_rings_where_links_are_few():
    assert fastest("dgx1", Kind.ALLGATHER, 64 * MIB).name == "6 rings"
    assert fastest("ring:8", Kind.ALLREDUCE, 64 * MIB).name == "2 rings"
    assert fastest("ring:8", Kind.BROADCAST, 64 * MIB).name.startswith("2 chains")


def test_one_leader_speaks_for_a_node_with_one_nic():
    best = fastest("ndv2-x2", Kind.ALLGATHER)
    topology = best.schedule.topology
    across = [
        m
        for m in best.schedule.messages
        if topology.node_of[topology.links[m.link].src] != topology.node_of[topology.links[m.link].dst]
    ]
    assert best.name.startswith("leaders")
    assert len(across) == 2, "one each way"


def test_leaders_that_are_alike_are_tried_once():
    names = [camp.name for camp in camps(TemplateSite(load("dgx2-x2"), MB))]
    assert names == [f"leaders 0 of {width}" for width in (2, 4, 8, 16)]
    assert list(camps(TemplateSite(load("dgx2"), MB))) == []
