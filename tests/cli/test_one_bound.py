"""For the same question every command prints the same bound, and every gap says against which."""

import json

import pytest

from taccl_py.topology.files import topology_to_json
from taccl_py.units import format_gap, format_time
from tests.cli.inputs import write_json
from tests.random_machines import random_machine

QUESTIONS = [
    ("ring:4", "allgather", "--size", "1MiB", "--engine", "templates"),
    ("full:4", "allreduce", "--size", "64KiB", "--engine", "templates"),
    ("hypercube:3", "broadcast", "--size", "256KiB", "--engine", "templates"),
    ("torus:3x3", "reducescatter", "--size", "1MiB", "--engine", "greedy"),
    ("switch:6", "alltoall", "--size", "1MiB", "--engine", "templates"),
    ("dgx1", "allgather", "--size", "16MiB", "--engine", "templates"),
    ("mi300x", "allreduce", "--size", "1MiB", "--engine", "templates"),
    ("ndv2", "alltoall", "--nodes", "2", "--size", "4KiB", "--engine", "hierarchy"),
    ("ring:5", "gather", "--size", "64KiB", "--engine", "cp"),
    ("ndv2", "allgather", "--nodes", "2", "--sketch", "sk-1", "--size", "16MB", "--effort", "quick"),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_commands_files_and_reports_say_the_same_bound(question, taccl, folder):
    asked = [*question, "--runtime-profile", "neutral", "-o", "out"]
    synthesized = taccl("synth", *asked, "--json").json
    machine = [word for word in question if word not in ("--engine", "--effort")][: len(question) - 2]
    if "--sketch" in machine:
        place = machine.index("--sketch")
        del machine[place : place + 2]
    (row,) = taccl("bound", *machine, "--runtime-profile", "neutral", "--json").json["results"]
    physical, *restricted = synthesized["bounds"]
    assert (physical["scope"], physical["holds_for"]) == ("physical", "any algorithm")
    assert (physical["time_us"], physical["reason"]) == (row["bound_us"], row["bound_reason"])
    assert json.loads((folder / "out" / "summary.json").read_text())["bounds"] == synthesized["bounds"]
    for each in synthesized["bounds"]:
        assert each["gap"] == pytest.approx(synthesized["makespan_us"] / each["time_us"] - 1)

    own = restricted[0] if restricted else physical
    assert bool(restricted) == ("cp" in question or "--sketch" in question)
    origin = json.loads((folder / "out" / "schedule.json").read_text())["origin"]
    assert (origin["bound_us"], origin["bound_reason"]) == (own["time_us"], own["reason"])
    assert origin.get("bound_holds_for", "any algorithm") == own["holds_for"]
    assert taccl("report", "out", "-o", "report.html").code == 0
    page = (folder / "report.html").read_text()
    assert format_time(own["time_us"]) in page
    assert format_gap(own["gap"]) in page
    assert f"The lower bound, for {own['holds_for']}, comes from" in page


def test_where_links_share_ports_the_answer_is_measured_against_all_cuts_together(taccl, folder):
    """The worst cut alone is 22.86 us per MB, all together 30.92."""
    machine = write_json(folder / "random2.json", topology_to_json(random_machine(2)))
    asked = [machine, "allgather", "--size", "64MiB", "--runtime-profile", "neutral", "--json"]
    (row,) = taccl("bound", *asked).json["results"]
    assert row["bound_us"] == pytest.approx(30.92437 * 67.108864, rel=1e-3)
    assert row["bound_reason"].endswith("more cuts that share links and ports")
    (physical,) = taccl("synth", *asked, "--engine", "templates").json["bounds"]
    assert (physical["time_us"], physical["reason"]) == (row["bound_us"], row["bound_reason"])


def test_the_table_names_what_each_bound_and_gap_is_of(taccl):
    said = taccl("synth", "ring:4", "allgather", "--size", "1MiB", "--engine", "cp", "--runtime-profile", "neutral").out
    assert "bound (any algorithm)" in said
    assert "bound (1 chunk per rank)" in said
    assert " to any algorithm, " in said
    assert "to 1 chunk per rank" in said
