"""MSCCL++ plans on real data: right ones give the right bits in any order of turns, and what is wrong shows."""

import json

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError, InvalidArtifact, LoweringError
from taccl_py.execute.one_sided import is_one_sided, read_one_sided
from taccl_py.execute.one_sided_local import run_one_sided
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.runs import Call, Conditions
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions, lower_plan
from taccl_py.runtimes import EXECUTOR
from tests.end_to_end.machines import cases
from tests.end_to_end.test_properties import greedy
from tests.instances import quiet_pulp
from tests.lowering.mscclpp.test_lower import SCHEDULES
from tests.verify.mscclpp.plans import (
    NOP,
    cells,
    changed,
    far,
    flushed_at_once,
    local,
    on,
    on_semaphores,
    ops_of,
    put,
    two_allgather,
    two_allgather_by_proxy,
    two_allreduce,
)
from tests.verify.mscclpp.test_switch import three_allreduce
from tests.verify.mscclpp.test_verifier import broadcast, cycle, with_barrier

pytestmark = quiet_pulp

GOOD = [
    two_allgather,
    two_allgather_by_proxy,
    lambda: changed(two_allgather_by_proxy(), flushed_at_once),
    two_allreduce,
    with_barrier,
]


def outcome(value, *, size=4096, data_type=DataType.FLOAT32, operator=Operator.SUM, seed=None, root=None):
    plan = read_one_sided(value if isinstance(value, str) else json.dumps(value), "plan.json", root=root)
    call = Call(size, data_type, operator, plan.in_place)
    return run_one_sided(plan, call, Conditions(EXECUTOR, seed=seed or 0, shuffled=seed is not None))


@pytest.mark.parametrize("make", GOOD)
@pytest.mark.parametrize("data_type", DataType)
def test_right_plans_give_the_right_bits(make, data_type):
    for seed in (None, 0, 1):
        assert outcome(make(), data_type=data_type, seed=seed).num_wrong == 0


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("placement", [CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE])
def test_lowered_schedules_give_the_right_bits_in_any_order_of_turns(name, placement):
    text = lower_plan(SCHEDULES[name](), PlanOptions(placement)).text
    for seed in range(4):
        assert outcome(text, seed=seed, root=0).num_wrong == 0


@settings(suppress_health_check=list(HealthCheck), max_examples=20)
@given(case=cases(), placement=st.sampled_from(CallPlacement), seed=st.integers(0, 99))
def test_plans_for_any_machine_give_the_right_bits(case, placement, seed):
    try:
        text = lower_plan(greedy(case).schedule, PlanOptions(placement)).text
    except LoweringError:
        reject()
    assert outcome(text, seed=seed, root=case.root).num_wrong == 0


def test_sizes_are_whole_aligned_chunks():
    """1000 bytes over two chunks of floats: 496 bytes are 31 units of 16, and 124 floats."""
    found = outcome(two_allgather(), size=1000)
    assert (found.size_bytes, found.count) == (992, 124)
    assert outcome(two_allgather(), size=1).size_bytes == 32


def test_a_missing_sum_is_found_with_its_place():
    value = changed(two_allreduce(), lambda v: ops_of(v, 1).pop(10))
    found = outcome(value)
    assert found.num_wrong == 1024
    assert str(found.first_wrong).startswith("rank 1, chunk 0 of the output, offset 0: found ")


def test_a_wait_that_is_missing_shows_in_some_order_of_turns():
    """Rank 0 adds what may not have come, as rank 1 takes its time."""

    def late(value):
        ops_of(value).append(ops_of(value).pop(6))
        ops_of(value, 1)[3:3] = [NOP] * 20

    assert any(outcome(changed(two_allreduce(), late), seed=seed).num_wrong for seed in range(20))


def test_a_proxy_is_late_where_nobody_waits_for_it():
    """Rank 0 overwrites what its proxy has not read yet."""

    def overwritten(value):
        ops_of(value).insert(4, local("copy", [cells("s", 0)], cells("o", 0)))
        value["gpus"][0]["scratch_chunks"] = 1

    assert any(outcome(changed(two_allgather_by_proxy(), overwritten), seed=seed).num_wrong for seed in range(5))


@pytest.mark.parametrize("flushed", [True, False])
def test_what_a_flush_has_waited_for_may_be_overwritten(flushed):
    """Rank 0 keeps its chunk, puts it, spoils it and restores it; only behind a flush is that always right."""

    def spoiled(value):
        value["gpus"][0]["scratch_chunks"] = 2
        ops = ops_of(value)
        spoil, restore = (local("copy", [cells("s", one)], cells("o", 0)) for one in (1, 0))
        ops[5:5] = [NOP, spoil, *[NOP] * 10, restore, NOP]
        if not flushed:
            del ops[4]
        ops[3:3] = [local("copy", [cells("o", 0)], cells("s", 0)), NOP]

    wrong = [outcome(changed(two_allgather_by_proxy(), spoiled), seed=seed).num_wrong for seed in range(20)]
    assert any(wrong) is not flushed


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (changed(two_allgather(), lambda v: ops_of(v).pop(6)), "gpu 1 tb 0 step 7: waits for a signal of gpu 0 on memory"),
        (cycle(), "gpu 0 tb 0 step 0: waits for semaphore 0"),
        (changed(with_barrier(), lambda v: ops_of(v, 0, 1).pop(1)), "gpu 0 tb 0 step 8: waits at barrier 0"),
        (changed(two_allgather(), lambda v: ops_of(v).pop(7)), "gpu 0: gpu 1 signals more on memory channel 0"),
        (
            changed(two_allgather(), lambda v: ops_of(v).__setitem__(4, put(cells("o", 5), far(0, 0)))),
            "gpu 0 tb 0 step 4: it uses chunks 5..5 of the output, which has 2",
        ),
    ],
    ids=["no signal", "cycle", "barrier", "left over", "outside"],
)  # fmt: skip
def test_a_plan_that_stops_or_does_what_cannot_be_done_is_told_where(value, says):
    with pytest.raises(InvalidArtifact) as caught:
        outcome(value)
    assert any(str(violation).startswith(says) for violation in caught.value.violations), caught.value.violations


@pytest.mark.parametrize("root", [0, 1])
def test_the_root_is_the_rank_into_which_nobody_puts(root):
    assert read_one_sided(json.dumps(broadcast(root)), "plan.json").root == root
    assert outcome(broadcast(root)).num_wrong == 0


def test_a_root_that_the_plan_does_not_tell_must_be_given():
    value = changed(two_allgather(), lambda v: v.update(collective="broadcast"))
    with pytest.raises(InputError, match="add --root"):
        read_one_sided(json.dumps(value), "plan.json")


def test_only_sums_are_run():
    with pytest.raises(InputError, match="--op: MSCCL\\+\\+ plans only sum, found max"):
        outcome(two_allreduce(), operator=Operator.MAX)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda v: v.update(protocol="LL128"), "protocol"),
        (lambda v: v.update(gpus=v["gpus"][:1]), "gpus"),
        (lambda v: ops_of(v).__setitem__(1, {"name": "gstore"}), "ops/1"),
        (lambda v: ops_of(v).__setitem__(1, {**NOP, "tbg_info": {}}), "ops/1"),
        (lambda v: ops_of(v).__setitem__(6, on("signal", 3)), "ops/6"),
        (lambda v: ops_of(v).__setitem__(1, on_semaphores("sem_release", 0)), "ops/1"),
        (lambda v: ops_of(v).__setitem__(4, {"name": "put", "channel_type": "memory"}), "ops/4"),
        (lambda v: ops_of(v).__setitem__(4, put(cells("o", 0, 2), far(0, 0))), "ops/4"),
        (lambda v: ops_of(v).__setitem__(4, put(cells("o", 0), far(1, 0))), "ops/4"),
        (lambda v: v["gpus"][0].update(output_chunks=3), "input_chunks"),
    ],
)
def test_what_cannot_be_run_is_bad_input_that_names_the_field(change, field):
    with pytest.raises(InputError) as caught:
        read_one_sided(json.dumps(changed(two_allgather(), change)), "plan.json")
    assert caught.value.path == "plan.json"
    assert field.replace("/", ".") in caught.value.field.replace("/", ".")


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        (lambda op: op.pop("dst_buff"), "dst_buff", "has 0 places for glres, and there must be 1"),
        (lambda op: op.pop("src_buff"), "src_buff", "has 0 places for glres, and there must be 1"),
        (lambda op: op.update(name="gstore"), "src_buff", "gstore must not name a switch channel there"),
        (lambda op: op.update(src_buff=[cells("i", 0)]), "src_buff", "glres must name a switch channel there"),
        (lambda op: op.update(name="re", dst_buff=[cells("i", 0)]), "src_buff", "re must not name a switch channel"),
    ],
)
def test_operands_of_switches_stand_where_the_runtime_looks_for_them(change, field, says):
    with pytest.raises(InputError, match=says) as caught:
        read_one_sided(json.dumps(changed(three_allreduce(), lambda v: change(ops_of(v)[3]))), "plan.json")
    assert caught.value.field == f"gpus.0.threadblocks.0.ops.3.{field}"


def test_a_plan_is_told_from_a_schedule():
    assert is_one_sided(json.dumps(two_allgather()), "plan.json")
    assert not is_one_sided('{"format": "taccl-schedule"}', "schedule.json")
