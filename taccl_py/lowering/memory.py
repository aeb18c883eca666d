"""Memory cells of all ranks: which actions must come before which because they touch the same cell."""

from __future__ import annotations

from taccl_py.collective import Buffer
from taccl_py.lowering.actions import NONE, Action
from taccl_py.lowering.buffers import Geometry
from taccl_py.lowering.cells import Cells
from taccl_py.lowering.program import Op


class Memory:
    """Last writer and later readers of every cell, for calls with buffers apart and, if there are such calls, in place.

    A copy from the input to the output cell that is the same memory in place does nothing there that anybody could notice, so
    in place it counts as reading only.

    Parameters
    ----------
    geometry
        Knows which input and output cells are the same memory in place.
    aliased
        Whether calls may be in place.
    """

    def __init__(self, geometry: Geometry, *, aliased: bool) -> None:
        self._views = [_View(geometry, aliased=False)]
        if aliased:
            self._views.append(_View(geometry, aliased=True))

    def access(self, action: Action) -> list[int]:
        """Return the actions that must come before this one, latest first, and note what it does."""
        before: set[int] = set()
        for view in self._views:
            before |= view.access(action)
        before.discard(NONE)
        before.discard(action.order)
        return sorted(before, reverse=True)


class _View:
    """Accesses when input and output are apart, or when they are the same memory."""

    def __init__(self, geometry: Geometry, *, aliased: bool) -> None:
        self._geometry = geometry
        self._aliased = aliased
        self._writer: dict[tuple[int, Buffer, int], int] = {}
        self._readers: dict[tuple[int, Buffer, int], list[int]] = {}

    def access(self, action: Action) -> set[int]:
        read, written = self._places(action.rank, action.reads), self._places(action.rank, action.writes)
        if action.op is Op.COPY and read == written:
            written = []
        before: set[int] = set()
        for place in read:
            before.add(self._writer.get(place, NONE))
        for place in written:
            before.add(self._writer.get(place, NONE))
            before.update(self._readers.get(place, ()))
        for place in read:
            self._readers.setdefault(place, []).append(action.order)
        for place in written:
            self._writer[place] = action.order
            self._readers[place] = []
        return before

    def _places(self, rank: int, cells: Cells | None) -> list[tuple[int, Buffer, int]]:
        if cells is None:
            return []
        offsets = range(cells.first, cells.end)
        if not self._aliased or cells.buffer is not Buffer.OUTPUT:
            return [(rank, cells.buffer, offset) for offset in offsets]
        under = [self._geometry.input_under(rank, offset) for offset in offsets]
        return [
            (rank, Buffer.OUTPUT, offset) if below is None else (rank, Buffer.INPUT, below)
            for offset, below in zip(offsets, under, strict=True)
        ]
