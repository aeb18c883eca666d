"""AllReduce by a switch: who owns what, what the threadblocks do, what the judge and real data say, and what is refused."""

import json
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.execute.one_sided import read_one_sided
from taccl_py.execute.one_sided_local import run_one_sided
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.runs import Call, Conditions
from taccl_py.lowering.buffers import Placement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.lowering.mscclpp.switch import find_owners
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.runtimes import EXECUTOR
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.topology.model import Switch
from tests.lowering.cases import MB, direct_allreduce, full, recursive_doubling, ring_allgather, ring_allreduce
from tests.lowering.mscclpp.test_lower import lowered, names, ops


def switched(schedule, *, ranks=None, multicast=True, reduce=True):
    """The same schedule on a machine with a switch that joins all ranks, or some."""
    joined = tuple(range(schedule.topology.num_ranks)) if ranks is None else ranks
    return replace(
        schedule, topology=replace(schedule.topology, switches=(Switch("plane", joined, multicast, reduce),))
    )


def by_switch(schedule, **options):
    return lowered(switched(schedule), PlanOptions(switch=True, **options))


def test_each_rank_sums_its_part_between_a_greeting_and_a_farewell():
    value = by_switch(direct_allreduce(4))
    for rank in range(4):
        assert names(value, rank) == ["rlxsignal", "rlxwait", "nop", "glres", "nop", "signal", "wait", "nop"]
        assert value["gpus"][rank]["channels"] == [
            {"channel_type": "memory", "connected_to": [peer for peer in range(4) if peer != rank]},
            {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 4, "ranks": [0, 1, 2, 3]}]},
        ]
        place = {"switch_channel_id": 0, "index": rank, "size": 1}
        assert ops(value, rank)[3] == {
            "name": "glres", "channel_type": "switch", "src_buff": [place], "dst_buff": [place], "reduce_op": "sum"
        }  # fmt: skip


def test_instances_are_threadblocks_that_share_out_each_chunk():
    value = by_switch(direct_allreduce(3, k=2), instances=2)
    assert value["gpus"][1]["input_chunks"] == 12
    for number in range(2):
        sums = [one["src_buff"][0]["index"] for one in ops(value, 1, number) if one["name"] == "glres"]
        assert sums == [2 * 2 + number, 2 * 3 + number]  # rank 1 owns chunks 2 and 3
        block = value["gpus"][1]["threadblocks"][number]
        assert block["channels"] == [
            {"channel_type": "memory", "channel_ids": [2 * number, 2 * number + 1]},
            {"channel_type": "switch", "channel_ids": [number]},
        ]


def test_more_than_eight_peers_are_told_in_two_operations():
    value = by_switch(direct_allreduce(10))
    assert names(value, 0).count("signal") == names(value, 0).count("rlxwait") == 2


def test_the_owner_is_who_hands_the_sum_out():
    assert find_owners(direct_allreduce(3, k=2)) == [0, 0, 1, 1, 2, 2]
    # In this ring the sum that starts at rank r ends at the rank before it, which sends it on first.
    assert sorted(find_owners(ring_allreduce(4))) == [0, 1, 2, 3]


def test_ranks_that_add_up_everything_for_themselves_share_it_out():
    assert find_owners(recursive_doubling(4, k=1)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "make", [lambda: direct_allreduce(4, k=3), lambda: ring_allreduce(5), lambda: recursive_doubling(4)]
)
@pytest.mark.parametrize("data_type", [DataType.FLOAT32, DataType.BFLOAT16, DataType.INT32])
def test_all_ranks_get_the_right_sums_in_any_order_of_turns(make, data_type):
    plan = read_one_sided(json.dumps(by_switch(make(), instances=2)), "plan.json")
    for seed in range(4):
        call = Call(1 << 14, data_type, Operator.SUM, in_place=True)
        assert run_one_sided(plan, call, Conditions(EXECUTOR, seed=seed, shuffled=True)).num_wrong == 0


@pytest.mark.parametrize("instances", [1, 2])
def test_the_switch_takes_every_sum_once_through_all_ports(instances):
    """Ports of links without ports are the links: 1 us and 1 us for each MB; 4 chunks, each a quarter more, one after the other."""
    schedule = switched(direct_allreduce(4))
    plan = lower_plan(schedule, PlanOptions(switch=True, instances=instances)).plan
    found = replay_plan(plan, Kind.ALLREDUCE, schedule.topology, MB / instances)
    assert found.makespan_us == pytest.approx(4 * instances * (1 + 1.25 / instances) + 1)


def test_a_plan_by_switch_is_read_back_and_needs_a_machine_that_has_one():
    schedule = switched(direct_allreduce(3))
    made = lower_plan(schedule, PlanOptions(switch=True))
    assert parse_plan(made.text, "plan.json") == made.plan
    with pytest.raises(InputError, match="has none that multicasts and reduces among them"):
        replay_plan(made.plan, Kind.ALLREDUCE, full(3), MB)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda: direct_allreduce(3), "has no switch that multicasts and reduces among all its 3 ranks"),
        (lambda: switched(direct_allreduce(3), multicast=False), "has no switch"),
        (lambda: switched(direct_allreduce(3), reduce=False), "has no switch"),
        (lambda: switched(direct_allreduce(3), ranks=(0, 1)), "has no switch"),
        (lambda: switched(ring_allgather(3)), "does allreduce alone here, and the schedule is of allgather"),
    ],
)
def test_what_the_switch_cannot_do_is_refused(schedule, says):
    with pytest.raises(InputError, match=says):
        lower_plan(schedule(), PlanOptions(switch=True))


def test_a_switch_adds_up_in_place_alone():
    with pytest.raises(InputError, match="adds up in place alone"):
        lower_plan(switched(direct_allreduce(3)), PlanOptions(Placement.OUT_OF_PLACE, switch=True))


@pytest.mark.parametrize(
    ("schedule", "instances", "limit"),
    [
        (lambda: direct_allreduce(18), 1, "max_channels"),
        (lambda: direct_allreduce(3, k=58), 1, "max_operations"),
        (lambda: direct_allreduce(3), 109, "threadblocks"),
    ],
)
def test_limits_are_kept(schedule, instances, limit):
    with pytest.raises(LoweringError) as caught:
        lower_plan(switched(schedule()), PlanOptions(switch=True, instances=instances))
    assert caught.value.limit == limit


def test_as_much_as_fits_into_a_threadblock_is_taken():
    value = by_switch(direct_allreduce(3, k=57))
    assert len(names(value, 0)) == 64
