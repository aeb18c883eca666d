"""``taccl regress``: worse is found and named, better is said, slow is nothing."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from taccl_py.synthesis.catalog import _ENGINES
from tests.cli.running import environment

SUITE = 'format = "taccl-suite"\nversion = 1\n' + "".join(
    f'[[instances]]\ntopology = "ring:4"\ncollectives = "{kind}"\nsizes = "1MB"\nengines = "{engine}"\n'
    for engine, kind in (
        ("templates", "allgather"), ("templates", "allreduce"), ("trees", "allgather"), ("flow", "alltoall"), ("milp", "gather"),
    )
)  # fmt: skip
CHECK = ("regress", "check", "suite.toml", "--workers", 1)
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    from taccl_py.cli import main

    folder = tmp_path_factory.mktemp("accepted")
    (folder / "suite.toml").write_text(SUITE)
    with pytest.raises(SystemExit, match="0"):
        main(["regress", "accept", str(folder / "suite.toml"), "--workers", "1"])
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def suite(accepted, folder):
    for name, text in accepted.items():
        (folder / name).write_text(text)
    return folder


def patched(monkeypatch, engine, change):
    """Let an engine's answers go through a function first."""
    module, name = _ENGINES[engine].split(":")
    before = getattr(import_module(module), name)
    monkeypatch.setattr(import_module(module), name, lambda *arguments: change(before(*arguments)))


def later(synthesis, part):
    """The same answer, with every message so much later."""
    schedule = synthesis.schedule
    by = part * schedule.makespan_us
    messages = tuple(replace(m, start_us=m.start_us + by, end_us=m.end_us + by) for m in schedule.messages)
    return replace(synthesis, schedule=replace(schedule, messages=messages))


@pytest.mark.usefixtures("suite")
def test_unchanged_code_passes_and_says_the_same_every_time(taccl):
    first, second = taccl(*CHECK), taccl("regress", "check", "suite.toml", "--workers", 2)
    assert (first.code, second.code) == (0, 0), first
    assert first.out == second.out == "good: 5 instances, 0 worse, 0 better\n"


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("engine", ["templates", "trees", "flow", "milp"])
def test_two_percent_more_cost_in_any_engine_fail_and_the_instance_is_named(taccl, monkeypatch, engine):
    patched(monkeypatch, engine, lambda synthesis: later(synthesis, 0.02))
    ended = taccl(*CHECK)
    assert ended.code == 4
    assert "+2 %" in ended.out
    named = {line.split("│")[1].strip() for line in ended.out.splitlines() if "cost" in line}
    assert named
    assert all(name.endswith(engine) for name in named)


@pytest.mark.usefixtures("suite")
def test_a_slow_clock_is_no_regression(taccl, monkeypatch):
    def slowly(synthesis):
        time.sleep(0.3)
        return replace(synthesis, stage_seconds={"sleep": 1e6})

    patched(monkeypatch, "templates", slowly)
    ended = taccl(*CHECK)
    assert (ended.code, ended.out) == (0, "good: 5 instances, 0 worse, 0 better\n")


def test_thresholds_are_the_suites(taccl, suite, monkeypatch):
    text = (suite / "suite.toml").read_text().replace("version = 1\n", "version = 1\n[thresholds]\ncost = 0.03\n", 1)
    (suite / "suite.toml").write_text(text)
    patched(monkeypatch, "templates", lambda synthesis: later(synthesis, 0.02))
    result = taccl(*CHECK, "--json")
    assert result.code == 0
    assert {change["instance"] for change in result.json["tolerated"]} == {
        "ring:4 allgather 1MB templates", "ring:4 allreduce 1MB templates",
    }  # fmt: skip


def test_what_got_better_is_said_and_accepted_as_a_small_diff(taccl, suite):
    path = suite / "suite.baseline.json"
    good = path.read_text()
    value = json.loads(good)
    value["instances"]["ring:4 allgather 1MB trees"]["cost"] *= 2
    value["instances"]["ring:4 allgather 1MB trees"]["bound"] /= 2
    path.write_text(json.dumps(value))
    ended = taccl(*CHECK)
    assert ended.code == 0
    assert "got better" in ended.out
    assert "-50 %" in ended.out
    assert "1 better" in ended.out
    assert taccl("regress", "accept", "suite.toml", "--workers", 1).code == 0
    assert path.read_text() == good


def test_a_machine_that_is_not_the_same_is_told(taccl, folder):
    """A link of half the rate: cost and bound rise, of which one is worse and the other is not, and neither is the algorithm's doing."""
    machine, path = taccl("topo", "show", "ring:4", "--json").json, folder / "mine.json"
    suite = SUITE.replace('"ring:4"', '"mine.json"').split("[[instances]]")
    (folder / "suite.toml").write_text(suite[0] + "[[instances]]" + suite[1])
    path.write_text(json.dumps(machine | {"source": "before"}))
    assert taccl("regress", "accept", "suite.toml", "--workers", 1).code == 0
    path.write_text(json.dumps(machine | {"source": "another sentence"}))
    assert taccl(*CHECK, "--json").json["other_machines"] == []
    machine["links"][0]["beta_us_per_mb"] *= 2
    path.write_text(json.dumps(machine))
    ended = taccl(*CHECK)
    assert ended.code == 4
    assert "mine allgather 1MB templates: the machine is not the one of the baseline" in ended.out
    assert taccl(*CHECK, "--json").json["other_machines"] == ["mine allgather 1MB templates"]


def test_a_baseline_without_machines_is_checked_and_kept(taccl, suite):
    """Files of earlier versions have no digests of machines; those of instances that are not accepted stay as they are."""
    path = suite / "suite.baseline.json"
    value = json.loads(path.read_text())
    for entry in value["instances"].values():
        del entry["machine_sha256"]
    path.write_text(json.dumps(value))
    assert taccl(*CHECK, "--json").json["other_machines"] == []
    assert taccl("regress", "accept", "suite.toml", "--only", "templates", "--workers", 1).code == 0
    instances = json.loads(path.read_text())["instances"]
    assert {name: "machine_sha256" in entry for name, entry in instances.items()} == {
        name: "templates" in name for name in instances
    }


def test_accepting_some_instances_leaves_the_text_of_the_others_as_it_was(taccl, suite):
    path = suite / "suite.baseline.json"
    before = path.read_text()
    assert taccl("regress", "accept", "suite.toml", "--only", "templates", "--workers", 1).code == 0
    assert path.read_text() == before


def test_steps_that_are_not_counted_are_not_compared(taccl, suite, monkeypatch):
    only = ("suite.toml", "--only", "allgather 1MB templates", "--workers", 1)
    monkeypatch.setattr("taccl_py.report.tables._MOST_COUNTED", 0)
    assert taccl("regress", "check", *only).code == 0
    assert taccl("regress", "accept", *only).code == 0
    instances = json.loads((suite / "suite.baseline.json").read_text())["instances"]
    assert instances["ring:4 allgather 1MB templates"]["steps"] is None
    assert taccl("regress", "check", *only).code == 0
    assert "not counted" in taccl("sweep", *only, "-o", "results").out


def test_instances_that_only_one_of_both_knows_fail(taccl, suite):
    path = suite / "suite.baseline.json"
    value = json.loads(path.read_text())
    value["instances"]["old one"] = value["instances"].pop("ring:4 allgather 1MB trees")
    path.write_text(json.dumps(value))
    ended = taccl(*CHECK, "--junit", "junit.xml", "--json")
    assert ended.code == 4
    assert (ended.json["missing"], ended.json["gone"]) == (["ring:4 allgather 1MB trees"], ["old one"])
    assert taccl(*CHECK, "--only", "templates").code == 0
    root = ElementTree.parse(suite / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures")) == ("6", "2")


def test_reports_for_machines_name_what_got_worse(taccl, suite, monkeypatch):
    patched(monkeypatch, "templates", lambda synthesis: later(synthesis, 0.02))
    (suite / "summary.md").write_text("before\n")
    assert taccl(*CHECK, "--junit", "junit.xml", "--summary", "summary.md").code == 4
    root = ElementTree.parse(suite / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("5", "2", "0")
    failed = [case.get("name") for case in root if case.find("failure") is not None]
    assert failed == ["ring:4 allgather 1MB templates", "ring:4 allreduce 1MB templates"]
    summary = (suite / "summary.md").read_text()
    assert summary.startswith("before\n### Cost of algorithms: not good")
    assert "| ring:4 allgather 1MB templates | cost |" in summary


def test_an_engine_without_an_answer_fails(taccl, suite):
    text = (suite / "suite.toml").read_text()
    (suite / "suite.toml").write_text(text.replace('"gather"', '"gather"\nranks = "0,1,2,9"'))
    ended = taccl("regress", "accept", "suite.toml", "--workers", 1)
    assert ended.code == 3
    assert "has no result: command line: --ranks: rank 9 does not exist" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "suite.toml", "--baseline", "other.json"), ["other.json", "taccl regress accept"]),
        (("check", "other.toml", "--baseline", "suite.baseline.json"), ["other.toml"]),
        (("check", "other.toml"), ["other.toml: there is no such file"]),
        (("check", "suite.toml", "--only", "nothing"), ["--only", "'nothing'"]),
        (("check", "suite.toml", "--baseline", "suite.toml"), ["suite.toml", "JSON"]),
    ],
)
@pytest.mark.usefixtures("suite")
def test_bad_input_is_refused(refuse, arguments, words):
    refuse(2, words, "regress", *arguments)


def killed_at_random(folder, arguments, rng):
    """Run the command and kill it after a while; whether it was still running then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "taccl_py", *arguments], cwd=folder, env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(rng.uniform(0.4, 1.5))
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def finished(cache):
    return {path.parent.name: path.stat().st_mtime_ns for path in cache.glob("results/*/result.json")}


@pytest.mark.parametrize("kills", [4])
def test_after_kills_nothing_is_corrupt_and_nothing_finished_is_computed_again(taccl, suite, kills):
    rng = random.Random(kills)
    arguments = ["regress", "check", "suite.toml", "--workers", "2", "--cache", "kept"]
    for _ in range(kills):
        before = finished(suite / "kept")
        if not killed_at_random(suite, arguments, rng):
            shutil.rmtree(suite / "kept" / "results", ignore_errors=True)
            continue
        after = finished(suite / "kept")
        assert after.items() >= before.items()
    before = finished(suite / "kept")
    ended = taccl(*arguments)
    assert (ended.code, ended.out) == (0, "good: 5 instances, 0 worse, 0 better\n")
    assert finished(suite / "kept").items() >= before.items()
    assert len(finished(suite / "kept")) == 5
    assert not list((suite / "kept").glob("results/*/.*"))


def test_our_own_suite_is_large_and_has_every_engine_of_its_own_and_every_collective():
    from taccl_py.campaign.baseline import read_baseline
    from taccl_py.campaign.demand_case import DemandCase
    from taccl_py.campaign.suite import read_suite
    from taccl_py.collective import Kind

    cases = read_suite(REPOSITORY / "tests" / "cost" / "suite.toml").cases
    of_kinds = [case for case in cases if not isinstance(case, DemandCase)]
    assert len(of_kinds) >= 40
    assert len(of_kinds) < len(cases)
    assert {case.kind for case in of_kinds} == set(Kind)
    assert {case.engine for case in of_kinds} >= {"milp", "trees", "flow", "templates"}
    assert {case.name for case in cases} == read_baseline(REPOSITORY / "tests/cost/suite.baseline.json").keys()
