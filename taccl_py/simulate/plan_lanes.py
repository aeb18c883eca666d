"""Things that threadblocks of an MSCCL++ plan wait for: directions of channels, semaphores, and cells of scratch where packets come."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.plan import Operation, PlanBlock, PlanGpu


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
    """A cell of scratch where packets come."""

    rank: int
    cell: int


def packet_cells(rank: int, cells: CellRange) -> tuple[PacketCell, ...]:
    """Return neighbouring cells one by one."""
    return tuple(PacketCell(rank, cell) for cell in range(cells.first, cells.end))


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
