"""Pipelines of a Broadcast: trees with different inner ranks, slots at ports, and the time that follows from them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.pipeline import Pipeline
from taccl_py.synthesis.templates.roots import inner_tree
from taccl_py.synthesis.templates.site import Site
from taccl_py.synthesis.templates.slots import slotted
from taccl_py.topology.catalog import load_topology
from taccl_py.units import BYTES_PER_MB
from tests.instances import full, ring

GIB = 1 << 30


@st.composite
def inner_trees(draw):
    ranks = draw(st.integers(3, 40))
    root, number = draw(st.integers(0, ranks - 1)), draw(st.integers(1, ranks - 1))
    return root, [inner_tree(ranks, root, number, tree) for tree in range(number)], ranks


@given(inner_trees())
def test_every_rank_hears_once_in_each_tree_and_tells_no_more_than_there_are_trees(drawn):
    root, trees, ranks = drawn
    tells = Counter()
    for tree in trees:
        heard = [root]
        for rank in heard:
            heard += tree.get(rank, [])
            tells[rank] += len(tree.get(rank, []))
        assert sorted(heard) == list(range(ranks))
    assert max(tells.values()) <= len(trees)
    assert tells[root] == len(trees)


@given(inner_trees())
def test_no_two_messages_meet_at_a_port_however_often_slots_are_repeated(drawn):
    root, trees, ranks = drawn
    taken = set()
    for hops in slotted(trees, root):
        ready = {root: 0}
        for hop in hops:
            assert hop.slot >= ready[hop.src]
            ready[hop.dst] = hop.slot + 1
            ports = {("out", hop.src, hop.slot % len(trees)), ("in", hop.dst, hop.slot % len(trees))}
            assert taken.isdisjoint(ports)
            taken |= ports
        assert sorted(ready) == list(range(ranks))


def test_two_trees_of_four_ranks_take_two_slots_a_piece_and_two_more():
    # 0->1, then 1->2 and 1->3; 0->3 in the second slot, then 3->2 (while 1->3 is in slot 2) and 3->1.
    topology = load_topology("switch:4")
    trees = [inner_tree(4, 0, 2, tree) for tree in range(2)]
    assert trees == [{0: [1], 1: [2, 3], 2: []}, {0: [3], 3: [1, 2]}]
    hops = slotted(trees, 0)
    assert max(hop.slot for each in hops for hop in each) == 3
    pipeline = Pipeline(Site(topology, 8 * BYTES_PER_MB), 0, 8.0 * BYTES_PER_MB, (trees,), hops=hops)
    # Messages of 1 MB take 0.5 + 20 us.
    assert pipeline.best(8).end_us == pytest.approx((2 * 3 + 4) * 20.5)
    assert pipeline.best(7) is None


@pytest.mark.parametrize(
    ("machine", "most_us"),
    [
        # 256 pieces of 2 trees take 21731 us, and the last one has 6 messages more to go. A chain takes 22325.
        ("switch:16", 21986),
        # 7 trees of two levels: 64 pieces, 48.4 us each, and one more; chains took 4036.
        ("full:8", 3153),
        # 128 pieces of 2 trees, and 10 messages; one chain of 72 ranks, in 64 pieces, took 2396.
        ("nvl72:1", 1320),
    ],
)
def test_a_switch_or_a_mesh_passes_on_what_it_gets_with_few_messages_more(machine, most_us):
    topology = load_topology(machine)
    for kind in (Kind.BROADCAST, Kind.REDUCE):
        found = template_schedules(Demand(topology, kind, GIB), 1.0)
        assert min(each.schedule.makespan_us for each in found) <= most_us


@pytest.mark.parametrize("size_bytes", [1000, 7 << 20, 16 << 20, 123_456_789])
def test_no_piece_is_passed_on_before_it_has_come_whatever_its_size(size_bytes):
    # Times are rounded, of which arrivals and what follows them must not part.
    for machine in ("nvl72:1", "switch:16"):
        trees = [inner_tree(load_topology(machine).num_ranks, 0, 3, tree) for tree in range(3)]
        site = Site(load_topology(machine), size_bytes)
        for hops in (slotted(trees, 0), None):
            held = {}
            for move in Pipeline(site, 0, size_bytes, (trees,), hops=hops).best(12).moves():
                assert move.src == 0 or held[move.src, move.chunks] <= move.start
                held[move.dst, move.chunks] = move.end


def test_the_time_of_slots_is_that_of_the_schedule():
    topology = load_topology("switch:16")
    plans = {each.name: each.schedule for each in template_schedules(Demand(topology, Kind.BROADCAST, GIB))}
    trees = [inner_tree(16, 0, 2, tree) for tree in range(2)]
    pipeline = Pipeline(Site(topology, GIB), 0, GIB, (trees,), hops=slotted(trees, 0)).best(None)
    name = f"2 trees with different inner ranks, {pipeline.num_chunks} pieces"
    assert plans[name].makespan_us == pytest.approx(pipeline.end_us)


@pytest.mark.parametrize(("topology", "there"), [(full(4), True), (ring(4, both_ways=True), False)])
def test_trees_with_different_inner_ranks_need_all_links(topology, there):
    names = [each.name for each in template_schedules(Demand(topology, Kind.BROADCAST, GIB))]
    assert any("different inner ranks" in name for name in names) is there
