"""AllToAll over many nodes: lanes share out the other nodes, and each is the delegate of its node to some of them, one after another.

A delegate gets what the ranks of its node, or of a part of it, have for a whole other node, takes it there in one message over its
lane, and hands it out there. So with L lanes that share them out a lane sends a message to every L-th node alone, where one that serves
itself sends one to each (`taccl_py.synthesis.hierarchy.alltoall`): of small messages, which cost their alpha, that is L times as fast.
While messages are on their way, what the next ones will carry is gathered, and what the last ones brought is handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

from taccl_py.synthesis.hierarchy.cluster import InsideMessage, LaneCluster, bit_by_bit
from taccl_py.synthesis.hierarchy.outline import ACROSS, INSIDE, PATHS
from taccl_py.synthesis.hierarchy.stages import Stage, add_stage, schedule_stages
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order
from taccl_py.synthesis.templates.packing import most_packed
from taccl_py.synthesis.templates.patterns import DOUBLING


@dataclass(frozen=True, slots=True)
class Delegation:
    """Choices of an AllToAll by delegates.

    Attributes
    ----------
    spread
        Lanes that share out the other nodes; each serves its own group of so many lanes.
    together
        Turns whose data is gathered, or handed out, at once.
    gathers, hands
        How nodes gather and hand out: ``direct``, ``doubling`` (bit by bit) or ``paths``.
    apart
        Whether what comes from different nodes is handed out in messages of its own.
    """

    spread: int
    together: int
    gathers: str
    hands: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class _DelegateEvent:
    """Message of a lane in a turn: its destination, so many nodes further on, and the ranks that it is for.

    Attributes
    ----------
    back
        Distance of the node.
    group
        Lanes whose ranks' data it takes: those of this group of neighbours.
    part, parts
        And of these every so manieth.
    lane
        The lane.
    """

    back: int
    group: int
    part: int
    parts: int
    lane: int


@dataclass(frozen=True, slots=True)
class _Leap:
    """From one rank of a node to another one."""

    node: int
    src: int
    dst: int


@dataclass(frozen=True)
class DelegateTimes:
    """Stages of a delegation.

    Attributes
    ----------
    gathered, handed
        Gathering and handing out, by wave.
    crossed
        Messages between nodes, by turn.
    end_us
        When all is done.
    """

    gathered: tuple[Stage, ...]
    crossed: tuple[Stage, ...]
    handed: tuple[Stage, ...]
    end_us: float


def spreads(cluster: LaneCluster, least: int = 1) -> list[int]:
    """Numbers of lanes, from a least one on, that may share out the other nodes: such that groups of them are all lanes."""
    return [lanes for lanes in range(least, cluster.width + 1) if cluster.width % lanes == 0]


def delegate_times(cluster: LaneCluster, delegation: Delegation, pair_bytes: float) -> DelegateTimes:
    """Times of all stages at node 0, where every rank has so many bytes for every other one."""
    plan = _DelegatePlan(cluster, delegation)
    stages: list[Stage] = []
    add = partial(add_stage, stages)
    gathered = [add(plan.inside_us(plan.gathering(0, wave), pair_bytes), INSIDE) for wave in range(len(plan.waves))]
    crossed = [
        add([plan.across_us(turn, pair_bytes)], ACROSS, gathered[turn // delegation.together])
        for turn in range(len(plan.turns))
    ]
    handed = []
    for wave, turns in enumerate(plan.waves):
        came = [crossed[turn] for turn in turns]
        sources = [-back % len(cluster.nodes) for back in plan.backs(wave)] if delegation.apart else [None]
        steps = [plan.inside_us(plan.handing(0, wave, source), pair_bytes) for source in sources]
        handed.append(add([sum(step) for step in zip(*steps, strict=True)], INSIDE, *came))
    end_us = schedule_stages(stages)
    done = [tuple(stages[number] for number in numbers) for numbers in (gathered, crossed, handed)]
    return DelegateTimes(done[0], done[1], done[2], end_us)


def delegate_messages(cluster: LaneCluster, delegation: Delegation, times: DelegateTimes) -> TemplateMessages:
    """Messages of an AllToAll with one chunk for each pair of ranks, at these times."""
    plan = _DelegatePlan(cluster, delegation)
    messages: list[TemplateMessage] = []
    for node in range(len(cluster.nodes)):
        for wave, stage in enumerate(times.gathered):
            messages += plan.inside(node, plan.gathering(node, wave), stage)
        for turn, stage in enumerate(times.crossed):
            messages += plan.crossing(node, turn, stage)
        for wave, stage in enumerate(times.handed):
            messages += plan.inside(node, plan.handing(node, wave), stage)
    return in_order(messages)


def root_messages(cluster: LaneCluster, delegation: Delegation, times: DelegateTimes) -> TemplateMessages:
    """Messages with data of the ranks of node 0, where data from different nodes does not share messages."""
    plan = _DelegatePlan(cluster, delegation)
    messages: list[TemplateMessage] = []
    for wave, stage in enumerate(times.gathered):
        messages += plan.inside(0, plan.gathering(0, wave), stage)
    for turn, stage in enumerate(times.crossed):
        messages += plan.crossing(0, turn, stage)
    for wave, stage in enumerate(times.handed):
        for node in [0, *plan.backs(wave)]:
            messages += plan.inside(node, plan.handing(node, wave, 0), stage)
    return in_order(messages)


@dataclass(frozen=True)
class _DelegatePlan:
    """Messages of an AllToAll by delegates."""

    cluster: LaneCluster
    delegation: Delegation

    @cached_property
    def turns(self) -> tuple[tuple[_DelegateEvent, ...], ...]:
        """Messages of a node's lanes in each turn; in the last one, where nodes are left over, several lanes serve one."""
        number, spread = len(self.cluster.nodes), self.delegation.spread
        found = []
        for first in range(1, number, spread):
            backs = range(first, min(first + spread, number))
            parts = spread // len(backs)
            found.append(
                tuple(
                    _DelegateEvent(back, group, part, parts, group * spread + (back - first) * parts + part)
                    for group in range(self.cluster.width // spread)
                    for back in backs
                    for part in range(parts)
                )
            )
        return tuple(found)

    @cached_property
    def waves(self) -> tuple[range, ...]:
        """Turns whose data moves together inside nodes."""
        together = self.delegation.together
        return tuple(
            range(first, min(first + together, len(self.turns))) for first in range(0, len(self.turns), together)
        )

    @cached_property
    def _place(self) -> dict[int, int]:
        """Place of every rank in its node."""
        return {rank: place for ranks in self.cluster.nodes for place, rank in enumerate(ranks)}

    @cached_property
    def _gathers_all(self) -> bool:
        """True if every two ranks of a node exchange something before anything crosses."""
        return self.cluster.is_even and self.delegation.spread == self.cluster.width

    def _node(self, number: int) -> Sequence[int]:
        return self.cluster.nodes[number % len(self.cluster.nodes)]

    def _served(self, node: int, post: _DelegateEvent) -> list[int]:
        """Ranks of a node whose data a lane takes."""
        spread, lane_of = self.delegation.spread, self.cluster.lane_of
        return [
            rank
            for rank in self._node(node)
            if lane_of[rank] // spread == post.group and lane_of[rank] % spread % post.parts == post.part
        ]

    def _carrier(self, node: int, post: _DelegateEvent) -> int:
        return self.cluster.carriers[node % len(self.cluster.nodes)][post.lane]

    def _chunks(self, src: int, dsts: Sequence[int]) -> list[int]:
        size = self.cluster.site.topology.num_ranks
        return [src * size + dst for dst in dsts]

    def gathering(self, node: int, wave: int) -> dict[InsideMessage, list[int]]:
        """Messages to the delegates of a node before the turns of a wave."""
        carried: dict[InsideMessage, list[int]] = {}
        for post in (post for turn in self.waves[wave] for post in self.turns[turn]):
            for rank in self._served(node, post):
                chunks = self._chunks(rank, self._node(node + post.back))
                self._carry(carried, self.delegation.gathers, _Leap(node, rank, self._carrier(node, post)), chunks)
        if self._gathers_all and wave == len(self.waves) - 1:
            self._carry_own(carried, self.delegation.gathers, node)
        return carried

    def backs(self, wave: int) -> list[int]:
        """Distances of the nodes that every node sends to in the turns of a wave."""
        return sorted({post.back for turn in self.waves[wave] for post in self.turns[turn]})

    def handing(self, node: int, wave: int, source: int | None = None) -> dict[InsideMessage, list[int]]:
        """Messages inside a node after the turns of a wave: all of them, or those with data of one node."""
        carried: dict[InsideMessage, list[int]] = {}
        for post in (post for turn in self.waves[wave] for post in self.turns[turn]):
            if source is None or (node - post.back) % len(self.cluster.nodes) == source:
                carrier, served = self._carrier(node, post), self._served(node - post.back, post)
                for rank in self._node(node):
                    chunks = [chunk for other in served for chunk in self._chunks(other, [rank])]
                    self._carry(carried, self.delegation.hands, _Leap(node, carrier, rank), chunks)
        if not self._gathers_all and wave == 0 and source in (None, node):
            self._carry_own(carried, self.delegation.hands, node)
        return carried

    def inside(
        self, node: int, carried: Mapping[InsideMessage, Sequence[int]], stage: Stage
    ) -> Iterator[TemplateMessage]:
        """Messages of an exchange inside a node."""
        ranks, starts = self.cluster.nodes[node], stage.starts_us()
        for message, chunks in sorted(carried.items()):
            start = starts[message.step]
            yield TemplateMessage(
                ranks[message.src], ranks[message.dst], tuple(chunks), start, start + stage.step_us[message.step]
            )

    def _carry_own(self, carried: dict[InsideMessage, list[int]], inside: str, node: int) -> None:
        """Add what stays in the node."""
        for src in self._node(node):
            for dst in self._node(node):
                self._carry(carried, inside, _Leap(node, src, dst), self._chunks(src, [dst]))

    def _carry(self, carried: dict[InsideMessage, list[int]], inside: str, leap: _Leap, chunks: Sequence[int]) -> None:
        for message in self._path(inside, leap):
            carried.setdefault(message, []).extend(chunks)

    def _path(self, inside: str, leap: _Leap) -> Iterator[InsideMessage]:
        """From one rank to another one of its node."""
        src, dst = self._place[leap.src], self._place[leap.dst]
        if inside == PATHS:
            path, parents = [leap.dst], self._parents_from(leap.src)
            while path[-1] != leap.src:
                path.append(parents[path[-1]])
            for step, (here, there) in enumerate(pairwise(reversed(path))):
                yield InsideMessage(step, self._place[here], self._place[there])
        elif inside == DOUBLING:
            yield from bit_by_bit(src, dst)
        elif src != dst:
            yield InsideMessage(((dst - src) % len(self._node(leap.node)) - 1) // self.cluster.at_once, src, dst)

    def _parents_from(self, source: int) -> Sequence[int]:
        """The rank before each rank on the path from a source inside its node."""
        if source not in self._parents:
            self._parents[source] = self.cluster.site.inside.path_parents(source)
        return self._parents[source]

    @cached_property
    def _parents(self) -> dict[int, Sequence[int]]:
        return {}

    @cached_property
    def _steps(self) -> int:
        """Steps of any exchange inside a node."""
        return max(len(ranks) for ranks in self.cluster.nodes) - 1

    def crossing(self, node: int, turn: int, stage: Stage) -> Iterator[TemplateMessage]:
        """Messages of a node's lanes in a turn."""
        for post in self.turns[turn]:
            there = self._node(node + post.back)
            chunks = [chunk for rank in self._served(node, post) for chunk in self._chunks(rank, there)]
            if chunks:
                ends = self._carrier(node, post), self._carrier(node + post.back, post)
                yield TemplateMessage(*ends, tuple(chunks), stage.start_us, stage.end_us)

    def inside_us(self, carried: dict[InsideMessage, list[int]], pair_bytes: float) -> list[float]:
        """Times of the steps of an exchange inside a node at the rank that has most to send or to receive."""
        busy_us: list[dict[tuple[int, bool], list[float]]] = [{} for _ in range(self._steps)]
        for message, chunks in carried.items():
            us = self._parts_us(self.cluster.node_us, len(chunks), pair_bytes)
            for end in ((message.src, True), (message.dst, False)):
                busy_us[message.step].setdefault(end, []).append(us)
        at_once = self.cluster.at_once
        return [max((max(sum(us) / at_once, *us) for us in step.values()), default=0.0) for step in busy_us]

    def across_us(self, turn: int, pair_bytes: float) -> float:
        """Time of the lanes' messages of a turn."""
        counts = [len(self._served(0, post)) * len(self._node(post.back)) for post in self.turns[turn]]
        return max(self._parts_us(self.cluster.lane_us, count, pair_bytes) for count in counts)

    def _parts_us(self, message_us: Callable[[float], float], count: int, chunk_bytes: float) -> float:
        """Time of so many chunks in as few messages as they can be packed into."""
        parts = -(-count // max(1, most_packed(chunk_bytes, self.cluster.site.message_chunks)))
        return message_us(count * chunk_bytes) + max(0, parts - 1) * message_us(0.0)
