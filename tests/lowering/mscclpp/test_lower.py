"""Schedules as one-sided plans: small ones worked out by hand, all collectives on machines at random, limits."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.runtimes import MSCCLPP
from taccl_py.verify.mscclpp import verify_plan
from tests.end_to_end.machines import cases
from tests.end_to_end.test_properties import greedy
from tests.instances import quiet_pulp
from tests.lowering.cases import (
    Planner,
    chain_broadcast,
    chain_scatter,
    direct_allreduce,
    direct_alltoall,
    full,
    machine,
    recursive_doubling,
    relay_alltoall,
    relay_gather,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
    tree_reduce,
)

pytestmark = quiet_pulp

# What the runtime may really be too small for.
LIMITS = {"semaphores", "threadblocks", "max_operations"}
IN, OUT = PlanOptions(CallPlacement.IN_PLACE), PlanOptions(CallPlacement.OUT_OF_PLACE)
SCHEDULES = {
    "ring allgather": lambda: ring_allgather(3),
    "ring allgather over two nodes": lambda: ring_allgather(4, nodes=(0, 0, 1, 1)),
    "ring reducescatter": lambda: ring_reducescatter(3),
    "ring allreduce over two nodes": lambda: ring_allreduce(4, nodes=(0, 0, 1, 1)),
    "direct allreduce": lambda: direct_allreduce(4),
    "recursive doubling": lambda: recursive_doubling(4, nodes=(0, 0, 1, 1)),
    "direct alltoall": lambda: direct_alltoall(3),
    "relayed alltoall": relay_alltoall,
    "chain broadcast over two nodes": lambda: chain_broadcast(3, nodes=(0, 1, 1)),
    "tree reduce over three nodes": lambda: tree_reduce(nodes=(0, 1, 2, 1, 1, 2, 2)),
    "relayed gather": relay_gather,
    "chain scatter": chain_scatter,
}


def lowered(schedule, options):
    """Text of the plan as a value; fails if the verifier finds errors."""
    text = lower_plan(schedule, options).text
    collective = schedule.collective
    root = collective.root if collective.kind in ROOTED else None
    assert verify_plan(text, "plan.json", kind=collective.kind, root=root).violations == ()
    return json.loads(text)


def names(value, rank, number=0):
    return [operation["name"] for operation in value["gpus"][rank]["threadblocks"][number]["ops"]]


def ops(value, rank, number=0):
    return value["gpus"][rank]["threadblocks"][number]["ops"]


# By hand


def test_two_ranks_put_their_chunks_into_each_others_output():
    value = lowered(ring_allgather(2), IN)
    for rank in range(2):
        assert len(value["gpus"][rank]["threadblocks"]) == 1
        assert names(value, rank) == ["rlxsignal", "rlxwait", "nop", "put", "nop", "signal", "wait", "nop"]
        (put,) = [operation for operation in ops(value, rank) if operation["name"] == "put"]
        assert put["src_buff"] == [{"type": "o", "index": rank, "size": 1}]
        assert put["dst_buff"] == [{"buffer_id": 0, "index": rank, "size": 1}]
        assert value["gpus"][rank]["channels"] == [{"channel_type": "memory", "connected_to": [1 - rank]}]
        assert value["gpus"][rank]["remote_buffers"] == [
            {"rank": 1 - rank, "type": "o", "access_channel_types": ["memory"]}
        ]
    assert (value["collective"], value["inplace"], value["protocol"]) == ("allgather", True, "Simple")


def test_out_of_place_the_own_chunk_is_copied_beside():
    value = lowered(ring_allgather(2), OUT)
    assert sorted([names(value, 0, 0), names(value, 0, 1)], key=len)[0] == ["copy"]
    assert not value["inplace"]


def test_a_chunk_is_passed_on_by_who_waits_for_it():
    """In a ring of three, the threadblock that puts to the next rank waits for the one before."""
    value = lowered(ring_allgather(3), IN)
    assert names(value, 0) == [
        "rlxsignal", "rlxwait", "nop", "put", "nop", "signal", "wait", "nop", "put", "nop", "signal", "wait", "nop",
    ]  # fmt: skip
    puts = [operation for operation in ops(value, 0) if operation["name"] == "put"]
    assert [put["src_buff"][0]["index"] for put in puts] == [0, 2]
    assert value["gpus"][0]["scratch_chunks"] == 0


def test_a_sum_is_made_of_what_lies_in_scratch():
    """Two ranks: half of each input goes to the other's scratch, is added in the output, and comes back."""
    value = lowered(direct_allreduce(2), IN)
    assert names(value, 0) == [
        "rlxsignal", "rlxwait", "nop", "put", "nop", "signal", "wait", "nop", "re", "nop", "put", "nop", "signal", "wait",
        "nop",
    ]  # fmt: skip
    (add,) = [operation for operation in ops(value, 0) if operation["name"] == "re"]
    assert add["src_buff"] == [{"type": "o", "index": 0, "size": 1}, {"type": "s", "index": 0, "size": 1}]
    assert add["dst_buff"] == [{"type": "o", "index": 0, "size": 1}]
    assert value["gpus"][0]["scratch_chunks"] == 1


def test_contributions_that_have_all_come_are_added_at_once():
    value = lowered(direct_allreduce(4), IN)
    adds = [
        operation for tb in value["gpus"][0]["threadblocks"] for operation in tb["ops"] if operation["name"] == "re"
    ]
    assert [len(add["src_buff"]) for add in adds] == [4]


def test_between_nodes_a_proxy_puts_and_the_last_request_is_flushed():
    value = lowered(chain_broadcast(2, k=2, nodes=(0, 1)), OUT)
    sender = next(tb for tb in value["gpus"][0]["threadblocks"] if tb["channels"])
    assert [operation["name"] for operation in sender["ops"]] == ["rlxwait", "nop", "put", "pws", "flush", "nop"]
    (flush,) = [operation for operation in sender["ops"] if operation["name"] == "flush"]
    assert (
        len(flush["dst_buff"]) == len(flush["channel_ids"]) == 1
    )  # the runtime flushes as many as there are destinations
    assert {operation["channel_type"] for operation in sender["ops"] if "channel_type" in operation} == {"port"}
    assert names(value, 1) == ["rlxsignal", "wait", "nop"]


def test_who_passes_on_hears_of_every_chunk_that_a_proxy_brings():
    value = lowered(chain_broadcast(3, k=2, nodes=(0, 1, 1)), OUT)
    sender = next(tb for tb in value["gpus"][0]["threadblocks"] if tb["channels"])
    assert [operation["name"] for operation in sender["ops"]] == ["rlxwait", "nop", "pws", "pws", "flush", "nop"]
    assert names(value, 1, 0) == ["rlxsignal", "wait", "nop", "sem_release", "wait", "nop", "sem_release"]


def test_chunks_that_would_land_on_others_still_to_be_sent_land_in_scratch():
    """In place AllToAll overwrites what the receiver may not have sent yet."""
    in_place, apart = lowered(direct_alltoall(3), IN), lowered(direct_alltoall(3), OUT)
    assert all(gpu["scratch_chunks"] > 0 for gpu in in_place["gpus"])
    assert all(gpu["scratch_chunks"] == 0 for gpu in apart["gpus"])
    assert not lowered(direct_alltoall(3), PlanOptions())["inplace"]


def test_sizes_are_whole_aligned_chunks_up_to_what_an_offset_can_hold():
    """AllReduce of three chunks: a chunk has at most (2^32 - 1) / 3 bytes, cut to a multiple of 16."""
    value = lowered(ring_allreduce(3), IN)
    assert (value["min_message_size"], value["max_message_size"]) == (48, 3 * ((2**32 - 1) // 3 // 16 * 16))
    value = lowered(ring_allreduce(3), replace(IN, min_bytes=1000, max_bytes=2000, name="mine"))
    assert (value["min_message_size"], value["max_message_size"], value["name"]) == (1000, 2000, "mine")


# All of them


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("placement", CallPlacement)
@pytest.mark.parametrize("instances", [1, 2])
def test_every_schedule_becomes_a_plan_that_is_right(name, placement, instances):
    value = lowered(SCHEDULES[name](), PlanOptions(placement, instances))
    assert value["gpus"][0]["input_chunks"] == instances * SCHEDULES[name]().collective.input_chunks


# Nothing stands in a plan that could be left out, but for some meetings of threads: after the last wait, where another one comes before
# anything depends on it, and where the same thread goes on.
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("options", [IN, OUT], ids=["in", "out"])
def test_whatever_is_left_out_of_a_plan_is_missed_by_the_verifier(name, options):
    value, meetings = lowered(SCHEDULES[name](), options), []
    for rank in value["gpus"]:
        for tb in rank["threadblocks"]:
            for index, operation in enumerate(list(tb["ops"])):
                del tb["ops"][index]
                missed = bool(verify_plan(json.dumps(value), "plan.json").violations)
                assert missed or operation["name"] == "nop", (rank["id"], tb["id"], index, operation)
                meetings += [missed] * (operation["name"] == "nop" and index < len(tb["ops"]))
                tb["ops"].insert(index, operation)
    assert sum(meetings) * 2 >= len(meetings)


def test_the_same_schedule_gives_the_same_text():
    assert lower_plan(recursive_doubling(4), IN) == lower_plan(recursive_doubling(4), IN)


wishes = st.builds(PlanOptions, placement=st.sampled_from(CallPlacement), instances=st.sampled_from([1, 1, 2, 3]))
slow_to_draw = settings(suppress_health_check=list(HealthCheck))


def require_right(case, options):
    try:
        lowered(greedy(case).schedule, options)
    except LoweringError as error:
        event(f"refused for its {error.limit}")
        if error.limit not in LIMITS:
            raise


@settings(slow_to_draw, max_examples=60)
@given(case=cases(), options=wishes)
def test_every_collective_on_any_machine_becomes_a_plan_that_is_right(case, options):
    require_right(case, options)


# Limits


def test_a_long_threadblock_is_cut_into_several():
    """Each of 40 chunks is awaited and put: with the nop between, 120 operations."""
    value = lowered(chain_broadcast(3, k=40), OUT)
    lengths = [len(tb["ops"]) for gpu in value["gpus"] for tb in gpu["threadblocks"]]
    assert max(lengths) <= MSCCLPP.max_operations
    assert len(value["gpus"][1]["threadblocks"]) >= 2


def test_many_contributions_are_added_in_several_operations():
    """An operation names 10 buffers: the sum twice, and 8 others."""
    value = lowered(direct_allreduce(12), IN)
    adds = [
        operation for tb in value["gpus"][0]["threadblocks"] for operation in tb["ops"] if operation["name"] == "re"
    ]
    assert [len(add["src_buff"]) + 1 for add in adds] == [10, 5]


def test_a_gpu_has_as_many_semaphores_as_its_plan_needs():
    """Sixteen are what one operation can name."""
    value = lowered(direct_allreduce(6), replace(IN, instances=4))
    assert len(value["gpus"][0]["semaphores"]) > 16
    named = [
        one["semaphore_ids"] for tb in value["gpus"][0]["threadblocks"] for one in tb["ops"] if "semaphore_ids" in one
    ]
    assert max(map(len, named)) <= 16


def test_too_many_threadblocks_are_refused_with_the_limit():
    """For each of 10 instances one for every peer, and the hub for the own chunk."""
    with pytest.raises(
        LoweringError,
        match=r"needs 120 threadblocks, and plans for MSCCL.*at most 108, as many as run at the same time",
    ) as caught:
        lower_plan(direct_alltoall(12), replace(OUT, instances=10))
    assert caught.value.limit == "threadblocks"


@pytest.mark.parametrize(("least", "most"), [(0, 2**32), (2**40, None), (100, 99), (0, 5)])
def test_sizes_that_the_runtime_cannot_run_are_refused(least, most):
    with pytest.raises(LoweringError, match="bytes are asked for"):
        lower_plan(ring_allreduce(3), replace(IN, min_bytes=least, max_bytes=most))


def test_some_size_must_be_a_multiple_of_the_aligned_chunks():
    """A ring of three has 3 chunks of 16 bytes at least: 96 and 144 are multiples of 48."""
    lower_plan(ring_allreduce(3), replace(IN, min_bytes=97, max_bytes=144))
    with pytest.raises(LoweringError, match="none of the sizes from 97 to 143 bytes is a multiple of 48 bytes"):
        lower_plan(ring_allreduce(3), replace(IN, min_bytes=97, max_bytes=143))


def test_no_instance_is_bad_input():
    with pytest.raises(InputError, match="at least 1 instance"):
        lower_plan(ring_allreduce(3), replace(IN, instances=0))


def test_a_hub_with_too_many_channels_is_cut():
    """21 ranks send to the one that gathers: more than the 16 channels of a threadblock."""
    num_ranks = 22
    topology = machine(num_ranks, [(r, 0) for r in range(1, num_ranks)])
    plan = Planner(topology, Collective(Kind.GATHER, num_ranks))
    for rank in range(1, num_ranks):
        plan.send(rank, 0, rank)
    value = lowered(plan.schedule(), OUT)
    widths = [sum(len(c["channel_ids"]) for c in tb["channels"]) for tb in value["gpus"][0]["threadblocks"]]
    assert max(widths) <= MSCCLPP.max_channels
    assert sum(widths) == num_ranks - 1


def test_ranks_with_nothing_to_do_have_no_threadblocks():
    topology = full(3)
    plan = Planner(topology, Collective(Kind.SCATTER, 3))
    plan.send(0, 1, 1)
    plan.send(0, 2, 2)
    value = lowered(plan.schedule(), IN)
    assert [len(gpu["threadblocks"]) for gpu in value["gpus"]] == [2, 1, 1]
