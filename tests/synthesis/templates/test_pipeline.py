"""Pipelines of a Broadcast: trees with different inner ranks, and the time that follows from them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.pipeline import Pipeline
from taccl_py.synthesis.templates.roots import inner_tree
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
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


def test_on_a_mesh_everyone_passes_on_what_it_gets_with_few_messages_more():
    """7 trees of two levels: 64 pieces, 48.4 us each, and one more; chains took 4036."""
    for kind in (Kind.BROADCAST, Kind.REDUCE):
        found = template_schedules(Demand(load_topology("full:8"), kind, GIB), 1.0)
        assert min(each.schedule.makespan_us for each in found) <= 3153


def test_two_trees_take_chunks_by_twos():
    trees = [inner_tree(4, 0, 2, tree) for tree in range(2)]
    assert trees == [{0: [1], 1: [2, 3], 2: []}, {0: [3], 3: [1, 2]}]
    pipeline = Pipeline(TemplateSite(load_topology("full:4"), GIB), 0, GIB, (trees,))
    assert pipeline.best(8).pieces == 4
    assert pipeline.best(7) is None


@pytest.mark.parametrize("size_bytes", [1000, 7 << 20, 16 << 20, 123_456_789])
def test_no_piece_is_passed_on_before_it_has_come_whatever_its_size(size_bytes):
    # Times are rounded, of which arrivals and what follows them must not part.
    for machine in ("nvl72:1", "full:8"):
        trees = [inner_tree(load_topology(machine).num_ranks, 0, 3, tree) for tree in range(3)]
        held = {}
        for message in (
            Pipeline(TemplateSite(load_topology(machine), size_bytes), 0, size_bytes, (trees,)).best(12).messages()
        ):
            assert message.src == 0 or held[message.src, message.chunks] <= message.start
            held[message.dst, message.chunks] = message.end


@pytest.mark.parametrize(("topology", "there"), [(full(4), True), (ring(4, both_ways=True), False)])
def test_trees_with_different_inner_ranks_need_all_links(topology, there):
    names = [each.name for each in template_schedules(Demand(topology, Kind.BROADCAST, GIB))]
    assert any("different inner ranks" in name for name in names) is there
