"""Broadcast over nodes: who passes a piece on to whom, and what it costs."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.rooted import CHAIN, TREE, TWO_TREES, course_rounds
from taccl_py.topology.catalog import load_topology

NODES = st.integers(2, 70)


def steps_of(nodes, between, number=0):
    return [step for steps in course_rounds(nodes, between, number) for step in steps]


@given(NODES, st.sampled_from([CHAIN, TREE, TWO_TREES]), st.integers(0, 3))
def test_every_node_hears_each_piece_once_from_one_that_has_it(nodes, between, number):
    has = {0}
    for step in steps_of(nodes, between, number):
        assert step.src in has
        assert step.dst not in has
        has.add(step.dst)
    assert has == set(range(nodes))


@given(NODES)
def test_along_two_trees_nobody_sends_more_than_it_would_along_a_chain(nodes):
    both = [Counter(step.src for step in steps_of(nodes, TWO_TREES, number)) for number in (0, 1)]
    # A piece of either tree, which is two pieces along a chain.
    assert max((both[0] + both[1]).values()) <= 2
    assert both[0][0] == both[1][0] == 1


@given(NODES)
def test_along_two_trees_the_last_node_waits_for_few_messages(nodes):
    for number in (0, 1):
        depth = {0: 0}
        for step in steps_of(nodes, TWO_TREES, number):
            depth[step.dst] = depth[step.src] + 1
        assert max(depth.values()) <= (nodes - 1).bit_length()


@pytest.mark.parametrize(
    ("machine", "size_bytes", "most_us"),
    [
        # With at most 16 pieces 116.9 us.
        pytest.param("ndv5-x8", 16 << 20, 114.4, marks=pytest.mark.slow),
        # Along a chain of 16 nodes 494 us.
        pytest.param("hpn:16", 64 << 20, 443, marks=pytest.mark.slow),
    ],
)
def test_large_broadcasts_are_cut_into_many_pieces(machine, size_bytes, most_us):
    demand = Demand(load_topology(machine), Kind.BROADCAST, size_bytes)
    answer = load_engine("hierarchy")(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events())
    assert answer.schedule.makespan_us <= most_us
