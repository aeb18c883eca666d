"""NCCL's tuner: every expected number is worked out by hand from the formulas and constants of NCCL 2.30.7."""

from dataclasses import replace

import pytest

from taccl_py.baselines.nccl_graph import read_graphs
from taccl_py.baselines.nccl_ranks import gpu_of, has_amd_cpu, nccl_ranks_of
from taccl_py.baselines.nccl_time import nccl_machine
from taccl_py.baselines.nccl_tuner import (
    GpuGeneration,
    Graph,
    NcclAlgorithm,
    NcclRanks,
    choose,
    expected_us,
    predictions,
)
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.program import Protocol
from taccl_py.topology.catalog import load_topology

MIB = 1 << 20
A100 = NcclRanks(GpuGeneration.AMPERE, 8, 1, Graph(12, 20, 20), amd_cpu=True)
H100 = NcclRanks(GpuGeneration.HOPPER, 8, 1, Graph(12, 30, 30), Graph(8, 40, 40))
TWO_A100 = NcclRanks(GpuGeneration.AMPERE, 16, 2, Graph(8, 24, 24), amd_cpu=True)


def line(nccl, kind, algorithm, protocol):
    (found,) = [p for p in predictions(nccl, kind) if (p.algorithm, p.protocol) == (algorithm, protocol)]
    return found


def test_the_published_check_value_of_eight_a100():
    """Ring of 240 GB/s: Simple 8.4 + 14 * 3.4 + 7.6, LL 6.6 + 14 * 0.6 + 20.9 at 1 MiB."""
    simple = line(A100, Kind.ALLREDUCE, NcclAlgorithm.RING, Protocol.SIMPLE)
    assert simple.latency_us == pytest.approx(56.0)
    assert simple.bandwidth_gbps == pytest.approx(240 * 8 / 14)
    assert simple.time_us(MIB) == pytest.approx(63.6, abs=0.05)
    ll = line(A100, Kind.ALLREDUCE, NcclAlgorithm.RING, Protocol.LL)
    assert ll.latency_us == pytest.approx(15.0)
    assert ll.bandwidth_gbps == pytest.approx(87.7 * 8 / 14)
    assert ll.time_us(MIB) == pytest.approx(35.9, abs=0.05)


# Algorithm, protocol, latency in us, bandwidth in GB/s of AllReduce.
TABLES = {
    # Ring: bus 360; LL 141 of the GPU, LL128 0.92 * 360 (12 * 36.7 is more), each times 8/14.
    # Tree: 0.92 * 360 = 331.2 (12 * 38.7 is more), LL / 3.8, LL128 * 7/9, each times 1/2.
    # NVLS: 8 channels of 40 * 0.85 * 7/8 * 2 = 59.5, times 8/14.
    "8 x H100": (H100, [
        (NcclAlgorithm.RING, Protocol.LL, 6.6 + 14 * 0.6, 80.571),
        (NcclAlgorithm.RING, Protocol.LL128, 14 + 14 * 1.9, 189.257),
        (NcclAlgorithm.RING, Protocol.SIMPLE, 8.4 + 14 * 3.4, 205.714),
        (NcclAlgorithm.TREE, Protocol.LL, 6.8 + 14 * 0.6, 43.579),
        (NcclAlgorithm.TREE, Protocol.LL128, 14 + 14 * 1.25, 128.8),
        (NcclAlgorithm.TREE, Protocol.SIMPLE, 8.4 + 14 * 4.0, 165.6),
        (NcclAlgorithm.NVLS, Protocol.SIMPLE, 25.0, 272.0),
    ]),
    # Ring: bus 192, 30 steps of which 2 cross the network; an AMD CPU costs 2 us a step, 6 with Simple, and LL reaches 22.5.
    # Tree: 0.92 * 192 = 176.64 (8 * 23.6 is more); LL 176.64 / 3.8 is more than 22.5; LL128 160 of 8 channels is less than
    # 176.64 * 120/128 = 165.6.
    "2 x 8 A100": (TWO_A100, [
        (NcclAlgorithm.RING, Protocol.LL, 6.6 + 28 * 2.0 + 2 * 2.7, 12.0),
        (NcclAlgorithm.RING, Protocol.LL128, 14 + 28 * 2.0 + 2 * 4.0, 85.333),
        (NcclAlgorithm.RING, Protocol.SIMPLE, 8.4 + 28 * 6.0 + 2 * 14, 102.4),
        (NcclAlgorithm.TREE, Protocol.LL, 6.8 + 2 * (7 * 0.6 + 5.0), 11.25),
        (NcclAlgorithm.TREE, Protocol.LL128, 14 + 2 * (7 * 1.25 + 8.5), 80.0),
        (NcclAlgorithm.TREE, Protocol.SIMPLE, 8.4 + 2 * (7 * 4.0 + 14), 88.32),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_worked_out_by_hand(name):
    nccl, rows = TABLES[name]
    found = predictions(nccl, Kind.ALLREDUCE)
    assert {(p.algorithm, p.protocol) for p in found} == {(algorithm, protocol) for algorithm, protocol, _, _ in rows}
    for algorithm, protocol, latency_us, bandwidth_gbps in rows:
        one = line(nccl, Kind.ALLREDUCE, algorithm, protocol)
        assert one.latency_us == pytest.approx(latency_us), (algorithm, protocol)
        assert one.bandwidth_gbps == pytest.approx(bandwidth_gbps, rel=1e-4), (algorithm, protocol)


@pytest.mark.parametrize(
    ("kind", "latency_us", "bandwidth_gbps"),
    [
        (Kind.ALLGATHER, 8.4 + 7 * 3.4, 240 * 8 / 7),
        (Kind.REDUCESCATTER, 8.4 + 7 * 3.4, 240 * 8 / 7),
        (Kind.BROADCAST, 8.4 + 3.4, 240),
        (Kind.REDUCE, 8.4 + 3.4, 240),
    ],
)  # fmt: skip
def test_other_collectives_have_rings_only_with_steps_of_their_own(kind, latency_us, bandwidth_gbps):
    found = {p.protocol: p for p in predictions(A100, kind)}
    assert {p.algorithm for p in found.values()} == {NcclAlgorithm.RING}
    assert found[Protocol.SIMPLE].latency_us == pytest.approx(latency_us)
    assert found[Protocol.SIMPLE].bandwidth_gbps == pytest.approx(bandwidth_gbps)


def test_pat_is_for_one_gpu_a_node():
    """Base 8, 3 doublings of 14 / 3.5, 2.8 a rank; three quarters of the network."""
    one_each = NcclRanks(GpuGeneration.HOPPER, 8, 8, Graph(1, 48, 48))
    pat = line(one_each, Kind.ALLGATHER, NcclAlgorithm.PAT, Protocol.SIMPLE)
    assert pat.latency_us == pytest.approx(8 + 3 * 14 / 3.5 + 2.8 * 8)
    assert pat.bandwidth_gbps == pytest.approx(36)
    assert NcclAlgorithm.PAT not in {p.algorithm for p in predictions(TWO_A100, Kind.ALLGATHER)}


def test_a_tree_loses_bandwidth_at_middling_sizes():
    """At 1 MiB, which is 2^14 times 64 bytes, half of it with Simple."""
    tree = line(TWO_A100, Kind.ALLREDUCE, NcclAlgorithm.TREE, Protocol.SIMPLE)
    assert expected_us(TWO_A100, Kind.ALLREDUCE, tree, MIB) == pytest.approx(92.4 + MIB / (1000 * 88.32 * 0.5))
    assert expected_us(TWO_A100, Kind.ALLREDUCE, tree, 63) == pytest.approx(92.4, rel=1e-3)


def test_a_plain_ring_across_nodes_is_slower_than_its_latency_says_except_for_the_smallest_sizes():
    ring = line(TWO_A100, Kind.ALLREDUCE, NcclAlgorithm.RING, Protocol.SIMPLE)
    assert expected_us(TWO_A100, Kind.ALLREDUCE, ring, 8192) == pytest.approx(204.4 * 1.4 + 8.192 / 102.4)
    assert expected_us(TWO_A100, Kind.ALLREDUCE, ring, 8191) == pytest.approx(204.4 + 8.191 / 102.4)
    assert expected_us(A100, Kind.ALLREDUCE, line(A100, Kind.ALLREDUCE, NcclAlgorithm.RING, Protocol.SIMPLE), MIB) < 64


def test_what_is_chosen_goes_from_low_latency_to_high_bandwidth():
    chosen = [choose(H100, Kind.ALLREDUCE, size) for size in (1024, 4 * MIB, 256 * MIB)]
    assert [(c.algorithm, c.protocol) for c in chosen] == [
        (NcclAlgorithm.RING, Protocol.LL), (NcclAlgorithm.NVLS, Protocol.SIMPLE), (NcclAlgorithm.NVLS, Protocol.SIMPLE),
    ]  # fmt: skip
    assert chosen[0].time_us == pytest.approx(15.0 + 1.024 / 80.571, rel=1e-4)
    assert choose(TWO_A100, Kind.ALLREDUCE, 1024).algorithm is NcclAlgorithm.TREE


def test_collectives_of_single_sends_have_no_choice():
    assert all(choose(A100, kind, MIB) is None for kind in (Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER))


@pytest.mark.parametrize(
    ("name", "nodes", "channels", "intra_gbps", "inter_gbps"),
    [
        ("ndv4", 1, 12, 20, 20),  # 240 GB/s: 6 channels of 40, cut in two
        ("ndv5", 1, 12, 30, 30),  # 370.8 GB/s: 6 of 60, cut in two
        ("ndv4", 2, 8, 24, 24),  # a NIC each of 25 GB/s
    ],
)
def test_the_graph_of_shipped_machines(name, nodes, channels, intra_gbps, inter_gbps):
    topology = load_topology(name, nodes)
    nccl = nccl_ranks_of(topology, gpu_of(topology), amd_cpu=has_amd_cpu(topology))
    assert (nccl.graph.channels, nccl.graph.intra_gbps, nccl.graph.inter_gbps) == (channels, intra_gbps, inter_gbps)
    assert (nccl.num_ranks, nccl.num_nodes) == (8 * nodes, nodes)
    assert (nccl.nvls is not None) == (name == "ndv5")


def test_of_mixed_machines_the_oldest_gpu_and_the_slowest_node_count_and_ll128_is_left_out():
    topology = load_topology("ndv5+ndv4")
    nccl = nccl_ranks_of(topology, gpu_of(topology), amd_cpu=False)
    slow = load_topology("ndv4", 2)
    assert (nccl.gpu, nccl.graph) == (GpuGeneration.AMPERE, nccl_ranks_of(slow, gpu_of(slow), amd_cpu=False).graph)
    assert {each.protocol for each in predictions(nccl, Kind.ALLREDUCE)} == {Protocol.LL, Protocol.SIMPLE}
    assert not nccl_machine(topology).ll128
    assert nccl_machine(slow).ll128
    assert gpu_of(load_topology("ndv4+mi300x")) is None


def test_machines_of_unknown_gpus_have_no_tuner():
    assert gpu_of(load_topology("ring:4")) is None
    assert gpu_of(load_topology("mi300x")) is None


DUMP = """<graphs version="1">
<graph id="0" pattern="4" nchannels="2" speedintra="24" speedinter="22" latencyinter="1.5" typeintra="NVL"><channel/></graph>
<graph id="1" pattern="1" nchannels="4" speedintra="12" speedinter="11" latencyinter="0.5"/>
<graph id="2" pattern="3" nchannels="0" speedintra="0" speedinter="0"/>
</graphs>
"""


def test_a_dump_of_nccls_search_takes_the_place_of_the_estimate(tmp_path):
    """Ring of 2 * 24; its latency between nodes is 14 + 2 * 1.5 with Simple. Trees of 4 * 12, with 14 + 2 * 0.5."""
    (tmp_path / "dump.xml").write_text(DUMP)
    graphs = read_graphs(tmp_path / "dump.xml")
    assert (graphs.ring, graphs.tree, graphs.nvls) == (Graph(2, 24, 22, 1.5), Graph(4, 12, 11, 0.5), None)
    nccl = replace(TWO_A100, graph=graphs.ring, tree=graphs.tree)
    ring = line(nccl, Kind.ALLREDUCE, NcclAlgorithm.RING, Protocol.SIMPLE)
    assert ring.bandwidth_gbps == pytest.approx(48 * 16 / 30)
    assert ring.latency_us == pytest.approx(8.4 + 28 * 6.0 + 2 * 17)
    tree = line(nccl, Kind.ALLREDUCE, NcclAlgorithm.TREE, Protocol.SIMPLE)
    assert tree.bandwidth_gbps == pytest.approx(0.92 * 48 / 2)
    assert tree.latency_us == pytest.approx(8.4 + 2 * (7 * 4.0 + 15))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", ["not XML"]),
        ("<system/>", ["'system'", "NCCL_GRAPH_DUMP_FILE"]),
        (DUMP.replace('id="0"', 'id="5"'), ["no ring"]),
        (DUMP.replace('speedintra="24"', 'speedintra="fast"'), ["graph 0.speedintra", "'fast'"]),
        (DUMP.replace('nchannels="4"', ""), ["graph 1.nchannels"]),
        (DUMP.replace('speedinter="22"', 'speedinter="-1"'), ["graph 0.speedinter", "'-1'"]),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, text, words):
    (tmp_path / "dump.xml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_graphs(tmp_path / "dump.xml")
    assert str(caught.value).startswith(str(tmp_path / "dump.xml"))
    assert all(word in str(caught.value) for word in words), str(caught.value)
