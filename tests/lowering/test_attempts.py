"""What is decided otherwise where a block can stop."""

from dataclasses import replace

from taccl_py.lowering.attempts import Decisions, ProgramRevision, loosen
from taccl_py.lowering.deadlock import FifoModel
from taccl_py.lowering.dependencies import Dependencies
from tests.lowering.blocks import copy, held_up

ONE_CELL = FifoModel(1, 1)


def attempt(blocks, waits, transfers):
    transfers = tuple(replace(each, message=number) for number, each in enumerate(transfers))
    return ProgramRevision(blocks, transfers, 1, (0, 0), Dependencies(waits, frozenset(), False))


def test_messages_that_would_hold_up_the_rest_one_after_the_other_are_found_together():
    found = loosen(attempt(*held_up()), Decisions(), ONE_CELL, ONE_CELL)
    assert found == Decisions(staged=frozenset({1, 2}))


def test_no_more_of_them_are_staged_than_is_enough():
    """The third one waits only until the sender has sent everything, which it can where a connection holds two cells."""
    ((sender,), receivers), waits, transfers = held_up()
    sender = replace(sender, actions=(*sender.actions, copy(10, "i0", "o0")))
    program = ((sender,), receivers), {**waits, 6: (10,)}, transfers
    assert loosen(attempt(*program), Decisions(), ONE_CELL, ONE_CELL) == Decisions(staged=frozenset({1, 2}))
    assert loosen(attempt(*program), Decisions(), ONE_CELL, FifoModel(2, 1)) == Decisions(staged=frozenset({1}))


def test_there_is_nothing_left_where_all_of_them_are_staged():
    assert loosen(attempt(*held_up()), Decisions(staged=frozenset({1, 2})), ONE_CELL, ONE_CELL) is None
