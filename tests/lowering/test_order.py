from dataclasses import replace

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.order import Event, order_events
from taccl_py.schedule.ir import Message
from tests.lowering import cases


def broken(**changes):
    schedule = cases.chain_broadcast(3, 1)
    return replace(schedule, messages=(replace(schedule.messages[0], **changes), *schedule.messages[1:]))


def test_an_arrival_comes_before_a_start_of_the_same_moment():
    assert order_events(cases.chain_broadcast(3, 1)) == (
        Event(0, False, 0.0),
        Event(0, True, 2.0),
        Event(1, False, 2.0),
        Event(1, True, 4.0),
    )


def test_a_start_a_rounding_error_before_the_arrival_is_the_same_moment():
    schedule = cases.chain_broadcast(3, 1)
    late = replace(schedule.messages[0], end_us=2.0 + 1e-9)
    events = order_events(replace(schedule, messages=(late, schedule.messages[1])))
    assert [(event.message, event.arrives) for event in events[1:3]] == [(0, True), (1, False)]


def test_a_start_well_before_the_arrival_comes_first():
    schedule = cases.chain_broadcast(3, 1)
    late = replace(schedule.messages[0], end_us=2.001)
    events = order_events(replace(schedule, messages=(late, schedule.messages[1])))
    assert [(event.message, event.arrives) for event in events[1:3]] == [(1, False), (0, True)]


@pytest.mark.parametrize(
    ("schedule", "what"),
    [
        (broken(link=7), "link 7"),
        (broken(chunks=()), "no chunk"),
        (broken(chunks=(0, 0)), "twice"),
        (broken(chunks=(1,)), "does not exist"),
        (broken(end_us=0.0), "after its start"),
        (broken(end_us=float("nan")), "after its start"),
        (broken(reduce=True), "broadcast sums nothing"),
        (replace(cases.chain_broadcast(3, 1), scratch=()), "0 scratch lists"),
        (
            replace(cases.chain_broadcast(3, 1), collective=Collective(Kind.BROADCAST, 4), scratch=((),) * 4),
            "4 ranks and the topology 3",
        ),
    ],
)
def test_messages_that_make_no_sense_are_refused(schedule, what):
    with pytest.raises(InputError, match=what):
        order_events(schedule)


def test_messages_that_overtake_each_other_on_a_link_are_refused():
    schedule = cases.chain_broadcast(2, 2)
    messages = (Message(0, (0,), 0.0, 9.0), Message(0, (1,), 2.0, 4.0))
    with pytest.raises(InputError, match="overtakes"):
        order_events(replace(schedule, messages=messages))
