"""Broadcast over nodes: the root deals out to the lanes of its node, lanes tell the other nodes, and nodes hand out.

So all the ports between nodes carry, each a part of every piece. Reduce is the same, turned around.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from taccl_py.grouping import by_number
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.gather import hand_out
from taccl_py.synthesis.hierarchy.outline import ACROSS, INSIDE, PATHS, RankLoad, inside_steps
from taccl_py.synthesis.hierarchy.stages import Stage, add_stage, schedule_stages
from taccl_py.synthesis.templates.circulant import Circulant
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order
from taccl_py.synthesis.templates.patterns import DIRECT

# How nodes pass on a piece: all that know tell others; each tells the next one; or pieces take paths of their own, so that all send as
# much as in a chain and the last piece is everywhere in the fewest rounds (`Circulant`).
TREE, CHAIN, CIRCULANT = "tree", "chain", "circulant"
# What the ranks of the root's node occupy that hand on what was dealt out to them.
_HOME = -1


@dataclass(frozen=True, slots=True)
class BroadcastVariant:
    """Choices of a Broadcast over nodes.

    Attributes
    ----------
    between
        How nodes pass on.
    inside
        How a node hands out.
    pieces
        Chunks of every piece on every lane.
    """

    between: str
    inside: str
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeStep:
    """Node `src` tells node `dst`; places in the order that begins with the root's node."""

    src: int
    dst: int


def course_rounds(num_nodes: int, between: str, number: int = 0, pieces: int = 1) -> list[list[NodeStep]]:
    """Senders and receivers of each round; in a circulant for the piece of this number among so many."""
    if between == CIRCULANT:
        return [[step] for step in _circulant_steps(num_nodes, pieces)[number]]
    if between == CHAIN:
        return [[NodeStep(node, node + 1)] for node in range(num_nodes - 1)]
    found, know = [], 1
    while know < num_nodes:
        found.append([NodeStep(node, node + know) for node in range(min(know, num_nodes - know))])
        know *= 2
    return found


@lru_cache
def circulant_turns(num_nodes: int, pieces: int) -> list[tuple[int, int, NodeStep]]:
    """Rounds, pieces and their steps, in the order of rounds."""
    messages = Circulant.of(num_nodes).messages(tuple(range(num_nodes)), pieces)
    return [(int(message.start), message.chunks[0], NodeStep(message.src, message.dst)) for message in messages]


@lru_cache
def _circulant_steps(num_nodes: int, pieces: int) -> list[list[NodeStep]]:
    """Steps of every piece, in the order of rounds."""
    return by_number(pieces, ((piece, step) for _, piece, step in circulant_turns(num_nodes, pieces)))


@lru_cache
def circulant_returns(num_nodes: int, pieces: int) -> list[tuple[int, int]]:
    """For every piece, the node that sends a part of it back to the root's node, and in which round.

    In every round one node does not send: the one that would send to the root's. It has all of a piece that it heard two rounds before.
    """
    skips = Circulant.of(num_nodes).skips
    heard = {(step.dst, piece): number for number, piece, step in circulant_turns(num_nodes, pieces)}
    skipped = -(pieces - 1) % (len(skips) - 1)
    found: dict[int, tuple[int, int]] = {}
    number = 0
    while len(found) < pieces:
        node = num_nodes - skips[(number + skipped) % (len(skips) - 1)]
        ready = (piece for piece in range(pieces) if piece not in found and heard[node, piece] + 2 <= number)
        found.update({piece: (node, number) for piece in [*ready][:1]})
        number += 1
    return [found[piece] for piece in range(pieces)]


@dataclass(frozen=True)
class CourseTimes:
    """Stages for every piece: dealing out, rounds, and handing out behind the root and behind each round."""

    deal: tuple[Stage, ...]
    across: tuple[tuple[Stage, ...], ...]
    hand: tuple[tuple[Stage, ...], ...]
    end_us: float


def course_times(cluster: LaneCluster, course: BroadcastVariant, chunk_bytes: float, root: int) -> CourseTimes:
    """Times of the stages; every node has ports of its own."""
    return _CourseStages(cluster, course, chunk_bytes, root).times()


class _CourseStages:
    """Stages of a course, as they are put together."""

    def __init__(self, cluster: LaneCluster, course: BroadcastVariant, chunk_bytes: float, root: int) -> None:
        self._cluster, self._course = cluster, course
        self._alone = cluster.width == 1 and any(root in carriers for carriers in cluster.carriers)
        self._loads = {piece: RankLoad(chunk_bytes, piece, True) for piece in {*course.pieces}}
        self._steps = {piece: inside_steps(cluster, course.inside, load, 1) for piece, load in self._loads.items()}
        self._stages: list[Stage] = []
        self._add = partial(add_stage, self._stages)
        # By piece: dealing out; rounds; handing out behind the root and each round; by what each node knows it.
        self._deal: list[int] = []
        self._across: list[list[int]] = []
        self._hand: list[list[int]] = []
        self._told: list[dict[int, list[int]]] = []

    def times(self) -> CourseTimes:
        """Put them together and schedule them."""
        course, num_nodes = self._course, len(self._cluster.nodes)
        for number in range(len(course.pieces)):
            self._begin(number)
            if course.between != CIRCULANT:
                for place, steps in enumerate(course_rounds(num_nodes, course.between)):
                    self._tell(number, place, steps[0])
        if course.between == CIRCULANT:
            # Ports take the pieces in the order of rounds.
            last: dict[int, int] = {}
            for _, number, step in circulant_turns(num_nodes, len(course.pieces)):
                ports = (2 * step.src, 2 * step.dst + 1)
                told = self._tell(number, len(self._across[number]), step, *(last[p] for p in ports if p in last))
                last.update(dict.fromkeys(ports, told))
        end_us = schedule_stages(self._stages)
        across, hand = (
            tuple(tuple(self._stages[i] for i in row) for row in rows) for rows in (self._across, self._hand)
        )
        return CourseTimes(tuple(self._stages[i] for i in self._deal), across, hand, end_us)

    def _begin(self, number: int) -> None:
        """Deal a piece out in the root's node, and hand it out there."""
        course, piece = self._course, self._course.pieces[number]
        self._deal.append(self._add(_deal_steps(self._cluster, course, self._loads[piece]), INSIDE))
        # Where each hands on what it has straight to the others, the root deals out meanwhile: it sends nothing else inside.
        home = _HOME if course.inside == DIRECT else INSIDE
        self._hand.append([self._add(self._steps[piece], home, self._deal[-1])])
        self._across.append([])
        self._told.append({0: [] if self._alone else self._deal[-1:]})

    def _tell(self, number: int, place: int, step: NodeStep, *after: int) -> int:
        """One node tells another, which hands out what it hears."""
        course, piece = self._course, self._course.pieces[number]
        rounds, told = self._across[number], self._told[number]
        # In a tree of all that know the root's node sends in every round, and stands for the others.
        alike = course.between == TREE
        sender, receiver = (ACROSS, place + 1) if alike else (ACROSS + 3 * step.src, step.dst)
        before = rounds[-1:] if alike and place else told[step.src]
        # In a circulant a node hears from several others.
        heard = ACROSS + 3 * receiver + 1 if course.between == CIRCULANT else None
        lane_us = self._cluster.lane_us(self._loads[piece].num_bytes)
        rounds.append(self._add([lane_us], sender, *before, *after, also=heard))
        told[step.dst] = rounds[-1:]
        self._hand[number].append(self._add(self._steps[piece], ACROSS + 3 * receiver + 2, rounds[-1]))
        return rounds[-1]


def _deal_steps(cluster: LaneCluster, course: BroadcastVariant, load: RankLoad) -> list[float]:
    """Durations of what the root sends in its node."""
    if course.inside == PATHS:
        return inside_steps(cluster, PATHS, load.times(cluster.width), 1)
    step_us = cluster.node_us(load.num_bytes)
    return [step_us * (turn % cluster.at_once == 0) for turn in range(cluster.width)]


def broadcast_messages(
    cluster: LaneCluster, course: BroadcastVariant, times: CourseTimes, root: int
) -> TemplateMessages | None:
    """Messages of a Broadcast; None if some node cannot hand out as the course needs it."""
    home = cluster.site.topology.node_of[root]
    order = [(home + place) % len(cluster.nodes) for place in range(len(cluster.nodes))]
    messages: list[TemplateMessage] = []
    first = 0
    for number, piece in enumerate(course.pieces):
        parts = [tuple(range(first + lane * piece, first + (lane + 1) * piece)) for lane in range(cluster.width)]
        first += piece * cluster.width
        dealt = _dealt(cluster, course, times, number, root, order[0], parts)
        if dealt is None:
            return None
        messages += dealt
        for place, steps in enumerate(course_rounds(len(cluster.nodes), course.between, number, len(course.pieces))):
            stage = times.across[number][place]
            for step in steps:
                ends = (cluster.carriers[order[step.src]], cluster.carriers[order[step.dst]])
                for src, dst, chunks in zip(*ends, parts, strict=True):
                    messages.append(TemplateMessage(src, dst, chunks, stage.start_us, stage.end_us))
                held = dict(zip(ends[1], parts, strict=True))
                handed = hand_out(cluster, course.inside, held, times.hand[number][place + 1])
                if handed is None:
                    return None
                messages += handed
    return in_order(messages)


def _dealt(
    cluster: LaneCluster,
    course: BroadcastVariant,
    times: CourseTimes,
    number: int,
    root: int,
    home: int,
    parts: Sequence[tuple[int, ...]],
) -> list[TemplateMessage] | None:
    """In the root's node: parts to their carriers, and from there to everyone but the root.

    The root's own part goes through others by turns where ranks talk straight to each other, so that the root has no more to send
    than everything once. Where not all ranks of a node are linked the root hands everything out itself.
    """
    deal, carriers = times.deal[number], cluster.carriers[home]
    if course.inside == PATHS:
        everything = tuple(chunk for part in parts for chunk in part)
        return hand_out(cluster, PATHS, {root: everything}, deal)
    others = [rank for rank in cluster.nodes[home] if rank != root]
    helper = others[number % len(others)] if others and course.inside == DIRECT else root
    held: dict[int, tuple[int, ...]] = {}
    messages: list[TemplateMessage] = []
    # The root's own lane does not wait, so its part is dealt out last.
    for turn, lane in enumerate(sorted(range(len(carriers)), key=lambda lane: carriers[lane] == root)):
        target = helper if carriers[lane] == root else carriers[lane]
        start = deal.starts_us()[min(turn, len(deal.step_us) - 1)]
        if target != root:
            messages.append(TemplateMessage(root, target, parts[lane], start, deal.end_us))
        held[target] = held.get(target, ()) + parts[lane]
    handed = hand_out(cluster, course.inside, held, times.hand[number][0]) or []
    return messages + [message for message in handed if message.dst != root]
