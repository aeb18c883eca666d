"""Things that threadblocks of an MSCCL++ plan wait for: directions of channels, semaphores, and cells of scratch where packets come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.plan import Operation, Plan, PlanBlock, PlanGpu


class ChannelLane(NamedTuple):
    """One direction of a channel: the `number`-th of its type from one rank to another."""

    kind: str
    src: int
    dst: int
    number: int


class GpuSemaphore(NamedTuple):
    """A semaphore of a GPU."""

    rank: int
    number: int


class PacketCell(NamedTuple):
    """A part of a cell of scratch where packets come."""

    rank: int
    cell: int


class PlanAction(NamedTuple):
    """An operation, or a pass of it in a loop: its place in the threadblock, and which share of its cells are moved."""

    operation: Operation
    position: int
    share: float


def unrolled(block: PlanBlock, chunk_bytes: float) -> tuple[PlanAction, ...]:
    """Return what a threadblock does, with its loops written out for chunks of one size."""
    return tuple(_unrolled(block, chunk_bytes))


def _unrolled(block: PlanBlock, chunk_bytes: float) -> Iterator[PlanAction]:
    for position, operation in enumerate(block.operations):
        if not operation.inner:
            yield PlanAction(operation, position, operation.fraction)
            continue
        whole_bytes = operation.count * chunk_bytes
        for number in range(math.ceil(whole_bytes / operation.unit_bytes)):
            share = min(1 - number * operation.unit_bytes / whole_bytes, operation.unit_bytes / whole_bytes)
            for one in operation.inner:
                yield PlanAction(one, position, share * one.fraction)


def packet_cells(rank: int, cells: CellRange, part: tuple[int, int] | None, parts: int) -> tuple[PacketCell, ...]:
    """Return neighbouring cells, or the part of them that a threadblock of a group does, one by one, each cut into `parts`."""
    first, last = cells.first * parts, cells.end * parts
    if part is not None:
        number, size = part
        first, last = first + number * cells.count * parts // size, first + (number + 1) * cells.count * parts // size
    return tuple(PacketCell(rank, cell) for cell in range(first, last))


def packet_parts(plan: Plan) -> int:
    """Parts of a cell that threadblocks of groups have packets of."""
    operations = (one for gpu in plan.gpus for block in gpu.blocks for one in block.all_operations)
    return math.lcm(*{one.part[1] for one in operations if one.part is not None})


def turned(lane: ChannelLane) -> ChannelLane:
    """Return the other direction of the same channel."""
    return ChannelLane(lane.kind, lane.dst, lane.src, lane.number)


def lanes_of(gpu: PlanGpu) -> dict[str, list[ChannelLane]]:
    """Channels of a GPU by type: the n-th to a peer is the peer's n-th back."""
    found = {}
    for kind, peers in gpu.peers.items():
        seen: Counter[int] = Counter()
        lanes = []
        for peer in peers:
            lanes.append(ChannelLane(kind, gpu.rank, peer, seen[peer]))
            seen[peer] += 1
        found[kind] = lanes
    return found


def put_peer(gpu: PlanGpu, block: PlanBlock, operation: Operation) -> int:
    """Rank that a put goes to."""
    if operation.remote is None:
        raise ValueError("a put names no remote buffer")
    return gpu.remotes[block.remotes[operation.channel_type][operation.remote]].rank
