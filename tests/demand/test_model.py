"""Demands: how chunks are cut, and put together again."""

from taccl_py.demand import ChunkPlace, DataChunk, DataDemand


def _chunk(size_bytes, held, wanted):
    return DataChunk(size_bytes, (tuple(ChunkPlace(*place) for place in held),), tuple(ChunkPlace(*p) for p in wanted))


def _demand(*chunks):
    return DataDemand("mine", 3, chunks, (64, 64, 64), (64, 64, 64), "float32")


def test_chunks_that_were_cut_are_put_together():
    demand = _demand(_chunk(16, [(0, 0)], [(1, 0), (2, 32)]), _chunk(24, [(1, 40)], [(0, 8)]))
    cut = demand.cut(((0, 0, 4), (1, 0, 20), (0, 4, 12), (1, 20, 4)))
    assert len(cut.chunks) == 4
    assert set(cut.joined().chunks) == set(demand.chunks)
    assert sorted(numbers for _, numbers in cut.wholes()) == [[0, 2], [1, 3]]


def test_chunks_that_lie_together_on_one_side_alone_stay_apart():
    demand = _demand(_chunk(16, [(0, 0)], [(1, 0)]), _chunk(16, [(0, 16)], [(1, 20)]), _chunk(16, [(0, 32)], [(2, 36)]))
    assert set(demand.joined().chunks) == set(demand.chunks)
