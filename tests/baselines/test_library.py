"""Baselines: valid everywhere, and as fast as worked out by hand."""

import pytest

from taccl_py.baselines.library import Family, baselines_of
from taccl_py.baselines.trees import second_parents, tree_parents
from taccl_py.collective import Kind
from taccl_py.schedule.transform import resized
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, full, ring, two_nodes

MACHINES = {
    "one-way ring": ring(4),
    "two-way ring": ring(5, both_ways=True),
    "full": full(6),
    "two nodes": two_nodes(2, {0: (0,), 1: (1,)}),
    "three nodes": two_nodes(2, {0: (0, 1), 1: (0, 1)}, num_nodes=3),
    "routed torus": load_topology("torus:2x3,routed"),
    "dgx1": load_topology("dgx1"),
    "ndv4-x2": load_topology("ndv4", 2),
}


def by_family(topology, kind, root=0, size_bytes=MB):
    return {each.family: each.variants for each in baselines_of(topology, kind, root, size_bytes)}


def fastest_us(topology, kind, family, size_bytes, root=0):
    return min(v.schedule.makespan_us for v in by_family(topology, kind, root, size_bytes)[family])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in Kind for name in MACHINES if name != "ndv4-x2"),
        pytest.param(Kind.ALLTOALL, "ndv4-x2", marks=pytest.mark.slow),
    ],
)
def test_the_verifier_accepts_every_baseline(kind, name):
    topology = MACHINES[name]
    root = 1 if kind in (Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER) else 0
    for family, variants in by_family(topology, kind, root).items():
        for variant in variants:
            assert not verify_schedule(variant.schedule), (family, variant.name)
            small = resized(variant.schedule, variant.schedule.chunk_bytes / 1000)
            assert not verify_schedule(small), (family, variant.name)


def test_which_baselines_there_are_depends_on_links_and_collective():
    assert {f for f, v in by_family(full(6), Kind.ALLREDUCE).items() if v} == {Family.RING, Family.TREE, Family.DIRECT}
    assert {f for f, v in by_family(full(6), Kind.ALLGATHER).items() if v} == {Family.RING, Family.DIRECT, Family.PAT}
    assert {f for f, v in by_family(ring(4), Kind.ALLREDUCE).items() if v} == {Family.RING}
    assert not any(by_family(ring(4), Kind.ALLTOALL).values())
    nodes = by_family(MACHINES["two nodes"], Kind.ALLREDUCE)
    assert nodes[Family.HIERARCHICAL]
    assert not nodes[Family.DIRECT]  # rank 0 has no link to the other node's rank 1


def test_on_a_routed_torus_there_are_rings_both_ways_doubling_and_swing():
    """4 x 4 ranks, 64 B: 4 steps of 0.5 us, along each side two neighbours and two hops or one; rings take 2 steps a side, there and back."""
    topology = load_topology("torus:4x4,routed")
    families = (Family.TWO_WAY_RINGS, Family.RECURSIVE_DOUBLING, Family.SWING)
    found = baselines_of(topology, Kind.ALLREDUCE, 0, 64, families)
    rings, doubling, swing = (min(v.schedule.makespan_us for v in each.variants) for each in found)
    assert swing == pytest.approx(4 * 0.5, rel=1e-3)
    assert doubling == pytest.approx(4 * 0.5 + 2 * 0.1, rel=1e-3)
    assert rings == pytest.approx(8 * 0.5, rel=1e-3)


def test_a_ring_takes_one_hop_after_the_other():
    """4 ranks, 1 us + 10 us/MB, 1 MB a rank: AllGather 3 * 11, AllReduce twice that."""
    assert fastest_us(ring(4), Kind.ALLGATHER, Family.RING, 4 * MB) == pytest.approx(33)
    assert fastest_us(ring(4), Kind.REDUCESCATTER, Family.RING, 4 * MB) == pytest.approx(33)
    assert fastest_us(ring(4), Kind.ALLREDUCE, Family.RING, 4 * MB) == pytest.approx(66)


def test_a_broadcast_is_pipelined_along_a_ring():
    """1 MB in 2 pieces over 3 hops of 1 + 5: 4 * 6 = 24; whole 3 * 11, in 4 pieces 6 * 3.5 = 21, in 8 pieces 10 * 2.25."""
    assert fastest_us(ring(4), Kind.BROADCAST, Family.RING, MB) == pytest.approx(21)


def test_direct_exchange_takes_one_message():
    """Every pair has a link of its own: 1 + 10 us for 1 MB, and twice that with sums."""
    assert fastest_us(full(4), Kind.ALLGATHER, Family.DIRECT, 4 * MB) == pytest.approx(11)
    assert fastest_us(full(4), Kind.ALLTOALL, Family.DIRECT, 4 * MB) == pytest.approx(11)
    assert fastest_us(full(4), Kind.ALLREDUCE, Family.DIRECT, 4 * MB) == pytest.approx(22)


def test_across_nodes_direct_exchange_keeps_all_nics_at_work():
    """2 x 8 ranks behind a NIC each, 2.6 us and 40 us/MB: 8 messages of 1/256 MB through every NIC, 8 * (2.6 + 40 / 256)."""
    us = fastest_us(MACHINES["ndv4-x2"], Kind.ALLTOALL, Family.DIRECT, MB / 16)
    assert us == pytest.approx(8 * (2.6 + 40 / 256))


def test_pat_doubles_what_it_sends():
    """8 ranks of 1 KB: messages of 1, 2 and 4 KB, each with one alpha: 3 * 1 + 0.07."""
    assert fastest_us(full(8), Kind.ALLGATHER, Family.PAT, 8000) == pytest.approx(3.07)
    assert fastest_us(full(8), Kind.REDUCESCATTER, Family.PAT, 8000) == pytest.approx(3.07)


def test_rings_at_two_levels():
    """2 nodes of 2 ranks, 1 MB each: 50 us across, then 2 chunks of 10 us inside, of which the own one starts at once: 60."""
    assert fastest_us(MACHINES["two nodes"], Kind.ALLGATHER, Family.HIERARCHICAL, 4 * MB) == pytest.approx(60)


def test_trees_in_many_pieces_keep_links_busy_in_both_directions():
    """Along one chain 4 MB go up one link and down another, 40 us each: 240 us hop by hop, 80 if up and down do not overlap.

    In pieces the ends of the pipeline add less than half of 40.
    """
    us = fastest_us(full(4, alpha_us=0.0), Kind.ALLREDUCE, Family.TREE, 4 * MB)
    assert us < 60


def test_a_small_tree():
    """Two nodes of one rank: a half goes each way and back, all links at work, so 2 * (1 + 10 * 0.5) for 1 MB."""
    pair = two_nodes(1, {0: (0,)}, between=(1.0, 10.0))
    assert fastest_us(pair, Kind.ALLREDUCE, Family.TREE, MB) == pytest.approx(12)


@pytest.mark.parametrize("size", range(1, 40))
def test_trees_span_all_nodes_and_what_forks_in_one_is_a_leaf_in_the_other(size):
    for parents in (tree_parents(size), second_parents(size)):
        assert len(parents) == size
        assert parents.count(-1) == 1
        for node in range(size):
            seen = {node}
            while parents[node] >= 0:
                node = parents[node]
                assert node not in seen
                seen.add(node)
        assert max((parents.count(node) for node in range(size)), default=0) <= 2
    if size % 2 == 0:
        inner = [
            {p for p in parents if p >= 0 and parents[p] >= 0} for parents in (tree_parents(size), second_parents(size))
        ]
        assert not inner[0] & inner[1]


@pytest.mark.parametrize("size_bytes", [4 << 10, 1 << 20])
def test_on_a_routed_torus_templates_are_no_slower_than_any_baseline(size_bytes):
    topology = load_topology("torus:4x4,routed")
    families = (Family.TWO_WAY_RINGS, Family.RECURSIVE_DOUBLING, Family.SWING)
    found = baselines_of(topology, Kind.ALLREDUCE, 0, size_bytes, families)
    best_us = min(variant.schedule.makespan_us for each in found for variant in each.variants)
    ours = template_schedules(Demand(topology, Kind.ALLREDUCE, size_bytes), 1.25)
    assert min(named.schedule.makespan_us for named in ours) <= best_us * (1 + 1e-9)


@pytest.mark.parametrize("kind", [Kind.BROADCAST, Kind.SCATTER])
def test_a_root_that_has_links_to_all_sends_straight_to_each(kind):
    (found,) = by_family(full(4), kind, root=1)[Family.DIRECT]
    links = found.schedule.topology.links
    ends = {(links[message.link].src, links[message.link].dst) for message in found.schedule.messages}
    assert ends == {(1, 0), (1, 2), (1, 3)}
