"""Threadblocks in proportion to their work."""

from taccl_py.lowering.actions import NONE, RankWork
from taccl_py.lowering.balance import ThreadblockBalance
from tests.lowering.blocks import add, recv, send, transfer


def two_links(cells, other):
    """Rank 0 sends this many messages of four cells to rank 1, and that many to rank 2."""
    numbers = range(cells + other)
    transfers = [transfer(0, 1 if i < cells else 2, link=0 if i < cells else 1, count=4, message=i) for i in numbers]
    return RankWork(tuple(send(i, "i0-3", i) for i in numbers), tuple(transfers))


def test_a_link_with_three_times_as_much_has_three_times_as_many_channels_where_there_is_room():
    assert ThreadblockBalance.of(two_links(6, 2), 3, 8).spread == {0: 3}
    assert ThreadblockBalance.of(two_links(6, 2), 3, 3).spread == {0: 2}
    assert ThreadblockBalance.of(two_links(6, 2), 3, 2).spread == {}


def test_links_with_as_much_as_each_other_have_one_channel_each():
    work = two_links(4, 4)
    balance = ThreadblockBalance.of(work, 3, 64)
    assert balance.spread == {}
    assert balance.work is work


def test_a_link_has_no_more_channels_than_messages():
    numbers = range(3)
    transfers = tuple(transfer(0, 1 + (i > 1), link=int(i > 1), count=1 if i > 1 else 40, message=i) for i in numbers)
    work = RankWork(tuple(send(i, "i0-39" if i < 2 else "i0-0", i) for i in numbers), transfers)
    assert ThreadblockBalance.of(work, 3, 64).spread == {0: 2}


def received(target, place):
    """Rank 0 receives four messages of four cells from rank 1, each of which is added up beside its arrival."""
    actions = []
    for i in range(4):
        actions += [recv(2 * i, place, i), add(2 * i + 1, "i0-3", target, beside=i)]
    return RankWork(tuple(actions), tuple(transfer(1, 0, count=4, message=i) for i in range(4)))


def beside(work, blocks):
    return [action.beside for action in ThreadblockBalance.of(work, 2, blocks).work.actions if action.is_local]


def test_threadblocks_for_local_work_take_over_sums_until_they_are_half_as_busy_as_the_receiver():
    """The receiver has 16 cells to receive and 16 to add up. One other threadblock takes 12, half of the 24 before: 16 would be more than half of 20."""
    work = received("s0-3", "s0-3")
    assert beside(work, 1) == [0, 1, 2, 3]
    assert beside(work, 2) == [0, NONE, NONE, NONE]
    assert beside(work, 3) == [NONE] * 4


def test_a_sum_in_the_output_stays_with_who_wrote_there():
    assert beside(received("o0-3", "o0-3"), 8) == [0, 1, 2, 3]
    assert beside(received("o0-3", "s0-3"), 8) == [NONE] * 4
