"""Blocks of chunks: those that follow each other and always go together, which need not be looked at one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from taccl_py.collective import Address, Buffer, Collective, Kind
from taccl_py.schedule.ir import block_borders
from taccl_py.schedule.layout import Scratch, UntimedMessage


@dataclass(frozen=True)
class ChunkBlocks:
    """The chunks of a collective in blocks, each of which takes one cell of a buffer here.

    Attributes
    ----------
    collective
        Whose chunks they are.
    borders
        First chunk of every block, and the one after the last.
    """

    collective: Collective
    borders: tuple[int, ...]

    @staticmethod
    def of(collective: Collective, untimed: Iterable[UntimedMessage]) -> ChunkBlocks:
        """The largest blocks: chunks of one rank for the same ranks, between which no message begins or ends."""
        number = collective.num_chunks
        shards = () if collective.kind is Kind.ALLREDUCE else range(0, number, collective.chunks_per_rank)
        groups = {message.chunks for message in untimed} | {(chunk,) for message in untimed for chunk in message.lead}
        return ChunkBlocks(collective, tuple(sorted({0, number, *shards, *block_borders(groups)})))

    @staticmethod
    def single(collective: Collective) -> ChunkBlocks:
        """Every chunk as a block."""
        return ChunkBlocks(collective, tuple(range(collective.num_chunks + 1)))

    @cached_property
    def _place(self) -> dict[int, int]:
        return {border: place for place, border in enumerate(self.borders[:-1])}

    def coarse(self, message: UntimedMessage) -> UntimedMessage:
        """The message with blocks instead of chunks."""
        place = self._place
        blocks = tuple(place[chunk] for chunk in message.chunks if chunk in place)
        lead = frozenset(place[chunk] for chunk in message.lead if chunk in place)
        return UntimedMessage(message.link, blocks, message.start, message.end, message.reduce, lead, message.packed)

    def size(self, blocks: Iterable[int]) -> int:
        """Number of chunks of some blocks."""
        return sum(self.borders[block + 1] - self.borders[block] for block in blocks)

    def chunks(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Chunks of some blocks."""
        return tuple(chain.from_iterable(range(self.borders[block], self.borders[block + 1]) for block in blocks))

    def fine_scratch(self, scratch: Scratch) -> Scratch:
        """Scratch lists with chunks instead of blocks."""
        return tuple(self.chunks(blocks) for blocks in scratch)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.collective.num_ranks

    @property
    def reduces(self) -> bool:
        """True if contributions are summed."""
        return self.collective.reduces

    @cached_property
    def wanted(self) -> Sequence[Sequence[int]]:
        """Ranks that want each block."""
        return [self.collective.wanted[chunk] for chunk in self.borders[:-1]]

    @cached_property
    def source(self) -> Sequence[int]:
        """Rank that has each block at first."""
        return [self.collective.source[chunk] for chunk in self.borders[:-1]]

    def input_address(self, block: int, rank: int) -> Address | None:
        """Address of a rank's own block at first, or None; blocks count as one cell each."""
        if self.reduces:
            return Address(Buffer.INPUT, block)
        return self._inputs.of(block, rank)

    def output_address(self, block: int, rank: int) -> Address | None:
        """Address of a block that a rank wants in the end, or None; blocks count as one cell each."""
        if self.collective.kind is Kind.ALLREDUCE:
            return Address(Buffer.OUTPUT, block)
        return self._outputs.of(block, rank)

    @cached_property
    def _inputs(self) -> _BlockCells:
        held: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for block, rank in enumerate(self.source):
            held[rank].append(block)
        return _BlockCells(self.borders, held, self.collective.input_address)

    @cached_property
    def _outputs(self) -> _BlockCells:
        held: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for block, ranks in enumerate(self.wanted):
            for rank in ranks:
                held[rank].append(block)
        return _BlockCells(self.borders, held, self.collective.output_address)


class _BlockCells:
    """Cells of the blocks in one buffer of each rank: in the order of their chunks there, as chunks fill a buffer without gaps.

    Parameters
    ----------
    borders
        First chunk of every block.
    held
        Blocks in each rank's buffer.
    address_of
        Address of a chunk in a rank's buffer.
    """

    def __init__(
        self, borders: Sequence[int], held: Sequence[Sequence[int]], address_of: Callable[[int, int], Address | None]
    ) -> None:
        self._borders, self._held, self._address_of = borders, held, address_of
        self._cells: dict[int, dict[int, Address]] = {}

    def of(self, block: int, rank: int) -> Address | None:
        """Cell of a block, or None if the buffer has no place for it."""
        cells = self._cells.get(rank)
        if cells is None:
            found = ((self._address_of(self._borders[number], rank), number) for number in self._held[rank])
            kept = sorted((address, number) for address, number in found if address is not None)
            cells = {number: replace(address, offset=cell) for cell, (address, number) in enumerate(kept)}
            self._cells[rank] = cells
        return cells.get(block)
