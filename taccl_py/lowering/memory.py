"""Memory cells of all ranks: which actions must come before which because they touch the same cell."""

from __future__ import annotations

from collections.abc import Sequence

from taccl_py.lowering.actions import NONE, RankAction
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.contiguous import Stretches
from taccl_py.lowering.program import Op


class CellHistory:
    """Last writer and later readers of every cell, for calls with buffers apart and, if there are such calls, in place.

    A copy from the input to the output cell that is the same memory in place does nothing there that anybody could notice, so
    in place it counts as reading only.

    Parameters
    ----------
    actions
        All that will be done.
    geometry
        Knows which input and output cells are the same memory in place.
    aliased
        Whether calls may be in place.
    """

    def __init__(self, actions: Sequence[RankAction], geometry: BufferSizes, *, aliased: bool) -> None:
        self._stretches = Stretches(actions, geometry if aliased else None)
        self._apart = _View(self._stretches.count)
        self._in_place = _View(self._stretches.count) if aliased else None

    def access(self, action: RankAction) -> list[int]:
        """Return the actions that must come before this one, latest first, and note what it does."""
        stretches, copies = self._stretches, action.op is Op.COPY
        read, written = stretches.of(action.rank, action.reads), stretches.of(action.rank, action.writes)
        before = self._apart.access(action.order, read, () if copies and read == written else written)
        if self._in_place is not None:
            below, above = stretches.in_place(read), stretches.in_place(written)
            before |= self._in_place.access(action.order, below, () if copies and below == above else above)
        before.discard(NONE)
        before.discard(action.order)
        return sorted(before, reverse=True)


class _View:
    """Accesses when input and output are apart, or when they are the same memory."""

    def __init__(self, count: int) -> None:
        self._writer = [NONE] * count
        self._readers: list[list[int]] = [[] for _ in range(count)]

    def access(self, order: int, read: Sequence[int], written: Sequence[int]) -> set[int]:
        writer, readers = self._writer, self._readers
        before = {writer[place] for place in (*read, *written)}
        for place in written:
            before.update(readers[place])
        for place in read:
            readers[place].append(order)
        for place in written:
            writer[place] = order
            readers[place] = []
        return before
