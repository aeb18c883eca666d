"""``taccl replicate``: one root, replicated."""

import json

import pytest


def test_the_file_is_verified_and_the_figures_are_told(taccl):
    ended = taccl("replicate", "torus:4x4", "allgather", "--size", "16MB", "--json", "-o", "group.json")
    assert ended.code == 0
    result = json.loads(ended.out)
    # 15 chunks over 4 links: 4 steps of 0.5 + 20 us; 15 MB over 4 links at 20 us/MB take 75 us.
    assert result["makespan_us"] == pytest.approx(82.0)
    assert result["bound_us"] == pytest.approx(75.5)
    assert (result["base_messages"], result["messages"], result["num_ranks"]) == (15, 240, 16)
    ended = taccl("check", "group.json")
    assert (ended.code, ended.out) == (0, "group.json: good: allgather group schedule, 16 ranks, 82 us\n")


def test_check_objects_to_a_base_that_was_tampered_with(taccl, folder):
    assert taccl("replicate", "ring:4", "allgather", "-o", "group.json").code == 0
    broken = json.loads((folder / "group.json").read_text())
    broken["base"].pop()
    (folder / "group.json").write_text(json.dumps(broken))
    ended = taccl("check", "group.json")
    assert ended.code == 4
    assert "missing" in ended.out


def test_check_knows_what_a_group_schedule_is_for(taccl):
    assert taccl("replicate", "ring:4", "allgather", "-o", "group.json").code == 0
    ended = taccl("check", "group.json", "--collective", "allreduce")
    assert ended.code == 4
    assert "for allgather, and allreduce was asked for" in ended.out
    assert taccl("check", "group.json", "--root", "0").code == 4


def test_the_part_of_one_rank_is_told_on_demand(taccl):
    result = json.loads(taccl("replicate", "ring:4", "alltoall", "--rank", "3", "--json").out)
    assert result["part"]["rank"] == 3
    assert len(result["part"]["sends"]) == len(result["part"]["receives"]) == result["base_messages"]


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (3, ["mesh-4x4 has no commuting symmetries", "use taccl synth"], ("mesh:4x4", "allgather")),
        (2, ["broadcast has a root"], ("ring:4", "broadcast")),
        (2, ["--rank", "add --json"], ("ring:4", "allgather", "--rank", "1")),
        (2, ["--rank", "ranks are 0..3"], ("ring:4", "allgather", "--rank", "4", "--json")),
        (2, ["too many to choose the paths"], ("torus:80x80", "alltoall")),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(refuse, code, words, arguments):
    refuse(code, words, "replicate", *arguments)


def test_a_schedule_of_millions_of_messages_is_never_written_down(taccl):
    ended = taccl("replicate", "ring:4000", "allreduce", "--size", "4GB", "--json")
    result = json.loads(ended.out)
    assert result["messages"] == 2 * 4000 * 3999
    assert result["makespan_us"] == pytest.approx(2 * 2000 * 20.5)


def test_other_commands_say_what_to_do_with_a_group_schedule(taccl, refuse):
    assert taccl("replicate", "ring:4", "allgather", "-o", "group.json").code == 0
    for command in ("simulate", "show", "run"):
        refuse(2, ["group.json: is a group schedule", "taccl lower"], command, "group.json")
