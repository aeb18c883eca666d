import pytest

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import BufferSizes, CallPlacement, Flags, placement_flags
from taccl_py.runtimes import EXECUTOR, LEGACY


@pytest.mark.parametrize("kind", Kind)
def test_cells_that_are_the_same_memory_in_place_hold_what_the_collective_says(kind):
    """Except in AllToAll, a rank's own chunk lies where it wants the chunk (or its sum) in the end."""
    collective = Collective(kind, 3, 2)
    geometry = BufferSizes(collective, 2, exact=False)
    for chunk in range(collective.num_chunks):
        for rank in range(3):
            own, wanted = collective.input_address(chunk, rank), collective.output_address(chunk, rank)
            if own and wanted:
                for part in range(2):
                    under = geometry.input_under(rank, wanted.offset * 2 + part)
                    assert under == own.offset * 2 + part


def test_output_cells_beside_the_input_have_nothing_under_them():
    geometry = BufferSizes(Collective(Kind.ALLGATHER, 3, 2), 1, exact=False)
    assert [geometry.input_under(1, offset) for offset in range(6)] == [None, None, 0, 1, None, None]


def test_in_alltoall_a_cell_has_the_chunk_for_the_rank_that_its_new_one_comes_from():
    geometry = BufferSizes(Collective(Kind.ALLTOALL, 3), 1, exact=False)
    assert [geometry.input_under(1, offset) for offset in range(3)] == [0, 1, 2]


def test_sizes_of_a_call_count_what_the_runtime_counts():
    gather = Collective(Kind.GATHER, 4, 2)
    assert BufferSizes(gather, 3, exact=False).bytes_per_call(100.0) == 200.0
    assert BufferSizes(gather, 3, exact=True).bytes_per_call(100.0) == 800.0
    assert BufferSizes(Collective(Kind.ALLGATHER, 4, 2), 3, exact=False).bytes_per_call(100.0) == 800.0
    assert BufferSizes(Collective(Kind.BROADCAST, 4, 2), 3, exact=False).bytes_per_call(100.0) == 200.0


def test_a_buffer_that_is_not_used_is_declared_empty():
    geometry = BufferSizes(Collective(Kind.ALLGATHER, 4, 2), 3, exact=True)
    assert geometry.declared(Buffer.INPUT, 0, used=True) == 6
    assert geometry.declared(Buffer.OUTPUT, 0, used=True) == 24
    assert geometry.declared(Buffer.OUTPUT, 0, used=False) == 0


def test_a_gather_without_a_name_declares_the_buffers_that_there_are():
    geometry = BufferSizes(Collective(Kind.GATHER, 3, 2, root=1), 1, exact=True)
    assert [geometry.declared(Buffer.INPUT, rank, used=False) for rank in range(3)] == [6, 6, 6]
    assert [geometry.declared(Buffer.OUTPUT, rank, used=False) for rank in range(3)] == [0, 6, 0]


def test_placements_become_the_two_flags():
    found = {placement: placement_flags(placement, EXECUTOR, Kind.ALLTOALL) for placement in CallPlacement}
    assert found == {
        CallPlacement.BOTH: Flags(True, True),
        CallPlacement.IN_PLACE: Flags(True, False),
        CallPlacement.OUT_OF_PLACE: Flags(False, True),
    }
    assert placement_flags(CallPlacement.BOTH, LEGACY, Kind.ALLREDUCE) == Flags(True, False)
    assert placement_flags(CallPlacement.BOTH, LEGACY, Kind.ALLTOALL) == Flags(False, True)
    with pytest.raises(LoweringError, match="placement 'out'"):
        placement_flags(CallPlacement.IN_PLACE, LEGACY, Kind.ALLTOALL)
