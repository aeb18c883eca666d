"""Broadcast over nodes: who passes a piece on to whom, and what it costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.rooted import (
    CHAIN,
    CIRCULANT,
    TREE,
    circulant_returns,
    circulant_turns,
    course_rounds,
)
from taccl_py.topology.catalog import load_topology

NODES = st.integers(2, 70)


@given(NODES, st.sampled_from([CHAIN, TREE, CIRCULANT]), st.integers(1, 9))
def test_every_node_hears_each_piece_once_from_one_that_has_it(nodes, between, pieces):
    for number in range(pieces):
        has = {0}
        for step in [step for steps in course_rounds(nodes, between, number, pieces) for step in steps]:
            assert step.src in has
            assert step.dst not in has
            has.add(step.dst)
        assert has == set(range(nodes))


@given(NODES, st.integers(1, 20))
def test_in_a_circulant_the_last_piece_is_everywhere_in_the_fewest_rounds(nodes, pieces):
    turns = circulant_turns(nodes, pieces)
    assert len(turns) == pieces * (nodes - 1)
    assert max(number for number, _, _ in turns) + 1 == pieces - 1 + (nodes - 1).bit_length()
    # Nobody sends or hears twice in a round.
    for ports in ([(number, step.src) for number, _, step in turns], [(number, step.dst) for number, _, step in turns]):
        assert len(ports) == len(set(ports))


@given(st.integers(3, 40), st.integers(1, 20))
def test_a_piece_comes_back_from_a_node_that_has_it_and_sends_nothing_else_then(nodes, pieces):
    turns, returns = circulant_turns(nodes, pieces), circulant_returns(nodes, pieces)
    heard = {(step.dst, piece): number for number, piece, step in turns}
    senders = {(number, step.src) for number, _, step in turns}
    for piece, (node, number) in enumerate(returns):
        assert heard[node, piece] + 2 <= number
        assert (number, node) not in senders
    assert len({number for _, number in returns}) == pieces


@pytest.mark.parametrize(
    ("machine", "size_bytes", "most_us"),
    [
        # With at most 16 pieces 116.9 us.
        pytest.param("ndv5-x8", 16 << 20, 114.4, marks=pytest.mark.slow),
        # Along a chain 181.7 us, along two trees 214.
        pytest.param("ndv4-x8", 16 << 20, 148.5),
        # Along a chain of 16 nodes 494 us.
        pytest.param("hpn:16", 64 << 20, 443, marks=pytest.mark.slow),
    ],
)
def test_large_broadcasts_are_cut_into_many_pieces(machine, size_bytes, most_us):
    demand = Demand(load_topology(machine), Kind.BROADCAST, size_bytes)
    answer = load_engine("hierarchy")(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events())
    assert answer.schedule.makespan_us <= most_us
