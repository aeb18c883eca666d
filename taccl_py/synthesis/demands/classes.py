"""Chunks that go together: those that the same ranks hold and want, as one stream of bytes that can be cut anywhere between elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taccl_py.demand import DataDemand

# (Chunk of the demand, first byte, bytes).
Part = tuple[int, int, int]


@dataclass(frozen=True)
class ChunkClass:
    """Chunks with the same holders and the same wants that must move.

    Attributes
    ----------
    terms
        Ranks that hold each term of the sum; one term for what is copied.
    wants
        Ranks that want it and lack it.
    chunks
        Numbers of the chunks.
    size_bytes
        Bytes of all of them.
    """

    terms: tuple[tuple[int, ...], ...]
    wants: tuple[int, ...]
    chunks: tuple[int, ...]
    size_bytes: int

    @property
    def is_sum(self) -> bool:
        """True if contributions are added."""
        return len(self.terms) > 1

    def parts(self, demand: DataDemand) -> tuple[Part, ...]:
        """Its chunks, each a whole part."""
        return tuple((chunk, 0, demand.chunks[chunk].size_bytes) for chunk in self.chunks)

    def cut(self, demand: DataDemand, pieces: int) -> list[tuple[Part, ...]]:
        """So many pieces of nearly the same size (fewer if there are not so many elements), as parts of chunks, in the order of the chunks."""
        return cut_evenly(self.parts(demand), pieces, demand.element_bytes)


def cut_evenly(parts: Sequence[Part], pieces: int, unit: int) -> list[tuple[Part, ...]]:
    """A stream of parts of chunks in so many pieces of nearly the same size, fewer if there are not so many elements of `unit` bytes."""
    elements = sum(size for *_, size in parts) // unit
    pieces = max(1, min(pieces, elements))
    return list(cut_stream(parts, [elements * i // pieces * unit for i in range(pieces + 1)]))


def cut_stream(parts: Sequence[Part], edges: Sequence[int]) -> Iterator[tuple[Part, ...]]:
    """A stream of parts of chunks, cut at these bytes of it: one tuple of parts between each two edges."""
    number, used, at = 0, 0, edges[0]
    for end in edges[1:]:
        found: list[Part] = []
        while at < end:
            chunk, first, size = parts[number]
            taken = min(size - used, end - at)
            found.append((chunk, first + used, taken))
            at, used = at + taken, used + taken
            if used == size:
                number, used = number + 1, 0
        yield tuple(found)


def classes_of(demand: DataDemand) -> tuple[ChunkClass, ...]:
    """Classes of the chunks that must move, in the order of their first chunks."""
    found: dict[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], list[int]] = {}
    for number, chunk in enumerate(demand.chunks):
        lacking = chunk.lacking
        if lacking:
            terms = tuple(sorted(tuple(sorted(term)) for term in chunk.holders))
            found.setdefault((terms, tuple(sorted(lacking))), []).append(number)
    return tuple(
        ChunkClass(terms, wants, tuple(chunks), sum(demand.chunks[c].size_bytes for c in chunks))
        for (terms, wants), chunks in found.items()
    )


class DemandCut:
    """A demand that is being cut: parts get numbers in the order in which they come; chunks that nobody has to be sent stay whole."""

    def __init__(self, demand: DataDemand) -> None:
        self._demand = demand
        self._parts: list[Part] = []

    def number(self, parts: Sequence[Part]) -> tuple[int, ...]:
        """Numbers of some more parts, which are those of chunks of the demand in parts."""
        first = len(self._parts)
        self._parts += parts
        return tuple(range(first, len(self._parts)))

    def demand(self) -> DataDemand:
        """The demand in all parts that have a number, and behind them what stays whole."""
        chunks = enumerate(self._demand.chunks)
        whole = [(number, 0, chunk.size_bytes) for number, chunk in chunks if not chunk.lacking]
        return self._demand.cut((*self._parts, *whole))
