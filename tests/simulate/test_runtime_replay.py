"""Replay of programs under a runtime profile: times worked out by hand, and threadblocks that are alike.

All tests share one set of costs, in microseconds: launch 5, operation 2, hop 3 near and 30 far, 1 for a kilobyte that a threadblock sends
or receives, 0.5 for one that it copies, 4 and 2 for a kilobyte that it sums; a receiver still copies a quarter when the rest has
arrived. A chunk has one kilobyte unless said otherwise, so a send takes 3.
"""

from dataclasses import replace

import pytest

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.lowering.program import Gpu, Op, Program, Protocol, Step, Threadblock
from taccl_py.measure.runtime_programs import all_pairs_allgather, all_pairs_allreduce, ring_allgather
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.profiles.model import UNLIMITED, ProtocolCosts, RuntimeProfile, UsableShare
from taccl_py.simulate import runtime_replay
from taccl_py.simulate.runtime_replay import RuntimeReplay, runtime_us
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Medium, Port, Topology
from tests.simulate.cases import both_ways, machine

KB = 1000
COSTS = ProtocolCosts(
    launch_us=5, op_us=2, hop_near_us=3, hop_far_us=30, tb_gbps=1, copy_gbps=2, reduce_us=4, reduce_gbps=0.5, wire=2, tail=0.25,
    payload_bytes=100 * KB, slots=2,
)  # fmt: skip
PROFILE = RuntimeProfile("hand", "by hand", "rccl", "none", "made up", {"Simple": COSTS, "LL": replace(COSTS, tail=0)})


def step(op, *, src=0, dst=0, count=1, after=None):
    return Step(op, Address(Buffer.INPUT, src), Address(Buffer.OUTPUT, dst), count, after)


def block(*steps, to=-1, of=-1, channel=0):
    return Threadblock(to, of, channel, steps)


def program(*ranks, chunks=1):
    """A program of the threadblocks of each rank; a call of as many kilobytes as there are chunks has chunks of one."""
    gpus = tuple(Gpu(rank, chunks, chunks, 0, tuple(blocks)) for rank, blocks in enumerate(ranks))
    return Program("hand", Kind.BROADCAST, chunks, 1, Protocol.SIMPLE, True, True, 0, 1 << 40, gpus)


SEND, RECV = step(Op.SEND), step(Op.RECV)
PAIR = program([block(SEND, to=1)], [block(RECV, of=0)])
TWO = both_ways((0, 1))


def test_one_send_and_its_receive():
    # Sent at 3, seen at 6, the last quarter of 3 copied at 6.75.
    assert runtime_us(PAIR, TWO, PROFILE, KB) == pytest.approx(5 + 6.75)


def test_a_link_that_is_slower_than_the_threadblock():
    # Alpha 1, and 2 KB on the wire at 5 us each.
    slow = replace(both_ways((0, 1), beta_us_per_mb=5000), inside=Medium.NVLINK)
    assert runtime_us(PAIR, slow, PROFILE, KB) == pytest.approx(5 + 11 + 3 + 0.75)
    half = replace(PROFILE, shares={"nvlink": UsableShare(0.5)})
    assert runtime_us(PAIR, slow, half, KB) == pytest.approx(5 + 21 + 3 + 0.75)


def test_a_message_between_nodes_has_the_far_hop_and_the_time_of_its_nic():
    apart = replace(both_ways((0, 1)), node_of=(0, 1))
    assert runtime_us(PAIR, apart, PROFILE, KB) == pytest.approx(5 + 3 + 30 + 0.75)
    busy = replace(PROFILE, nic_message_us=7.0)
    assert runtime_us(PAIR, apart, busy, KB) == pytest.approx(5 + (1 + 7 + 0.02) + 30 + 0.75)


def test_a_ring_of_two():
    # Each sends until 3 and then receives what is seen at 6: 3 for it, at least, and a quarter of 3 after.
    ring = program([block(SEND, RECV, to=1, of=1)], [block(SEND, RECV, to=0, of=0)])
    assert runtime_us(ring, TWO, PROFILE, KB) == pytest.approx(5 + 6.75)


def test_a_fused_step_forwards_while_it_receives():
    line = both_ways((0, 1), (1, 2))
    fused = program([block(SEND, to=1)], [block(step(Op.RECV_COPY_SEND), to=2, of=0)], [block(RECV, of=1)])
    # Half of the message is there at 6 - 1.5; the step ends at 7.5, which is seen at 10.5.
    assert runtime_us(fused, line, PROFILE, KB) == pytest.approx(5 + 10.5 + 0.75)
    apart = program([block(SEND, to=1)], [block(RECV, SEND, to=2, of=0)], [block(RECV, of=1)])
    # Received at 6.75, sent at 9.75, seen at 12.75.
    assert runtime_us(apart, line, PROFILE, KB) == pytest.approx(5 + 12.75 + 0.75)


def test_a_local_copy():
    copy = program([block(step(Op.COPY, count=2))], [], chunks=2)
    assert runtime_us(copy, TWO, PROFILE, 2 * KB) == pytest.approx(5 + 2 + 2 * 0.5)


def test_sums_that_the_runtime_fuses_cost_once():
    fused = program([block(step(Op.REDUCE, src=0), step(Op.REDUCE, src=1))], [], chunks=2)
    assert runtime_us(fused, TWO, PROFILE, 2 * KB) == pytest.approx(5 + 4 + 2 * 2)
    apart = program([block(step(Op.REDUCE, src=0), step(Op.REDUCE, src=1, dst=1))], [], chunks=2)
    assert runtime_us(apart, TWO, PROFILE, 2 * KB) == pytest.approx(5 + 2 * (4 + 2))


def test_steps_have_the_times_of_the_replay():
    """Launch until 5; sent from 5 to 8, seen at 11, of which a receive of 3 moves data from 8.75 to 11.75, and then a copy takes 2.5; no wait moves data."""
    wait = Step(Op.NOP, Address(Buffer.INPUT, -1), Address(Buffer.OUTPUT, -1), 0, (0, 0))
    made = program([block(SEND, to=1)], [block(RECV, of=0), block(wait, step(Op.COPY))])
    found = RuntimeReplay(made, TWO, PROFILE).steps(KB)
    times = [
        (each.rank, each.threadblock, each.step, each.start_us, each.end_us, each.size_bytes) for each in found.steps
    ]
    assert times == [
        (0, 0, 0, pytest.approx(5), pytest.approx(8), KB),
        (1, 0, 0, pytest.approx(8.75), pytest.approx(11.75), KB),
        (1, 1, 1, pytest.approx(11.75), pytest.approx(14.25), KB),
    ]
    assert (found.launch_us, found.iterations, found.shown) == (5, 1, 1)
    assert runtime_us(made, TWO, PROFILE, KB) == pytest.approx(14.25)


def test_steps_of_a_large_call_are_those_of_its_first_iterations():
    """A chunk of 2000 KB goes through connections of 100 KB in 20 iterations."""
    found = RuntimeReplay(PAIR, TWO, PROFILE).steps(2000 * KB)
    assert (found.iterations, found.shown, len(found.steps)) == (20, 8, 16)
    assert [each.iteration for each in found.steps if each.rank == 0] == list(range(8))
    assert {each.size_bytes for each in found.steps} == {100 * KB}


def test_a_step_waits_for_what_it_depends_on_also_by_nops():
    copy, late = block(step(Op.COPY)), (0, 0)
    wait = Step(Op.NOP, Address(Buffer.INPUT, -1), Address(Buffer.OUTPUT, -1), 0, late)
    for steps in ((step(Op.SEND, after=late),), (wait, SEND)):
        waiting = program([copy, block(*steps, to=1)], [block(RECV, of=0)])
        assert runtime_us(waiting, TWO, PROFILE, KB) == pytest.approx(5 + 2.5 + 6.75)


def test_a_third_message_waits_for_a_slot():
    three = program([block(SEND, SEND, SEND, to=1)], [block(RECV, RECV, RECV, of=0)])
    # The first is taken out at 6.75; the third is sent until 9.75, seen at 12.75.
    assert runtime_us(three, TWO, PROFILE, KB) == pytest.approx(5 + 12.75 + 0.75)
    many = replace(PROFILE, protocols={"Simple": replace(COSTS, slots=UNLIMITED)})
    # Sent until 9, seen at 12; the receiver has taken the second out at 9.75 and needs 3.
    assert runtime_us(three, TWO, many, KB) == pytest.approx(5 + 12.75)


def test_a_chunk_of_more_than_a_payload_is_walked_in_iterations():
    # Three slices of 250 / 3 KB, each sent in 2 + 250 / 3; the last is seen 3 after that, and a quarter of it is copied.
    each = 2 + 250 / 3
    assert runtime_us(PAIR, TWO, PROFILE, 250 * KB) == pytest.approx(5 + 3 * each + 3 + each / 4)
    # The pace of the first iterations is kept.
    assert runtime_us(PAIR, TWO, PROFILE, 3000 * KB) == pytest.approx(5 + 30 * 102 + 3 + 102 / 4)


def test_a_step_of_many_chunks_takes_as_many_operations_as_the_payload_needs():
    # 40 KB a chunk: two in an operation, so two operations for four chunks; the last of two leaves an eighth to copy.
    four = program([block(step(Op.SEND, count=4), to=1)], [block(step(Op.RECV, count=4), of=0)], chunks=4)
    assert runtime_us(four, TWO, PROFILE, 160 * KB) == pytest.approx(5 + 164 + 3 + 164 / 8)


def test_instances_share_the_bytes_and_the_link():
    replay = RuntimeReplay(PAIR, TWO, PROFILE)
    assert replay.time_us(KB, instances=2) == pytest.approx(5 + 2.5 + 3 + 2.5 / 4)
    slow = RuntimeReplay(PAIR, both_ways((0, 1), beta_us_per_mb=5000), PROFILE)
    # 10 for all bytes; the second instance waits for the alpha of the first, a half, and has its own.
    assert slow.time_us(KB, instances=2) == pytest.approx(5 + 10 + 0.5 + 1 + 3 + 2.5 / 4)


def test_instances_wait_for_each_other_at_a_nic():
    # Each has half of the alpha, 4, and 0.01 on the wire; the second one is seen by the other side at 4 + 2 * 0.01 + 8 + 30.
    apart, busy = replace(TWO, node_of=(0, 1)), replace(PROFILE, nic_message_us=7.0)
    expected = pytest.approx(5 + 42.02 + 2.5 / 4)
    assert RuntimeReplay(PAIR, apart, busy).time_us(KB, instances=2) == expected
    senders = [block(step(Op.SEND, src=number, dst=number), to=1, channel=number) for number in (0, 1)]
    receivers = [block(step(Op.RECV, src=number, dst=number), of=0, channel=number) for number in (0, 1)]
    assert runtime_us(program(senders, receivers, chunks=2), apart, busy, KB) == expected


def test_another_protocol_and_another_profile():
    replay = RuntimeReplay(PAIR, TWO, PROFILE)
    assert replay.time_us(KB, protocol="LL") == pytest.approx(5 + 6)
    other = replace(PROFILE, protocols={"Simple": replace(COSTS, launch_us=50)})
    assert replay.under(other).time_us(KB) == pytest.approx(50 + 6.75)
    assert replay.time_us(KB) == pytest.approx(5 + 6.75)


def test_the_neutral_profile_leaves_the_link_alone():
    assert runtime_us(PAIR, TWO, neutral_profile(), 1_000_000) == pytest.approx(1 + 10)


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize(
    "make", [all_pairs_allgather, all_pairs_allreduce, lambda *of: ring_allgather(of[0], 1, *of[1:])]
)
def test_threadblocks_that_are_alike_give_the_same_time_alone(monkeypatch, make, instances, protocol):
    made, mi300x, profile = make(8, instances, protocol), load_topology("mi300x"), load_profile("rccl-mi300x")
    merged = RuntimeReplay(made, mi300x, profile)
    monkeypatch.setattr(runtime_replay, "merge_alike", lambda blocks, connections: (blocks, connections))
    every = RuntimeReplay(made, mi300x, profile)
    assert len(merged._structure.blocks) < len(every._structure.blocks) / 7
    for size in (4096, 1 << 20, 1 << 24):
        assert merged.time_us(size) == pytest.approx(every.time_us(size), rel=1e-9)


def test_threadblocks_at_one_port_are_not_taken_for_one():
    # Both ranks of a pair send through one port: 10 us of it for the second follow those for the first; alphas are side by side.
    shared = machine(3, [Link(0, 2, 1, 5000, ports=(0,)), Link(1, 2, 1, 5000, ports=(0,))], [Port("p", 1, 5000)])
    both = program(
        [block(SEND, to=2)], [block(SEND, to=2)], [block(RECV, of=0), block(RECV, of=1, channel=0)]
    )  # fmt: skip
    nvlink = replace(shared, inside=Medium.NVLINK)
    assert runtime_us(both, nvlink, PROFILE, KB) == pytest.approx(5 + 2 * 10 + 1 + 3 + 0.75)
    # Alphas of anything else follow each other.
    assert runtime_us(both, shared, PROFILE, KB) == pytest.approx(5 + 2 * 11 + 3 + 0.75)


def test_a_gpu_sends_no_more_than_its_limit():
    # 2 KB on the wire at 0.1 GB/s, for each of two messages that leave rank 0.
    star, limited = both_ways((0, 1), (0, 2)), replace(PROFILE, gpu_gbps=0.1)
    both = program([block(SEND, to=1), block(SEND, to=2)], [block(RECV, of=0)], [block(RECV, of=0)])
    assert runtime_us(both, star, PROFILE, KB) == pytest.approx(5 + 6.75)
    assert runtime_us(both, star, limited, KB) == pytest.approx(5 + 2 * 20 + 3 + 0.75)


def test_a_program_that_stops_is_refused():
    hanging = all_pairs_allreduce(8, 1, Protocol.SIMPLE)
    replay = RuntimeReplay(hanging, load_topology("mi300x"), load_profile("rccl-mi300x"))
    assert replay.time_us(32 << 20) > 0
    with pytest.raises(InvalidArtifact, match="deadlock"):
        replay.time_us(64 << 20)


@pytest.mark.parametrize("size", [0, -1, float("inf"), float("nan")])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(InputError, match="cannot be replayed"):
        runtime_us(PAIR, TWO, PROFILE, size)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="is for 2 ranks"):
        RuntimeReplay(PAIR, both_ways((0, 1), (1, 2)), PROFILE)
    with pytest.raises(InputError, match="no such link"):
        RuntimeReplay(PAIR, Topology("bare", "made up", (0, 0), (), ()), PROFILE)
    with pytest.raises(InputError, match="no protocol LL128"):
        RuntimeReplay(PAIR, TWO, PROFILE).time_us(KB, protocol="LL128")
