"""Replays of MSCCL++ plans: known answers, and the time of the schedule that a plan was made of."""

import json

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.simulate.schedule_replay import replay_schedule
from tests.lowering.mscclpp.test_lower import SCHEDULES
from tests.simulate.cases import MB, both_ways, machine
from tests.verify.mscclpp.plans import (
    NOP,
    far,
    on,
    put,
    two_allgather,
    two_allgather_by_proxy,
)

PAIR = both_ways((0, 1))


def replay(value, topology=PAIR, chunk_bytes=MB):
    return replay_plan(parse_plan(json.dumps(value), "plan.json"), Kind.ALLGATHER, topology, chunk_bytes)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("placement", [CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE])
def test_a_plan_takes_as_long_as_the_schedule_that_it_was_made_of(name, placement):
    schedule = SCHEDULES[name]()
    plan = lower_plan(schedule, PlanOptions(placement)).plan
    for chunk_bytes in (schedule.chunk_bytes, 10 * schedule.chunk_bytes):
        found = replay_plan(plan, schedule.collective.kind, schedule.topology, chunk_bytes)
        assert found.makespan_us == pytest.approx(replay_schedule(schedule, chunk_bytes).makespan_us)
        assert len(found.transfers) == len(schedule.messages)


@pytest.mark.parametrize("name", SCHEDULES)
def test_reading_what_was_written_gives_the_same_plan(name):
    lowered = lower_plan(SCHEDULES[name](), PlanOptions())
    assert parse_plan(lowered.text, "plan.json") == lowered.plan


@pytest.mark.parametrize("make", [two_allgather, two_allgather_by_proxy])
def test_two_ranks_exchange_at_the_same_time(make):
    timeline = replay(make())
    link = PAIR.links[0]
    cost_us = link.alpha_us + link.beta_us_per_mb
    assert timeline.makespan_us == pytest.approx(cost_us)
    assert [(one.start_us, one.end_us) for one in timeline.transfers] == [(0.0, pytest.approx(cost_us))] * 2
    assert timeline.size_bytes == 2 * MB


def test_puts_of_a_threadblock_follow_each_other():
    value = two_allgather()
    ops = value["gpus"][0]["threadblocks"][0]["ops"]
    again = next(index for index, one in enumerate(ops) if one["name"] == "put")
    ops.insert(again, ops[again])
    link = PAIR.links[0]
    assert replay(value).makespan_us == pytest.approx(2 * (link.alpha_us + link.beta_us_per_mb))


@pytest.mark.parametrize("holds", [True, False])
def test_a_flush_waits_until_what_was_put_before_has_arrived(holds):
    """Rank 0 puts twice, the second time behind the flush, or before it: the link takes one after the other anyway."""
    value = two_allgather_by_proxy()
    ops = value["gpus"][0]["threadblocks"][0]["ops"]
    first = ops.index(next(one for one in ops if one["name"] == "pws"))
    ops.insert(first + 2 if holds else first + 1, ops[first])
    timeline = replay(value)
    starts = sorted(one.start_us for one in timeline.transfers if one.src == 0)
    link = PAIR.links[0]
    cost_us = link.alpha_us + link.beta_us_per_mb
    assert starts == [0.0, pytest.approx(cost_us)]
    assert timeline.makespan_us == pytest.approx(2 * cost_us)


def test_a_signal_through_a_proxy_comes_after_what_was_put_before_it():
    """Rank 1 answers with a put of its own, behind the wait."""
    value = two_allgather_by_proxy()
    first, second = (value["gpus"][rank]["threadblocks"][0]["ops"] for rank in range(2))
    first[3:5] = [{**first[3], "name": "put"}, on("signal", 0, kind="port")]
    second[3:] = [on("wait", 0, kind="port"), NOP, *second[3:5]]
    link = PAIR.links[0]
    assert replay(value).makespan_us == pytest.approx(2 * (link.alpha_us + link.beta_us_per_mb))


def test_a_plan_that_stops_is_told():
    value = two_allgather()
    for one in value["gpus"][0]["threadblocks"][0]["ops"]:
        if one["name"] == "signal":
            one.clear()
            one.update(NOP)
    with pytest.raises(InvalidArtifact, match="gpu 1 tb 0 op 7: wait waits for a signal that never comes"):
        replay(value)


def test_what_is_not_replayed_is_named():
    value = two_allgather()
    value["gpus"][0]["threadblocks"][0]["ops"][4] = put(far(0, 0), {"type": "o", "index": 1, "size": 1}, name="get")
    with pytest.raises(InputError, match="'get' is not among what is replayed"):
        replay(value)
    value = two_allgather()
    value["gpus"][0]["threadblocks"][0]["ops"][4]["dst_buff"][0]["buffer_id"] = 3
    with pytest.raises(InputError, match="names remote buffer 3, which its threadblock does not have"):
        replay(value)


def test_another_machine_is_refused():
    with pytest.raises(InputError, match=r"is for 2 ranks, topology .* has 3"):
        replay(two_allgather(), both_ways((0, 1), (1, 2)))
    with pytest.raises(InputError, match=r"puts from rank 0 to rank 1 .gpu 0 tb 0., but topology .* has no such link"):
        replay(two_allgather(), machine(2, []))
