"""``taccl show`` and ``taccl trace``: what they say is what the file says."""

import json
from itertools import permutations
from pathlib import Path

import pytest

from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.report.view import plan_record, timeline_lines
from tests.lowering.cases import direct_allreduce
from tests.verify.msccl.files import ring_allreduce

# Of the small AllGather of the fixtures: ring:4 both ways, 1 MB, 0.5 us and 20 us/MB, so 5.5 us a message of 250 KB.
END_US = 11.0


@pytest.mark.usefixtures("files")
def test_a_schedule_has_steps_a_timeline_and_traffic(taccl):
    ended = taccl("show", "schedule.json")
    assert ended.code == 0, ended.err
    assert "allgather on ring-4, 4 ranks, 976.6KiB: 11 us (links and ports alone)" in ended.out
    assert all(f"rank {rank} |" in ended.out for rank in range(4))
    assert "critical path, 2 messages: " in ended.out
    assert "link 0->1" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 120


@pytest.mark.usefixtures("files")
def test_the_record_counts_every_message_once(taccl):
    record = taccl("show", "schedule.json", "--json").json
    assert record["runtime_profile"] == "neutral"
    assert record["makespan_us"] == pytest.approx(END_US)
    assert sum(step["messages"] for step in record["steps"]) == len(record["transfers"])
    assert [step["step"] for step in record["steps"]] == [1, 2]
    assert record["steps"][0]["start_us"] == 0
    assert record["steps"][-1]["end_us"] == pytest.approx(END_US)
    # Every rank needs the chunks of three others, 250 KB each.
    assert sum(step["bytes"] for step in record["steps"]) == 12 * 250_000
    assert sum(row["bytes"] for row in record["traffic"] if not row["is_port"]) == 12 * 250_000
    assert all(0 < row["busy"] <= 1 for row in record["traffic"])
    assert record["critical_path"][-1]["end_us"] == pytest.approx(END_US)


@pytest.mark.usefixtures("files")
def test_another_size_takes_another_time(taccl):
    """2 * (0.5 + 20 * 0.5)."""
    assert taccl("show", "schedule.json", "--size", "2MB", "--json").json["makespan_us"] == pytest.approx(21)


@pytest.mark.usefixtures("files")
def test_a_program_without_a_machine_has_threadblocks_and_pairs(taccl):
    ended = taccl("show", "algorithm.xml")
    assert ended.code == 0, ended.err
    assert "threadblocks" in ended.out
    assert "0 -> 1" in ended.out
    assert "rank 0 |" not in ended.out
    record = taccl("show", "algorithm.xml", "--json").json
    assert sum(pair["chunks"] for pair in record["pairs"]) == 12
    assert sum(gpu["sends"] for gpu in record["gpus"]) == sum(gpu["receives"] for gpu in record["gpus"])
    assert "makespan_us" not in record


@pytest.mark.usefixtures("files")
def test_a_program_on_a_machine_has_a_timeline(taccl):
    ended = taccl("show", "algorithm.xml", "--topology", "ring:4", "--size", "1MB", "--ranks", "1,3")
    assert ended.code == 0, ended.err
    assert ": 11 us" in ended.out
    assert "rank 1 |#" in ended.out
    assert "rank 0 |" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "algorithm.xml", "--size", "1MB"), ["--topology"]),
        (("show", "schedule.json", "--ranks", "0-4"), ["rank 4", "0..3"]),
        (("show", "schedule.json", "--topology", "ring:4"), ["carries its machine"]),
        (("trace", "algorithm.xml", "-o", "t.json"), ["--topology"]),
        (("trace", "schedule.json", "-o", "-"), ["stdout"]),
        (("trace", "schedule.json", "-o", "."), ["directory"]),
    ],
)
@pytest.mark.usefixtures("files")
def test_what_cannot_be_shown_is_refused(refuse, arguments, words):
    refuse(2, words, *arguments)


def test_a_timeline_fits_and_says_which_step_goes_when():
    """Rank 0 sends a first message in the first half, nothing in the third quarter, and a second one in the last."""
    moves = [(0, 0.0, 5.0, 1), (0, 7.5, 10.0, 2)]
    record = {
        "makespan_us": 10.0,
        "size_bytes": 1,
        "transfers": [
            {"src": src, "start_us": start, "end_us": end, "step": step, "chunks": [0]}
            for src, start, end, step in moves
        ],
    }
    first, last = timeline_lines(record, [0], 29)
    assert first == f"rank 0 |{'1' * 10}{' ' * 5}{'2' * 5}|"
    assert last == f"        0{'10 us':>19}"
    assert len(timeline_lines(record, [0], 1)[0]) == 29


def test_a_trace_has_a_slice_for_every_message(taccl, files):
    ended = taccl("trace", "schedule.json", "-o", "trace.json", "--json")
    assert ended.code == 0, ended.err
    trace = json.loads((files / "trace.json").read_text())
    events = trace["traceEvents"]
    assert ended.json["events"] == len(events)
    assert ended.json["runtime_profile"] == "neutral"
    assert "times of links and ports alone" in taccl("trace", "schedule.json", "-o", "trace.json").err
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(json.loads((files / "schedule.json").read_text())["messages"])
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(END_US)
    assert {event["pid"] for event in slices} == set(range(4))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in slices} == named
    # An arrow begins and ends inside slices of its own threads.
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 4  # at the second step every rank hands on one chunk that it got
    for event in (*starts.values(), *ends.values()):
        assert any(
            s["pid"] == event["pid"] and s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]
            for s in slices
        )


def test_a_program_is_traced_by_threadblock_and_ports_have_a_process_of_their_own(taccl, files):
    assert taccl("trace", "algorithm.xml", "--topology", "ring:4", "-o", "trace.json").code == 0
    events = json.loads((files / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= {"threadblock 0"}
    assert taccl("trace", "algorithm.xml", "--topology", "switch:4", "-o", "trace.json").code == 0
    events = json.loads((files / "trace.json").read_text())["traceEvents"]
    assert "ports" in {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"message", "port"}


@pytest.mark.usefixtures("folder")
def test_a_program_under_a_runtime_profile_is_traced_step_by_step(taccl):
    """Every rank sends its shard to seven others; the last step ends when the predicted call does, and arrows join slices of two ranks."""
    assert taccl("synth", "mi300x", "allgather", "--size", "1MiB", "--engine", "templates", "-o", "out").code == 0
    machine = ("out/algorithm.xml", "--topology", "mi300x", "--size", "1MiB")
    ended = taccl("trace", *machine, "-o", "trace.json", "--json")
    assert ended.json["runtime_profile"] == "rccl-mi300x"
    events = json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    predicted_us = taccl("simulate", *machine, "--json").json["results"][0]["runtime_us"]
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(predicted_us)
    steps = [event for event in slices if event["cat"] == "step"]
    sends = [event for event in steps if "send" in event["name"]]
    assert sum(event["args"]["bytes"] for event in sends) == 8 * 7 * (1 << 17)
    arrows = [event for event in events if event.get("name") == "brings"]
    assert len(arrows) == 2 * len(sends)
    for event in arrows:
        assert any(
            s["pid"] == event["pid"] and s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]
            for s in steps
        )
    assert "runtime profile rccl-mi300x" in taccl("trace", *machine, "-o", "trace.json").err
    alone = taccl("trace", *machine, "-o", "trace.json", "--runtime-profile", "neutral")
    assert "times of links and ports alone" in alone.err
    large = taccl("trace", *machine[:-1], "4GiB", "-o", "trace.json")
    assert ", the first 8 of " in large.err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("schedule.json",), "which has no threadblocks"),
        (("plan.json", "--topology", "ring:4"), "traces of plans have times of links and ports alone"),
    ],
)
def test_schedules_and_plans_have_no_trace_of_the_runtime(taccl, words, problem):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    ended = taccl("trace", *words, "-o", "t.json", "--runtime-profile", "executor-a100")
    assert ended.code == 2
    assert problem in ended.err


@pytest.mark.usefixtures("folder")
def test_what_switches_do_is_drawn_counted_at_ports_and_traced(taccl):
    """AllReduce of 8 MB: 9 MB through each port, a + where the switch adds up; Broadcast: a * at the root alone."""
    for kind in ("allreduce", "broadcast"):
        words = ("synth", "ndv5", kind, "--size", "8MB", "--engine", "templates", "-o", f"{kind}.json")
        assert taccl(*words).code == 0
        lower = ("lower", f"{kind}.json", "--to", "mscclpp-json", "--switch", "--runtime-profile", "neutral")
        assert taccl(*lower, "-o", f"{kind}.plan").code == 0
    machine = ("--topology", "ndv5", "--size", "8MB")
    record = taccl("show", "allreduce.plan", *machine, "--json").json
    assert {(row["bytes"], row["messages"]) for row in record["traffic"]} == {(9_000_000, 8)}
    assert len(record["traffic"]) == 16
    assert [(work["rank"], work["adds_up"]) for work in record["switched"]] == [(rank, True) for rank in range(8)]
    drawn = taccl("show", "broadcast.plan", *machine).out.splitlines()
    assert "***" in next(line for line in drawn if line.startswith("rank 0 |"))
    assert "*" not in next(line for line in drawn if line.startswith("rank 1 |"))
    assert taccl("trace", "allreduce.plan", *machine, "-o", "trace.json").code == 0
    events = json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event.get("cat") == "switch" for event in events) == 8
    assert sum(event.get("cat") == "port" for event in events) == 8 * 16


@pytest.mark.usefixtures("files")
def test_a_plan_for_mscclpp_has_puts_and_with_a_machine_a_timeline(taccl):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    record = taccl("show", "plan.json", "--json").json
    assert (record["collective"], record["num_ranks"]) == ("allgather", 4)
    assert sum(pair["chunks"] for pair in record["pairs"]) == 12
    assert sum(gpu["puts"] for gpu in record["gpus"]) == sum(pair["sends"] for pair in record["pairs"])
    assert "traffic" in taccl("show", "plan.json").out
    ended = taccl("show", "plan.json", "--topology", "ring:4", "--size", "1MB")
    assert ended.code == 0, ended.err
    assert "allgather on ring-4, 4 ranks, 976.6KiB: 11 us (links and ports alone)" in ended.out
    assert taccl("trace", "plan.json", "--topology", "ring:4", "-o", "trace.json").code == 0


def test_what_ranks_of_a_plan_do_alone_is_no_put():
    """Each of three ranks sends its part of a share, adds up its own share, which concerns nobody else, and sends the sum."""
    text = lower_plan(direct_allreduce(3), PlanOptions(CallPlacement.IN_PLACE)).text
    record = plan_record(parse_plan(text, "plan.json"), "allreduce", None, None)
    assert all(gpu["sums"] for gpu in record["gpus"])
    assert [(pair["src"], pair["dst"], pair["chunks"]) for pair in record["pairs"]] == [
        (src, dst, 2) for src, dst in permutations(range(3), 2)
    ]


def test_a_file_of_any_tool_is_told_by_its_shape(taccl, folder):
    (folder / "ring.xml").write_text(ring_allreduce(4).text(), encoding="utf-8")
    ended = taccl("show", "ring.xml")
    assert ended.code == 0, ended.err
    assert "sums go around 1 ring (0 1 2 3)" in ended.out
    assert "copies go around 1 ring (0 1 2 3)" in ended.out
    record = taccl("show", "ring.xml", "--json").json
    assert [(phase["what"], phase["shape"], phase["rings"]) for phase in record["structure"]] == [
        ("sums", "ring", [[0, 1, 2, 3]]), ("copies", "ring", [[0, 1, 2, 3]]),
    ]  # fmt: skip
    assert ", 1 ring; executor is assumed" in taccl("check", "ring.xml").out
