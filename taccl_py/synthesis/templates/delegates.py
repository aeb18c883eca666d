"""Delegates: templates for N equal nodes of several ranks, in which every rank talks to one other node at most, and once.

A node's ranks fall into groups of N neighbours; the q-th of each group is the delegate to the node whose number differs by q
(bitwise), and the first one stays at home. First everything is gathered inside nodes, so that every delegate has what it needs;
then all delegates meet at the same time; then each group deals out what its delegates brought. That is one message per NIC
where exchanging between whole nodes takes one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_turn
from taccl_py.synthesis.templates.patterns import DOUBLING, Axis, Groups, axis, exchange, spread
from taccl_py.synthesis.templates.site import TemplateSite


@dataclass(frozen=True, slots=True)
class Delegates:
    """Delegates of ranks for other nodes.

    Attributes
    ----------
    nodes
        Ranks of every node.
    inside, dealing
        Doubling in nodes and in groups.
    """

    nodes: Groups
    inside: Axis
    dealing: Axis

    @staticmethod
    def of(site: TemplateSite) -> Delegates | None:
        """None if nodes are not equal, their number or size is no power of two, or links are missing."""
        nodes = site.topology.node_ranks
        number, size = len(nodes), len(nodes[0])
        if number == 1 or number & (number - 1) or size % number or not site.topology.has_even_nodes:
            return None
        groups = tuple(ranks[i : i + number] for ranks in nodes for i in range(0, size, number))
        inside, dealing = axis(site, DOUBLING, nodes), axis(site, DOUBLING, groups)
        if inside is None or dealing is None or size & (size - 1):
            return None
        found = Delegates(nodes, inside, dealing)
        return found if all(site.linked(*pair) for pair in found.meetings) else None

    @property
    def meetings(self) -> tuple[tuple[int, int], ...]:
        """Delegates and whom they send to."""
        number = len(self.nodes)
        return tuple(
            (rank, self.nodes[node ^ place % number][place])
            for node, ranks in enumerate(self.nodes)
            for place, rank in enumerate(ranks)
            if place % number
        )

    def allgather(self, held: Mapping[int, tuple[int, ...]]) -> TemplateMessages:
        """AllGather of what every rank holds."""
        of_node = [tuple(chain.from_iterable(held[rank] for rank in ranks)) for ranks in self.nodes]
        home = {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}
        brought = {dst: of_node[home[src]] for src, dst in self.meetings}
        first = {rank: brought.get(rank, ()) for rank in home}
        met = tuple(TemplateMessage(src, dst, brought[dst], 0, 1) for src, dst in self.meetings)
        dealt = tuple(message for message in spread((self.dealing,), first) if message.chunks)
        return in_turn(spread((self.inside,), held), met, dealt)

    def allreduce(self, site: TemplateSite, chunks: tuple[int, ...]) -> TemplateMessages | None:
        """Sums of nodes everywhere inside them; delegates put another node's sum in the place of their own; groups add up."""
        inside = exchange(site, self.nodes, DOUBLING, chunks)
        dealing = exchange(site, self.dealing.groups, DOUBLING, chunks)
        if inside is None or dealing is None:
            return None
        return in_turn(inside, tuple(TemplateMessage(src, dst, chunks, 0, 1) for src, dst in self.meetings), dealing)

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Path of a pair's chunk: to the delegate in the group of the destination's place, across, to the destination."""
        number = len(self.nodes)
        place = {rank: (node, i) for node, ranks in enumerate(self.nodes) for i, rank in enumerate(ranks)}
        (node, begin), (other, end) = place[src], place[dst]
        if node == other:
            return tuple(self.nodes[node][i] for i in flipped(begin, end, len(self.nodes[node])))
        delegate = end - end % number + (node ^ other)
        before = [self.nodes[node][i] for i in flipped(begin, delegate, len(self.nodes[node]))]
        after = [self.nodes[other][i] for i in flipped(delegate, end, number)]
        return (*before, *after)


def flipped(begin: int, end: int, size: int) -> tuple[int, ...]:
    """Places from one to the other, one bit after the other; the same place again where a bit is right."""
    found = [begin]
    for bit in range((size - 1).bit_length()):
        found.append(found[-1] ^ ((begin ^ end) & (1 << bit)))
    return tuple(found)
