"""``taccl pareto``: what it prints and writes."""

import pytest

from taccl_py.schedule.files import read_schedule
from taccl_py.verify.schedule import verify_schedule


@pytest.fixture(scope="module")
def front():
    return ("pareto", "dgx1", "allgather")


def test_the_front_of_the_dgx1_is_printed(taccl, front):
    record = taccl(*front, "--json").json
    assert [(p["chunks"], p["steps"], p["rounds"]) for p in record["points"]] == [(2, 2, 3), (6, 3, 7)]
    assert [p["proved"] for p in record["points"]] == [True, True]
    assert record["points"][0]["latency_optimal"]
    assert record["points"][1]["bandwidth_optimal"]
    assert record["least_rounds_per_chunk"] == "7/6"
    assert record["halves"] == []


def test_small_sizes_go_to_few_steps_and_large_ones_to_little_traffic(taccl, front):
    rows = taccl(*front, "--sizes", "1KiB:1GiB", "--json").json["sizes"]
    assert rows[0]["winner"] == 0
    assert rows[-1]["winner"] == 1


def test_the_table_says_what_is_proved(taccl, front):
    ended = taccl(*front)
    assert ended.code == 0
    assert "(2, 2, 3)" in ended.out
    assert "7/6" in ended.out


def test_limits_of_allreduce_count_those_that_are_no_reducescatter_followed_by_allgather(taccl):
    asked = ("pareto", "full:4", "allreduce", "--max-chunks", "1")
    record = taccl(*asked, "--json").json
    assert record["halves"] == ["reducescatter", "allgather"]
    assert (record["fewest_steps"], record["least_rounds_per_chunk"]) == (1, "2")
    (point,) = record["points"]
    assert (point["steps"], point["latency_optimal"], point["bandwidth_optimal"]) == (2, False, True)
    out = " ".join(taccl(*asked).out.split())
    assert "at least 1 step, at least 2 rounds per chunk front of reducescatter followed by allgather only" in out


def test_schedules_are_written_and_good(taccl, front, folder):
    assert taccl(*front, "-o", "points").code == 0
    names = sorted(path.name for path in (folder / "points").iterdir())
    assert names == ["c2-s2-r3.json", "c6-s3-r7.json", "front.json"]
    for name in names[:2]:
        text = (folder / "points" / name).read_text()
        assert verify_schedule(read_schedule(text, name)) == ()
    checked = taccl("check", "points")
    assert checked.code == 0
    assert [line.split(": ")[:2] for line in checked.out.splitlines()] == [[f"points/{name}", "good"] for name in names]


def test_a_file_as_output_is_refused(refuse, front):
    refuse(2, ["directory"], *front, "-o", "points.json")


def test_a_machine_whose_speeds_are_no_whole_multiples_is_refused(refuse):
    refuse(2, ["whole numbers"], "pareto", "ndv2", "allgather", "--nodes", "2", "--max-chunks", "1")
