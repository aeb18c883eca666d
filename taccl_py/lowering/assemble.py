"""Threadblocks in the making -> program: numbers for threadblocks and steps, nops for further dependencies, sizes of buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taccl_py.collective import Address, Buffer
from taccl_py.lowering.actions import NONE, RankAction
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.dependencies import Dependencies
from taccl_py.lowering.program import Gpu, Op, Step, Threadblock
from taccl_py.lowering.threadblocks import UnfinishedThreadblock, find_receivers, find_senders
from taccl_py.runtimes import MAX_DEPENDENCY_THREADBLOCK

_NO_SOURCE = Address(Buffer.INPUT, -1)
_NO_TARGET = Address(Buffer.OUTPUT, -1)


@dataclass(frozen=True, slots=True)
class _ActionPlace:
    """Threadblock and step of an action."""

    threadblock: int
    step: int


def count_steps(block: UnfinishedThreadblock, dependencies: Dependencies) -> int:
    """Steps of a threadblock, nops included."""
    waits = dependencies.waits
    return len(block.actions) + sum(max(0, len(waits.get(action.order, ())) - 1) for action in block.actions)


def assemble_gpus(
    blocks: tuple[tuple[UnfinishedThreadblock, ...], ...],
    dependencies: Dependencies,
    geometry: BufferSizes,
    scratch_cells: tuple[int, ...],
) -> tuple[Gpu, ...]:
    """Write every rank's threadblocks down.

    Parameters
    ----------
    blocks
        Threadblocks by rank, on their final cells.
    dependencies
        Between these threadblocks.
    geometry
        Sizes of the buffers.
    scratch_cells
        Scratch cells of every rank.
    """
    assembler = _Assembler(blocks, dependencies)
    gpus: list[Gpu] = []
    for rank, of_rank in enumerate(blocks):
        used = {cells.buffer for block in of_rank for a in block.actions for cells in (a.reads, a.writes) if cells}
        gpus.append(
            Gpu(
                rank,
                geometry.declared(Buffer.INPUT, rank, used=Buffer.INPUT in used),
                geometry.declared(Buffer.OUTPUT, rank, used=Buffer.OUTPUT in used),
                scratch_cells[rank],
                assembler.threadblocks(of_rank),
            )
        )
    return tuple(gpus)


class _Assembler:
    """Writes steps; the addresses of the other side are for people."""

    def __init__(self, blocks: tuple[tuple[UnfinishedThreadblock, ...], ...], dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._senders = find_senders(blocks)
        self._receivers = find_receivers(blocks)

    def threadblocks(self, blocks: tuple[UnfinishedThreadblock, ...]) -> tuple[Threadblock, ...]:
        """Return the threadblocks of one rank."""
        numbered = self._numbered(blocks)
        places: dict[int, _ActionPlace] = {}
        for number, block in enumerate(numbered):
            step = 0
            for action in block.actions:
                step += max(0, len(self._dependencies.waits.get(action.order, ())) - 1)
                places[action.order] = _ActionPlace(number, step)
                step += 1
        return tuple(
            Threadblock(
                block.send_peer,
                block.recv_peer,
                block.channel,
                tuple(step for action in block.actions for step in self._steps(action, places)),
            )
            for block in numbered
        )

    def _numbered(self, blocks: tuple[UnfinishedThreadblock, ...]) -> tuple[UnfinishedThreadblock, ...]:
        """Threadblocks in the order of their numbers; those that others wait for need the small ones."""
        if len(blocks) <= MAX_DEPENDENCY_THREADBLOCK + 1:
            return blocks
        targets = {target for waits in self._dependencies.waits.values() for target in waits}
        return tuple(sorted(blocks, key=lambda block: not any(action.order in targets for action in block.actions)))

    def _steps(self, action: RankAction, places: dict[int, _ActionPlace]) -> Iterator[Step]:
        """Nops for all dependencies but the last, then the step itself."""
        waits = sorted(
            (places[target].threadblock, places[target].step)
            for target in self._dependencies.waits.get(action.order, ())
        )
        for threadblock, step in waits[:-1]:
            yield Step(Op.NOP, _NO_SOURCE, _NO_TARGET, 0, (threadblock, step))
        source = action.reads or self._far(self._senders.get(action.arrives), action.writes)
        target = action.writes or self._far(self._receivers.get(action.leaves), action.reads)
        if action.op is Op.RECV:
            source = self._far(self._senders.get(action.arrives), action.writes)
        elif action.op is Op.RECV_COPY_SEND:
            source = target  # it passes on what it has stored; runtimes do not look, MSCCL-XML-Verifier wants it
        yield Step(
            action.op,
            source.address if source else _NO_SOURCE,
            target.address if target else _NO_TARGET,
            action.count,
            waits[-1] if waits else None,
            action.order in self._dependencies.flagged,
        )

    @staticmethod
    def _far(action: RankAction | None, near: CellRange | None) -> CellRange | None:
        """Cells of the other side of a transfer; the near ones where there are none."""
        if action is None:
            return near
        if action.leaves != NONE and action.op is Op.SEND:
            return action.reads or near
        return action.writes or action.reads or near
