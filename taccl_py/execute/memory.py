"""Buffers of one rank: rows of chunks, with input and output in each other's memory where a call is in place."""

from __future__ import annotations

from typing import Any

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.execute.arithmetic import Array, CellArithmetic
from taccl_py.execute.plan import ExecutablePlan, SizeCut
from taccl_py.execute.trouble import Trouble

# Content of memory that nobody has written: not a number where there are such, and no likely number elsewhere.
_NOTHING_FLOAT, _NOTHING_WHOLE = 0xFF, 0xA5
_NAMES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "scratch"}


def lengths_of(plan: ExecutablePlan, rank: int, *, in_place: bool) -> dict[Buffer, int]:
    """Chunks of the buffers that a rank has."""
    lengths = {
        Buffer.INPUT: plan.ranks[rank].input_chunks,
        Buffer.OUTPUT: plan.ranks[rank].output_chunks,
        Buffer.SCRATCH: plan.ranks[rank].scratch_chunks,
    }
    return {buffer: lengths[buffer] for buffer in Buffer if plan.has_buffer(buffer, rank, in_place=in_place)}


def require_cells(lengths: dict[Buffer, int], address: Address, count: int, where: str) -> None:
    """Refuse chunks that a rank does not have.

    Raises
    ------
    Trouble
        If the rank has no such buffer, or the buffer no such chunks.
    """
    length, name = lengths.get(address.buffer), _NAMES[address.buffer]
    if length is None:
        raise Trouble(where, "null-buffer", f"it uses the {name}, which may be NULL on this rank; use scratch")
    if address.offset < 0 or address.offset + count > length:
        what = f"it uses chunks {address.offset}..{address.offset + count - 1} of the {name}, which has {length}"
        raise Trouble(where, "outside-buffer", f"{what}; keep inside")


class RankMemory:
    """Input, output and scratch of one rank.

    Parameters
    ----------
    plan, cut
        Lengths.
    cells
        Where the elements live.
    rank
        Whose.
    in_place
        Whether input and output share memory, as the collective says.
    """

    def __init__(self, plan: ExecutablePlan, cut: SizeCut, cells: CellArithmetic, rank: int, *, in_place: bool) -> None:
        self._cells = cells
        self._nothing = _NOTHING_FLOAT if cells.data_type.is_float else _NOTHING_WHOLE
        self._lengths = lengths = lengths_of(plan, rank, in_place=in_place)
        shared = in_place and Buffer.INPUT in lengths and Buffer.OUTPUT in lengths
        self._buffers: dict[Buffer, Any] = {}
        for buffer in sorted(lengths, key=lambda one: -lengths[one]):
            other = {Buffer.INPUT: Buffer.OUTPUT, Buffer.OUTPUT: Buffer.INPUT}.get(buffer)
            if shared and other in self._buffers:
                first = 0 if lengths[buffer] == lengths[other] else rank * lengths[buffer]
                self._buffers[buffer] = self._buffers[other][first : first + lengths[buffer]]
            else:
                self._buffers[buffer] = cells.empty(lengths[buffer], cut.chunk_elements)

    def clear(self, *, scratch: bool = True) -> None:
        """Start over with nothing anywhere; without `scratch`, with what there is in scratch."""
        for kind, buffer in self._buffers.items():
            if scratch or kind is not Buffer.SCRATCH:
                self._cells.set_bytes(buffer, self._nothing)

    def fill(self, values: Array, *, scratch: bool = True) -> None:
        """Start over with nothing anywhere but these elements in the input; see `clear`."""
        self.clear(scratch=scratch)
        self._buffers[Buffer.INPUT].reshape(-1)[...] = self._cells.load(values)

    def whole(self, buffer: Buffer, otherwise: Any) -> Any:
        """All chunks of a buffer, or something else if the rank has no such buffer."""
        return self._buffers.get(buffer, otherwise)

    def elements(self, buffer: Buffer) -> Array | None:
        """All elements of a buffer in a row, or None if the rank has none."""
        found = self._buffers.get(buffer)
        return None if found is None else self._cells.unload(found)

    def cells(self, address: Address, count: int, part: slice, where: str) -> Any:
        """Return the same part of `count` neighbouring chunks.

        Raises
        ------
        Trouble
            If the rank has no such buffer or chunks.
        """
        require_cells(self._lengths, address, count, where)
        return self._buffers[address.buffer][address.offset : address.offset + count, part]


def starts_with_input(plan: ExecutablePlan, rank: int) -> bool:
    """True if the collective takes the rank's input."""
    return plan.kind not in (Kind.BROADCAST, Kind.SCATTER) or rank == plan.root
