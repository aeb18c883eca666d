"""``taccl groups``: files for each group, and sentences for what cannot be."""

import json
from pathlib import Path

import pytest


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


def told(ended):
    """Results of check by name."""
    return {result["file"]: result for result in ended.json["files"]}


@pytest.mark.usefixtures("folder")
def test_a_folder_of_groups_is_verified_file_by_file_and_as_a_whole(taccl):
    made = taccl("groups", "ring:6", "allgather", "--group", "0-2/3-5", "--group", "0,1@9", "--json", "-o", "out").json
    assert made["index"] == "out/groups.json"
    ended = taccl("check", "out")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split(": ")[:2] for line in ended.out.splitlines()] == [
        [f"out/{name}.json", "good"] for name in ("group-0", "group-1", "group-2", "groups")
    ]
    assert "3 groups together on ring-6, 6 ranks" in ended.out
    assert taccl("check", "out/groups.json").code == 0
    assert "[collective]" in taccl("check", "out", "--collective", "allreduce").out


@pytest.mark.usefixtures("folder")
def test_groups_that_are_good_alone_may_be_bad_together(taccl):
    assert taccl("groups", "ring:4", "allgather", "--group", "0,1", "--group", "2,3", "-o", "out").code == 0
    index = Path("out/groups.json")
    value = json.loads(index.read_text())
    for change, rule in (
        ({"ranks": [0, 1]}, "overlap"),
        ({"release_us": 1000}, "too-early"),
        ({"ranks": [0, 2]}, "other-machine"),
        ({"ranks": [8, 9]}, "no-such-rank"),
    ):
        wrong = {**value, "groups": [value["groups"][0], value["groups"][1] | change]}
        index.write_text(json.dumps(wrong))
        found = told(taccl("check", "out", "--json"))
        assert [name for name, result in found.items() if not result["good"]] == ["out/groups.json"]
        assert {each["rule"] for each in found["out/groups.json"]["violations"]} == {rule}
    for change, word in (({"schedule": "../x.json"}, "beside this one"), ({"schedule": "no.json"}, "no such file")):
        index.write_text(json.dumps({**value, "groups": [value["groups"][0] | change]}))
        ended = taccl("check", "out")
        assert (ended.code, ended.err) == (2, "")
        assert word in ended.out


@pytest.mark.usefixtures("folder")
def test_a_folder_of_schedules_without_an_index_is_verified_file_by_file(taccl):
    assert taccl("groups", "ring:4", "allgather", "--group", "0,1", "--group", "2,3", "-o", "out").code == 0
    Path("out/groups.json").unlink()
    ended = taccl("check", "out")
    assert ended.code == 0
    assert [line.split(": ")[:2] for line in ended.out.splitlines()] == [
        [f"out/group-{number}.json", "good"] for number in (0, 1)
    ]


def test_the_table_tells_of_every_group(taccl):
    shown = taccl("groups", "ring:6", "allgather", "--group", "0-2", "--group", "3-5")
    assert shown.code == 0
    for words in ("allgather of 2 groups at once", "one after another", "ranks 0-2", "ranks 3-5"):
        assert words in shown.out


def test_groups_that_cannot_be_are_refused(refuse):
    refuse(2, ["--group", "at least twice"], "groups", "ring:4", "allgather", "--group", "0-3")
    refuse(2, ["--group", "names no groups"], "groups", "ring:4", "allgather", "--group", "0-1@soon", "--group", "2,3")
    refuse(2, ["'sum' is not a collective"], "groups", "ring:4", "allgather", "--group", "0-1=sum", "--group", "2,3")
    refuse(
        2,
        ["--group", "has no root"],
        "groups",
        "ring:4",
        "allgather",
        "--group",
        "0,1=allgather:1MB:root=1",
        "--group",
        "2,3",
    )
    refuse(
        2,
        ["--root", "leave --root out"],
        "groups",
        "ring:4",
        "allgather",
        "--group",
        "0,1",
        "--group",
        "2,3",
        "--root",
        "1",
    )
    refuse(
        2,
        ["--group", "root 2 does not exist"],
        "groups",
        "ring:4",
        "broadcast",
        "--group",
        "0,1=reduce:root=2",
        "--group",
        "2,3",
    )
    refuse(
        2,
        ["--group", "'large' is not a size"],
        "groups",
        "ring:4",
        "allgather",
        "--group",
        "0,1=reduce:large",
        "--group",
        "2,3",
    )
    refuse(
        2, ["--group", "needs a file"], "groups", "ring:4", "allgather", "--group", "0,1=alltoallv", "--group", "2,3"
    )
    refuse(2, ["no.json", "no such file"], "groups", "ring:4", "allgather", "--group", "0,1=no.json", "--group", "2,3")
    refuse(
        2,
        ["no.csv", "no such file"],
        "groups",
        "ring:4",
        "allgather",
        "--group",
        "0,1=alltoallv:no.csv",
        "--group",
        "2,3",
    )
    refuse(2, ["--group", "rank 8 does not exist"], "groups", "ring:4", "allgather", "--group", "0,1", "--group", "8,9")
    refuse(3, ["ranks 0,4 of ring-8", "from rank 0 to rank 4", "outside of a group"],
           "groups", "ring:8", "allgather", "--group", "0,4", "--group", "1-3")  # fmt: skip


def test_groups_take_roots_demand_files_and_counts(taccl, folder):
    (folder / "pair.json").write_text(
        '{"format": "taccl-demand", "version": 1, "ranks": 2, "chunks": [{"bytes": 64000, "holds": [0], "wants": [1]}]}'
    )
    (folder / "counts.csv").write_text("0,3000\n1000,0\n")
    found = taccl(
        "groups", "full:6", "pair.json", "--group", "0,1/2,3@20", "--group", "4,5=alltoallv:counts.csv",
        "--group", "0-5=broadcast:1MB:root=3@100", "--json", "-o", "out", "--time-limit", 1,
    ).json  # fmt: skip
    assert [group["collective"] for group in found["groups"]] == ["pair", "pair", "alltoallv", "broadcast"]
    assert [group["size_bytes"] for group in found["groups"]] == [64000, 64000, 4000, 1000000]
    assert [group["release_us"] for group in found["groups"]] == [20, 20, 0, 100]
    assert taccl("check", "out/group-3.json").code == 0
    assert taccl("check", "out").code == 0
    checked = {Path(name).name for name in told(taccl("check", "out", "--json"))}
    assert {"group-0.json", "group-0.plan.json", "group-0.algorithm.xml", "group-3.json", "groups.json"} <= checked
    assert taccl("check", "out/group-0.json", "out/group-0.plan.json", "--demand", "out/group-0.demand.json").code == 0


def test_options_of_collectives_are_refused_where_all_groups_have_demands(refuse, folder):
    (folder / "counts.csv").write_text("0,3000\n1000,0\n")
    for option, value in (("--size", "1MB"), ("--chunks", 2), ("--engine", "flow")):
        refuse(
            2, [option, "all groups have demands"],
            "groups", "full:4", "allgather", "--group", "0,1/2,3=alltoallv:counts.csv", option, value,
        )  # fmt: skip


@pytest.mark.slow
def test_relays_make_a_pair_of_gpus_faster_and_their_programs_are_written(taccl):
    """GPUs 0 and 1 of a DGX-1 have one NVLink; the others have more. A program that cannot be is told with its reason."""
    alone = taccl("synth", "dgx1", "allgather", "--ranks", "0,1", "--size", "16MiB", "--json").json
    found = taccl(
        "groups", "dgx1", "allgather", "--size", "16MiB", "--group", "0,1", "--relay", "--json", "-o", "out"
    ).json
    (group,) = found["groups"]
    assert group["ranks"] == [0, 1]
    assert set(group["relays"]) <= set(range(2, 8))
    assert found["makespan_us"] < 0.5 * alone["makespan_us"]
    assert found["bound_us"] <= found["makespan_us"]
    written = [f"out/group-0.{end}" for end in ("json", "demand.json", "plan.json", "algorithm.xml")]
    assert found["files"] == written
    assert [program["refused"] for program in group["programs"]] == [None, None]
    assert taccl("check", written[0], *written[2:], "--demand", written[1]).code == 0
    assert taccl("check", "out").code == 0
    shown = taccl("groups", "dgx1", "allgather", "--size", "16MiB", "--group", "0,1", "--relay")
    assert "relayed by 2-7" in shown.out


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
