"""Suites of demands: what they name, what they refuse, and that sweeps, checks and reports take their results."""

import json

import pytest

from taccl_py.api.demands import moe_demand
from taccl_py.campaign.demand_case import DemandCase
from taccl_py.campaign.store import machine_digest
from taccl_py.campaign.suite import read_suite
from taccl_py.demand.variable import Variable
from taccl_py.errors import InputError
from taccl_py.topology.catalog import load_topology
from taccl_py.units import format_size
from tests.cli.running import run_here

HEADER = 'format = "taccl-suite"\nversion = 1\n'
ENTRY = '[[instances]]\ntopology = "full:3"\ncollectives = '
MINE = {
    "format": "taccl-demand",
    "version": 1,
    "name": "mine",
    "ranks": 3,
    "chunks": [{"bytes": 2_000_000, "holds": [0, 1], "wants": [2]}],
}
SUITE = f"""{HEADER}
[defaults]
engines = ["templates"]
[[instances]]
topology = "full:3"
collectives = ["my.json", "alltoallv"]
skews = ["zipf:1"]
sizes = ["30KB", "600KB"]
[[instances]]
topology = "full:3"
collectives = ["allgatherv"]
counts = "counts.csv"
dtype = "float32"
[[instances]]
topology = "full:3"
collectives = ["allgather"]
sizes = "30KB"
"""
NAMES = [
    "full:3 my", "full:3 alltoallv zipf:1 30KB", "full:3 alltoallv zipf:1 600KB", "full:3 allgatherv counts",
    "full:3 allgather 30KB templates",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my.json").write_text(json.dumps(MINE))
    (tmp_path / "counts.csv").write_text("1000, 0, 3000\n")
    (tmp_path / "suite.toml").write_text(SUITE)
    return tmp_path


def sweep(capsys, folder, *more):
    return run_here(capsys, "sweep", folder / "suite.toml", "-o", folder / "catalogue", "--workers", 1, *more)


EXPERTS = """
[[instances]]
topology = "full:2"
collectives = ["moe-dispatch", "moe-combine"]
experts = 4
token_bytes = "64B"
"""


def test_exchanges_of_experts_are_swept(folder, capsys):
    (folder / "suite.toml").write_text(
        HEADER + EXPERTS + 'tokens = 4\ntopk = 2\nskews = ["zipf:0", "zipf:1"]\nseed = 3\n'
    )
    suite = read_suite(folder / "suite.toml")
    assert [case.name for case in suite.cases] == [
        f"full:2 {exchange} {skew} 64B seed3"
        for exchange in ("moe-dispatch", "moe-combine")
        for skew in ("zipf:0", "zipf:1")
    ]
    same = moe_demand("moe-combine", 2, experts=4, token_bytes=64, tokens=4, topk=2, skew="zipf:1", seed=3)
    assert suite.cases[3].demand(2) == same
    assert len({case.key() for case in suite.cases}) == 4
    assert sweep(capsys, folder).code == 0


def test_exchanges_take_a_file_of_experts(folder):
    (folder / "routing.csv").write_text("2,3\n0,1\n")
    (folder / "suite.toml").write_text(HEADER + EXPERTS + 'routing = "routing.csv"\n')
    dispatch, combine = read_suite(folder / "suite.toml").cases
    # Both tokens go to the other rank, once.
    assert dispatch.demand(2).total_bytes == 2 * 64
    assert combine.demand(2).total_bytes == 2 * 64


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ('tokens = 4\ntopk = 2\nskews = ["zipf"]\n', "skews"),
        ("tokens = 0\ntopk = 2\n", "tokens"),
        ('counts = "counts.csv"\n', "counts"),
        ('token_bytes = "64B"\n', "suite.toml"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_exchanges_is_named(folder, more, what):
    (folder / "suite.toml").write_text(HEADER + EXPERTS + more)
    with pytest.raises(InputError, match=what):
        read_suite(folder / "suite.toml")


def test_exchanges_and_other_demands_are_entries_of_their_own(folder):
    (folder / "suite.toml").write_text(
        HEADER + EXPERTS.replace('"moe-combine"', '"alltoallv"') + "tokens = 4\ntopk = 2\n"
    )
    with pytest.raises(InputError, match="entry"):
        read_suite(folder / "suite.toml")


def test_entries_of_demands_are_combinations_of_formulas_skews_sizes_and_nodes(folder):
    suite = read_suite(folder / "suite.toml")
    assert [case.name for case in suite.cases] == NAMES
    assert suite.cases[1] == DemandCase(
        NAMES[1], "full:3", Variable.ALLTOALLV, skew="zipf:1", size_bytes=30_000
    )  # fmt: skip
    (folder / "other.toml").write_text(
        HEADER
        + '[[instances]]\ntopology = "ndv4"\nnodes = [1, 2]\ncollectives = "alltoallv"\nskews = ["zipf:0", "zipf:1"]\nseed = 2\n'
    )
    assert [case.name for case in read_suite(folder / "other.toml").cases] == [
        "ndv4 x1 alltoallv zipf:0 1MB seed2", "ndv4 x1 alltoallv zipf:1 1MB seed2",
        "ndv4 x2 alltoallv zipf:0 1MB seed2", "ndv4 x2 alltoallv zipf:1 1MB seed2",
    ]  # fmt: skip


def test_a_key_changes_with_the_demand_and_not_with_its_place(folder):
    suite = read_suite(folder / "suite.toml")
    keys = [case.key() for case in suite.cases]
    assert len(set(keys)) == len(keys)
    moved = folder / "elsewhere"
    moved.mkdir()
    for name in ("my.json", "counts.csv", "suite.toml"):
        (folder / name).rename(moved / name)
    assert [case.key() for case in read_suite(moved / "suite.toml").cases] == keys
    (moved / "counts.csv").write_text("1000, 1, 3000\n")
    changed = [case.key() for case in read_suite(moved / "suite.toml").cases]
    assert [number for number, key in enumerate(changed) if key != keys[number]] == [3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('["my.json", "allgather"]', ["collectives", "names collectives and demands"]),
        ('["alltoallv"]', ["collectives", "either counts (a file) or skews"]),
        ('["alltoallv"]\nskews = "zipf:0"\ncounts = "counts.csv"', ["collectives", "either counts (a file) or skews"]),
        ('["alltoallv"]\nskews = "even"', ["skews", "'even' is no skew"]),
        ('["alltoallv"]\nskews = "zipf:0"\nengines = "trees"', ["engines", "is for the eight collectives"]),
        ('["alltoallv"]\nskews = "zipf:0"\ndtype = "fp17"', ["dtype", "'fp17' is not a type"]),
        ('["allgatherv"]\ncounts = "counts.csv"\nsizes = "1MB"', ["sizes", "goes with skews"]),
        ('["sendrecv"]\nskews = "zipf:0"', ["skews", "found sendrecv"]),
        ('["my.json"]\nskews = "zipf:0"', ["skews", "a demand file says it itself"]),
        ('["no.json"]', ["no.json", "there is no such file"]),
        ('["allgatherv"]\ncounts = "no.csv"', ["no.csv", "there is no such file"]),
        ('["my.json"]\nskew = "zipf:0"', ["skew", "is not a known field"]),
    ],
)
def test_wrong_entries_are_refused_with_file_field_and_remedy(folder, text, words):
    (folder / "suite.toml").write_text(HEADER + ENTRY + text + "\n")
    with pytest.raises(InputError) as caught:
        read_suite(folder / "suite.toml")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.slow
def test_a_catalogue_keeps_demands_and_a_report_shows_them(capsys, folder):
    """Two holders with a link each of 20 us a megabyte and half a microsecond send 1 MB each."""
    done = sweep(capsys, folder, "--json")
    assert (done.code, done.json["computed"], done.json["failed"]) == (0, 5, {})
    entry = done.json["results"]["full:3 my"]
    assert (entry["demand"], entry["size_bytes"], entry["steps"]) == ("mine", 2_000_000, 1)
    assert entry["makespan_us"] == entry["replay_us"] == entry["bound_us"] == pytest.approx(20.5)
    place = folder / "catalogue" / entry["result"]
    assert sorted(path.name for path in place.iterdir()) == ["result.json", "schedule.json"]
    assert run_here(capsys, "check", place / "schedule.json", "--demand", folder / "my.json").code == 0
    assert sweep(capsys, folder, "--json").json["computed"] == 0
    table = sweep(capsys, folder).out
    assert "no program" in table
    report = run_here(capsys, "report", folder / "catalogue", "-o", folder / "r.md", "--sizes", "1KiB:1MiB", "--json")
    assert sorted(report.json["algorithms"]) == sorted(NAMES)
    assert f"mine on full-3, 3 ranks, {format_size(2_000_000)} to deliver" in (folder / "r.md").read_text()
    assert (folder / "r.md").read_text().startswith("## 5 algorithms\n")
    (place / "schedule.json").write_text("{}")
    assert sweep(capsys, folder, "--json").json["computed"] == 1


@pytest.mark.slow
def test_a_demand_that_got_worse_is_told(capsys, folder):
    suite, baseline = folder / "suite.toml", folder / "suite.baseline.json"
    assert run_here(capsys, "regress", "accept", suite, "--workers", 1).code == 0
    entry = json.loads(baseline.read_text())["instances"]["full:3 my"]
    assert entry == {
        "cost": 20.5, "replay": 20.5, "bound": 20.5, "steps": 1, "threadblocks": None, "channels": None, "status": "optimal",
        "protocol": None, "xml_sha256": None, "machine_sha256": machine_digest(load_topology("full:3")),
    }  # fmt: skip
    assert run_here(capsys, "regress", "check", suite, "--workers", 1, "--json").json["passes"]
    was = json.loads(baseline.read_text())
    was["instances"]["full:3 my"]["cost"] = 20.0
    baseline.write_text(json.dumps(was))
    done = run_here(capsys, "regress", "check", suite, "--workers", 1, "--json")
    assert done.code == 4
    assert [(c["instance"], c["metric"], c["now"]) for c in done.json["worse"]] == [("full:3 my", "cost", 20.5)]


@pytest.mark.slow
def test_a_file_for_other_ranks_has_no_result(capsys, folder):
    (folder / "my.json").write_text(json.dumps({**MINE, "ranks": 4}))
    done = sweep(capsys, folder, "--only", "my", "--json")
    assert done.code == 3
    assert "the demand mine is for 4" in done.json["failed"]["full:3 my"]
