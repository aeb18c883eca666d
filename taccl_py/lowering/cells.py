"""Runs of cells, which programs and plans name and lowerings reason about."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from taccl_py.collective import Address, Buffer


@dataclass(frozen=True, slots=True)
class CellRange:
    """Neighbouring cells of one buffer of a rank."""

    buffer: Buffer
    first: int
    count: int

    @property
    def address(self) -> Address:
        """First cell."""
        return Address(self.buffer, self.first)

    @property
    def end(self) -> int:
        """Offset after the last cell."""
        return self.first + self.count

    def part(self, offset: int, count: int) -> CellRange:
        """Return `count` of these cells from `offset` on."""
        return CellRange(self.buffer, self.first + offset, count)

    def scaled(self, factor: int) -> CellRange:
        """Return the same cells when every one of them is cut into `factor`."""
        return CellRange(self.buffer, self.first * factor, self.count * factor)


def nearly_equal_runs(count: int, number: int) -> list[tuple[int, int]]:
    """First and end of each of so many neighbouring runs into which a number of things is cut."""
    return list(pairwise(count * index // number for index in range(number + 1)))
