"""Effect of the operations of execution plans on the memory of ranks: element by element, with flags beside packets.

Bytes are cut as the runtime does it (microsoft/mscclpp 1f5f065, src/core/executor/execution_plan.cc: `calcOffset`, `calcSize`). A packet
stands at twice the offset of its data, in two places of the same length: the data, and the number of the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.collective import Buffer
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.memory import RankMemory, lengths_of, require_cells
from taccl_py.execute.one_sided import OneSidedBlock, OneSidedOperation, OneSidedPlan, OperandTransfer, Place
from taccl_py.execute.plan import Operator, SizeCut
from taccl_py.execute.trouble import Trouble

SHARED_SCRATCH_BYTES = 1 << 26  # of plans that reuse resources: PREDFINED_SCRATCH_SIZE


@dataclass(frozen=True, slots=True)
class OperationPass:
    """An operation, or one pass of it in a pipeline: `unit` elements from `offset` of each operand, or all."""

    operation: OneSidedOperation
    step: str
    offset: int = 0
    unit: int | None = None


@dataclass(frozen=True, slots=True)
class _Range:
    """Elements of a place: from `start` in its buffer, `stride` apart."""

    rank: int
    buffer: Buffer
    start: int
    stride: int


@dataclass(frozen=True, slots=True)
class ElementTransfer:
    """A transfer of `count` elements in call number `call`; `raw` if packets go on as they are, flags and all."""

    transfer: OperandTransfer
    sources: tuple[_Range, ...]
    targets: tuple[_Range, ...]
    count: int
    call: int
    where: str
    raw: bool


class PlanMemories:
    """Memories of all ranks.

    Parameters
    ----------
    plan, cut
        Lengths.
    memories
        Of the ranks.
    cells
        How elements are added.
    in_place
        Whether input and output share memory.
    """

    def __init__(
        self, plan: OneSidedPlan, cut: SizeCut, memories: list[RankMemory], cells: NumpyCells, *, in_place: bool
    ) -> None:
        self._plan = plan
        self._chunk = cut.chunk_elements
        self._cells = cells
        item = cells.data_type.size_bytes
        self._aligned = max(1, plan.alignment_bytes // item)
        self._item = item
        self._lengths = [lengths_of(plan, rank, in_place=in_place) for rank in range(plan.num_ranks)]
        self._rows: list[dict[Buffer, NDArray[np.generic]]] = []
        self._flags = []
        for memory in memories:
            whole = {buffer: memory.whole(buffer, None) for buffer in Buffer}
            self._rows.append({buffer: one.reshape(-1) for buffer, one in whole.items() if one is not None})
            scratch = self._rows[-1].get(Buffer.SCRATCH)
            self._flags.append(np.zeros(0 if scratch is None else len(scratch), dtype=np.uint32))

    def turns(self, block: OneSidedBlock) -> list[OperationPass]:
        """Operations of a threadblock, with those of pipelines as often as they come."""
        return list(self._turns(block))

    def _turns(self, block: OneSidedBlock) -> Iterator[OperationPass]:
        for step, operation in enumerate(block.operations):
            if operation.name != "pipeline":
                yield OperationPass(operation, str(step))
                continue
            unit = operation.unit_bytes // self._item
            for number in range(-(-operation.num_chunks * self._chunk // unit)):
                for inner, one in enumerate(operation.inner):
                    yield OperationPass(one, f"{step}.{inner}", number * unit, unit)

    def element_transfers(self, turn: OperationPass, call: int, where: str) -> list[ElementTransfer]:
        """Transfers of an operation in a call.

        Raises
        ------
        Trouble
            If it is outside a buffer.
        """
        found = []
        for transfer in turn.operation.transfers:
            packets = any(place.packets for place in (*transfer.sources, *transfer.targets))
            offset, unit = (0, None) if packets else (turn.offset, turn.unit)
            part = turn.operation.part
            count = self._length(transfer.sources[0].count, part)
            if unit is not None:
                count = min(count - offset, unit) if count >= offset else unit
            sources = tuple(self._range(one, part, offset, count, call, where) for one in transfer.sources)
            targets = tuple(self._range(one, part, offset, count, call, where) for one in transfer.targets)
            raw = transfer.channel is not None and transfer.sources[0].packets
            found.append(ElementTransfer(transfer, sources, targets, count, call, where, raw))
        return [one for one in found if one.count]

    def _start(self, count: int, index: int, parts: int) -> int:
        least, more = divmod(count * self._chunk // self._aligned, parts)
        return (index * least + min(index, more)) * self._aligned

    def _length(self, count: int, part: tuple[int, int]) -> int:
        return self._start(count, part[0] + 1, part[1]) - self._start(count, *part)

    def _range(
        self, place: Place, part: tuple[int, int], offset: int, count: int, call: int, where: str
    ) -> _Range:  # fmt: skip
        require_cells(self._lengths[place.rank], place.address, place.count, where)
        buffer, stride = place.address.buffer, 2 if place.packets else 1
        row = self._rows[place.rank][buffer]
        start = stride * (place.address.offset * self._chunk + self._start(place.count, *part) + offset)
        if buffer is Buffer.SCRATCH:
            half = len(row) // self._plan.halves
            if self._plan.shares_scratch and half * self._item > SHARED_SCRATCH_BYTES // self._plan.halves:
                raise Trouble(
                    where,
                    "outside-buffer",
                    "it uses more scratch than there is for plans that reuse resources; run a smaller size",
                )
            if place.by_turns and call % 2 == 0:  # the flag of the first call is 1
                start += half * (self._plan.halves - 1)
        if start + stride * count > len(row):
            raise Trouble(where, "outside-buffer", f"it goes on behind {buffer} of rank {place.rank}; keep inside")
        return _Range(place.rank, buffer, start, stride)

    def ready(self, move: ElementTransfer, done: int) -> int:
        """Elements that can be moved now, of those that are not done: all whose packets have come."""
        found = move.count - done
        for place, one in zip(move.transfer.sources, move.sources, strict=True):
            if place.packets and found:
                flags = self._flags[one.rank][one.start + 2 * done : one.start + 2 * (done + found) : 2]
                late = np.flatnonzero(flags != move.call)
                found = int(late[0]) if len(late) else found
        return found

    def move(self, move: ElementTransfer, first: int, count: int) -> None:
        """Move elements."""
        values = None
        for one in move.sources:
            row, start = self._rows[one.rank][one.buffer], one.start + one.stride * first
            given = row[start : start + one.stride * count : one.stride]
            values = given.copy() if values is None else self._cells.combine(Operator.SUM, values, given)
        if values is None:
            return
        flags = None
        if move.raw:
            source = move.sources[0]
            start = source.start + 2 * first
            flags = self._flags[source.rank][start : start + 2 * count : 2].copy()
        for one in move.targets:
            start = one.start + one.stride * first
            self._rows[one.rank][one.buffer][start : start + one.stride * count : one.stride] = values
            if one.buffer is Buffer.SCRATCH:
                marks = self._flags[one.rank][start : start + one.stride * count : one.stride]
                marks[...] = 0 if one.stride == 1 else move.call if flags is None else flags
