"""The verifier of plans for demands against plans that were broken on purpose."""

import copy
import json

import pytest

from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.synthesis.demands import solve_demand
from taccl_py.verify.mscclpp import verify_plan
from tests.demand.cases import MIXED, QUICK, demand_of, full, hosts, scaled

NEAR = demand_of(4, MIXED)
FAR = scaled(
    demand_of(
        8,
        [{"bytes": 300, "holds": [0, 1], "wants": [5, 6]}, {"bytes": 8, "adds": [[0], [4, 2]], "wants": [5, 1]}],
        "float16",
    ),
    16,
)


def plan_of(demand, machine):
    return json.loads(lower_demand_plan(solve_demand(machine, demand, QUICK).schedule).text)


CASES = {"near": (NEAR, plan_of(NEAR, full(4))), "far": (FAR, plan_of(FAR, hosts(2)))}


def rules(plan, demand):
    return {one.rule for one in verify_plan(json.dumps(plan), "plan.json", demand=demand).violations}


def places(plan, *names):
    return [
        (rank, number, step)
        for rank, gpu in enumerate(plan["gpus"])
        for number, block in enumerate(gpu["threadblocks"])
        for step, operation in enumerate(block["ops"])
        if operation["name"] in names
    ]


def broken(plan, place, change):
    """A copy of the plan in which one operation is changed, or taken out if the change says so."""
    found = copy.deepcopy(plan)
    rank, number, step = place
    operations = found["gpus"][rank]["threadblocks"][number]["ops"]
    if change(operations[step]) is None:
        del operations[step]
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_plan_itself_is_accepted(case):
    demand, plan = CASES[case]
    assert rules(plan, demand) == set()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "name", ["put", "pws", "copy", "re", "signal", "wait", "rlxsignal", "sem_acquire", "sem_release"]
)
def test_nothing_can_be_left_out(case, name):
    demand, plan = CASES[case]
    for place in places(plan, name):
        assert rules(broken(plan, place, lambda _: None), demand), place


def test_nobody_puts_into_a_rank_that_may_not_have_begun():
    demand, plan = CASES["near"]
    # Rank 0 to rank 2, of which it hears nothing else. Where another wait proves it this one is not needed.
    assert rules(broken(plan, (0, 1, 0), lambda _: None), demand)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("side", ["src_buff", "dst_buff"])
def test_no_data_may_come_from_or_go_elsewhere(case, side):
    demand, plan = CASES[case]

    def shift(operation):
        operand = operation[side][0]
        operand["index"] += 1 if not operand["index"] else -1
        return operation

    for place in places(plan, "put", "pws", "copy", "re"):
        assert rules(broken(plan, place, shift), demand), place


@pytest.mark.parametrize("case", CASES)
def test_less_is_not_enough(case):
    demand, plan = CASES[case]

    def shorten(operation):
        for operand in (*operation["src_buff"], *operation["dst_buff"]):
            operand["size"] -= 1
        return operation

    for place in places(plan, "put", "pws", "copy", "re"):
        rank, number, step = place
        if plan["gpus"][rank]["threadblocks"][number]["ops"][step]["src_buff"][0]["size"] > 1:
            assert rules(broken(plan, place, shorten), demand), place


@pytest.mark.parametrize("case", CASES)
def test_nothing_counts_twice(case):
    demand, plan = CASES[case]

    def double(operation):
        operation["src_buff"].append(operation["src_buff"][-1])
        return operation

    for place in places(plan, "re"):
        assert rules(broken(plan, place, double), demand) == {"wrong-result"}, place


GROUPED = json.loads(lower_demand_plan(solve_demand(full(4), NEAR, QUICK).schedule, group=2).text)


def test_a_plan_in_groups_is_accepted():
    assert rules(GROUPED, NEAR) == set()


@pytest.mark.parametrize("name", ["put", "pws", "copy", "re"])
def test_no_member_of_a_group_does_the_part_of_another(name):
    """What it should have done nobody does; all of the chunks have more than one cell."""

    def other(operation):
        operation["tbg_info"]["tb_id"] ^= 1
        return operation

    def whole(operation):
        del operation["tbg_info"]
        return operation

    for place in places(GROUPED, name):
        assert rules(broken(GROUPED, place, other), NEAR), place
        assert rules(broken(GROUPED, place, lambda _: None), NEAR), place
        # Twice the same is no mistake of copies; of sums it is.
        assert name != "re" or rules(broken(GROUPED, place, whole), NEAR), place


def test_more_members_than_there_are_leave_a_part_out():
    """The second of two parts reaches to the end, the second of three does not; the first ones may be the same."""

    def of_three(operation):
        operation["tbg_info"]["tbg_size"] = 3
        return operation

    for place in places(GROUPED, "put", "pws"):
        rank, number, step = place
        if GROUPED["gpus"][rank]["threadblocks"][number]["ops"][step]["tbg_info"]["tb_id"] == 1:
            assert rules(broken(GROUPED, place, of_three), NEAR), place


def changed(**fields):
    return CASES["near"][1] | fields


def with_gpu(**fields):
    found = copy.deepcopy(CASES["near"][1])
    found["gpus"][0] |= fields
    return found


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (changed(collective="alltoall"), "collective"),
        (changed(inplace=True), "placement"),
        (changed(gpus=CASES["near"][1]["gpus"][:3]), "unpaired-channel"),
        (with_gpu(input_chunks=200), "chunk-counts"),
        (with_gpu(output_chunks=27), "chunk-counts"),
        (changed(buffer_alignment=128), "alignment"),
    ],
)
def test_a_plan_for_something_else_is_refused(plan, rule):
    assert rule in rules(plan, NEAR)


def test_a_plan_for_another_demand_is_refused():
    _, plan = CASES["near"]
    other = demand_of(4, [*MIXED[:2], {**MIXED[2], "holds": [2]}])
    assert rules(plan, other)
    assert "rank-count" in rules(plan, FAR)
    as_double = demand_of(4, MIXED, "float64")
    assert "data-type" in rules(plan, as_double)


def test_a_custom_plan_without_its_demand_is_neither_good_nor_bad():
    verdict = verify_plan(json.dumps(CASES["near"][1]), "plan.json")
    assert not verdict.violations
    assert [one.feature for one in verdict.unsupported] == ["collective"]
