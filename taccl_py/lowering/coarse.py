"""Coarse chunks: chunks that always travel together, taken as one while messages are placed.

Parts of unequal size make thousands of chunks, of which few runs are ever parted: a plan for a damaged machine may have 16384
chunks in 200 runs. What a rank does with one chunk of a run it does with all, so placing need not look at each. Unlike `taccl_py.lowering.fold`, which
makes chunks of one larger size, this leaves no trace in the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from taccl_py.collective import Buffer, Kind
from taccl_py.lowering.actions import RankAction
from taccl_py.lowering.cells import CellRange
from taccl_py.schedule.ir import Schedule


@dataclass(frozen=True)
class CoarseChunks:
    """A schedule in runs of chunks that are never parted.

    Attributes
    ----------
    schedule
        The same messages, whose chunks are runs; they differ in size, so ``chunk_bytes`` means nothing.
    edges
        First chunk of each run in a shard, or in the whole buffer where there are no shards, and the end of the last one.
    """

    schedule: Schedule
    edges: tuple[int, ...]

    @staticmethod
    def of(schedule: Schedule) -> CoarseChunks | None:
        """Coarse chunks of a schedule; None where no two chunks always travel together."""
        collective = schedule.collective
        # Places in buffers are counted in shards, so all shards have to be cut alike.
        shard = collective.num_chunks if collective.kind is Kind.ALLREDUCE else collective.chunks_per_rank
        lists = {message.chunks for message in schedule.messages} | {*schedule.scratch}
        edges = sorted({0, shard}.union(end % shard for chunks in lists for end in run_ends(chunks)))
        count = len(edges) - 1
        if count == shard:
            return None
        place = {edge: number for number, edge in enumerate(edges[:-1])}

        def runs(chunks: Sequence[int]) -> tuple[int, ...]:
            return tuple(c // shard * count + place[c % shard] for c in chunks if c % shard in place)

        together = collective.num_ranks if collective.kind is Kind.ALLREDUCE else 1
        coarse = replace(
            schedule,
            collective=replace(collective, chunks_per_rank=count, together=together),
            messages=tuple(replace(message, chunks=runs(message.chunks)) for message in schedule.messages),
            scratch=tuple(map(runs, schedule.scratch)),
        )
        return CoarseChunks(coarse, tuple(edges))

    def refined(self, actions: Iterable[RankAction], scratch: Sequence[Sequence[int]]) -> tuple[RankAction, ...]:
        """Actions on the chunks themselves.

        Parameters
        ----------
        actions
            Those on coarse chunks.
        scratch
            For every rank, the coarse chunk that each cell of its scratch is for.
        """
        lengths = [high - low for low, high in zip(self.edges, self.edges[1:], strict=False)]
        starts = [tuple(accumulate((lengths[c % len(lengths)] for c in chunks), initial=0)) for chunks in scratch]
        return tuple(
            action.on(self._cells(action.reads, starts[action.rank]), self._cells(action.writes, starts[action.rank]))
            for action in actions
        )

    def _cells(self, cells: CellRange | None, scratch: Sequence[int]) -> CellRange | None:
        if cells is None:
            return None
        if cells.buffer is Buffer.SCRATCH:
            first, end = scratch[cells.first], scratch[cells.end]
        else:
            first, end = self._chunk(cells.first), self._chunk(cells.end)
        return CellRange(cells.buffer, first, end - first)

    def _chunk(self, coarse: int) -> int:
        """Place in a buffer at which a coarse chunk begins."""
        shard, number = divmod(coarse, len(self.edges) - 1)
        return shard * self.edges[-1] + self.edges[number]


def run_ends(chunks: Sequence[int]) -> Iterator[int]:
    """First chunk of every run of neighbours, and the one behind the last."""
    for index, chunk in enumerate(chunks):
        if not index or chunks[index - 1] != chunk - 1:
            yield chunk
        if index + 1 == len(chunks) or chunks[index + 1] != chunk + 1:
            yield chunk + 1
