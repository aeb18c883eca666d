import random

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.lowering.actions import RankWork
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.memory import CellHistory
from taccl_py.lowering.sequence import sequence_actions
from tests.lowering.blocks import recv, send, transfer


def sequenced(actions, transfers):
    geometry = BufferSizes(Collective(Kind.ALLGATHER, 2, 50), 1, exact=False)
    found = sequence_actions(RankWork(tuple(actions), tuple(transfers)), CellHistory(actions, geometry, aliased=True))
    assert [action.order for action in found.actions] == list(range(len(found.actions)))
    return [action.leaves if action.leaves >= 0 else 10 + action.arrives for action in found.actions]


def test_every_message_is_taken_before_the_next_one_is_given():
    """Three messages on one link are all under way before the first arrives."""
    actions = [send(i, f"i{i}", i) for i in range(3)] + [recv(3 + i, f"o{i}", i, rank=1) for i in range(3)]
    assert sequenced(actions, [transfer(0, 1)] * 3) == [0, 10, 1, 11, 2, 12]


def test_messages_of_different_links_and_instances_do_not_wait_for_each_other():
    actions = [send(0, "i0", 0), send(1, "i1", 1), recv(2, "o0", 0, rank=1), recv(3, "o1", 1, rank=1)]
    assert sequenced(actions, [transfer(0, 1), transfer(0, 1, link=1)]) == [0, 1, 10, 11]
    assert sequenced(actions, [transfer(0, 1), transfer(0, 1, instance=1)]) == [0, 1, 10, 11]


def test_where_memory_needs_two_messages_in_flight_two_are_allowed():
    """The first message must not be stored before data have come that rank 0 sends after the second one."""
    actions = [
        send(0, "s0", 0), send(1, "s1", 1), send(2, "s7", 2, rank=1), recv(3, "s1", 2),
        send(4, "s1", 3), recv(5, "s8", 3, rank=1), recv(6, "s8", 0, rank=1), recv(7, "s9", 1, rank=1),
    ]  # fmt: skip
    transfers = [transfer(0, 1), transfer(0, 1), transfer(1, 0, link=1), transfer(0, 1, link=2)]
    found = sequenced(actions, transfers)
    assert found.index(1) < found.index(13) < found.index(10)


@pytest.mark.parametrize("seed", range(60))
def test_messages_of_a_link_are_taken_in_the_order_in_which_they_are_given(seed):
    """Ten messages on two links, on which none overtakes another one, to and from three cells."""
    draw, numbers = random.Random(seed), range(10)
    ends = [draw.choice([(0, 1), (1, 0)]) for _ in numbers]
    transfers = [transfer(src, dst, link=src) for src, dst in ends]
    on_link = {each.link: [number for number in numbers if transfers[number].link == each.link] for each in transfers}
    moments = [(number, number, False) for number in numbers]
    moments += [(number + draw.choice([0.5, 3.5, 6.5]), number, True) for number in numbers]
    actions, waiting = [], {link: list(queue) for link, queue in on_link.items()}
    for order, (_, number, arrives) in enumerate(sorted(moments)):
        cell = f"s{draw.randrange(3)}"
        if arrives:
            first = waiting[transfers[number].link].pop(0)
            actions.append(recv(order, cell, first, rank=transfers[first].dst))
        else:
            actions.append(send(order, cell, number, rank=transfers[number].src))
    found = sequenced(actions, transfers)
    for queue in on_link.values():
        assert [each for each in found if each in queue] == queue
        assert [each - 10 for each in found if each - 10 in queue] == queue
