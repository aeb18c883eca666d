"""XML of demands for legacy MSCCL: units of one size, unequal buffers, idle ranks, and what cannot be counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import LoweringError
from taccl_py.execute.compare import ResultCheck
from taccl_py.execute.demand_programs import read_demand_program, run_demand_program
from taccl_py.lowering.demand_xml import lower_demand_program
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.synthesis.demands import solve_demand
from taccl_py.verify.msccl import verify_program
from tests.demand.cases import MIXED, QUICK, demand_of, demands, full, hosts, ring, scaled, switch


def program_of(demand, machine):
    return lower_demand_program(solve_demand(machine, demand, QUICK).schedule, LEGACY)


@settings(max_examples=8, deadline=None)
@given(demand=demands(8), machine=st.sampled_from([full, ring, switch]))
def test_random_demands_are_lowered_to_xml_that_meets_them(demand, machine):
    text = emit_xml(program_of(demand, machine(demand.num_ranks)), LEGACY)
    verdict = verify_program(text, LEGACY, demand=demand)
    assert not verdict.violations
    assert not verdict.unsupported
    for seed in range(3):
        program = read_demand_program(text, "algorithm.xml", demand)
        assert run_demand_program(program, demand, seed=seed, shuffled=True).comparison == ResultCheck(0, None)


def test_all_count_in_units_of_the_greatest_common_divisor():
    program = program_of(demand_of(4, MIXED), full(4))
    assert program.num_chunks_per_loop == 6400 // 64
    assert (program.min_bytes, program.max_bytes) == (6400, 6400)
    assert (program.in_place, program.out_of_place) == (False, True)
    text = emit_xml(program, LEGACY)
    assert 'coll="custom" inplace="0"' in text
    assert {gpu.input_chunks for gpu in program.gpus} <= {0, 100}


def test_a_rank_that_does_nothing_has_an_empty_threadblock():
    demand = demand_of(3, [{"bytes": 8, "holds": [0], "wants": [1]}])
    program = program_of(demand, full(3))
    assert [len(tb.steps) for tb in program.gpus[2].threadblocks] == [0]
    assert not verify_program(emit_xml(program, LEGACY), LEGACY, demand=demand).violations


def test_cuts_between_units_are_rounded():
    # Over three roads the engine cuts a large chunk to the byte, and the file has at most some hundred units.
    demand = scaled(demand_of(8, [{"bytes": 3, "holds": [0, 1], "wants": [5]}]), 1 << 20)
    program = program_of(demand, hosts(2))
    assert program.num_chunks_per_loop <= 1024
    assert not verify_program(emit_xml(program, LEGACY), LEGACY, demand=demand).violations


def test_too_many_units_are_refused_with_the_reason():
    demand = demand_of(2, [{"bytes": 100001, "holds": [0], "wants": [1]}, {"bytes": 1, "holds": [1], "wants": [0]}])
    with pytest.raises(LoweringError, match="is 1 bytes, which makes 100001") as error:
        program_of(demand, full(2))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("runtime", [EXECUTOR, RCCL])
def test_runtimes_without_custom_collectives_get_no_file(runtime):
    program = program_of(demand_of(2, [{"bytes": 8, "holds": [0], "wants": [1]}]), full(2))
    with pytest.raises(LoweringError, match="no call for a demand"):
        emit_xml(program, runtime)
