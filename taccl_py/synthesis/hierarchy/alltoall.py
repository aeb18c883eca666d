"""AllToAll over nodes whose ranks are lanes: one message, or two, from a rank to each other node.

What a rank has for a node can cross first, over the rank's own lane, and be dealt out behind; or it is gathered before, where the
lane leads to whom it is for. While what crosses first is on its way the rest is gathered, and while that is on its way what came is
dealt out. So the lanes are busy all the time. Inside nodes everything goes straight to its rank, or in few messages: those whose numbers
differ in one bit exchange all that has to change it, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from taccl_py.synthesis.hierarchy.cluster import InsideMessage, LaneCluster, bit_by_bit
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order


@dataclass(frozen=True, slots=True)
class Shuttle:
    """Choices of an AllToAll over nodes.

    Attributes
    ----------
    behind
        What is dealt out behind, in lanes of nodes: of the nearest nodes all, of one node perhaps some, of the others nothing.
    together
        Nodes whose data is gathered, or dealt out, in one message.
    doubling
        Whether it is gathered and dealt out bit by bit, and not straight.
    """

    behind: int
    together: int
    doubling: bool = False

    def is_behind(self, cluster: LaneCluster, back: int, offset: int) -> bool:
        """True if data for a lane, so many further on, of the node so many further on is dealt out after crossing."""
        return (back - 1) * cluster.width + offset < self.behind

    def step_us(self, cluster: LaneCluster, pair_bytes: float) -> float:
        """Time from one message of a rank inside its node to the next one."""
        if self.doubling:
            return cluster.node_us(pair_bytes * self.together * cluster.width / 2)
        return cluster.node_us(pair_bytes * self.together) / cluster.at_once

    def steps(self, cluster: LaneCluster) -> int:
        """Number of steps."""
        return cluster.width.bit_length() - 1 if self.doubling else cluster.width - 1


def shuttle_us(cluster: LaneCluster, shuttle: Shuttle, pair_bytes: float) -> float:
    """Time that a shuttle should take, where every rank has so many bytes for every other one."""
    width, others = cluster.width, len(cluster.nodes) - 1
    across_us = others * cluster.lane_us(pair_bytes * width) + (shuttle.behind % width > 0) * cluster.lane_us(0.0)
    group_us = shuttle.steps(cluster) * shuttle.step_us(cluster, pair_bytes)
    own_us = (width - 1) / cluster.at_once * cluster.node_us(pair_bytes)
    ends = (shuttle.behind == 0) + (shuttle.behind == others * width)
    return max(across_us + ends * group_us, -(-others // shuttle.together) * group_us + own_us)


def alltoall_messages(cluster: LaneCluster, shuttle: Shuttle, pair_bytes: float) -> TemplateMessages:
    """Messages of an AllToAll with one chunk for each pair of ranks."""
    writer = _AllToAllWriter(cluster, shuttle)
    others = len(cluster.nodes) - 1
    step_us, steps = shuttle.step_us(cluster, pair_bytes), shuttle.steps(cluster)
    groups = [
        range(first, min(first + shuttle.together, others + 1)) for first in range(1, others + 1, shuttle.together)
    ]
    gathered_us: dict[int, float] = {}
    for number, backs in enumerate(groups):
        start = number * step_us * steps
        writer.gather(backs, start, step_us)
        gathered_us.update(dict.fromkeys(backs, start + step_us * steps))
    free_us, came_us = 0.0, dict[int, float]()
    for back in range(1, others + 1):
        for before in (False, True):
            start = max(free_us, gathered_us[back] if before else 0.0)
            part = writer.shard(back, before=before)
            if part:
                free_us = start + cluster.lane_us(pair_bytes * part)
                writer.cross(back, start, free_us, before=before)
                if not before:
                    came_us[back] = free_us
    for backs in groups:
        start = max((came_us[back] for back in backs if back in came_us), default=0.0)
        writer.deal(backs, start, step_us)
    writer.stay(free_us)
    return in_order(writer.messages)


class _AllToAllWriter:
    """Messages of all nodes and lanes."""

    def __init__(self, cluster: LaneCluster, shuttle: Shuttle) -> None:
        self.messages: list[TemplateMessage] = []
        self._cluster, self._shuttle = cluster, shuttle
        self._ranks = cluster.carriers
        self._width, self._number = cluster.width, len(cluster.nodes)

    def shard(self, back: int, *, before: bool) -> int:
        """Lanes' worth of data that goes to a node before or after the others."""
        return len(self._offsets(back, behind=not before))

    def _rank(self, node: int, lane: int) -> int:
        return self._ranks[node % self._number][lane % self._width]

    def _chunk(self, node: int, lane: int, back: int, offset: int) -> int:
        """Chunk of a lane of a node for the lane so many further on of the node so many further on."""
        size = self._cluster.site.topology.num_ranks
        return self._rank(node, lane) * size + self._rank(node + back, lane + offset)

    def _offsets(self, back: int, *, behind: bool) -> list[int]:
        return [o for o in range(self._width) if self._shuttle.is_behind(self._cluster, back, o) == behind]

    def _add(self, ends: tuple[int, int], chunks: Sequence[int], start: float, end: float) -> None:
        if chunks:
            self.messages.append(TemplateMessage(*ends, tuple(chunks), start, end))

    def gather(self, backs: Sequence[int], start: float, step_us: float) -> None:
        """Send what ranks have for other lanes of some nodes to the lanes that lead there."""
        self._inside(backs, start, step_us, behind=False)

    def cross(self, back: int, start: float, end: float, *, before: bool) -> None:
        """Send over each lane, to the node so many further on, what was gathered before, or is dealt out there."""
        offsets = self._offsets(back, behind=not before)
        for node in range(self._number):
            for lane in range(self._width):
                chunks = [self._chunk(node, lane - o * before, back, o) for o in offsets]
                self._add((self._rank(node, lane), self._rank(node + back, lane)), chunks, start, end)

    def deal(self, backs: Sequence[int], start: float, step_us: float) -> None:
        """Send what came over each lane from some nodes to the ranks that it is for."""
        self._inside(backs, start, step_us, behind=True)

    def _inside(self, backs: Sequence[int], start: float, step_us: float, *, behind: bool) -> None:
        for node in range(self._number):
            carried: dict[InsideMessage, list[int]] = {}
            for lane, offset in product(range(self._width), range(1, self._width)):
                chunks = [
                    self._chunk(node - back * behind, lane, back, offset)
                    for back in backs
                    if self._shuttle.is_behind(self._cluster, back, offset) == behind
                ]
                for message in self._path(lane, offset):
                    carried.setdefault(message, []).extend(chunks)
            for message, chunks in sorted(carried.items()):
                at = start + message.step * step_us
                self._add((self._rank(node, message.src), self._rank(node, message.dst)), chunks, at, at + step_us)

    def _path(self, lane: int, offset: int) -> Iterable[InsideMessage]:
        """From a lane to the one so many further on."""
        to = (lane + offset) % self._width
        return bit_by_bit(lane, to) if self._shuttle.doubling else [InsideMessage(offset - 1, lane, to)]

    def stay(self, start: float) -> None:
        """Fill the gaps with what stays in the node."""
        for node in range(self._number):
            for lane in range(self._width):
                for offset in range(1, self._width):
                    ends = (self._rank(node, lane), self._rank(node, lane + offset))
                    self._add(ends, (self._chunk(node, lane, 0, offset),), start + offset, start + offset + 1)
