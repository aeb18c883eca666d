"""Plans of demands: unequal chunks and buffers, in units, and what no plan can carry."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.api.demands import moe_demand
from taccl_py.errors import LoweringError
from taccl_py.execute.compare import ResultCheck
from taccl_py.execute.demand_programs import read_demand_program, run_demand_program
from taccl_py.lowering.demand_xml import lower_demand_program
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.runtimes import LEGACY
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message
from taccl_py.synthesis.demands import solve_demand
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.mscclpp import verify_plan
from tests.demand.cases import MIXED, QUICK, demand_of, demands, full, hosts, ring, scaled, stragglar, switch


def schedule_of(demand, machine):
    return solve_demand(machine, demand, QUICK).schedule


@settings(max_examples=12, deadline=None)
@given(demand=demands(8), machine=st.sampled_from([full, ring, switch]), group=st.sampled_from([1, 1, 3]))
def test_random_demands_are_lowered_to_plans_that_meet_them(demand, machine, group):
    demand = scaled(demand, 16)
    lowered = lower_demand_plan(schedule_of(demand, machine(demand.num_ranks)), group=group)
    verdict = verify_plan(lowered.text, "plan.json", demand=demand)
    assert not verdict.violations
    assert not verdict.unsupported
    for seed in range(3):
        plan = read_demand_program(lowered.text, "plan.json", demand)
        found = run_demand_program(plan, demand, repeats=2, seed=seed, shuffled=True)
        assert found.comparison == ResultCheck(0, None)


@pytest.mark.parametrize("group", [2, 3, 5])
def test_threadblocks_of_a_group_share_every_operation(group):
    """Also where parts differ by a cell of 16 bytes, and some have none: the shortest chunk has four cells."""
    demand = demand_of(4, MIXED)
    schedule = schedule_of(demand, full(4))
    single, lowered = lower_demand_plan(schedule), lower_demand_plan(schedule, group=group)
    assert lowered.plan.num_threadblocks == group * single.plan.num_threadblocks
    assert not verify_plan(lowered.text, "plan.json", demand=demand).violations
    plan = read_demand_program(lowered.text, "plan.json", demand)
    for seed in range(3):
        found = run_demand_program(plan, demand, repeats=2, seed=seed, shuffled=True)
        assert found.comparison == ResultCheck(0, None)


def test_a_group_that_the_gpu_has_no_room_for_is_refused():
    with pytest.raises(LoweringError, match="threadblocks"):
        lower_demand_plan(schedule_of(demand_of(4, MIXED), full(4)), group=60)


def test_a_send_is_one_put_of_all_its_units():
    demand = demand_of(2, [{"bytes": 4800, "holds": [0], "wants": [1]}])
    plan = json.loads(lower_demand_plan(schedule_of(demand, full(2))).text)
    assert plan["collective"] == "custom"
    assert [(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"]] == [(1, 1), (1, 1)]
    puts = [op for gpu in plan["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"] if op["name"] == "put"]
    assert [(op["src_buff"][0]["size"], op["dst_buff"][0]["size"]) for op in puts] == [(1, 1)]


def test_parts_that_the_same_messages_carry_are_one_put():
    """Engines cut chunks that they could send elsewhere in part; where they do not, each part would be an operation of its own."""
    whole = demand_of(2, [{"bytes": 4800, "holds": [0], "wants": [1]}])
    cut = whole.cut(tuple((0, 16 * i, 16) for i in range(300)))
    schedule = DemandSchedule(full(2), cut, (Message(full(2).links_between[0, 1][0], tuple(range(300)), 0.0, 9.0),))
    plan = json.loads(lower_demand_plan(schedule).text)
    puts = [op for gpu in plan["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"] if op["name"] == "put"]
    assert len(puts) == 1
    program = lower_demand_program(schedule, LEGACY)
    assert sum(len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks) == 2


def test_a_dispatch_of_few_tokens_has_a_plan():
    """A token is cut into several parts, so that the NICs could share it, and nearly all of them take the same way."""
    machine = load_topology("ndv5", 2)
    shape = {"experts": 64, "token_bytes": 7168, "tokens": 16, "topk": 8}
    demand = moe_demand("moe-dispatch", 16, **shape)
    schedule = solve_demand(machine, demand, QUICK, engine="multicast").schedule
    assert len(schedule.demand.chunks) > 5 * len(demand.chunks)
    lowered = lower_demand_plan(schedule)
    assert lowered.plan.num_threadblocks < 20
    assert not verify_plan(lowered.text, "plan.json", demand=demand).violations


def test_buffers_have_lengths_of_their_own():
    demand = demand_of(4, MIXED)
    plan = json.loads(lower_demand_plan(schedule_of(demand, full(4))).text)
    lengths = [(gpu["input_chunks"], gpu["output_chunks"]) for gpu in plan["gpus"]]
    # In units of 64 bytes; the output of rank 1 does not exist, and the runtime divides by its chunks.
    assert lengths == [(100, 26), (100, 1), (25, 100), (26, 75)]


def test_a_plan_over_nodes_puts_by_proxies():
    demand = scaled(
        demand_of(8, [{"bytes": 300, "holds": [0, 1], "wants": [5, 6]}, {"bytes": 7, "adds": [0, 4], "wants": [5, 1]}]),
        16,
    )
    lowered = lower_demand_plan(schedule_of(demand, hosts(2)))
    assert '"port"' in lowered.text
    plan = read_demand_program(lowered.text, "plan.json", demand)
    assert run_demand_program(plan, demand, seed=1).comparison == ResultCheck(0, None)
    assert not verify_plan(lowered.text, "plan.json", demand=demand).violations


def test_cuts_between_units_are_rounded():
    # The engine cuts the buffer of a straggler where that is best, which is nowhere near a multiple of 16 bytes.
    demand = stragglar(4, 16 * 3 * 7)
    schedule = schedule_of(demand, switch(4))
    lowered = lower_demand_plan(schedule)
    assert not verify_plan(lowered.text, "plan.json", demand=demand).violations


@pytest.mark.parametrize(
    ("chunk", "dtype", "words"),
    [
        ({"bytes": 20, "holds": [0], "wants": [1]}, "float32", "the input of rank 0 has 20"),
        ({"bytes": 32, "holds": {"0": 0}, "wants": {"1": 8}}, "float32", "the output of rank 1 has 40"),
        ({"bytes": 32, "adds": [0, 1], "wants": [1]}, "float64", "the demand has float64"),
        ({"bytes": 1 << 33, "holds": [0], "wants": [1]}, "float32", "offsets of MSCCL++ end at 4294967295"),
    ],
)
def test_what_no_plan_can_carry_is_refused(chunk, dtype, words):
    schedule = schedule_of(demand_of(2, [chunk], dtype), full(2))
    with pytest.raises(LoweringError) as error:
        lower_demand_plan(schedule)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
