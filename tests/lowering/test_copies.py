"""Instances that are copies of a program with one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Address, Buffer, Collective, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.lower import Lowering, LoweringOptions, Room
from taccl_py.lowering.msccl_xml import emit_xml, parse_xml
from taccl_py.lowering.program import Protocol
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.verify.msccl import verify_program
from tests.lowering import cases
from tests.lowering.execute import execute


def one_instance(schedule, options, room=None):
    lowering = Lowering(schedule, options)
    return lowering.one_instance(lowering.program(options.port_order, room))


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**9),
    kind=st.sampled_from(Kind),
    runtime=st.sampled_from([EXECUTOR, RCCL, LEGACY]),
    made_for=st.sampled_from([None, *Protocol]),
    protocol=st.sampled_from(Protocol),
    number=st.integers(1, 3),
    room=st.sampled_from([None, Room(32, 3), Room(None, 1, balanced=True), Room(20, 3, balanced=True)]),
)
def test_copies_of_any_program_give_the_right_result_or_a_reason(seed, kind, runtime, made_for, protocol, number, room):
    schedule, reason = cases.random_schedule(seed, kind), ""
    try:
        instance = one_instance(
            schedule, LoweringOptions(runtime, protocol=made_for, times_blocks=room is not None), room
        )
        program = instance.copies(number, protocol)
    except LoweringError as error:
        reason = error.limit
    if reason:
        assert reason in ("threadblocks", "max_steps", "max_channels", "protocol", "placement", "copies", "fifo_slots")
        return
    assert program.protocol is protocol
    assert program.num_threadblocks == number * instance.program.num_threadblocks
    named = [address.offset for gpu in program.gpus for tb in gpu.threadblocks for step in tb.steps for address in (step.src, step.dst)]  # fmt: skip
    assert max(named, default=0) == max(instance.last_offset(buffer, number) for buffer in Buffer)
    execute(program, schedule, runtime, instances=number, seed=seed)
    text = emit_xml(program, runtime)
    assert parse_xml(text, "x", runtime) == program
    assert not verify_program(text, runtime, kind=kind).violations


def test_every_copy_has_a_part_of_each_shard_and_threadblocks_of_its_own():
    """Two ranks with shards of two chunks, three copies: the last one has the cells 4 and 5 of a shard, and 10 and 11 of rank 1's in the output."""
    instance = one_instance(cases.ring_allgather(2, 2), LoweringOptions(EXECUTOR))
    program = instance.copies(3, Protocol.LL)
    assert program.num_chunks_per_loop == 3 * 4
    assert program.num_channels == 3 * instance.program.num_channels
    blocks = program.gpus[0].threadblocks
    assert [tb.channel for tb in blocks if tb.recv_peer == 1] == [0, 1, 2]
    arrivals = [(step.dst, step.count) for tb in blocks for step in tb.steps if step.op.receives]
    assert arrivals == [(Address(Buffer.OUTPUT, first), 2) for first in (6, 8, 10)]
    number = len(instance.program.gpus[0].threadblocks)
    for copy in range(3):
        own = range(copy * number, (copy + 1) * number)
        waits = [step.depends_on[0] for place in own for step in blocks[place].steps if step.depends_on]
        assert all(wait in own for wait in waits)


def test_steps_with_data_of_several_ranks_have_no_copies():
    """Rank 1 passes two shards on at once in both directions; in an AllReduce all is one shard, and recursive doubling can be copied."""
    plan = cases.Planner(cases.full(3), Collective(Kind.ALLGATHER, 3))
    for src, dst, chunks in [(0, 1, (0,)), (2, 1, (2,)), (1, 2, (0, 1)), (1, 0, (1, 2))]:
        plan.send(src, dst, *chunks)
    torn = one_instance(plan.schedule(), LoweringOptions(EXECUTOR))
    with pytest.raises(LoweringError, match="several ranks"):
        torn.copies(2, Protocol.LL)
    assert one_instance(cases.recursive_doubling(4), LoweringOptions(EXECUTOR)).copies(2, Protocol.LL)


def test_sizes_of_copies_are_those_at_which_their_operations_carry_enough():
    """Both partners send six cells before they receive: two slots are enough if an operation carries three, and twice the cells have twice the size."""
    instance = one_instance(cases.direct_alltoall(2, 6), LoweringOptions(EXECUTOR, protocol=Protocol.LL))
    assert instance.least_cells == {2: 3, 8: 1}
    assert instance.copies(1, Protocol.SIMPLE).max_bytes == 2 * 6 * ((2 << 20) // 3)
    for protocol in Protocol:
        once, twice = instance.copies(1, protocol).max_bytes, instance.copies(2, protocol).max_bytes
        assert twice == min(2 * once, 1 << 40)
    assert instance.copies(2, Protocol.LL, 4096).max_bytes == 4096
    with pytest.raises(LoweringError, match="safe up to"):
        instance.copies(2, Protocol.LL, 1 << 41)


def test_flags_that_come_too_early_for_a_program_of_another_protocol_are_refused():
    instance = one_instance(cases.direct_alltoall(3), LoweringOptions(RCCL, protocol=Protocol.SIMPLE))
    with pytest.raises(LoweringError, match="too early"):
        instance.copies(2, Protocol.LL)
    assert one_instance(cases.direct_alltoall(3), LoweringOptions(RCCL, protocol=Protocol.LL)).copies(2, Protocol.LL)


def test_copies_whose_offsets_a_runtime_has_no_room_for_cannot_be():
    """Rank 1's shard of 64 chunks is one step: of the last of n copies it begins at 64 (2 n - 1) of the output, and 32767 can be named."""
    instance = one_instance(cases.ring_allgather(2, 64), LoweringOptions(EXECUTOR))
    assert instance.last_offset(Buffer.OUTPUT, 256) == 64 * 511
    assert instance.can_be(256)
    assert not instance.can_be(257)
