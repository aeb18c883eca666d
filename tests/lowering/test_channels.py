import pytest

from taccl_py.errors import LoweringError
from taccl_py.lowering.actions import RankWork
from taccl_py.lowering.channels import ChannelRules, assign_channels
from taccl_py.runtimes import EXECUTOR
from tests.lowering import cases
from tests.lowering.blocks import send, transfer


def channels(topology, transfers, *, instances=1, spread=(), actions=None, in_turn=False):
    actions = actions or [send(i, f"i{i}", i, rank=t.src) for i, t in enumerate(transfers)]
    work = RankWork(tuple(actions), tuple(transfers))
    return assign_channels(work, topology, ChannelRules(EXECUTOR, instances, dict(spread), in_turn))


def test_instances_have_channels_of_their_own():
    transfers = [transfer(0, 1, message=0, instance=i) for i in range(3)]
    assert channels(cases.ring(2), transfers, instances=3) == (0, 1, 2)


def test_a_channel_of_a_parallel_link_tells_its_lane():
    topology = cases.machine(2, [(0, 1), (0, 1)])
    transfers = [transfer(0, 1, link=link, message=link, instance=i) for link in (0, 1) for i in range(3)]
    assert channels(topology, transfers, instances=3) == (0, 2, 4, 1, 3, 5)


def test_channels_of_a_spread_link_take_turns_once():
    transfers = [transfer(0, 1, message=m) for m in range(7)]
    assert channels(cases.ring(2), transfers, spread={0: 3}) == (0, 0, 0, 1, 1, 2, 2)


def test_where_threadblocks_take_time_channels_of_a_spread_link_take_turns_by_message():
    transfers = [transfer(0, 1, message=m) for m in range(7)]
    assert channels(cases.ring(2), transfers, spread={0: 3}, in_turn=True) == (0, 1, 2, 0, 1, 2, 0)


def test_turns_follow_the_order_of_sends_not_the_numbers_of_messages():
    transfers = [transfer(0, 1, message=m) for m in (3, 2, 1, 0)]
    actions = [send(i, f"i{i}", i) for i in range(4)]
    assert channels(cases.ring(2), transfers, spread={0: 2}, actions=actions) == (0, 0, 1, 1)


def test_no_rank_has_more_than_32_peers_on_one_channel():
    topology = cases.full(40)
    transfers = [transfer(k.src, k.dst, link=i, message=i) for i, k in enumerate(topology.links)]
    found = channels(topology, transfers)
    for rank in range(40):
        for end in ("src", "dst"):
            mine = [c for t, c in zip(transfers, found, strict=True) if getattr(t, end) == rank]
            assert max(mine.count(channel) for channel in set(mine)) <= 32
    assert max(found) == 1


def test_too_few_channels_are_an_error_that_names_the_link():
    with pytest.raises(LoweringError, match=r"link 0->1 needs 66 channels \(33 instances, 2 for"):
        channels(cases.ring(2), [transfer(0, 1, message=m) for m in range(2)], instances=33, spread={0: 2})
