"""Plans that something was changed in at random: what the verifier lets pass runs right, in whatever order threadblocks take turns."""

import json
import random
from collections import Counter

import pytest

from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.execute.one_sided import read_one_sided
from taccl_py.execute.one_sided_local import run_one_sided
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.runs import Call, Conditions
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import NodeRails, PlanOptions, lower_plan
from taccl_py.runtimes import EXECUTOR
from taccl_py.verify.mscclpp import verify_plan
from tests.lowering.mscclpp.test_lower import SCHEDULES
from tests.lowering.mscclpp.test_rails import KINDS, asked, boxes, text_of

OTHER_NAMES = {"signal": "rlxsignal", "wait": "rlxwait", "pwsf": "pws", "pws": "put", "rlxsignal": "signal"}
SEEDS = range(4)


@pytest.fixture(scope="module")
def texts():
    return [
        lower_plan(make(), PlanOptions(placement)).text
        for make in SCHEDULES.values()
        for placement in (CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE)
    ]


@pytest.fixture(scope="module")
def texts_by_switch():
    schedules = [asked(boxes(*shape), kind) for shape in ((1, 3), (2, 2), (3, 2)) for kind in KINDS]
    return [
        text_of(schedule, placement=placement, rails=rails, pieces=pieces, owners=owners)
        for schedule in schedules
        for placement in (CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE)
        for rails, pieces, owners in ((NodeRails.DIRECT, 2, None), (NodeRails.RELAYED, 1, 1))
    ]


def mutate(ops, draw):
    """Leave out, exchange, move, rename or redirect one operation."""
    index, kind = draw.randrange(len(ops)), draw.choice(["drop", "swap", "move", "rename", "redirect"])
    if kind == "drop":
        del ops[index]
    elif kind == "swap":
        other = draw.randrange(len(ops))
        ops[index], ops[other] = ops[other], ops[index]
    elif kind == "move":
        ops.insert(draw.randrange(len(ops)), ops.pop(index))
    elif kind == "rename":
        ops[index]["name"] = OTHER_NAMES.get(ops[index]["name"], ops[index]["name"])
    else:
        for operand in (*ops[index].get("src_buff", ()), *ops[index].get("dst_buff", ())):
            operand["index"] = draw.choice([operand["index"], draw.randrange(5)])


def mutated(text, draw):
    value = json.loads(text)
    for _ in range(draw.choice([1, 1, 2])):
        blocks = [tb["ops"] for gpu in value["gpus"] for tb in gpu["threadblocks"] if tb["ops"]]
        mutate(draw.choice(blocks), draw)
    return json.dumps(value)


def runs_right(text):
    plan = read_one_sided(text, "plan.json", root=0)
    call = Call(512, DataType.INT32, Operator.SUM, plan.in_place)
    try:
        return all(
            run_one_sided(plan, call, Conditions(EXECUTOR, seed=seed, shuffled=True)).num_wrong == 0 for seed in SEEDS
        )
    except InvalidArtifact:
        return False


def verify_and_run(texts, draw):
    """Whether the verifier lets a mutant pass, and whether it runs right; None if it cannot even be read."""
    text = mutated(draw.choice(texts), draw)
    try:
        return not verify_plan(text, "plan.json").violations, runs_right(text)
    except InputError:
        return None


def require_no_miss(texts, number):
    draw = random.Random(number)
    seen = Counter(verify_and_run(texts, draw) for _ in range(number))
    assert seen[True, False] == 0
    assert seen[True, True] > number // 10
    assert seen[False, False] > number // 10


def test_what_the_verifier_lets_pass_runs_right(texts):
    require_no_miss(texts, 300)


def test_what_the_verifier_lets_pass_runs_right_with_switches(texts_by_switch):
    require_no_miss(texts_by_switch, 300)


@pytest.mark.slow
def test_what_the_verifier_lets_pass_runs_right_however_often_one_tries(texts, texts_by_switch):
    require_no_miss(texts, 1500)
    require_no_miss(texts_by_switch, 1500)
