"""``taccl run``: what it prints, and how it ends."""

import sys

import pytest

from taccl_py.cli import run
from tests.cli.inputs import PROFILE, TACCL_SKETCH, write_json
from tests.verify.msccl.files import chain_broadcast, pair_allreduce, pairs_allreduce, ring_allgather, ring_allreduce
from tests.verify.msccl.test_broken_files import both_send_first


def write(folder, file, name="test.xml"):
    (folder / name).write_text(file.text(), encoding="utf-8")
    return name


@pytest.mark.usefixtures("files")
def test_a_schedule_and_its_xml_run_right_in_both_placements_with_predicted_times(taccl):
    schedule = taccl("run", "schedule.json", "--size", "64KiB", "--json").json
    xml = taccl("run", "algorithm.xml", "--size", "64KiB", "--topology", "ring:4", "--json").json
    assert schedule["good"]
    assert xml["good"]
    assert [row["in_place"] for row in schedule["results"]] == [False, True]
    simulated = taccl("simulate", "algorithm.xml", "--topology", "ring:4", "--size", "64KiB", "--json").json
    for row in schedule["results"] + xml["results"]:
        assert (row["size_bytes"], row["count"], row["num_wrong"], row["redop"]) == (65536, 4096, 0, "none")
        assert row["predicted_us"] == pytest.approx(simulated["results"][0]["time_us"])


def test_the_table_has_the_columns_of_nccl_tests(taccl, folder):
    ended = taccl(
        "run", write(folder, ring_allreduce()), "--sizes", "1KiB:4KiB", "--op", "max", "--datatype", "float16"
    )
    header = [word.strip() for word in ended.out.splitlines()[2].split("┃")[1:-1]]
    assert header[:6] == ["size (B)", "count", "type", "redop", "root", "placement"]
    assert header[6:] == ["time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong", "predicted (us)"]
    rows = [[word.strip() for word in line.split("│")[1:-1]] for line in ended.out.splitlines() if line.startswith("│")]
    assert [row[:6] for row in rows] == [
        [str(size), str(size // 2), "float16", "max", "0", place]
        for size in (1024, 2048, 4096)
        for place in ("out of place", "in place")
    ]
    assert {row[9] for row in rows} == {"0"}
    assert ended.code == 0


@pytest.mark.usefixtures("files")
def test_a_rounded_size_is_told_once_and_a_whole_one_not_at_all(taccl):
    ended = taccl("run", "schedule.json", "--size", "100", "--size", "4", "--size", "1KiB", "--placement", "both")
    assert ended.code == 0, ended.err
    whole = "each of 4 equal chunks holds whole elements of float32"
    assert ended.err.splitlines() == [
        f"note: ran 96 bytes instead of 100, so that {whole}",
        f"note: ran 16 bytes instead of 4, so that {whole}",
    ]
    rows = taccl("run", "schedule.json", "--size", "100", "--json").json["results"]
    assert {(row["asked_bytes"], row["size_bytes"]) for row in rows} == {(100, 96)}


def test_all_types_and_operators_can_be_asked_for(taccl, folder):
    name = write(folder, ring_allreduce(2))
    rows = taccl("run", name, "--size", "1KiB", "--datatype", "all", "--op", "all", "--placement", "in", "--json").json[
        "results"
    ]
    assert len({(row["type"], row["redop"]) for row in rows}) == len(rows) == 50


def test_wrong_elements_are_counted_and_the_first_is_named(taccl, folder):
    file = pair_allreduce()
    file.step(1, 2, 2).update(srcbuf="i")
    name = write(folder, file)
    ended = taccl("run", name, "--size", "64", "--op", "sum", "--json")
    assert ended.code == 4
    (row,) = ended.json["results"]
    assert row["num_wrong"] == 16
    assert (row["first_wrong"]["rank"], row["first_wrong"]["chunk"], row["first_wrong"]["offset"]) == (1, 0, 0)
    for word in ("test.xml: float32 sum, out of place", "rank 1, chunk 0 of the output, offset 0", "[wrong-result]"):
        assert word in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_deadlock_ends_with_4_and_tells_who_waits_for_whom(refuse, folder):
    name = write(folder, both_send_first(3, proto="Simple"))
    refuse(4, ["test.xml: gpu 0 tb 0 step 2", "free slot", "so on around from gpu 0", "[deadlock]"], "run", name)


def test_what_ran_before_a_deadlock_is_still_shown(taccl, folder):
    """Four chunks in one step are one message at first and four later."""
    name = write(folder, both_send_first(1, 4, proto="Simple"))
    ended = taccl("run", name, "--size", "1MiB", "--size", "16MiB", "--datatype", "int8", "--json")
    assert ended.code == 4
    assert [row["size_bytes"] for row in ended.json["results"]] == [1 << 20]
    assert [violation["rule"] for violation in ended.json["violations"]] == ["deadlock"]


@pytest.mark.parametrize(("placement", "code"), [("declared", 0), ("in", 0), ("out", 4), ("both", 4)])
def test_a_file_can_be_run_in_a_placement_that_it_is_not_for(taccl, folder, placement, code):
    name = write(folder, pairs_allreduce())
    assert taccl("run", name, "--placement", placement).code == code


def test_the_root_is_found_or_given(taccl, folder):
    name = write(folder, chain_broadcast(3, 1))
    assert taccl("run", name, "--json").json["results"][0]["root"] == 1
    assert taccl("run", name, "--root", 0, "--placement", "out").code == 4
    ended = taccl("run", name, "--root", 9)
    assert ended.code == 2
    assert "root 9 does not exist" in ended.err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("algorithm.xml", "--op", "sum"), ["--op", "allgather combines nothing", "leave --op out"]),
        (("schedule.json", "--topology", "ring:4"), ["--topology", "schedule.json is a schedule"]),
        (("algorithm.xml", "--topology", "ring:5"), ["algorithm.xml: --topology", "4 ranks"]),
        (("algorithm.xml", "--nodes", 2), ["--nodes", "--topology"]),
        (("algorithm.xml", "--root", 1), ["allgather has no root", "--root"]),
        (("schedule.json", "--root", 0), ["--root", "schedule.json is a schedule"]),
        (("algorithm.xml", "--collective", "alltoall"), ["allgather", "alltoall was asked for"]),
        (("algorithm.xml", "--size", "1TiB"), ["--size", "write a smaller size"]),
        (("algorithm.xml", "--with", "magic"), ["--with", "local"]),
        (("algorithm.xml", "--with", "mpi", "--shuffle"), ["--shuffle", "leave it out"]),
        (
            ("plan.json", "--with", "mscclpp", "--demand", "my.json"),
            ["--demand", "not for --with mscclpp", "leave --with out"],
        ),
        (("nothing.xml",), ["nothing.xml", "no such file"]),
    ],
)
def test_wrong_options_are_named(refuse, arguments, words):
    refuse(2, words, "run", *arguments)


def test_a_profile_predicts_times(taccl, folder):
    profile, sketch = write_json(folder / "hub.json", PROFILE), write_json(folder / "sketch.json", TACCL_SKETCH)
    assert taccl("synth", profile, "allgather", "--sketch", sketch, "--time-limit", 0.3, "-o", "out").code == 0
    rows = taccl("run", "out/schedule.json", "--size", "16KiB", "--json").json["results"]
    assert all(row["predicted_us"] > 0 for row in rows)
    assert {row["num_wrong"] for row in rows} == {0}


def test_nobody_needs_a_package_more(taccl, folder):
    assert taccl("run", write(folder, ring_allgather()), "--shuffle", "--seed", 7, "--repeats", 2).code == 0


@pytest.mark.parametrize(("package", "executor"), [("mpi4py", "mpi"), ("torch", "torch")])
def test_a_missing_package_is_named_with_its_extra(refuse, folder, monkeypatch, package, executor):
    monkeypatch.setitem(sys.modules, package, None)
    words = [f"--with {executor} needs {package}", f"pip install '.[{executor}]'"]
    refuse(6, words, "run", write(folder, ring_allgather()), "--with", executor)


def test_a_plan_for_mscclpp_runs_on_real_data(taccl, files):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    ended = taccl(
        "run", "plan.json", "--size", "64KiB", "--datatype", "int8", "--datatype", "float64", "--shuffle", "--json"
    )
    assert ended.code == 0, ended.err
    assert [result["num_wrong"] for result in ended.json["results"]] == [0, 0]
    ended = taccl("run", "plan.json", "--topology", "ndv2")
    assert (ended.code, "is for 4 ranks, topology ndv2" in ended.sentence) == (2, True)
    ended = taccl("run", "plan.json", "--collective", "allgather")
    assert (ended.code, "is for XML files, but plan.json is an MSCCL++ plan" in ended.sentence) == (2, True)
    row = taccl("run", "plan.json", "--topology", "ring:4", "--size", "1MB", "--json").json["results"][0]
    wanted = taccl("simulate", "schedule.json", "--size", row["size_bytes"], "--json").json["results"][0]["time_us"]
    assert row["predicted_us"] == pytest.approx(wanted)
    ended = taccl("run", "plan.json", "--placement", "out")
    assert (ended.code, "--placement: plan.json is for calls in place alone" in ended.sentence) == (2, True)
    text = (files / "plan.json").read_text(encoding="utf-8")
    (files / "plan.json").write_text(
        text.replace('{"name": "signal"', '{"name": "nop", "was": "signal"', 1), encoding="utf-8"
    )
    ended = taccl("run", "plan.json")
    assert (ended.code, "waits for a signal" in ended.sentence) == (4, True)


def test_mscclpp_is_named_where_it_is_missing(taccl, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "mscclpp", None)
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    ended = taccl("run", "plan.json", "--with", "mscclpp")
    assert ended.code == 6
    assert ended.sentence.startswith("--with mscclpp needs the Python package mscclpp")
    assert (files / "plan.json").exists()


@pytest.mark.parametrize(("speaks", "said"), [(True, "error: interrupted"), (False, "")])
def test_an_interrupt_is_told_by_the_rank_that_speaks(taccl, folder, monkeypatch, speaks, said):
    """A launcher interrupts all ranks that are not done when one has ended."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run._Here, "speaks", speaks)
    monkeypatch.setattr(run._Here, "run", interrupted)
    (folder / "one.xml").write_text(ring_allreduce(2).text(), encoding="utf-8")
    ended = taccl("run", "one.xml")
    assert (ended.code, ended.out, ended.err.strip()) == (130, "", said)
