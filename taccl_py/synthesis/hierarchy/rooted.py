"""Broadcast over nodes: the root deals out to the lanes of its node, lanes tell the other nodes, and nodes hand out.

So all the ports between nodes carry, each a part of every piece. Reduce is the same, turned around.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.gather import hand_out
from taccl_py.synthesis.hierarchy.outline import ACROSS, INSIDE, PATHS, RankLoad, inside_steps
from taccl_py.synthesis.hierarchy.stages import Stage, schedule_stages
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages
from taccl_py.synthesis.templates.patterns import DIRECT

# How nodes pass on a piece: all that know tell others; each tells the next one; or along two binary trees by turns, where who passes
# on in one tree only listens in the other, so that all send as much as in a chain and the last one waits for few messages.
# Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan. Parallel Computing 35 (2009), section 2.
TREE, CHAIN, TWO_TREES = "tree", "chain", "two trees"
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

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.between} of nodes, {self.inside} inside, pieces of {'-'.join(map(str, self.pieces))}"


@dataclass(frozen=True, slots=True)
class NodeStep:
    """Node `src` tells node `dst`; places in the order that begins with the root's node."""

    src: int
    dst: int


def course_rounds(num_nodes: int, between: str, number: int) -> list[list[NodeStep]]:
    """Senders and receivers of each round, for the piece of this number."""
    if between == CHAIN:
        return [[NodeStep(node, node + 1)] for node in range(num_nodes - 1)]
    if between == TWO_TREES:
        return [[step] for step in _binary_tree(num_nodes, second=bool(number % 2))]
    found, know = [], 1
    while know < num_nodes:
        found.append([NodeStep(node, node + know) for node in range(min(know, num_nodes - know))])
        know *= 2
    return found


def _binary_tree(num_nodes: int, *, second: bool) -> list[NodeStep]:
    """The first or the second of two trees, from its root on; odd places are the leaves of the first one."""
    others = num_nodes - 1

    def node(place: int) -> int:
        """The second tree is the first one's mirror image where that takes leaves to others, else it is shifted by one."""
        if not second or not place:
            return place
        return others + 1 - place if others % 2 == 0 else place % others + 1

    found, ranges = list[NodeStep](), [(0, 1, others)]
    for parent, low, high in ranges:
        if low <= high:
            middle = max(range(low, high + 1), key=lambda place: place & -place)
            found.append(NodeStep(node(parent), node(middle)))
            ranges += [(middle, low, middle - 1), (middle, middle + 1, high)]
    return found


@dataclass(frozen=True)
class CourseTimes:
    """Stages for every piece: dealing out, rounds, and handing out behind the root and behind each round."""

    deal: tuple[Stage, ...]
    across: tuple[tuple[Stage, ...], ...]
    hand: tuple[tuple[Stage, ...], ...]
    end_us: float


def course_times(cluster: LaneCluster, course: BroadcastVariant, chunk_bytes: float, root: int) -> CourseTimes:
    """Times of the stages; every node has ports of its own."""
    alone = cluster.width == 1 and any(root in carriers for carriers in cluster.carriers)
    stages: list[Stage] = []

    def add(step_us: Sequence[float], resource: int, *after: int, also: int | None = None) -> int:
        stages.append(Stage(tuple(step_us), resource, after, also=also))
        return len(stages) - 1

    deal, across, hand = [], [], []
    for number, piece in enumerate(course.pieces):
        load = RankLoad(chunk_bytes, piece, True)
        steps = inside_steps(cluster, course.inside, load, 1)
        deal.append(add(_deal_steps(cluster, course, load), INSIDE))
        # Where each hands on what it has straight to the others, the root deals out meanwhile: it sends nothing else inside.
        home = _HOME if course.inside == DIRECT else INSIDE
        rounds, hands = list[int](), [add(steps, home, deal[-1])]
        told = {0: deal[-1:] if not alone else []}
        for place, steps_across in enumerate(course_rounds(len(cluster.nodes), course.between, number)):
            first = steps_across[0]
            # In a tree of all that know the root's node sends in every round, and stands for the others.
            alike = course.between == TREE
            sender, receiver = (ACROSS, place + 1) if alike else (ACROSS + 3 * first.src, first.dst)
            before = rounds[-1:] if alike and place else told[first.src]
            # Along two trees a node hears from two others.
            heard = ACROSS + 3 * receiver + 1 if course.between == TWO_TREES else None
            rounds.append(add([cluster.lane_us(load.num_bytes)], sender, *before, also=heard))
            told[first.dst] = rounds[-1:]
            hands.append(add(steps, ACROSS + 3 * receiver + 2, rounds[-1]))
        across.append(rounds)
        hand.append(hands)
    end_us = schedule_stages(stages)
    pick = [tuple(tuple(stages[i] for i in row) for row in rows) for rows in (across, hand)]
    return CourseTimes(tuple(stages[i] for i in deal), pick[0], pick[1], end_us)


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
        for place, steps in enumerate(course_rounds(len(cluster.nodes), course.between, number)):
            stage = times.across[number][place]
            for step in steps:
                ends = (cluster.carriers[order[step.src]], cluster.carriers[order[step.dst]])
                for src, dst, chunks in zip(*ends, parts, strict=True):
                    messages.append(TemplateMessage(src, dst, chunks, stage.start_us, stage.end_us))
                held = dict(zip(ends[1], parts, strict=True))
                handed = hand_out(cluster, course.inside, held, times.hand[number][place + 1], _none())
                if handed is None:
                    return None
                messages += handed
    return tuple(sorted(messages, key=lambda message: message.start))


def _none() -> Stage:
    return Stage((), INSIDE, ())


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
        return hand_out(cluster, PATHS, {root: everything}, deal, _none())
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
    handed = hand_out(cluster, course.inside, held, times.hand[number][0], _none()) or []
    return messages + [message for message in handed if message.dst != root]
