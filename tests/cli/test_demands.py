"""Demands on the command line: files, formulas, reshardings, and what refuses them."""

import json

import numpy as np
import pytest

from taccl_py.schedule.demand_files import read_demand_schedule
from taccl_py.units import format_size, format_time
from tests.cli.running import run_here

# Small, so that alphas count and little is tried.
MINE = {
    "format": "taccl-demand",
    "version": 1,
    "name": "two pieces",
    "ranks": 4,
    "dtype": "float32",
    "chunks": [
        {"bytes": 3008, "holds": [0, 1], "wants": [2, 3]},
        {"bytes": 1008, "adds": [0, 1], "wants": [3]},
    ],
}
KEYS = [
    "demand", "collective", "topology", "num_ranks", "num_nodes", "chunks", "dtype", "total_bytes", "engine", "found_by", "seed",
    "status", "makespan_us", "bound_us", "bound_reason", "gap", "algbw_gbps", "messages", "ended", "command", "programs", "files",
]  # fmt: skip


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "my.json"
    path.write_text(json.dumps(MINE))
    return path


def synth(capsys, *arguments):
    return run_here(capsys, "synth", *arguments, "--effort", "quick")


@pytest.mark.slow
def test_every_verb_takes_a_demand(capsys, tmp_path, mine):
    out = tmp_path / "out"
    done = synth(capsys, "full:4", mine, "-o", out, "--json")
    assert done.code == 0, done
    assert list(done.json) == KEYS
    assert sorted(path.name for path in out.iterdir()) == [
        "algorithm.xml",
        "demand.json",
        "plan.json",
        "schedule.json",
        "summary.json",
    ]
    assert done.json["makespan_us"] >= run_here(capsys, "bound", "full:4", mine, "--json").json["bound_us"]
    assert run_here(capsys, "check", out, out / "demand.json").code == 0
    assert "for " in run_here(capsys, "check", out, "--demand", mine).out
    shown = run_here(capsys, "show", out / "schedule.json", "--json").json
    assert shown["makespan_us"] == pytest.approx(done.json["makespan_us"])
    again = run_here(capsys, "simulate", out / "schedule.json", "--size", "1MB", "--json").json["results"][0]
    assert again["size_bytes"] == 1000000
    assert run_here(capsys, "simulate", out / "schedule.json").code == 0
    assert run_here(capsys, "run", out / "schedule.json", "--json").json["num_wrong"] == 0
    assert run_here(capsys, "trace", out / "schedule.json", "-o", tmp_path / "trace.json").code == 0
    assert "two pieces" in run_here(capsys, "run", out / "schedule.json").out


@pytest.mark.slow
def test_programs_are_of_the_schedules_that_are_fastest_under_their_runtimes_profiles(capsys, tmp_path):
    """On links and ports evened lanes are best; as a plan for MSCCL++ single links are. Legacy MSCCL has no profile of an H100."""
    asked, out = tmp_path / "asked.json", tmp_path / "out"
    chunks = [
        {"bytes": (1 + (src + place) % 3) << 16, "holds": [src], "wants": [8 + (src + place) % 8]}
        for src in range(8)
        for place in range(4)
    ]
    asked.write_text(json.dumps({**MINE, "ranks": 16, "chunks": chunks}))
    done = synth(capsys, "ndv5", asked, "--nodes", 2, "-o", out, "--json")
    assert done.code == 0, done
    plan, xml = done.json["programs"]
    assert (done.json["found_by"], plan["found_by"], xml["found_by"]) == ("balance", "direct", "balance")
    assert "runtime_us" not in xml
    own = run_here(
        capsys, "lower", out / "schedule.json", "--to", "mscclpp-json", "-o", tmp_path / "own.json", "--json"
    )
    assert plan["runtime_us"] < 0.9 * own.json["runtime_us"]
    assert run_here(capsys, "check", out).code == 0


@pytest.mark.parametrize("file", ["plan.json", "algorithm.xml"])
def test_programs_of_demands_are_shown_replayed_and_traced_with_their_demand(capsys, tmp_path, file):
    """One chunk of 64 kB from rank 0 to 1: alpha 0.5 us, 20 us a megabyte, and all that a program adds to that is nothing."""
    asked = tmp_path / "asked.json"
    asked.write_text(
        json.dumps({**MINE, "name": "mine", "ranks": 2, "chunks": [{"bytes": 64000, "holds": [0], "wants": [1]}]})
    )
    out = tmp_path / "out"
    assert synth(capsys, "full:2", asked, "-o", out).code == 0
    where = (out / file, "--topology", "full:2", "--demand", asked)
    seconds_us = 0.5 + 64e-3 * 20.0
    (found,) = run_here(capsys, "simulate", *where, "--json").json["results"]
    assert found["time_us"] == pytest.approx(seconds_us)
    assert found["size_bytes"] == 64000
    shown = run_here(capsys, "show", *where, "--json").json
    assert shown["collective"] == "mine"
    assert shown["makespan_us"] == pytest.approx(seconds_us)
    assert run_here(capsys, "show", out / file, "--demand", asked).code == 0
    assert run_here(capsys, "trace", *where, "-o", tmp_path / "trace.json").code == 0
    if file == "plan.json":
        (timed,) = run_here(capsys, "simulate", *where, "--runtime-profile", "mscclpp-h100", "--json").json["results"]
        assert timed["runtime_us"] > seconds_us
    refused = run_here(capsys, "simulate", *where, "--size", "1MB")
    assert refused.code == 2
    assert "for the demand's sizes" in refused.err
    other = tmp_path / "other.json"
    other.write_text(
        json.dumps({**MINE, "name": "mine", "ranks": 2, "chunks": [{"bytes": 64000, "holds": [1], "wants": [0]}]})
    )
    assert run_here(capsys, "simulate", out / file, "--topology", "full:2", "--demand", other).code == 4


@pytest.mark.parametrize("file", ["plan.json", "algorithm.xml"])
def test_programs_of_demands_run_on_data_with_their_demand(capsys, tmp_path, mine, file):
    out = tmp_path / "out"
    assert synth(capsys, "full:4", mine, "-o", out).code == 0
    where = (out / file, "--demand", out / "demand.json")
    done = run_here(capsys, "run", *where, "--shuffle", "--repeats", 3, "--seed", 5, "--json")
    assert (done.code, done.json["runs"], done.json["num_wrong"], done.json["demand"]) == (0, 3, 0, "two pieces")
    assert "two pieces" in run_here(capsys, "run", *where, "--with", "local").out
    lacking = run_here(capsys, "run", out / file)
    assert lacking.code == 2
    assert "add --demand" in lacking.err
    for option in (
        ("--size", "1MB"),
        ("--datatype", "int8"),
        ("--placement", "in"),
        ("--runtime", "rccl"),
        ("--op", "max"),
    ):
        refused = run_here(capsys, "run", *where, *option)
        assert refused.code == 2
        assert f"{option[0]}: is for the eight collectives" in refused.err
    refused = run_here(capsys, "run", out / "schedule.json", "--demand", mine)
    assert refused.code == 2
    assert "which carries it; leave --demand out" in refused.err
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**MINE, "ranks": 5}))
    refused = run_here(capsys, "run", out / file, "--demand", other)
    assert refused.code == 2
    assert "is for 4 ranks, and the demand has 5" in refused.err


def test_a_program_that_takes_the_wrong_place_has_wrong_elements(capsys, tmp_path):
    asked, out = tmp_path / "asked.json", tmp_path / "out"
    chunks = [
        {"bytes": 64, "holds": {"0": 0}, "wants": {"1": 64}},
        {"bytes": 64, "holds": {"0": 64}, "wants": {"1": 0}},
    ]
    asked.write_text(json.dumps({**MINE, "ranks": 2, "chunks": chunks}))
    assert synth(capsys, "full:2", asked, "-o", out).code == 0
    file = out / "algorithm.xml"
    text = file.read_text()
    right = 'srcbuf="s" srcoff="1" dstbuf="o" dstoff="0"'
    assert text.count(right) == 1
    file.write_text(text.replace(right, 'srcbuf="s" srcoff="0" dstbuf="o" dstoff="0"'))
    done = run_here(capsys, "run", file, "--demand", asked, "--json")
    assert (done.code, done.json["num_wrong"]) == (4, 16)
    assert "16 elements are wrong; rank 1, chunk 0 of the output, offset 0: found" in done.err


def test_a_program_of_a_demand_needs_the_demand_and_one_of_a_collective_has_none(capsys, tmp_path, mine):
    assert synth(capsys, "full:4", mine, "-o", tmp_path / "out").code == 0
    lacking = run_here(capsys, "show", tmp_path / "out" / "plan.json")
    assert lacking.code == 2
    assert "add --demand" in lacking.err
    assert run_here(capsys, "show", tmp_path / "out" / "schedule.json", "--demand", mine).code == 0
    kind = tmp_path / "kind.json"
    assert run_here(capsys, "synth", "full:4", "allgather", "--effort", "quick", "-o", kind).code == 0
    refused = run_here(capsys, "show", kind, "--demand", mine)
    assert refused.code == 2
    assert "is for demands" in refused.err


def test_tables_say_what_was_found(capsys, mine):
    text = synth(capsys, "full:4", mine).out
    assert "two pieces on full-4, 4 ranks" in text
    assert "search ended" in text


def test_the_same_command_writes_the_same_bytes(capsys, tmp_path, mine):
    for name in ("a.json", "b.json"):
        assert synth(capsys, "full:4", mine, "-o", tmp_path / name).code == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.slow
def test_even_counts_are_an_alltoall(capsys, tmp_path):
    counts = tmp_path / "counts.csv"
    counts.write_text("\n".join([",".join(["250000"] * 4)] * 4))
    found = synth(capsys, "full:4", "alltoallv", "--counts", counts, "--json").json
    kind = run_here(
        capsys, "synth", "full:4", "alltoall", "--size", "1MB", "--only-schedule", "--effort", "quick", "--json"
    ).json
    assert found["collective"] == "alltoall"
    assert found["makespan_us"] == pytest.approx(kind["makespan_us"])
    assert found["bound_us"] == pytest.approx(kind["bound_us"])


def test_counts_and_skews(capsys, tmp_path):
    counts = tmp_path / "counts.npy"
    np.save(counts, np.arange(16).reshape(4, 4))
    found = synth(capsys, "full:4", "alltoallv", "--counts", counts, "--dtype", "fp16", "--json").json
    assert found["total_bytes"] == 2 * (sum(range(16)) - 0 - 5 - 10 - 15)
    line = tmp_path / "line.csv"
    line.write_text("1000\n2000\n0\n500\n")
    gathered = synth(capsys, "full:4", "allgatherv", "--counts", line, "--json").json
    assert gathered["total_bytes"] == 3 * 3500
    summed = synth(capsys, "full:4", "reducescatterv", "--counts", line, "--json").json
    assert (summed["dtype"], summed["total_bytes"]) == ("float32", 4 * 3500)
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("0,1,1000\n1,2,1000\n")
    assert synth(capsys, "full:4", "sendrecv", "--counts", pairs, "--json").json["messages"] >= 2
    skewed = synth(capsys, "full:4", "alltoallv", "--skew", "zipf:1", "--size", "1MB", "--seed", "3", "--json").json
    assert skewed["collective"] is None
    assert skewed["total_bytes"] == 3 * 10**6
    bound = run_here(capsys, "bound", "full:4", "alltoallv", "--skew", "zipf:1", "--size", "1MB", "--seed", "3")
    assert "bandwidth into rank 3" in bound.out


def test_experts(capsys, tmp_path):
    drawn = ("--experts", "8", "--tokens", "4", "--topk", "3", "--token-bytes", "64", "--skew", "zipf:1", "--seed", "2")
    forth = synth(capsys, "full:4", "moe-dispatch", *drawn, "--json").json
    back = synth(capsys, "full:4", "MoE_combine", *drawn, "--dtype", "fp32", "--json", "-o", tmp_path / "out").json
    assert (forth["demand"], back["demand"], back["dtype"]) == ("moe-dispatch", "moe-combine", "float32")
    assert run_here(capsys, "run", tmp_path / "out" / "schedule.json", "--json").json["num_wrong"] == 0
    routing = tmp_path / "routing.csv"
    routing.write_text("0,1\n2,3\n4,5\n6,7\n")
    found = run_here(
        capsys,
        "bound",
        "full:4",
        "moe-dispatch",
        "--experts",
        "8",
        "--token-bytes",
        "64",
        "--routing",
        routing,
        "--json",
    )
    assert found.json["total_bytes"] == 0
    routing.write_text("0,2\n2,3\n4,5\n6,9\n")
    refused = run_here(
        capsys, "bound", "full:4", "moe-dispatch", "--experts", "8", "--token-bytes", "64", "--routing", routing
    )
    assert "row 3" in refused.err


def test_a_resharding_says_which_boxes_its_chunks_are(capsys, tmp_path):
    out = tmp_path / "out"
    arguments = (
        "--shape",
        "64x48",
        "--dtype",
        "bf16",
        "--from",
        "0-3:2x2:S0,P",
        "--to",
        "0-3:4:S1",
        "--effort",
        "quick",
        "-o",
        out,
    )
    done = run_here(capsys, "reshard", "full:4", *arguments, "--json")
    assert done.code == 0, done
    boxes = json.loads((out / "boxes.json").read_text())
    assert boxes[0] == {"low": [0, 0], "high": [32, 12]}
    assert len(boxes) == 8
    schedule = read_demand_schedule((out / "schedule.json").read_text(), "schedule.json")
    assert schedule.demand.dtype == "bfloat16"
    assert run_here(capsys, "run", out / "schedule.json").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("synth", "full:4", "alltoallv"), "needs either --counts or --skew"),
        (("synth", "full:4", "alltoallv", "--skew", "pareto"), "is no skew"),
        (("synth", "full:4", "alltoall", "--skew", "zipf:1"), "has equal chunks"),
        (("synth", "full:4", "alltoallv", "--skew", "zipf:1", "--engine", "hierarchy"), "--engine"),
        (("synth", "full:4", "alltoallv", "--skew", "zipf:1", "--root", "1"), "--root"),
        (("synth", "full:4", "alltoallv", "--skew", "zipf:1", "-o", "a.xml"), "the schedule is written too"),
        (("synth", "full:4", "alltoallv", "--skew", "zipf:1", "--dtype", "float8"), "--dtype"),
        (("synth", "full:4", "sendrecv", "--skew", "zipf:1"), "no skew"),
        (("synth", "full:4", "alltoallv", "--skew", "zipf:1", "--experts", "8"), "--experts: is for moe-dispatch"),
        (("synth", "full:4", "allgather", "--topk", "8"), "--topk"),
        (("synth", "full:4", "moe-dispatch", "--experts", "8"), "--token-bytes: moe-dispatch needs it"),
        (("synth", "full:4", "moe-dispatch", "--experts", "8", "--token-bytes", "64"), "--tokens"),
        (
            (
                "synth",
                "full:4",
                "moe-dispatch",
                "--experts",
                "6",
                "--token-bytes",
                "64",
                "--tokens",
                "2",
                "--topk",
                "2",
            ),
            "--experts: 6",
        ),
        (
            (
                "synth",
                "full:4",
                "moe-dispatch",
                "--experts",
                "8",
                "--token-bytes",
                "64",
                "--tokens",
                "2",
                "--topk",
                "9",
            ),
            "--topk",
        ),
        (
            ("synth", "full:4", "moe-combine", "--experts", "8", "--token-bytes", "63", "--tokens", "2", "--topk", "2"),
            "--token-bytes",
        ),
        (
            (
                "synth",
                "full:4",
                "moe-combine",
                "--experts",
                "8",
                "--token-bytes",
                "64",
                "--routing",
                "no.csv",
                "--topk",
                "2",
            ),
            "--topk",
        ),
        (("synth", "full:4", "moe-combine", "--experts", "8", "--token-bytes", "64", "--counts", "no.csv"), "--counts"),
        (
            (
                "bound",
                "full:4",
                "moe-dispatch",
                "--experts",
                "8",
                "--token-bytes",
                "64",
                "--tokens",
                "2",
                "--topk",
                "2",
                "--expert-groups",
                "4",
            ),
            "--expert-groups: goes with",
        ),
        (("synth", "full:4", "nosuch.json"), "there is no such file"),
        (("synth", "full:4", "alltoalw"), "did you mean"),
        (("bound", "full:4", "allgatherv", "--skew", "zipf:1", "--switch"), "--switch"),
        (("reshard", "full:4", "--shape", "8", "--from", "0-3:4:S0", "--to", "0-3:4:P"), "--to: P"),
        (("reshard", "full:4", "--shape", "8", "--from", "0-3:4:S1", "--to", "0-3:4:R"), "--from: S1"),
        (("reshard", "full:4", "--shape", "8", "--from", "0-7:8:S0", "--to", "0-3:4:R"), "--from: rank 7"),
        (("reshard", "full:4", "--shape", "eight", "--from", "0-3:4:S0", "--to", "0-3:4:R"), "--shape"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, arguments, words):
    done = run_here(capsys, *arguments)
    assert done.code == 2
    assert words in done.sentence


def test_a_machine_of_another_size_is_refused(capsys, mine):
    assert "has 8 ranks" in synth(capsys, "full:8", mine).sentence
    assert synth(capsys, "full:8", mine, "--ranks", "0-3").code == 0


def test_counts_for_other_ranks_are_refused(capsys, tmp_path):
    (tmp_path / "c.csv").write_text("1,2\n3,4\n")
    assert "the machine has 4" in synth(capsys, "full:4", "alltoallv", "--counts", tmp_path / "c.csv").sentence
    assert "2 rows" in synth(capsys, "full:4", "allgatherv", "--counts", tmp_path / "c.csv").sentence


@pytest.mark.slow
def test_what_takes_no_demand_says_so(capsys, tmp_path, mine):
    file = tmp_path / "s.json"
    assert synth(capsys, "full:4", mine, "-o", file).code == 0
    refused = run_here(capsys, "lower", file, "--runtime", "executor", "-o", tmp_path / "a.xml")
    assert refused.code == 5
    assert "no call is for a demand" in refused.sentence
    assert "is a demand and no allgather" in run_here(capsys, "check", file, "--collective", "allgather").out


def test_a_schedule_that_lacks_a_message_is_bad(capsys, tmp_path, mine):
    file = tmp_path / "s.json"
    assert synth(capsys, "full:4", mine, "-o", file).code == 0
    value = json.loads(file.read_text())
    value["messages"] = value["messages"][:-1]
    file.write_text(json.dumps(value))
    assert run_here(capsys, "check", file).code == 4
    assert run_here(capsys, "run", file).code == 4
    assert run_here(capsys, "show", file).code == 4


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.svg", "report.png"])
def test_a_report_shows_the_schedule_of_a_demand(capsys, tmp_path, mine, name):
    """Chunk 0 goes from rank 0 and rank 1 to ranks 2 and 3; the sum to rank 3."""
    out, path = tmp_path / "out", tmp_path / name
    assert synth(capsys, "full:4", mine, "-o", out).code == 0
    done = run_here(capsys, "report", out, "-o", path, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["algorithms"] == ["out"]
    if path.suffix not in (".html", ".md"):
        assert path.stat().st_size > 500
        return
    text = path.read_text()
    schedule = read_demand_schedule((out / "schedule.json").read_text(), "schedule.json")
    assert f"two pieces on full-4, 4 ranks, {format_size(schedule.demand.total_bytes)} to deliver" in text
    assert f"taccl synth full:4 {mine} --effort quick -o out/" in text
    assert format_time(schedule.makespan_us) in text
    if path.suffix == ".html":
        assert all(schedule.demand.describe_chunk(chunk) in text for chunk in range(len(schedule.demand.chunks)))
        assert '"timeline-0"' in text
        assert '"topology-0"' in text


def test_a_report_of_a_demand_and_a_collective(capsys, tmp_path, mine):
    assert synth(capsys, "full:4", mine, "-o", tmp_path / "one").code == 0
    assert synth(capsys, "full:4", "allgather", "--engine", "templates", "-o", tmp_path / "other").code == 0
    done = run_here(
        capsys,
        "report",
        tmp_path / "one",
        tmp_path / "other",
        "-o",
        tmp_path / "r.md",
        "--sizes",
        "1KiB:1MiB",
        "--json",
    )
    assert done.json["algorithms"] == ["one", "other"]
    text = (tmp_path / "r.md").read_text()
    assert "### allgather on full-4, 4 ranks" in text
    assert "### two pieces" not in text


def test_a_report_refuses_the_schedule_of_another_demand(capsys, tmp_path, mine):
    out = tmp_path / "out"
    assert synth(capsys, "full:4", mine, "-o", out).code == 0
    (out / "demand.json").write_text(json.dumps({**MINE, "chunks": MINE["chunks"][:1]}))
    done = run_here(capsys, "report", out, "-o", tmp_path / "r.md")
    assert done.code == 4
    assert "the schedule's buffers are not as long as those of the demand" in done.err


def test_show_names_the_critical_path_of_a_demand(capsys, tmp_path):
    """Rank 0's data reach rank 2 of the ring only by rank 1 or 3."""
    path = tmp_path / "my.json"
    path.write_text(json.dumps({**MINE, "chunks": [{"bytes": 4, "holds": [0], "wants": [2]}]}))
    assert synth(capsys, "ring:4", path, "-o", tmp_path / "out").code == 0
    done = run_here(capsys, "show", tmp_path / "out" / "schedule.json", "--json").json["critical_path"]
    assert [done[0]["src"], done[1]["dst"]] == [0, 2]
    assert done[0]["dst"] == done[1]["src"]
    assert done[0]["end_us"] == done[1]["start_us"]
    assert "critical path, 2 messages" in run_here(capsys, "show", tmp_path / "out" / "schedule.json").out


@pytest.mark.slow
def test_counts_and_reshardings_become_programs_too(capsys, tmp_path):
    counts = tmp_path / "counts.csv"
    counts.write_text("0,32,0,8\n16,0,0,0\n8,8,8,8\n0,0,64,0\n")
    assert synth(capsys, "full:4", "alltoallv", "--counts", counts, "--dtype", "bf16", "-o", tmp_path / "a").code == 0
    words = ("--shape", "64x64", "--from", "0-3:4:S0", "--to", "0-3:4:S1", "-o", tmp_path / "b", "--effort", "quick")
    assert run_here(capsys, "reshard", "full:4", *words).code == 0
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert {"plan.json", "algorithm.xml"} <= {path.name for path in folder.iterdir()}
        assert run_here(capsys, "check", folder).code == 0


@pytest.mark.parametrize(
    ("runtime", "code", "reason"),
    [
        ("executor", 5, "selects files by the collective that is called, and no call is for a demand"),
        ("rccl", 5, "selects files by the collective that is called, and no call is for a demand"),
        (
            "legacy",
            2,
            "programs of a demand are for MSCCL++ and for legacy MSCCL, both beside the schedule; leave it out",
        ),
        (
            "mscclpp",
            2,
            "programs of a demand are for MSCCL++ and for legacy MSCCL, both beside the schedule; leave it out",
        ),
    ],
)
def test_a_runtime_for_a_demand_is_refused_with_the_reason(capsys, mine, runtime, code, reason):
    done = synth(capsys, "full:4", mine, "--runtime", runtime)
    assert done.code == code
    assert reason in done.sentence


@pytest.mark.slow
def test_lower_says_who_takes_a_demand_and_who_does_not(capsys, tmp_path, mine):
    out = tmp_path / "schedule.json"
    assert synth(capsys, "full:4", mine, "-o", out).code == 0
    for runtime in ("executor", "rccl"):
        done = run_here(capsys, "lower", out, "--runtime", runtime, "-o", tmp_path / "x.xml")
        assert done.code == 5
        assert (
            "would never use one; lower it to a plan for MSCCL++ (mscclpp-json), or for legacy MSCCL (runtime legacy)"
            in done.sentence
        )
    for words in (("--runtime", "legacy"), ("--to", "mscclpp-json")):
        assert run_here(capsys, "lower", out, *words, "-o", tmp_path / "x").code == 0
        assert run_here(capsys, "check", tmp_path / "x", "--demand", mine).code == 0
    done = run_here(capsys, "lower", out, "--instances", "2", "-o", tmp_path / "x.xml")
    assert done.code == 2
    assert "--instances: is for the eight collectives" in done.sentence


def test_a_token_may_be_one_byte_and_not_none(capsys, folder):  # noqa: ARG001
    words = ("bound", "full:4", "moe-dispatch", "--experts", 4, "--tokens", 2, "--topk", 1, "--token-bytes")
    assert run_here(capsys, *words, 1).code == 0
    assert run_here(capsys, *words, 0).code == 2
