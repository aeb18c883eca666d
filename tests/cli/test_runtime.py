"""``taccl runtime``: shipped profiles, plans of a calibration, fits, and what is refused."""

import json
import os
import subprocess

import pytest

from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.profiles.catalog import load_profile
from taccl_py.profiles.files import read_profile
from taccl_py.runtimes import RUNTIMES
from taccl_py.verify.msccl import verify_program
from tests.measure.calibration import MAKERS, log_text, truth, write_calibration

ON = ("--topology", "mi300x", "--runtime", "rccl")
COSTS = {"launch_us": 8.0, "op_us": 0.5, "hop_near_us": 1.6, "tb_gbps": 4.0}


def test_list_names_every_shipped_profile(taccl):
    ended = taccl("runtime", "list")
    assert ended.code == 0
    assert "executor-h100" in ended.out
    found = {one["name"]: one for one in taccl("runtime", "list", "--json").json["profiles"]}
    assert found["rccl-mi300x"]["evidence"] == "partly measured"
    assert found["executor-a100"]["evidence"] == "not measured"


def test_show_tells_value_unit_source_and_evidence(taccl):
    ended = taccl("runtime", "show", "rccl-mi300x")
    (line,) = [line for line in ended.out.splitlines() if "LL tb_gbps" in line]
    assert "GB/s" in line
    assert "yes" in line
    assert taccl("runtime", "show", "neutral").out.count("no limit") >= 3
    assert taccl("runtime", "show", "rccl-mi300x", "--json").json["format"] == "taccl-runtime-profile"


def test_the_profile_of_several_gpus_is_shown_and_chosen(taccl):
    shown = taccl("runtime", "show", "executor-a100+h100").out
    assert shown.startswith(
        "executor-a100+h100: the slower of MSCCL executor for NCCL on A100 and MSCCL executor for NCCL on H100"
    )
    answer = taccl(
        "synth", "h100+a100", "allgather", "--size", "16MiB", "--ranks", "0-1,8-9", "--engine", "templates", "--json"
    ).json
    # What is quickest between A100s alone, LL128, is not for two models.
    assert (answer["runtime_profile"], answer["protocol"]) == ("executor-a100+h100", "Simple")


def test_a_fit_finds_what_made_the_logs(taccl, folder):
    write_calibration(folder, truth(**COSTS))
    ended = taccl("runtime", "fit", "pairs.log", "ring.log", "sums.log", "--xml", "sums.xml", "pairs.xml", "ring.xml", *ON,
                  "-o", "mine.json", "--json")  # fmt: skip
    assert ended.code == 0, ended.err
    found = ended.json
    assert found["residual"]["p90"] <= 1.02
    assert set(found["protocols"]) == {"LL"}
    assert set(found["files"]) == {"pairs.xml", "ring.xml", "sums.xml"}
    made = read_profile(folder / "mine.json")
    assert (made.name, made.runtime, made.gpu) == ("mine", "rccl", "mi300x")
    for name, value in COSTS.items():
        assert getattr(made.protocols["LL"], name) == pytest.approx(value, rel=0.1), name
        figure = made.figures[f"protocols/LL/{name}"]
        assert figure.measured
        assert "pairs.log, ring.log, sums.log" in figure.source
    assert not made.figures["protocols/LL/hop_far_us"].measured
    assert made.protocols["Simple"] == load_profile("rccl-mi300x").protocols["Simple"]
    for place in found["unidentified"]:
        assert not made.figures[place].measured


def test_a_table_of_times_stands_for_logs(taccl, folder):
    write_calibration(folder, truth(**COSTS), ["pairs"])
    program = MAKERS["pairs"]()
    rows = [line.split() for line in log_text(program, truth(**COSTS)).splitlines() if line[:1] == " "]
    (folder / "times.csv").write_text(
        "file,size_bytes,time_us\n" + "".join(f"pairs,{row[0]},{row[9]}\n" for row in rows)
    )
    by_log = taccl("runtime", "fit", "pairs.log", "--xml", "pairs.xml", *ON, "--json").json
    by_table = taccl("runtime", "fit", "times.csv", "--xml", "pairs.xml", *ON, "--json").json
    assert by_table["fitted"] == by_log["fitted"]
    assert by_log["unidentified"]


def test_the_launch_of_one_process_with_many_gpus_is_taken_off(taccl, folder):
    extra_us = 7 * load_profile("rccl-mi300x").launch_per_gpu_us
    write_calibration(folder, truth(**COSTS), processes=1, extra_us=extra_us)
    logs = [f"{name}.log" for name in MAKERS]
    fitted = taccl("runtime", "fit", *logs, "--xml", *[f"{name}.xml" for name in MAKERS], *ON, "--json").json["fitted"]
    assert fitted["protocols/LL/launch_us"] == pytest.approx(COSTS["launch_us"], rel=0.1)


def test_a_fit_tells_people_what_it_found(taccl, folder):
    write_calibration(folder, truth(**COSTS), ["pairs"], sizes=(4096, 1 << 20, 4104))
    ended = taccl("runtime", "fit", "pairs.log", "--xml", "pairs.xml", *ON, "-o", "mine.json")
    assert ended.code == 0
    assert "90th percentile" in ended.out
    assert "not identified by these logs" in ended.out
    assert ended.err.splitlines() == ["wrote mine.json"]


def test_a_machine_without_a_profile_starts_from_the_nearest_one(taccl, folder):
    write_calibration(folder, truth(**COSTS), ["pairs"])
    ended = taccl("runtime", "fit", "pairs.log", "--xml", "pairs.xml", "--topology", "full:8", "--runtime", "rccl", "--json", "-o", "p.json")  # fmt: skip
    assert ended.json["started_from"] == "rccl-mi300x"
    assert read_profile(folder / "p.json").gpu == ""


def refused(ended):
    assert ended.code == 2, (ended.out, ended.err)
    assert len(ended.sentence) < 400
    return ended.sentence


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: text.replace("(us)", "(ms)"), "has times in ms"),
        (lambda text: text.replace("all_gather", "all_reduce"), "is a log of allreduce (all_reduce_perf), and one of allgather"),
        (lambda text: text.partition("        4096")[0], "is truncated: it has no rows"),
        (lambda text: text.partition("#       size")[0], "is no log of nccl-tests"),
        (lambda text: text.replace("#  Rank  7", "#  Line  7"), "is of 7 ranks"),
        (lambda text: text.replace("      0\n", "      3\n"), "has wrong results"),
    ],
)  # fmt: skip
def test_bad_logs_end_with_one_sentence(taccl, folder, change, what):
    write_calibration(folder, truth(), ["pairs"])
    log = folder / "pairs.log"
    log.write_text(change(log.read_text()))
    sentence = refused(taccl("runtime", "fit", "pairs.log", "--xml", "pairs.xml", *ON))
    assert what in sentence
    assert sentence.startswith("pairs.log: ")


def test_what_does_not_go_together_is_refused(taccl, folder):
    write_calibration(folder, truth(), ["pairs", "ring"])
    assert "name the machine" in refused(taccl("runtime", "fit", "pairs.log", "--xml", "pairs.xml"))
    assert "do not pair" in refused(taccl("runtime", "fit", "pairs.log", "--xml", "pairs.xml", "ring.xml", *ON))
    assert "no costs to start from" in refused(
        taccl("runtime", "fit", "pairs.log", "--xml", "pairs.xml", *ON, "--start", "neutral")
    )
    (folder / "times.csv").write_text("file,size_bytes,time_us\nother,4096,9\n")
    assert "has times of 'other'" in refused(taccl("runtime", "fit", "times.csv", "--xml", "pairs.xml", *ON))
    (folder / "times.csv").write_text("file,size_bytes,time_us\npairs,4097,9\n")
    assert "has no row of a size" in refused(taccl("runtime", "fit", "times.csv", "--xml", "pairs.xml", *ON))
    (folder / "bad.json").write_text(json.dumps({"format": "taccl-runtime-profile", "version": 1}))
    assert refused(taccl("runtime", "show", "bad.json")).startswith("bad.json")
    assert "has no ring of links" in refused(taccl("runtime", "plan", "mesh:3x3", "-o", "plan"))
    assert "more than 22" in refused(taccl("runtime", "plan", "ring:23", "-o", "plan"))


def test_logs_are_paired_by_order_where_names_do_not_tell(taccl, folder):
    write_calibration(folder, truth(), ["pairs", "ring"])
    (folder / "pairs.log").rename(folder / "first.txt")
    (folder / "ring.log").rename(folder / "second.txt")
    ended = taccl("runtime", "fit", "first.txt", "second.txt", "--xml", "pairs.xml", "ring.xml", *ON, "--json")
    assert ended.json["residual"]["p90"] <= 1.02


def test_logs_of_nccl_itself_scale_the_profile(taccl, folder):
    write_calibration(folder, truth(), ["pairs"])
    ended = taccl("runtime", "fit", "pairs.log", *ON, "-o", "mine.json", "--json")
    assert ended.code == 0, ended.err
    assert "far hops" in ended.json["unidentified"]
    assert "launch and near hops" in ended.json["fitted"]
    assert read_profile(folder / "mine.json").gpu == "mi300x"
    (folder / "times.csv").write_text("file,size_bytes,time_us\npairs,4096,9\n")
    assert "name them, or give logs of NCCL itself" in refused(taccl("runtime", "fit", "times.csv", *ON))


@pytest.mark.parametrize(
    ("machine", "runtime", "ranks"),
    [
        ("mi300x", "rccl", 8),
        ("ndv5", "executor", 8),
        ("dgx1", "executor", 8),
        ("mi250x", "rccl", 16),
        pytest.param("dgx2", "legacy", 16, marks=pytest.mark.slow),
    ],
)
def test_a_plan_is_verified_and_its_script_runs(taccl, folder, machine, runtime, ranks):
    plan = taccl("runtime", "plan", machine, "--nodes", 1, "--runtime", runtime, "-o", "plan", "--json").json
    assert len(plan["runs"]) == 9
    for name in plan["runs"]:
        text = (folder / "plan" / name / f"{name}.xml").read_text()
        program = parse_xml(text, name, RUNTIMES[runtime])
        assert len(program.gpus) == ranks
        assert not verify_program(text, RUNTIMES[runtime], kind=program.kind).violations
    # A stand-in for the launcher, which says what it was asked for.
    launcher = folder / "launcher"
    launcher.write_text("#!/bin/sh\necho $MSCCL_ALGO_DIR$MSCCL_CONFIG $*\n")
    launcher.chmod(0o755)
    environment = {**os.environ, "LAUNCH": str(launcher), "TESTS": "/tests"}
    subprocess.run([folder / "plan" / "run.sh"], check=True, env=environment, timeout=60)
    for name in plan["runs"]:
        asked = (folder / "plan" / f"{name}.log").read_text()
        assert f"/plan/{name}" in asked
        assert f"/tests/all_{'reduce' if name.startswith('ar') else 'gather'}_perf -b 4096 -e " in asked


def test_the_logs_of_a_plan_identify_the_costs(taccl, folder):
    taccl("runtime", "plan", "mi300x", "--runtime", "rccl", "-o", "plan")
    names = ("ag_all_pairs_1_ll", "ag_ring_8_1_ll", "ar_all_pairs_1_ll")
    files = [f"plan/{name}/{name}.xml" for name in names]
    for name, file in zip(names, files, strict=True):
        program = parse_xml((folder / file).read_text(), name, RUNTIMES["rccl"])
        (folder / f"{name}.log").write_text(log_text(program, truth(**COSTS)))
    found = taccl("runtime", "fit", *[f"{name}.log" for name in names], "--xml", *files, *ON, "--json").json
    assert {f"protocols/LL/{name}" for name in COSTS} <= set(found["fitted"])


def test_versions_of_the_runtimes_come_with_their_sources(taccl):
    out = taccl("runtime", "versions").out
    assert "rccl: ROCm 7.13 and later" in out
    found = taccl("runtime", "versions", "--json").json["releases"]
    assert {one["runtime"] for one in found} == {"executor", "rccl", "legacy", "mscclpp"}
    for one in found:
        assert one["source"]
        assert bool(one["choice"]) == one["loads_ours"]
        assert one["warning"] or one["loads_ours"]
    read = {one["versions"]: one["variables"] for one in found if one["runtime"] == "mscclpp"}
    assert read["MSCCL++ 0.8"] == ["MSCCLPP_EXECUTION_PLAN_DIR"]
    assert read["MSCCL++ 0.9"] == ["MSCCLPP_CACHE_DIR"]
