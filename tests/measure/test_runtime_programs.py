"""Programs of a calibration around rings: right for their collective, on rings in any order."""

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.lowering.program import Protocol
from taccl_py.measure.runtime_programs import in_order, ring_allgather, ring_allreduce
from taccl_py.runtimes import EXECUTOR, RCCL
from taccl_py.verify.msccl import verify_program


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 3, 1, 2), (2, 0, 4, 1, 3), tuple(range(16)), tuple(range(22))])
@pytest.mark.parametrize("runtime", [EXECUTOR, RCCL])
def test_programs_around_a_ring_do_what_their_collective_says(order, runtime):
    ranks = len(order)
    for made in (
        ring_allgather(ranks, 1, 1, Protocol.SIMPLE),
        ring_allgather(ranks, min(8, ranks), 1, Protocol.LL),
        ring_allreduce(ranks, Protocol.LL128),
    ):
        program = in_order(made, order)
        text = emit_xml(program, runtime)
        violations = verify_program(text, runtime, kind=program.kind).violations
        assert {one.rule for one in violations} <= {"max-bytes-unsafe"}
        follows = {order[place]: order[(place + 1) % ranks] for place in range(ranks)}
        for rank, gpu in enumerate(program.gpus):
            assert gpu.rank == rank
            assert {block.send_peer for block in gpu.threadblocks} <= {follows[rank], -1}


def test_a_ring_in_its_own_order_stays_as_it_is():
    program = ring_allgather(5, 2, 2, Protocol.LL)
    assert in_order(program, range(5)) == program
    assert program.kind is Kind.ALLGATHER
