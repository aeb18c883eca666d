"""The demand: chunks of any size, each with its terms, those who want it, and its places.

A chunk is a sum of *terms*. Most have one, which one or more ranks hold at the start: whoever holds it may send it. A sum has several, such as
a contribution of every rank; a term of a sum may lie on several ranks too, and counts once, wherever it is taken from. A rank holds at most one
term of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, NoReturn

from taccl_py.errors import InputError
from taccl_py.spelling import did_you_mean
from taccl_py.units import MAX_CHUNK_COPIES, MAX_RANKS, MAX_SIZE_BYTES

# Bytes of an element, by numpy's names.
DTYPES = {
    "int8": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "half": "float16"}
_SHORT |= {"byte": "uint8", "bytes": "uint8", "float": "float32", "double": "float64"}


def dtype_named(text: str) -> str:
    """Name of an element type; ``fp32``, ``bf16`` and so on are understood.

    Raises
    ------
    InputError
        If there is no such type.
    """
    word = text.strip().lower().removeprefix("torch.")
    word = _SHORT.get(word, word)
    if word not in DTYPES:
        raise InputError(
            f"{text!r} is not a type of elements; {did_you_mean(word, DTYPES)}use one of: {', '.join(DTYPES)}"
        )
    return word


class ChunkPlace(NamedTuple):
    """Place of a chunk in a buffer of a rank: from `offset_bytes` on."""

    rank: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class DataChunk:
    """Bytes that belong together.

    Attributes
    ----------
    size_bytes
        How many.
    terms
        For every term of the sum that the chunk is, where it lies in the input of those who hold it; one term for what is only copied.
    wants
        Where it is to lie in the output of those who want it.
    """

    size_bytes: int
    terms: tuple[tuple[ChunkPlace, ...], ...]
    wants: tuple[ChunkPlace, ...]

    @property
    def is_sum(self) -> bool:
        """True if contributions are added."""
        return len(self.terms) > 1

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold each term."""
        return tuple(tuple(region.rank for region in term) for term in self.terms)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Ranks that want it."""
        return tuple(region.rank for region in self.wants)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Ranks to which it must come: those that want it and do not hold all of it already."""
        if self.is_sum:
            return self.wanted
        (holders,) = self.holders
        return tuple(rank for rank in self.wanted if rank not in holders)

    def part(self, first: int, size_bytes: int) -> DataChunk:
        """So many bytes of it, from `first` on."""
        if not first:
            return DataChunk(size_bytes, self.terms, self.wants)
        terms = tuple(tuple(ChunkPlace(r, at + first) for r, at in term) for term in self.terms)
        return DataChunk(size_bytes, terms, tuple(ChunkPlace(r, at + first) for r, at in self.wants))

    def goes_on_in(self, other: DataChunk) -> bool:
        """True if the other one lies right behind this one wherever it is held and wanted."""
        return self.part(self.size_bytes, other.size_bytes) == other


@dataclass(frozen=True)
class DataDemand:
    """A demand between ranks 0..R-1.

    Attributes
    ----------
    name
        Name for people and file names.
    num_ranks
        R.
    chunks
        See `DataChunk`.
    input_bytes, output_bytes
        Length of every rank's buffers, which may differ and may be 0.
    dtype
        Type of the elements; chunks are cut between elements only.

    Raises
    ------
    InputError
        If it contradicts itself; its field is the place in a demand file.
    """

    name: str
    num_ranks: int
    chunks: tuple[DataChunk, ...]
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 2 <= self.num_ranks <= MAX_RANKS:
            raise InputError(f"found {self.num_ranks} ranks, 2 to {MAX_RANKS} are possible", field="ranks")
        if self.dtype not in DTYPES:
            raise InputError(f"found {self.dtype!r}, one of {', '.join(DTYPES)} is needed", field="dtype")
        for field, lengths in (("input_bytes", self.input_bytes), ("output_bytes", self.output_bytes)):
            if len(lengths) != self.num_ranks:
                raise InputError(
                    f"found {len(lengths)} lengths, one for each of the {self.num_ranks} ranks is needed", field=field
                )
            wrong = next((length for length in lengths if not 0 <= length <= MAX_SIZE_BYTES), None)
            if wrong is not None:
                raise InputError(f"found {wrong} bytes, 0 to {MAX_SIZE_BYTES} are possible", field=field)
        if not self.chunks:
            raise InputError("found no chunk; name what must move", field="chunks")
        for number, chunk in enumerate(self.chunks):
            self._check(number, chunk)
        copies = sum(len(chunk.wants) for chunk in self.chunks)
        if copies > MAX_CHUNK_COPIES:
            raise InputError(
                f"found {copies} copies that ranks want, at most {MAX_CHUNK_COPIES} are possible", field="chunks"
            )
        self._check_outputs()

    def _check(self, number: int, chunk: DataChunk) -> None:
        """Refuse a chunk that is impossible by itself."""
        size = chunk.size_bytes
        if not 0 < size <= MAX_SIZE_BYTES or size % self.element_bytes:
            self._fail(
                number,
                "bytes",
                f"found {size}, a positive multiple of {self.element_bytes} (an element of {self.dtype}) is needed",
            )
        word = "adds" if chunk.is_sum else "holds"
        if not chunk.terms or not all(chunk.terms):
            self._fail(
                number,
                word,
                "found no rank; name a rank that holds it, or ranks whose contributions are added",
            )
        if not chunk.wants:
            self._fail(number, "wants", "found nobody who wants it; name a rank, or leave the chunk out")
        held = [region for term in chunk.terms for region in term]
        for field, regions, lengths in ((word, held, self.input_bytes), ("wants", chunk.wants, self.output_bytes)):
            seen: set[int] = set()
            for rank, offset in regions:
                if not 0 <= rank < self.num_ranks:
                    self._fail(number, field, f"found rank {rank}, ranks are 0..{self.num_ranks - 1}")
                if rank in seen:
                    self._fail(number, field, f"names rank {rank} twice; name it once")
                seen.add(rank)
                if offset < 0 or offset % self.element_bytes:
                    self._fail(
                        number,
                        field,
                        f"found the offset {offset} on rank {rank}, a multiple of {self.element_bytes} from 0 on is needed",
                    )
                if offset + size > lengths[rank]:
                    self._fail(
                        number, field,
                        f"bytes {offset}..{offset + size - 1} of rank {rank} lie outside its buffer of {lengths[rank]} bytes",
                    )  # fmt: skip

    def _check_outputs(self) -> None:
        """Refuse chunks that would lie on each other."""
        by_rank: list[list[tuple[int, int, int]]] = [[] for _ in range(self.num_ranks)]
        for number, chunk in enumerate(self.chunks):
            for rank, offset in chunk.wants:
                by_rank[rank].append((offset, offset + chunk.size_bytes, number))
        for rank, spans in enumerate(by_rank):
            for one, two in pairwise(sorted(spans)):
                if two[0] < one[1]:
                    self._fail(
                        two[2],
                        "wants",
                        f"lies on chunk {one[2]} in the output of rank {rank}; give each a place of its own",
                    )

    def _fail(self, number: int, field: str, what: str) -> NoReturn:
        raise InputError(what, field=f"chunks/{number}/{field}")

    @property
    def title(self) -> str:
        """The word demand and its name, for sentences."""
        return f"demand {self.name}" if self.name != "demand" else self.name

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype]

    @property
    def reduces(self) -> bool:
        """True if some chunk is a sum."""
        return any(chunk.is_sum for chunk in self.chunks)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes that must come to ranks which do not have them, a sum counted once for each that wants it."""
        return sum(chunk.size_bytes * len(chunk.lacking) for chunk in self.chunks)

    @property
    def longest_bytes(self) -> int:
        """Length of the longest buffer."""
        return max(*self.input_bytes, *self.output_bytes)

    def cut(self, parts: Iterator[tuple[int, int, int]] | tuple[tuple[int, int, int], ...]) -> DataDemand:
        """The same demand with its chunks in parts, given as (chunk, first byte, bytes), which must cover every chunk once.

        `taccl_py.verify` tells if they do not.
        """
        chunks = tuple(self.chunks[number].part(first, size) for number, first, size in parts)
        return DataDemand(self.name, self.num_ranks, chunks, self.input_bytes, self.output_bytes, self.dtype)

    def wholes(self) -> list[tuple[DataChunk, list[int]]]:
        """Chunks as they were before they were cut, and the numbers of their parts in order: parts that lie behind one another everywhere are one."""
        order = sorted(range(len(self.chunks)), key=lambda number: self.chunks[number].wants[0])
        groups: list[list[int]] = []
        for number in order:
            if groups and self.chunks[groups[-1][-1]].goes_on_in(self.chunks[number]):
                groups[-1].append(number)
            else:
                groups.append([number])
        sizes = [sum(self.chunks[number].size_bytes for number in numbers) for numbers in groups]
        return [(self.chunks[own[0]].part(0, size), own) for own, size in zip(groups, sizes, strict=True)]

    def joined(self) -> DataDemand:
        """The same demand before its chunks were cut; see `wholes`."""
        return replace(self, chunks=tuple(whole for whole, _ in self.wholes()))

    def placed(self, ranks: Sequence[int], num_ranks: int) -> DataDemand:
        """The same between these of so many ranks, in their order; the others have nothing, and nothing is for them."""
        lengths = [[0] * num_ranks, [0] * num_ranks]
        for found, own in zip(lengths, (self.input_bytes, self.output_bytes), strict=True):
            for rank, length in zip(ranks, own, strict=True):
                found[rank] = length
        return self._renumbered(dict(enumerate(ranks)), lengths[0], lengths[1])

    def among(self, ranks: Sequence[int]) -> DataDemand:
        """The same between these of its ranks, in their order, which must be all that have something or want something."""
        lengths = [[own[rank] for rank in ranks] for own in (self.input_bytes, self.output_bytes)]
        return self._renumbered({rank: number for number, rank in enumerate(ranks)}, lengths[0], lengths[1])

    def _renumbered(self, new: Mapping[int, int], inputs: Sequence[int], outputs: Sequence[int]) -> DataDemand:
        def moved(places: Sequence[ChunkPlace]) -> tuple[ChunkPlace, ...]:
            return tuple(ChunkPlace(new[rank], offset) for rank, offset in places)

        chunks = tuple(DataChunk(c.size_bytes, tuple(map(moved, c.terms)), moved(c.wants)) for c in self.chunks)
        return DataDemand(self.name, len(inputs), chunks, tuple(inputs), tuple(outputs), self.dtype)

    def describe_chunk(self, number: int) -> str:
        """Name of a chunk for people."""
        chunk = self.chunks[number]
        return f"chunk {number} ({chunk.size_bytes} bytes)"
