from taccl_py.collective import Collective, Kind
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.contiguous import Stretches
from tests.lowering.blocks import cells, copy, recv


def test_cells_that_are_always_touched_together_are_one_stretch():
    stretches = Stretches([recv(0, "o0-9", 0), copy(1, "o2-4", "s0-2"), recv(2, "o0-3", 1, rank=1)])
    assert [len(stretches.of(0, cells(run))) for run in ("o0-9", "o2-4", "s0-2")] == [3, 1, 1]
    assert len(stretches.of(1, cells("o0-3"))) == 1  # every rank is cut by its own actions
    assert list(stretches.of(0, cells("o2-4"))) == list(stretches.of(0, cells("o0-9")))[1:2]
    assert len(stretches.of(0, None)) == 0


def test_all_output_is_found_and_nothing_else():
    """Cell 8, which nobody touches, is a stretch as well."""
    stretches = Stretches([copy(0, "i0-3", "o4-7"), copy(1, "s0", "o9"), copy(2, "i0-3", "o0-3", rank=1)])
    (first,), (last,), (other,) = (stretches.of(r, cells(run)) for r, run in ((0, "o4-7"), (0, "o9"), (1, "o0-3")))
    assert stretches.outputs() == [first, first + 1, last, other]


def test_in_place_what_is_the_same_memory_is_the_same_stretch():
    """Rank 1 of an AllGather of 4 chunks each has its input in cells 4 to 7 of its output."""
    geometry = BufferSizes(Collective(Kind.ALLGATHER, 2, 4), 1, exact=False)
    stretches = Stretches([copy(0, "i1-2", "o2-8", rank=1)], geometry)
    inside = stretches.in_place(stretches.of(1, cells("o2-8")))
    own = stretches.of(1, cells("i1-2"))
    # Output 2 and 3, then input 0, 1 to 2, 3, then output 8.
    assert len(inside) == 5
    assert inside[2] == own[0]
    assert stretches.in_place(own) == list(own)
