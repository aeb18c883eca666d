import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.topology.model import Link, Port
from taccl_py.verify.schedule import verify_schedule
from tests.simulate.cases import (
    MB,
    Planner,
    both_ways,
    chain_broadcast,
    machine,
    recursive_doubling,
    relayed_scatter,
    ring_allgather,
    ring_allreduce,
    schedules,
)
from tests.verify.naive_verifier import naive_verdict, occupied


def edited(schedule, index, **changes):
    messages = list(schedule.messages)
    messages[index] = replace(messages[index], **changes)
    return replace(schedule, messages=tuple(messages))


def without(schedule, index):
    return replace(schedule, messages=schedule.messages[:index] + schedule.messages[index + 1 :])


def violations(schedule):
    return [(violation.where, violation.rule) for violation in verify_schedule(schedule)]


def only(schedule):
    """The one error to a schedule."""
    found = verify_schedule(schedule)
    assert len(found) == 1, found
    return found[0]


# Valid schedules


@pytest.mark.parametrize(
    "schedule",
    [
        ring_allgather(4),
        ring_allgather(2, chunk_bytes=0.25),
        ring_allreduce(4),
        recursive_doubling(),
        chain_broadcast(4, 3),
        relayed_scatter(),
    ],
)
def test_a_valid_schedule_draws_no_error(schedule):
    assert verify_schedule(schedule) == ()


@settings(max_examples=300)
@given(schedules(delays=True))
def test_no_random_valid_schedule_draws_an_error(schedule):
    assert verify_schedule(schedule) == ()


def test_a_message_may_leave_in_the_moment_in_which_rounding_says_its_chunk_is_not_there_yet():
    schedule = chain_broadcast(3, 1)
    hop = schedule.messages[1]
    early = edited(schedule, 1, start_us=hop.start_us * (1 - 1e-15), end_us=hop.end_us * (1 - 1e-15))
    assert early.messages[1].start_us < early.messages[0].end_us
    assert verify_schedule(early) == ()


def test_a_schedule_of_many_hours_is_verified_in_spite_of_rounding():
    schedule = ring_allgather(4, chunk_bytes=1.0)
    late = replace(
        schedule,
        messages=tuple(replace(m, start_us=m.start_us + 1e11, end_us=m.end_us + 1e11) for m in schedule.messages),
    )
    assert verify_schedule(late) == ()


# One schedule for every rule, broken on purpose


def test_a_collective_of_other_ranks_than_the_topology_is_refused():
    wrong = only(replace(ring_allgather(4), collective=Collective(Kind.ALLGATHER, 3), scratch=((),) * 3))
    assert (wrong.where, wrong.rule) == ("", "rank-count")
    assert "3 ranks" in wrong.what
    assert "topology 4" in wrong.what


@pytest.mark.parametrize("size", [0.0, -1.0, math.inf, math.nan])
def test_a_chunk_size_must_be_positive_and_finite(size):
    assert only(replace(ring_allgather(3), chunk_bytes=size)).rule == "chunk-size"


def test_a_time_must_be_early_enough_to_tell_how_long_a_message_takes():
    right = ring_allgather(3)
    last = right.messages[-1]
    duration_us = last.end_us - last.start_us
    late = replace(last, start_us=1e9, end_us=1e9 + duration_us)
    assert verify_schedule(replace(right, messages=(*right.messages[:-1], late))) == ()
    for start_us in (1e17, 1e308):
        late = replace(last, start_us=start_us, end_us=start_us + duration_us)
        wrong = only(replace(right, messages=(*right.messages[:-1], late)))
        assert wrong.rule == "bad-time"
        assert "so late" in wrong.what


@pytest.mark.parametrize(
    ("expected", "rule"),
    [
        ({"kind": Kind.ALLGATHER}, None),
        ({"kind": Kind.ALLTOALL}, "collective"),
        ({"root": 0}, "wrong-root"),
        ({"kind": Kind.ALLGATHER, "root": None}, None),
    ],
)
def test_a_schedule_is_for_the_collective_that_is_expected(expected, rule):
    assert [violation.rule for violation in verify_schedule(ring_allgather(3), **expected)] == ([rule] if rule else [])


def test_every_rank_has_a_scratch_list():
    assert only(replace(ring_allgather(3), scratch=((), ()))).rule == "scratch-shape"


def test_a_scratch_list_names_chunks_that_exist():
    wrong = only(replace(ring_allgather(3), scratch=((), (3,), ())))
    assert wrong.rule == "scratch-chunk"
    assert "rank 1" in wrong.what
    assert "chunk 3" in wrong.what
    assert "0..2" in wrong.what


def test_a_scratch_list_names_a_chunk_once():
    assert only(replace(relayed_scatter(), scratch=((), (1, 2), (0, 0)))).rule == "scratch-twice"


@pytest.mark.parametrize("link", [-1, 4, 99])
def test_a_message_uses_a_link_that_exists(link):
    found = violations(edited(ring_allgather(4), 11, link=link))
    index = next(i for i, m in enumerate(edited(ring_allgather(4), 11, link=link).messages) if m.link == link)
    assert found[0] == (f"message {index}", "no-such-link")
    assert [rule for _, rule in found[1:]] == ["missing"]


@pytest.mark.parametrize("chunk", [-1, 4])
def test_a_message_carries_chunks_that_exist(chunk):
    wrong, missing = verify_schedule(edited(ring_allgather(4), 11, chunks=(chunk,)))
    assert (wrong.where, wrong.rule) == ("message 11 (3->0)", "no-such-chunk")
    assert (missing.where, missing.rule) == ("rank 0", "missing")


def test_a_message_carries_something():
    assert violations(edited(chain_broadcast(2, 1), 0, chunks=())) == [
        ("message 0 (0->1)", "no-chunks"),
        ("rank 1", "missing"),
    ]


def test_a_message_carries_a_chunk_once():
    assert violations(edited(chain_broadcast(2, 1), 0, chunks=(0, 0)))[0] == ("message 0 (0->1)", "chunk-twice")


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf])
def test_times_are_finite(time):
    assert ("message 0 (0->1)", "bad-time") in violations(edited(chain_broadcast(2, 1), 0, end_us=time))


def test_no_message_starts_before_the_schedule_does():
    schedule = chain_broadcast(2, 1)
    wrong = only(edited(schedule, 0, start_us=-1.0, end_us=schedule.messages[0].end_us - 1.0))
    assert (wrong.where, wrong.rule) == ("message 0 (0->1)", "bad-time")


@pytest.mark.parametrize("end_us", [10.99, 11.01, 12.0, 0.0, -5.0])
def test_a_message_takes_exactly_what_the_cost_model_says(end_us):
    assert chain_broadcast(2, 1).messages[0].end_us == 11.0
    wrong = only(edited(chain_broadcast(2, 1), 0, end_us=end_us))
    assert (wrong.where, wrong.rule) == ("message 0 (0->1)", "wrong-duration")
    assert "take 11 us" in wrong.what


def test_a_message_cannot_take_longer_than_numbers_go():
    schedule = replace(relayed_scatter(), chunk_bytes=1e308)
    assert ("message 0 (0->1)", "wrong-duration") in violations(schedule)


def test_the_duration_counts_all_chunks_the_slowest_port_and_the_latency():
    topology = machine(2, [Link(0, 1, 1.0, 10.0, 0.25, (0,)), Link(1, 0, 1.0, 10.0)], [Port("nic", 3.0, 12.0)])
    collective = Collective(Kind.BROADCAST, 2, chunks_per_rank=2)
    right = Schedule(topology, collective, MB, (Message(0, (0, 1), 0.0, 27.25),), ((), ()))
    assert verify_schedule(right) == ()
    for wrong_us in (15.25, 27.0, 21.25):
        assert violations(edited(right, 0, end_us=wrong_us)) == [("message 0 (0->1)", "wrong-duration")]


def test_a_link_serves_one_message_at_a_time():
    schedule = chain_broadcast(2, 2)
    second = schedule.messages[1]
    assert second.start_us == 11.0
    wrong = only(edited(schedule, 1, start_us=10.0, end_us=21.0))
    assert (wrong.where, wrong.rule) == ("message 1 (0->1)", "overlap")
    assert "message 0 (0->1) until 11 us" in wrong.what


def test_a_port_serves_one_message_at_a_time_for_its_own_occupancy():
    links = [Link(0, 1, 1.0, 40.0, ports=(0,)), Link(0, 2, 1.0, 40.0, ports=(0,))]
    topology = machine(3, links, [Port("nic out", 1.0, 10.0)])
    planner = Planner(topology, Collective(Kind.BROADCAST, 3), MB)
    planner.send(0, 0)
    planner.send(1, 0)
    schedule = planner.schedule()
    assert [m.start_us for m in schedule.messages] == [0.0, 11.0]
    assert verify_schedule(schedule) == ()
    wrong = only(edited(schedule, 1, start_us=10.9, end_us=51.9))
    assert (wrong.where, wrong.rule) == ("message 1 (0->2)", "overlap")
    assert "nic out" in wrong.what


def test_an_overlap_with_a_message_that_is_not_the_last_one_is_found():
    links = [Link(0, r, 1.0, beta, ports=(0,)) for r, beta in ((1, 1.0), (2, 1.0), (3, 1.0))]
    topology = machine(4, links, [Port("nic out", 0.0, 30.0)])
    collective = Collective(Kind.SCATTER, 4, chunks_per_rank=10)
    messages = (
        Message(0, tuple(range(10, 20)), 0.0, 300.0),
        Message(1, (20,), 50.0, 80.0),
        Message(2, (30,), 100.0, 130.0),
    )
    found = violations(Schedule(topology, collective, MB, messages, ((),) * 4))
    assert ("message 1 (0->2)", "overlap") in found
    assert ("message 2 (0->3)", "overlap") in found


def test_a_port_without_a_cost_holds_nobody_up():
    links = [Link(0, 1, 1.0, 10.0, ports=(0,)), Link(0, 2, 1.0, 10.0, ports=(0,))]
    topology = machine(3, links, [Port("backplane", 0.0, 0.0)])
    messages = (Message(0, (0,), 0.0, 11.0), Message(1, (0,), 0.0, 11.0))
    assert verify_schedule(Schedule(topology, Collective(Kind.BROADCAST, 3), MB, messages, ((),) * 3)) == ()


def test_a_chunk_that_the_receiver_does_not_want_needs_a_place():
    wrong = only(replace(relayed_scatter(), scratch=((), (1,), ())))
    assert (wrong.where, wrong.rule) == ("message 0 (0->1)", "no-place")
    assert "scratch[1]" in wrong.what


def test_a_partial_sum_of_a_chunk_that_the_rank_does_not_want_needs_a_place():
    planner = Planner(both_ways((0, 1), (1, 2)), Collective(Kind.REDUCE, 3, root=0), MB)
    planner.hop(2, 1, 0, reduce=True)
    planner.hop(1, 0, 0, reduce=True)
    schedule = planner.schedule()
    assert schedule.scratch == ((), (0,), ())
    assert verify_schedule(schedule) == ()
    wrong = only(replace(schedule, scratch=((), (), ())))
    assert (wrong.where, wrong.rule) == ("message 0 (2->1)", "no-place")


@pytest.mark.parametrize("scratch", [(2, 1), (1, 0, 2)])
def test_the_chunks_of_a_message_are_neighbours_at_the_receiver(scratch):
    wrong = only(replace(relayed_scatter(), scratch=((), scratch, ())))
    assert (wrong.where, wrong.rule) == ("message 0 (0->1)", "not-contiguous")
    assert "receiver (rank 1)" in wrong.what


def test_the_chunks_of_a_packed_message_lie_anywhere_whether_they_are_stored_or_added():
    schedule = replace(relayed_scatter(), scratch=((), (1, 0, 2), ()))
    packed = replace(schedule, messages=tuple(replace(m, packed=True) for m in schedule.messages))
    assert verify_schedule(packed) == ()
    sums = Planner(both_ways((0, 1)), Collective(Kind.ALLREDUCE, 2, chunks_per_rank=1), MB)
    sums.hop(0, 1, 1, 0, reduce=True)
    sums.hop(1, 0, 0, 1)
    assert [rule for _, rule in violations(sums.schedule())] == ["not-contiguous", "not-contiguous"]
    packed = replace(sums.schedule(), messages=tuple(replace(m, packed=m.reduce) for m in sums.schedule().messages))
    assert verify_schedule(packed) == ()


def test_neighbours_lie_in_one_buffer():
    wrong = only(replace(relayed_scatter(), scratch=((), (0, 2), ())))
    assert wrong.rule == "not-contiguous"
    assert "o[0], s[1]" in wrong.what


def test_the_chunks_of_a_message_are_neighbours_at_the_sender():
    planner = Planner(both_ways((0, 1)), Collective(Kind.ALLTOALL, 2, chunks_per_rank=2), MB)
    planner.hop(0, 1, 2, 3)
    planner.hop(1, 0, 4, 5)
    assert verify_schedule(planner.schedule()) == ()
    planner.scratch[0] = [3, 2]
    wrong = only(planner.schedule())
    assert (wrong.where, wrong.rule) == ("message 0 (0->1)", "not-contiguous")
    assert "sender (rank 0)" in wrong.what


def test_the_chunks_of_a_message_are_in_buffer_order():
    schedule = Planner(both_ways((0, 1)), Collective(Kind.BROADCAST, 2, chunks_per_rank=2), MB)
    schedule.hop(0, 1, 1, 0)
    assert [rule for _, rule in violations(schedule.schedule())] == ["not-contiguous", "not-contiguous"]


def test_a_rank_sends_a_chunk_only_after_its_arrival():
    schedule = chain_broadcast(3, 1)
    wrong = only(edited(schedule, 1, start_us=10.0, end_us=21.0))
    assert (wrong.where, wrong.rule) == ("message 1 (1->2)", "not-held")
    assert "gets it only at 11 us" in wrong.what


def test_a_rank_sends_no_chunk_that_it_never_gets():
    found = verify_schedule(without(chain_broadcast(3, 1), 0))
    assert [(v.where, v.rule) for v in found] == [("message 0 (1->2)", "not-held"), ("rank 1", "missing")]
    assert "never gets it" in found[0].what


def test_every_chunk_is_named_of_those_that_go_together():
    topology = both_ways((0, 1))
    messages = (Message(topology.links_between[0, 1][0], (0, 1), 0.0, 21.0),)
    right = Schedule(topology, Collective(Kind.BROADCAST, 2, 2), MB, messages, ((), ()))
    assert verify_schedule(right) == ()
    missing = verify_schedule(replace(right, messages=()))
    assert [(v.where, v.rule) for v in missing] == [("rank 1", "missing")] * 2
    assert ["chunk 0" in missing[0].what, "chunk 1" in missing[1].what] == [True, True]


def test_a_chunk_that_leaves_its_companions_is_looked_at():
    topology = both_ways((0, 1))
    link = topology.links_between[0, 1][0]
    messages = (Message(link, (0, 1, 2), 0.0, 31.0), Message(link, (1,), 31.0, 42.0))
    schedule = Schedule(topology, Collective(Kind.BROADCAST, 2, 4), MB, messages, ((), ()))
    assert violations(schedule) == [("message 1 (0->1)", "redundant"), ("rank 1", "missing")]


def test_one_missing_message_does_not_draw_a_tail_of_errors():
    found = violations(without(chain_broadcast(6, 1), 0))
    assert found == [("message 0 (1->2)", "not-held"), ("rank 1", "missing")]


def test_no_chunk_is_brought_to_a_rank_that_holds_it():
    schedule = ring_allgather(3)
    back = Message(2, (0,), 22.0, 33.0)  # chunk 0 comes home
    wrong = only(replace(schedule, messages=(*schedule.messages, back)))
    assert (wrong.where, wrong.rule) == ("message 6 (2->0)", "redundant")


def test_a_second_copy_is_redundant_even_when_both_are_in_flight_together():
    topology = machine(2, [Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 10.0), Link(1, 0, 1.0, 10.0)])
    messages = (Message(0, (0,), 0.0, 11.0), Message(1, (0,), 0.0, 11.0))
    schedule = Schedule(topology, Collective(Kind.BROADCAST, 2), MB, messages, ((), ()))
    assert violations(schedule) == [("message 1 (0->1)", "redundant")]


def test_nothing_is_reduced_where_nothing_is_summed():
    wrong = only(edited(chain_broadcast(3, 1), 1, reduce=True))
    assert (wrong.where, wrong.rule) == ("message 1 (1->2)", "nothing-to-reduce")


def test_a_contribution_that_arrives_twice_is_counted_twice():
    planner = Planner(both_ways((0, 1), (0, 2), (1, 2)), Collective(Kind.REDUCE, 3, root=0), MB)
    planner.hop(2, 1, 0, reduce=True)
    planner.hop(1, 0, 0, reduce=True)
    assert verify_schedule(planner.schedule()) == ()
    planner.hop(2, 0, 0, reduce=True, not_before_us=50.0)
    wrong = only(planner.schedule())
    assert (wrong.where, wrong.rule) == ("message 2 (2->0)", "double-count")
    assert "those of rank 2 are in it already" in wrong.what


def test_a_message_carries_the_sum_as_it_stood_at_its_start():
    """Rank 1 sends its own part while that of rank 2 is on the way, and that of rank 2 later."""
    topology = both_ways((0, 1), (1, 2))
    links = topology.links_between
    messages = (
        Message(links[1, 0][0], (0,), 0.0, 11.0, True),
        Message(links[2, 1][0], (0,), 0.0, 11.0, True),
    )
    partial = Schedule(topology, Collective(Kind.REDUCE, 3, root=0), MB, messages, ((), (0,), ()))
    wrong = only(partial)
    assert (wrong.where, wrong.rule) == ("rank 0", "incomplete-sum")
    assert "contributions of rank 2;" in wrong.what
    again = Message(links[1, 0][0], (0,), 11.0, 22.0, True)
    assert violations(replace(partial, messages=(*messages, again))) == [("message 2 (1->0)", "double-count")]


def test_a_copy_replaces_what_the_receiver_had_summed():
    planner = Planner(both_ways((0, 1)), Collective(Kind.REDUCE, 2, root=0), MB)
    planner.hop(1, 0, 0, reduce=False)
    wrong = only(planner.schedule())
    assert (wrong.where, wrong.rule) == ("rank 0", "incomplete-sum")
    assert "rank 0;" in wrong.what


def test_a_complete_sum_is_not_brought_again():
    schedule = ring_allreduce(3)
    last = schedule.messages[-1]
    again = replace(last, start_us=schedule.makespan_us, end_us=schedule.makespan_us + 11.0)
    wrong = only(replace(schedule, messages=(*schedule.messages, again)))
    assert wrong.rule == "redundant"
    assert wrong.where.startswith(f"message {len(schedule.messages)} ")
    assert "complete already" in wrong.what


def test_a_complete_sum_is_not_replaced_by_a_part_of_it():
    planner = Planner(both_ways((0, 1), (0, 2)), Collective(Kind.REDUCE, 3, root=0), MB)
    planner.hop(1, 0, 0, reduce=True)
    planner.hop(2, 0, 0, reduce=True)
    planner.hop(1, 0, 0, not_before_us=50.0)
    assert violations(planner.schedule()) == [("message 2 (1->0)", "redundant"), ("rank 0", "incomplete-sum")]


def test_a_partial_sum_is_not_brought_again():
    """Rank 1 hands its part to rank 0 by a copy, which changes nothing the second time."""
    topology = both_ways((0, 1), (0, 2))
    planner = Planner(topology, Collective(Kind.REDUCE, 3, root=2), MB)
    planner.hop(0, 2, 0, reduce=True)
    planner.hop(1, 0, 0)
    planner.hop(0, 2, 0, reduce=True)
    assert verify_schedule(planner.schedule()) == ()
    planner.hop(1, 0, 0, not_before_us=100.0)
    assert violations(planner.schedule()) == [("message 3 (1->0)", "redundant")]


def test_every_rank_that_wants_a_chunk_has_it_in_the_end():
    wrong = only(without(ring_allgather(4), 11))
    assert (wrong.where, wrong.rule) == ("rank 0", "missing")
    assert "chunk 1 (of rank 1)" in wrong.what


def test_an_empty_schedule_leaves_everything_to_be_done():
    found = verify_schedule(replace(ring_allgather(3), messages=()))
    assert [v.rule for v in found] == ["missing"] * 6
    assert [v.where for v in found] == ["rank 0"] * 2 + ["rank 1"] * 2 + ["rank 2"] * 2


def test_errors_come_in_the_order_of_messages_and_the_same_every_time():
    schedule = ring_allgather(6)
    for index in range(len(schedule.messages)):
        schedule = edited(schedule, index, end_us=schedule.messages[index].end_us + 1.0)
    found = verify_schedule(schedule)
    numbers = [int(v.where.split()[1]) for v in found if v.where.startswith("message")]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(30))
    assert verify_schedule(schedule) == found


# Valid schedules, damaged at random


@dataclass
class Damage:
    """A schedule with one mistake; `name` is that of the message at fault when it can be told, else empty."""

    schedule: Schedule
    name: str


def name_of(schedule, message):
    index = next(i for i, m in enumerate(schedule.messages) if m is message)
    link = schedule.topology.links[message.link]
    return f"message {index} ({link.src}->{link.dst})"


def with_message(schedule, old, new):
    messages = [m for m in schedule.messages if m is not old] + ([new] if new is not None else [])
    return replace(schedule, messages=tuple(messages))


def drop(schedule, message, _rng):
    return Damage(with_message(schedule, message, None), "")


def shift_earlier(schedule, message, rng):
    shift_us = rng.choice([0.03, 0.3]) * min(min(occupied(schedule, m).values()) for m in schedule.messages)
    moved = replace(message, start_us=message.start_us - shift_us, end_us=message.end_us - shift_us)
    damaged = with_message(schedule, message, moved)
    # Another message is found in its way if the shift takes it past that one's start; sums just end incomplete.
    passes = any(
        moved.start_us <= other.start_us <= message.start_us for other in schedule.messages if other is not message
    )
    return Damage(damaged, "" if passes or schedule.collective.reduces else name_of(damaged, moved))


def duplicate(schedule, message, _rng):
    end_us = schedule.makespan_us + 1000.0
    copy = replace(message, start_us=end_us, end_us=end_us + message.end_us - message.start_us)
    damaged = replace(schedule, messages=(*schedule.messages, copy))
    return Damage(damaged, name_of(damaged, copy))


def other_link(schedule, message, rng):
    topology = schedule.topology
    if message.reduce:
        return None  # A partial sum may well take another path to its root.
    dst = topology.links[message.link].dst
    others = [index for index, link in enumerate(topology.links) if link.dst != dst]
    return Damage(with_message(schedule, message, replace(message, link=rng.choice(others))), "")


def other_chunk(schedule, message, rng):
    others = [chunk for chunk in range(schedule.collective.num_chunks) if chunk not in message.chunks]
    if not others:
        return None
    place = rng.randrange(len(message.chunks))
    chunks = (*message.chunks[:place], rng.choice(others), *message.chunks[place + 1 :])
    return Damage(with_message(schedule, message, replace(message, chunks=chunks)), "")


def flip_reduce(schedule, message, _rng):
    flipped = replace(message, reduce=not message.reduce)
    damaged = with_message(schedule, message, flipped)
    # A sum that was thrown away is missed only at the end; the other two mistakes show where they are made.
    return Damage(damaged, "" if message.reduce else name_of(damaged, flipped))


@pytest.mark.parametrize("damage", [drop, shift_earlier, duplicate, other_link, other_chunk, flip_reduce])
@settings(max_examples=150)
@given(schedule=schedules(), seed=st.integers(0, 2**32))
def test_every_damaged_schedule_draws_an_error_to_the_damage(damage, schedule, seed):
    rng = random.Random(seed)
    damaged = damage(schedule, rng.choice(schedule.messages), rng)
    if damaged is None:
        return
    found = verify_schedule(damaged.schedule)
    assert found
    if damaged.name:
        assert damaged.name in [violation.where for violation in found]


# Cross-check with a slow verifier that shares nothing with the fast one


def random_edit(schedule, rng):
    topology, collective = schedule.topology, schedule.collective
    message = rng.choice(schedule.messages)
    choice = rng.randrange(6)
    if choice == 0:
        return with_message(schedule, message, None)
    if choice == 1:
        moved_us = rng.choice([-1, 1, 3]) * rng.choice([0.1, 1.0]) * (message.end_us - message.start_us)
        return with_message(
            schedule, message, replace(message, start_us=message.start_us + moved_us, end_us=message.end_us + moved_us)
        )
    if choice == 2:
        link = rng.randrange(len(topology.links))
        end_us = message.start_us + topology.message_us(link, len(message.chunks) * schedule.chunk_bytes)
        return with_message(schedule, message, replace(message, link=link, end_us=end_us))
    if choice == 3:
        start = rng.randrange(collective.num_chunks - len(message.chunks) + 1)
        chunks = tuple(range(start, start + len(message.chunks)))
        return with_message(schedule, message, replace(message, chunks=chunks))
    if choice == 4:
        return with_message(schedule, message, replace(message, reduce=not message.reduce))
    # Everything else goes one message later, or the whole begins later: both can be harmless.
    late_us = 0.0 if rng.random() < 0.5 else message.start_us
    wait_us = 3.0 * schedule.makespan_us
    return replace(
        schedule,
        messages=tuple(
            replace(m, start_us=m.start_us + wait_us, end_us=m.end_us + wait_us) if m.start_us >= late_us else m
            for m in schedule.messages
        ),
    )


@settings(max_examples=600)
@given(schedule=schedules(delays=True), seed=st.integers(0, 2**32))
def test_the_verifier_agrees_with_a_slow_one_about_schedules_edited_at_random(schedule, seed):
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 1, 2])):
        if schedule.messages:
            schedule = random_edit(schedule, rng)
    assert (verify_schedule(schedule) == ()) == naive_verdict(schedule)
