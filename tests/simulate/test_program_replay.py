import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.lowering.program import Gpu, Op, Program, Protocol, Step, Threadblock
from taccl_py.simulate.program_replay import replay_program
from taccl_py.simulate.schedule_replay import replay_schedule
from taccl_py.topology.model import Link, Port
from tests.patience import ends_within
from tests.simulate.cases import MB, both_ways, machine, ring, schedules

HERE = Address(Buffer.INPUT, 0)


def step(op, count=1, after=None):
    return Step(op, HERE, HERE, count, after)


def send(count=1, after=None):
    return step(Op.SEND, count, after)


def recv(count=1, after=None):
    return step(Op.RECV, count, after)


def block(*steps, to=-1, source=-1, channel=0):
    return Threadblock(to, source, channel, steps)


def program(*gpus, kind=Kind.ALLGATHER, num_chunks=1):
    records = tuple(Gpu(rank, 1, 1, 0, tuple(blocks)) for rank, blocks in enumerate(gpus))
    return Program("test", kind, num_chunks, 1, Protocol.SIMPLE, True, True, 0, 1 << 30, records)


def replay(code, topology, chunk_bytes=MB, fifo_slots=2):
    return replay_program(code, topology, chunk_bytes, fifo_slots=fifo_slots)


def times(timeline):
    """(start, end) of the transfers between each pair of ranks."""
    found = {}
    for move in timeline.transfers:
        found.setdefault((move.src, move.dst), []).append((move.start_us, move.end_us))
    return found


# Known answers


def ring_allgather_program(num_ranks):
    """Each rank has one threadblock that sends its own chunk, passes the others on, and receives the last one."""
    middle = [step(Op.RECV_COPY_SEND)] * (num_ranks - 2)
    return program(
        *(
            [block(send(), *middle, recv(), to=(r + 1) % num_ranks, source=(r - 1) % num_ranks)]
            for r in range(num_ranks)
        ),
        num_chunks=num_ranks,
    )


@pytest.mark.parametrize(("num_ranks", "chunk_bytes"), [(2, MB), (4, MB), (4, 250_000.0), (7, 1.0)])
def test_a_ring_allgather_takes_one_step_less_than_it_has_ranks(num_ranks, chunk_bytes):
    timeline = replay(ring_allgather_program(num_ranks), ring(num_ranks), chunk_bytes)
    assert timeline.makespan_us == pytest.approx((num_ranks - 1) * (1.0 + 10.0 * chunk_bytes / MB))
    assert len(timeline.transfers) == num_ranks * (num_ranks - 1)
    assert timeline.size_bytes == num_ranks * chunk_bytes
    assert timeline.busbw_gbps == pytest.approx(timeline.algbw_gbps * (num_ranks - 1) / num_ranks)


def test_a_chain_broadcast_pipelines_its_chunks():
    relay = [step(Op.RECV_COPY_SEND)] * 5
    code = program(
        [block(*[send()] * 5, to=1)],
        [block(*relay, to=2, source=0)],
        [block(*relay, to=3, source=1)],
        [block(*[recv()] * 5, source=2)],
        kind=Kind.BROADCAST,
        num_chunks=5,
    )
    timeline = replay(code, ring(4))
    assert timeline.makespan_us == pytest.approx((3 + 5 - 1) * 11.0)
    assert timeline.size_bytes == 5 * MB


def test_a_step_of_several_chunks_pays_alpha_once():
    code = program([block(send(3), to=1)], [block(recv(3), source=0)])
    assert replay(code, both_ways((0, 1))).makespan_us == pytest.approx(1.0 + 30.0)


def test_a_threadblock_goes_on_when_its_link_is_free_and_the_data_arrive_later():
    """The link is done after 11, the port after 21; data are there after 21.5."""
    links = [Link(0, 1, 1.0, 10.0, 0.5, (0,)), Link(0, 2, 1.0, 10.0)]
    topology = machine(3, links, [Port("nic", 1.0, 20.0)])
    code = program(
        [block(send(), to=1), block(send(after=(0, 0)), to=2, channel=1)],
        [block(recv(), source=0)],
        [block(recv(), source=0, channel=1)],
    )
    assert times(replay(code, topology)) == {(0, 1): [(0.0, 21.5)], (0, 2): [(11.0, 22.0)]}


def test_threadblocks_behind_one_port_are_staggered_by_the_port():
    links = [Link(0, 1, 1.0, 40.0, ports=(0,)), Link(0, 2, 1.0, 40.0, ports=(0,))]
    topology = machine(3, links, [Port("nic", 0.5, 10.0)])
    code = program(
        [block(send(), to=2), block(send(), to=1)],
        [block(recv(), source=0)],
        [block(recv(), source=0)],
    )
    assert times(replay(code, topology)) == {(0, 2): [(0.0, 41.0)], (0, 1): [(10.5, 51.5)]}


def test_a_request_that_waits_for_one_port_lets_others_use_the_other_one():
    """Rank 0 holds port P until 21, rank 1 needs P and Q, rank 2 only Q and so is not kept waiting."""
    links = [Link(0, 3, 1.0, 10.0, 0.0, (0,)), Link(1, 3, 1.0, 10.0, 0.0, (0, 1)), Link(2, 3, 1.0, 10.0, 0.0, (1,))]
    topology = machine(4, links, [Port("P", 1.0, 20.0), Port("Q", 1.0, 30.0)])
    code = program(
        [block(send(), to=3)],
        [block(send(), to=3)],
        [block(send(), to=3)],
        [block(recv(), source=r) for r in range(3)],
    )
    assert times(replay(code, topology)) == {(0, 3): [(0.0, 21.0)], (2, 3): [(0.0, 31.0)], (1, 3): [(31.0, 62.0)]}


def test_channels_go_round_the_links_between_two_ranks():
    links = [Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 30.0)]
    code = program(
        [block(send(), to=1, channel=c) for c in range(3)],
        [block(recv(), source=0, channel=c) for c in range(3)],
    )
    moves = replay(code, machine(2, links)).transfers
    assert [(m.threadblock, m.link, m.start_us, m.end_us) for m in moves] == [
        (0, 0, 0.0, 11.0),
        (1, 1, 0.0, 31.0),
        (2, 0, 11.0, 22.0),
    ]


@pytest.mark.parametrize(("slots", "third_us"), [(1, 112.0), (2, 101.0), (3, 22.0), (8, 22.0)])
def test_a_sender_waits_for_a_slot_that_its_receiver_frees(slots, third_us):
    """Rank 1 begins to receive from rank 0 only when the message of rank 2 has come at 101.

    With one slot the second message starts at 101 and the third when the second one has arrived at 112; with two the
    third starts at 101; with three at once, behind the others on the link.
    """
    links = [Link(0, 1, 1.0, 10.0), Link(2, 1, 1.0, 100.0)]
    code = program(
        [block(send(), send(), send(), to=1)],
        [block(recv(after=(1, 0)), recv(), recv(), source=0), block(recv(), source=2)],
        [block(send(), to=1)],
    )
    moves = times(replay(code, machine(3, links), fifo_slots=slots))[0, 1]
    assert moves[2] == (third_us, third_us + 11.0)


def test_a_fused_step_frees_its_slot_only_when_it_has_sent():
    """Rank 1 passes the first message on from 11 to 112; until then the one slot from rank 0 is taken."""
    links = [Link(0, 1, 1.0, 10.0), Link(1, 2, 1.0, 100.0)]
    code = program(
        [block(send(), send(), to=1)],
        [block(*[step(Op.RECV_COPY_SEND)] * 2, to=2, source=0)],
        [block(recv(), recv(), source=1)],
    )
    assert times(replay(code, machine(3, links), fifo_slots=1))[0, 1] == [(0.0, 11.0), (112.0, 123.0)]
    assert times(replay(code, machine(3, links), fifo_slots=2))[0, 1] == [(0.0, 11.0), (11.0, 22.0)]


def test_a_step_waits_for_its_own_dependency_and_those_of_the_nops_before_it():
    links = [Link(0, 3, 1.0, 10.0), Link(1, 3, 1.0, 20.0), Link(2, 3, 1.0, 30.0), Link(3, 0, 1.0, 10.0)]
    arrivals = [block(recv(), source=r) for r in range(3)]
    waiting = block(step(Op.NOP, 0, after=(2, 0)), step(Op.NOP, 0, after=(0, 0)), send(after=(1, 0)), to=0)
    code = program(
        [block(send(), to=3), block(recv(), source=3)],
        [block(send(), to=3)],
        [block(send(), to=3)],
        [*arrivals, waiting],
    )
    assert times(replay(code, machine(4, links)))[3, 0] == [(31.0, 42.0)]


def test_local_steps_take_no_time_but_are_waited_for():
    code = program(
        [block(recv(), step(Op.REDUCE), step(Op.COPY), source=1), block(send(after=(0, 2)), to=1)],
        [block(send(), to=0), block(recv(), source=0)],
    )
    assert times(replay(code, both_ways((0, 1)))) == {(1, 0): [(0.0, 11.0)], (0, 1): [(11.0, 22.0)]}


@pytest.mark.parametrize("op", [Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND])
def test_fused_steps_send_when_they_have_received(op):
    code = program([block(send(), to=1)], [block(step(op), to=2, source=0)], [block(recv(), source=1)])
    assert times(replay(code, ring(3))) == {(0, 1): [(0.0, 11.0)], (1, 2): [(11.0, 22.0)]}


def test_a_reduction_on_arrival_only_receives():
    code = program([block(send(), to=1)], [block(step(Op.RECV_REDUCE_COPY), source=0)])
    assert replay(code, both_ways((0, 1))).makespan_us == 11.0


def test_a_program_without_messages_takes_no_time():
    timeline = replay(program([block(step(Op.COPY))], []), both_ways((0, 1)))
    assert (timeline.makespan_us, timeline.transfers) == (0.0, ())


def test_data_that_nobody_receives_still_have_to_arrive():
    topology = machine(2, [Link(0, 1, 1.0, 10.0, 0.5)])
    assert replay(program([block(send(), to=1)], []), topology).makespan_us == 11.5


def test_transfers_say_which_step_sent_them():
    code = program(
        [block(step(Op.COPY)), block(step(Op.NOP, 0, after=(0, 0)), send(2), to=1)],
        [block(recv(2), source=0)],
    )
    (move,) = replay(code, both_ways((0, 1)), 500.0).transfers
    assert (move.src, move.dst, move.threadblock, move.step, move.message) == (0, 1, 1, 1, -1)
    assert move.size_bytes == 1000.0


@pytest.mark.parametrize(
    ("kind", "num_chunks", "shares"), [(Kind.ALLTOALL, 6, 6), (Kind.REDUCE, 2, 2), (Kind.GATHER, 2, 6), (Kind.SCATTER, 1, 3)]
)  # fmt: skip
def test_the_size_is_that_of_the_whole_collective(kind, num_chunks, shares):
    code = program([], [], [], kind=kind, num_chunks=num_chunks)
    assert replay(code, ring(3), 10.0).size_bytes == 10.0 * shares


# Refusals


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(InputError, match="above 0"):
        replay(ring_allgather_program(3), ring(3), size)


def test_a_connection_without_slots_is_refused():
    with pytest.raises(InputError, match="at least 1"):
        replay(ring_allgather_program(3), ring(3), fifo_slots=0)


def test_a_machine_of_other_ranks_is_refused():
    with pytest.raises(InputError, match=r"is for 3 ranks, topology test has 4"):
        replay(ring_allgather_program(3), ring(4))


def test_a_send_without_a_link_is_refused():
    code = program([block(send(), to=2)], [], [block(recv(), source=0)])
    with pytest.raises(InputError, match=r"from rank 0 to rank 2 \(gpu 0 tb 0\)"):
        replay(code, ring(3))


@pytest.mark.parametrize(
    ("blocks", "what"),
    [
        ([block(send())], "no send peer"),
        ([block(recv())], "no receive peer"),
        ([block(step(Op.RECV_COPY_SEND), to=1)], "no receive peer"),
        ([block(step(Op.COPY, after=(1, 0)))], "tb 1 step 0, which does not exist"),
        ([block(step(Op.COPY, after=(0, 1)))], "tb 0 step 1, which does not exist"),
        ([block(step(Op.COPY, after=(-1, 0)))], "tb -1 step 0, which does not exist"),
    ],
)
def test_a_reference_to_nothing_is_an_invalid_program(blocks, what):
    with pytest.raises(InvalidArtifact) as caught:
        replay(program(blocks, []), both_ways((0, 1)))
    (violation,) = caught.value.violations
    assert (violation.where, violation.rule) == ("gpu 0 tb 0 step 0", "no-such-reference")
    assert what in violation.what


def stuck(code, topology, **options):
    with pytest.raises(InvalidArtifact) as caught:
        replay(code, topology, **options)
    assert {violation.rule for violation in caught.value.violations} == {"deadlock"}
    return {violation.where: violation.what for violation in caught.value.violations}


def test_two_ranks_that_send_more_than_fits_before_they_receive_are_stuck():
    code = program(*([block(send(), send(), recv(), recv(), to=1 - r, source=1 - r)] for r in range(2)))
    assert replay(code, both_ways((0, 1)), fifo_slots=2).makespan_us == 22.0
    found = stuck(code, both_ways((0, 1)), fifo_slots=1)
    assert found == {
        "gpu 0 tb 0 step 1": "s waits for one of the 1 slots of its connection to rank 1 on channel 0, where gpu 1 tb 0 is "
        "at step 1",
        "gpu 1 tb 0 step 1": "s waits for one of the 1 slots of its connection to rank 0 on channel 0, where gpu 0 tb 0 is "
        "at step 1",
    }


def test_a_receive_without_a_sender_is_stuck():
    assert stuck(program([block(recv(), source=1, channel=3)], []), both_ways((0, 1))) == {
        "gpu 0 tb 0 step 0": "r waits for a message of rank 1 on channel 3, but no threadblock is at the other end"
    }


def test_a_receive_of_more_than_is_sent_is_stuck():
    code = program([block(send(), to=1)], [block(recv(), recv(), source=0)])
    assert stuck(code, both_ways((0, 1))) == {
        "gpu 1 tb 0 step 1": "r waits for a message of rank 0 on channel 0, where gpu 0 tb 0 is at its end"
    }


def test_steps_that_wait_for_each_other_are_stuck():
    code = program([block(step(Op.COPY, after=(1, 0))), block(step(Op.COPY, after=(0, 0)))], [])
    assert stuck(code, both_ways((0, 1))) == {
        "gpu 0 tb 0 step 0": "cpy waits for step 0 of tb 1, which is at step 0",
        "gpu 0 tb 1 step 0": "cpy waits for step 0 of tb 0, which is at step 0",
    }


# Properties


def straight_program(schedule):
    """Every message of a schedule in threadblocks and on a channel of its own, so that only its data hold it up."""
    topology = schedule.topology
    blocks = [[] for _ in range(topology.num_ranks)]
    receiver = {}
    for index, message in enumerate(schedule.messages):
        link = topology.links[message.link]
        lanes = len(topology.links_between[link.src, link.dst])
        channel = index * lanes + topology.lane[message.link]
        size = len(message.chunks)
        needed = sorted(
            receiver[before]
            for before, other in enumerate(schedule.messages[:index])
            if topology.links[other.link].dst == link.src
            and set(other.chunks) & set(message.chunks)
            and other.end_us <= message.start_us + 1e-5 * (other.end_us - other.start_us)
        )
        waits = [step(Op.NOP, 0, after=(tb, 0)) for tb in needed]
        blocks[link.src].append(block(*waits, send(size), to=link.dst, channel=channel))
        receiver[index] = len(blocks[link.dst])
        blocks[link.dst].append(block(recv(size), source=link.src, channel=channel))
    return program(*blocks)


@settings(max_examples=150)
@given(schedules(), st.sampled_from([100.0, 65536.0, 1e6]))
def test_replayed_transfers_take_turns_and_never_wait_for_nothing(schedule, chunk_bytes):
    """Every transfer starts when its data are there or when one of its resources becomes free, not in between."""
    topology = schedule.topology
    code = straight_program(schedule)
    moves = replay(code, topology, chunk_bytes).transfers
    assert len(moves) == len(schedule.messages)
    ends = {(m.src, m.dst, code.gpus[m.src].threadblocks[m.threadblock].channel): m.end_us for m in moves}

    def occupied(move):
        return {r: move.start_us + topology.occupancy_us(r, move.size_bytes) for r in topology.resources_of[move.link]}

    for index, move in enumerate(moves):
        tbs = code.gpus[move.src].threadblocks
        waits = [tbs[s.depends_on[0]] for s in tbs[move.threadblock].steps if s.depends_on is not None]
        ready = max((ends[tb.recv_peer, move.src, tb.channel] for tb in waits), default=0.0)
        moments = [ready]
        for other in moves[:index]:
            for resource, until in occupied(other).items():
                if resource in topology.resources_of[move.link]:
                    assert move.start_us >= until * (1 - 1e-11)
                    moments.append(until)
        assert move.start_us >= ready * (1 - 1e-11)
        assert any(move.start_us == pytest.approx(moment, rel=1e-11, abs=0.0) for moment in moments)


@settings(max_examples=100)
@given(schedules(), st.sampled_from([100.0, 65536.0, 1e6]))
def test_without_competition_a_program_is_as_fast_as_its_schedule(schedule, chunk_bytes):
    """Give every message a link of its own: then both are the longest chain of data."""
    topology = schedule.topology
    links = [topology.links[m.link] for m in schedule.messages]
    order = sorted(range(len(links)), key=lambda i: (links[i].src, links[i].dst))
    own = machine(topology.num_ranks, [replace(link, ports=()) for link in links])
    messages = [replace(schedule.messages[old], link=new) for new, old in enumerate(order)]
    alone = replace(schedule, topology=own, messages=tuple(messages))
    expected = replay_schedule(alone, chunk_bytes).makespan_us
    assert replay(straight_program(alone), own, chunk_bytes).makespan_us == pytest.approx(expected, rel=1e-11)


@settings(max_examples=50)
@given(schedules())
def test_the_same_program_has_the_same_timeline_every_time(schedule):
    code = straight_program(schedule)
    assert replay(code, schedule.topology) == replay(code, schedule.topology)


def all_pairs(num_ranks, rounds=1):
    """Every rank sends to every other one, behind one port out and one port in per rank."""
    ports = [Port(f"{r} {way}", 0.5, 20.0) for r in range(num_ranks) for way in ("out", "in")]
    links = [
        Link(s, d, 0.5, 20.0, ports=(2 * s, 2 * d + 1)) for s in range(num_ranks) for d in range(num_ranks) if s != d
    ]
    gpus = [
        [block(*[send()] * rounds, to=(r + i) % num_ranks) for i in range(1, num_ranks)]
        + [block(*[recv()] * rounds, source=(r - i) % num_ranks) for i in range(1, num_ranks)]
        for r in range(num_ranks)
    ]
    return program(*gpus, kind=Kind.ALLTOALL, num_chunks=num_ranks), machine(num_ranks, links, ports)


def test_an_all_pairs_exchange_keeps_every_port_busy():
    code, topology = all_pairs(8)
    assert replay(code, topology).makespan_us == pytest.approx(7 * 20.5)


def test_a_large_program_is_replayed_quickly():
    """Loose: the aim is half a second, a rescan of all waiting requests would take a minute."""
    code, topology = all_pairs(64)
    with ends_within(5):
        timeline = replay(code, topology)
    assert len(timeline.transfers) == 64 * 63
    assert timeline.makespan_us == pytest.approx(63 * 20.5)


def test_shuffled_threadblocks_make_no_difference_to_a_program_without_competition():
    rng = random.Random(1)
    code = ring_allgather_program(5)
    gpus = []
    for gpu in code.gpus:
        idle = [block(step(Op.COPY))] * 3
        gpus.append(replace(gpu, threadblocks=tuple(rng.sample([*gpu.threadblocks, *idle], 4))))
    shuffled = replace(code, gpus=tuple(gpus))
    assert replay(shuffled, ring(5)).makespan_us == replay(code, ring(5)).makespan_us
