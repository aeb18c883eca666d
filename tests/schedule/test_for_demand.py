"""Schedules of demands: parts of chunks that go the same way."""

from dataclasses import replace

from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, full

MACHINE = full(3)
WHOLE = demand_of(
    3, [{"bytes": 64, "holds": [0], "wants": [1, 2]}, {"bytes": 32, "holds": [0], "wants": [2]}]
)  # in the input of rank 0 and the output of rank 2 the second lies behind the first


def link(src, dst):
    return MACHINE.links_between[src, dst][0]


def schedule(*messages):
    cut = WHOLE.cut(((0, 0, 16), (0, 16, 16), (0, 32, 16), (0, 48, 16), (1, 0, 16), (1, 16, 16)))
    found = [
        Message(
            link(src, dst), chunks, start, start + MACHINE.message_us(link(src, dst), 16 * len(chunks)), packed=True
        )
        for src, dst, chunks, start in messages
    ]
    return DemandSchedule(MACHINE, cut, tuple(found))


def test_parts_that_take_another_way_stay_apart():
    found = schedule((0, 1, (0, 1, 2, 3), 0.0), (0, 2, (0, 1, 2, 4, 5), 0.0), (1, 2, (3,), 2000.0))
    assert not verify_demand_schedule(found, WHOLE)
    joined = found.coalesced()
    assert [chunk.size_bytes for chunk in joined.demand.chunks] == [48, 16, 32]
    assert [message.chunks for message in joined.messages] == [(0, 1), (0, 2), (1,)]
    assert not verify_demand_schedule(joined, WHOLE)
    assert joined.coalesced() is joined


def test_what_is_no_neighbour_everywhere_stays_apart():
    found = schedule((0, 1, (0, 1, 2, 3), 0.0), (0, 2, (0, 1, 2, 3, 4, 5), 0.0))
    assert [chunk.size_bytes for chunk in found.coalesced().demand.chunks] == [64, 32]
    assert replace(found, demand=WHOLE, messages=found.coalesced().messages).coalesced().demand == WHOLE
