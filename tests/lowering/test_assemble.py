from taccl_py.collective import Collective, Kind
from taccl_py.lowering.assemble import assemble_gpus, count_steps
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.dependencies import find_dependencies
from taccl_py.lowering.program import Op
from tests.lowering.blocks import block, copy, recv, send

GEOMETRY = BufferSizes(Collective(Kind.ALLREDUCE, 2, 100), 1, exact=False)


def assemble(*blocks):
    found = find_dependencies((blocks,), GEOMETRY, aliased=False)
    return assemble_gpus((blocks,), found, GEOMETRY, (3,))[0], found


def test_all_dependencies_but_the_last_are_nops_directly_before_the_step():
    last = block(send(3, "s0-2", 3), send_peer=3)
    gpu, found = assemble(*(block(recv(i, f"s{i}", i), recv_peer=i + 1) for i in range(3)), last)
    steps = gpu.threadblocks[3].steps
    assert [(s.op, s.depends_on, s.count) for s in steps] == [
        (Op.NOP, (0, 0), 0),
        (Op.NOP, (1, 0), 0),
        (Op.SEND, (2, 0), 3),
    ]
    assert count_steps(last, found) == 3
    assert [tb.steps[0].has_dependent for tb in gpu.threadblocks] == [True, True, True, False]


def test_step_numbers_count_nops():
    gpu, _ = assemble(
        block(recv(0, "s0", 0), recv_peer=1),
        block(recv(1, "s1", 1), recv_peer=2),
        block(copy(2, "s0-1", "o0-1")),
        block(send(3, "o0", 3), send_peer=3),
    )
    assert [step.op for step in gpu.threadblocks[2].steps] == [Op.NOP, Op.COPY]
    assert gpu.threadblocks[3].steps[0].depends_on == (2, 1)


def test_threadblocks_that_others_wait_for_have_numbers_that_fit_into_a_byte():
    idle = [block(copy(i, f"i{i}", f"o{i}")) for i in range(130)]
    gpu, _ = assemble(*idle, block(recv(200, "s0", 0), recv_peer=1), block(send(201, "s0", 1), send_peer=1))
    waiting = [step for tb in gpu.threadblocks for step in tb.steps if step.depends_on]
    assert [step.depends_on for step in waiting] == [(0, 0)]


def test_unused_buffers_are_empty():
    gpu, _ = assemble(block(recv(0, "s0", 0), recv_peer=1))
    assert (gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) == (0, 0, 3)
