"""``taccl compare``: one row a size, in the table as in JSON."""

import json
import threading
from pathlib import Path

import pytest

from taccl_py.baselines import compare
from taccl_py.collective import Kind
from taccl_py.errors import Interrupted
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.resolve import Request
from taccl_py.runtimes import RUNTIMES
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.units import SizeRange
from tests.cli.inputs import PROFILE, TACCL_SKETCH, write_json

SMALL = ("compare", "ring:4,alpha_us=1,beta_us_per_mb=10", "allgather", "--sizes", "4KB:4MB", "--time-limit", 3)


def test_sizes_are_compared_with_what_the_machine_allows(taccl):
    """AllGather on a two-way ring: at 4 MB rings take 3 hops of 1 MB halves, 3 * 6, and the bound is 1 + 15 or more."""
    ended = taccl(*SMALL, "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["nccl_tuner"] is None
    last = result["sizes"][-1]
    assert last["size_bytes"] == 4_000_000
    assert last["baselines"]["ring"] == {"time_us": pytest.approx(18), "variant": "2 rings"}
    assert set(last["baselines"]) == {"ring"}
    assert last["speedup"] == pytest.approx(18 / last["ours_us"])
    assert last["speedup_nccl"] is None
    assert all(row["bound_us"] <= row["ours_us"] * (1 + 1e-9) for row in result["sizes"])
    assert [row["size_bytes"] for row in result["sizes"]] == sorted(row["size_bytes"] for row in result["sizes"])


def test_nccls_choice_is_there_where_the_gpus_are_known(taccl):
    ended = taccl(*SMALL, "--gpu", "ampere", "--cpu", "amd", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["nccl_tuner"]["gpu"] == "ampere"
    assert result["nccl_tuner"]["amd_cpu"] is True
    first = result["sizes"][0]
    assert (first["nccl"]["algorithm"], first["nccl"]["protocol"]) == ("Ring", "LL")
    assert first["speedup_nccl"] == pytest.approx(first["baselines"]["ring"]["time_us"] / first["ours_us"])


def test_the_table_has_a_column_for_every_baseline(taccl):
    ended = taccl("compare", "full:4", "allreduce", "--sizes", "1MB:1MB", "--time-limit", 2)
    assert ended.code == 0, ended.err
    assert all(
        word in ended.out for word in ("ring", "double binary tree", "direct", "NCCL chooses", "speed-up", "976.6KiB")
    )
    assert "PAT" not in ended.out


def test_a_taccl_profile_is_compared_by_size(taccl, folder):
    write_json(folder / "profile.json", PROFILE)
    write_json(folder / "sketch.json", TACCL_SKETCH)
    sizes = ("--sizes", "1MB:1MB", "--time-limit", 2)
    ended = taccl("compare", "profile.json", "allgather", "--sketch", "sketch.json", *sizes)
    assert ended.code == 0, ended.err
    assert "ring" in ended.out


def test_what_nccl_makes_of_sends_and_receives_is_compared_with_the_direct_schedule(taccl):
    ended = taccl("compare", "full:4", "alltoall", "--sizes", "1MB:1MB", "--gpu", "volta", "--time-limit", 2, "--json")
    assert ended.code == 0, ended.err
    (row,) = ended.json["sizes"]
    assert row["nccl"]["algorithm"] == "send and receive"
    assert row["speedup_nccl"] == pytest.approx(row["baselines"]["direct"]["time_us"] / row["ours_us"])


def test_taccl_is_one_more_baseline_where_there_is_a_sketch(taccl, refuse):
    """Two ranks, 1 us + 10 us/MB, half a megabyte each: 6 us is all that there is to find."""
    sketch = {"format": "taccl-sketch", "version": 1, "name": "pair"}
    Path("pair.json").write_text(json.dumps(sketch))
    few = ("compare", "full:2,alpha_us=1,beta_us_per_mb=10", "allgather", "--sizes", "1MB:1MB", "--time-limit", 2)
    ended = taccl(*few, "--sketch", "pair.json", "--with-taccl", "--json")
    assert ended.code == 0, ended.err
    (row,) = ended.json["sizes"]
    assert row["baselines"]["TACCL"]["time_us"] == pytest.approx(6)
    assert row["baselines"]["TACCL"]["variant"].startswith("pair, 1 chunk, ")
    refuse(2, ["--with-taccl", "--sketch"], *few, "--with-taccl")
    refuse(2, ["--with-taccl", "allgather, alltoall, allreduce"], "compare", "full:4", "broadcast", "--with-taccl")


def test_sizes_for_which_taccl_had_no_time_are_told(taccl, monkeypatch):
    """Time passes only in TACCL's method, all of it at the first of three sizes."""

    def slow(*asked):
        passed.append(asked[2])
        return iter(())

    passed = []
    monkeypatch.setattr(compare, "run_taccl", slow)
    monkeypatch.setattr("taccl_py.solvers.limits.Deadline.left", property(lambda _: 0.0 if passed else 2.0))
    sketch = {"format": "taccl-sketch", "version": 1, "name": "pair"}
    Path("pair.json").write_text(json.dumps(sketch))
    words = ("compare", "full:2,alpha_us=1,beta_us_per_mb=10", "allgather", "--sizes", "1MB:4MB", "--time-limit", 2)
    ended = taccl(*words, "--sketch", "pair.json", "--with-taccl")
    assert (ended.code, passed) == (0, [1e6])
    assert "note: TACCL has no answer at 3 of 3 sizes" in ended.err


def test_a_graph_dump_that_is_none_is_refused(refuse, folder):
    (folder / "dump.xml").write_text("<system/>")
    refuse(2, ["dump.xml", "NCCL_GRAPH_DUMP_FILE"], "compare", "ring:4", "allgather", "--nccl-graph", "dump.xml")


def test_the_users_end_is_heard_before_anything_is_searched(monkeypatch):
    """Baselines of 16 ranks take ten seconds; after the search they would be waited for, so they come first."""
    monkeypatch.setattr(compare, "synthesize_portfolio", None)
    stop = threading.Event()
    stop.set()
    request = Request("ring:4", Kind.ALLGATHER, engine="auto", options=Options(limits=Limits(stop=stop)))
    with pytest.raises(Interrupted):
        compare.compare_sizes(
            request, SizeRange(1024, 1024), LoweringOptions(RUNTIMES["executor"]), compare.Tuned(), Events()
        )


# --- Under a runtime profile ------------------------------------------------------------------------------------------

LOG = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824
# Using devices
#  Rank  0 Group  0 Pid   1001 on     host-1 device  0 [0x00] NVIDIA A100
#  Rank  1 Group  0 Pid   1002 on     host-1 device  1 [0x00] NVIDIA A100
#  Rank  2 Group  0 Pid   1003 on     host-1 device  2 [0x00] NVIDIA A100
#  Rank  3 Group  0 Pid   1004 on     host-1 device  3 [0x00] NVIDIA A100
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float    none      -1    30.00   34.95   26.21      0    30.00   34.95   26.21      0
     4194304       1048576     float    none      -1    40.00  104.86   78.64      0    40.00  104.86   78.64      0
"""


@pytest.fixture
def installed(taccl, folder):
    """An AllGather of four A100 from 1 to 4 MiB, as files."""
    ended = taccl("synth", "ndv4", "allgather", "--ranks", "0-3", "--size", "2MiB", "--engine", "greedy",
                  "-o", "ours.xml", "--min-bytes", "1MiB", "--max-bytes", "8MiB")  # fmt: skip
    assert ended.code == 0, ended.err
    return folder / "ours.xml"


FOUR = ("compare", "ndv4", "allgather", "--ranks", "0-3", "--sizes", "1MiB:8MiB")


def test_every_size_has_times_under_the_profile(taccl, installed):
    ended = taccl(*FOUR, "--with", installed, "--json")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["runtime_profile"], result["runtime_evidence"]) == ("executor-a100", "not measured")
    for row in result["sizes"]:
        assert row["engine"] == "ours.xml"
        assert row["runtime_us"] > row["bound_us"]  # launch and operations come on top of links
        assert set(row["nccl_runtime"]) == {"Ring"}
        assert row["nccl_runtime_us"] == row["nccl_runtime"]["Ring"]["time_us"]
        assert row["speedup_runtime"] == pytest.approx(row["nccl_runtime_us"] / row["runtime_us"])
        assert bool(row["remedy"]) == (row["nccl_runtime_us"] < row["runtime_us"] * 0.99)


def test_sizes_without_a_file_are_nccls_alone(taccl, installed):
    ended = taccl(
        "compare", "ndv4", "allgather", "--ranks", "0-3", "--sizes", "1KiB:2MiB", "--with", installed, "--json"
    )
    assert ended.code == 0, ended.err
    first = ended.json["sizes"][0]
    assert (first["ours_us"], first["runtime_us"], first["gap"], first["remedy"]) == (None, None, None, "")
    assert first["nccl_runtime_us"] > 0
    table = taccl("compare", "ndv4", "allgather", "--ranks", "0-3", "--sizes", "1KiB:2MiB", "--with", installed)
    assert "executor-a100, not measured" in table.out


def test_a_slower_size_names_a_remedy_that_is_a_command_that_works(taccl, installed, folder):
    """A profile whose operations take long makes ours slow: NCCL's single ring has fewer of them."""
    profile = taccl("compare", *FOUR[1:], "--with", installed, "--json").json
    slow = json.loads((Path(compare.__file__).parents[1] / "profiles" / "executor-a100.json").read_text())
    for costs in slow["protocols"].values():
        costs["tb_gbps"] = 1.0
    (folder / "slow.json").write_text(json.dumps(slow))
    ended = taccl(*FOUR, "--with", installed, "--runtime-profile", "slow.json")
    assert ended.code == 0, ended.err
    assert profile["left_to_nccl"] == [] or profile["left_to_nccl"][0][0] >= 1 << 20
    note = next(line for line in ended.err.splitlines() if line.startswith("note: under"))
    if "install no file" in note:
        assert "slower: leave to NCCL" in ended.out
        return
    words = note.partition("taccl install ")[2].replace("INSTALLED", "left").split()
    done = taccl("install", *words)
    assert done.code == 0, done.err


def test_measured_beside_predicted(taccl, installed, folder):
    (folder / "run.log").write_text(LOG)
    ended = taccl(*FOUR, "--with", installed, "--measured", "run.log", "--measured", "nccl=run.log", "--json")
    assert ended.code == 0, ended.err
    both, nccl = ended.json["measured"]
    assert [row["size_bytes"] for row in both["rows"]] == [1 << 20, 4 << 20]
    for row in both["rows"]:
        assert row["nccl_error"] == pytest.approx(row["nccl_us"] / row["measured_us"] - 1)
        assert row["ours_error"] == pytest.approx(row["ours_us"] / row["measured_us"] - 1)
    assert nccl["of"] == "nccl"
    assert all(row["ours_us"] is None for row in nccl["rows"])
    assert both["nccl_median_error"] >= 1
    table = taccl(*FOUR, "--with", installed, "--measured", "ours=run.log")
    assert "Measured of our files: run.log" in " ".join(table.out.split())


def test_files_and_logs_of_others_are_refused(refuse, installed, folder):
    (folder / "run.log").write_text(LOG)
    refuse(2, ["allreduce of 4 ranks", "allgather of 4 ranks"], "compare", "ndv4", "allreduce", "--ranks", "0-3",
           "--sizes", "1MiB:1MiB", "--with", installed)  # fmt: skip
    refuse(2, ["run.log", "is of 4 ranks", "has 8"], "compare", "ndv4", "allgather", "--sizes", "1MiB:1MiB",
           "--measured", "run.log")  # fmt: skip
    refuse(2, ["nowhere"], *FOUR, "--with", "nowhere")
    refuse(2, ["no fabric", "efa"], *FOUR, "--with", installed, "--fabric", "slingshot")
    refuse(2, ["--with", "--sketch"], *FOUR, "--with", installed, "--sketch", "sk")


@pytest.mark.parametrize(("target", "name"), [("nccl", "t.csv"), ("ncclx", "t.json")])
def test_a_tuner_file_says_what_is_fastest_at_every_size(taccl, folder, target, name):
    """The rules are what the rows say, in ranges."""
    from taccl_py.baselines.tuner import TunerTarget, read_tuner

    assert taccl("synth", "full:4", "allreduce", "--engine", "templates", "-o", "ours.xml").code == 0
    ended = taccl("compare", "full:4", "allreduce", "--sizes", "64KiB:64MiB", "--gpu", "a100", "--runtime-profile", "executor-a100",
                  "--with", "ours.xml", "--tuner", target, "-o", name, "--json")  # fmt: skip
    assert ended.code == 0, ended.err
    result = ended.json
    words = {"Ring": "ring", "Tree": "tree"}
    rules = read_tuner((folder / name).read_text(encoding="utf-8"), TunerTarget(target), name)
    for row in result["sizes"]:
        (rule,) = [each for each in rules if each.low_bytes <= row["size_bytes"] <= each.high_bytes]
        assert rule.algorithm == words[row["nccl_runtime_algorithm"]]
        assert rule.protocol == row["nccl_runtime_protocol"].lower()
        in_ours = any(low <= row["size_bytes"] <= high for low, high in result["tuner"]["ours"])
        assert in_ours is not bool(row["remedy"])
    assert set(result["tuner"]) == {"target", "file", "rules", "ours"}
    assert len(result["tuner"]["rules"]) == len(rules)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--tuner", "nccl"), 2, "--tuner: needs a file"),
        (("-o", "t.csv"), 2, "--output: is for --tuner"),
        (("--tuner", "nccl", "-o", "t.csv"), 5, "--runtime-profile"),
        (("--tuner", "ucc", "-o", "-"), 2, "stdout"),
    ],
)
def test_a_tuner_file_that_cannot_be_is_refused_before_the_search(refuse, options, code, says):
    refuse(code, [says], *SMALL, *options)
