"""What is copied together before it is sent, and what that saves."""

import pytest

from taccl_py.collective import Kind
from taccl_py.runtimes import MAX_COUNT
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.templates.engine import synthesize_templates
from taccl_py.synthesis.templates.packing import packed_parts
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.topology.catalog import load_topology

HALF = PARAMS.most_packed_bytes / 2


def parts(chunks, chunk_bytes):
    found = packed_parts(UntimedMessage(0, chunks, 0.0, 1.0), chunk_bytes, MAX_COUNT)
    return [(part.chunks, part.packed) for part in found]


@pytest.mark.parametrize(
    ("chunks", "chunk_bytes", "expected"),
    [
        pytest.param((0, 1, 2), 4.0, [((0, 1, 2), True)], id="neighbours may lie apart on the way"),
        pytest.param((0, 2, 4), 4.0, [((0, 2, 4), True)], id="small ones are copied together"),
        pytest.param((0, 2, 4, 6), HALF, [((0, 2), True), ((4, 6), True)], id="no more than is worth it"),
        pytest.param((0, 1, 4, 5), HALF, [((0, 1, 4, 5), False)], id="as few runs are left to be cut"),
        pytest.param((0, 2), HALF * 1.5, [((0, 2), False)], id="large ones are not copied"),
    ],
)
def test_what_is_copied_together(chunks, chunk_bytes, expected):
    assert parts(chunks, chunk_bytes) == expected


def test_messages_of_middle_size_are_packed_where_that_saves_alphas():
    """16 pieces of 8 KiB: an alpha of 0.8 us for each piece is as long as 40 KB take."""
    demand = Demand(load_topology("mi250x", 2), Kind.ALLTOALL, 262144.0)
    schedule = synthesize_templates(demand, Options(limits=Limits(seconds=20)), Events()).schedule
    assert any(message.packed for message in schedule.messages)
    assert schedule.makespan_us < 23


def test_delegates_are_for_messages_of_middle_size_too():
    """Two DGX-2, whose GPUs share NICs in twos: one message of each NIC, gathered before; no less than 11.4 us by the bounds."""
    demand = Demand(load_topology("dgx2", 2), Kind.ALLTOALL, 65536.0)
    schedule = synthesize_templates(demand, Options(limits=Limits(seconds=20)), Events()).schedule
    assert schedule.makespan_us < 13
