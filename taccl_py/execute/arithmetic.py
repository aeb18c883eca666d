"""Numbers: how elements are stored, and what operators do with them, in numpy.

bfloat16, which numpy does not have, is stored as the upper half of a float32; sums are made in float32 and rounded to the
nearest (to even between two), as GPUs do. Integers wrap around.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taccl_py.execute.plan import DataType, Operator

Array = NDArray[Any]

# Whole numbers up to two to this are exact.
EXACT_BITS = {DataType.FLOAT16: 11, DataType.BFLOAT16: 8, DataType.FLOAT32: 24, DataType.FLOAT64: 53}

_FUNCTIONS: dict[Operator, np.ufunc] = {
    Operator.SUM: np.add,
    Operator.PROD: np.multiply,
    Operator.MIN: np.minimum,
    Operator.MAX: np.maximum,
    Operator.AVG: np.add,
}


def storage_type(data_type: DataType) -> np.dtype[Any]:
    """Type in which numpy holds the elements."""
    return np.dtype(np.uint16 if data_type is DataType.BFLOAT16 else str(data_type))


def decode(values: Array, data_type: DataType) -> Array:
    """Stored elements as numbers that numpy understands."""
    if data_type is not DataType.BFLOAT16:
        return values
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode(values: Array, data_type: DataType) -> Array:
    """Numbers as stored elements, rounded where they must be."""
    if data_type is not DataType.BFLOAT16:
        return values.astype(storage_type(data_type), copy=False)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding a NaN up could make an infinity of it
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def combine(operator: Operator, data_type: DataType, one: Array, other: Array) -> Array:
    """Contributions of two sides, element by element."""
    function = _FUNCTIONS[operator]
    with np.errstate(all="ignore"):
        return encode(function(decode(one, data_type), decode(other, data_type)), data_type)


def divide(values: Array, data_type: DataType, num_ranks: int) -> Array:
    """Sums -> averages; integers are cut towards zero, as in C."""
    numbers = decode(values, data_type)
    with np.errstate(all="ignore"):
        if data_type.is_float:
            return encode(numbers / numbers.dtype.type(num_ranks), data_type)
        quotients = np.abs(numbers) // numbers.dtype.type(num_ranks)
        return encode(np.where(numbers < 0, -quotients, quotients), data_type)


class CellArithmetic(Protocol):
    """Storage and arithmetic of elements of one type: numpy, or another library with arrays like its."""

    @property
    def data_type(self) -> DataType:
        """Type of the elements."""

    def empty(self, rows: int, columns: int) -> Any:
        """Return cells that hold anything."""

    def set_bytes(self, cells: Any, byte: int) -> None:
        """Give all bytes of cells a value."""

    def load(self, values: Array) -> Any:
        """Return elements of numpy as cells in a row."""

    def unload(self, cells: Any) -> Array:
        """Return cells as elements of numpy in a row."""

    def length(self, cells: Any) -> int:
        """Return the number of elements."""

    def copy(self, cells: Any) -> Any:
        """Return the same in one piece of memory of its own."""

    def combine(self, operator: Operator, one: Any, other: Any) -> Any:
        """Combine contributions of two sides, element by element."""

    def combine_into(self, operator: Operator, one: Any, other: Any) -> Any:
        """Combine them, where the first may become the result."""

    def combine_to(self, operator: Operator, target: Any, one: Any, other: Any) -> None:
        """Combine them, and store the result in the target, which may be one of them."""


class NumpyCells:
    """Elements in numpy's arrays."""

    def __init__(self, data_type: DataType) -> None:
        self.data_type = data_type
        self._stored = storage_type(data_type)

    def empty(self, rows: int, columns: int) -> Array:
        """Return cells that hold anything."""
        return np.empty((rows, columns), dtype=self._stored)

    def set_bytes(self, cells: Array, byte: int) -> None:
        """Give all bytes of cells a value."""
        cells.view(np.uint8)[...] = byte

    def load(self, values: Array) -> Array:
        """Return them as they are."""
        return values

    def unload(self, cells: Array) -> Array:
        """Return cells in a row."""
        return cells.reshape(-1)

    def length(self, cells: Array) -> int:
        """Return the number of elements."""
        return cells.size

    def copy(self, cells: Array) -> Array:
        """Return the same in one piece of memory of its own."""
        return np.array(cells, order="C")

    def combine(self, operator: Operator, one: Array, other: Array) -> Array:
        """Combine contributions of two sides, element by element."""
        return combine(operator, self.data_type, one, other)

    def combine_into(self, operator: Operator, one: Array, other: Array) -> Array:
        """Combine them in the memory of the first, where numpy knows the type."""
        if self.data_type is DataType.BFLOAT16 or not one.flags.writeable:
            return self.combine(operator, one, other)
        with np.errstate(all="ignore"):
            _FUNCTIONS[operator](one, other, out=one)
        return one

    def combine_to(self, operator: Operator, target: Array, one: Array, other: Array) -> None:
        """Combine them, and store the result in the target, in one go where numpy knows the type."""
        if self.data_type is DataType.BFLOAT16:
            target[...] = self.combine(operator, one, other)
            return
        with np.errstate(all="ignore"):
            _FUNCTIONS[operator](one, other, out=target)
