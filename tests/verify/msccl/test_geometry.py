"""Lengths and places of buffers, and how many chunks fit into one operation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.verify.msccl.geometry import BufferPlacement, geometry_of, lay_out, operations_of, size_of_split


@pytest.mark.parametrize("kind", list(Kind))
def test_lengths_agree_with_the_collective(kind: Kind) -> None:
    """nchunksperloop is the longer buffer, except for Gather and Scatter, where it is one rank's shard."""
    n, per = 4, 3
    collective = Collective(kind, n, n * per if kind in (Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE) else per)
    if kind is Kind.ALLREDUCE:
        collective = Collective(kind, n, per)
    share = kind in (Kind.GATHER, Kind.SCATTER)
    whole = per if share else max(collective.input_chunks, collective.output_chunks)
    geometry = geometry_of(kind, n, whole, custom=False)
    assert (geometry.input_chunks, geometry.output_chunks) == (collective.input_chunks, collective.output_chunks)
    custom = geometry_of(kind, n, max(collective.input_chunks, collective.output_chunks), custom=True)
    assert custom == geometry


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("in_place", [False, True])
def test_buffers_lie_apart_or_as_the_collective_has_it_in_place(kind: Kind, in_place: bool) -> None:
    n, rank, scratch = 3, 1, 2
    geometry = geometry_of(kind, n, 6, custom=False)
    region = lay_out(geometry, BufferPlacement(in_place, rank), rank, scratch)
    cells = {
        buffer: range(region.base(buffer), region.base(buffer) + length)
        for buffer, length in (
            (Buffer.INPUT, geometry.input_chunks), (Buffer.OUTPUT, geometry.output_chunks), (Buffer.SCRATCH, scratch)
        )
    }  # fmt: skip
    covered = sorted({cell for each in cells.values() for cell in each})
    assert covered == list(range(region.num_cells))
    assert not set(cells[Buffer.SCRATCH]) & ({*cells[Buffer.INPUT], *cells[Buffer.OUTPUT]})
    shared = set(cells[Buffer.INPUT]) & set(cells[Buffer.OUTPUT])
    assert len(shared) == (min(geometry.input_chunks, geometry.output_chunks) if in_place else 0)
    if in_place and kind in (Kind.ALLGATHER, Kind.GATHER):
        assert cells[Buffer.INPUT].start - cells[Buffer.OUTPUT].start == rank * geometry.shard
    if in_place and kind in (Kind.REDUCESCATTER, Kind.SCATTER):
        assert cells[Buffer.OUTPUT].start - cells[Buffer.INPUT].start == rank * geometry.shard


@pytest.mark.parametrize(
    ("kind", "in_place", "has_input", "has_output"),
    [
        (Kind.BROADCAST, False, False, True), (Kind.BROADCAST, True, True, True),
        (Kind.REDUCE, False, True, False), (Kind.REDUCE, True, True, True),
        (Kind.SCATTER, False, False, True), (Kind.SCATTER, True, False, True),
        (Kind.GATHER, False, True, False), (Kind.GATHER, True, True, False),
        (Kind.ALLREDUCE, False, True, True),
    ],
)  # fmt: skip
def test_a_rank_that_is_not_the_root_may_lack_a_buffer(
    kind: Kind, in_place: bool, has_input: bool, has_output: bool
) -> None:
    region = lay_out(geometry_of(kind, 3, 6, custom=False), BufferPlacement(in_place, 0), 2, 0)
    assert (region.has_input, region.has_output) == (has_input, has_output)


@given(
    st.integers(1, 600),
    st.sampled_from([16384, 32768, 50176, 576000, 2097152]),
    st.integers(1, 71),
    st.integers(1, 10**9),
)
def test_the_size_of_a_split_is_the_largest_with_that_many_chunks(
    ncl: int, payload: int, chunks: int, size: int
) -> None:
    """Against the runtimes' own rule: floor(payload / ceil(size / ncl)), at least 1."""
    limit = size_of_split(ncl, payload, chunks)
    for size_bytes in (limit, limit + 1, size):
        allowed = max(1, payload // -(-size_bytes // ncl))
        assert (allowed >= chunks) is (size_bytes <= limit or chunks == 1)


def test_a_step_is_cut_into_whole_operations() -> None:
    assert [operations_of(8, chunks) for chunks in (1, 3, 7, 8, 71)] == [8, 3, 2, 1, 1]
