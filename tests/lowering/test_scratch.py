from dataclasses import replace

from taccl_py.lowering.program import Op
from taccl_py.lowering.scratch import pack_scratch
from tests.lowering.blocks import act, block, cells, copy, recv, send, transfer


def relay(first_us, second_us):
    """Two chunks pass through scratch 4 and 9; the second message starts at `second_us`."""
    actions = [
        recv(0, "s4", 0, ready_us=1.0),
        send(1, "s4", 1, ready_us=first_us, busy_us=2.0),
        recv(2, "s9", 2, ready_us=second_us + 1.0),
        send(3, "s9", 3, ready_us=second_us + 1.0, busy_us=2.0),
    ]
    transfers = (
        transfer(1, 0, start_us=0.0), transfer(0, 2, start_us=first_us),
        transfer(1, 0, start_us=second_us), transfer(0, 2, start_us=second_us + 1.0),
    )  # fmt: skip
    blocks = (block(actions[0], actions[2], recv_peer=1), block(actions[1], actions[3], send_peer=2))
    return blocks, transfers


def used(packed):
    return [c for d in packed.threadblocks for a in d.actions for c in (a.reads, a.writes) if c is not None]


def test_a_cell_is_used_again_when_its_last_reader_has_finished():
    packed = pack_scratch(*relay(1.0, 3.0), reuse=True)
    assert packed.scratch_cells == 1
    assert used(packed) == [cells("s0")] * 4


def test_a_cell_is_not_used_again_while_it_is_read():
    packed = pack_scratch(*relay(1.0, 2.9), reuse=True)
    assert packed.scratch_cells == 2
    assert used(packed) == [cells("s0"), cells("s1"), cells("s0"), cells("s1")]


def test_a_cell_that_nobody_reads_is_free_when_its_message_is_there():
    blocks = (
        block(recv(0, "s4", 0, ready_us=1.0, busy_us=1.0), recv(1, "s9", 1, ready_us=2.0, busy_us=1.0), recv_peer=1),
    )
    transfers = (transfer(1, 0, start_us=0.0), transfer(1, 0, start_us=1.0))
    assert pack_scratch(blocks, transfers, reuse=True).scratch_cells == 1


def test_without_reuse_cells_only_move_together():
    assert pack_scratch(*relay(1.0, 3.0), reuse=False).scratch_cells == 2


def test_a_cell_that_two_threadblocks_read_last_is_not_used_again():
    (receiver, sender), transfers = relay(1.0, 3.0)
    reader = block(copy(1, "s4", "o0", ready_us=1.0))
    both = (
        block(*(replace(a, order=2 * a.order) for a in receiver.actions), recv_peer=1),
        block(*(replace(a, order=2 * a.order) for a in sender.actions), send_peer=2),
        reader,
    )
    assert pack_scratch(both[:2], transfers, reuse=True).scratch_cells == 1
    assert pack_scratch(both, transfers, reuse=True).scratch_cells == 2


def test_cells_that_are_used_together_stay_neighbours():
    blocks = (
        block(recv(0, "s7", 0), recv(1, "s8-9", 1), recv(2, "s3", 2), recv_peer=1),
        block(act(3, Op.SEND, "s7-9", leaves=3), send_peer=2),
    )
    packed = pack_scratch(blocks, tuple(transfer(1, 0) for _ in range(4)), reuse=True)
    first, second, other, together = used(packed)
    assert packed.scratch_cells == 4
    assert (together.first, together.count) == (first.first, 3)
    assert second.first == first.first + 1
    assert other.first not in range(together.first, together.end)


def test_cells_that_are_not_used_any_more_are_gone():
    blocks = (block(recv(0, "s100", 0), recv_peer=1),)
    assert pack_scratch(blocks, (transfer(1, 0),), reuse=True).scratch_cells == 1
