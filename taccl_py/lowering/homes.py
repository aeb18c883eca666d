"""Homes: the cell in which a rank keeps each chunk that it receives or has to join with received ones.

The home is where `Schedule.address` says, with two exceptions. Nothing is ever written to the input, so a chunk that the
schedule would keep there gets a scratch cell. And when the call may be in place, a chunk must not be written to an output
cell while the own chunk in the same memory is still to be read: such chunks, and all that travel in one message with them,
live in scratch and are copied to the output later. Neighbours stay neighbours in both cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.collective import Address, Buffer
from taccl_py.errors import InputError
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.message_ends import START, MessageEnd, MessageHandling, PlacementRules, Survey, spans_seam
from taccl_py.lowering.subject import CellSchedule


@dataclass(frozen=True, slots=True)
class Homes:
    """Cells in which ranks keep chunks; lists are indexed by rank.

    Attributes
    ----------
    address_of
        Home of each chunk that has one.
    scratch
        Chunk that each scratch cell which is given out is for.
    seams
        See `taccl_py.lowering.message_ends.PlacementRules`.
    """

    address_of: tuple[dict[int, Address], ...]
    scratch: tuple[tuple[int, ...], ...]
    seams: frozenset[int] = frozenset()

    def cells(self, rank: int, chunks: tuple[int, ...], message: int) -> CellRange:
        """Return the homes of a message's chunks as one run of cells.

        Raises
        ------
        InputError
            If they are not neighbours.
        """
        found = self.run(rank, chunks)
        if found is None:
            raise InputError(
                f"message {message} carries chunks that are not neighbours in the buffers of rank {rank}; send them "
                "in messages of their own"
            )
        return found

    def run(self, rank: int, chunks: tuple[int, ...]) -> CellRange | None:
        """Return the homes of some chunks as one run of cells, or None if they are not neighbours."""
        homes = self.address_of[rank]
        first = homes[chunks[0]]
        for step, chunk in enumerate(chunks):
            home = homes[chunk]
            if home.offset != first.offset + step or home.buffer is not first.buffer:
                return None
        return (
            None if spans_seam(first, len(chunks), self.seams) else CellRange(first.buffer, first.offset, len(chunks))
        )


def assign_homes(schedule: CellSchedule, survey: Survey, geometry: BufferSizes, rules: PlacementRules) -> Homes:
    """Give every chunk that needs one its home.

    Raises
    ------
    InputError
        If a rank receives a chunk that it has no place for.
    """
    uses_of: list[list[MessageEnd]] = [[] for _ in range(schedule.collective.num_ranks)]
    for use in survey.uses:
        if use.handling is not MessageHandling.SEND or not (use.straight or use.since):
            uses_of[use.rank].append(use)
    address_of: list[dict[int, Address]] = []
    scratch: list[tuple[int, ...]] = []
    for rank, uses in enumerate(uses_of):
        kept = dict.fromkeys(chunk for use in uses for chunk in use.chunks)
        homes = {chunk: _listed_home(schedule, chunk, rank) for chunk in kept}
        used = list(schedule.scratch[rank])
        strays = sorted((c for c, home in homes.items() if home.buffer is Buffer.INPUT), key=lambda c: homes[c])
        for chunk in strays:
            homes[chunk] = Address(Buffer.SCRATCH, len(used))
            used.append(chunk)
        early = _early_chunks(schedule, survey, geometry, rank, homes, uses) if rules.aliased else set()
        for chunk in sorted(early, key=lambda c: homes[c]):
            homes[chunk] = Address(Buffer.SCRATCH, len(used))
            used.append(chunk)
        address_of.append(homes)
        scratch.append(tuple(used))
    return Homes(tuple(address_of), tuple(scratch), rules.seams)


def _listed_home(schedule: CellSchedule, chunk: int, rank: int) -> Address:
    """Address at which the schedule keeps the chunk."""
    address = schedule.address(chunk, rank)
    if address is None:
        raise InputError(
            f"rank {rank} receives {schedule.collective.describe_chunk(chunk)}, which it does not want, and has no place "
            f"for it; list the chunk in scratch[{rank}] of the schedule"
        )
    return address


def _early_chunks(
    schedule: CellSchedule,
    survey: Survey,
    geometry: BufferSizes,
    rank: int,
    homes: dict[int, Address],
    uses: list[MessageEnd],
) -> set[int]:
    """Chunks that would overwrite an own chunk which is still to be read, and all that travel with them."""
    last_read: dict[int, int] = {}
    own_at: dict[int, int] = {}
    for own, event in survey.last_read[rank].items():
        address = schedule.collective.input_address(own, rank)
        if address is not None:
            last_read[address.offset], own_at[address.offset] = event, own
    # Until when homes hold other chunks that are still to be read.
    read_until: dict[int, int] = {}
    for chunk, home in homes.items():
        if home.buffer is Buffer.OUTPUT:
            # Aliases of whole chunks: the first of the chunk's cells stands for all.
            under = geometry.input_under(rank, home.offset * geometry.instances)
            offset = START if under is None else under // geometry.instances
            if own_at.get(offset, chunk) != chunk:
                read_until[chunk] = last_read[offset]
    early: set[int] = set()
    for use in uses if read_until else ():
        if use.handling is not MessageHandling.SEND:
            early.update(chunk for chunk in use.chunks if read_until.get(chunk, START) > use.event)
    grown = bool(early)
    while grown:
        grown = False
        for use in uses:
            inside = sum(chunk in early for chunk in use.chunks)
            if use.handling not in (MessageHandling.UNPACK, MessageHandling.ADD_APART) and 0 < inside < len(use.chunks):
                early.update(use.chunks)
                grown = True
    return early
