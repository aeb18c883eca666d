"""Replays of MSCCL++ plans under runtime profiles: times worked out by hand, bounds, and what its authors published."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.baselines.library import Family, baselines_of
from taccl_py.collective import Buffer, Kind
from taccl_py.errors import InputError, InvalidArtifact, LoweringError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.lowering.plan import MEMORY, Operation, Plan, PlanBlock, PlanGpu, RemoteBuffer
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile, UsableShare
from taccl_py.simulate.plan_replay import RuntimePlanReplay, replay_plan
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.synthesis.bounds.runtime import runtime_bound
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Medium, Port, Topology
from tests.lowering.cases import direct_allreduce, ring_allgather
from tests.lowering.mscclpp.test_lower import SCHEDULES
from tests.simulate.cases import MB, both_ways, machine, random_schedule
from tests.verify.mscclpp.plans import (
    NOP,
    block,
    cells,
    far,
    gpu,
    on,
    plan,
    put,
    two_allgather,
    two_allgather_by_proxy,
    two_allreduce,
)
from tests.verify.mscclpp.test_switch import three_allreduce

# 1 us and 10 us/MB.
PAIR = replace(both_ways((0, 1)), inside=Medium.NVLINK)
SIMPLE = ProtocolCosts(
    launch_us=3.0, op_us=0.5, hop_near_us=2.0, hop_far_us=7.0, tb_gbps=50.0, copy_gbps=100.0, reduce_us=0.75, reduce_gbps=40.0
)  # fmt: skip
PACKETS = replace(SIMPLE, op_us=0.125, hop_near_us=0.25, tb_gbps=25.0, wire=2.0)


def profile(simple=SIMPLE, shares=None, **fields):
    shares = {"nvlink": UsableShare(0.5)} if shares is None else shares
    protocols = {"Simple": simple, "LL": PACKETS}
    return RuntimeProfile("made", "made up", "mscclpp", "", "made up", protocols, shares, **fields)


def replayed(value, topology=PAIR, kind=Kind.ALLGATHER, under=None):
    return RuntimePlanReplay(parse_plan(json.dumps(value), "plan.json"), kind, topology, under or profile())


def time_us(value, topology=PAIR, kind=Kind.ALLGATHER, under=None, protocol=None, chunk_bytes=MB):
    replay = replayed(value, topology, kind, under)
    return replay.time_us(
        chunk_bytes * max(value["gpus"][0][f"{end}_chunks"] for end in ("input", "output")), protocol=protocol
    )


# By hand


def test_a_put_and_its_signal():
    """Relaxed hop .25; the put: .5 + 1 MB / 50 GB/s = 20.5 by the threadblock, 1 + 10 / .5 = 21 by the link; hop 2; launch 3."""
    assert time_us(two_allgather()) == pytest.approx(0.25 + 21 + 2 + 3)


def test_a_slow_threadblock_takes_longer_than_the_link():
    slow = profile(replace(SIMPLE, tb_gbps=25.0))
    assert time_us(two_allgather(), under=slow) == pytest.approx(0.25 + 40.5 + 2 + 3)


def test_packets_have_costs_of_their_own():
    """Twice the bytes on the wire: 1 + 2 * 20 by the link, .125 + 40 by the threadblock."""
    assert time_us(two_allgather(), protocol="LL") == pytest.approx(0.25 + 41 + 0.25 + 3)


def by_packets(schedule):
    return json.loads(lower_plan(schedule, PlanOptions(CallPlacement.IN_PLACE, protocol="LL")).text)


def test_who_reads_packets_waits_for_them_and_for_nothing_else():
    """No handshake: 1 + 2 * 20 by the link, hop .25, then .125 + 1 MB / 100 GB/s to unpack them."""
    assert time_us(by_packets(ring_allgather(2))) == pytest.approx(41 + 0.25 + (0.125 + 10) + 3)


def test_packets_are_added_up_and_sent_on():
    """Half of it each way: 21 by the link, hop .25; the sum reads two halves, .75 + 1 MB / 40 GB/s; back in 21.25; a copy of a half."""
    found = time_us(by_packets(direct_allreduce(2)), kind=Kind.ALLREDUCE, chunk_bytes=MB / 2)
    assert found == pytest.approx(21.25 + (0.75 + 25) + 21.25 + (0.125 + 5) + 3)


def test_a_proxy_sends_packets_that_were_made_in_scratch():
    """Made in .125 + 10, asked for in .125; the link 41; seen 7 later; unpacked in 10.125."""
    nodes = replace(PAIR, node_of=(0, 1))
    found = time_us(by_packets(ring_allgather(2, nodes=(0, 1))), nodes, under=profile(shares={"nic": UsableShare(0.5)}))
    assert found == pytest.approx(10.125 + 0.125 + 41 + 7 + 10.125 + 3)


def test_packets_that_nobody_sends_are_waited_for_in_vain():
    value = by_packets(ring_allgather(2))
    del value["gpus"][1]["threadblocks"][0]["ops"][0]
    with pytest.raises(InvalidArtifact, match="upkt waits for"):
        time_us(value)


def test_the_far_end_of_a_link_is_as_far_as_its_latency():
    late = replace(PAIR, links=tuple(replace(link, latency_us=5.0) for link in PAIR.links))
    assert time_us(two_allgather(), late) == pytest.approx(0.25 + 21 + 5 + 2 + 3)


def test_a_proxy_carries_out_what_its_threadblock_asks_for():
    """Handshake 7; the request .5; the link 21; 7 until the other side sees it, and the flush ends."""
    assert time_us(two_allgather_by_proxy()) == pytest.approx(7 + 0.5 + 21 + 7 + 3)


def test_a_threadblock_goes_on_while_its_proxy_works():
    """Two puts without a flush between them: two requests, and the second waits for the proxy."""
    value = two_allgather_by_proxy()
    ops = value["gpus"][0]["threadblocks"][0]["ops"]
    ops.insert(3, {**ops[3], "name": "put"})
    assert time_us(value) == pytest.approx(7 + 0.5 + 2 * 21 + 7 + 3)


def test_a_signal_through_a_proxy_is_as_late_as_one_with_its_put():
    value = two_allgather_by_proxy()
    for rank in range(2):
        ops = value["gpus"][rank]["threadblocks"][0]["ops"]
        ops[3] = {**ops[3], "name": "put"}
        ops[4] = on("signal", 0, kind="port")  # in place of the flush
    assert time_us(value) == pytest.approx(7 + 0.5 + 21 + 7 + 3)


def test_a_message_occupies_a_nic_beside_its_bytes():
    nodes = replace(PAIR, node_of=(0, 1))
    shares = {"nic": UsableShare(0.8)}
    found = time_us(two_allgather_by_proxy(), nodes, under=profile(shares=shares, nic_message_us=1.5))
    assert found == pytest.approx(7 + 0.5 + (1 + 1.5 + 10 / 0.8) + 7 + 3)


def test_two_threadblocks_meet_at_a_semaphore():
    """The copy, .5 + 1 MB / 100 GB/s, is done before what comes from the other GPU; the sum reads two megabytes at 40 GB/s."""
    arrived_us = 0.25 + 21 + 2
    assert time_us(two_allreduce(), kind=Kind.ALLREDUCE) == pytest.approx(arrived_us + 0.75 + 50 + 3)
    slow = profile(replace(SIMPLE, copy_gbps=10.0))
    assert time_us(two_allreduce(), kind=Kind.ALLREDUCE, under=slow) == pytest.approx(100.5 + 0.75 + 50 + 3)


@pytest.mark.parametrize("inside", [Medium.NVLINK, Medium.NETWORK])
def test_threadblocks_that_put_to_the_same_peer_fill_a_link_together(inside):
    """Two with half of the bytes each: .5 + 10 or 20 by a threadblock; alpha once and 10 or 20 by the link."""
    hop_us = 2 if inside is Medium.NVLINK else 7
    greeting_us = 0.25 if inside is Medium.NVLINK else 7
    pair = replace(PAIR, inside=inside)

    def both(rank):
        def ops(lane):
            return [
                on("rlxsignal", 0), on("rlxwait", 0), NOP,
                put(cells("o", 2 * rank + lane), far(0, 2 * rank + lane)), NOP, on("signal", 0), on("wait", 0), NOP,
            ]  # fmt: skip

        return [block(lane, ops(lane), channels=(lane,)) for lane in range(2)]

    value = plan("allgather", [gpu(r, (2, 4, 0), [1 - r] * 2, [(1 - r, "o")], both(r)) for r in range(2)])
    wide = profile(shares={"nvlink": UsableShare(1.0)})
    beside_us = greeting_us + hop_us + 3
    assert time_us(value, pair, under=wide, chunk_bytes=MB / 2) == pytest.approx(1 + 10 + beside_us)
    assert time_us(value, pair, under=wide, chunk_bytes=MB) == pytest.approx(1 + 20 + beside_us)
    # One alone never takes less than its own alpha.
    tiny = profile(replace(SIMPLE, op_us=0.0, tb_gbps=1e5), shares={})
    assert time_us(value, pair, under=tiny, chunk_bytes=1e-6) == pytest.approx(1 + beside_us)


@pytest.mark.parametrize(("inside", "alphas"), [(Medium.NVLINK, 1), (Medium.NETWORK, 2)])
def test_alphas_follow_each_other_but_in_nvlink(inside, alphas):
    """Rank 0 puts to two others at once, through its port."""
    links = [Link(0, peer, 1.0, 10.0, ports=(0,)) for peer in (1, 2)]
    links += [Link(peer, 0, 1.0, 10.0) for peer in (1, 2)]
    three = Topology("three", "made up", (0, 0, 0), (Port("out", 1.0, 10.0),), tuple(links), inside=inside)
    sends = [
        block(lane, [put(cells("i", 0), far(0, 0)), NOP, on("signal", 0)], channels=(lane,), remotes=(lane,))
        for lane in range(2)
    ]
    gpus = [gpu(0, (1, 1, 0), [1, 2], [(1, "o"), (2, "o")], sends)]
    gpus += [gpu(peer, (1, 1, 0), [0], [], [block(0, [on("wait", 0)], remotes=())]) for peer in (1, 2)]
    fast = profile(replace(SIMPLE, tb_gbps=1e5, op_us=0.0), shares={})
    hop_us = 2 if inside is Medium.NVLINK else 7
    assert time_us(plan("broadcast", gpus), three, Kind.BROADCAST, fast) == pytest.approx(alphas + 2 * 10 + hop_us + 3)


def test_a_switch_has_a_usable_share_of_its_own():
    """Every port passes on all three chunks and one of them again; then the port's alpha, and .3 us as sums are loaded first."""
    value = json.loads(json.dumps(three_allreduce()))
    ndv5 = load_topology("ndv5")
    keep = range(3)
    links = tuple(link for link in ndv5.links if link.src in keep and link.dst in keep)
    switch = replace(ndv5.switches[0], ranks=(0, 1, 2))
    three = replace(ndv5, node_of=(0, 0, 0), links=links, switches=(switch,), symmetry=())
    fast = replace(SIMPLE, tb_gbps=1e5)
    whole, half = (
        time_us(value, three, Kind.ALLREDUCE, profile(fast, {"nvls": UsableShare(part)})) for part in (1.0, 0.5)
    )
    port_us = 4 * 1000 / 450
    assert half - whole == pytest.approx(port_us)
    assert whole == pytest.approx(0.25 + port_us + 0.3 + 0.3 + 2 + 3)


# Profiles and plans that do not fit


def test_what_cannot_be_replayed_is_told():
    with pytest.raises(InputError, match="a size of 0 bytes cannot be replayed"):
        replayed(two_allgather()).time_us(0)
    with pytest.raises(InputError, match="profile made has no protocol LL128, only Simple, LL; name another profile"):
        replayed(two_allgather()).time_us(MB, protocol="LL128")
    with pytest.raises(InputError, match=r"is for 2 ranks, topology .* has 3"):
        replayed(two_allgather(), both_ways((0, 1), (1, 2)))
    with pytest.raises(InputError, match=r"puts from rank 0 to rank 1 .gpu 0 tb 0., but topology .* has no such link"):
        replayed(two_allgather(), machine(2, []))


def test_a_plan_that_stops_is_told():
    value = two_allgather()
    for one in value["gpus"][0]["threadblocks"][0]["ops"]:
        if one["name"] == "signal":
            one.clear()
            one.update(NOP)
    with pytest.raises(InvalidArtifact, match="gpu 1 tb 0 op 7: wait waits for a signal that never comes"):
        time_us(value)


# Beside links and ports


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("instances", [1, 2])
def test_under_the_neutral_profile_times_are_those_of_links_and_ports(name, instances):
    schedule = SCHEDULES[name]()
    made, kind = lower_plan(schedule, PlanOptions(instances=instances)).plan, schedule.collective.kind
    replay = RuntimePlanReplay(made, kind, schedule.topology, neutral_profile())
    for chunk_bytes in (1.0, schedule.chunk_bytes, 12345.0):
        expected = replay_plan(made, kind, schedule.topology, chunk_bytes).makespan_us
        assert replay.time_us(chunk_bytes * made.chunks_per_size) == expected


def drawn(seed, instances):
    """A random machine and schedule, and the plan of it; None if the runtime is too small for it."""
    schedule = random_schedule(random.Random(seed))
    try:
        return schedule, lower_plan(schedule, PlanOptions(instances=instances)).plan
    except LoweringError:
        return schedule, None


plans = st.builds(drawn, st.integers(0, 2**32), st.sampled_from([1, 1, 2, 3]))


@settings(max_examples=60)
@given(case=plans, name=st.sampled_from(["mscclpp-a100", "mscclpp-h100"]), protocol=st.sampled_from(["Simple", "LL"]))
def test_no_plan_is_below_the_bounds_of_its_machine_and_of_the_runtime(case, name, protocol):
    schedule, made = case
    if made is None:
        return
    collective, under = schedule.collective, load_profile(name)
    replay = RuntimePlanReplay(made, collective.kind, schedule.topology, under)
    bounds = DemandBounds.of(schedule.topology, collective.kind, collective.root)
    for chunk_bytes in (100.0, schedule.chunk_bytes, 3e7):
        size_bytes = chunk_bytes * made.chunks_per_size
        physical_us = bounds.at(size_bytes).time_us
        found = runtime_bound(
            lambda size: bounds.at(size).time_us, schedule.topology, under, collective.kind, size_bytes
        )
        assert physical_us * (1 - 1e-9) <= found.time_us
        assert found.time_us * (1 - 1e-9) <= replay.time_us(size_bytes, protocol=protocol)


# Where links share ports a message waits until all are free (neutral), or for each by itself; where threadblocks share a link
# their alphas follow each other, or are one.
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["mscclpp-a100", "mscclpp-h100"]))
def test_a_runtime_takes_longer_than_links_alone(seed, name):
    schedule, made = drawn(seed, 1)
    if made is None:
        return
    apart = replace(
        schedule.topology, links=tuple(replace(each, ports=()) for each in schedule.topology.links), ports=()
    )
    kind = schedule.collective.kind
    replay = RuntimePlanReplay(made, kind, apart, load_profile(name))
    for chunk_bytes in (100.0, schedule.chunk_bytes, 3e7):
        neutral_us = replay_plan(made, kind, apart, chunk_bytes).makespan_us
        assert replay.time_us(chunk_bytes * made.chunks_per_size) >= neutral_us * (1 - 1e-9)


# Published rows


def one_put(blocks):
    """Two GPUs exchange a buffer, each by so many threadblocks, after a handshake and before a signal."""

    def made(number):
        ops = (
            Operation("rlxsignal", MEMORY, (0,)), Operation("rlxwait", MEMORY, (0,)),
            Operation("put", MEMORY, sources=(CellRange(Buffer.INPUT, number, 1),), target=CellRange(Buffer.OUTPUT, number, 1), remote=0),
            Operation("signal", MEMORY, (0,)), Operation("wait", MEMORY, (0,)),
        )  # fmt: skip
        return PlanBlock(ops, {MEMORY: (number,)}, {MEMORY: (0,)})

    gpus = tuple(
        PlanGpu(
            r, blocks, blocks, 0, {MEMORY: (1 - r,) * blocks}, (RemoteBuffer(1 - r, Buffer.OUTPUT, MEMORY),), 0,
            tuple(map(made, range(blocks))),
        )
        for r in range(2)
    )  # fmt: skip
    return Plan("pair", "alltoall", False, 1, 0, 1 << 40, gpus)


def two_step_allreduce(lanes, num_ranks=8):
    """What MSCCL++'s own AllReduce by packets does, by `lanes` threadblocks for each peer.

    Each rank gets its chunk of all others, adds it up, and puts the sum to all others. All come at the same time, so that each
    threadblock waits for its own peer alone.
    """
    peers = num_ranks - 1

    def gpu_of(rank):
        others = [peer for peer in range(num_ranks) if peer != rank]
        remotes = tuple(
            RemoteBuffer(peer, buffer, MEMORY) for peer in others for buffer in (Buffer.SCRATCH, Buffer.INPUT)
        )
        blocks = []
        for place, peer in enumerate(others):
            for lane in range(lanes):
                own, theirs = (
                    CellRange(Buffer.INPUT, rank * lanes + lane, 1),
                    CellRange(Buffer.INPUT, peer * lanes + lane, 1),
                )
                summed = (own, *(CellRange(Buffer.SCRATCH, each, 1) for each in range(peers)))
                ops = [
                    Operation("put", MEMORY, sources=(theirs,), target=CellRange(Buffer.SCRATCH, rank, 1), remote=0),
                    Operation("signal", MEMORY, (0,)), Operation("wait", MEMORY, (0,)),
                    Operation("re", sources=summed, target=own),
                    Operation("put", MEMORY, sources=(own,), target=own, remote=1),
                    Operation("signal", MEMORY, (0,)), Operation("wait", MEMORY, (0,)),
                ]  # fmt: skip
                channel = place * lanes + lane
                blocks.append(PlanBlock(tuple(ops), {MEMORY: (channel,)}, {MEMORY: (2 * place, 2 * place + 1)}))
        peers_of = {MEMORY: tuple(peer for peer in others for _ in range(lanes))}
        chunks = num_ranks * lanes
        return PlanGpu(rank, chunks, chunks, peers, peers_of, remotes, 0, tuple(blocks))

    return Plan("two steps", "allreduce", True, 1, 0, 1 << 40, tuple(map(gpu_of, range(num_ranks))))


def off(found_us, row_us):
    return max(found_us / row_us, row_us / found_us)


# Two H100, microsoft/mscclpp docs/tutorials/03-memory-channel.md (no benchmark, its authors say).
@pytest.mark.parametrize(
    ("size_bytes", "row_us", "most"), [(1 << 10, 6.508, 1.15), (1 << 20, 9.261, 1.15), (128 << 20, 389.2, 1.1)]
)
def test_a_put_by_32_threadblocks_takes_what_the_tutorial_says(size_bytes, row_us, most):
    port = [Port(name, 0.0, 1000 / 450) for name in ("out 0", "out 1")]
    links = [Link(r, 1 - r, 0.3, 1000 / 450, ports=(r,)) for r in range(2)]
    pair = Topology("pair", "two H100", (0, 0), tuple(port), tuple(links), inside=Medium.NVLINK, gpu="h100")
    replay = RuntimePlanReplay(one_put(32), Kind.ALLTOALL, pair, load_profile("mscclpp-h100"))
    assert off(replay.time_us(size_bytes), row_us) <= most


# AllReduce by packets of one node: test/deploy/perf_ndmv{4,5}.jsonl, mscclpp#647 (half, in place) and #169.
@pytest.mark.parametrize(
    ("name", "size_bytes", "row_us", "most"),
    [
        ("ndv5", 8 << 10, 5.1, 1.1), ("ndv5", 24 << 10, 6.18, 1.1), ("ndv5", 48 << 10, 6.62, 1.1), ("ndv5", 72 << 10, 6.91, 1.1),
        ("ndv4", 8 << 10, 5.86, 1.1), ("ndv4", 24 << 10, 7.23, 1.2), ("ndv4", 96 << 10, 8.34, 1.1),
    ],
)  # fmt: skip
def test_an_allreduce_by_28_threadblocks_takes_what_its_authors_publish(name, size_bytes, row_us, most):
    topology = load_topology(name)
    under = load_profile(f"mscclpp-{topology.gpu}")
    replay = RuntimePlanReplay(two_step_allreduce(4), Kind.ALLREDUCE, topology, under)
    assert off(replay.time_us(size_bytes, protocol="LL"), row_us) <= most


# test/deploy/perf_ndmv{4,5}.jsonl; the usable share of NVLink on A100 is from the first, that of NICs from NCCL's logs.
@pytest.mark.parametrize(
    ("name", "nodes", "instances", "row_us"),
    [("ndv4", 1, 4, 3887.87), ("ndv4", 2, 1, 23071.5), ("ndv5", 2, 1, 11076.24)],
)
def test_a_direct_alltoall_of_a_gibibyte_takes_what_its_authors_publish(name, nodes, instances, row_us):
    topology = load_topology(name, nodes=nodes)
    direct = next(each for each in baselines_of(topology, Kind.ALLTOALL, 0, 1 << 30) if each.family is Family.DIRECT)
    made = lower_plan(direct.variants[0].schedule, PlanOptions(instances=instances)).plan
    replay = RuntimePlanReplay(made, Kind.ALLTOALL, topology, load_profile(f"mscclpp-{topology.gpu}"))
    assert off(replay.time_us(1 << 30), row_us) <= 1.05
