"""Stretches: neighbouring cells of a rank that no action tears apart.

What reads or writes one cell of a stretch does so with all of them, so whatever has to be known of cells is the same for all
cells of a stretch. A message carries many cells but few stretches.
"""

from __future__ import annotations

from collections.abc import Iterable

from taccl_py.collective import Buffer
from taccl_py.lowering.actions import RankAction
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange


class Stretches:
    """Numbers the stretches of all ranks; those of one buffer of a rank in the order of their cells.

    Parameters
    ----------
    actions
        All that is done.
    geometry
        Knows which input and output cells are the same memory in place. None if no call is in place.
    """

    def __init__(self, actions: Iterable[RankAction], geometry: BufferSizes | None = None) -> None:
        cuts: dict[tuple[int, Buffer], set[int]] = {}
        for action in actions:
            for cells in (action.reads, action.writes):
                if cells is not None:
                    cuts.setdefault((action.rank, cells.buffer), set()).update((cells.first, cells.end))
        if geometry is not None:
            for rank in sorted({rank for rank, _ in cuts}):
                _cut_alike(cuts, rank, geometry)
        self._number: dict[tuple[int, Buffer], dict[int, int]] = {}
        # The last cut of a buffer has a number, too, so that every run of cells has two.
        self.count = 0
        for place, found in cuts.items():
            self._number[place] = {cut: self.count + index for index, cut in enumerate(sorted(found))}
            self.count += len(found)
        self._in_place = self._same_memory(geometry)

    def of(self, rank: int, cells: CellRange | None) -> range:
        """Return the stretches that cells consist of."""
        if cells is None:
            return range(0)
        number = self._number[rank, cells.buffer]
        return range(number[cells.first], number[cells.end])

    def in_place(self, stretches: range) -> list[int]:
        """Return stretches of which each output stretch that is input memory in place has become that of the input."""
        return self._in_place[stretches.start : stretches.stop]

    def outputs(self) -> list[int]:
        """Return all stretches of output buffers."""
        ends = [list(number.values()) for (_, buffer), number in self._number.items() if buffer is Buffer.OUTPUT]
        return [number for numbers in ends for number in numbers[:-1]]

    def _same_memory(self, geometry: BufferSizes | None) -> list[int]:
        same = list(range(self.count))
        if geometry is None:
            return same
        for (rank, buffer), number in self._number.items():
            inputs = self._number.get((rank, Buffer.INPUT), {}) if buffer is Buffer.OUTPUT else {}
            for cut, index in number.items() if inputs else ():
                below = geometry.input_under(rank, cut)
                if below is not None:
                    same[index] = inputs[below]
        return same


def _cut_alike(cuts: dict[tuple[int, Buffer], set[int]], rank: int, geometry: BufferSizes) -> None:
    """Cut a rank's input and output at the same places of their common memory, and at its ends."""
    inputs, outputs = cuts.setdefault((rank, Buffer.INPUT), set()), cuts.setdefault((rank, Buffer.OUTPUT), set())
    shift = geometry.input_shift(rank)
    inputs.update((0, geometry.input_cells))
    outputs.update(cut - shift for cut in inputs)
    inputs.update(cut + shift for cut in outputs)
