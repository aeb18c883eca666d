"""Collectives: the eight kinds, their chunks, and where chunks live in the buffers.

A collective over R ranks has C chunks of equal size. A *routed* collective (AllGather, AllToAll, Broadcast, Gather,
Scatter) has one source rank for each chunk and a set of ranks that want it. A *combining* collective (Reduce,
ReduceScatter, AllReduce) sums for each chunk one contribution of every rank; Reduce and ReduceScatter are Broadcast and
AllGather run backwards, which is what `Collective.dual` says.

Chunk numbering (k chunks per rank):

* AllGather, ReduceScatter, AllReduce: chunk ``r*k + j`` is part j of rank r's shard.
* AllToAll: chunk ``(s*R + d)*k + j`` goes from rank s to rank d.
* Broadcast, Reduce: chunk ``j`` of the one buffer, j < k.
* Gather, Scatter: chunk ``r*k + j`` comes from, or goes to, rank r.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

from taccl_py.errors import InputError
from taccl_py.pickles import pickled_by_fields
from taccl_py.spelling import did_you_mean
from taccl_py.units import MAX_CHUNK_COPIES, MAX_RANKS


class Kind(StrEnum):
    """The collectives, spelled as on the command line."""

    ALLGATHER = "allgather"
    REDUCESCATTER = "reducescatter"
    ALLREDUCE = "allreduce"
    ALLTOALL = "alltoall"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"


COMBINING = frozenset({Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.REDUCE})
ROOTED = frozenset({Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER})
_WANTED_BY_ALL = frozenset({Kind.ALLGATHER, Kind.ALLREDUCE, Kind.BROADCAST})
# Calls near a size are at most this part of it apart. Guess: programs' cells have 16 bytes or more, so that those of the size fit.
_FINENESS = 16
_DUAL = {Kind.REDUCE: Kind.BROADCAST, Kind.REDUCESCATTER: Kind.ALLGATHER}


class Buffer(StrEnum):
    """Buffers of a rank, spelled as in MSCCL XML."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


@pickled_by_fields
@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A chunk-sized cell of one rank's buffer; offsets are in chunks."""

    buffer: Buffer
    offset: int


# Schedules name the same few cells millions of times.
_address = lru_cache(maxsize=1 << 16, typed=True)(Address)


def parse_kind(text: str) -> Kind:
    """Kind of a collective's name; ``AllGather``, ``all-gather``, ``reduce_scatter`` and so on are understood.

    Raises
    ------
    InputError
        If there is no such collective.
    """
    word = text.lower().replace("-", "").replace("_", "")
    try:
        return Kind(word)
    except ValueError:
        known = ", ".join(Kind)
        hint = did_you_mean(word, Kind)
        raise InputError(f"{text!r} is not a collective; {hint}use one of: {known}") from None


def busbw_factor(kind: Kind, num_ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth of a collective of so many ranks."""
    if kind is Kind.ALLREDUCE:
        return 2 * (num_ranks - 1) / num_ranks
    return 1.0 if kind in (Kind.BROADCAST, Kind.REDUCE) else (num_ranks - 1) / num_ranks


@dataclass(frozen=True)
class Collective:
    """One collective over ranks 0..R-1.

    Attributes
    ----------
    kind
        Which one.
    num_ranks
        R.
    chunks_per_rank
        k: chunks of one rank's shard (of the whole buffer for Broadcast and Reduce).
    root
        Root rank of the rooted ones, else 0.
    together
        AllReduce: chunks of R k that count as one, since all of them always travel together. 1 for others.

    Raises
    ------
    InputError
        If the root or the number of ranks or chunks is impossible; its field is the attribute.
    """

    kind: Kind
    num_ranks: int
    chunks_per_rank: int = 1
    root: int = 0
    together: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.num_ranks < 2:
            raise InputError(f"{self.kind} needs at least 2 ranks, found {self.num_ranks}", field="num_ranks")
        if self.num_ranks > MAX_RANKS:
            raise InputError(f"found {self.num_ranks} ranks, at most {MAX_RANKS} are possible", field="num_ranks")
        if self.chunks_per_rank < 1:
            raise InputError(
                f"chunks per rank must be at least 1, found {self.chunks_per_rank}", field="chunks_per_rank"
            )
        if self.together != 1 and (
            self.kind is not Kind.ALLREDUCE or self.together < 1 or self._shards % self.together
        ):
            raise InputError(
                f"{self.together} chunks of {self.kind} on {self.num_ranks} ranks cannot count as one", field="together"
            )
        copies = self.num_chunks * self.num_ranks
        if copies > MAX_CHUNK_COPIES:
            raise InputError(
                f"{self.num_chunks} chunks on {self.num_ranks} ranks are {copies} copies, more than {MAX_CHUNK_COPIES}; "
                "use fewer chunks or ranks",
                field="chunks_per_rank",
            )
        if not 0 <= self.root < self.num_ranks:
            raise InputError(f"root {self.root} does not exist, ranks are 0..{self.num_ranks - 1}", field="root")
        if self.root and self.kind not in ROOTED:
            raise InputError(f"{self.kind} has no root; leave the root out", field="root")

    @property
    def own_root(self) -> int | None:
        """The root of a rooted collective; None for others."""
        return self.root if self.kind in ROOTED else None

    @property
    def _shards(self) -> int:
        """Chunks of all ranks' shards."""
        return self.num_ranks * self.chunks_per_rank

    @property
    def reduces(self) -> bool:
        """True if contributions are summed."""
        return self.kind in COMBINING

    @property
    def num_arrivals(self) -> int:
        """Arrivals of a chunk at other ranks, at the least; sums count as what is gathered."""
        one_way = (Kind.ALLTOALL, Kind.SCATTER, Kind.GATHER)
        return self.num_chunks * (1 if self.kind in one_way else self.num_ranks - 1)

    @property
    def num_chunks(self) -> int:
        """C."""
        if self.kind is Kind.ALLTOALL:
            return self.num_ranks**2 * self.chunks_per_rank
        if self.kind in (Kind.BROADCAST, Kind.REDUCE):
            return self.chunks_per_rank
        return self._shards // self.together

    @property
    def chunks_per_size(self) -> int:
        """Chunks that the size of nccl-tests is spread over: ``chunk_bytes = size / chunks_per_size``."""
        if self.kind in (Kind.BROADCAST, Kind.REDUCE):
            return self.chunks_per_rank
        return self._shards // self.together

    @property
    def input_chunks(self) -> int:
        """Length of a rank's input buffer in chunks."""
        if self.kind in (Kind.ALLGATHER, Kind.GATHER, Kind.BROADCAST, Kind.REDUCE):
            return self.chunks_per_rank
        return self._shards // self.together

    @property
    def output_chunks(self) -> int:
        """Length of a rank's output buffer in chunks."""
        if self.kind in (Kind.REDUCESCATTER, Kind.SCATTER, Kind.BROADCAST, Kind.REDUCE):
            return self.chunks_per_rank
        return self._shards // self.together

    def chunk_bytes(self, size_bytes: float) -> float:
        """Bytes of one chunk for a size as nccl-tests counts it."""
        return size_bytes / self.chunks_per_size

    def served_bytes(self, size_bytes: float) -> float:
        """Size for which programs are made where a size is asked for: that one, or the nearest call if ranks do not divide it.

        Nearby calls that ranks divide are served by programs of more or fewer chunks and instances. Powers of two of these, which most
        calls allow, are not to be barred by the very size; so shares are multiples of as large a power of two as a few per cent allow.
        """
        shares = 1 if self.kind in (Kind.BROADCAST, Kind.REDUCE) else self.num_ranks
        if size_bytes % shares == 0:
            return size_bytes
        most = int(size_bytes / (_FINENESS * shares))
        step = shares << max(0, most.bit_length() - 1)
        return float(max(1, round(size_bytes / step)) * step)

    @property
    def busbw_factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it (its doc/PERFORMANCE.md)."""
        return busbw_factor(self.kind, self.num_ranks)

    def dual(self) -> Collective | None:
        """Return the routed collective that this one is, run backwards on the reversed machine; None when it is none."""
        kind = _DUAL.get(self.kind)
        return replace(self, kind=kind) if kind is not None else None

    @cached_property
    def source(self) -> tuple[int, ...]:
        """Rank that holds each chunk at the start (routed collectives)."""
        k, n = self.chunks_per_rank, self.num_ranks
        if self.reduces:
            raise ValueError(f"{self.kind} has no single source for a chunk")
        if self.kind is Kind.ALLTOALL:
            return tuple(c // (n * k) for c in range(self.num_chunks))
        if self.kind in (Kind.BROADCAST, Kind.SCATTER):
            return (self.root,) * self.num_chunks
        return tuple(c // k for c in range(self.num_chunks))

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold each chunk at the start (routed collectives): its source."""
        return tuple((rank,) for rank in self.source)

    @cached_property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold each chunk (complete, if it is a sum) at the end, the source included where it keeps it."""
        k, n = self.chunks_per_rank, self.num_ranks
        everyone = tuple(range(n))
        if self.kind in _WANTED_BY_ALL:
            return (everyone,) * self.num_chunks
        if self.kind in (Kind.REDUCE, Kind.GATHER):
            return ((self.root,),) * self.num_chunks
        if self.kind is Kind.ALLTOALL:
            return tuple((c // k % n,) for c in range(self.num_chunks))
        return tuple((c // k,) for c in range(self.num_chunks))

    def input_address(self, chunk: int, rank: int) -> Address | None:
        """Address of the rank's own contribution to the chunk at the start, or None."""
        k, n = self.chunks_per_rank, self.num_ranks
        if self.kind in (Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.REDUCE):
            return _address(Buffer.INPUT, chunk)
        if self.source[chunk] != rank:
            return None
        if self.kind is Kind.ALLTOALL:
            return _address(Buffer.INPUT, chunk % (n * k))
        if self.kind in (Kind.BROADCAST, Kind.SCATTER):
            return _address(Buffer.INPUT, chunk)
        return _address(Buffer.INPUT, chunk % k)

    def output_address(self, chunk: int, rank: int) -> Address | None:
        """Address at which the rank must hold the chunk at the end, or None if it does not want it."""
        k, n = self.chunks_per_rank, self.num_ranks
        # Looking through all ranks would take long where all of them want it.
        if self.kind not in _WANTED_BY_ALL and rank not in self.wanted[chunk]:
            return None
        if self.kind is Kind.ALLTOALL:
            return _address(Buffer.OUTPUT, chunk // (n * k) * k + chunk % k)
        if self.kind in (Kind.REDUCESCATTER, Kind.SCATTER):
            return _address(Buffer.OUTPUT, chunk % k)
        return _address(Buffer.OUTPUT, chunk)

    def permuted_chunk(self, chunk: int, image: tuple[int, ...]) -> int | None:
        """Chunk that `chunk` becomes when rank r is renamed ``image[r]``, or None when the root moves or ranks share chunks."""
        k, n = self.chunks_per_rank, self.num_ranks
        if (self.kind in ROOTED and image[self.root] != self.root) or self.together > 1:
            return None
        if self.kind in (Kind.BROADCAST, Kind.REDUCE):
            return chunk
        if self.kind is Kind.ALLTOALL:
            src, dst, part = chunk // (n * k), chunk // k % n, chunk % k
            return (image[src] * n + image[dst]) * k + part
        return image[chunk // k] * k + chunk % k

    def describe_chunk(self, chunk: int) -> str:
        """Name of a chunk for people."""
        k, n = self.chunks_per_rank, self.num_ranks
        part = f", part {chunk % k}" if k > 1 else ""
        if self.kind is Kind.ALLTOALL:
            return f"chunk {chunk} (rank {chunk // (n * k)} to rank {chunk // k % n}{part})"
        if self.kind in (Kind.BROADCAST, Kind.REDUCE) or self.together > 1:
            return f"chunk {chunk}"
        return f"chunk {chunk} (of rank {chunk // k}{part})"
