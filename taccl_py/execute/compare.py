"""Elements against those that are wanted: how many elements are wrong, and which one is the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.collective import Buffer
from taccl_py.execute.arithmetic import Array, decode
from taccl_py.execute.plan import DataType


@dataclass(frozen=True, slots=True)
class WrongElement:
    """The first wrong element of a rank.

    Attributes
    ----------
    rank, buffer, chunk, offset
        Where: `offset` counts elements inside the chunk.
    found, wanted
        Text of the values.
    """

    rank: int
    buffer: Buffer
    chunk: int
    offset: int
    found: str
    wanted: str

    def __str__(self) -> str:
        """One clause."""
        name = "output" if self.buffer is Buffer.OUTPUT else "input (which must stay as it was)"
        return (
            f"rank {self.rank}, chunk {self.chunk} of the {name}, offset {self.offset}: "
            f"found {self.found}, {self.wanted} is right"
        )


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """Wrong elements of one rank or of all, and the first of them."""

    num_wrong: int
    first: WrongElement | None


def total(comparisons: Sequence[ResultCheck]) -> ResultCheck:
    """All of them as one."""
    first = next((one.first for one in comparisons if one.first is not None), None)
    return ResultCheck(sum(one.num_wrong for one in comparisons), first)


@dataclass(frozen=True, slots=True)
class ElementRow:
    """Elements in a row: whose, in which buffer, and how many make a chunk of the program."""

    rank: int
    buffer: Buffer
    chunk_elements: int


def compare_elements(
    row: ElementRow, found: Array, wanted: Array, data_type: DataType, *, exact: bool, asked: Array | None = None
) -> ResultCheck:
    """Compare a row with what is wanted.

    Parameters
    ----------
    exact
        Whether bits count, and not numbers.
    asked
        Which elements are looked at; None: all.
    """
    if exact:
        bits = np.dtype(f"u{found.dtype.itemsize}")
        wrong = found.view(bits) != wanted.view(bits)
    else:
        wrong = decode(found, data_type) != decode(wanted, data_type)
    if asked is not None:
        wrong &= asked
    count = int(np.count_nonzero(wrong))
    if not count:
        return ResultCheck(0, None)
    index = int(np.argmax(wrong))
    values = [str(decode(values[index : index + 1], data_type)[0]) for values in (found, wanted)]
    if values[0] == values[1]:  # not a number twice, with other bits
        values = [f"{values[0]} (bits {array[index : index + 1].tobytes()[::-1].hex()})" for array in (found, wanted)]
    place = divmod(index, row.chunk_elements)
    return ResultCheck(count, WrongElement(row.rank, row.buffer, *place, *values))
