"""Buffers of a rank: their sizes in cells, and which cells of input and output are the same memory in place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from taccl_py.collective import Buffer, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.subject import CellCollective
from taccl_py.runtimes import LEGACY, Runtime

_ONE_SHARD = frozenset({Kind.GATHER, Kind.SCATTER})


class CallPlacement(StrEnum):
    """Places of the user's buffers: where NCCL calls it in place, apart, or either."""

    BOTH = "both"
    IN_PLACE = "in"
    OUT_OF_PLACE = "out"


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Sizes and aliases of the buffers, in cells; a cell is a chunk cut into `instances`.

    Attributes
    ----------
    collective
        Collective of the program.
    instances
        Cells per chunk.
    exact
        Whether input and output must both be declared with all chunks of the loop (`Runtime.checks_chunk_counts`).
    """

    collective: CellCollective
    instances: int
    exact: bool

    @property
    def chunks_per_loop(self) -> int:
        """Cells that one call's size is spread over (nchunksperloop).

        Runtimes count one rank's shard for Gather and Scatter, except the one that wants both buffers to be as long as
        the loop: there the caller must give the size of the whole.
        """
        collective = self.collective
        if collective.kind in _ONE_SHARD and not self.exact:
            return collective.chunks_per_rank * self.instances
        return max(collective.input_chunks, collective.output_chunks) * self.instances

    def declared(self, buffer: Buffer, rank: int, *, used: bool) -> int:
        """Length of a rank's input or output that a program declares: 0 if it does not use the buffer.

        Where the runtime has no name for Gather and Scatter, the buffers that ranks have are declared in any case: they
        alone tell which of the two it is.
        """
        collective = self.collective
        if self.exact and collective.kind in _ONE_SHARD:
            lone = Buffer.OUTPUT if collective.kind is Kind.GATHER else Buffer.INPUT
            return self.chunks_per_loop if buffer is not lone or rank == collective.root else 0
        if not used:
            return 0
        chunks = collective.input_chunks if buffer is Buffer.INPUT else collective.output_chunks
        return chunks * self.instances

    @property
    def input_cells(self) -> int:
        """Cells of the input."""
        return self.collective.input_chunks * self.instances

    def input_shift(self, rank: int) -> int:
        """Offset of the input cell minus that of the output cell which is the same memory in place."""
        shard = rank * self.collective.chunks_per_rank * self.instances
        if self.collective.kind in (Kind.ALLGATHER, Kind.GATHER):
            return -shard
        return shard if self.collective.kind in (Kind.REDUCESCATTER, Kind.SCATTER) else 0

    def input_under(self, rank: int, offset: int) -> int | None:
        """Input cell that is the same memory as an output cell when the call is in place, or None if there is none."""
        below = offset + self.input_shift(rank)
        return below if 0 <= below < self.input_cells else None

    def bytes_per_call(self, chunk_bytes: float) -> float:
        """Size as the runtime counts it when a chunk of the schedule has `chunk_bytes`."""
        return chunk_bytes * self.chunks_per_loop / self.instances


@dataclass(frozen=True, slots=True)
class Flags:
    """For which placements of the user's buffers a program may be used."""

    in_place: bool
    out_of_place: bool


def placement_flags(placement: CallPlacement, runtime: Runtime, kind: Kind | None) -> Flags:
    """Return the placements that a program is for; the legacy runtime knows one of them for each file.

    Raises
    ------
    LoweringError
        If the runtime has no such calls.
    """
    if kind is None:
        return Flags(False, True)  # the buffers of a demand lie apart
    if runtime.name == LEGACY.name:
        # This runtime reads the one attribute `inplace`, and takes no AllToAll in place.
        if kind is Kind.ALLTOALL and placement is CallPlacement.IN_PLACE:
            raise LoweringError(
                f"{runtime.title} refuses AllToAll in place; lower it with placement 'out'",
                runtime=runtime.name,
                limit="placement",
            )
        in_place = placement is not CallPlacement.OUT_OF_PLACE and kind is not Kind.ALLTOALL
        return Flags(in_place, not in_place)
    return Flags(placement is not CallPlacement.OUT_OF_PLACE, placement is not CallPlacement.IN_PLACE)
