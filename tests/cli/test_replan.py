"""``taccl replan``: a new schedule after a failure."""

import json
import math
import re

import pytest

from taccl_py.api.lowering import delivered_instead
from taccl_py.errors import InvalidArtifact
from taccl_py.schedule.files import read_schedule

FAULT = ("--slow-link", "0->1:0.5")
SOON = ("--within", "0.3s")


@pytest.fixture
def old(taccl, folder):
    """Folder of a synthesis."""
    assert taccl("synth", "full:3", "allgather", "--engine", "templates", "-o", "old").code == 0
    return folder / "old"


def test_a_folder_is_replanned_into_another_one(taccl, folder, old):
    ended = taccl("replan", "old", *FAULT, *SOON, "-o", "new", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    times = {each["remedy"]: each["makespan_us"] for each in result["remedies"]}
    before = read_schedule((old / "schedule.json").read_text(), "old").makespan_us
    assert result["old_us"] == before
    # That whose program is fastest.
    assert result["makespan_us"] == times[result["remedy"]] > before
    assert result["topology"] == "full-3-degraded"
    assert [name.rpartition("/")[2] for name in result["files"]] == ["schedule.json", "algorithm.xml", "summary.json"]
    assert taccl("check", "new").code == 0
    summary = json.loads((folder / "new" / "summary.json").read_text())
    assert summary["remedies"] == result["remedies"]


def kept(taccl, *options):
    """What is said of the program in use."""
    result = taccl("replan", "old", *FAULT, *SOON, *options, "--json").json
    (found,) = [each for each in result["remedies"] if each["remedy"] == "kept"]
    return result["remedy"], found


def test_the_program_in_use_goes_on_where_no_other_is_faster(taccl, folder):
    """Two ranks: the link between them is all there is, so a new program gains nothing."""
    assert taccl("synth", "full:2", "allgather", "--engine", "templates", "--size", "1MiB", "-o", "old").code == 0
    ended = taccl("replan", "old", *FAULT, *SOON, "-o", "new", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["remedy"] == "kept"
    (found,) = [each for each in ended.json["remedies"] if each["remedy"] == "kept"]
    # Of two ranks, without a profile, a program takes as long as its schedule.
    assert found["program_us"] == pytest.approx(found["makespan_us"]) == pytest.approx(ended.json["makespan_us"])
    assert (folder / "new" / "algorithm.xml").read_bytes() == (folder / "old" / "algorithm.xml").read_bytes()
    assert taccl("check", "new").code == 0
    assert "nothing to load" in taccl("replan", "old", *FAULT, *SOON).out


def test_a_slower_program_in_use_is_replaced(taccl, folder, old):
    """A twentieth of a link's bandwidth: two hops over the third rank are faster than it."""
    ended = taccl("replan", "old", "--slow-link", "0->1:0.05", "--within", "2s", "-o", "new", "--json")
    times = {each["remedy"]: each["program_us"] for each in ended.json["remedies"]}
    assert ended.json["remedy"] != "kept"
    assert times[ended.json["remedy"]] < times["kept"]
    assert (folder / "new" / "algorithm.xml").read_bytes() != (old / "algorithm.xml").read_bytes()


def test_why_a_schedule_that_is_faster_on_links_is_not_taken_is_said(taccl, old, monkeypatch):  # noqa: ARG001
    """As where launch and threadblocks count for more than what is lost."""
    monkeypatch.setattr("taccl_py.cli.replan._ProgramInUse.unless_slower", taken_in_any_case)
    ended = taccl("replan", "old", "--slow-link", "0->1:0.05", *SOON, "--json").json
    faster = [each for each in ended["remedies"] if (each["makespan_us"] or math.inf) < ended["makespan_us"]]
    assert ended["remedy"] == "kept"
    assert faster
    assert all("faster on links and ports only" in each["reason"] for each in faster)


def taken_in_any_case(in_use, delivered, retimed, options, instances):
    """The program in use, however slow it is."""
    found = in_use._kept(retimed, options, instances, delivered.answer.profile)
    return delivered_instead(delivered.answer, found), found


def test_why_the_program_in_use_cannot_go_on_is_said(taccl, old):
    program = old / "algorithm.xml"
    text = program.read_text()
    assert 'proto="LL128"' in text
    taken, found = kept(taccl, "--protocol", "Simple")
    assert taken != "kept"
    assert found["program_us"] is None
    assert "another placement or protocol" in found["reason"]
    assert "has 1 instances" in kept(taccl, "--instances", "2")[1]["reason"]
    program.write_text(re.sub('maxBytes="[0-9]+"', 'maxBytes="1024"', text), encoding="utf-8")
    assert "other sizes" in kept(taccl)[1]["reason"]
    program.write_text(text.replace('srcoff="0"', 'srcoff="1"', 1), encoding="utf-8")
    assert "verifier rejects it" in kept(taccl)[1]["reason"]
    program.write_text(text.replace('proto="LL128"', 'proto="Other"'), encoding="utf-8")
    assert "not for MSCCL executor" in kept(taccl)[1]["reason"]
    program.unlink()
    assert "no algorithm.xml beside" in kept(taccl)[1]["reason"]
    gone = taccl("replan", "old", "--without-link", "0->1", *SOON, "--json").json["remedies"]
    assert (gone[0]["remedy"], gone[0]["program_us"]) == ("kept", None)


def test_the_new_program_is_for_the_runtime_of_the_old_one(taccl, folder):
    assert taccl("synth", "full:3", "allgather", "--runtime", "legacy", "--engine", "templates", "-o", "old").code == 0
    ended = taccl("replan", "old", "--slow-link", "0->1:0.05", "--within", "2s", "-o", "new", "--json")
    assert (ended.code, ended.json["runtime"]) == (0, "legacy")
    assert taccl("check", "new", "--runtime", "legacy").code == 0
    assert json.loads((folder / "new" / "summary.json").read_text())["runtime"] == "legacy"


def test_a_plan_in_use_is_told_how_to_make_anew(taccl, folder):  # noqa: ARG001
    words = ("synth", "full:3", "allgather", "--runtime", "mscclpp", "--engine", "templates", "-o", "old")
    assert taccl(*words).code == 0
    ended = taccl("replan", "old", *FAULT, *SOON, "-o", "new", "--json")
    assert any("lower new/schedule.json --to mscclpp-json -o plan.json" in note for note in ended.json["notes"])
    assert taccl("lower", "new/schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0


def test_notes_on_the_program_are_told_as_by_synth(taccl, folder):  # noqa: ARG001
    """Three ranks, and a size that three does not divide."""
    assert taccl("synth", "full:3", "allgather", "--engine", "templates", "--size", "1000000B", "-o", "old").code == 0
    ended = taccl("replan", "old", *FAULT, *SOON, "-o", "new")
    assert "never uses the file at" in ended.err
    notes = taccl("replan", "old", *FAULT, *SOON, "-o", "new", "--json").json["notes"]
    assert any("never uses the file at" in note for note in notes)


def test_the_fastest_schedule_is_taken(taccl, old):  # noqa: ARG001
    result = json.loads(taccl("replan", "old", *FAULT, *SOON, "--only-schedule", "--json").out)
    times = {each["remedy"]: each["makespan_us"] for each in result["remedies"]}
    assert result["makespan_us"] == times[result["remedy"]] == min(time for time in times.values() if time is not None)
    assert result["makespan_us"] <= times["re-timed"]


def test_a_table_says_what_was_tried(taccl, old):  # noqa: ARG001
    refused = taccl("replan", "old", *FAULT, *SOON, "--only-schedule", "-o", "new")
    assert (refused.code, refused.out) == (2, "")
    assert "there is no program to write; name a file ending in .json" in refused.err
    ended = taccl("replan", "old/schedule.json", *FAULT, *SOON, "--only-schedule")
    assert ended.code == 0, ended.err
    for words in ("the old schedule before the failure", "re-timed", "searched", "taken", "gap"):
        assert words in ended.out


def test_what_cannot_be_replanned_is_refused(refuse, taccl, folder, old):  # noqa: ARG001
    refuse(2, ["says nothing of what has failed", "--slow-port"], "replan", "old")
    refuse(2, ["--within", "not a time"], "replan", "old", *FAULT, "--within", "soon")
    refuse(2, ["--within", "not a time"], "replan", "old", *FAULT, "--within", "1ms")
    refuse(2, ["--without-link", "no link 0-7"], "replan", "old", "--without-link", "0-7")
    refuse(2, ["nowhere"], "replan", "nowhere", *FAULT)
    assert taccl("synth", "ring:3", "allgather", "--sizes", "1KiB:2KiB", "--time-limit", "1", "-o", "all").code == 0
    refuse(2, ["holds a portfolio", "all/taccl"], "replan", "all", *FAULT)
    (folder / "d.json").write_text(
        json.dumps({"format": "taccl-demand", "version": 1, "ranks": 3, "chunks": [{"bytes": 8, "holds": [0], "wants": [1]}]}),
        encoding="utf-8",
    )  # fmt: skip
    assert taccl("synth", "full:3", "d.json", "-o", "demand").code == 0
    refuse(2, ["schedule of a demand", "taccl synth"], "replan", "demand", *FAULT)


def test_an_old_schedule_that_is_wrong_is_refused(refuse, old):
    text = json.loads((old / "schedule.json").read_text())
    text["messages"] = text["messages"][1:]
    (old / "schedule.json").write_text(json.dumps(text), encoding="utf-8")
    refuse(InvalidArtifact.exit_code, ["old/schedule.json"], "replan", "old", *FAULT, *SOON)
