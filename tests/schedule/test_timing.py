from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import (
    PlanDependences,
    build_schedule,
    dispatch_messages,
    find_deliveries,
    time_messages,
)
from taccl_py.schedule.transform import resized, untimed_messages
from taccl_py.topology.model import Link, Port
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, chain, machine, ring, star_in
from tests.simulate.cases import schedules


def times(topology, *drafts, chunk_bytes=MB):
    return [(m.start_us, m.end_us) for m in time_messages(topology, chunk_bytes, drafts)]


def test_a_message_takes_alpha_once_and_beta_for_its_bytes():
    assert times(chain(2, 3.0, 10.0), UntimedMessage(0, (0,), 0, 1)) == [(0.0, 13.0)]
    assert times(chain(2, 3.0, 10.0), UntimedMessage(0, (0, 1, 2), 0, 1)) == [(0.0, 33.0)]
    assert times(chain(2, 3.0, 10.0), UntimedMessage(0, (0,), 0, 1), chunk_bytes=2_500_000) == [(0.0, 28.0)]


def test_messages_on_one_link_take_turns_in_planned_order():
    late, early = UntimedMessage(0, (0,), 7, 8), UntimedMessage(0, (1,), 3, 4)
    messages = time_messages(chain(2, 1.0, 10.0), MB, [late, early])
    assert [(m.chunks, m.start_us) for m in messages] == [((1,), 0.0), ((0,), 11.0)]


def test_equal_plans_go_in_the_order_given():
    messages = time_messages(chain(2, 1.0, 10.0), MB, [UntimedMessage(0, (chunk,), 0, 1) for chunk in (2, 0, 1)])
    assert [m.chunks for m in messages] == [(2,), (0,), (1,)]


def test_a_chunk_is_sent_on_when_it_has_arrived():
    assert times(chain(3, 1.0, 10.0, 5.0), UntimedMessage(0, (0,), 0, 1), UntimedMessage(1, (0,), 1, 2)) == [
        (0.0, 16.0),
        (16.0, 32.0),
    ]


def test_latency_occupies_nothing():
    topology = chain(2, 1.0, 10.0, 5.0)
    assert times(topology, UntimedMessage(0, (0,), 0, 1), UntimedMessage(0, (1,), 1, 2)) == [(0.0, 16.0), (11.0, 27.0)]


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (Port("equal", 0.0, 10.0), [(0.0, 10.0), (10.0, 20.0)]),
        (Port("fast", 1.0, 3.0), [(0.0, 10.0), (4.0, 14.0)]),
        (Port("slow", 0.0, 25.0), [(0.0, 25.0), (25.0, 50.0)]),
    ],
)
def test_links_behind_a_port_take_turns_for_what_each_holds_it(port, expected):
    assert times(star_in(2, port), UntimedMessage(0, (1,), 0, 1), UntimedMessage(1, (2,), 0, 1)) == expected


def test_both_ports_of_a_link_must_be_free():
    ports = [Port("out", 0.0, 10.0), Port("in", 0.0, 10.0)]
    links = [Link(0, 1, 0, 10, ports=(0,)), Link(2, 3, 0, 10, ports=(1,)), Link(0, 3, 0, 10, ports=(0, 1))]
    topology = machine(4, links, ports)
    drafts = [UntimedMessage(0, (0,), 0, 1), UntimedMessage(topology.links_between[2, 3][0], (1,), 0, 3)]
    drafts.append(UntimedMessage(topology.links_between[0, 3][0], (2,), 1, 2))
    assert times(topology, *drafts) == [(0.0, 10.0), (0.0, 10.0), (10.0, 20.0)]


def test_a_sum_waits_for_every_part_that_was_planned_before_it():
    topology = machine(4, [Link(0, 2, 0, 10), Link(1, 2, 0, 30), Link(2, 3, 0, 10)])
    parts = [UntimedMessage(0, (0,), 0, 1, True), UntimedMessage(1, (0,), 0, 3, True)]
    assert times(topology, *parts, UntimedMessage(2, (0,), 3, 4, True))[-1] == (30.0, 40.0)
    assert times(topology, *parts, UntimedMessage(2, (0,), 2, 4, True))[-1] == (10.0, 20.0), (
        "planned before the second part came"
    )


def test_what_is_added_waits_for_what_is_stored_there_before():
    """Rank 1 gets another's sum in the place of its own (30 us); what rank 0 adds to it must not come first."""
    topology = machine(3, [Link(0, 1, 0.0, 10.0), Link(2, 1, 0.0, 30.0)])
    added = UntimedMessage(topology.links_between[0, 1][0], (0,), 3, 4, True)
    stored = UntimedMessage(topology.links_between[2, 1][0], (0,), 0, 3)
    assert times(topology, stored, added) == [(0.0, 30.0), (30.0, 40.0)]
    assert times(topology, stored, replace(added, start=1))[-1] == (0.0, 10.0), "by the plan at the same time"


def test_a_group_waits_for_its_last_chunk():
    drafts = [UntimedMessage(0, (0,), 0, 1), UntimedMessage(0, (1,), 1, 2), UntimedMessage(1, (0, 1), 2, 3)]
    assert times(chain(3, 1.0, 10.0), *drafts)[-1] == (22.0, 43.0)


def test_small_errors_in_a_plan_do_not_lose_a_delivery():
    drafts = [UntimedMessage(0, (0,), 0.0, 0.1 + 0.2), UntimedMessage(1, (0,), 0.3, 0.6)]
    assert times(chain(3, 1.0, 10.0), *drafts) == [(0.0, 11.0), (11.0, 22.0)]


def test_building_cuts_places_and_times():
    collective = Collective(Kind.SCATTER, 3)
    schedule = build_schedule(
        chain(3, 1.0, 10.0), collective, MB, [UntimedMessage(0, (1, 2), 0, 1), UntimedMessage(1, (2,), 1, 2)]
    )
    assert verify_schedule(schedule) == ()
    assert schedule.scratch == ((), (1, 2), ())
    assert [(m.chunks, m.start_us, m.end_us) for m in schedule.messages] == [((1, 2), 0.0, 21.0), ((2,), 21.0, 32.0)]


@settings(max_examples=80)
@given(schedules(delays=True))
def test_retiming_a_valid_schedule_keeps_it_valid_and_never_delays_it(schedule):
    """Its own messages as the plan: the order on every link and port stays, and idle time goes."""
    retimed = time_messages(schedule.topology, schedule.chunk_bytes, untimed_messages(schedule))
    again = replace(schedule, messages=retimed)
    assert verify_schedule(again) == ()
    assert again.makespan_us <= schedule.makespan_us * (1 + 1e-9)
    planned = sorted(schedule.messages, key=lambda m: m.start_us)
    assert [(m.link, m.chunks) for m in retimed] == [(m.link, m.chunks) for m in planned]
    for message, plan in zip(retimed, planned, strict=True):
        assert message.start_us <= plan.start_us * (1 + 1e-9) + 1e-9


@settings(max_examples=40)
@given(schedules(delays=True))
def test_retiming_twice_changes_nothing_more(schedule):
    first = resized(schedule, schedule.chunk_bytes)
    assert resized(first, schedule.chunk_bytes) == first


def test_the_longest_path_goes_first_through_a_port():
    links = [Link(0, 1, 0.0, 10.0, ports=(0,)), Link(0, 2, 0.0, 10.0, 5.0, ports=(0,)), Link(1, 3, 0.0, 30.0)]
    topology = machine(4, links, [Port("out", 0.0, 10.0)])
    drafts = [
        UntimedMessage(1, (0,), 0.0, 15.0),
        UntimedMessage(0, (0,), 10.0, 20.0),
        UntimedMessage(2, (0,), 20.0, 50.0),
    ]
    assert max(m.end_us for m in time_messages(topology, MB, drafts)) == 50.0
    dispatched = dispatch_messages(topology, MB, drafts)
    assert sorted((m.link, m.start_us, m.end_us) for m in dispatched) == [(0, 0, 10), (1, 10, 25), (2, 10, 40)]
    as_planned = PlanDependences.of(topology, drafts).dispatched([MB] * 3, as_planned=True)
    assert sorted((m.link, m.start, m.end) for m in as_planned) == [(0, 10, 20), (1, 0, 15), (2, 20, 50)]


def test_what_comes_late_does_not_hold_up_what_is_there():
    """Rank 1 is to pass rank 0's chunk on before it sends its own, through one port; but it is there only after 30 us."""
    links = [Link(0, 1, 0.0, 30.0), Link(1, 2, 0.0, 10.0, ports=(0,)), Link(1, 3, 0.0, 10.0, ports=(0,))]
    topology = machine(4, links, [Port("out", 0.0, 10.0)])
    drafts = [
        UntimedMessage(0, (0,), 0.0, 1.0),
        UntimedMessage(1, (0,), 1.0, 2.0),
        UntimedMessage(2, (1,), 2.0, 3.0),
    ]
    assert max(m.end for m in PlanDependences.of(topology, drafts).in_order([MB] * 3)) == 50.0
    as_planned = PlanDependences.of(topology, drafts).dispatched([MB] * 3, as_planned=True)
    assert sorted((m.link, m.start, m.end) for m in as_planned) == [(0, 0, 30), (1, 30, 40), (2, 0, 10)]


@settings(max_examples=60)
@given(schedules(delays=True))
def test_messages_in_an_order_of_their_own_are_valid(schedule):
    again = replace(
        schedule, messages=dispatch_messages(schedule.topology, schedule.chunk_bytes, untimed_messages(schedule))
    )
    assert verify_schedule(again) == ()
    assert sorted((m.link, m.chunks) for m in again.messages) == sorted((m.link, m.chunks) for m in schedule.messages)


def test_a_ring_is_timed_without_idle_time():
    drafts = [
        UntimedMessage(rank, ((rank - hop) % 4,), 50.0 * hop, 50.0 * hop + 50) for hop in range(3) for rank in range(4)
    ]
    schedule = build_schedule(ring(4), Collective(Kind.ALLGATHER, 4), MB, drafts)
    assert schedule.makespan_us == 33.0
    assert verify_schedule(schedule) == ()


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-12, 1e6])
def test_however_short_messages_are_none_waits_for_what_comes_later(scale):
    """Rank 1 sends its part of the sum while that of rank 0 is still on its way to it, and then that."""
    drafts = [
        UntimedMessage(0, (0,), 0.0, 2 * scale, True),
        UntimedMessage(1, (0,), scale, 3 * scale, True),
        UntimedMessage(1, (0,), 3 * scale, 5 * scale, True),
    ]
    assert find_deliveries(chain(3, 1.0, 10.0), drafts) == [set(), set(), {0}]


@settings(max_examples=100)
@given(schedules(), st.data())
def test_messages_cut_into_parts_are_timed_as_a_plan_of_the_parts(schedule, data):
    """What waits for a message waits for all its parts; those of no part are waited for by nobody."""
    untimed = untimed_messages(schedule)
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=len(untimed), max_size=len(untimed)))
    parts = [message for message, number in zip(untimed, numbers, strict=True) for _ in range(number)]
    whole, last = 2.5 * MB, 0.5 * MB
    sizes = [whole if part < number - 1 else last for number in numbers for part in range(number)]
    plan = PlanDependences.of(schedule.topology, untimed)
    assert plan.cut(numbers).time_us(sizes) == PlanDependences.of(schedule.topology, parts).time_us(sizes)
