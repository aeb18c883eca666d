"""``taccl sweep``: a catalogue that is complete, checked, and the same however often one had to begin."""

import json
import random

import pytest

from tests.cli.running import run_apart, tree
from tests.cli.test_regress import finished, killed_at_random

SUITE = """
format = "taccl-suite"
version = 1
[[instances]]
topology = "ring:4"
collectives = ["allgather", "allreduce", "alltoall"]
sizes = ["4KiB", "1MB"]
engines = ["templates"]
"""
SWEEP = ("sweep", "suite.toml", "-o", "catalogue", "--workers", "1")


@pytest.fixture
def suite(folder):
    (folder / "suite.toml").write_text(SUITE)
    return folder


def test_a_catalogue_has_an_index_and_verified_files(taccl, suite):
    ended = taccl(*SWEEP, "--json")
    assert ended.code == 0, ended.err
    index = json.loads((suite / "catalogue/index.json").read_text())
    assert ended.json == {"folder": "catalogue", "computed": 6, **index}
    assert len(index["results"]) == 6
    for name, entry in index["results"].items():
        place = suite / "catalogue" / entry["result"]
        assert taccl("check", place / "schedule.json", place / "algorithm.xml").code == 0
        result = json.loads((place / "result.json").read_text())
        assert name.startswith(f"ring:4 {result['collective']} ")
        assert entry["makespan_us"] == result["makespan_us"]
    whole = taccl("check", "catalogue", "--json")
    assert (whole.code, len(whole.json["files"])) == (0, 12)
    (place / "algorithm.xml").write_text("<algo/>")
    assert taccl("check", "catalogue").code == 4


def test_a_second_sweep_computes_nothing_and_changes_nothing(taccl, suite):
    assert taccl(*SWEEP).code == 0
    before = tree(suite)
    again = taccl(*SWEEP, "--json")
    assert again.json["computed"] == 0
    assert tree(suite) == before


def test_a_larger_matrix_computes_what_is_new(taccl, suite):
    taccl(*SWEEP)
    (suite / "suite.toml").write_text(SUITE.replace('"1MB"', '"1MB", "4MB"'))
    assert taccl(*SWEEP, "--json").json["computed"] == 3


def test_processes_make_the_same_bytes(taccl, suite):
    taccl(*SWEEP)
    taccl("sweep", "suite.toml", "-o", "other", "--workers", "2")
    assert tree(suite / "other") == tree(suite / "catalogue")


def test_a_catalogue_is_checked_by_the_rules_of_the_runtime_that_it_is_for(taccl, suite):
    (suite / "suite.toml").write_text(SUITE.replace('["4KiB", "1MB"]', '["4KiB"]') + 'runtime = "rccl"\n')
    assert taccl(*SWEEP).code == 0
    index = json.loads((suite / "catalogue/index.json").read_text())
    assert {entry["runtime"] for entry in index["results"].values()} == {"rccl"}
    ended = taccl("check", "catalogue")
    assert ended.code == 0
    assert ended.out.count("for rccl") == 3
    assert "is assumed" not in ended.out


def test_a_catalogue_without_a_result_is_not_taken_for_something_else(taccl, suite):
    (suite / "suite.toml").write_text(SUITE.replace("templates", "hierarchy"))
    assert taccl(*SWEEP).code == 3
    for command in (("check", "catalogue"), ("report", "catalogue", "-o", "page.html")):
        ended = taccl(*command)
        assert ended.code == 2
        assert "no instance has a result" in ended.out + ended.err
    assert not (suite / "page.html").exists()


def test_a_sweep_of_some_instances_leaves_the_others_in_the_index(taccl, suite):
    taccl(*SWEEP)
    before = tree(suite / "catalogue")
    ended = taccl(*SWEEP, "--only", "4KiB", "--json")
    assert (ended.code, ended.json["computed"], len(ended.json["results"])) == (0, 0, 6)
    assert tree(suite / "catalogue") == before
    # Of another catalogue the others are not known, and are no failures.
    ended = taccl("sweep", "suite.toml", "-o", "other", "--only", "4KiB", "--json")
    assert (len(ended.json["results"]), ended.json["failed"]) == (3, {})


def test_what_cannot_be_is_in_the_index_with_its_reason_and_the_rest_is_kept(taccl, suite):
    (suite / "suite.toml").write_text(
        SUITE + '[[instances]]\ntopology = "ring:4"\ncollectives = "gather"\nroot = 9\nengines = "milp"\n'
    )
    ended = taccl(*SWEEP, "--json")
    assert ended.code == 3
    assert "root 9 does not exist" in ended.json["failed"]["ring:4 gather root9 milp"]
    assert len(ended.json["results"]) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("suite.toml", "-o", "suite.toml"), ["suite.toml", "file"]),
        (("suite.toml", "-o", "out", "--only", "zzz"), ["--only", "'zzz'"]),
        (("suite.toml", "-o", "."), [".", "algorithm files"]),
        (("other.toml", "-o", "out"), ["other.toml"]),
        (("unknown.toml", "-o", "out"), ["unknown.toml", "instances.0.topology", "'ndv9' is not a topology"]),
    ],
)
def test_bad_input_is_refused(refuse, suite, arguments, words):
    (suite / "unknown.toml").write_text(SUITE.replace("ring:4", "ndv9"))
    (suite / "made.xml").write_text("<algo/>")
    refuse(2, words, "sweep", *arguments)


# Interrupts itself, as Ctrl-C does, when it begins with its third instance.
INTERRUPTED = """
import os, signal
import taccl_py.campaign.work as work
from taccl_py.cli import main

search_for, begun = work.search_for, 0


def interrupted(*given, **words):
    global begun
    begun += 1
    if begun == 3:
        os.kill(os.getpid(), signal.SIGINT)
        while not given[0].options.limits.stop.is_set():
            pass
    return search_for(*given, **words)


work.search_for = interrupted
main()
"""


def test_interrupted_it_says_what_is_kept_and_the_same_command_goes_on(taccl, suite):
    ended = run_apart(*SWEEP, cwd=suite, command=("-c", INTERRUPTED))
    assert (ended.code, ended.out) == (130, "")
    assert (
        ended.sentence == "interrupted after 2 of 6 instances; they are kept, and the same command goes on from there"
    )
    assert len(finished(suite / "catalogue")) == 2
    again = taccl(*SWEEP, "--json")
    assert (again.code, again.json["computed"], len(again.json["results"])) == (0, 4, 6)


@pytest.mark.parametrize("kills", [4])
def test_after_kills_a_sweep_goes_on_and_ends_with_the_same_bytes(taccl, suite, kills):
    rng = random.Random(kills)
    for _ in range(kills):
        before = finished(suite / "catalogue")
        killed_at_random(suite, SWEEP, rng)
        assert finished(suite / "catalogue").items() >= before.items()
    before = finished(suite / "catalogue")
    ended = taccl(*SWEEP, "--json")
    assert ended.code == 0
    assert ended.json["computed"] == 6 - len(before)
    assert finished(suite / "catalogue").items() >= before.items()
    taccl("sweep", "suite.toml", "-o", "other", "--workers", "1")
    assert tree(suite / "other") == tree(suite / "catalogue")
