"""Broadcast in shares: every other node first gets one share of the data, and then nodes that have different ones exchange them.

A share spreads over the nodes that are to have it in as few rounds as possible, because all ranks of a node that has it send: the rank
that got it tells the others of its node, and each of them another node over a NIC of its own. So 64 nodes of eight ranks take three
messages between nodes one after the other, of an eighth of the data each, where a tree of nodes takes six. It is the way of van de
Geijn's scatter and collect, with whole nodes in place of processors: Barnett et al., Building a high-performance collective
communication library, Supercomputing 1994, section 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING


def shard_messages(cluster: LaneCluster, inside: str, root: int, size_bytes: float) -> TemplateMessages:
    """Moves with the times that they should take.

    Parameters
    ----------
    cluster
        Nodes of equally many ranks, those of a node and those of a place in all nodes linked (see `stripes.striped`).
    inside
        How nodes hand out what they have exchanged: ``direct`` or ``doubling``.
    root
        The root.
    size_bytes
        Size of the buffer, which has a chunk for each place of a node.
    """
    return _ShardPlan(cluster, inside, root, size_bytes / len(cluster.nodes[0])).messages()


@dataclass
class _ShardPlan:
    """Moves as they are planned one after the other, each as early as its ports allow."""

    cluster: LaneCluster
    inside: str
    root: int
    share_bytes: float
    _found: list[TemplateMessage] = field(default_factory=list)
    # When a rank has a share, and when a rank's port is free again.
    _holds_us: dict[tuple[int, int], float] = field(default_factory=dict)
    _free_us: dict[tuple[int, bool, str], float] = field(default_factory=dict)

    def messages(self) -> TemplateMessages:
        """Everything."""
        first = self.cluster.site.topology.node_of[self.root]
        home, *others = [*self.cluster.nodes[first:], *self.cluster.nodes[:first]]
        places = range(len(home))
        self._holds_us = {(self.root, share): 0.0 for share in places}
        for share in places:
            if home[share] != self.root:
                self._send(self.root, home[share], (share,))
        # Nodes that first get each share.
        groups = [others[share :: len(home)] for share in places]
        for share in places:
            self._spread(share, home[share], groups[share])
        self._hand_out(home, {rank: (share,) for share, rank in enumerate(home)}, DIRECT)
        for row in range(len(groups[0])):
            for share, group in enumerate(groups):
                if row < len(group):
                    self._complete(share, group[row], [g[row] if row < len(g) else home for g in groups])
        for share, group in enumerate(groups):
            for node in group:
                held = {node[self._rail(share, other)]: (other,) for other in places if other != share}
                self._hand_out(node, held, self.inside)
        return tuple(sorted(self._found, key=lambda message: message.start))

    def _spread(self, share: int, holder: int, group: Sequence[Sequence[int]]) -> None:
        """A share from its rank in the root's node to a group of nodes: whoever can send first tells the next one."""
        place = {rank: place for ranks in self.cluster.nodes for place, rank in enumerate(ranks)}
        waiting = [(self._holds_us[holder, share], holder)]
        for node in group:
            _, src = heapq.heappop(waiting)
            dst = node[place[src]]
            self._send(src, dst, (share,))
            heapq.heappush(waiting, (self._free_us[src, False, "out"], src))
            for rank in self._tell_all(node, dst, share):
                heapq.heappush(waiting, (self._holds_us[rank, share], rank))

    def _tell_all(self, node: Sequence[int], first: int, share: int) -> list[int]:
        """A share from one rank to all of its node, each that has it telling others; all of them in order."""
        start = node.index(first)
        order = [*node[start:], *node[:start]]
        know = 1
        while know < len(order):
            for src, dst in zip(order[:know], order[know : 2 * know], strict=False):
                self._send(src, dst, (share,))
            know *= 2
        return order

    def _rail(self, share: int, other: int) -> int:
        """Over which place a node of one share gets another one: over each place one at most, and from each place one at most."""
        return (share + other) % len(self.cluster.nodes[0])

    def _complete(self, share: int, node: Sequence[int], row: Sequence[Sequence[int]]) -> None:
        """Other shares to a node that has this one, from the nodes of its row; the root's node stands in for those that lack."""
        for other, source in enumerate(row):
            if other != share:
                rail = self._rail(share, other)
                self._send(source[rail], node[rail], (other,))

    def _hand_out(self, node: Sequence[int], given: Mapping[int, tuple[int, ...]], inside: str) -> None:
        """Send what ranks of a node hold to all others of it."""
        held = dict(given)
        if inside == DOUBLING:
            step = 1
            while step < len(node):
                now = dict(held)
                for place, rank in enumerate(node):
                    other = node[place ^ step]
                    if now.get(rank):
                        self._send(rank, other, now[rank])
                        held[other] = (*held.get(other, ()), *now[rank])
                step *= 2
            return
        for turn in range(1, len(node)):
            for place, rank in enumerate(node):
                other = node[(place + turn) % len(node)]
                if rank in held and other != self.root:
                    self._send(rank, other, held[rank])

    def _send(self, src: int, dst: int, shares: tuple[int, ...]) -> None:
        node_of = self.cluster.site.topology.node_of
        here = node_of[src] == node_of[dst]
        num_bytes = self.share_bytes * len(shares)
        lasts_us = self.cluster.node_us(num_bytes) if here else self.cluster.lane_us(num_bytes)
        ports = ((src, here, "out"), (dst, here, "in"))
        ready_us = max(self._holds_us[src, share] for share in shares)
        start_us = max(ready_us, *(self._free_us.get(port, 0.0) for port in ports))
        end_us = start_us + lasts_us
        self._free_us.update(dict.fromkeys(ports, end_us))
        for share in shares:
            self._holds_us[dst, share] = end_us
        self._found.append(TemplateMessage(src, dst, tuple(sorted(shares)), start_us, end_us))
