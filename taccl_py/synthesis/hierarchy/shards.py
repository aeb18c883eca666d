"""Broadcast in shards: every other node first gets one shard of the data, and then nodes that have different ones exchange them.

A shard spreads over the nodes that are to have it in as few rounds as possible, because all ranks of a node that has it send: the rank
that got it tells the others of its node, and each of them another node over a NIC of its own. So 64 nodes of eight ranks take three
messages between nodes one after the other, of an eighth of the data each, where a tree of nodes takes six. It is the algorithm of van de
Geijn's scatter and collect, with whole nodes in place of processors: Barnett et al., Building a high-performance collective
communication library, Supercomputing 1994, section 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING


def shard_messages(cluster: LaneCluster, inside: str, root: int, size_bytes: float) -> TemplateMessages:
    """Messages with the times that they should take.

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
    """Messages as they are planned one after the other, each as early as its ports allow."""

    cluster: LaneCluster
    inside: str
    root: int
    shard_bytes: float
    _found: list[TemplateMessage] = field(default_factory=list)
    # When a rank has a shard, and when a rank's port is free again.
    _holds_us: dict[tuple[int, int], float] = field(default_factory=dict)
    _free_us: dict[tuple[int, bool, str], float] = field(default_factory=dict)

    def messages(self) -> TemplateMessages:
        """Everything."""
        first = self.cluster.site.topology.node_of[self.root]
        home, *others = [*self.cluster.nodes[first:], *self.cluster.nodes[:first]]
        places = range(len(home))
        self._holds_us = {(self.root, shard): 0.0 for shard in places}
        for shard in places:
            if home[shard] != self.root:
                self._send(self.root, home[shard], (shard,))
        # Nodes that first get each shard.
        groups = [others[shard :: len(home)] for shard in places]
        for shard in places:
            self._spread(shard, home[shard], groups[shard])
        self._hand_out(home, {rank: (shard,) for shard, rank in enumerate(home)}, DIRECT)
        for row in range(len(groups[0])):
            for shard, group in enumerate(groups):
                if row < len(group):
                    self._complete(shard, group[row], [g[row] if row < len(g) else home for g in groups])
        for shard, group in enumerate(groups):
            for node in group:
                held = {node[self._rail(shard, other)]: (other,) for other in places if other != shard}
                self._hand_out(node, held, self.inside)
        return in_order(self._found)

    def _spread(self, shard: int, holder: int, group: Sequence[Sequence[int]]) -> None:
        """A shard from its rank in the root's node to a group of nodes: whoever can send first tells the next one."""
        place = {rank: place for ranks in self.cluster.nodes for place, rank in enumerate(ranks)}
        waiting = [(self._holds_us[holder, shard], holder)]
        for node in group:
            _, src = heapq.heappop(waiting)
            dst = node[place[src]]
            self._send(src, dst, (shard,))
            heapq.heappush(waiting, (self._free_us[src, False, "out"], src))
            for rank in self._tell_all(node, dst, shard):
                heapq.heappush(waiting, (self._holds_us[rank, shard], rank))

    def _tell_all(self, node: Sequence[int], first: int, shard: int) -> list[int]:
        """A shard from one rank to all of its node, each that has it telling others; all of them in order."""
        start = node.index(first)
        order = [*node[start:], *node[:start]]
        know = 1
        while know < len(order):
            for src, dst in zip(order[:know], order[know : 2 * know], strict=False):
                self._send(src, dst, (shard,))
            know *= 2
        return order

    def _rail(self, shard: int, other: int) -> int:
        """Over which place a node of one shard gets another one: over each place one at most, and from each place one at most."""
        return (shard + other) % len(self.cluster.nodes[0])

    def _complete(self, shard: int, node: Sequence[int], row: Sequence[Sequence[int]]) -> None:
        """Other shards to a node that has this one, from the nodes of its row; the root's node stands in for those that lack."""
        for other, source in enumerate(row):
            if other != shard:
                rail = self._rail(shard, other)
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

    def _send(self, src: int, dst: int, shards: tuple[int, ...]) -> None:
        node_of = self.cluster.site.topology.node_of
        here = node_of[src] == node_of[dst]
        num_bytes = self.shard_bytes * len(shards)
        lasts_us = self.cluster.node_us(num_bytes) if here else self.cluster.lane_us(num_bytes)
        ports = ((src, here, "out"), (dst, here, "in"))
        ready_us = max(self._holds_us[src, shard] for shard in shards)
        start_us = max(ready_us, *(self._free_us.get(port, 0.0) for port in ports))
        end_us = start_us + lasts_us
        self._free_us.update(dict.fromkeys(ports, end_us))
        for shard in shards:
            self._holds_us[dst, shard] = end_us
        self._found.append(TemplateMessage(src, dst, tuple(sorted(shards)), start_us, end_us))
