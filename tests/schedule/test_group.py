import json
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.schedule.group import GroupSchedule
from taccl_py.schedule.group_files import read_group, write_group
from taccl_py.schedule.ir import Message, Origin
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.group import verify_group
from taccl_py.verify.schedule import verify_schedule

# 1 MB over a link of the formula takes 0.5 + 20 us.
STEP = 20.5


def link(topology, src, dst):
    (found,) = topology.links_between[src, dst]
    return found


@pytest.fixture
def ring():
    """AllGather on a ring of 4: both ways one hop, and one of them goes on."""
    topology = formula_topology("ring:4")
    base = (
        Message(link(topology, 0, 1), (0,), 0.0, STEP),
        Message(link(topology, 0, 3), (0,), 0.0, STEP),
        Message(link(topology, 1, 2), (0,), STEP, 2 * STEP),
    )
    return GroupSchedule(topology, Kind.ALLGATHER, 1, 1e6, ((1, 2, 3, 0),), base)


def exchange():
    """AllToAll on a ring of 4; the chunk for the rank opposite goes through rank 1."""
    topology = formula_topology("ring:4")
    base = (
        Message(link(topology, 0, 1), (2,), 0.0, STEP),
        Message(link(topology, 0, 3), (3,), 0.0, STEP),
        Message(link(topology, 0, 1), (1,), STEP, 2 * STEP),
        Message(link(topology, 1, 2), (2,), 2 * STEP, 3 * STEP),
    )
    return GroupSchedule(topology, Kind.ALLTOALL, 1, 1e6, ((1, 2, 3, 0),), base)


def test_every_rank_does_what_rank_0_does_with_its_own_data(ring):
    sent = [(ring.topology.links[m.link].dst, m.chunks, m.start_us) for m in ring.sent_by(2)]
    assert sorted(sent) == [(1, (2,), 0.0), (3, (1,), STEP), (3, (2,), 0.0)]
    received = [(ring.topology.links[m.link].src, m.chunks, m.start_us) for m in ring.received_by(2)]
    assert sorted(received) == [(1, (0,), STEP), (1, (1,), 0.0), (3, (3,), 0.0)]


def test_figures_of_the_whole_come_from_the_base(ring):
    assert (ring.makespan_us, ring.num_messages, ring.size_bytes) == (2 * STEP, 12, 4e6)
    assert ring.busbw_gbps == pytest.approx(4e6 / (2 * STEP) / 1000 * 3 / 4)


def test_the_whole_is_a_schedule_to_which_the_verifier_of_schedules_accepts(ring):
    whole = ring.expanded()
    assert verify_schedule(whole) == ()
    assert (len(whole.messages), whole.makespan_us) == (12, 2 * STEP)
    assert verify_schedule(exchange().expanded()) == ()
    assert exchange().expanded().scratch == ((3 * 4 + 1,), (0 * 4 + 2,), (1 * 4 + 3,), (2 * 4 + 0,))


def together():
    """AllToAll of two nodes of two ranks: both chunks for the other node go to its rank 2, which hands one of them on."""
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3)]
    links = tuple(Link(a, b, 0.5, 20.0) for x, y in pairs for a, b in ((x, y), (y, x)))
    topology = Topology("rails", "invented", (0, 0, 1, 1), (), links)
    base = (
        Message(link(topology, 0, 2), (2, 3), 0.0, 40.5, packed=True),
        Message(link(topology, 0, 1), (1,), 0.0, STEP),
        Message(link(topology, 2, 3), (3,), 40.5, 40.5 + STEP),
    )
    return GroupSchedule(topology, Kind.ALLTOALL, 1, 1e6, ((1, 0, 3, 2), (2, 3, 0, 1)), base)


def test_chunks_that_go_together_are_translated_together():
    schedule = together()
    assert verify_group(schedule) == ()
    assert verify_schedule(schedule.expanded()) == ()
    # Rank 3 sends what it has for ranks 1 and 0 to rank 1, in that order.
    (sent,) = [m for m in schedule.sent_by(3) if m.packed]
    assert (schedule.topology.links[sent.link].dst, sent.chunks) == (1, (3 * 4 + 1, 3 * 4 + 0))


def two_roles(kind=Kind.ALLGATHER):
    """Two nodes of two ranks of which only the first ones, 0 and 2, are linked: those and the others, 1 and 3, have roles of their own."""
    pairs = [(0, 1), (2, 3), (0, 2)]
    links = tuple(Link(a, b, 0.5, 20.0) for x, y in pairs for a, b in ((x, y), (y, x)))
    topology = Topology("gates", "invented", (0, 0, 1, 1), (), links)
    # (from, to, whose chunk, when)
    told = [(0, 1, 0, 0), (0, 2, 0, 0), (1, 0, 1, 0), (2, 3, 0, 1), (0, 2, 1, 1), (2, 3, 1, 2)]
    if kind is Kind.ALLTOALL:
        told = [(0, 1, 1, 0), (0, 2, 2, 0), (0, 2, 3, 1), (2, 3, 3, 2), (1, 0, 4, 0), (1, 0, 6, 1), (0, 2, 6, 2), (1, 0, 7, 2),
                (0, 2, 7, 3), (2, 3, 7, 4)]  # fmt: skip
    base = tuple(Message(link(topology, a, b), (chunk,), at * STEP, (at + 1) * STEP) for a, b, chunk, at in told)
    return GroupSchedule(topology, kind, 1, 1e6, ((2, 3, 0, 1),), base)


def test_one_rank_of_each_role_stands_for_the_others():
    schedule = two_roles()
    assert schedule.roots == (0, 1)
    assert (schedule.num_messages, schedule.makespan_us) == (12, 3 * STEP)
    assert verify_group(schedule) == ()
    assert verify_schedule(schedule.expanded()) == ()
    # Rank 2 does for its node what rank 0 does for the other: its own chunk, 2, goes to ranks 3 and 0, and rank 3's to rank 0.
    sent = [(schedule.topology.links[m.link].dst, m.chunks, m.start_us) for m in schedule.sent_by(2)]
    assert sorted(sent) == [
        (0, (2,), 0.0), (0, (3,), STEP), (3, (0,), STEP), (3, (1,), 2 * STEP), (3, (2,), 0.0)
    ]  # fmt: skip
    assert schedule.carried_to(3) == schedule.carried_to(2) == (2, 3, 0, 1)
    back = link(schedule.topology, 3, 2)
    assert schedule.orbit_of([back]) == {back: link(schedule.topology, 1, 0)}


def test_pairs_of_roles_exchange_what_they_have():
    schedule = two_roles(Kind.ALLTOALL)
    assert verify_group(schedule) == ()
    assert verify_schedule(schedule.expanded()) == ()


def test_parts_of_all_ranks_are_the_whole(ring):
    for schedule in (ring, exchange(), together(), two_roles(), two_roles(Kind.ALLTOALL)):
        whole = schedule.expanded().messages
        assert sorted(schedule.messages(), key=repr) == sorted(whole, key=repr)
        received = [m for rank in range(4) for m in schedule.received_by(rank)]
        assert sorted(received, key=repr) == sorted(whole, key=repr)


def test_generators_that_are_no_group_of_translations_are_refused(ring):
    with pytest.raises(InputError, match="do not commute, or keep one rank in place and move another"):
        replace(ring, generators=((0, 3, 2, 1),)).sent_by(0)


def test_what_is_too_large_to_be_written_down_is_refused():
    topology = formula_topology("ring:3000")
    message = Message(link(topology, 0, 1), (0,), 0.0, STEP)
    everyone_on = tuple((rank + 1) % 3000 for rank in range(3000))
    schedule = GroupSchedule(topology, Kind.ALLGATHER, 1, 1e6, (everyone_on,), (message,) * 2999)
    with pytest.raises(InputError, match="8997000 messages, more than 4000000; ask for the part of one rank"):
        schedule.expanded()


def test_a_file_reads_back_as_the_same(ring):
    origin = Origin("replicate", "none", "", 3, "feasible", 12.5, "some reason")
    for schedule in (ring, replace(ring, origin=origin), exchange(), together(), two_roles()):
        text = write_group(schedule)
        assert read_group(text, "group.json") == schedule
        assert write_group(read_group(text, "group.json")) == text


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", "taccl-schedule", "'taccl-group-schedule' is needed"),
        ("version", 2, "this program reads version 1"),
        ("kind", "broadcast", "broadcast"),
        ("generators", [[0, 0, 1, 2]], "is no permutation of the ranks 0..3"),
        ("chunks_per_rank", 0, "chunks_per_rank"),
        ("base", [{"link": 99, "chunks": [0], "start_us": 0, "end_us": 1, "reduce": False}], "links 0..7"),
        ("base", [{"link": 0, "chunks": [], "start_us": 0, "end_us": 1, "reduce": False}], "found no chunk"),
        ("extra", 1, "extra"),
    ],
)
def test_a_broken_file_is_answered_with_its_name_and_the_field(ring, field, value, words):
    text = json.dumps(json.loads(write_group(ring)) | {field: value})
    with pytest.raises(InputError) as caught:
        read_group(text, "group.json")
    assert "group.json" in str(caught.value)
    assert words in str(caught.value)
