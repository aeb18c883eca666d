"""Senders of a Broadcast between two nodes: what can leave the root's node over each of its ways out, and when.

Over the root's own way out anything can leave at any time. The ranks behind another one know nothing at first. Ranks that know
something become more no faster than messages without bytes let them (`taccl_py.synthesis.bounds.growth`). So the first message to a
rank behind the k-th way to have such a rank starts no sooner than the k-th of these arrivals less the time of the message; and what
those ranks know later came in since then, at the rate of the links inside the node. What came back from the other node, too, can
only have started there when something had arrived.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.synthesis.bounds.crossing import Gate, NodeClasses
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.ends import Carriage
from taccl_py.synthesis.bounds.spread import links_by_port


@dataclass(frozen=True, slots=True)
class Inflow:
    """Rate at which data can come to the ranks behind a way out: from some time on, after an alpha, at a rate."""

    since_us: float
    alpha_us: float
    rate_mb_per_us: float

    def megabytes(self, ends_us: FloatArray) -> FloatArray:
        """Amount that has come at most by some times."""
        found: FloatArray = np.maximum(0.0, ends_us - self.since_us - self.alpha_us) * self.rate_mb_per_us
        return found


@dataclass(frozen=True, slots=True)
class RootPath:
    """A way out of the root's node.

    Attributes
    ----------
    gate
        Its costs.
    inflows
        How data comes to the ranks behind it; none if the root is one of them.
    """

    gate: Gate
    inflows: tuple[Inflow, ...]

    def known(self, ends_us: FloatArray, size_mb: float) -> FloatArray:
        """Share of everything that its ranks know at most by some times."""
        if not self.inflows:
            return np.ones(len(ends_us))
        come: FloatArray = np.sum([inflow.megabytes(ends_us) for inflow in self.inflows], axis=0)
        return np.minimum(1.0, come / size_mb)


def senders_of(cluster: NodeClasses, root: int) -> tuple[tuple[RootPath, int], ...]:
    """Ways out of the root's node, and how many of each sort; none unless there are two nodes and data is limited inside them."""
    net, home = cluster.net, int(cluster.node_of[root])
    if len(cluster.telling.sizes) != 2:
        return ()
    leaving = np.flatnonzero((cluster.node_of[net.src] == home) & (cluster.node_of[net.dst] != home))
    ways = links_by_port(net, net.src, leaving)
    behind = [set(net.src[links].tolist()) for links in ways.values()]
    others = [ranks for ranks in behind if root not in ranks]
    inside, back = (_inflow(cluster, set().union(*others), own) for own in (True, False))
    gate = Gate.quickest([cluster.gate(key, links) for key, links in ways.items()])
    if inside is None or back is None or gate.least_us <= 0:
        return ()
    most_ways = max(Counter(rank for ranks in others for rank in ranks).values(), default=1)
    learned = cluster.telling.grown(home, cluster.telling.of_rank[root])
    told_us = sorted(each.time_us for each in learned if each.group == home)[1:]
    own_links = (cluster.node_of[net.src] == home) & (cluster.node_of[net.dst] == home)
    slowest_us = float(net.least_message_us[own_links].max(initial=0.0))
    found = Counter({RootPath(gate, ()): len(behind) - len(others)})
    for number in range(len(others)):
        told = number // most_ways
        # Whoever hears from the other node first does so after something has got there.
        since_us = min(told_us[told] - slowest_us if told < len(told_us) else math.inf, gate.least_us)
        flows = (replace(inside, since_us=since_us), replace(back, since_us=gate.least_us))
        found[RootPath(gate, flows)] += 1
    return tuple(found.items())


def _inflow(cluster: NodeClasses, ranks: set[int], own: bool) -> Inflow | None:
    """The best way for data to come to any of some ranks, from the own node or the other one; None if nothing limits it."""
    net, node_of, finder = cluster.net, cluster.node_of, CutFinder(cluster.net)
    found = [Carriage(math.inf, 0.0, is_single=True)]
    for rank in sorted(ranks):
        links = np.flatnonzero((net.dst == rank) & ((node_of[net.src] == node_of[rank]) == own))
        found.append(Carriage.over(net, finder, links))
    best = Carriage.best(found)
    return None if math.isinf(best.rate_mb_per_us) else Inflow(0.0, best.alpha_us, best.rate_mb_per_us)
