import pytest

from taccl_py.simulate.arbiter import SwitchUse
from taccl_py.simulate.timeline import SwitchWork, Timeline, Transfer, sort_transfers


def test_bandwidths_are_those_of_nccl_tests():
    timeline = Timeline(makespan_us=1000.0, transfers=(), size_bytes=8e6, busbw_factor=1.75)
    assert timeline.algbw_gbps == pytest.approx(8.0)
    assert timeline.busbw_gbps == pytest.approx(14.0)


def test_there_is_no_bandwidth_without_a_time():
    timeline = Timeline(0.0, (), 8e6, 1.0)
    assert timeline.algbw_gbps is None
    assert timeline.busbw_gbps is None


def test_transfers_are_sorted_by_start_and_link():
    moves = [Transfer(link, 0, 1, start, start + 1.0, 8.0) for start, link in ((2.0, 0), (0.0, 3), (0.0, 1))]
    assert [(move.start_us, move.link) for move in sort_transfers(moves)] == [(0.0, 1), (0.0, 3), (2.0, 0)]


def test_the_text_has_a_line_for_each_transfer_and_says_what_it_was():
    moves = (
        Transfer(0, 0, 1, 0.0, 1.5, 4096.0, message=12),
        Transfer(0, 0, 1, 1.5, 3.0, 4096.0, threadblock=2, step=5),
    )
    assert str(Timeline(3.0, moves, 8192.0, 1.0)) == (
        "2 transfers, 3 us\n"
        "      0.0000       1.5000    0 -> 1   4096 bytes, message 12\n"
        "      1.5000       3.0000    0 -> 1   4096 bytes, tb 2 step 5\n"
    )


def test_the_text_says_what_switches_did():
    work = SwitchWork(2, 1, 4, True, (0, 1, 2), 0.5, 3.0, 4096.0, (SwitchUse(0, 0.5, 2.5, 4096.0),))
    assert str(Timeline(3.0, (), 8192.0, 1.0, (work,))) == (
        "0 transfers, 3 us\n      0.5000       3.0000    2 -> 0-2 by switch 4096 bytes, tb 1 step 4\n"
    )
