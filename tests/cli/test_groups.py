"""``taccl groups``: files for each group, and sentences for what cannot be."""

import json
from pathlib import Path


def test_groups_get_a_schedule_each_and_take_no_longer_than_in_turn(taccl):
    found = taccl(
        "groups", "ndv2", "allreduce", "--nodes", 2, "--group", "0-3,8-11", "--group", "4-7,12-15",
        "--size", "1MB", "--time-limit", 1, "--json", "-o", "out",
    ).json  # fmt: skip
    assert found["bound_us"] <= found["makespan_us"] <= found["one_after_another_us"]
    assert found["gap"] == found["makespan_us"] / found["bound_us"] - 1
    assert [group["ranks"] for group in found["groups"]] == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert found["files"] == ["out/group-0.json", "out/group-1.json"]
    for name in found["files"]:
        assert taccl("check", name).code == 0
        assert json.loads(Path(name).read_text())["origin"]["bound_us"] == found["bound_us"]


def test_the_table_tells_of_every_group(taccl):
    shown = taccl("groups", "ring:6", "allgather", "--group", "0-2", "--group", "3-5")
    assert shown.code == 0
    for words in ("allgather of 2 groups at once", "one after another", "ranks 0-2", "ranks 3-5"):
        assert words in shown.out


def test_groups_that_cannot_be_are_refused(refuse):
    refuse(2, ["--group", "at least twice"], "groups", "ring:4", "allgather", "--group", "0-3")
    refuse(2, ["--group", "names no groups"], "groups", "ring:4", "allgather", "--group", "0-1@soon", "--group", "2,3")
    refuse(2, ["'sum' is not a collective"], "groups", "ring:4", "allgather", "--group", "0-1=sum", "--group", "2,3")
    refuse(2, ["has a root"], "groups", "ring:4", "allgather", "--group", "0,1=broadcast", "--group", "2,3")
    refuse(2, ["has a root"], "groups", "ring:4", "broadcast", "--group", "0,1", "--group", "2,3")
    refuse(2, ["--group", "rank 8 does not exist"], "groups", "ring:4", "allgather", "--group", "0,1", "--group", "8,9")
    refuse(3, ["ranks 0,4 of ring-8", "from rank 0 to rank 4", "outside of a group"],
           "groups", "ring:8", "allgather", "--group", "0,4", "--group", "1-3")  # fmt: skip


def test_families_of_groups_that_share_no_port_take_what_each_takes_alone(taccl):
    """AllReduce inside two nodes, and of the ranks of each NIC across them, which starts later."""
    found = taccl(
        "groups", "ndv4", "allreduce", "--nodes", 2, "--size", "1MB", "--time-limit", 1, "--json",
        "--group", "0-7/8-15", "--group", "0,8/1,9/2,10=allgather:2MB@100",
    ).json  # fmt: skip
    assert found["collective"] == "several"
    assert found["num_ranks"] == 16
    assert [group["collective"] for group in found["groups"]] == ["allreduce"] * 2 + ["allgather"] * 3
    for group in found["groups"]:
        assert abs(group["makespan_us"] - group["release_us"] - group["alone_us"]) <= 1e-6 * group["makespan_us"]
    assert found["makespan_us"] == max(group["makespan_us"] for group in found["groups"])
