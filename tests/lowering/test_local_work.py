from taccl_py.lowering.actions import RankWork
from taccl_py.lowering.local_work import _LEAST_PART_BYTES, _MOST_PARTS, in_parts
from taccl_py.lowering.program import Op
from tests.lowering.blocks import add, copy, recv, send, transfer

LARGE = float(_LEAST_PART_BYTES)


def parts(actions, transfers=(), *, blocks=64, cell_bytes=LARGE, num_ranks=1):
    found = in_parts(RankWork(tuple(actions), tuple(transfers)), num_ranks, blocks, cell_bytes)
    assert [action.order for action in found.actions] == list(range(len(found.actions)))
    return [(str(a.op), a.reads and (a.reads.first, a.reads.count), a.writes and (a.writes.first, a.writes.count)) for a in found.actions]  # fmt: skip


def test_a_sum_is_cut_into_parts_of_the_same_cells_at_both_ends():
    found = parts([add(0, "s0-4", "o5-9")], blocks=2)
    assert found == [(str(Op.REDUCE), (0, 2), (5, 2)), (str(Op.REDUCE), (2, 3), (7, 3))]


def test_sums_of_one_target_are_cut_alike():
    found = parts([copy(0, "i0-3", "o0-3"), add(1, "s0-3", "o0-3"), add(2, "s4-7", "o0-3")], blocks=2)
    assert [cells for _, _, cells in found] == [(0, 2), (2, 2)] * 3


def test_connections_and_other_targets_leave_no_threadblocks():
    actions = [recv(0, "s0-3", 0), add(1, "s0-3", "o0-3"), add(2, "s4-7", "o4-7"), send(3, "o0-3", 1)]
    transfers = [transfer(1, 0, count=4), transfer(0, 1, link=1, count=4, message=1)]
    assert len(parts(actions, transfers, blocks=5)) == 4
    assert len(parts(actions, transfers, blocks=6)) == 6


def test_parts_are_neither_many_nor_small_nor_less_than_a_cell():
    assert len(parts([copy(0, "i0-15", "o0-15")])) == _MOST_PARTS
    assert len(parts([copy(0, "i0-15", "o0-15")], cell_bytes=LARGE / 8)) == 2
    assert len(parts([copy(0, "i0-15", "o0-15")], cell_bytes=LARGE / 16)) == 1
    assert len(parts([copy(0, "i0-1", "o0-1")], cell_bytes=8 * LARGE)) == 2


def test_what_crosses_links_stays_whole():
    actions = [recv(0, "s0-7", 0), send(1, "i0-7", 1)]
    assert len(parts(actions, [transfer(1, 0, count=8), transfer(0, 1, link=1, count=8, message=1)])) == 2
