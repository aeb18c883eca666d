"""Birkhoff's decomposition: a matrix of times as matchings one after the other, in which each sender has one receiver at a time.

The matrix is filled up so that all rows and columns have the largest sum, which is how long the matchings take together; no order of messages
between ports that serve one at a time takes less. Each matching is the one whose shortest entry is longest, so that there are few.
(G. Birkhoff, 1946; for switches, T. Inukai, 1979: preemptive open shops.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Matching:
    """For so long every sender that has one sends to its receiver; pairs are (sender, receiver)."""

    duration: float
    pairs: tuple[tuple[int, int], ...]


def birkhoff(times: Sequence[Sequence[float]]) -> list[Matching]:
    """Matchings of a square matrix of times; what was filled up is left out of them."""
    size = len(times)
    wanted = [list(row) for row in times]
    whole = max([sum(row) for row in wanted] + [sum(column) for column in zip(*wanted, strict=True)], default=0.0)
    filled = _filled(wanted, whole)
    found = []
    left = whole
    while left > whole * _NOTHING:
        partner = _widest(filled, whole * _NOTHING)
        if partner is None:
            break
        duration = min(filled[row][column] for row, column in enumerate(partner))
        # What is really wanted of a pair may end before its filling does; so does the matching.
        duration = min([duration] + [wanted[r][c] for r, c in enumerate(partner) if wanted[r][c] > whole * _NOTHING])
        pairs = []
        for row, column in enumerate(partner):
            filled[row][column] -= duration
            if wanted[row][column] > whole * _NOTHING:
                wanted[row][column] -= duration
                pairs.append((row, column))
        left -= duration
        if pairs:
            found.append(Matching(duration, tuple(pairs)))
        if len(found) > 4 * size * size:
            break
    return found


def _filled(times: Sequence[Sequence[float]], whole: float) -> list[list[float]]:
    """The matrix with all rows and columns filled up to one sum."""
    rows = [whole - sum(row) for row in times]
    columns = [whole - sum(column) for column in zip(*times, strict=True)]
    filled = [list(row) for row in times]
    for row, missing in enumerate(rows):
        for column in range(len(columns)):
            added = min(missing, columns[column])
            filled[row][column] += added
            missing -= added
            columns[column] -= added
    return filled


def _widest(matrix: Sequence[Sequence[float]], least: float) -> list[int] | None:
    """Perfect matching whose smallest entry is largest, as the column of every row; None if there is none above `least`."""
    values = sorted({entry for row in matrix for entry in row if entry > least})
    low, high, best = 0, len(values) - 1, None
    while low <= high:
        middle = (low + high) // 2
        partner = _perfect(matrix, values[middle])
        if partner is None:
            high = middle - 1
        else:
            best, low = partner, middle + 1
    return best


def _perfect(matrix: Sequence[Sequence[float]], least: float) -> list[int] | None:
    """Perfect matching on entries of at least `least`, by augmenting paths."""
    row_of = [-1] * len(matrix)

    def place(row: int, seen: set[int]) -> bool:
        for column, entry in enumerate(matrix[row]):
            if entry >= least and column not in seen:
                seen.add(column)
                if row_of[column] < 0 or place(row_of[column], seen):
                    row_of[column] = row
                    return True
        return False

    if not all(place(row, set()) for row in range(len(matrix))):
        return None
    partner = [0] * len(matrix)
    for column, row in enumerate(row_of):
        partner[row] = column
    return partner
