"""Demands by formula: the eight collectives, those whose counts differ from rank to rank, and sends between pairs of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import accumulate

from taccl_py.collective import Collective
from taccl_py.demand.model import DTYPES, ChunkPlace, DataChunk, DataDemand
from taccl_py.errors import InputError
from taccl_py.units import MAX_RANKS

# Size of what a skew spreads where none is named.
DEFAULT_SIZE = "1MB"


class Variable(StrEnum):
    """Demands by formula whose counts differ."""

    ALLTOALLV = "alltoallv"
    ALLGATHERV = "allgatherv"
    REDUCESCATTERV = "reducescatterv"
    SENDRECV = "sendrecv"


class ExpertExchange(StrEnum):
    """Exchanges of a mixture of experts, whose demands a routing makes."""

    MOE_DISPATCH = "moe-dispatch"
    MOE_COMBINE = "moe-combine"


def exchange_of(text: str) -> ExpertExchange | None:
    """Exchange of a name, in capitals, with hyphens or without; None if it is none."""
    word = text.lower().replace("-", "").replace("_", "")
    return next((one for one in ExpertExchange if one.replace("-", "") == word), None)


def variable_of(text: str) -> Variable | None:
    """Formula of a name, in capitals, with hyphens or without; None if it is none."""
    word = text.lower().replace("-", "").replace("_", "")
    return Variable(word) if word in tuple(Variable) else None


def of_collective(collective: Collective, chunk_bytes: int, dtype: str = "uint8") -> DataDemand:
    """One of the eight collectives as a demand, chunk by chunk and with its buffers.

    Parameters
    ----------
    collective
        Which one.
    chunk_bytes
        Size of its chunks.
    dtype
        Type of the elements.

    Raises
    ------
    InputError
        If the size is no multiple of an element.
    """
    everyone = range(collective.num_ranks)
    chunks = []
    for chunk in range(collective.num_chunks):
        sources = everyone if collective.reduces else (collective.source[chunk],)
        had = [ChunkPlace(rank, _offset(collective, chunk, rank) * chunk_bytes) for rank in sources]
        terms = tuple((region,) for region in had)
        wants = tuple(
            ChunkPlace(rank, _offset(collective, chunk, rank, wanted=True) * chunk_bytes)
            for rank in collective.wanted[chunk]
        )
        chunks.append(DataChunk(chunk_bytes, terms, wants))
    lengths = [_lengths(chunks, collective.num_ranks, wanted=wanted) for wanted in (False, True)]
    return DataDemand(str(collective.kind), collective.num_ranks, tuple(chunks), lengths[0], lengths[1], dtype)


def _offset(collective: Collective, chunk: int, rank: int, *, wanted: bool = False) -> int:
    address = collective.output_address(chunk, rank) if wanted else collective.input_address(chunk, rank)
    if address is None:
        raise ValueError(f"{collective.describe_chunk(chunk)} has no place on rank {rank}")
    return address.offset


def _lengths(chunks: Sequence[DataChunk], num_ranks: int, *, wanted: bool) -> tuple[int, ...]:
    """Lengths of buffers that hold all chunks."""
    found = [0] * num_ranks
    for chunk in chunks:
        for rank, offset in chunk.wants if wanted else (region for term in chunk.terms for region in term):
            found[rank] = max(found[rank], offset + chunk.size_bytes)
    return tuple(found)


def alltoallv(counts: Sequence[Sequence[int]], dtype: str = "uint8") -> DataDemand:
    """AllToAllv: rank s sends ``counts[s][d]`` elements to rank d; 0 is nothing, and what a rank sends itself is copied.

    Buffers hold what goes to, or comes from, rank 0, then rank 1, and so on.

    Raises
    ------
    InputError
        If it is no square matrix of counts, or nothing goes anywhere.
    """
    ranks = _require_ranks(len(counts))
    size = DTYPES[dtype]
    for row, line in enumerate(counts):
        if len(line) != ranks:
            raise InputError(
                f"row {row} has {len(line)} counts, and there are {ranks} rows; a square matrix is needed",
                field="counts",
            )
    _require_counts(count for line in counts for count in line)
    starts = [list(accumulate(line, initial=0)) for line in counts]
    ends = [list(accumulate((counts[s][d] for s in range(ranks)), initial=0)) for d in range(ranks)]
    chunks = tuple(
        DataChunk(counts[s][d] * size, ((ChunkPlace(s, starts[s][d] * size),),), (ChunkPlace(d, ends[d][s] * size),))
        for s in range(ranks)
        for d in range(ranks)
        if counts[s][d]
    )
    inputs, outputs = (tuple(line[-1] * size for line in lines) for lines in (starts, ends))
    return DataDemand("alltoallv", ranks, chunks, inputs, outputs, dtype)


def allgatherv(counts: Sequence[int], dtype: str = "uint8") -> DataDemand:
    """AllGatherv: rank r gives ``counts[r]`` elements to all; the outputs hold them in order of rank.

    Raises
    ------
    InputError
        If a count is below 0, or all are 0.
    """
    ranks, size = _require_ranks(len(counts)), DTYPES[dtype]
    _require_counts(counts)
    starts = list(accumulate(counts, initial=0))
    chunks = tuple(
        DataChunk(
            counts[r] * size, ((ChunkPlace(r, 0),),), tuple(ChunkPlace(to, starts[r] * size) for to in range(ranks))
        )
        for r in range(ranks)
        if counts[r]
    )
    inputs = tuple(count * size for count in counts)
    return DataDemand("allgatherv", ranks, chunks, inputs, (starts[-1] * size,) * ranks, dtype)


def reducescatterv(counts: Sequence[int], dtype: str = "float32") -> DataDemand:
    """ReduceScatterv: of the sum of all inputs rank r gets ``counts[r]`` elements, those behind the ones of the ranks before it.

    Raises
    ------
    InputError
        If a count is below 0, or all are 0.
    """
    ranks, size = _require_ranks(len(counts)), DTYPES[dtype]
    _require_counts(counts)
    starts = list(accumulate(counts, initial=0))
    chunks = tuple(
        DataChunk(
            counts[r] * size, tuple((ChunkPlace(of, starts[r] * size),) for of in range(ranks)), (ChunkPlace(r, 0),)
        )
        for r in range(ranks)
        if counts[r]
    )
    outputs = tuple(count * size for count in counts)
    return DataDemand("reducescatterv", ranks, chunks, (starts[-1] * size,) * ranks, outputs, dtype)


def sendrecv(pairs: Sequence[tuple[int, int, int]], num_ranks: int, dtype: str = "uint8") -> DataDemand:
    """Sends between pairs of ranks, as of a pipeline: (source, destination, elements), in the order in which they lie in the buffers.

    Raises
    ------
    InputError
        If a rank does not exist or sends to itself, or a count is not above 0.
    """
    _require_ranks(num_ranks)
    size = DTYPES[dtype]
    inputs, outputs = [0] * num_ranks, [0] * num_ranks
    chunks = []
    for number, (source, destination, count) in enumerate(pairs):
        for rank in (source, destination):
            if not 0 <= rank < num_ranks:
                raise InputError(f"pair {number} names rank {rank}, ranks are 0..{num_ranks - 1}", field="pairs")
        if source == destination:
            raise InputError(f"pair {number} sends from rank {source} to itself; leave it out", field="pairs")
        if count <= 0:
            raise InputError(f"pair {number} has {count} elements, at least 1 is needed", field="pairs")
        place, target = ChunkPlace(source, inputs[source]), ChunkPlace(destination, outputs[destination])
        chunks.append(DataChunk(count * size, ((place,),), (target,)))
        inputs[source] += count * size
        outputs[destination] += count * size
    return DataDemand("sendrecv", num_ranks, tuple(chunks), tuple(inputs), tuple(outputs), dtype)


def _require_ranks(ranks: int) -> int:
    if not 2 <= ranks <= MAX_RANKS:
        raise InputError(f"found counts for {ranks} ranks, 2 to {MAX_RANKS} are possible", field="counts")
    return ranks


def _require_counts(counts: Iterable[int]) -> None:
    """Refuse counts below 0, and nothing at all."""
    found = list(counts)
    wrong = next((count for count in found if count < 0), None)
    if wrong is not None:
        raise InputError(f"found the count {wrong}; counts are 0 or more", field="counts")
    if not any(found):
        raise InputError("all counts are 0, so nothing moves", field="counts")
