"""Least cost of a linear program by classes: columns and rows that look the same are one.

The mean of an optimum over classes of columns is an optimum too where all rows of a class have the same entries in every class of
columns, and all columns of a class the same ones in every class of rows. Such classes are found by colour refinement: all columns of
one cost begin as one class, as do all rows with the same limits, and a class is split as long as entries tell its members apart.
The program of a plan in which ranks, nodes or lanes do the same becomes many times smaller so.

Source: Grohe, Kersting, Mladenov and Selman, "Dimension Reduction via Colour Refinement", ESA 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.sparse import Coefficients, SparseProgram

_Hashes = NDArray[np.uint64]

# Part of the rows that classes may be for their program to be solved. Measured: sizes of pieces, where it is 0.03 to 0.25 on plans in which
# ranks do the same, and 0.9 and more on those of a Broadcast over two nodes.
_MOST_CLASSES = 0.5
# Odd numbers with which bits are mixed (SplitMix64), of which the first also sets apart hashes that are not to be alike.
_APART, _ONE, _OTHER = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class LinearClasses:
    """Classes of a linear program's columns and rows.

    Attributes
    ----------
    of_column, of_row
        Class of each, numbered from 0, [column] and [row].
    """

    of_column: IntArray
    of_row: IntArray

    @staticmethod
    def of(cost: FloatArray, matrix: Coefficients, row_low: FloatArray, row_high: FloatArray) -> LinearClasses:
        """The coarsest classes whose members cannot be told apart."""
        value = _mixed(_numbered(matrix.value).astype(np.uint64) * _APART)
        by_row, by_column = _Sides.of(matrix.row, len(row_low)), _Sides.of(matrix.column, len(cost))
        of_column = _numbered(cost)
        of_row = _numbered(_numbered(row_low) * len(row_low) + _numbered(row_high))
        while True:
            before = _number(of_row), _number(of_column)
            of_row = _split(of_row, by_row, value, of_column[matrix.column])
            of_column = _split(of_column, by_column, value, of_row[matrix.row])
            if (_number(of_row), _number(of_column)) == before:
                return LinearClasses(of_column, of_row)


def least_cost(
    cost: FloatArray, matrix: Coefficients, row_low: FloatArray, row_high: FloatArray, limits: Limits
) -> float | None:
    """Cost of an optimum, which is that of the program of one column and one row of each class; -inf where classes are not far fewer.

    Parameters
    ----------
    cost, matrix, row_low, row_high
        The program as `SparseProgram` takes it: minimize ``cost @ x`` with ``row_low <= A x <= row_high`` and ``x >= 0``.
    limits
        Time, and the user's interrupt; None is returned where they come first or there is no solution.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    classes = LinearClasses.of(cost, matrix, row_low, row_high)
    if _number(classes.of_row) > _MOST_CLASSES * len(row_low):
        return -math.inf
    first_row = np.unique(classes.of_row, return_index=True)[1]
    kept = first_row[classes.of_row[matrix.row]] == matrix.row
    entries = Coefficients(classes.of_row[matrix.row[kept]], classes.of_column[matrix.column[kept]], matrix.value[kept])
    costs = np.asarray(np.bincount(classes.of_column, weights=cost), dtype=np.float64)
    optimum = SparseProgram(costs, entries, row_low[first_row], row_high[first_row], inner=True).solve(limits)
    return None if optimum is None else optimum.objective


@dataclass(frozen=True)
class _Sides:
    """Entries of a matrix in order of their rows (or columns), and where those of each begin and end."""

    order: IntArray
    ends: IntArray

    @staticmethod
    def of(places: IntArray, count: int) -> _Sides:
        order = np.argsort(places, kind="stable")
        return _Sides(order, np.searchsorted(places[order], np.arange(count + 1)))

    def sums(self, hashes: _Hashes) -> _Hashes:
        """Sums of the entries' hashes, which do not depend on their order."""
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes[self.order])])
        found: _Hashes = running[self.ends[1:]] - running[self.ends[:-1]]
        return found


def _split(own: IntArray, sides: _Sides, value: _Hashes, across: IntArray) -> IntArray:
    """LinearClasses by their own class and by the values and classes of their entries."""
    entries = _mixed(value + _mixed(across.astype(np.uint64) + _ONE))
    return _numbered(_mixed(sides.sums(entries) + _mixed(own.astype(np.uint64) + _APART)))


def _mixed(hashes: _Hashes) -> _Hashes:
    """Well mixed bits of each (SplitMix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _ONE
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _OTHER
    mixed: _Hashes = hashes ^ (hashes >> np.uint64(31))
    return mixed


def _numbered(looks: NDArray[np.generic]) -> IntArray:
    """Numbers from 0 of what is equal."""
    numbers: IntArray = np.unique(looks, return_inverse=True)[1]
    return numbers


def _number(classes: IntArray) -> int:
    return int(classes.max(initial=-1)) + 1
