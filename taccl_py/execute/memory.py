"""Buffers of one rank: rows of chunks, with input and output in each other's memory where a call is in place."""

from __future__ import annotations

import numpy as np

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.execute.arithmetic import Array, storage_type
from taccl_py.execute.plan import Cut, DataType, Plan
from taccl_py.execute.trouble import Trouble

# What memory holds that nobody has written: not a number where there are such, and no likely number elsewhere.
_NOTHING_FLOAT, _NOTHING_WHOLE = 0xFF, 0xA5
_NAMES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "scratch"}


class Memory:
    """Input, output and scratch of one rank.

    Parameters
    ----------
    plan, cut, data_type
        Lengths.
    rank
        Whose.
    in_place
        Whether input and output share memory, as the collective says.
    """

    def __init__(self, plan: Plan, cut: Cut, data_type: DataType, rank: int, *, in_place: bool) -> None:
        self._nothing = _NOTHING_FLOAT if data_type.is_float else _NOTHING_WHOLE
        stored = storage_type(data_type)
        lengths = {
            Buffer.INPUT: plan.input_chunks,
            Buffer.OUTPUT: plan.output_chunks,
            Buffer.SCRATCH: plan.ranks[rank].scratch_chunks,
        }
        exists = {buffer: plan.has_buffer(buffer, rank, in_place=in_place) for buffer in Buffer}
        shared = in_place and exists[Buffer.INPUT] and exists[Buffer.OUTPUT]
        self._buffers: dict[Buffer, Array] = {}
        for buffer in sorted(lengths, key=lambda one: -lengths[one]):
            other = {Buffer.INPUT: Buffer.OUTPUT, Buffer.OUTPUT: Buffer.INPUT}.get(buffer)
            if not exists[buffer]:
                continue
            if shared and other in self._buffers:
                first = 0 if lengths[buffer] == lengths[other] else rank * lengths[buffer]
                self._buffers[buffer] = self._buffers[other][first : first + lengths[buffer]]
            else:
                self._buffers[buffer] = np.empty((lengths[buffer], cut.chunk_elements), dtype=stored)

    def clear(self) -> None:
        """Start over with nothing anywhere."""
        for buffer in self._buffers.values():
            buffer.view(np.uint8)[...] = self._nothing

    def fill(self, values: Array) -> None:
        """Start over with nothing anywhere but these elements in the input."""
        self.clear()
        self._buffers[Buffer.INPUT].reshape(-1)[...] = values

    def elements(self, buffer: Buffer) -> Array | None:
        """All elements of a buffer in a row, or None if the rank has none."""
        found = self._buffers.get(buffer)
        return None if found is None else found.reshape(-1)

    def cells(self, address: Address, count: int, part: slice, where: str) -> Array:
        """The same part of `count` neighbouring chunks.

        Raises
        ------
        Trouble
            If the rank has no such buffer or chunks.
        """
        buffer = self._buffers.get(address.buffer)
        name = _NAMES[address.buffer]
        if buffer is None:
            raise Trouble(where, "null-buffer", f"it uses the {name}, which may be NULL on this rank; use scratch")
        if address.offset < 0 or address.offset + count > len(buffer):
            what = (
                f"it uses chunks {address.offset}..{address.offset + count - 1} of the {name}, which has {len(buffer)}"
            )
            raise Trouble(where, "outside-buffer", f"{what}; keep inside")
        return buffer[address.offset : address.offset + count, part]


def starts_with_input(plan: Plan, rank: int) -> bool:
    """Whether the collective takes the rank's input."""
    return plan.kind not in (Kind.BROADCAST, Kind.SCATTER) or rank == plan.root
