from dataclasses import replace

import pytest

from taccl_py.errors import LoweringError
from taccl_py.lowering.actions import NONE, RankWork
from taccl_py.lowering.flow import trace_flow
from taccl_py.lowering.program import Op
from taccl_py.lowering.threadblocks import Joint, ThreadblockRules, make_threadblocks
from taccl_py.runtimes import EXECUTOR, RCCL
from tests.lowering.blocks import act, add, copy, recv, send, transfer

RULES = ThreadblockRules(EXECUTOR, 100, {}, 1, frozenset())


def drafts_of(actions, transfers, rules=RULES, channels=None):
    work = RankWork(tuple(actions), tuple(transfers))
    flow = trace_flow(work, makespan_us=100.0)
    return make_threadblocks(work, flow, tuple(channels or [0] * len(transfers)), 1, rules)[0]


def shape(blocks):
    return [(d.recv_peer, d.send_peer, d.channel, [a.op for a in d.actions]) for d in blocks]


def relay(send_us=3.0):
    """Rank 0 passes on to rank 2 what it gets from rank 1."""
    actions = [
        recv(0, "s0", 0, ready_us=2.0, busy_us=2.0),
        send(1, "s0", 1, ready_us=send_us, busy_us=2.0),
    ]
    return actions, [transfer(1, 0), transfer(0, 2, link=1)]


def test_a_forward_becomes_one_step():
    assert shape(drafts_of(*relay())) == [(1, 2, 0, [Op.RECV_COPY_SEND])]


def test_a_forward_on_another_channel_does_not():
    assert shape(drafts_of(*relay(), channels=[0, 1])) == [(1, NONE, 0, [Op.RECV]), (NONE, 2, 1, [Op.SEND])]


def test_without_fused_steps_a_forward_in_one_threadblock_still_needs_no_flag():
    found = drafts_of(*relay(), replace(RULES, runtime=RCCL))
    assert shape(found) == [(1, 2, 0, [Op.RECV, Op.SEND])]


def test_a_joint_that_has_turned_out_bad_is_not_made():
    joint = Joint(0, 1, 2, 0)
    for apart in (joint, joint.receiver):
        assert len(drafts_of(*relay(), replace(RULES, apart=frozenset({apart})))) == 2
    for another in (Joint(0, 1, 3, 0), Joint(0, 2, 2, 0).receiver, Joint(0, 1, 2, 1).receiver):
        assert len(drafts_of(*relay(), replace(RULES, apart=frozenset({another})))) == 1


def test_a_sum_that_nobody_else_needs_is_not_stored():
    actions, transfers = relay()
    actions[0] = act(0, Op.RECV_REDUCE_COPY, "i0", "s0", arrives=0, ready_us=2.0)
    (only,) = drafts_of(actions, transfers)
    assert [(a.op, a.writes) for a in only.actions] == [(Op.RECV_REDUCE_SEND, None)]


def test_a_sum_that_is_needed_later_is_stored():
    actions, transfers = relay()
    actions[0] = act(0, Op.RECV_REDUCE_COPY, "i0", "s0", arrives=0, ready_us=2.0)
    actions.append(copy(2, "s0", "o0", ready_us=9.0))
    joined, local = drafts_of(actions, transfers)
    assert [a.op for a in joined.actions] == [Op.RECV_REDUCE_COPY_SEND]
    assert local.is_local


def test_a_forward_is_not_fused_if_somebody_needs_the_data_before_it_has_left():
    actions, transfers = relay()
    actions.append(send(2, "s0", 2, ready_us=3.0, busy_us=2.0))
    found = drafts_of(actions, [*transfers, transfer(0, 3, link=2)])
    assert Op.RECV_COPY_SEND not in [a.op for d in found for a in d.actions]


def pipeline():
    """While the second message comes in, the first one leaves."""
    actions = [
        recv(0, "s0", 0, ready_us=2.0, busy_us=2.0),
        send(1, "s0", 2, ready_us=2.0, busy_us=2.0),
        recv(2, "s1", 1, ready_us=4.0, busy_us=2.0),
        send(3, "s1", 3, ready_us=4.0, busy_us=2.0),
    ]
    return actions, [transfer(1, 0), transfer(1, 0), transfer(0, 2, link=1), transfer(0, 2, link=1)]


def test_threadblocks_are_not_joined_if_one_would_have_to_do_two_things_at_once():
    found = drafts_of(*pipeline(), replace(RULES, runtime=RCCL))
    assert shape(found) == [(NONE, 2, 0, [Op.SEND] * 2), (1, NONE, 0, [Op.RECV] * 2)]


def test_fused_steps_do_two_things_at_once():
    assert shape(drafts_of(*pipeline())) == [(1, 2, 0, [Op.RECV_COPY_SEND] * 2)]


def test_the_order_of_sends_on_a_connection_is_kept():
    """The own chunk leaves before the forwarded one although that arrives before: it cannot be fused."""
    actions = [
        recv(0, "s0", 0, ready_us=1.0),
        send(1, "i0", 1, ready_us=2.0, busy_us=1.0),
        send(2, "s0", 2, ready_us=3.0, busy_us=1.0),
    ]
    transfers = [transfer(1, 0), transfer(0, 2, link=1), transfer(0, 2, link=1)]
    for block in drafts_of(actions, transfers):
        assert [a.leaves for a in block.actions if a.leaves != NONE] in ([], [1, 2])
        assert Op.RECV_COPY_SEND not in [a.op for a in block.actions]


def test_local_work_on_the_same_cells_stays_in_one_threadblock():
    actions = [copy(0, "i0", "o0"), copy(1, "i1", "o1"), add(2, "s0", "o0"), add(3, "s1", "o1"), copy(4, "i2", "o2")]
    found = drafts_of(actions, [], replace(RULES, local_default=2))
    assert [[a.order for a in d.actions] for d in found] == [[0, 2, 4], [1, 3]]


def test_more_threadblocks_for_local_work_than_groups_cut_it_in_the_order_of_time():
    actions = [add(i, f"s{i}", "o0") for i in range(5)]
    found = drafts_of(actions, [], replace(RULES, local={0: 2}))
    assert [[a.order for a in d.actions] for d in found] == [[0, 1], [2, 3, 4]]


def exchange():
    """Sends to 1 at 0 us and to 2 at 10 us, receives from 1 at 1 us and from 2 at 20 us; a copy at 5 us."""
    actions = [
        send(0, "i0", 0, ready_us=0.0, busy_us=2.0),
        recv(1, "o1", 1, ready_us=1.0, busy_us=1.0),
        copy(2, "i2", "o2", ready_us=5.0),
        send(3, "i1", 2, ready_us=10.0, busy_us=2.0),
        recv(4, "o0", 3, ready_us=20.0, busy_us=1.0),
        send(5, "o1", 4, ready_us=1.5, busy_us=1.0),
    ]
    peers = [transfer(0, 1), transfer(1, 0), transfer(0, 2), transfer(2, 0), transfer(0, 3)]
    return actions, [replace(t, link=i) for i, t in enumerate(peers)]


def test_those_threadblocks_are_joined_that_lose_nothing():
    actions, transfers = exchange()
    assert len(drafts_of(actions, transfers, replace(RULES, runtime=RCCL))) == 5
    found = drafts_of(actions, transfers, replace(RULES, runtime=RCCL, max_threadblocks=4))
    assert len(found) == 4
    assert (1, 1) not in [(d.recv_peer, d.send_peer) for d in found], "both would be busy from 0 us on"


def test_threadblocks_are_joined_down_to_what_is_possible():
    actions, transfers = exchange()
    assert len(drafts_of(actions, transfers, replace(RULES, max_threadblocks=3))) == 3
    with pytest.raises(LoweringError, match="rank 0 needs 3 threadblocks at once and may have 2"):
        drafts_of(actions, transfers, replace(RULES, max_threadblocks=2))


def test_joined_threadblocks_keep_the_order_of_time_and_the_limit_of_steps():
    actions, transfers = exchange()
    for block in drafts_of(actions, transfers, replace(RULES, max_threadblocks=3)):
        assert [a.order for a in block.actions] == sorted(a.order for a in block.actions)
    short = replace(RULES, max_threadblocks=3, runtime=replace(EXECUTOR, max_steps=1))
    with pytest.raises(LoweringError):
        drafts_of(actions, transfers, short)
