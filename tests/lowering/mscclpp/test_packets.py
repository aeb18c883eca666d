"""Schedules as plans by packets: small ones by hand, all collectives without a root, and what the verifier says of broken ones."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from taccl_py.collective import ROOTED
from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.verify.mscclpp import verify_plan
from tests.end_to_end.machines import cases
from tests.end_to_end.test_properties import greedy
from tests.instances import quiet_pulp
from tests.lowering.cases import direct_allreduce, direct_alltoall, ring_allgather, ring_allreduce
from tests.lowering.mscclpp.test_lower import LIMITS, SCHEDULES, names, ops, slow_to_draw

pytestmark = quiet_pulp

IN, OUT = (PlanOptions(place, protocol="LL") for place in (CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE))
FREE = [name for name, made in SCHEDULES.items() if made().collective.kind not in ROOTED]
# Chunks that a relay collects in scratch go on together, and sums that are nobody's stay there.
NOT_BY_PACKETS = {"relayed alltoall", "ring reducescatter"}


def lowered(schedule, options):
    """Text of the plan as a value; fails if the verifier finds errors."""
    text = lower_plan(schedule, options).text
    assert verify_plan(text, "plan.json", kind=schedule.collective.kind).violations == ()
    return json.loads(text)


def test_two_ranks_send_each_other_packets_and_unpack_them():
    value = lowered(ring_allgather(2), IN)
    for rank in range(2):
        assert names(value, rank) == ["ppkt", "upkt"]
        put, unpack = ops(value, rank)
        assert put["src_buff"] == [{"type": "o", "index": rank, "size": 1}]
        assert put["dst_buff"] == [{"buffer_id": 0, "index": 0, "size": 1}]
        assert unpack["src_buff"] == [{"type": "s", "index": 0, "size": 1}]
        assert unpack["dst_buff"] == [{"type": "o", "index": 1 - rank, "size": 1}]
        assert value["gpus"][rank]["channels"] == [{"channel_type": "memory", "connected_to": [1 - rank]}]
        assert value["gpus"][rank]["remote_buffers"] == [
            {"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}
        ]
    assert (value["protocol"], value["use_double_scratch_buffer"], value["reuse_resources"]) == ("LL", True, False)


def test_a_chunk_is_unpacked_by_who_passes_it_on():
    """In a ring of three; all threads meet between the copy and the next packets."""
    value = lowered(ring_allgather(3), IN)
    assert names(value, 0) == ["ppkt", "upkt", "nop", "ppkt"]
    assert [tb["ops"][0]["name"] for tb in value["gpus"][0]["threadblocks"]] == ["ppkt", "upkt"]
    assert value["gpus"][0]["scratch_chunks"] == 2


def test_contributions_are_added_from_packets_at_once():
    value = lowered(direct_allreduce(4), IN)
    adds = [one for tb in value["gpus"][0]["threadblocks"] for one in tb["ops"] if one["name"] == "repkt"]
    assert [[source["type"] for source in add["src_buff"]] for add in adds] == [["o", "s", "s", "s"]]
    assert adds[0]["reduce_op"] == "sum"


def test_between_nodes_packets_are_made_in_scratch_and_sent_by_a_proxy():
    value = lowered(ring_allgather(2, nodes=(0, 1)), IN)
    assert names(value, 0) == ["cpkt", "rppkt", "upkt"]
    _, put, _ = ops(value, 0)
    assert (put["channel_type"], put["channel_ids"]) == ("port", [0])
    assert put["src_buff"] == [{"type": "s", "index": 1, "size": 1}]
    assert value["gpus"][0]["scratch_chunks"] == 2


def test_what_one_threadblock_copies_another_one_passes_on_after_a_semaphore():
    """Out of place, the sum is made of the own chunk, which the hub has copied."""
    value = lowered(direct_allreduce(4), OUT)
    found = {one["name"] for gpu in value["gpus"] for tb in gpu["threadblocks"] for one in tb["ops"]}
    assert {"sem_release", "sem_acquire"} <= found
    assert not found & {"signal", "wait", "rlxsignal", "rlxwait"}


def test_an_operation_names_at_most_sixteen_semaphores():
    """The hub of a sum of 20 ranks tells a threadblock for each other rank."""
    value = lowered(direct_allreduce(20), OUT)
    named = [
        one["semaphore_ids"] for tb in value["gpus"][0]["threadblocks"] for one in tb["ops"] if "semaphore_ids" in one
    ]
    assert len(value["gpus"][0]["semaphores"]) > 16
    assert max(map(len, named)) == 16


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("options", [IN, OUT], ids=["in", "out"])
@pytest.mark.parametrize("instances", [1, 2])
def test_every_schedule_without_a_root_becomes_a_plan_that_is_right(name, options, instances):
    schedule = SCHEDULES[name]()
    if name in NOT_BY_PACKETS:
        with pytest.raises(LoweringError, match="use protocol Simple"):
            lower_plan(schedule, replace(options, instances=instances))
        return
    value = lowered(schedule, replace(options, instances=instances))
    assert value["gpus"][0]["input_chunks"] == instances * schedule.collective.input_chunks
    assert (
        parse_plan(json.dumps(value), "plan.json") == lower_plan(schedule, replace(options, instances=instances)).plan
    )


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - set(FREE)))
def test_a_root_does_not_hear_of_everybody(name):
    with pytest.raises(LoweringError, match="not every rank hears of every other"):
        lower_plan(SCHEDULES[name](), IN)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FREE) - NOT_BY_PACKETS))
@pytest.mark.parametrize("options", [IN, OUT], ids=["in", "out"])
def test_whatever_orders_or_moves_is_missed_if_it_is_left_out(name, options):
    value = lowered(SCHEDULES[name](), options)
    for rank in value["gpus"]:
        for tb in rank["threadblocks"]:
            for index, operation in enumerate(list(tb["ops"])):
                del tb["ops"][index]
                assert verify_plan(json.dumps(value), "plan.json").violations, (rank["id"], tb["id"], index, operation)
                tb["ops"].insert(index, operation)


def test_one_scratch_for_all_calls_is_too_little():
    """A fast rank would overwrite packets that a slow one has not read yet."""
    value = lowered(ring_allgather(3), IN)
    value["use_double_scratch_buffer"] = False
    assert verify_plan(json.dumps(value), "plan.json").violations


def test_sizes_leave_room_for_both_halves_of_scratch_and_flags():
    """AllToAll of three ranks: two chunks of scratch, four bytes of it for each, and offsets of 32 bits."""
    value = lowered(direct_alltoall(3), OUT)
    assert value["gpus"][0]["scratch_chunks"] == 2
    assert value["max_message_size"] == 3 * ((2**32 - 1) // 8 // 16 * 16)


@pytest.mark.slow
@settings(slow_to_draw, max_examples=60)
@given(cases())
def test_on_any_machine_a_plan_by_packets_is_right_or_refused(case):
    schedule = greedy(case).schedule
    try:
        text = lower_plan(schedule, OUT).text
    except LoweringError as error:
        if error.limit not in {"protocol", *LIMITS}:
            raise
        return
    assert schedule.collective.kind not in ROOTED
    assert verify_plan(text, "plan.json", kind=schedule.collective.kind).violations == ()


def test_the_same_schedule_gives_the_same_text():
    assert lower_plan(ring_allreduce(3), IN) == lower_plan(ring_allreduce(3), IN)
