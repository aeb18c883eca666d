"""``taccl bound``: tables, JSON, and what it refuses."""

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.topology.catalog import load_topology
from tests.cli.inputs import PROFILE, TACCL_SKETCH, write_json


def test_a_table_with_the_bound_and_its_parts(taccl):
    ended = taccl("bound", "ring:4", "allgather", "--size", "4MB")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("allgather on ring-4, 4 ranks: no algorithm is faster")
    row = next(line for line in ended.out.splitlines() if "3.815MiB" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:2] == ["3.815MiB", "30.5 us"]
    assert cells[4:8] == ["1 us", "1 us", "0 us", "30.5 us"]


def test_json_says_the_same_as_the_library(taccl):
    record = taccl("bound", "dgx1", "broadcast", "--root", 3, "--sizes", "1KiB:1GiB", "--json").json
    assert {key: record[key] for key in ("collective", "topology", "num_ranks", "num_nodes", "root")} == {
        "collective": "broadcast", "topology": "dgx1", "num_ranks": 8, "num_nodes": 1, "root": 3,
    }  # fmt: skip
    sizes = [row["size_bytes"] for row in record["results"]]
    assert (sizes[0], sizes[-1]) == (2**10, 2**30)
    assert sizes == sorted(sizes)
    for row in record["results"]:
        bound = demand_bound(load_topology("dgx1"), Kind.BROADCAST, 3, row["size_bytes"])
        assert (row["bound_us"], row["bound_reason"]) == (bound.time_us, bound.reason)
        assert row["bound_us"] == max(row[f"{part}_us"] for part in ("latency", "fan_out", "crossing", "bandwidth"))
        assert row["busbw_gbps"] == row["algbw_gbps"] == pytest.approx(row["size_bytes"] / row["bound_us"] / 1000)


@pytest.mark.parametrize("kind", list(Kind))
def test_no_algorithm_that_synth_finds_is_faster(taccl, kind):
    arguments = ("ring:4", kind, "--size", "64KiB")
    bound = taccl("bound", *arguments, "--json").json["results"][0]
    found = taccl("synth", *arguments, "--time-limit", 0.5, "--json").json
    assert bound["bound_us"] <= found["bound_us"] <= found["makespan_us"] * (1 + 1e-9)


def test_where_switches_can_do_more_the_table_says_whether_that_is_counted(taccl):
    plain, more = taccl("bound", "ndv5", "allreduce"), taccl("bound", "ndv5", "allreduce", "--switch")
    assert "for algorithms that only send messages (--switch: for any)" in plain.out
    assert "no algorithm is faster, switches included" in more.out
    records = [taccl("bound", "ndv5", "allreduce", *option, "--json").json for option in ((), ("--switch",))]
    assert [record["switch"] for record in records] == [False, True]
    assert records[0]["results"][0]["bound_us"] > records[1]["results"][0]["bound_us"]
    assert taccl("bound", "ring:4", "allreduce", "--json").json["switch"] is None


@pytest.mark.parametrize(("machine", "kind"), [("ndv5", "alltoall"), ("ndv4", "allreduce")])
def test_a_switch_that_cannot_help_gives_no_bound(refuse, machine, kind):
    says = f"no switch of topology {machine} multicasts or reduces what {kind} could use; leave --switch out"
    refuse(2, ["--switch", says], "bound", machine, kind, "--switch")


def test_nodes_and_ranks(taccl):
    two = taccl("bound", "ndv4", "allgather", "--nodes", 2, "--json").json
    assert (two["num_ranks"], two["num_nodes"]) == (16, 2)
    group = taccl("bound", "ndv4", "allgather", "--nodes", 2, "--ranks", "0-3", "--json").json
    assert group["num_ranks"] == 4
    assert group["results"][0]["bound_us"] < two["results"][0]["bound_us"]


def test_a_profile_of_taccl_has_sizes_like_any_machine(taccl, folder):
    profile, sketch = write_json(folder / "p.json", PROFILE), write_json(folder / "s.json", TACCL_SKETCH)
    asked = (profile, "allgather", "--sketch", sketch)
    row = taccl("bound", *asked, "--json").json["results"][0]
    assert row["size_bytes"] == 8_000_000  # a chunk of 1 MB of each of 8 ranks
    found = taccl("synth", *asked, "--time-limit", 0.5, "--json").json
    assert 0 < row["bound_us"] <= found["makespan_us"]
    rows = taccl("bound", *asked, "--sizes", "1MB:8MB", "--json").json["results"]
    assert rows[0]["bound_us"] < rows[-1]["bound_us"]


def test_what_is_refused(refuse):
    refuse(2, ["--sizes", "--size"], "bound", "ring:4", "allgather", "--size", "1MB", "--sizes", "1MB:2MB")
    refuse(2, ["--root", "no root"], "bound", "ring:4", "allgather", "--root", 1)
    refuse(2, ["--root", "does not exist"], "bound", "ring:4", "broadcast", "--root", 4)
    refuse(2, ["not a collective"], "bound", "ring:4", "allfetch")
    refuse(2, ["not a topology"], "bound", "rong", "allgather")
    refuse(3, ["no path of links"], "bound", "dgx1", "allgather", "--ranks", "0,5")
    refuse(3, ["from rank 0 to rank 4"], "bound", "ring:8", "allgather", "--ranks", "0,4")


@pytest.mark.parametrize("kind", ["allgather", "allreduce", "broadcast", "reduce"])
def test_a_group_whose_nodes_nothing_joins_is_refused(refuse, kind):
    """Rails join ranks of equal place in their nodes: 0 and 8, 1 and 9."""
    refuse(3, ["no path of links"], "bound", "hpn:2", kind, "--ranks", "0,1,10,11")
