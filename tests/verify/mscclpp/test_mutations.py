"""Plans that something was changed in at random: what the verifier lets pass runs right, in whatever order threadblocks take turns."""

import json
import random
from collections import Counter
from contextlib import suppress

import pytest

from taccl_py.errors import InputError, InvalidArtifact, LoweringError
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
from tests.verify.mscclpp.features import RIGHT

OTHER_NAMES = {
    "signal": "rlxsignal", "wait": "rlxwait", "pwsf": "pws", "pws": "put", "rlxsignal": "signal", "rlxwait": "wait",
    "rres": "rre", "res": "re", "respkt": "repkt", "recspkt": "recpkt", "upkt": "copy", "cpkt": "copy", "copy": "upkt",
    "ppkt": "put", "put": "ppkt", "re": "repkt",
}  # fmt: skip
SEEDS = range(3)
SIZES = (512, 48)


@pytest.fixture(scope="module")
def texts():
    return [
        lower_plan(make(), PlanOptions(placement)).text
        for make in SCHEDULES.values()
        for placement in (CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE)
    ]


@pytest.fixture(scope="module")
def texts_in_groups_and_loops():
    """Of ours, by signals and by packets; a loop of 16 bytes has two passes at the larger size."""
    cuts = ({"group": 2}, {"loop_bytes": 16}, {"group": 2, "protocol": "LL"})
    made = []
    for schedule in (make() for make in SCHEDULES.values()):
        for cut in cuts:
            with suppress(LoweringError):
                made.append(lower_plan(schedule, PlanOptions(CallPlacement.IN_PLACE, **cut)).text)
    return made


@pytest.fixture(scope="module")
def texts_by_switch():
    schedules = [asked(boxes(*shape), kind) for shape in ((1, 3), (2, 2), (3, 2)) for kind in KINDS]
    return [
        text_of(schedule, placement=placement, rails=rails, pieces=pieces, owners=owners)
        for schedule in schedules
        for placement in (CallPlacement.IN_PLACE, CallPlacement.OUT_OF_PLACE)
        for rails, pieces, owners in ((NodeRails.DIRECT, 2, None), (NodeRails.RELAYED, 1, 1))
    ]


@pytest.fixture(scope="module")
def texts_of_features():
    return [json.dumps(make()) for make in RIGHT]


def mutate(ops, draw):
    """Leave out, exchange, move, rename, redirect or renumber something of one operation."""
    index = draw.randrange(len(ops))
    kind = draw.choice(["drop", "swap", "move", "rename", "redirect", "rebuffer", "renumber", "regroup"])
    chosen = ops[index]
    if kind == "drop":
        del ops[index]
    elif kind == "swap":
        other = draw.randrange(len(ops))
        ops[index], ops[other] = ops[other], ops[index]
    elif kind == "move":
        ops.insert(draw.randrange(len(ops)), ops.pop(index))
    elif kind == "rename":
        chosen["name"] = OTHER_NAMES.get(chosen["name"], chosen["name"])
    elif kind == "regroup":
        regroup(chosen, draw)
    elif kind == "renumber":
        renumber(chosen, draw)
    else:
        redirect(chosen, draw, ("index",) if kind == "redirect" else ("buffer_id", "type"))


def renumber(operation, draw):
    """Name another channel, semaphore or barrier."""
    for key in ("channel_ids", "semaphore_ids"):
        if operation.get(key):
            operation[key][draw.randrange(len(operation[key]))] = draw.randrange(3)
    if "barrier_id" in operation:
        operation[draw.choice(["barrier_id", "num_threadblocks"])] = draw.randrange(3)


def redirect(operation, draw, keys):
    """Name other chunks or buffers."""
    for operand in (*operation.get("src_buff", ()), *operation.get("dst_buff", ())):
        for key in keys:
            if key in operand:
                fresh = draw.choice("ios") if key == "type" else draw.randrange(5 if key == "index" else 2)
                operand[key] = draw.choice([operand[key], fresh])


def regroup(operation, draw):
    """Let a threadblock take another part of the bytes, or all."""
    if "tbg_info" in operation and draw.random() < 0.5:
        del operation["tbg_info"]
    elif "src_buff" in operation:
        operation["tbg_info"] = {"tb_id": draw.randrange(2), "tbg_size": 2}


def mutate_plan(value, draw):
    """Change something of the plan as a whole."""
    kind = draw.choice(["halves", "values", "scratch"])
    if kind == "halves":
        value["use_double_scratch_buffer"] = not value.get("use_double_scratch_buffer", False)
    for gpu in value["gpus"] if kind == "values" else ():
        for semaphore in gpu.get("semaphores", ()):
            semaphore["init_value"] = draw.choice([semaphore["init_value"], draw.randrange(3)])
    if kind == "scratch":
        draw.choice(value["gpus"])["scratch_chunks"] += 1


def mutated(text, draw):
    value = json.loads(text)
    for _ in range(draw.choice([1, 1, 2])):
        blocks = [tb["ops"] for gpu in value["gpus"] for tb in gpu["threadblocks"] if tb["ops"]]
        blocks += [one["ops"] for ops in blocks for one in ops if one.get("ops")]
        if draw.random() < 0.05:
            mutate_plan(value, draw)
        else:
            mutate(draw.choice(blocks), draw)
    return json.dumps(value)


def runs_right(text, size=512):
    """Whether three calls one after the other are right in some orders of turns."""
    plan = read_one_sided(text, "plan.json", root=0)
    call = Call(size, DataType.INT32, Operator.SUM, plan.in_place)
    try:
        return all(
            run_one_sided(plan, call, Conditions(EXECUTOR, repeats=3, seed=seed, shuffled=True)).num_wrong == 0
            for seed in SEEDS
        )
    except InvalidArtifact:
        return False


def verify_and_run(texts, draw):
    """Whether the verifier lets a mutant pass, and whether it runs right; None if it cannot even be read."""
    text = mutated(draw.choice(texts), draw)
    try:
        verdict = verify_plan(text, "plan.json")
        assert not verdict.unsupported
        return not verdict.violations, all(runs_right(text, size) for size in SIZES)
    except InputError:
        return None


def require_no_miss(texts, number):
    draw = random.Random(number)
    seen = Counter(verify_and_run(texts, draw) for _ in range(number))
    assert seen[True, False] == 0
    assert seen[True, True] > number // 10
    assert seen[False, False] > number // 10


def test_what_the_verifier_lets_pass_runs_right(texts):
    require_no_miss(texts, 200)


@pytest.mark.parametrize("number", [20, 320])
def test_what_the_verifier_lets_pass_runs_right_with_packets_groups_and_pipelines(texts_of_features, number):
    require_no_miss(texts_of_features, number)


def test_what_the_verifier_lets_pass_runs_right_in_groups_and_loops(texts_in_groups_and_loops):
    require_no_miss(texts_in_groups_and_loops, 80)


def test_what_the_verifier_lets_pass_runs_right_with_switches(texts_by_switch):
    require_no_miss(texts_by_switch, 150)


def test_a_proxy_that_reads_its_own_scratch_forgets_the_half_of_it(texts_by_switch):
    """A doubled scratch: the copy goes into the half of the call, and the proxy sends the first half."""
    doubled = [{**json.loads(text), "use_double_scratch_buffer": True} for text in texts_by_switch]
    found = [json.dumps(plan) for plan in doubled if verify_plan(json.dumps(plan), "plan.json").violations]
    assert found
    passed = [json.dumps(plan) for plan in doubled if json.dumps(plan) not in found]
    assert all(runs_right(text) for text in passed)
