"""Broadcast in stripes: each place of a node carries a part of the data to its place in all other nodes, piece after piece.

The root deals the stripes out in its node; every carrier passes its stripe on to the next nodes and hands it out in its own. So
all ports between nodes carry, and inside nodes every rank sends as much as it gets. The root's own stripe is what it would have
to send twice, or have others hand out that have enough to do; another node can send it back to the root's node instead, into
ports that nothing else uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.rooted import CHAIN, TREE, TWO_TREES, course_rounds
from taccl_py.synthesis.templates.pipeline import Pipeline, Tells


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

    @property
    def name(self) -> str:
        """For people."""
        back = ", the root's own sent back" if self.returns else ""
        return f"stripes over a {self.between} of nodes{back}"


def striped(cluster: LaneCluster) -> list[Stripes]:
    """Variants of passing on; none where nodes differ in size, or ranks of a node, or those of a place in all nodes, are not all linked."""
    nodes, linked = cluster.nodes, cluster.site.linked
    places = len(nodes[0])
    if places < 2 or any(len(ranks) != places for ranks in nodes) or not cluster.site.linked_inside_nodes:
        return []
    if not all(linked(a, b) for ranks in zip(*nodes, strict=True) for a in ranks for b in ranks if a != b):
        return []
    # Between two nodes all are the same.
    variants = (CHAIN, TREE, TWO_TREES)[: 3 if len(nodes) > 2 else 1]
    return [Stripes(between, returns) for between in variants for returns in (False, True)]


def stripes_pipeline(cluster: LaneCluster, stripes: Stripes, root: int, size_bytes: float) -> Pipeline:
    """A Broadcast of so many bytes in stripes, whose number of pieces is still to be chosen."""
    return Pipeline(cluster.site, root, size_bytes, tuple(_trees(cluster, stripes, root)))


def _trees(cluster: LaneCluster, stripes: Stripes, root: int) -> Iterator[list[Tells]]:
    """Trees of all stripes for one piece after the other, until they repeat."""
    places = len(cluster.nodes[0])
    helpers = 1 if stripes.returns else places - 1
    for number in range(math.lcm(helpers, 2 if stripes.between == TWO_TREES else 1)):
        yield [_tree(cluster, stripes, root, place, number) for place in range(places)]


def _tree(cluster: LaneCluster, stripes: Stripes, root: int, place: int, number: int) -> Tells:
    """Whom each rank tells of a stripe: first its place in other nodes, then its own node."""
    home = cluster.site.topology.node_of[root]
    order = [*cluster.nodes[home:], *cluster.nodes[:home]]
    carriers = [ranks[place] for ranks in order]
    steps = [step for steps in course_rounds(len(order), stripes.between, number) for step in steps]
    tells: dict[int, list[int]] = {rank: [] for rank in range(cluster.site.topology.num_ranks)}
    for step in steps:
        tells[carriers[step.src]].append(carriers[step.dst])
    for ranks, carrier in zip(order[1:], carriers[1:], strict=True):
        tells[carrier] += _others_in_turn(ranks, place)
    others = [rank for rank in _others_in_turn(order[0], place) if rank != root]
    if carriers[0] != root:
        tells[carriers[0]] += others
        tells[root].append(carriers[0])
    elif stripes.returns:
        # From a node that passes nothing on.
        for own, other in zip(order[steps[-1].dst], order[0], strict=True):
            tells[own] += [other] if other != root else []
    else:
        helper = others[number % len(others)]
        tells[root].append(helper)
        tells[helper] += [rank for rank in others if rank != helper]
    return tells


def _others_in_turn(ranks: Sequence[int], place: int) -> list[int]:
    """The others of a node, from the next place on, so that not everyone begins with the same one."""
    return [*ranks[place + 1 :], *ranks[:place]]
