"""Places of chunks: the order of scratch in which as many planned messages as possible are contiguous at both ends.

An engine plans which chunks to send together, a *group*. Whether they can be one message depends on the buffers: input
and output places are fixed by the collective, the order in scratch is free. `choose_scratch` fixes that order rank by rank
and `contiguous_runs` cuts every group into runs that are neighbours, in one order, at both ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice, pairwise
from typing import NamedTuple

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.collective import Address, Buffer, Collective, Kind
from taccl_py.pickles import pickled_by_fields
from taccl_py.schedule.ir import block_borders
from taccl_py.topology.model import Topology

Scratch = tuple[tuple[int, ...], ...]
# Places as numbers, in the order of addresses: neighbours differ by 1, and no buffer or group reaches into the next one.
_FIRST_CELL = {buffer: number << 31 for number, buffer in enumerate(sorted(Buffer))}
_STRIDE = len(_FIRST_CELL) << 31
_NOWHERE = -1


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class UntimedMessage:
    """A planned message: a group of chunks on a link, with the engine's times (any unit, only their order counts).

    Where it has to be cut, none of the chunks in ``lead`` starts after the others. With ``packed`` it is never cut.
    """

    link: int
    chunks: tuple[int, ...]
    start: float
    end: float
    reduce: bool = False
    lead: frozenset[int] = frozenset()
    packed: bool = False


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


# Blocks count as one chunk each.
PlacedChunks = Collective | ChunkBlocks


def place_of(collective: PlacedChunks, index: dict[int, int], chunk: int, rank: int) -> Address | None:
    """Address of a chunk by the rules of `taccl_py.schedule.ir`, given the rank's scratch positions."""
    position = index.get(chunk)
    if position is not None:
        return Address(Buffer.SCRATCH, position)
    return collective.output_address(chunk, rank) or collective.input_address(chunk, rank)


class _Cells(dict[int, int]):
    """Place of every chunk on a rank as a number, found when it is asked for."""

    def __init__(self, collective: PlacedChunks, rank: int, scratch: Sequence[int]) -> None:
        first = _FIRST_CELL[Buffer.SCRATCH]
        super().__init__({chunk: first + position for position, chunk in enumerate(scratch)})
        self._collective, self._rank = collective, rank

    def __missing__(self, chunk: int) -> int:
        place = place_of(self._collective, {}, chunk, self._rank)
        self[chunk] = cell = _NOWHERE if place is None else _FIRST_CELL[place.buffer] + place.offset
        return cell


def choose_scratch(
    topology: Topology, collective: PlacedChunks, untimed: Sequence[UntimedMessage], *, as_named: bool = False
) -> Scratch:
    """Scratch list of every rank.

    A chunk that a rank receives and does not want must be there. Chunks that have another place join them when a group
    holds both kinds and would otherwise be cut. Among a few natural orders the one that cuts least is taken.

    Parameters
    ----------
    topology, collective, untimed
        The plan.
    as_named
        Keep all groups of several chunks in scratch, in the order in which the largest ones name their chunks, so that those
        that are parts of each other, as in a tree, stay whole at both ends.
    """
    groups: list[list[tuple[int, ...]]] = [[] for _ in range(collective.num_ranks)]
    needed: list[set[int]] = [set() for _ in range(collective.num_ranks)]
    for message in untimed:
        link = topology.links[message.link]
        for chunk in message.chunks:
            if link.dst not in collective.wanted[chunk]:
                needed[link.dst].add(chunk)
        if len(message.chunks) > 1:
            groups[link.src].append(message.chunks)
            groups[link.dst].append(message.chunks)
    if as_named:
        return tuple(_named_list(needed[rank], groups[rank]) for rank in range(collective.num_ranks))
    orders = _orders(collective)
    return tuple(
        _best_list(collective, rank, needed[rank], groups[rank], orders) for rank in range(collective.num_ranks)
    )


def _named_list(needed: set[int], groups: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The largest groups first; one that goes on where another begins or ends is put there."""
    runs: list[deque[int]] = []
    run_of: dict[int, deque[int]] = {}
    for group in sorted(dict.fromkeys(groups), key=len, reverse=True):
        new = [chunk for chunk in group if chunk not in run_of]
        known = [chunk for chunk in group if chunk in run_of]
        run = run_of[known[0]] if new and known else deque[int]()
        if known and group == (*new, *known) and known == list(islice(run, len(known))):
            run.extendleft(reversed(new))
        elif known and group == (*known, *new) and known == list(islice(reversed(run), len(known)))[::-1]:
            run.extend(new)
        elif new:
            run = deque(new)
            runs.append(run)
        run_of.update(dict.fromkeys(new, run))
    return (*chain.from_iterable(runs), *sorted(needed - run_of.keys()))


def _orders(collective: PlacedChunks) -> tuple[Callable[[int], tuple[int, int, int]], ...]:
    """Sort keys for scratch: by final rank then origin, by origin then final rank, and by number."""

    def sink(chunk: int) -> int:
        wanted = collective.wanted[chunk]
        return wanted[0] if len(wanted) == 1 else 0

    def origin(chunk: int) -> int:
        return 0 if collective.reduces else collective.source[chunk]

    return (
        lambda chunk: (sink(chunk), origin(chunk), chunk),
        lambda chunk: (origin(chunk), sink(chunk), chunk),
        lambda chunk: (0, 0, chunk),
    )


def _best_list(
    collective: PlacedChunks,
    rank: int,
    needed: set[int],
    groups: list[tuple[int, ...]],
    orders: tuple[Callable[[int], tuple[int, int, int]], ...],
) -> tuple[int, ...]:
    if not groups or not needed:
        return tuple(sorted(needed))
    mixed = needed.union(*[group for group in groups if needed.intersection(group)])
    # Orders that come to the same are looked at once.
    candidates = dict.fromkeys(tuple(sorted(chunks, key=order)) for chunks in (needed, mixed) for order in orders)
    together = _Together.of(groups, _Cells(collective, rank, ()))
    return min(candidates, key=lambda candidate: (together.cuts(candidate), len(candidate)))


@dataclass(frozen=True)
class _Together:
    """Batches of a rank.

    Attributes
    ----------
    column
        Number of every chunk that occurs.
    columns, group
        Chunks of all groups, and which group each is of.
    home
        Place of every chunk that occurs, out of scratch.
    """

    column: dict[int, int]
    columns: IntArray
    group: IntArray
    home: IntArray

    @staticmethod
    def of(groups: Sequence[Sequence[int]], cells: _Cells) -> _Together:
        """Of some groups, with the places that are fixed."""
        column = {chunk: number for number, chunk in enumerate(dict.fromkeys(chain.from_iterable(groups)))}
        columns = np.array([column[chunk] for chunk in chain.from_iterable(groups)], dtype=np.int64)
        group = np.repeat(np.arange(len(groups), dtype=np.int64), [len(each) for each in groups])
        return _Together(column, columns, group, np.array([cells[chunk] for chunk in column], dtype=np.int64))

    def cuts(self, scratch: Sequence[int]) -> int:
        """Number of times that chunks of a group that follow each other are no neighbours, with some chunks in scratch."""
        place, first = self.home.copy(), _FIRST_CELL[Buffer.SCRATCH]
        for position, chunk in enumerate(scratch):
            if chunk in self.column:
                place[self.column[chunk]] = first + position
        places = place[self.columns]
        stored = places != _NOWHERE
        cells = np.sort(places[stored] + _STRIDE * self.group[stored])
        return int(np.count_nonzero((np.diff(cells) != 1) & (np.diff(cells // _STRIDE) == 0)))


def contiguous_runs(
    topology: Topology, collective: PlacedChunks, scratch: Scratch, untimed: Sequence[UntimedMessage]
) -> list[UntimedMessage]:
    """Cut groups where their chunks are not neighbours, in the same order, at both ends.

    The runs of a group keep its times and follow each other in buffer order, those of its leading chunks first.
    """
    cells = [_Cells(collective, rank, chunks) for rank, chunks in enumerate(scratch)]
    result = []
    for message in untimed:
        if len(message.chunks) == 1:
            result.append(_as_run(message, message.chunks))
            continue
        link = topology.links[message.link]
        here, there = cells[link.src], cells[link.dst]
        places = sorted(_ChunkEnds(here[chunk], there[chunk], chunk) for chunk in message.chunks)
        lost = next((place.chunk for place in places if _NOWHERE in (place.here, place.there)), None)
        if lost is not None:
            raise ValueError(f"chunk {lost} has no place on link {link.src}->{link.dst}")
        runs = _cut(places)
        if message.packed and len(runs) > 1:
            result.append(replace(message, chunks=_as_stored(places)))
        else:
            result += [_as_run(message, run) for run in leaders_first(runs, message.lead)]
    return result


def _as_run(message: UntimedMessage, chunks: tuple[int, ...]) -> UntimedMessage:
    """The planned message with neighbouring chunks only, itself where it has no others; there are very many."""
    if not message.packed and chunks == message.chunks:
        return message
    return UntimedMessage(message.link, chunks, message.start, message.end, message.reduce, message.lead)


class _ChunkEnds(NamedTuple):
    """Places of a chunk at both ends of a link; a tuple, as very many are sorted."""

    here: int
    there: int
    chunk: int


def _as_stored(places: Sequence[_ChunkEnds]) -> tuple[int, ...]:
    """Chunks, given in the sender's order: as they are if they are neighbours there, else in the receiver's order."""
    if any(two.here != one.here + 1 for one, two in pairwise(places)):
        places = sorted(places, key=lambda place: (place.there, place.chunk))
    return tuple(place.chunk for place in places)


def _cut(places: Sequence[_ChunkEnds]) -> list[tuple[int, ...]]:
    """Runs of chunks, given in buffer order with their places at both ends."""
    runs = [[places[0].chunk]]
    for one, two in pairwise(places):
        if two.here == one.here + 1 and two.there == one.there + 1:
            runs[-1].append(two.chunk)
        else:
            runs.append([two.chunk])
    return [tuple(run) for run in runs]


def leaders_first(runs: Sequence[tuple[int, ...]], lead: Collection[int]) -> list[tuple[int, ...]]:
    """Order runs so that none of `lead` comes after others; runs of both kinds are parted, but for the last of them."""
    before: list[tuple[int, ...]] = []
    mixed: list[tuple[int, ...]] = []
    after: list[tuple[int, ...]] = []
    for run in runs:
        leading = sum(item in lead for item in run)
        (before if leading == len(run) else mixed if leading else after).append(run)
    for run in mixed[:-1]:
        for leads, part in groupby(run, lambda item: item in lead):
            (before if leads else after).append(tuple(part))
    return [*before, *mixed[-1:], *after]
