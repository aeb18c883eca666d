"""Outputs of benchmarks as they come from the field: headers tell what a file is of, and what is no link sample is refused."""

import json

import pytest

from taccl_py.errors import InputError
from taccl_py.measure.assemble import Grouping, fit_topology
from taccl_py.measure.foreign import read_any
from taccl_py.measure.samples import Sample
from taccl_py.topology.model import Medium

NEW = ("redop", "root"), "#wrong"
OLD = (), "error"


def log(
    rows, ranks=2, columns=NEW, busbw=1.0, redop="sum", root="-1", in_place="N/A", before="", rank_of=lambda rank: rank
):
    """A log of nccl-tests: rows of size and time in microseconds, a factor from algbw to busbw."""
    extra, wrong = columns
    head = f"#       size         count      type   {'   '.join(extra)}     " + f"time   algbw   busbw {wrong}  " * 2
    lines = [
        before,
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    lines += [f"#  Rank {rank_of(rank):2d} Group  0 Pid 100{rank} on node{rank // 8} device {rank % 8} [0x18] NVIDIA H200"
              for rank in range(ranks)]  # fmt: skip
    lines += ["#", head, "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"]
    for size, time in rows:
        algbw = size / time / 1000
        values = [value for name, value in (("redop", redop), ("root", root)) if name in extra]
        shown = f"{time:.0f}" if time >= 10000 else f"{time:.4g}"
        side = f"{shown}  {algbw:.2f}  {algbw * busbw:.2f}"
        lines.append(f"  {size}  {size // 4}  float  {'  '.join(values)}  {side}  0  {side}  {in_place}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 475.782", ""])


ROWS = [(1 << 20, 40.0), (1 << 26, 700.0), (1 << 30, 11000.0)]
COLLECTIVES = {
    "allreduce of 16": dict(ranks=16, busbw=30 / 16, in_place="0"),
    "allreduce of 2": dict(ranks=2, in_place="0"),
    "allreduce of 2, its results not checked, its command in the log": dict(
        ranks=2, before="mpirun -np 2 ./build/all_reduce_perf -b 8 -e 1G -c 0"
    ),
    "allreduce of 2 that says so": dict(ranks=2, before="# Collective test starting: all_reduce_perf"),
    "alltoall": dict(ranks=8, busbw=7 / 8, redop="none"),
    "alltoall of 128": dict(ranks=128, busbw=127 / 128, redop="none"),
    "broadcast": dict(ranks=4, redop="none", root="0", in_place="0"),
    "allreduce without its lines of ranks": dict(ranks=0, busbw=1.5),
    "allreduce of processes that each were alone": dict(ranks=8, rank_of=lambda _: 0, busbw=0.0),
    "old allreduce of 2": dict(ranks=2, columns=(("redop",), "error"), in_place="0e+00"),
    "old allgather": dict(ranks=2, columns=OLD, busbw=0.5, in_place="0e+00"),
    "old broadcast": dict(ranks=4, columns=(("root",), "error"), root="0", in_place="0e+00"),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_log_of_a_collective_is_refused_with_what_reads_it(name):
    with pytest.raises(InputError) as error:
        read_any(log(ROWS, **COLLECTIVES[name]), "log.txt")
    sentence = str(error.value)
    for word in ("log.txt: is a log of", "taccl compare --measured", "taccl runtime fit", "sendrecv_perf"):
        assert word in sentence


SENDRECVS = {
    "new": {},
    "old": dict(columns=OLD, in_place="0e+00"),
    "ring of 8": dict(ranks=8),
    "says so": dict(before="# Collective test starting: sendrecv_perf", in_place="0"),
    "says so in its command": dict(before="$ ./build/sendrecv_perf -b 8 -e 1G -g 2", in_place="0"),
    "after a log of something else": dict(ranks=3, before="all_reduce_perf was run before"),
}


@pytest.mark.parametrize("name", SENDRECVS)
def test_a_log_of_sendrecv_is_read_whatever_its_columns(name):
    options = SENDRECVS[name]
    found = read_any(log(ROWS, **options), "log.txt")
    ranks = options.get("ranks", 2)
    assert len(found) == len(ROWS) * ranks
    assert [one.time_us for one in found[::ranks]] == [40.0, 700.0, 11000.0]
    assert {(one.src, one.dst) for one in found} == {(rank, (rank + 1) % ranks) for rank in range(ranks)}


def test_old_columns_with_times_without_a_fraction_are_times_and_not_bandwidths():
    """GeForce cards over PCIe: 5.83 GB/s and about 20 us, in columns without redop and root."""
    rows = [(1 << 20, 202.1), (36 << 20, 6485.7), (72 << 20, 12960.0), (144 << 20, 25900.0)]
    for kept in (rows, rows[:2]):
        (line, _) = fit_topology(read_any(log(kept, columns=OLD, in_place="0e+00"), "l"), "pair").topology.links
        assert 1000 / line.beta_us_per_mb == pytest.approx(5.83, rel=0.01)
        assert line.alpha_us == pytest.approx(20, rel=0.2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 8, "rank_of": lambda _: 0}, "every process is rank 0; build nccl-tests with MPI=1"),
        ({"ranks": 1}, "there was one rank"),
        ({"ranks": 0}, "does not say how many ranks"),
        ({"ranks": 4, "rank_of": lambda rank: rank % 2}, "several runs"),
        ({"ranks": 2, "rank_of": lambda rank: 3 * rank}, "names rank 3 and only 2 ranks"),
    ],
)
def test_processes_that_did_not_send_to_each_other_are_no_ring(options, words):
    with pytest.raises(InputError, match=words):
        read_any(log(ROWS, **options), "log.txt")


def test_a_row_that_is_cut_off_is_refused():
    text = log(ROWS)
    with pytest.raises(InputError, match="cut off in the row of 67108864 bytes"):
        read_any(text[: text.index("67108864") + 40], "log.txt")


@pytest.mark.parametrize("mark", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-host0-1@1,0]<stdout>:", "0: ", " 0: "])
def test_marks_of_a_launcher_are_dropped(mark):
    text = log(ROWS)
    marked = "\n".join(mark + line for line in text.splitlines())
    assert read_any(marked, "log.txt") == read_any(text, "log.txt")
    osu = "# OSU MPI Latency Test v7.3\n# Size       Avg Latency(us)\n8  2.0\n1024  2.10\n"
    assert read_any("\n".join(mark + line for line in osu.splitlines()), "l") == read_any(osu, "l")


def test_a_text_of_no_known_kind_is_told_what_is_known():
    with pytest.raises(InputError, match=r"neither CSV .* nor the output of osu_latency"):
        read_any("bandwidth between 0 and 1\n12 GB/s\n", "x.txt")
    with pytest.raises(InputError, match="no column src"):
        read_any("from,to,us\n0,1,2\n", "x.csv")


# OSU


def osu(title, *rows):
    return "\n".join(
        [f"# OSU {title}", "# Size      Value", *(f"{size:<12}{value:>20.2f}" for size, value in rows), ""]
    )


@pytest.mark.parametrize(
    ("title", "why"),
    [
        ("MPI-CUDA Bi-Directional Bandwidth Test v7.2", "sums both directions"),
        ("MPI Bi-Directional Bandwidth Test", "sums both directions"),
        ("MPI Multiple Bandwidth / Message Rate Test v5.6.2", "several pairs"),
        ("MPI Multi Latency Test v5.8", "several pairs"),
        ("MPI Allreduce Latency Test v7.2", "collective"),
        ("MPI-ROCM All-to-All Personalized Exchange Latency Test v5.9", "collective"),
        ("MPI Broadcast Latency Test v3.1.1", "no test of a link"),
        ("MPI_Put Latency Test v5.0", "no test of a link"),
    ],
)
def test_osu_programs_that_measure_no_single_link_are_refused(title, why):
    with pytest.raises(InputError, match=why) as error:
        read_any(osu(title, (1024, 500), (1 << 20, 140000)), "o.txt")
    assert "osu_latency and osu_bw" in str(error.value)


@pytest.mark.parametrize("title", ["MPI{} {} Test v7.3", "MPI{} {} Test", "NCCL{} {} Test v7.1"])
@pytest.mark.parametrize("device", ["", "-CUDA", "-ROCM"])
def test_latency_and_bandwidth_of_two_ranks_are_read(title, device):
    assert read_any(osu(title.format(device, "Latency"), (1024, 2.1)), "o") == (Sample(0, 1, 1024, 2.1),)
    assert read_any(osu(title.format(device, "Bandwidth"), (1000, 100)), "o") == (Sample(0, 1, 1000, 640.0, joined=64),)


def test_outputs_one_after_the_other_are_each_what_their_header_says():
    text = osu("MPI Latency Test v7.3", (8, 2.0)) + osu("MPI Bandwidth Test v7.3", (1000, 100.0))
    assert [one.joined for one in read_any(text, "o")] == [1, 64]
    with pytest.raises(InputError, match="collective"):
        read_any(text + osu("MPI Allgather Latency Test v7.3", (8, 20.0)), "o")


def test_one_pair_is_no_machine_and_the_remedy_is_named():
    found = read_any(osu("MPI Latency Test v7.3", (8, 2.0), (1 << 20, 100.0)), "o")
    with pytest.raises(InputError, match="--by class"):
        fit_topology(found, "pair", nodes=2)
    assert len(fit_topology(found, "pair", nodes=2, grouping=Grouping.CLASS).topology.links) == 2


# Bandwidths of copies


def matrix(title, corner, rows):
    width = range(len(rows))
    return "\n".join([title, f"   {corner}     {'     '.join(map(str, width))}", *(
        f"     {i} " + " ".join("N/A" if cell is None else f"{cell:.2f}" for cell in row) for i, row in enumerate(rows)
    )]) + "\n"  # fmt: skip


P2P_RATES = [[912.68, 9.90, 9.90], [9.90, 922.37, 9.90], [10.01, 10.01, 922.24]]
P2P = "".join([
    "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nDevice: 0, NVIDIA A10G, pciBusID: 1\n",
    matrix("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", r"D\D", [[911, 20, 22], [20, 920, 22], [22, 22, 920]]),
    matrix("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", r"D\D", P2P_RATES),
    matrix("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", r"D\D", [[912, 19, 19], [19, 922, 19], [19, 19, 922]]),
])  # fmt: skip


def test_bandwidths_alone_give_beta_and_alpha_is_assumed():
    fitted = fit_topology(read_any(P2P, "p2p.txt"), "a10g")
    assert {round(1000 / link.beta_us_per_mb, 2) for link in fitted.topology.links} == {9.90, 10.01}
    assert {link.alpha_us for link in fitted.topology.links} == {1.0}
    assert all(group.alpha_assumed for group in fitted.groups)
    assert "do not tell alpha" in fitted.topology.source
    nvlink = fit_topology(read_any(P2P, "p2p.txt"), "x", inside=Medium.NVLINK).topology
    assert {link.alpha_us for link in nvlink.links} == {0.6}


def test_what_joins_the_gpus_is_unknown_where_times_alone_are_known():
    latencies = matrix(
        "P2P=Enabled Latency (P2P Writes) Matrix (us)",
        "GPU",
        [[2.5, 2.31, 1.85], [2.26, 2.1, 1.88], [1.81, 1.83, 2.07]],
    )
    for text in (P2P, P2P + latencies):
        assert fit_topology(read_any(text, "p"), "x").topology.inside is Medium.UNKNOWN
        assert fit_topology(read_any(text, "p"), "x", inside=Medium.PCIE).topology.inside is Medium.PCIE


def nvbandwidth(arrow="->", names=("device_to_device_memcpy_read_ce",), kind="CE"):
    """What nvbandwidth prints; the copy from GPU 0 to GPU 1 runs at 26 GB/s, or the other way round."""
    parts = ["nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\nDevice 0: NVIDIA RTX A6000 (00000000:01:00)\n"]
    for name in names:
        title = f"memcpy {kind} GPU(row) {arrow} GPU(column) bandwidth (GB/s)"
        parts.append(f"\nRunning {name}.\n{title}\n           0         1\n 0       N/A     26.00\n 1     13.00       N/A\n"
                     f"\nSUM {name} 39.00\n")  # fmt: skip
    return "".join(parts)


@pytest.mark.parametrize(("arrow", "fast"), [("->", (0, 1)), ("<-", (1, 0))])
@pytest.mark.parametrize("kind", ["CE", "SM"])
def test_nvbandwidth_says_by_its_arrow_in_which_direction_a_copy_goes(arrow, fast, kind):
    links = fit_topology(read_any(nvbandwidth(arrow, kind=kind), "n"), "pair").topology.links
    assert {(k.src, k.dst): round(1000 / k.beta_us_per_mb, 2) for k in links} == {fast: 26.0, fast[::-1]: 13.0}


def test_nvbandwidth_is_read_as_json_too():
    case = {"name": "device_to_device_memcpy_read_ce", "status": "Passed", "sum": 39.0,
            "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
            "bandwidth_matrix": [["N/A", "26"], ["13", "N/A"]]}  # fmt: skip
    skipped = {"name": "host_to_device_memcpy_ce", "status": "Waived"}
    text = json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": [skipped, case]}})
    assert read_any(text, "n.json") == read_any(nvbandwidth(), "n.txt")
    with pytest.raises(InputError, match="no matrix of copies"):
        read_any(json.dumps({"nvbandwidth": {"testcases": [skipped]}}), "n.json")
    with pytest.raises(InputError, match=r"n\.json"):
        read_any(text[:-4], "n.json")


def test_nvbandwidth_in_both_directions_at_once_is_refused():
    with pytest.raises(InputError, match="no matrix of copies from GPU to GPU in one direction"):
        read_any(nvbandwidth("<->"), "n")
    both = nvbandwidth("<->") + nvbandwidth("->")
    assert len(read_any(both, "n")) == 2


TRANSFER_BENCH = """TransferBench v1.60
Bytes Per Direction 67108864
Unidirectional copy peak bandwidth GB/s [Local read / Remote write] (GPU-Executor: GFX)
 SRC+EXE\\DST    CPU 00    CPU 01       GPU 00    GPU 01    GPU 02
  CPU 00  ->     30.00     28.00        25.00     25.00     25.00
  CPU 01  ->     28.00     30.00        25.00     25.00     25.00

  GPU 00  ->     50.00     50.00      1500.00     48.00     47.00
  GPU 01  ->     50.00     50.00        48.00   1500.00       N/A
  GPU 02  ->     50.00     50.00        47.00     46.00   1500.00
                           CPU->CPU  CPU->GPU  GPU->CPU  GPU->GPU
Averages (During UniDir):  28.00 25.00 50.00 47.00
Bidirectional copy peak bandwidth GB/s [Local read / Remote write] (GPU-Executor: GFX)
     SRC\\DST    CPU 00    CPU 01       GPU 00    GPU 01    GPU 02
  GPU 00  ->     30.00     30.00          N/A     40.00     40.00
  GPU 00 <-      30.00     30.00          N/A     40.00     40.00
"""


@pytest.mark.parametrize("text", [TRANSFER_BENCH, TRANSFER_BENCH.replace(" GPU 0", ",GPU 0").replace("  ->", " ->,")])
def test_transfer_bench_is_read_between_gpus_in_one_direction(text):
    found = read_any(text, "t")
    assert {(s.src, s.dst): round(s.size_bytes / s.time_us / 1000, 2) for s in found} == {
        (0, 1): 48.0, (0, 2): 47.0, (1, 0): 48.0, (2, 0): 47.0, (2, 1): 46.0,
    }  # fmt: skip
    assert {s.size_bytes for s in found} == {67108864}


def test_transfer_bench_in_both_directions_at_once_or_cut_off_is_refused():
    with pytest.raises(InputError, match="P2P_MODE=1"):
        read_any(TRANSFER_BENCH[TRANSFER_BENCH.index("Bidirectional") :], "t")
    with pytest.raises(InputError, match="row GPU 02: found 4 of 5 cells"):
        read_any(TRANSFER_BENCH.replace("     46.00   1500.00", "     46.00"), "t")


# perftest


def perftest(title, columns, *rows):
    rule = "-" * 87
    return "\n".join([
        rule, f"                    {title}", " Dual-port       : OFF          Device         : mlx5_0",
        " Number of qps   : 4            Transport type : IB", rule, columns, *rows, rule, "",
    ])  # fmt: skip


def bandwidth_columns(unit):
    return f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]"


LATENCY_COLUMNS = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]"
WRITE_LAT = perftest(
    "RDMA_Write Latency Test",
    LATENCY_COLUMNS,
    " 2       1000          1.50           3.84         1.54                1.55    0.05  1.70",
)


@pytest.mark.parametrize(
    ("unit", "average", "gbps"), [("Gb", 391.34, 48.9175), ("MB", 11500.0, 12.0586), ("MiB", 11500.0, 12.0586)]
)
@pytest.mark.parametrize("title", ["RDMA_Write BW Test", "Send BW Test"])
def test_bandwidth_of_perftest_is_that_of_its_largest_size(title, unit, average, gbps):
    rows = (
        " 2   5000   0.10  0.09  5.1",
        f" 65536 20000 {average} {average - 1} 0.74",
        f" 8388608 20000 {average} {average} 0.005",
    )
    found = read_any(perftest(title, bandwidth_columns(unit), *rows), "b")
    assert [(one.src, one.dst, one.size_bytes) for one in found] == [(0, 1, 8388608)]
    (link, _) = fit_topology(found, "pair", nodes=2, grouping=Grouping.CLASS).topology.links
    assert 1000 / link.beta_us_per_mb == pytest.approx(gbps, rel=1e-4)
    assert link.alpha_us == 2.7  # assumed


def test_latency_of_perftest_is_the_typical_one_and_joins_its_bandwidth():
    found = read_any(WRITE_LAT, "l")
    assert found == (Sample(0, 1, 2, 1.54),)
    rate = read_any(perftest("RDMA_Write BW Test", bandwidth_columns("Gb"), " 8388608 20000 391.34 391.34 0.005"), "b")
    (link, _) = fit_topology([*found, *rate], "pair", nodes=2, grouping=Grouping.CLASS).topology.links
    assert (link.alpha_us, 1000 / link.beta_us_per_mb) == (
        pytest.approx(1.54, rel=1e-3),
        pytest.approx(49.36, rel=1e-2),
    )


def test_latency_of_a_run_of_fixed_duration_is_the_average():
    text = perftest(
        "Send Latency Test", " #bytes        #iterations       t_avg[usec]    tps average", " 2  2854 1.75 571428.5"
    )
    assert read_any(text, "l") == (Sample(0, 1, 2, 1.75),)


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("RDMA_Write Bidirectional BW Test", "sums both directions"),
        ("RDMA_Read BW Test", "is of RDMA_Read"),
        ("RDMA_Read Latency Test", "is of RDMA_Read"),
    ],
)
def test_perftest_in_both_directions_or_of_reads_is_refused(title, words):
    with pytest.raises(InputError, match=words):
        read_any(perftest(title, bandwidth_columns("Gb"), " 8388608 20000 391.34 391.34 0.005"), "b")
