"""Collectives by a switch: who hands out what, what the threadblocks do, what the verifier and real data say, what is refused."""

import json
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.execute.one_sided import read_one_sided
from taccl_py.execute.one_sided_local import run_one_sided
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.runs import Call, Conditions
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.runtimes import EXECUTOR
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.topology.model import Link, Port, Switch
from tests.lowering.cases import (
    MB,
    chain_broadcast,
    direct_allreduce,
    full,
    recursive_doubling,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
)
from tests.lowering.mscclpp.test_lower import lowered, names, ops


def switched(schedule, *, ranks=None, multicast=True, reduce=True):
    """The same schedule on a machine with a switch that joins all ranks, or some."""
    joined = tuple(range(schedule.topology.num_ranks)) if ranks is None else ranks
    return replace(
        schedule, topology=replace(schedule.topology, switches=(Switch("plane", joined, multicast, reduce),))
    )


def on_plane(schedule):
    """The same schedule where every rank has a port out and a port in, 1 us and 1 us for each MB, to a switch that can all."""
    num_ranks = schedule.topology.num_ranks
    ports = tuple(Port(f"{rank} {way}", 1.0, 1.0) for way in ("out", "in") for rank in range(num_ranks))
    links = [
        Link(a, b, 1.0, 1.0, 0.0, (a, num_ranks + b)) for a in range(num_ranks) for b in range(num_ranks) if a != b
    ]
    return switched(replace(schedule, topology=replace(full(num_ranks), ports=ports, links=tuple(links))))


def by_switch(schedule, **options):
    return lowered(switched(schedule), PlanOptions(switch=True, **options))


def test_each_rank_sums_its_part_between_two_handshakes():
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


def test_instances_are_threadblocks_that_share_out_the_part_of_a_rank():
    value = by_switch(direct_allreduce(3, k=2), instances=2)
    assert value["gpus"][1]["input_chunks"] == 6  # whatever the chunks of the schedule are
    for number in range(2):
        sums = [one["src_buff"][0] for one in ops(value, 1, number) if one["name"] == "glres"]
        assert [(one["index"], one["size"]) for one in sums] == [(2 + number, 1)]  # rank 1 owns cells 2 and 3
        block = value["gpus"][1]["threadblocks"][number]
        assert block["channels"] == [
            {"channel_type": "memory", "channel_ids": [number, 2 + number]},
            {"channel_type": "switch", "channel_ids": [number]},
        ]


def test_more_than_eight_peers_are_told_in_two_operations():
    value = by_switch(direct_allreduce(10))
    assert names(value, 0).count("signal") == names(value, 0).count("rlxwait") == 2


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
    """Each port carries 4 chunks of 1 MB, and the owner's sum once more: 5 us, 1 us for each of 4 operations, 1 us before storing."""
    schedule = on_plane(direct_allreduce(4))
    plan = lower_plan(schedule, PlanOptions(switch=True, instances=instances)).plan
    found = replay_plan(plan, Kind.ALLREDUCE, schedule.topology, MB / instances)
    assert found.makespan_us == pytest.approx(4 * instances + 5 + 1)


def test_a_multicast_leaves_once_and_enters_everywhere_once():
    """AllGather of 4 shares of 1 MB: each port in takes all 4 MB in 4 operations. Broadcast of 1 MB: one operation."""
    gather = on_plane(ring_allgather(4, k=2))
    plan = lower_plan(gather, PlanOptions(switch=True)).plan
    assert replay_plan(plan, Kind.ALLGATHER, gather.topology, MB).makespan_us == pytest.approx(4 + 4)
    broadcast = on_plane(chain_broadcast(4, k=3))
    plan = lower_plan(broadcast, PlanOptions(switch=True)).plan
    assert replay_plan(plan, Kind.BROADCAST, broadcast.topology, MB).makespan_us == pytest.approx(1 + 1)


@pytest.mark.parametrize("in_place", [True, False])
def test_each_rank_multicasts_its_shard_of_an_allgather(in_place):
    placement = CallPlacement.IN_PLACE if in_place else CallPlacement.OUT_OF_PLACE
    value = by_switch(ring_allgather(3, k=2), placement=placement)
    for rank in range(3):
        assert names(value, rank) == ["rlxsignal", "rlxwait", "nop", "gstore", "nop", "signal", "wait", "nop"]
        source = {"type": "o", "index": rank} if in_place else {"type": "i", "index": 0}
        assert ops(value, rank)[3] == {
            "name": "gstore",
            "channel_type": "switch",
            "src_buff": [{**source, "size": 1}],
            "dst_buff": [{"switch_channel_id": 0, "index": rank, "size": 1}],
        }
        assert value["gpus"][rank]["channels"][1]["buffer_type"] == "o"


def test_of_a_small_allreduce_some_ranks_do_all():
    """One owner adds up the whole buffer; the others greet it, and wait until it is done."""
    value = by_switch(direct_allreduce(3), owners=1)
    assert value["gpus"][0]["input_chunks"] == 1
    assert names(value, 0) == ["rlxwait", "nop", "glres", "nop", "signal", "nop"]
    assert names(value, 1) == names(value, 2) == ["rlxsignal", "wait", "nop"]
    plan = read_one_sided(json.dumps(by_switch(direct_allreduce(5), owners=2, instances=3)), "plan.json")
    for seed in range(4):
        call = Call(1 << 12, DataType.INT32, Operator.SUM, in_place=True)
        assert run_one_sided(plan, call, Conditions(EXECUTOR, seed=seed, shuffled=True)).num_wrong == 0


def test_only_the_root_of_a_broadcast_multicasts_and_nobody_else_is_signalled():
    value = by_switch(chain_broadcast(3, k=2))
    assert names(value, 0) == ["rlxwait", "nop", "gstore", "nop", "signal", "nop"]
    for rank in (1, 2):
        assert names(value, rank) == ["rlxsignal", "wait", "nop"]
        assert value["gpus"][rank]["channels"][1]["rank_groups"] == [{"size": 3, "ranks": [0, 1, 2]}]  # made by all


@pytest.mark.parametrize(
    "make", [lambda: ring_allgather(4, k=3), lambda: chain_broadcast(4, k=2), lambda: direct_allreduce(3)]
)
@pytest.mark.parametrize("placement", [CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE])
def test_what_the_switch_stores_is_right_on_real_data_in_both_placements(make, placement):
    plan = read_one_sided(json.dumps(by_switch(make(), instances=2, placement=placement)), "plan.json")
    for seed in range(3):
        call = Call(1 << 14, DataType.FLOAT32, Operator.SUM, in_place=placement is CallPlacement.IN_PLACE)
        assert run_one_sided(plan, call, Conditions(EXECUTOR, seed=seed, shuffled=True)).num_wrong == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: direct_allreduce(3),
            "lets a switch add up what ranks 0, 1, 2 hold, and .* none that multicasts and reduces",
        ),
        (lambda: ring_allgather(3), "lets a switch multicast to ranks 0, 1, 2, and .* none that multicasts among"),
    ],
)
def test_a_plan_by_switch_is_read_back_and_needs_a_machine_that_has_one(make, says):
    schedule = switched(make())
    made = lower_plan(schedule, PlanOptions(switch=True))
    assert parse_plan(made.text, "plan.json") == made.plan
    with pytest.raises(InputError, match=says):
        replay_plan(made.plan, schedule.collective.kind, full(3), MB)


@pytest.mark.parametrize("make", [lambda: ring_allgather(3), lambda: chain_broadcast(3)])
def test_a_switch_that_does_not_add_up_multicasts_all_the_same(make):
    assert "gstore" in names(lowered(switched(make(), reduce=False), PlanOptions(switch=True)), 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: one.update(dst_buff=[{"type": "o", "index": 0, "size": 1}]), "gstore must name a switch channel there"),
        (lambda one: one.update(src_buff=one["dst_buff"]), "gstore must not name a switch channel there"),
        (lambda one: one["dst_buff"][0].update(switch_channel_id=1), "names switch channel 1, which its threadblock does not"),
    ],
)  # fmt: skip
def test_a_multicast_that_names_the_wrong_places_is_not_read(change, says):
    value = by_switch(ring_allgather(3))
    change(ops(value, 0)[3])
    with pytest.raises(InputError, match=says):
        parse_plan(json.dumps(value), "plan.json")


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda: direct_allreduce(3), "has no switch that multicasts and reduces among all its 3 ranks"),
        (lambda: switched(direct_allreduce(3), multicast=False), "has no switch"),
        (lambda: switched(direct_allreduce(3), reduce=False), "has no switch"),
        (lambda: switched(direct_allreduce(3), ranks=(0, 1)), "has no switch"),
        (lambda: switched(ring_allgather(3), multicast=False), "has no switch that multicasts among all its 3 ranks"),
        (lambda: switched(ring_reducescatter(3)), "does allreduce, allgather, broadcast here, and .* of reducescatter"),
    ],
)
def test_what_the_switch_cannot_do_is_refused(schedule, says):
    with pytest.raises(InputError, match=says):
        lower_plan(schedule(), PlanOptions(switch=True))


@pytest.mark.parametrize(
    ("schedule", "instances", "limit"),
    [
        (lambda: direct_allreduce(18), 1, "max_channels"),
        (lambda: direct_allreduce(3), 109, "threadblocks"),
    ],
)
def test_limits_are_kept(schedule, instances, limit):
    with pytest.raises(LoweringError) as caught:
        lower_plan(switched(schedule()), PlanOptions(switch=True, instances=instances))
    assert caught.value.limit == limit
