"""Moves: time forwards and backwards, pieces, links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.synthesis.templates.messages import TemplateMessage, as_untimed, cut, end_of, in_pieces, in_turn, turned
from taccl_py.topology.model import Link
from tests.instances import MB, chain, machine

THERE = (TemplateMessage(0, 1, (0, 1), 0, 1), TemplateMessage(1, 2, (0,), 1, 3))


def test_turned_moves_run_backwards():
    assert turned(THERE, reduce=True) == (
        TemplateMessage(2, 1, (0,), 0, 2, True),
        TemplateMessage(1, 0, (0, 1), 2, 3, True),
    )
    assert turned(turned(THERE, reduce=False), reduce=False) == THERE


def test_parts_in_turn_begin_when_the_one_before_has_ended():
    both = in_turn(THERE, THERE)
    assert [message.start for message in both] == [0, 1, 3, 4]
    assert end_of(both) == 6
    assert in_turn() == ()


def test_pieces_become_their_chunks_and_empty_ones_stay():
    messages = (TemplateMessage(0, 1, (0,), 0, 1), TemplateMessage(0, 1, (1,), 1, 2))
    assert in_pieces(messages, ((4, 5), ())) == (TemplateMessage(0, 1, (4, 5), 0, 1),)


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_cut_keeps_every_chunk_once_in_nearly_equal_parts(num_chunks, num_pieces):
    pieces = cut(num_chunks, num_pieces)
    assert [chunk for piece in pieces for chunk in piece] == list(range(num_chunks))
    sizes = {len(piece) for piece in pieces}
    assert len(pieces) == num_pieces
    assert max(sizes) - min(sizes) <= 1


def test_parallel_links_are_taken_in_turn_and_cheap_ones_first():
    topology = machine(2, [Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 100.0)])
    messages = tuple(TemplateMessage(0, 1, (chunk,), 0, 1) for chunk in range(4))
    assert [draft.link for draft in as_untimed(topology, MB, messages)] == [0, 1, 0, 1]


@pytest.mark.parametrize("message", [TemplateMessage(1, 0, (0,), 0, 1), TemplateMessage(0, 2, (0,), 0, 1)])
def test_ranks_without_a_link_have_no_draft(message):
    assert as_untimed(chain(3), MB, (message,)) is None
