"""Sample files, outputs of other benchmarks, and the machines that are made of them."""

import csv
import io
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.measure.assemble import Grouping, fit_topology
from taccl_py.measure.emulate import EmulatedBench
from taccl_py.measure.experiment import Experiment, MeasuredFlow
from taccl_py.measure.foreign import read_any
from taccl_py.measure.samples import Sample, read_samples
from tests.measure.machines import MACHINES
from tests.measure.test_profiler import felt_ports

OSU_LATENCY = """# OSU MPI Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1                       2.01
1024                    2.10
1000000               102.00
"""
OSU_BANDWIDTH = """# OSU MPI Bandwidth Test v7.3
# Size      Bandwidth (MB/s)
1024                 1000.00
1000000             10000.00
"""
SENDRECV = """# nThread 1 nGpus 3 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   100 on       node device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid   100 on       node device  1 [0x0f] NVIDIA A100
#  Rank  2 Group  0 Pid   100 on       node device  2 [0x47] NVIDIA A100
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1000           250     float     sum      -1    12.00    0.08    0.08      0    11.90    0.08    0.08    N/A
     1000000        250000     float     sum      -1    22.00   45.45   45.45      0    21.90   45.45   45.45    N/A
# Out of bounds values : 0 OK
"""
P2P = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 700.00  11.00
     1  11.00 700.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 700.00  50.00
     1  40.00 700.00
P2P=Disabled Latency Matrix (us)
   GPU     0      1
     0   2.50  15.00
     1  15.00   2.50

   CPU     0      1
     0   2.50  15.00
     1  15.00   2.50
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.50   1.50
     1   2.00   2.50
"""

ranks = st.integers(0, 9)
samples = st.builds(
    Sample, ranks, st.integers(10, 19), st.integers(0, 10**9), st.integers(1, 10**6).map(float), st.integers(1, 9),
    st.integers(1, 9), st.sampled_from(["", "a", "x, y"]),
)  # fmt: skip


def write_samples(samples):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["src", "dst", "size_bytes", "time_us", "serial", "joined", "together"])
    for one in samples:
        writer.writerow([one.src, one.dst, one.size_bytes, f"{one.time_us:.6g}", one.serial, one.joined, one.together])
    return out.getvalue()


@given(st.lists(samples, min_size=1, max_size=5))
def test_samples_that_are_written_read_back(written):
    assert read_samples(write_samples(written), "s.csv") == tuple(written)


def test_what_a_spreadsheet_saves_is_read():
    """With a mark before the header, and the line ends of Windows."""
    assert read_samples("\ufeffsrc,dst,size_bytes,time_us\r\n0,1,1000,2.5\r\n", "x") == (Sample(0, 1, 1000, 2.5),)


@pytest.mark.parametrize("sign", [";", "\t", "; "])
def test_columns_may_be_parted_as_spreadsheets_do(sign):
    text = "src,dst,size_bytes,time_us\n0,1,1000,2.5\n"
    assert read_samples(text.replace(",", sign), "x") == (Sample(0, 1, 1000, 2.5),)


def test_columns_may_stand_in_any_order_and_comments_are_skipped():
    text = "# made up\ntime_us, dst, src, size_bytes\n3.5, 1, 0, 64\n"
    assert read_samples(text, "s.csv") == (Sample(0, 1, 64, 3.5),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column src"),
        ("src,dst,size_bytes\n0,1,2\n", "no column time_us"),
        ("src,dst,size_bytes,time_us,colour\n", "unknown column 'colour'"),
        ("src,dst,size_bytes,time_us\n", "no sample"),
        ("src,dst,size_bytes,time_us\n0,1,2,3\n0,x,2,3\n", r"row 2.dst: found 'x'"),
        ("src,dst,size_bytes,time_us\n1,1,2,3\n", "the sender itself"),
        ("src,dst,size_bytes,time_us\n0,1,2,-3\n", "time_us: found '-3'"),
        ("src,dst,size_bytes,time_us\n0,1,2,nan\n", "time_us: found 'nan'"),
        ("src,dst,size_bytes,time_us\n0,1\n", "size_bytes: found ''"),
        ("src,dst,size_bytes,time_us,serial\n0,1,2,3,0\n", "serial: found '0'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_row_and_column(text, words):
    with pytest.raises(InputError, match=words) as error:
        read_samples(text, "s.csv")
    assert str(error.value).startswith("s.csv: ")


def test_osu_benchmarks_are_samples_of_two_ranks():
    assert read_any(OSU_LATENCY, "l.txt")[1] == Sample(0, 1, 1024, 2.10)
    # 64 messages of 1 MB at 10000 MB/s take 6400 us.
    assert read_any(OSU_BANDWIDTH, "b.txt")[1] == Sample(0, 1, 1_000_000, 6400.0, joined=64)
    both = [*read_any(OSU_LATENCY, "l.txt"), *read_any(OSU_BANDWIDTH, "b.txt")]
    line = fit_topology(both, "pair", ranks=4, nodes=4, grouping=Grouping.CLASS).topology
    assert (line.num_nodes, len(line.links)) == (4, 12)
    assert 95 < line.links[0].beta_us_per_mb < 105
    assert line.links[0].alpha_us == pytest.approx(2, rel=0.05)


def test_sendrecv_is_a_ring_in_which_all_send_together():
    found = read_any(SENDRECV, "s.txt")
    assert [(one.src, one.dst) for one in found[:3]] == [(0, 1), (1, 2), (2, 0)]
    assert (found[0].together, found[3].together) == ("ring 0", "ring 1")
    machine = fit_topology(found, "ring").topology
    assert machine.links[0].beta_us_per_mb == pytest.approx(10 / 0.999)
    assert machine.links[0].alpha_us == pytest.approx(12 - 0.01 / 0.999)


def test_p2p_bandwidth_and_latency_with_p2p_enabled_count():
    machine = fit_topology(read_any(P2P, "p.txt"), "p2p").topology
    assert [(link.src, link.dst) for link in machine.links] == [(0, 1), (1, 0)]
    # 160 MB at 50 GB/s take 3200 us, 4 bytes 1.5 us.
    assert machine.links[0].alpha_us == pytest.approx(1.5, rel=1e-4)
    assert machine.links[0].beta_us_per_mb == pytest.approx((3200 - 1.5) / 160, rel=1e-6)
    assert machine.links[1].beta_us_per_mb == pytest.approx((4000 - 2.0) / 160, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OSU_LATENCY[:60], "no rows of size and value"),
        (SENDRECV.split("        1000")[0], "no rows of size and time"),
        (P2P.split("P2P=Enabled Latency")[0], "no matrix of P2P latencies"),
        (P2P.replace("     1  40.00 700.00\n", "     1  40.00\n"), "found 1 of 2 cells"),
    ],
)
def test_an_output_that_is_cut_off_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        read_any(text, "p.txt")


def test_a_class_is_fitted_once_and_joins_all_its_pairs():
    rows = [Sample(0, 1, size, 1 + size / 1e5) for size in (1000, 10**6)]
    rows += [Sample(0, 2, size, 5 + size / 1e4) for size in (1000, 10**6)]
    fitted = fit_topology(rows, "two", nodes=2, ranks=4, grouping=Grouping.CLASS)
    assert [group.name for group in fitted.groups] == ["inside a node", "between nodes"]
    assert fitted.topology.node_of == (0, 0, 1, 1)
    assert {(k.src, k.dst): round(k.beta_us_per_mb) for k in fitted.topology.links}[3, 0] == 100
    assert len(fitted.topology.links) == 12


def test_what_ran_together_does_not_spoil_what_ran_alone():
    alone = [Sample(0, 1, size, 1 + size / 1e5) for size in (1000, 10**6)]
    back = [Sample(1, 0, size, 1 + size / 1e5) for size in (1000, 10**6)]
    crowded = [Sample(0, 1, 10**6, 500.0, together="crowd")]
    links = fit_topology([*alone, *back, *crowded], "pair").topology.links
    assert links[0].beta_us_per_mb == pytest.approx(10)


def recorded(machine, groups, sizes=(64, 4 * 10**6), messages=16):
    """Samples of every link alone, and of groups of flows together, on an emulated machine."""
    bench = EmulatedBench(machine)
    experiments = [("", (flow,)) for flow in bench.pairs] + [(f"group {n}", g) for n, g in enumerate(groups)]
    found = []
    for label, flows in experiments:
        for size in sizes:
            times = bench.run(Experiment(tuple(flows), size, messages))
            found += [
                Sample(flow.src, flow.dst, size, time, serial=messages, together=label and f"{label} at {size}")
                for flow, time in zip(flows, times, strict=True)
            ]
    return found


def all_pairs_of(links):
    return list(combinations(links, 2))


@pytest.mark.parametrize("name", ["ndv2_like", "pcie_shared", "ring"])
def test_ports_are_inferred_from_what_was_recorded_together(name):
    """Every two links together, as a script that knows nothing would record them."""
    truth = MACHINES[name]()
    fitted = fit_topology(
        recorded(truth, all_pairs_of(EmulatedBench(truth).pairs)), name, nodes=truth.num_nodes
    ).topology
    found, expected = felt_ports(fitted), felt_ports(truth)
    assert set(found) == set(expected)
    for links, port in expected.items():
        assert found[links].beta_us_per_mb == pytest.approx(port.beta_us_per_mb, rel=0.03)


def test_a_port_that_only_many_flows_feel_is_inferred_from_them():
    """The uplinks of the tree carry two flows without slowing them, and four at half the rate."""
    truth = MACHINES["tree"]()
    groups = [
        [MeasuredFlow(0, 4), MeasuredFlow(1, 5)],
        [MeasuredFlow(r, r + 4) for r in range(4)],
        [MeasuredFlow(r + 4, r) for r in range(4)],
    ]
    fitted = fit_topology(recorded(truth, groups), "tree").topology
    assert set(felt_ports(fitted)) == {frozenset((f.src, f.dst) for f in group) for group in groups[1:]}
    for port in fitted.ports:
        assert port.beta_us_per_mb == pytest.approx(20, rel=0.03)


def test_flows_of_one_label_that_send_different_things_are_refused():
    alone = [Sample(a, 1 - a, size, 1 + size / 1e5) for a in (0, 1) for size in (1000, 10**6)]
    mixed = [Sample(0, 1, 10**6, 30.0, together="both"), Sample(1, 0, 10**3, 30.0, together="both")]
    with pytest.raises(InputError, match="together='both' have several sizes"):
        fit_topology([*alone, *mixed], "pair")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 1}, "1 ranks are fewer than the samples name, 2"),
        ({"ranks": 3, "nodes": 2}, "no multiple of 2 nodes"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        fit_topology([Sample(0, 1, 1, 1.0), Sample(1, 0, 9, 2.0)], "pair", **options)
