"""The timetable finds gaps, and gives back what was put into it."""

from dataclasses import replace

import pytest

from taccl_py.schedule.ir import Message
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.timetable import Delivery, EnteredLink, Timetable
from taccl_py.topology.model import Link, Port, Topology

# Messages of 1 MB take 10 us on each link of this line; links 0 and 2 share a port that is occupied for 5 us.
LINKS = (Link(0, 1, 0, 10, 0, (0,)), Link(1, 0, 0, 10), Link(1, 2, 0, 10, 0, (0,)), Link(2, 1, 0, 10))
LINE = Topology("line", "", (0, 0, 0), (Port("shared", 0, 5),), LINKS)


def table(*grown):
    return Timetable(
        Fabric.of(LINE, 1e6), (0, 0, 0), [Message(link, (chunk,), at, at + 10) for link, at, chunk in grown]
    )


def test_there_is_room_before_between_and_after():
    busy = table((0, 10, 0), (0, 30, 1))
    assert busy.earliest_us(0, 0) == 0  # ends when the first one begins
    assert busy.earliest_us(0, 1) == 20
    assert busy.earliest_us(0, 21) == 40  # 30 to 40 is taken
    assert busy.earliest_us(0, 55) == 55


def test_a_port_and_a_link_have_to_be_free_at_the_same_time():
    busy = table((0, 0, 0), (2, 11, 0))
    # The link is free from 10 us on, but then the port would be taken at 11, until 16.
    assert busy.earliest_us(0, 0) == 16


def test_what_is_taken_out_leaves_no_trace():
    one, two = table((0, 0, 0), (0, 10, 1)), table((0, 0, 0))
    assert one.take(Delivery(1, 1)) == EnteredLink(0, 10)
    assert one.grown() == two.grown()
    assert one.earliest_us(0, 0) == two.earliest_us(0, 0) == 10


def test_messages_start_after_what_lets_them():
    busy = table((0, 0, 0), (0, 10, 1), (2, 20, 1), (2, 45, 0))
    assert busy.reasons(Delivery(1, 1)) == [Delivery(0, 1)]  # the link
    assert busy.reasons(Delivery(1, 2)) == [Delivery(1, 1)]  # the chunk's arrival; the port was free before
    assert busy.reasons(Delivery(0, 2)) == []
    assert busy.last() == (55, [Delivery(0, 2)])


def test_closing_up_keeps_the_order_and_leaves_no_gap():
    busy = table((0, 5, 0), (0, 25, 1), (2, 35, 1), (2, 60, 0))
    busy.close_up()
    # The port holds the second message on link 2 up no longer than the link does.
    assert [hop.start_us for hop in busy.grown()] == pytest.approx([0, 10, 20, 30])
    assert busy.last() == (40, [Delivery(0, 2)])


def test_what_begins_together_at_a_port_that_costs_nothing_can_be_taken_out_one_by_one():
    line = replace(LINE, ports=(Port("free", 0, 0),))
    busy = Timetable(Fabric.of(line, 1e6), (1, 0), [Message(0, (1,), 0, 10), Message(2, (0,), 0, 10)])
    busy.close_up()
    assert busy.take(Delivery(0, 2)) == EnteredLink(2, 0)
    assert busy.take(Delivery(1, 1)) == EnteredLink(0, 0)
    assert busy.grown() == ()
