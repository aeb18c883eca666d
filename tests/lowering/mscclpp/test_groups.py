"""Groups of threadblocks that share operations, and loops over pieces: by hand, on real data, by the verifier, and broken."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from taccl_py.collective import ROOTED
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.lowering.plan_reader import parse_plan
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.verify.mscclpp import verify_plan
from tests.end_to_end.machines import cases
from tests.end_to_end.test_properties import greedy
from tests.execute.test_one_sided import outcome
from tests.instances import quiet_pulp
from tests.lowering.cases import chain_broadcast, direct_allreduce, ring_allgather
from tests.lowering.mscclpp.test_lower import SCHEDULES, names, ops
from tests.lowering.mscclpp.test_packets import FREE, NOT_BY_PACKETS

pytestmark = quiet_pulp

IN, OUT = PlanOptions(CallPlacement.IN_PLACE), PlanOptions(CallPlacement.OUT_OF_PLACE)
# Two passes and a half over a chunk of 160 bytes; two cells of 80, each two passes.
CUTS = {
    "group": {"group": 3},
    "group of instances": {"group": 2, "instances": 2},
    "loop": {"loop_bytes": 64},
    "loop of instances": {"loop_bytes": 48, "instances": 2},
}


def right(schedule, options, seeds=(None, 0, 1)):
    """The plan; the verifier accepts it, reading gives it back, and it gives the right bits in any order of turns."""
    lowered, collective = lower_plan(schedule, options), schedule.collective
    root = collective.root if collective.kind in ROOTED else None
    verdict = verify_plan(lowered.text, "plan.json", kind=collective.kind, root=root)
    assert (verdict.violations, verdict.unsupported) == ((), ())
    assert parse_plan(lowered.text, "plan.json") == lowered.plan
    size_bytes = lowered.plan.unit_bytes * 10 // options.instances
    if size_bytes % lowered.plan.unit_bytes == 0:
        for seed in seeds:
            assert outcome(lowered.text, size=size_bytes, seed=seed, root=root).num_wrong == 0
    return lowered.plan


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_cut_so_in_any_placement(name, cut):
    for options in (IN, OUT):
        plan = right(SCHEDULES[name](), replace(options, **CUTS[cut]))
        assert (
            plan.unit_bytes
            == lower_plan(SCHEDULES[name](), replace(options, instances=CUTS[cut].get("instances", 1))).plan.unit_bytes
        )


@pytest.mark.parametrize("name", [name for name in FREE if name not in NOT_BY_PACKETS])
def test_groups_share_packets(name):
    for options in (IN, OUT):
        right(SCHEDULES[name](), replace(options, protocol="LL", group=3))


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck), max_examples=60, deadline=None)
@given(
    case=cases(),
    placement=st.sampled_from(CallPlacement),
    cut=st.sampled_from([*CUTS.values(), {"protocol": "LL", "group": 2}]),
    seed=st.integers(0, 99),
)
def test_plans_for_any_machine_are_right(case, placement, cut, seed):
    schedule = greedy(case).schedule
    if "protocol" in cut and schedule.collective.kind in ROOTED:
        reject()
    try:
        right(schedule, PlanOptions(placement, **cut), (seed,))
    except LoweringError:
        reject()


def test_a_group_does_one_part_each_on_channels_of_its_own():
    one, two = (json.loads(lower_plan(ring_allgather(2), replace(IN, group=size)).text) for size in (1, 2))
    assert [names(two, 0, number) for number in range(2)] == [names(one, 0)] * 2
    parts = [next(op for op in ops(two, 0, number) if op["name"] == "put")["tbg_info"] for number in range(2)]
    assert parts == [{"tb_id": 0, "tbg_size": 2}, {"tb_id": 1, "tbg_size": 2}]
    assert two["gpus"][0]["channels"] == [{"channel_type": "memory", "connected_to": [1, 1]}]
    assert [block["channels"][0]["channel_ids"] for block in two["gpus"][0]["threadblocks"]] == [[0], [1]]
    assert two["min_message_size"] == 2 * one["min_message_size"]


def test_a_loop_is_behind_the_signals_that_the_call_has_begun():
    value = json.loads(lower_plan(chain_broadcast(3), replace(IN, loop_bytes=64)).text)
    assert names(value, 1)[-1] == "pipeline"
    assert set(names(value, 1)[:-1]) <= {"rlxsignal", "rlxwait", "nop"}
    loop = ops(value, 1)[-1]
    assert loop["iter_context"] == {"unit_size": 64, "num_chunks": 1}
    assert [one["name"] for one in loop["ops"]].count("put") == 2
    assert names(value, 2)[-1] == "pipeline"  # it has only waits, one for each pass


@pytest.mark.parametrize("passes", [1, 2, 5])
def test_a_chain_is_as_fast_as_its_pieces_follow_each_other(passes):
    """One chunk over two links: the first one takes all pieces, the second one the last of them."""
    schedule = chain_broadcast(3, k=1)
    size_bytes = 10 * 64.0 * passes
    plan = lower_plan(schedule, replace(IN, loop_bytes=640)).plan
    found = replay_plan(plan, schedule.collective.kind, schedule.topology, size_bytes)
    link = schedule.topology.links[0]
    piece_us = link.alpha_us + link.beta_us_per_mb * 640 / 1e6
    assert found.makespan_us == pytest.approx((passes + 1) * piece_us)
    assert len(found.transfers) == 2 * passes


def test_what_cannot_be_is_refused():
    for wrong in ({"loop_bytes": 24}, {"loop_bytes": 32, "group": 2}, {"loop_bytes": 32, "protocol": "LL"}):
        with pytest.raises(InputError, match="a loop does"):
            lower_plan(ring_allgather(3), replace(IN, **wrong))
    with pytest.raises(LoweringError, match="run at the same time"):
        lower_plan(direct_allreduce(8), replace(IN, group=32))


def _other_part(value):
    ops(value, 0)[_first(value, "put")]["tbg_info"]["tb_id"] = 1


def _no_part(value):
    del ops(value, 0)[_first(value, "put")]["tbg_info"]


def _larger_group(value):
    ops(value, 0)[_first(value, "put")]["tbg_info"]["tbg_size"] = 3


def _swapped_channels(value):
    for block in value["gpus"][0]["threadblocks"]:
        block["channels"][0]["channel_ids"] = [1 - block["channels"][0]["channel_ids"][0]]


def _first(value, name):
    return names(value, 0).index(name)


@pytest.mark.parametrize("change", [_other_part, _no_part, _larger_group, _swapped_channels])
def test_the_verifier_sees_broken_groups(change):
    value = json.loads(lower_plan(ring_allgather(3), replace(IN, group=2)).text)
    change(value)
    assert verify_plan(json.dumps(value), "plan.json").violations


def _unlooped_waiter(value):
    value["gpus"][2]["threadblocks"][0]["ops"][-1:] = ops(value, 2)[-1]["ops"]


def _other_unit(value):
    ops(value, 1)[-1]["iter_context"]["unit_size"] = 128


def _less_chunks(value):
    for gpu in value["gpus"]:
        for block in gpu["threadblocks"]:
            for one in block["ops"][-1]["ops"]:
                for operand in (*one.get("src_buff", ()), *one.get("dst_buff", ())):
                    operand["size"] = 2
            block["ops"][-1]["ops"] = [
                one for one in block["ops"][-1]["ops"] if one.get("src_buff", [{"index": 0}])[0]["index"] == 0
            ]


@pytest.mark.parametrize("change", [_unlooped_waiter, _other_unit, _less_chunks])
def test_the_verifier_sees_broken_loops(change):
    value = json.loads(lower_plan(chain_broadcast(3), replace(IN, loop_bytes=64)).text)
    change(value)
    assert verify_plan(json.dumps(value), "plan.json", root=0).violations
