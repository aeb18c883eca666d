"""The verifier of schedules for demands: hand-worked schedules, and what it says when one thing is wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.demand import DataDemand
from taccl_py.schedule.demand_files import read_demand_schedule, write_demand_schedule
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, demands, full

MB = 10**6
# A link takes 1 us and 10 us for a megabyte.
MACHINE = full(3, alpha=1.0, beta=10.0)


def link(src, dst):
    return MACHINE.links_between[src, dst][0]


def message(src, dst, chunks, start, size=MB, reduce=False):
    return Message(link(src, dst), tuple(chunks), start, start + 1 + 10 * size / MB, reduce)


def rules(schedule, asked=None):
    return [violation.rule for violation in verify_demand_schedule(schedule, asked)]


COPY = demand_of(3, [{"bytes": MB, "holds": [0, 1], "wants": [2]}, {"bytes": 2 * MB, "holds": [0], "wants": [1, 2]}])
COPIES = DemandSchedule(
    MACHINE, COPY, (message(1, 2, [0], 0.0), message(0, 1, [1], 0.0, 2 * MB), message(1, 2, [1], 21.0, 2 * MB))
)
SUM = demand_of(3, [{"bytes": MB, "adds": [0, 1, 2], "wants": [0, 2]}])
SUMS = DemandSchedule(
    MACHINE,
    SUM,
    (message(0, 1, [0], 0.0, reduce=True), message(1, 2, [0], 11.0, reduce=True), message(2, 0, [0], 22.0)),
)


def test_what_does_the_job_is_good():
    assert rules(COPIES, COPY) == []
    assert rules(SUMS, SUM) == []


def test_one_message_may_carry_chunks_of_any_size_for_one_alpha():
    demand = demand_of(3, [{"bytes": MB, "holds": [0], "wants": [1]}, {"bytes": 2 * MB, "holds": [0], "wants": [1]}])
    assert rules(DemandSchedule(MACHINE, demand, (message(0, 1, [0, 1], 0.0, 3 * MB),)), demand) == []


def edit(schedule, index, **changes):
    messages = list(schedule.messages)
    messages[index] = replace(messages[index], **changes)
    return replace(schedule, messages=tuple(messages))


@pytest.mark.parametrize(
    ("schedule", "rule"),
    [
        (edit(COPIES, 0, link=99), "no-such-link"),
        (edit(COPIES, 0, chunks=()), "no-chunks"),
        (edit(COPIES, 0, chunks=(7,)), "no-such-chunk"),
        (edit(COPIES, 0, chunks=(0, 0)), "chunk-twice"),
        (edit(COPIES, 0, start_us=-1.0), "bad-time"),
        (edit(COPIES, 0, end_us=float("nan")), "bad-time"),
        (edit(COPIES, 2, end_us=41.0), "wrong-duration"),
        (edit(COPIES, 0, end_us=0.0), "wrong-duration"),
        (edit(COPIES, 0, end_us=-1.0), "wrong-duration"),
        (edit(COPIES, 2, start_us=10.0, end_us=31.0), "overlap"),
        (edit(COPIES, 2, start_us=12.0, end_us=33.0), "not-held"),
        (edit(COPIES, 1, reduce=True), "nothing-to-reduce"),
        (replace(COPIES, messages=(*COPIES.messages, message(0, 1, [0], 50.0))), "redundant"),
        (replace(COPIES, messages=COPIES.messages[:2]), "missing"),
        (replace(SUMS, messages=(*SUMS.messages, message(0, 1, [0], 60.0, reduce=True))), "double-count"),
        (edit(SUMS, 1, start_us=5.0, end_us=16.0), "incomplete-sum"),
        (replace(SUMS, messages=SUMS.messages[:2]), "incomplete-sum"),
    ],
)
def test_what_is_wrong_is_named(schedule, rule):
    assert rule in rules(schedule)


def test_a_schedule_of_another_demand_is_no_answer():
    other = demand_of(3, [{"bytes": MB, "holds": [0], "wants": [2]}, {"bytes": 2 * MB, "holds": [0], "wants": [1, 2]}])
    assert rules(COPIES, other) == ["demand"]
    assert rules(COPIES, SUM) == ["demand"]
    assert rules(COPIES, demand_of(4, [{"bytes": MB, "holds": [0], "wants": [3]}])) == ["demand"]


def test_elements_of_another_type_are_another_demand():
    """Sums of bytes are no sums of floats."""
    floats = replace(SUM, dtype="float32")
    assert rules(SUMS, floats) == ["demand"]


def test_chunks_may_be_cut_but_not_lost():
    asked = demand_of(3, [{"bytes": 2 * MB, "holds": [0], "wants": [1]}])
    cut = asked.cut(((0, 0, MB), (0, MB, MB)))
    good = DemandSchedule(MACHINE, cut, (message(0, 1, [0], 0.0), message(0, 1, [1], 11.0)))
    assert rules(good, asked) == []
    lost = DataDemand(cut.name, 3, cut.chunks[:1], cut.input_bytes, cut.output_bytes)
    assert rules(DemandSchedule(MACHINE, lost, (message(0, 1, [0], 0.0),)), asked) == ["demand"]


def test_machine_and_demand_must_have_as_many_ranks():
    assert rules(replace(COPIES, topology=full(4))) == ["rank-count"]


@settings(max_examples=15, deadline=None)
@given(demand=demands(), data=st.data())
def test_an_answer_without_one_of_its_messages_is_none(demand, data):
    topology = full(demand.num_ranks)
    schedule = solve_demand(topology, demand, Limits(seconds=0.05, by_work=True)).schedule
    assert rules(schedule, demand) == []
    assert read_demand_schedule(write_demand_schedule(schedule), "x") == schedule
    if schedule.messages:
        gone = data.draw(st.integers(0, len(schedule.messages) - 1))
        assert rules(replace(schedule, messages=schedule.messages[:gone] + schedule.messages[gone + 1 :]))


def test_an_error_of_the_whole_names_no_message_and_one_of_a_message_does():
    (whole,) = verify_demand_schedule(replace(COPIES, topology=full(4)))
    assert whole.where == ""
    (part,) = verify_demand_schedule(edit(COPIES, 1, end_us=1.0))[:1]
    assert part.where == "message 1 (1->2)"
