"""A compiled program: for every rank, rounds of local operations and of messages that are exchanged together.

All offsets and lengths are in chunks, so one compiled program serves every size and type. `i`, `o` and `s` are input, output and
scratch; scratch also holds messages that have arrived and are not in their place yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from taccl_py.collective import Buffer, Kind


class ChunkRun(NamedTuple):
    """Neighbouring chunks of one buffer of a rank: ``offset`` to ``offset + chunks - 1``."""

    buffer: Buffer
    offset: int
    chunks: int

    @property
    def end(self) -> int:
        """The first chunk behind it."""
        return self.offset + self.chunks

    def overlaps(self, other: ChunkRun) -> bool:
        """True if any chunk is in both."""
        return self.buffer is other.buffer and self.offset < other.end and other.offset < self.end

    def joins(self, other: ChunkRun) -> bool:
        """True if the other one begins where this one ends."""
        return self.buffer is other.buffer and self.end == other.offset

    def with_next(self, other: ChunkRun) -> ChunkRun:
        """Both, where they join."""
        return self._replace(chunks=self.chunks + other.chunks)


class LocalOperation(NamedTuple):
    """``target = first``, or ``target = first (op) second`` chunk by chunk; `target` may be one of them, but overlaps none in part."""

    target: ChunkRun
    first: ChunkRun
    second: ChunkRun | None = None


class PeerMessage(NamedTuple):
    """A message to or from `peer`, and where it lies on this rank."""

    peer: int
    region: ChunkRun


@dataclass(frozen=True, slots=True)
class RankRound:
    """One round of a rank: operations in their order, then all messages as one group.

    Attributes
    ----------
    operations
        In their order.
    sends, receives
        Exchanged together when the operations are done; those of one pair of ranks match in their order.
    """

    operations: tuple[LocalOperation, ...]
    sends: tuple[PeerMessage, ...]
    receives: tuple[PeerMessage, ...]


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """An algorithm file for one placement of the user's buffers.

    Attributes
    ----------
    name
        What to call it in errors.
    kind, root
        Collective, and root of Broadcast.
    in_place
        Whether input and output share memory; operations name the longer one of the two then, the output where they are equal.
    input_chunks, output_chunks
        Length of a rank's buffers.
    scratch_chunks
        Length of the scratch of every rank.
    rounds
        Of every rank; all have equally many.
    """

    name: str
    kind: Kind
    root: int
    in_place: bool
    input_chunks: int
    output_chunks: int
    scratch_chunks: tuple[int, ...]
    rounds: tuple[tuple[RankRound, ...], ...]

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.rounds)


def shared_address(rank: int, input_chunks: int, output_chunks: int, buffer: Buffer, offset: int) -> tuple[Buffer, int]:
    """Address, in the longer one of input and output, of a chunk of a call in place: a shorter one is the rank's part of it."""
    if buffer is Buffer.INPUT and input_chunks <= output_chunks:
        return Buffer.OUTPUT, offset + (rank * input_chunks if input_chunks < output_chunks else 0)
    if buffer is Buffer.OUTPUT and output_chunks < input_chunks:
        return Buffer.INPUT, offset + rank * output_chunks
    return buffer, offset
