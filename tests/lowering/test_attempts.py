"""What is decided otherwise where a block can stop."""

from dataclasses import replace

from taccl_py.lowering.attempts import Decisions, ProgramRevision, loosen
from taccl_py.lowering.deadlock import FifoModel
from taccl_py.lowering.dependencies import Dependencies
from taccl_py.lowering.threadblocks import Joint
from tests.lowering.blocks import block, copy, held_up, recv, send, transfer

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


def joined(send_peer):
    """Rank 0 receives from rank 1, which waits for what another rank gets, before it sends that, in one threadblock."""
    first = block(recv(0, "s0", 0), send(1, "i0", 1), recv_peer=1, send_peer=send_peer)
    second = block(send(2, "i0", 0, rank=1), send_peer=0)
    blocks = ((first,), (second,), (block(recv(3, "s0", 1, rank=send_peer), recv_peer=0),))
    return blocks, {2: (3,)}, (transfer(1, 0), transfer(0, send_peer, link=1))


def test_a_threadblock_that_receives_and_sends_is_taken_apart_and_its_receiver_for_good_the_second_time():
    once = loosen(attempt(*joined(2)), Decisions(), ONE_CELL, ONE_CELL)
    assert once == Decisions(apart=frozenset({Joint(0, 1, 2, 0)}))
    twice = loosen(attempt(*joined(3)), once, ONE_CELL, ONE_CELL)
    assert twice == Decisions(apart=once.apart | {Joint(0, 1, 3, 0), Joint(0, 1, 3, 0).receiver})
    assert not twice.not_yet_apart({Joint(0, 1, 4, 0)})
    assert loosen(attempt(*joined(4)), twice, ONE_CELL, ONE_CELL) is None
