"""Demands by formula, from counts or from a skew: what the command line, suites and scripts call ``alltoallv``, ``allgatherv`` and so on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taccl_py.demand.counts import parse_skew, read_counts, read_pairs, zipf_counts
from taccl_py.demand.model import DTYPES, DataDemand, dtype_named
from taccl_py.demand.variable import Variable, allgatherv, alltoallv, reducescatterv, sendrecv
from taccl_py.errors import InputError
from taccl_py.units import ALIGNED_BYTES


def dtype_of(variable: Variable, text: str | None) -> str:
    """Type of a formula's elements: the one that is named, else float32 of what is added and bytes of what is copied.

    Raises
    ------
    InputError
        If there is no such type.
    """
    return dtype_named(text or ("float32" if variable is Variable.REDUCESCATTERV else "uint8"))


def read_rows_of(variable: Variable, path: Path) -> list[list[int]]:
    """Rows of a file of counts; those of ``sendrecv`` are source, destination and elements.

    Raises
    ------
    InputError
        If the file cannot be read, or holds something else.
    """
    return [list(pair) for pair in read_pairs(path)] if variable is Variable.SENDRECV else read_counts(path)


def by_counts(variable: Variable, rows: Sequence[Sequence[int]], num_ranks: int, dtype: str) -> DataDemand:
    """Demand of counts.

    Parameters
    ----------
    variable
        Formula.
    rows
        Of alltoallv a row for each sender; of allgatherv and reducescatterv one row with a count for each rank; of sendrecv source,
        destination and elements in each.
    num_ranks
        Ranks of the machine.
    dtype
        Type of the elements.

    Raises
    ------
    InputError
        If the counts are not for so many ranks, or contradict themselves.
    """
    if variable is Variable.SENDRECV:
        for number, row in enumerate(rows):
            if len(row) != 3:
                raise InputError(
                    f"found {len(row)} numbers; source, destination and elements are needed", field=f"row {number}"
                )
        return sendrecv([(row[0], row[1], row[2]) for row in rows], num_ranks, dtype)
    if variable is Variable.ALLTOALLV:
        _require_ranks(len(rows), num_ranks)
        return alltoallv(rows, dtype)
    if len(rows) != 1:
        raise InputError(f"found {len(rows)} rows; {variable} has one count for each rank")
    _require_ranks(len(rows[0]), num_ranks)
    return allgatherv(rows[0], dtype) if variable is Variable.ALLGATHERV else reducescatterv(rows[0], dtype)


def by_skew(variable: Variable, skew: str, size_bytes: int, num_ranks: int, dtype: str, seed: int) -> DataDemand:
    """Demand whose counts are drawn: of alltoallv each rank sends `size_bytes`; of the others that is the size of all.

    Counts are multiples of 16 bytes, which plans need, where the size is one and has as many of them as there are ranks; else of an element.

    Raises
    ------
    InputError
        If it is no skew such as ``zipf:0.5``, the formula has none, or nothing is left to move.
    """
    if variable is Variable.SENDRECV:
        raise InputError("sendrecv has no skew; give its pairs as counts")
    elements, unit = size_bytes // DTYPES[dtype], ALIGNED_BYTES // DTYPES[dtype]
    if elements % unit or elements < num_ranks * unit:
        unit = 1
    drawn = zipf_counts(num_ranks, elements // unit, parse_skew(skew), seed)
    rows = [[count * unit for count in row] for row in drawn]
    return by_counts(variable, rows if variable is Variable.ALLTOALLV else rows[:1], num_ranks, dtype)


def _require_ranks(found: int, num_ranks: int) -> None:
    if found != num_ranks:
        raise InputError(f"found counts for {found} ranks, and the machine has {num_ranks}")
