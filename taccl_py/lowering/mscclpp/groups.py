"""Groups of threadblocks that share every operation, and loops over pieces of the chunks.

Every threadblock becomes a *group* of as many as are asked for. Each does its part of the bytes of every operation, and signals, and
waits for, those with its number in other groups. The chunks are not cut, so sizes need be no multiple of more cells, as they must with
instances.

A *loop* (``pipeline``) goes through all operations of a threadblock, behind those that say that the call has begun, for one piece
of every operation after the other; so what has come is passed on before all has come. The runtime does not count the passes of a
threadblock's part of an operation, so in loops groups have cells of their own.

That is right if operations that touch the same cells have the same cells, and for loops if all have as many: then what one
threadblock needs of another one is what that with the same number has done, or what it has done in the same pass. Signals count, so
each pass has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from taccl_py.collective import Buffer
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.limits import beyond
from taccl_py.lowering.mscclpp.tasks import TaskStream
from taccl_py.lowering.plan import Operation, PlanBlock, PlanGpu
from taccl_py.runtimes import MSCCLPP

_OPENING = ("rlxsignal", "rlxwait")


def cells_match(stream: TaskStream, *, alike: bool) -> bool:
    """True if no two operations have some cells in common and others not, and if all have as many where they must be `alike`."""
    run_at: dict[tuple[int, Buffer, int], tuple[int, int]] = {}
    counts: set[int] = set()
    for task in stream.tasks:
        for rank, cells in task.touched:
            counts.add(cells.count)
            run = cells.first, cells.count
            if any(run_at.setdefault((rank, cells.buffer, cell), run) != run for cell in range(cells.first, cells.end)):
                return False
    return not alike or len(counts) <= 1


def in_groups(gpus: Sequence[PlanGpu], size: int, *, cut: bool = False) -> tuple[PlanGpu, ...]:
    """Return the same programs with `size` threadblocks for every one; `cut` gives each cells of its own."""
    if size == 1:
        return tuple(gpus)
    cells = size if cut else 1
    return tuple(
        replace(
            gpu,
            input_chunks=gpu.input_chunks * cells,
            output_chunks=gpu.output_chunks * cells,
            scratch_chunks=gpu.scratch_chunks * cells,
            peers={kind: tuple(peer for peer in peers for _ in range(size)) for kind, peers in gpu.peers.items()},
            num_semaphores=gpu.num_semaphores * size,
            blocks=tuple(_member(block, number, size, cut=cut) for block in gpu.blocks for number in range(size)),
        )
        for gpu in gpus
    )


def _member(block: PlanBlock, number: int, size: int, *, cut: bool) -> PlanBlock:
    """One threadblock of a group; the channels and semaphores of all its members lie side by side."""
    channels = {kind: tuple(one * size + number for one in places) for kind, places in block.channels.items()}
    return PlanBlock(tuple(_part(one, number, size, cut=cut) for one in block.operations), channels, block.remotes)


def _part(operation: Operation, number: int, size: int, *, cut: bool) -> Operation:
    semaphores = tuple(one * size + number for one in operation.semaphores)
    if operation.target is None:
        return replace(operation, semaphores=semaphores) if semaphores else operation
    if not cut:
        return replace(operation, semaphores=semaphores, part=(number, size))

    def own(cells: CellRange) -> CellRange:
        return cells.scaled(size).part(number * cells.count, cells.count)

    sources, target = tuple(map(own, operation.sources)), own(operation.target)
    return replace(operation, semaphores=semaphores, sources=sources, target=target)


def in_loops(gpus: Sequence[PlanGpu], unit_bytes: int) -> tuple[PlanGpu, ...]:
    """Return the same programs that go through the pieces of `unit_bytes` bytes of every operation one after the other.

    Raises
    ------
    LoweringError
        If a threadblock has no room for another operation.
    """
    # Signals are counted by passes, so who only waits goes through as many.
    moved = {
        one.target.count for gpu in gpus for block in gpu.blocks for one in block.operations if one.target is not None
    }
    if not moved:
        return tuple(gpus)
    (count,) = moved
    return tuple(replace(gpu, blocks=tuple(_loop(block, unit_bytes, count) for block in gpu.blocks)) for gpu in gpus)


def _loop(block: PlanBlock, unit_bytes: int, count: int) -> PlanBlock:
    opening = list(_opening(block.operations))
    body = block.operations[len(opening) :]
    if not body:
        return block
    if len(block.operations) >= MSCCLPP.max_operations:
        raise beyond(
            "max_operations",
            f"a threadblock has {len(block.operations)} operations, of {MSCCLPP.max_operations} that {MSCCLPP.title} allows, and a loop is "
            "one more; leave it out, or use a schedule with fewer messages",
        )
    return replace(block, operations=(*opening, Operation("pipeline", inner=body, unit_bytes=unit_bytes, count=count)))


def _opening(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Operations that say, and wait for, that the call has begun, with the meeting of the threads behind them."""
    for number, operation in enumerate(operations):
        if operation.name not in _OPENING and not (operation.name == "nop" and number > 0):
            return
        yield operation
        if operation.name == "nop":
            return
