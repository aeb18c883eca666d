"""Traffic that engines route: chunks of equal size, who has them, and who wants them; a collective is one such traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ChunkTraffic(Protocol):
    """Chunks that are copied."""

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold each chunk at the start, any of which may send it."""

    @property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold each chunk at the end."""

    def describe_chunk(self, chunk: int) -> str:
        """A chunk's name for people."""


@dataclass(frozen=True)
class PieceTraffic:
    """Pieces of a demand, of nearly the same size.

    Attributes
    ----------
    num_ranks
        Number of ranks.
    holders, wanted
        See `ChunkTraffic`.
    """

    num_ranks: int
    holders: tuple[tuple[int, ...], ...]
    wanted: tuple[tuple[int, ...], ...]

    @property
    def num_chunks(self) -> int:
        """Number of pieces."""
        return len(self.holders)

    def describe_chunk(self, chunk: int) -> str:
        """A piece's name for people."""
        return f"piece {chunk}"
