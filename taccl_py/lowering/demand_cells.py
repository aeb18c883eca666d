"""The schedule of a demand in cells, as the passes of lowering take it.

Runtimes count buffers in chunks of one size, the *unit* here; so all sizes, places and lengths of a demand must be multiples of it. Engines cut
chunks between any two elements, also where that is no multiple of a unit of use: such cuts are rounded to the nearest one, which changes how
much a message carries and nothing else.

A cell is a whole part of a chunk as it travels (`part_cells`), so that passes need not look at each of a million units, or one unit
(`unit_cells`), where the runtime has it so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from taccl_py.collective import Address, Buffer
from taccl_py.demand import DataChunk, DataDemand
from taccl_py.lowering.order import order_events
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message, sort_messages
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class CellExtent:
    """Place of a cell in its buffer, and its length, in units."""

    first: int
    count: int


@dataclass(frozen=True)
class DemandCells:
    """Cells of a demand.

    Attributes
    ----------
    num_ranks
        R.
    reduces
        Whether some are sums.
    wanted
        Ranks that want each cell.
    input_lengths, output_lengths
        Of every rank's buffers, in units.
    unit_bytes
        Size of a unit.
    inputs, outputs
        For every rank the number of each cell that it holds or wants; neighbours have consecutive numbers.
    extents
        For every rank, by buffer and number, where the cell lies; empty where cells are units.
    input_chunks, output_chunks
        As many numbers as there are of the longest buffer.
    """

    num_ranks: int
    reduces: bool
    wanted: tuple[tuple[int, ...], ...]
    input_lengths: tuple[int, ...]
    output_lengths: tuple[int, ...]
    unit_bytes: int
    inputs: tuple[dict[int, int], ...]
    outputs: tuple[dict[int, int], ...]
    extents: tuple[dict[Buffer, dict[int, CellExtent]], ...]
    input_chunks: int
    output_chunks: int

    kind = None
    chunks_per_rank = 1
    root = 0

    @property
    def num_chunks(self) -> int:
        """Number of cells."""
        return len(self.wanted)

    def input_address(self, chunk: int, rank: int) -> Address | None:
        """Place of a cell, or of its summand, that a rank holds; None if it does not."""
        number = self.inputs[rank].get(chunk)
        return None if number is None else Address(Buffer.INPUT, number)

    def output_address(self, chunk: int, rank: int) -> Address | None:
        """Place in which a rank wants a cell; None if it does not."""
        number = self.outputs[rank].get(chunk)
        return None if number is None else Address(Buffer.OUTPUT, number)

    def describe_chunk(self, chunk: int) -> str:
        """Name of a cell for people."""
        return f"cell {chunk}"


@dataclass(frozen=True)
class DemandCellSchedule:
    """Messages that carry cells; see `taccl_py.lowering.subject.CellSchedule`."""

    topology: Topology
    collective: DemandCells
    messages: tuple[Message, ...]
    scratch: tuple[tuple[int, ...], ...]
    makespan_us: float
    chunk_bytes: float

    @cached_property
    def _scratch_index(self) -> tuple[dict[int, int], ...]:
        return tuple({cell: index for index, cell in enumerate(cells)} for cells in self.scratch)

    def address(self, chunk: int, rank: int) -> Address | None:
        """Place in which a rank keeps a cell."""
        index = self._scratch_index[rank].get(chunk)
        if index is not None:
            return Address(Buffer.SCRATCH, index)
        return self.collective.output_address(chunk, rank) or self.collective.input_address(chunk, rank)


def finest_unit_bytes(demand: DataDemand) -> int:
    """Largest unit of which all sizes, places and lengths of a demand in the parts that travel are multiples."""
    return _unit(demand, demand.chunks)


def coarsest_unit_bytes(demand: DataDemand) -> int:
    """The same of its chunks as they were before they were cut: parts that lie behind one another everywhere are one."""
    return _unit(demand, [whole for whole, _ in demand.wholes()])


def _unit(demand: DataDemand, chunks: Iterable[DataChunk]) -> int:
    places = [place.offset_bytes for chunk in chunks for group in (*chunk.terms, chunk.wants) for place in group]
    return math.gcd(*demand.input_bytes, *demand.output_bytes, *places, *(chunk.size_bytes for chunk in chunks))


def part_cells(schedule: DemandSchedule, unit_bytes: int) -> DemandCellSchedule:
    """Schedule whose cells are parts of chunks, of as many units as there are.

    Parameters
    ----------
    schedule
        One that the verifier accepts.
    unit_bytes
        Of which the sizes, places and lengths before cutting are multiples.
    """
    demand = schedule.demand
    parts = _rounded(demand, unit_bytes)
    chunks = {number: chunk for number, chunk in enumerate(parts) if chunk is not None}
    new_of = {number: index for index, number in enumerate(chunks)}
    kept = [_scaled(chunk, unit_bytes) for chunk in chunks.values()]
    held, wanted = (_numberings(kept, demand.num_ranks, wanted=one) for one in (False, True))
    extents = [{Buffer.INPUT: own[1], Buffer.OUTPUT: due[1]} for own, due in zip(held, wanted, strict=True)]
    cells = _cells(demand, kept, unit_bytes, [own[0] for own in held], [due[0] for due in wanted], extents)
    messages = [
        replace(message, chunks=carried, packed=len(carried) > 1)
        for message in schedule.messages
        if (carried := tuple(new_of[chunk] for chunk in message.chunks if chunk in new_of))
    ]
    return _finished(schedule, cells, messages)


def unit_cells(schedule: DemandSchedule, unit_bytes: int) -> DemandCellSchedule:
    """Schedule whose cells are units; for the parameters see `part_cells`."""
    demand = schedule.demand
    parts = _rounded(demand, unit_bytes)
    first_of: list[int] = []
    pieces: list[DataChunk] = []
    for part in parts:
        first_of.append(len(pieces))
        if part is not None:
            whole = _scaled(part, unit_bytes)
            pieces += [whole.part(step, 1) for step in range(whole.size_bytes)]
    first_of.append(len(pieces))
    inputs: list[dict[int, int]] = [{} for _ in range(demand.num_ranks)]
    outputs: list[dict[int, int]] = [{} for _ in range(demand.num_ranks)]
    for number, piece in enumerate(pieces):
        for rank, offset in (place for term in piece.terms for place in term):
            inputs[rank][number] = offset
        for rank, offset in piece.wants:
            outputs[rank][number] = offset
    cells = _cells(demand, pieces, unit_bytes, inputs, outputs, [{} for _ in inputs])
    # Runtimes that count in units count both buffers like the longest one of all.
    longest = demand.longest_bytes // unit_bytes
    cells = replace(cells, input_chunks=longest, output_chunks=longest)
    messages = []
    for message in schedule.messages:
        carried = tuple(cell for chunk in message.chunks for cell in range(first_of[chunk], first_of[chunk + 1]))
        if carried:
            messages.append(replace(message, chunks=carried, packed=len(carried) > 1))
    return _finished(schedule, cells, messages)


def _rounded(demand: DataDemand, unit_bytes: int) -> list[DataChunk | None]:
    """Parts whose ends are rounded to units; None for those of which nothing is left."""
    found: list[DataChunk | None] = [None] * len(demand.chunks)
    for whole, numbers in demand.wholes():
        ends = [0]
        for number in numbers:
            ends.append(ends[-1] + demand.chunks[number].size_bytes)
        ends = [(end + unit_bytes // 2) // unit_bytes * unit_bytes for end in ends]
        for number, (first, end) in zip(numbers, pairwise(ends), strict=True):
            found[number] = whole.part(first, end - first) if end > first else None
    return found


def _scaled(chunk: DataChunk, unit_bytes: int) -> DataChunk:
    """Chunk with places and size in units."""
    terms = tuple(
        tuple(place._replace(offset_bytes=place.offset_bytes // unit_bytes) for place in term) for term in chunk.terms
    )
    wants = tuple(place._replace(offset_bytes=place.offset_bytes // unit_bytes) for place in chunk.wants)
    return DataChunk(chunk.size_bytes // unit_bytes, terms, wants)


_Numbering = tuple[dict[int, int], dict[int, CellExtent]]


def _numberings(chunks: Sequence[DataChunk], num_ranks: int, *, wanted: bool) -> list[_Numbering]:
    """For every rank the numbers of its cells in a buffer, and where they lie: what is no neighbour has no consecutive number."""
    places: list[list[tuple[int, int, int]]] = [[] for _ in range(num_ranks)]
    for number, chunk in enumerate(chunks):
        for group in (chunk.wants,) if wanted else chunk.terms:
            for rank, offset in group:
                places[rank].append((offset, chunk.size_bytes, number))
    return [_numbered(of_rank) for of_rank in places]


def _numbered(places: Iterable[tuple[int, int, int]]) -> _Numbering:
    numbers: dict[int, int] = {}
    extents: dict[int, CellExtent] = {}
    following = end = 0
    for offset, size, number in sorted(places):
        following += offset != end
        numbers[number], extents[following] = following, CellExtent(offset, size)
        following, end = following + 1, offset + size
    return numbers, extents


def _cells(
    demand: DataDemand,
    chunks: Sequence[DataChunk],
    unit_bytes: int,
    inputs: Sequence[dict[int, int]],
    outputs: Sequence[dict[int, int]],
    extents: Sequence[dict[Buffer, dict[int, CellExtent]]],
) -> DemandCells:
    return DemandCells(
        num_ranks=demand.num_ranks,
        reduces=demand.reduces,
        wanted=tuple(chunk.wanted for chunk in chunks),
        input_lengths=tuple(length // unit_bytes for length in demand.input_bytes),
        output_lengths=tuple(length // unit_bytes for length in demand.output_bytes),
        unit_bytes=unit_bytes,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        extents=tuple(extents),
        input_chunks=_longest(inputs),
        output_chunks=_longest(outputs),
    )


def _longest(numbers: Iterable[dict[int, int]]) -> int:
    return max((1 + max(of_rank.values(), default=-1) for of_rank in numbers), default=0)


def _finished(schedule: DemandSchedule, cells: DemandCells, messages: Iterable[Message]) -> DemandCellSchedule:
    """Schedule with scratch for what ranks pass on, in which nothing is added where there is nothing yet."""
    ordered = sort_messages(messages)
    links = schedule.topology.links
    kept: list[dict[int, None]] = [{} for _ in range(cells.num_ranks)]
    for message in ordered:
        rank = links[message.link].dst
        kept[rank].update((cell, None) for cell in message.chunks if cell not in cells.outputs[rank])
    found = DemandCellSchedule(
        schedule.topology, cells, ordered, tuple(map(tuple, kept)), schedule.makespan_us, float(cells.unit_bytes)
    )
    return replace(found, messages=_stored_first(found))


def _stored_first(schedule: DemandCellSchedule) -> tuple[Message, ...]:
    """Messages of which each adds all its cells or stores all of them: a sum of which a rank has nothing is stored there."""
    links, held = schedule.topology.links, [set(numbers) for numbers in schedule.collective.inputs]
    found: list[Message] = []
    for event in order_events(schedule):
        if not event.arrives:
            continue
        message = schedule.messages[event.message]
        here = held[links[message.link].dst]
        new = tuple(cell for cell in message.chunks if cell not in here)
        old = tuple(cell for cell in message.chunks if cell in here)
        here.update(new)
        if not message.reduce or not new:
            found.append(message)
            continue
        for cells, reduce in ((new, False), (old, True)):
            if cells:
                found.append(replace(message, chunks=cells, reduce=reduce, packed=len(cells) > 1))
    return sort_messages(found)
