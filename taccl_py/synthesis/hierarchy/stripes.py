"""Broadcast in stripes: each place of a node carries a part of the data to its place in all other nodes, piece after piece.

The root deals the stripes out in its node; every carrier passes its stripe on to the next nodes and hands it out in its own. So
all ports between nodes carry, and inside nodes every rank sends as much as it gets. The root's own stripe is what it would have
to send twice, or have others hand out that have enough to do; another node can send it back to the root's node instead, into
ports that nothing else uses.

Stripes go down trees, one for each place, and everything repeats with every piece: a move's time is that of its piece's turn and
that of the way down the tree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.synthesis.hierarchy.cluster import Cluster
from taccl_py.synthesis.hierarchy.rooted import CHAIN, TREE, TWO_TREES, course_rounds
from taccl_py.synthesis.templates.moves import Move, Moves
from taccl_py.synthesis.templates.site import Edge

# Pieces of every stripe.
_PIECES = tuple(1 << bit for bit in range(10))
# Moves of a plan, at most.
_MOST_MOVES = 600_000
# Of plans that take about as long the one with the fewest pieces will do.
_WORTH = 0.005

# Whom each rank tells, in this order, [stripe][rank].
_Trees = list[dict[int, list[int]]]


@dataclass(frozen=True, slots=True)
class Stripes:
    """Choices of a Broadcast in stripes.

    Attributes
    ----------
    between
        How nodes pass on.
    returns
        Whether the root's own stripe comes back to its node from another one.
    pieces
        Of every stripe.
    """

    between: str
    returns: bool
    pieces: int

    @property
    def name(self) -> str:
        """For people."""
        back = ", the root's own sent back," if self.returns else ""
        return f"stripes over a {self.between} of nodes{back} in {self.pieces} pieces"


@dataclass(frozen=True)
class StripePlan:
    """Stripes with their trees.

    Attributes
    ----------
    cluster, root, size_bytes
        What for.
    stripes
        The choices.
    trees
        For a piece of each number; they repeat.
    end_us
        Time that it should take.
    """

    cluster: Cluster
    root: int
    size_bytes: float
    stripes: Stripes
    trees: tuple[_Trees, ...]
    end_us: float = math.inf

    @property
    def num_chunks(self) -> int:
        """One for each piece of each stripe."""
        return self.stripes.pieces * len(self.trees[0])

    @property
    def _piece_bytes(self) -> float:
        return self.size_bytes / self.num_chunks

    def in_pieces(self, pieces: int) -> StripePlan:
        """The same in so many pieces, with its time."""
        plan = replace(self, stripes=replace(self.stripes, pieces=pieces))
        first_us = max(edge.end_us for tree in plan._first(plan.trees[0]) for edge in tree)
        return replace(plan, end_us=first_us + (pieces - 1) * plan._period_us())

    def _period_us(self) -> float:
        """How long the busiest link or port is busy with a piece of each stripe."""
        topology, links_between = self.cluster.site.topology, self.cluster.site.topology.links_between
        uses = np.zeros(len(topology.links))
        for tree in (tree for trees in self.trees for tree in trees):
            for src, dsts in tree.items():
                uses[[links_between[src, dst][0] for dst in dsts]] += 1 / len(self.trees)
        busy_us = np.zeros(topology.num_resources)
        for link in np.flatnonzero(uses).tolist():
            for resource in topology.resources_of[link]:
                busy_us[resource] += uses[link] * topology.occupancy_us(resource, self._piece_bytes)
        return float(busy_us.max())

    def _first(self, trees: _Trees) -> list[list[Edge]]:
        """Every tree's edges with their times if there were this piece only: what can start first does."""
        topology, num_bytes = self.cluster.site.topology, self._piece_bytes
        free_us = [0.0] * topology.num_resources
        found: list[list[Edge]] = [[] for _ in trees]
        # Of what can start at the same time, the next one of each rank before the one after that.
        waiting = [
            (0.0, turn, stripe, self.root, dst)
            for stripe, tree in enumerate(trees)
            for turn, dst in enumerate(tree[self.root])
        ]
        heapq.heapify(waiting)
        while waiting:
            ready_us, turn, stripe, src, dst = heapq.heappop(waiting)
            link = topology.links_between[src, dst][0]
            start_us = max(ready_us, *(free_us[resource] for resource in topology.resources_of[link]))
            if start_us > ready_us:
                heapq.heappush(waiting, (start_us, turn, stripe, src, dst))
                continue
            for resource in topology.resources_of[link]:
                free_us[resource] = start_us + topology.occupancy_us(resource, num_bytes)
            end_us = start_us + topology.message_us(link, num_bytes)
            found[stripe].append(Edge(src, dst, start_us, end_us))
            for later, other in enumerate(trees[stripe].get(dst, ())):
                heapq.heappush(waiting, (end_us, later, stripe, dst, other))
        return found

    def moves(self) -> Moves:
        """The plan in full; chunks are numbered piece by piece."""
        period_us = self._period_us()
        firsts = [self._first(trees) for trees in self.trees[: self.stripes.pieces]]
        found = []
        for piece in range(self.stripes.pieces):
            first = firsts[piece % len(firsts)]
            for stripe, edges in enumerate(first):
                chunks = (piece * len(first) + stripe,)
                later_us = piece * period_us
                found += [Move(e.src, e.dst, chunks, e.start_us + later_us, e.end_us + later_us) for e in edges]
        return tuple(sorted(found, key=lambda move: move.start))


def stripe_plans(cluster: Cluster, root: int, size_bytes: float) -> Iterator[StripePlan]:
    """Every way to pass on with the number of pieces that suits it.

    None where nodes differ in size, or where not all ranks of a node, or not all of the same place in nodes, are linked.

    Parameters
    ----------
    cluster
        The machine.
    root
        The root.
    size_bytes
        Size of the buffer.
    """
    if not _is_regular(cluster):
        return
    for between in (CHAIN, TREE, TWO_TREES)[: 3 if len(cluster.nodes) > 2 else 1]:
        for returns in (False, True):
            trees = tuple(_all_trees(cluster, root, between, returns=returns))
            plan = StripePlan(cluster, root, size_bytes, Stripes(between, returns, 1), trees)
            moves = len(trees[0]) * (cluster.site.topology.num_ranks - 1)
            cut = [plan.in_pieces(pieces) for pieces in _PIECES if pieces == 1 or pieces * moves <= _MOST_MOVES]
            least_us = min(each.end_us for each in cut)
            yield next(each for each in cut if each.end_us <= least_us * (1 + _WORTH))


def _is_regular(cluster: Cluster) -> bool:
    """Whether nodes are alike and linked as stripes need it."""
    nodes, linked = cluster.nodes, cluster.site.linked
    places = len(nodes[0])
    if places < 2 or any(len(ranks) != places for ranks in nodes) or not cluster.site.linked_inside_nodes:
        return False
    return all(linked(a, b) for ranks in zip(*nodes, strict=True) for a in ranks for b in ranks if a != b)


def _all_trees(cluster: Cluster, root: int, between: str, *, returns: bool) -> Iterator[_Trees]:
    """Trees of all stripes for one piece after the other, until they repeat."""
    places = len(cluster.nodes[0])
    helpers = 1 if returns else places - 1
    for number in range(math.lcm(helpers, 2 if between == TWO_TREES else 1)):
        yield [_tree(cluster, root, place, between, number, returns=returns) for place in range(places)]


def _tree(cluster: Cluster, root: int, place: int, between: str, number: int, *, returns: bool) -> dict[int, list[int]]:
    """Whom each rank tells of a stripe."""
    home = cluster.site.topology.node_of[root]
    order = [*cluster.nodes[home:], *cluster.nodes[:home]]
    carriers = [ranks[place] for ranks in order]
    steps = [step for steps in course_rounds(len(order), between, number) for step in steps]
    tells: dict[int, list[int]] = {}
    for step in steps:
        tells.setdefault(carriers[step.src], []).append(carriers[step.dst])
    for ranks, carrier in zip(order[1:], carriers[1:], strict=True):
        tells.setdefault(carrier, []).extend(_others_in_turn(ranks, place))
    if carriers[0] != root:
        tells.setdefault(carriers[0], []).extend(rank for rank in _others_in_turn(order[0], place) if rank != root)
        tells[root] = [carriers[0]]
    elif returns:
        # From a node that passes nothing on.
        last = order[steps[-1].dst]
        for own, other in zip(last, order[0], strict=True):
            if other != root:
                tells.setdefault(own, []).append(other)
    else:
        others = _others_in_turn(order[0], place)
        helper = others[number % len(others)]
        tells.setdefault(root, []).append(helper)
        tells[helper] = [rank for rank in others if rank != helper]
    return tells


def _others_in_turn(ranks: Sequence[int], place: int) -> list[int]:
    """The others of a node, from the next place on, so that not everyone begins with the same one."""
    return [*ranks[place + 1 :], *ranks[:place]]
