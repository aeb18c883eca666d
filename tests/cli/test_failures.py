"""``taccl synth --single-failures``, and what ``taccl replan`` makes of its folder."""

import json
from dataclasses import replace

import pytest

from taccl_py.api import failures as api_failures
from taccl_py.cli import failures as cli_failures
from taccl_py.portfolio.failure_index import read_failure_index
from taccl_py.schedule.files import read_schedule
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import degraded
from taccl_py.topology.failures import parse_sorts, single_failures

WORDS = ("synth", "full:4", "allgather", "--size", "64KiB", "--engine", "templates", "--single-failures")
# A line of three ranks: no link can be lost.
LINE = ("synth", "mesh:3", "allgather", "--engine", "templates", "--single-failures", "gpu-link,gpu-link:0.5")


@pytest.fixture
def made(taccl, folder):
    """Folder for the six links of four ranks that may be lost or slow."""
    assert taccl(*WORDS, "gpu-link,gpu-link:0.5", "-o", "all").code == 0
    return folder / "all"


def test_every_failure_has_a_folder_whose_files_are_good_on_its_own_machine(taccl, made):
    index = json.loads((made / "failures.json").read_text())
    assert [each["number"] for each in index["classes"]] == [6, 6]
    assert len(index["failures"]) == 12
    assert index["missing"] == []
    whole = load_topology("full:4")
    wanted = single_failures(whole, parse_sorts("gpu-link,gpu-link:0.5"))
    for row, failure in zip(
        sorted(index["failures"], key=lambda row: (row["class"], row["failure"])), wanted, strict=True
    ):
        assert row["failure"] == failure.what
        schedule = read_schedule((made / row["folder"] / "schedule.json").read_text(), row["folder"])
        machine = degraded(whole, failure.degradation)
        assert (schedule.topology.links, schedule.topology.ports) == (machine.links, machine.ports)
        assert schedule.makespan_us == row["makespan_us"] == index["classes"][row["class"]]["makespan_us"]
    whole = taccl("check", "all")
    assert (whole.code, whole.err) == (0, "")
    ended = taccl("check", *(f"all/{row['folder']}" for row in index["failures"]))
    assert whole.out == ended.out
    assert ended.code == 0, ended.err
    assert ended.out.count("good:") == 24


def test_there_is_one_search_for_each_class_and_one_for_the_whole_machine(taccl, folder, monkeypatch):  # noqa: ARG001
    searched = []
    search_for = api_failures.search_for

    def counted(request, *rest):
        searched.append(request.topology.name)
        return search_for(request, *rest)

    monkeypatch.setattr(api_failures, "search_for", counted)
    ended = taccl(*WORDS, "gpu-link", "--json")
    assert searched == ["full-4", "full-4-degraded"]
    (row,) = ended.json["classes"]
    assert (row["failure"], row["number"]) == ("link 0-1 lost", 6)
    assert row["over_healthy"] == pytest.approx(row["makespan_us"] / ended.json["healthy_us"] - 1)
    assert row["gap"] == pytest.approx(row["makespan_us"] / row["bound_us"] - 1)
    assert row["bound_us"] <= row["makespan_us"]


def one_by_one(schedule):
    """The same messages, each after the end of the one before."""
    now_us, messages = 0.0, []
    for message in sorted(schedule.messages, key=lambda each: (each.start_us, each.link)):
        end_us = now_us + message.end_us - message.start_us
        messages.append(replace(message, start_us=now_us, end_us=end_us))
        now_us = end_us
    return replace(schedule, messages=tuple(messages))


@pytest.mark.parametrize("more", [(), ("--only-schedule",)])
def test_what_serves_the_whole_machine_serves_a_failure_for_which_nothing_faster_is_found(
    more, taccl, folder, monkeypatch
):
    search_for = api_failures.search_for

    def slow_if_damaged(request, *rest):
        answer = search_for(request, *rest)
        if request.topology.name == "full-4":
            return answer
        return replace(answer, schedule=one_by_one(answer.schedule), runners_up=())

    monkeypatch.setattr(api_failures, "search_for", slow_if_damaged)
    ended = taccl(*WORDS, "gpu-link:0.99", *more, "-o", "all", "--json")
    assert ended.code == 0, ended.err
    (row,) = ended.json["classes"]
    assert row["number"] == 6
    # Its one slow link is hardly slower.
    assert row["over_healthy"] < 0.02
    assert taccl("check", "all").code == 0
    schedules = [
        read_schedule((folder / "all" / each["folder"] / "schedule.json").read_text(), "")
        for each in ended.json["failures"]
    ]
    assert {round(each.makespan_us, 9) for each in schedules} == {round(row["makespan_us"], 9)}


def test_the_whole_machine_takes_as_long_where_it_is_searched_beside(taccl, folder, made, monkeypatch):
    monkeypatch.setattr(api_failures, "_LEAST_RANKS_BESIDE", 2)
    assert taccl(*WORDS, "gpu-link,gpu-link:0.5", "-o", "beside").code == 0
    beside, before = (json.loads((place / "failures.json").read_text()) for place in (folder / "beside", made))
    assert beside["healthy_us"] == before["healthy_us"] > 0
    assert beside["classes"] == before["classes"]


def test_the_same_command_writes_the_same_bytes(taccl, folder, made):
    before = {path.relative_to(made): path.read_bytes() for path in sorted(made.rglob("*")) if path.is_file()}
    assert taccl(*WORDS, "gpu-link,gpu-link:0.5", "-o", "again").code == 0
    again = folder / "again"
    assert {path.relative_to(again): path.read_bytes() for path in sorted(again.rglob("*")) if path.is_file()} == before


def test_a_table_says_what_each_class_costs(taccl, folder):  # noqa: ARG001
    ended = taccl(*WORDS, "gpu-link")
    assert ended.code == 0, ended.err
    for words in ("link 0-1 lost and 5 like it", "over whole", "gap", "whole machine"):
        assert words in ended.out


def test_folders_of_an_earlier_run_go_and_what_others_put_there_stays(taccl, made):
    (made / "link-0-1-at-0.5" / "mine.txt").write_text("mine", encoding="utf-8")
    assert taccl(*WORDS, "gpu-link", "--only-schedule", "-o", "all").code == 0
    assert {path.name for path in made.iterdir() if path.is_dir()} == {
        "link-0-1-at-0.5", "link-0-1-lost", "link-0-2-lost", "link-0-3-lost", "link-1-2-lost", "link-1-3-lost", "link-2-3-lost",
    }  # fmt: skip
    assert [path.name for path in (made / "link-0-1-at-0.5").iterdir()] == ["mine.txt"]
    # Nor do programs of the earlier run stay beside schedules that are not theirs.
    assert [path.name for path in (made / "link-0-1-lost").iterdir()] == ["schedule.json"]
    assert len(read_failure_index(made).failures) == 6


def test_a_failure_that_cuts_a_rank_off_is_missing_with_the_reason(taccl, folder):
    ended = taccl(*LINE, "-o", "all")
    assert ended.code == 0, ended.err
    assert "nothing serves link 0-1 lost: rank 1 cannot be reached from rank 0" in ended.err
    index = json.loads((folder / "all" / "failures.json").read_text())
    assert [each["failure"] for each in index["failures"]] == ["link 0-1 at 0.5", "link 1-2 at 0.5"]
    assert [each["failure"] for each in index["missing"]] == ["link 0-1 lost", "link 1-2 lost"]


def test_where_nothing_can_be_served_the_command_says_so(refuse):
    words = ("synth", "mesh:2", "allgather", "--engine", "templates", "--single-failures", "gpu-link")
    refuse(3, ["no failure is served", "cannot be reached"], *words)


def test_an_interrupt_of_a_search_still_serves_its_class_and_tells_what_is_missing(taccl, folder, monkeypatch):
    search_for = api_failures.search_for

    def interrupted(request, *rest):
        found = search_for(request, *rest)
        if "degraded" in request.topology.name:
            request.options.limits.stop.set()
        return found

    monkeypatch.setattr(api_failures, "search_for", interrupted)
    ended = taccl(*WORDS, "gpu-link,gpu-link:0.5", "--only-schedule", "-o", "all")
    assert ended.code == 0, ended.err
    index = json.loads((folder / "all" / "failures.json").read_text())
    assert [each["class"] for each in index["failures"]] == [0] * 6
    assert {each["reason"] for each in index["missing"]} == {"interrupted before its search"}
    assert len(index["missing"]) == 6


def test_an_interrupt_between_images_ends_them(taccl, folder, monkeypatch):
    image_of = api_failures.verified_image

    def interrupting(schedule, *rest):
        stops[0].set()
        return image_of(schedule, *rest)

    stops = []
    search_for = api_failures.search_for

    def kept(request, *rest):
        stops[:] = [request.options.limits.stop]
        return search_for(request, *rest)

    monkeypatch.setattr(api_failures, "search_for", kept)
    monkeypatch.setattr(api_failures, "verified_image", interrupting)
    ended = taccl(*WORDS, "gpu-link", "--only-schedule", "-o", "all")
    assert ended.code == 0, ended.err
    index = json.loads((folder / "all" / "failures.json").read_text())
    assert len(index["failures"]) == 2
    assert {each["reason"] for each in index["missing"]} == {"interrupted before it"}


def test_a_time_limit_is_for_all_searches(taccl, folder, monkeypatch):  # noqa: ARG001
    seconds = []
    search_for = api_failures.search_for

    def timed(request, *rest):
        seconds.append(request.options.limits.seconds)
        return search_for(request, *rest)

    monkeypatch.setattr(api_failures, "search_for", timed)
    assert taccl(*WORDS, "gpu-link,gpu-link:0.5", "--time-limit", "300", "--only-schedule").code == 0
    # A third, then half of what is left, then all of it, as nobody has used any to speak of.
    assert seconds == [pytest.approx(300 / share, rel=0.1) for share in (3, 2, 1)]


def test_programs_take_their_part_of_a_time_limit(taccl, folder, monkeypatch):  # noqa: ARG001
    """A third of 300 s is for the whole machine, half of the rest for the first class, the rest of that for the second; six tenths are for a search."""
    seconds, was_over = [], []
    search_for, deliver_answer = api_failures.search_for, cli_failures.deliver_answer

    def timed(request, *rest):
        seconds.append(request.options.limits.seconds)
        return search_for(request, *rest)

    def delivered(answer, options, instances, over, *rest):
        was_over.append(over())
        return deliver_answer(answer, options, instances, over, *rest)

    monkeypatch.setattr(api_failures, "search_for", timed)
    monkeypatch.setattr(cli_failures, "deliver_answer", delivered)
    ended = taccl(*WORDS, "gpu-link,gpu-link:0.5", "--time-limit", "300", "--json")
    assert ended.code == 0
    assert seconds == [pytest.approx(300 * part, rel=0.1) for part in (0.6 / 3, 0.6 / 2, 0.6)]
    assert was_over == [False, False, False]


def test_an_effort_that_a_clock_may_cut_short_shares_out_the_clock(taccl, folder, monkeypatch):  # noqa: ARG001
    """The whole machine's search took all of the time, and no failure was served."""
    clock, work = [], []
    search_for = api_failures.search_for

    def timed(request, *rest):
        clock.append(request.options.limits.clock_seconds)
        work.append(request.options.limits.seconds)
        return search_for(request, *rest)

    monkeypatch.setattr(api_failures, "search_for", timed)
    assert taccl(*WORDS, "gpu-link,gpu-link:0.5", "--time-limit", "300", "--effort", "quick").code == 0
    assert clock == [pytest.approx(300 * part, rel=0.1) for part in (0.6 / 3, 0.6 / 2, 0.6)]
    assert len(set(work)) == 1


def test_what_is_missing_is_told_beside_json(taccl, folder):  # noqa: ARG001
    ended = taccl(*LINE, "--only-schedule", "--json")
    assert ended.code == 0
    assert len(json.loads(ended.out)["missing"]) == 2
    assert "nothing serves link 0-1 lost: rank 1 cannot be reached from rank 0" in ended.err


def test_replan_takes_what_was_prepared(taccl, made):  # noqa: ARG001
    ended = taccl("replan", "all", "--without-link", "1-3", "--within", "0.3s", "--only-schedule", "--json")
    assert ended.code == 0, ended.err
    assert "all/link-1-3-lost was prepared for link 1-3 lost" in ended.err
    # The machine of the old schedule is the one with the failure.
    assert ended.json["old_us"] >= ended.json["makespan_us"]
    assert ended.json["remedies"][0]["makespan_us"] == ended.json["old_us"]
    # Said in another way, and for a failure that was not prepared.
    ended = taccl(
        "replan", "all", "--without-link", "1->3", "--without-link", "3->1", "--within", "0.3s", "--only-schedule"
    )
    assert "link-1-3-lost was prepared" in ended.err


def test_replan_refuses_what_was_not_prepared(refuse, made):
    refuse(2, ["nothing in it was prepared", "12 failures"], "replan", "all", "--slow-link", "1-3:0.25")
    refuse(2, ["--without-link", "no link 1-9"], "replan", "all", "--without-link", "1-9")
    index = json.loads((made / "failures.json").read_text())
    harmed = {**index, "failures": [{**index["failures"][0], "folder": "../x"}]}
    (made / "failures.json").write_text(json.dumps(harmed), encoding="utf-8")
    refuse(2, ["failures.json", "folder"], "replan", "all", "--without-link", "0-1")
    harmed = {**index, "failures": [{**index["failures"][0], "without_link": ["x"]}]}
    (made / "failures.json").write_text(json.dumps(harmed), encoding="utf-8")
    refuse(2, ["failures.json", "not a link"], "replan", "all", "--without-link", "0-1")


def test_contradictions_are_refused(refuse):
    refuse(2, ["--single-failures", "no kind of failure", "did you mean nic"], *WORDS, "nics")
    refuse(2, ["--single-failures", "no nic that could fail"], *WORDS, "nic")
    refuse(
        2,
        ["--sizes", "contradicts --single-failures"],
        *WORDS[:3],
        "--sizes",
        "1KiB:2KiB",
        "--single-failures",
        "gpu-link",
    )
    refuse(2, ["name a directory"], *WORDS, "gpu-link", "-o", "x.json")
    refuse(2, ["--progress", "contradicts"], *WORDS, "gpu-link", "--progress", "p.json")


def test_a_second_failure_comes_on_top_of_what_has_failed(taccl, folder):
    ended = taccl(*WORDS, "gpu-link", "--without-link", "0-1", "--only-schedule", "-o", "all")
    assert ended.code == 0, ended.err
    # The link that is lost already parts the five others: four touch its ends, one does not.
    index = json.loads((folder / "all" / "failures.json").read_text())
    assert sorted(each["number"] for each in index["classes"]) == [1, 4]
    assert read_failure_index(folder / "all").topology.links == degraded(
        load_topology("full:4"), single_failures(load_topology("full:4"), parse_sorts("gpu-link"))[0].degradation
    ).links  # fmt: skip
