"""``taccl profile`` of emulated machines."""

import json
import os
from pathlib import Path

import pytest

from taccl_py.cli.profile import _warn_if_crowded
from taccl_py.topology.files import read_topology


def test_an_emulated_machine_is_profiled_and_written(taccl):
    ended = taccl("profile", "--emulate", "switch:4", "-o", "mine.json")
    assert ended.code == 0
    assert "8 ports" in ended.out
    machine = read_topology(Path("mine.json"))
    assert (machine.num_ranks, len(machine.links), len(machine.ports)) == (4, 12, 8)
    record = taccl("profile", "--emulate", "switch:4", "--json").json
    assert [(one["links"], round(one["beta_us_per_mb"], 3)) for one in record["classes"]] == [(12, 20.0)]


def test_a_machine_that_is_worse_than_recorded_fails(taccl, folder):
    assert taccl("profile", "--emulate", "ring:4", "--against", "ring:4").code == 0
    slow = taccl("topo", "show", "ring:4", "--json").json
    slow["links"][0]["beta_us_per_mb"] *= 1.5
    (folder / "slow.json").write_text(json.dumps(slow))
    failed = taccl("profile", "--emulate", "slow.json", "--against", "ring:4")
    assert failed.code == 4
    assert "link 0->1" in failed.sentence
    assert taccl("profile", "--emulate", "ring:4", "--against", "slow.json").code == 0


def test_a_record_saves_what_was_measured(taccl, folder):
    first = taccl("profile", "--emulate", "ring:4", "--record", "r.jsonl", "--json")
    lines = (folder / "r.jsonl").read_text().splitlines()
    again = taccl("profile", "--emulate", "ring:4", "--record", "r.jsonl", "--json")
    assert again.json == first.json
    assert (folder / "r.jsonl").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("options", "inside"), [([], "network"), (["--inside", "pcie"], "pcie"), (["--inside", "nvlink"], "nvlink")]
)
def test_what_joins_the_ranks_is_taken_from_the_emulated_machine_or_said(taccl, folder, options, inside):
    taccl("profile", "--emulate", "fattree:2", *options, "-o", "mine.json")
    assert json.loads((folder / "mine.json").read_text("utf-8"))["inside"] == inside


def test_near_nics_are_taken_from_the_emulated_machine_or_said(taccl, folder):
    found = {}
    for machine, options in (("ndv4", ()), ("hpn:2", ()), ("hpn:2", ("--near-nics",))):
        nodes = () if ":" in machine else ("--nodes", 2)
        taccl("profile", "--emulate", machine, *nodes, *options, "-o", "mine.json")
        found[machine, options] = json.loads((folder / "mine.json").read_text("utf-8")).get("near_nics", False)
    assert list(found.values()) == [True, False, True]


def test_the_largest_message_may_be_smaller(taccl, folder):
    """Nothing larger is sent but where the cost of a port is told by messages four times as large."""
    words = ("profile", "--emulate", "switch:4", "--largest", "64KiB", "--record", "r.jsonl", "--json")
    (links,) = taccl(*words).json["classes"]
    assert (links["links"], round(links["beta_us_per_mb"], 3)) == (12, 20.0)
    sizes = {json.loads(line).get("size_bytes", 0) for line in (folder / "r.jsonl").read_text().splitlines()}
    assert {64, 1024, 16384, 65536} <= sizes
    assert max(sizes) <= 4 * 65536


def test_what_cannot_be_profiled_is_refused(refuse):
    refuse(2, ["--emulate TOPOLOGY", "name the machine"], "profile")
    refuse(2, ["--backend", "is for --with torch"], "profile", "--emulate", "ring:4", "--backend", "gloo")
    refuse(2, ["--slow-down", "add --with"], "profile", "--emulate", "ring:4", "--slow-down", "10")
    refuse(2, ["--ranks", "goes with --plan"], "profile", "--emulate", "ring:4", "--ranks", "4")
    refuse(2, ["--nodes", "no multiple of 3 nodes"], "profile", "--plan", "--ranks", "4", "--nodes", "3")
    refuse(2, ["--nodes", "of an emulated machine"], "profile", "--nodes", "3")
    refuse(2, ["--largest", "too few to tell beta"], "profile", "--emulate", "ring:4", "--largest", "64")
    refuse(2, ["--plan", "needs a machine"], "profile", "--plan")


def test_a_plan_for_128_ranks_is_printed_and_small(taccl):
    plan = taccl("profile", "--plan", "--emulate", "ndv4-x16", "--json").json
    assert plan["experiments"] * 20 < plan["all_pairs"] == 128 * 127 * 6
    assert plan["seconds"] > 0
    assert "experiments, about" in taccl("profile", "--plan", "--emulate", "ring:4").out


@pytest.mark.parametrize(("ranks", "nodes"), [(96, 12)])
def test_an_unknown_machine_of_many_nodes_takes_less_than_a_twentieth_of_all_pairs(taccl, ranks, nodes):
    plan = taccl("profile", "--plan", "--ranks", ranks, "--nodes", nodes, "--json").json
    assert plan["experiments"] * 20 < plan["all_pairs"] == ranks * (ranks - 1) * 6
    every = taccl("profile", "--plan", "--ranks", ranks, "--nodes", nodes, "--all-pairs", "--json").json
    assert every["experiments"] == plan["experiments"] + plan["all_pairs"]
    assert every["seconds"] > plan["seconds"]


def test_a_record_is_fitted_to_the_machine_that_was_found(taccl):
    assert taccl("profile", "--emulate", "ndv2-x2", "--record", "record.jsonl", "-o", "found.json").code == 0
    assert taccl("topo", "fit", "record.jsonl", "--nodes", 2, "-o", "fitted.json").code == 0
    assert "is as" in taccl("topo", "diff", "found.json", "fitted.json", "--tolerance", 0.001).out


def test_a_record_with_a_wrong_line_is_refused(taccl, refuse, folder):
    assert taccl("profile", "--emulate", "ring:3", "--record", "record.jsonl", "-o", "found.json").code == 0
    lines = (folder / "record.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "short.jsonl").write_text(lines[0], encoding="utf-8")
    refuse(2, ["short.jsonl", "no experiment"], "topo", "fit", "short.jsonl")
    (folder / "cut.jsonl").write_text("".join(lines)[:-9], encoding="utf-8")
    assert taccl("topo", "fit", "cut.jsonl").code == 0
    wrong = lines[1].replace('"ranks": [0, ', '"ranks": [9, ')
    assert wrong != lines[1]
    (folder / "wrong.jsonl").write_text(lines[0] + wrong, encoding="utf-8")
    refuse(2, ["wrong.jsonl, line 2", "ranks below 3"], "topo", "fit", "wrong.jsonl")


def test_times_far_from_their_lines_are_warned_of(taccl):
    assert "off the lines" not in taccl("profile", "--emulate", "full:4").err
    noisy = taccl("profile", "--emulate", "full:4", "--noise", 0.4)
    assert "warning: times are up to" in noisy.err
    assert "off the lines" in noisy.err


class _Started:
    """Processes of a launcher, as far as the command looks at them before it measures."""

    def __init__(self, *hosts):
        self.hosts = hosts


@pytest.mark.parametrize(
    ("hosts", "values", "warned"),
    [
        (["a"] * 3, {}, True),
        (["a"] * 2, {}, False),
        (["a", "a", "b", "b"], {}, False),
        (["a"] * 3, {"emulate": "ring:3"}, False),
        (["a"] * 3, {"backend": "nccl"}, False),
    ],
)
def test_more_ranks_than_processors_are_warned_of(monkeypatch, capsys, hosts, values, warned):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    _warn_if_crowded(_Started(*hosts), {"emulate": None, "backend": None} | values)
    assert ("3 ranks on 2 processors of a take turns" in capsys.readouterr().err) is warned
