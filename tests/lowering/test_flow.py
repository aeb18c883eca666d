from taccl_py.lowering.actions import NONE, RankWork
from taccl_py.lowering.flow import trace_flow
from tests.lowering.blocks import add, copy, recv, send, transfer

USER_END_US = 99.0


def flow_of(*actions, transfers=()):
    return trace_flow(RankWork(actions, transfers), USER_END_US)


def test_a_send_of_exactly_what_arrived_is_a_forward():
    flow = flow_of(recv(0, "o0-1", 0), send(1, "o0-1", 1), transfers=(transfer(1, 0),))
    assert flow.source == (NONE, 0)


def test_a_send_of_part_of_what_arrived_or_of_more_is_none():
    flow = flow_of(recv(0, "o0-1", 0), send(1, "o0", 1), send(2, "o0-2", 2), transfers=(transfer(1, 0),))
    assert flow.source == (NONE, NONE, NONE)


def test_a_send_of_what_was_overwritten_since_is_no_forward_of_the_first():
    transfers = (transfer(1, 0), transfer(1, 0))
    flow = flow_of(recv(0, "o0", 0), recv(1, "o0", 1), send(2, "o0", 2), transfers=transfers)
    assert flow.source[2] == 1
    assert flow.readers[0] == ()


def test_the_user_reads_the_output_at_the_end_and_not_the_scratch():
    flow = flow_of(copy(0, "i0", "o0"), copy(1, "i0", "s0"))
    assert flow.readers == ((2,), ())


def test_a_reduction_reads_its_destination():
    flow = flow_of(copy(0, "i0", "s1"), copy(1, "i0", "s0"), add(2, "s1", "s0"))
    assert flow.readers == ((2,), (2,), ())


def test_a_receive_may_wait_until_the_data_are_needed_or_the_next_message_is_there():
    transfers = (transfer(1, 0), transfer(1, 0), transfer(2, 0, link=1), transfer(0, 3))
    flow = flow_of(
        recv(0, "o0", 0, ready_us=1.0),
        recv(1, "o1", 1, ready_us=5.0),
        recv(2, "s0", 2, ready_us=2.0),
        send(3, "s0", 3, ready_us=4.0),
        transfers=transfers,
    )
    assert flow.deadline_us == (5.0, USER_END_US, 4.0, 4.0)
