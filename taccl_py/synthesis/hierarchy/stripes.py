"""Broadcast in stripes: each place of a node carries a part of the data to its place in all other nodes, piece after piece.

Nodes with fewer ranks than the largest one have several places at a rank.

The root deals the stripes out in its node; every carrier passes its stripe on to the next nodes and hands it out in its own. So
all ports between nodes carry, and inside nodes every rank sends as much as it gets. The root's own stripe is what it would have
to send twice, or have others hand out that have enough to do; another node can send it back to the root's node instead, into
ports that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from taccl_py.synthesis.hierarchy.cluster import LaneCluster, ranks_of_places
from taccl_py.synthesis.hierarchy.rooted import (
    CHAIN,
    CIRCULANT,
    TREE,
    circulant_returns,
    circulant_turns,
    course_rounds,
)
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order
from taccl_py.synthesis.templates.pipeline import Pipeline, Tells
from taccl_py.synthesis.templates.site import others_in_turn
from taccl_py.tolerances import DIGITS


@dataclass(frozen=True, slots=True)
class Stripes:
    """Choices of a Broadcast in stripes.

    Attributes
    ----------
    between
        How nodes pass on.
    returns
        Whether the root's own stripe comes back to its node from another one.
    """

    between: str
    returns: bool


def striped(cluster: LaneCluster) -> list[Stripes]:
    """Variants of passing on; none where ranks of a node, or those of a place in all nodes, are not all linked."""
    linked = cluster.site.linked
    places = carriers_of(cluster)
    if len(places) < 2 or not cluster.site.linked_inside_nodes:
        return []
    if not all(linked(a, b) for ranks in places for a in ranks for b in ranks if a != b):
        return []
    # Between two nodes all are the same.
    variants = (CHAIN, TREE, CIRCULANT)[: 3 if len(cluster.nodes) > 2 else 1]
    # Where nodes differ in size, another node has not a place for each of the root's.
    returns = (False, True) if cluster.site.topology.has_even_nodes else (False,)
    return [Stripes(between, back) for between in variants for back in returns]


def carriers_of(cluster: LaneCluster) -> list[tuple[int, ...]]:
    """The rank of each place in every node, [place][node]."""
    return [*zip(*ranks_of_places(cluster.nodes), strict=True)]


def stripes_pipeline(cluster: LaneCluster, stripes: Stripes, root: int, size_bytes: float) -> Pipeline:
    """A Broadcast of so many bytes in stripes, whose number of pieces is still to be chosen."""
    if stripes.between == CIRCULANT:
        # As in a chain every node sends and hears every piece once, so that pieces follow each other as fast.
        chain = replace(stripes, between=CHAIN)
        trees = tuple(_trees(cluster, chain, root))
        return _CirculantPipeline(cluster.site, root, size_bytes, trees, cluster=cluster, stripes=stripes)
    return Pipeline(cluster.site, root, size_bytes, tuple(_trees(cluster, stripes, root)))


@dataclass(frozen=True, kw_only=True)
class _CirculantPipeline(Pipeline):
    """Pieces that go from node to node in the fewest rounds; `trees` are those of a chain.

    Attributes
    ----------
    cluster, stripes
        Nodes, and how the root's own stripe goes.
    """

    cluster: LaneCluster
    stripes: Stripes

    def messages(self) -> TemplateMessages:
        """The plan in full; chunks are numbered piece by piece."""
        node_of = self.site.topology.node_of
        home, num_nodes = node_of[self.root], len(self.cluster.nodes)
        round_of = {
            (piece, (home + step.src) % num_nodes, (home + step.dst) % num_nodes): turn
            for turn, piece, step in circulant_turns(num_nodes, self.pieces)
        }
        for piece, (node, turn) in enumerate(circulant_returns(num_nodes, self.pieces)):
            round_of[piece, (home + node) % num_nodes, home] = turn
        found = []
        for piece in range(self.pieces):
            places = carriers_of(self.cluster)
            trees = [_tree(self.cluster, self.stripes, self.root, place, piece, self.pieces) for place in places]
            first = self.alone(trees)
            # Rounds begin when the first piece is dealt out.
            dealt = (e for edges in first for e in edges if e.src == self.root and node_of[e.dst] == home)
            dealt_us = max((e.end_us for e in dealt), default=0.0)
            for stripe, edges in enumerate(first):
                # When ranks have it, alone and in the plan.
                has_us = {self.root: (0.0, piece * self.period_us)}
                for e in edges:
                    alone_us, late_us = has_us[e.src]
                    start_us = late_us + e.start_us - alone_us
                    if node_of[e.src] == node_of[e.dst] == home and e.src != self.root:
                        # The next piece has to be dealt out first.
                        start_us += self.period_us
                    number = round_of.get((piece, node_of[e.src], node_of[e.dst]))
                    if number is not None:
                        start_us = max(start_us, dealt_us + number * self.period_us)
                    end_us = start_us + e.end_us - e.start_us
                    has_us[e.dst] = (e.end_us, end_us)
                    chunks = (piece * len(first) + stripe,)
                    found.append(TemplateMessage(e.src, e.dst, chunks, round(start_us, DIGITS), round(end_us, DIGITS)))
        return in_order(found)

    def _cut(self, pieces: int) -> Self:
        """The same in so many pieces, with its time: that of a chain, less what it takes to the last node in more rounds."""
        plan = super()._cut(pieces)
        num_nodes = len(self.cluster.nodes)
        lane_us = self.cluster.lane_us(plan.chunk_bytes)
        fewest = (num_nodes - 1).bit_length()
        end_us = plan.end_us - (num_nodes - 1 - fewest) * lane_us
        if self.stripes.returns:
            rounds = max(number for _, number in circulant_returns(num_nodes, pieces)) + 1
            end_us = max(end_us, rounds * plan.period_us)
        return replace(plan, end_us=end_us)


def _trees(cluster: LaneCluster, stripes: Stripes, root: int) -> Iterator[list[Tells]]:
    """Trees of all stripes for one piece after the other, until they repeat."""
    helpers = 1 if stripes.returns else len(cluster.nodes[cluster.site.topology.node_of[root]]) - 1
    for number in range(max(1, helpers)):
        yield [_tree(cluster, stripes, root, place, number) for place in carriers_of(cluster)]


def _tree(
    cluster: LaneCluster, stripes: Stripes, root: int, place: tuple[int, ...], number: int, pieces: int = 1
) -> Tells:
    """Whom each rank tells of a stripe: first its place in other nodes, then its own node."""
    home = cluster.site.topology.node_of[root]
    order = [*cluster.nodes[home:], *cluster.nodes[:home]]
    carriers = [*place[home:], *place[:home]]
    steps = [step for steps in course_rounds(len(order), stripes.between, number, pieces) for step in steps]
    tells: dict[int, list[int]] = {rank: [] for rank in range(cluster.site.topology.num_ranks)}
    for step in steps:
        tells[carriers[step.src]].append(carriers[step.dst])
    for ranks, carrier in zip(order[1:], carriers[1:], strict=True):
        tells[carrier] += others_in_turn(carrier, ranks)
    others = [rank for rank in others_in_turn(carriers[0], order[0]) if rank != root]
    if carriers[0] != root:
        tells[carriers[0]] += others
        tells[root].append(carriers[0])
    elif stripes.returns:
        # From a node that passes nothing on, or not in that round.
        is_circulant = stripes.between == CIRCULANT
        back = circulant_returns(len(order), pieces)[number][0] if is_circulant else steps[-1].dst
        for own, other in zip(order[back], order[0], strict=True):
            tells[own] += [other] if other != root else []
    elif others:
        helper = others[number % len(others)]
        tells[root].append(helper)
        tells[helper] += [rank for rank in others if rank != helper]
    return tells
