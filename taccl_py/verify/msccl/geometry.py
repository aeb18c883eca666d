"""Lengths of the buffers, where they lie in each other in place, and how sizes become FIFO operations.

A chunk is ``nBytes / nchunksperloop`` bytes. One FIFO operation carries at most `Runtime.payload_bytes`, so a step of
``cnt`` chunks becomes ``ceil(cnt / m)`` operations, where m, the number of chunks that fit into one operation, falls to 1 as
the message grows.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.collective import Buffer, Kind

_PER_RANK = frozenset({Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL})


@dataclass(frozen=True, slots=True)
class BufferLengths:
    """True lengths of the user's buffers in chunks.

    Attributes
    ----------
    kind
        The collective, or None when it is not known (a legacy custom file).
    shard
        Chunks of one rank's shard; of the whole buffer for AllReduce, Broadcast and Reduce.
    input_chunks, output_chunks
        Lengths where the buffer exists.
    """

    kind: Kind | None
    num_ranks: int
    shard: int
    input_chunks: int
    output_chunks: int

    def chunks(self, buffer: Buffer) -> int:
        """True length of the input or the output buffer."""
        return self.input_chunks if buffer is Buffer.INPUT else self.output_chunks


@dataclass(frozen=True, slots=True)
class Region:
    """Places of one rank's buffers in one row of cells, for one placement.

    Attributes
    ----------
    has_input, has_output
        False where the user may pass NULL; such a buffer gets cells of its own that nobody may touch.
    """

    input_base: int
    output_base: int
    scratch_base: int
    num_cells: int
    has_input: bool
    has_output: bool

    def base(self, buffer: Buffer) -> int:
        """First cell of a buffer."""
        if buffer is Buffer.INPUT:
            return self.input_base
        return self.output_base if buffer is Buffer.OUTPUT else self.scratch_base


@dataclass(frozen=True, slots=True)
class BufferPlacement:
    """Layout of the user's buffers: in place or not; `root` is None while it is not known."""

    in_place: bool
    root: int | None

    @property
    def text(self) -> str:
        """Name for people."""
        return "in place" if self.in_place else "out of place"


def divides_among_ranks(kind: Kind | None, custom: bool) -> bool:
    """True if nchunksperloop counts all ranks' shards and so must be a multiple of the number of ranks."""
    return kind in _PER_RANK or (custom and kind in (Kind.GATHER, Kind.SCATTER))


def geometry_of(kind: Kind | None, num_ranks: int, num_chunks_per_loop: int, *, custom: bool) -> BufferLengths:
    """Buffer lengths of a collective.

    `custom` says that the runtime knows no such collective, so nchunksperloop is the longer buffer; a runtime that
    knows Gather and Scatter counts one rank's shard there.
    """
    n, whole = num_ranks, num_chunks_per_loop
    if kind in (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.GATHER, Kind.SCATTER):
        shard = whole // n if divides_among_ranks(kind, custom) else whole
        if kind in (Kind.ALLGATHER, Kind.GATHER):
            return BufferLengths(kind, n, shard, shard, shard * n)
        return BufferLengths(kind, n, shard, shard * n, shard)
    shard = whole // n if kind is Kind.ALLTOALL else whole
    return BufferLengths(kind, n, shard, whole, whole)


def lay_out(geometry: BufferLengths, placement: BufferPlacement, rank: int, scratch_chunks: int) -> Region:
    """Cells of one rank.

    In place AllGather's input is its part of the output, ReduceScatter's output its part of the input, and the same at
    the root of Gather and Scatter; the others use one buffer for both.
    """
    kind, shard = geometry.kind, geometry.shard
    away = placement.root is not None and rank != placement.root
    has_input = not (away and (kind is Kind.SCATTER or (kind is Kind.BROADCAST and not placement.in_place)))
    has_output = not (away and (kind is Kind.GATHER or (kind is Kind.REDUCE and not placement.in_place)))
    input_base, output_base = 0, geometry.input_chunks
    users = geometry.input_chunks + geometry.output_chunks
    if placement.in_place and has_input and has_output:
        users = max(geometry.input_chunks, geometry.output_chunks)
        input_base = rank * shard if kind in (Kind.ALLGATHER, Kind.GATHER) else 0
        output_base = rank * shard if kind in (Kind.REDUCESCATTER, Kind.SCATTER) else 0
    return Region(input_base, output_base, users, users + scratch_chunks, has_input, has_output)


def size_of_split(num_chunks_per_loop: int, payload_bytes: int, chunks_per_operation: int) -> int:
    """Largest message in bytes for which at least that many chunks go into one FIFO operation."""
    return num_chunks_per_loop * (payload_bytes // chunks_per_operation)


def operations_of(count: int, chunks_per_operation: int) -> int:
    """FIFO operations of a step of `count` chunks."""
    return -(-count // chunks_per_operation)
