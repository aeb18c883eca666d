"""Scratch cells: from a cell for every chunk that ever needs one to as few as can be had for nothing.

Cells that one action uses together stay neighbours; such a *block* of cells moves as a whole. It takes the place of an older
block if by the schedule's times everybody has finished with that one before the new one's first message starts, and if the
new one's writer then has only one threadblock to wait for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from taccl_py.collective import Buffer
from taccl_py.lowering.actions import NONE, RankAction, StepTransfer
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.threadblocks import UnfinishedThreadblock


@dataclass(frozen=True, slots=True)
class PackedRank:
    """Threadblocks of a rank on the cells that they really use, and how many scratch cells that takes."""

    threadblocks: tuple[UnfinishedThreadblock, ...]
    scratch_cells: int


def pack_scratch(
    threadblocks: tuple[UnfinishedThreadblock, ...], transfers: tuple[StepTransfer, ...], *, reuse: bool
) -> PackedRank:
    """Move the scratch cells of one rank together.

    Parameters
    ----------
    threadblocks
        The rank's threadblocks.
    transfers
        For the times at which messages start.
    reuse
        Whether cells may serve one after the other.
    """
    accesses = sorted(_accesses(threadblocks, transfers), key=lambda a: (a.cells.first, a.cells.end, a.order))
    blocks = sorted(_blocks(accesses), key=lambda block: (block.first_order, block.first))
    place_of: dict[int, int] = {}
    slots = _ScratchSlots()
    used = 0
    for block in blocks:
        slot = slots.take(block) if reuse else None
        if slot is None:
            slot = _Slot(used, block.cells, block)
            used += block.cells
        slots.give(_Slot(slot.first, slot.cells, block))
        place_of[block.first] = slot.first
    moves = _Moves(sorted(block.first for block in blocks), place_of)
    moved = tuple(replace(block, actions=tuple(map(moves.action, block.actions))) for block in threadblocks)
    return PackedRank(moved, used)


@dataclass(frozen=True, slots=True)
class _ScratchAccess:
    """An action touches scratch cells."""

    cells: CellRange
    order: int
    threadblock: int
    writes: bool
    begin_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class _ScratchBlock:
    """Scratch cells that must stay neighbours, and the time during which they are needed.

    `last_threadblock` is the threadblock that uses them last, or `NONE` if several do.
    """

    first: int
    cells: int
    first_order: int
    last_order: int
    begin_us: float
    end_us: float
    last_threadblock: int


@dataclass(frozen=True, slots=True)
class _Slot:
    """Cells that a block has, for the next one."""

    first: int
    cells: int
    block: _ScratchBlock


def _accesses(
    threadblocks: tuple[UnfinishedThreadblock, ...], transfers: tuple[StepTransfer, ...]
) -> Iterator[_ScratchAccess]:
    for index, threadblock in enumerate(threadblocks):
        for action in threadblock.actions:
            begin_us = transfers[action.arrives].start_us if action.arrives != NONE else action.ready_us
            end_us = action.ready_us + (action.busy_us if action.leaves != NONE else 0.0)
            for cells in (action.reads, action.writes):
                if cells is not None and cells.buffer is Buffer.SCRATCH:
                    yield _ScratchAccess(cells, action.order, index, cells is action.writes, begin_us, end_us)


def _blocks(accesses: list[_ScratchAccess]) -> Iterator[_ScratchBlock]:
    """Accesses that overlap, directly or through others."""
    group: list[_ScratchAccess] = []
    end = 0
    for access in accesses:
        if group and access.cells.first >= end:
            yield _block(group)
            group = []
        end = max(end, access.cells.end) if group else access.cells.end
        group.append(access)
    if group:
        yield _block(group)


def _block(group: list[_ScratchAccess]) -> _ScratchBlock:
    last = {access.threadblock for access in group if not _is_read_later(access, group)}
    first = group[0].cells.first
    return _ScratchBlock(
        first=first,
        cells=max(access.cells.end for access in group) - first,
        first_order=min(access.order for access in group),
        last_order=max(access.order for access in group),
        begin_us=min(access.begin_us for access in group),
        end_us=max(access.end_us for access in group),
        last_threadblock=last.pop() if len(last) == 1 else NONE,
    )


def _is_read_later(access: _ScratchAccess, group: list[_ScratchAccess]) -> bool:
    """True if later steps read what the step writes, so that a step that waits for these has waited for it."""
    return access.writes and any(
        not other.writes
        and other.order > access.order
        and other.cells.first <= access.cells.first
        and other.cells.end >= access.cells.end
        for other in group
    )


class _ScratchSlots:
    """Places of older blocks, for blocks that come in the order of their first actions."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int, _Slot]] = []
        # By size, then by end of use.
        self._idle: list[tuple[int, float, int, _Slot]] = []

    def give(self, slot: _Slot) -> None:
        """Keep a place for later blocks, if whoever uses it then has one threadblock alone to wait for."""
        if slot.block.last_threadblock != NONE:
            heappush(self._busy, (slot.block.last_order, slot.first, slot))

    def take(self, block: _ScratchBlock) -> _Slot | None:
        """Smallest place that is large enough and free in time."""
        while self._busy and self._busy[0][0] < block.first_order:
            slot = heappop(self._busy)[-1]
            insort(self._idle, (slot.cells, slot.block.end_us, slot.first, slot))
        for index in range(bisect_left(self._idle, (block.cells,)), len(self._idle)):
            slot = self._idle[index][-1]
            if slot.block.end_us <= block.begin_us:
                del self._idle[index]
                return slot
        return None


class _Moves:
    """New places of the cells of blocks."""

    def __init__(self, firsts: list[int], place_of: dict[int, int]) -> None:
        self._firsts = firsts
        self._place_of = place_of

    def action(self, action: RankAction) -> RankAction:
        """Return the action on its new cells."""
        reads, writes = self._cells(action.reads), self._cells(action.writes)
        return action if reads is action.reads and writes is action.writes else action.on(reads, writes)

    def _cells(self, cells: CellRange | None) -> CellRange | None:
        if cells is None or cells.buffer is not Buffer.SCRATCH:
            return cells
        first = self._firsts[bisect_right(self._firsts, cells.first) - 1]
        return CellRange(Buffer.SCRATCH, self._place_of[first] + cells.first - first, cells.count)
