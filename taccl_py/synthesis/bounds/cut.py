"""Cuts: where data has to squeeze through, found by maximum flow.

Data flows from rank to rank over links, and on the way through each of the link's ports. A set of links and ports without
which nothing gets from some ranks to others is a cut; all together they carry at most the sum of their bandwidths. In the
flow network a port is an arc between two vertices of its own; links that share a port meet there, so the network may let
more through than the machine does, which keeps every cut found in it a cut of the machine.

For collectives in which everyone who wants something wants everything (AllGather, Broadcast, Gather and, backwards,
ReduceScatter, Reduce, Scatter) the worst cut is found exactly, by Newton's method for fractions: as long as the flow to some
rank falls short of all data at the time that the worst cut so far takes, the smallest cut is a worse one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray, places_in_runs
from taccl_py.solvers.max_flow import min_cut
from taccl_py.synthesis.bounds.net import Net

# Flow that falls short by less than this share is rounding.
_SHORT = 1e-9
# Share by which resources with the largest alpha count as slower: of two that let the same through, they say more.
_SLOWER = 1e-9
# Arcs, summed over all maximum flows, that are looked at; more ranks than that allows are not tried as sinks.
_MOST_ARCS = 20_000_000


@dataclass(frozen=True)
class ResourceCut:
    """Resources without which nothing gets from some ranks to the others.

    Attributes
    ----------
    resources
        The links and ports of the cut.
    near
        Ranks on the side that data comes from, [rank].
    supply
        What those ranks have together.
    """

    resources: IntArray
    near: BoolArray
    supply: float


@dataclass(frozen=True)
class _Network:
    """Arcs between vertices: ranks first, then two for every port. Arcs of resource -1 have no limit."""

    tail: IntArray
    head: IntArray
    resource: IntArray
    rate: FloatArray
    num_vertices: int

    def crossed(self, near: BoolArray, supply: FloatArray) -> tuple[ResourceCut, float]:
        """The cut between the vertices on the source's side and the others, and what it lets through."""
        padded = np.zeros(self.num_vertices + 1, dtype=bool)
        padded[: len(near)] = near
        crossing = np.flatnonzero(padded[self.tail] & ~padded[self.head])
        side = padded[: len(supply)]
        return ResourceCut(self.resource[crossing], side, float(supply[side].sum())), float(self.rate[crossing].sum())


class CutFinder:
    """Finds cuts of a machine, or of the machine turned around."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._ports = _ports_of_links(net)
        self._outward = _outward_ports(net)
        self._num_ports = len(net.beta_us_per_mb) - net.num_links

    def worst(self, supply: FloatArray, sinks: list[int]) -> ResourceCut | None:
        """Cut with the largest ratio of what is behind it to what it lets through, or None if nothing limits.

        Parameters
        ----------
        supply
            What every rank has, [rank].
        sinks
            Ranks that want all of it; one for each orbit of a symmetry is enough.
        """
        net = self._net
        network = self._network(net.src, net.dst, np.arange(net.num_links))
        limited = np.isfinite(network.rate)
        if not limited.any():
            return None
        having = np.flatnonzero(supply > 0)
        source = network.num_vertices
        tail = np.concatenate([np.full(len(having), source), network.tail])
        head = np.concatenate([having, network.head])
        best = _links_into_a_rank(net, supply, sinks)
        time_us = float(supply[having].min() / network.rate[limited].sum()) / 2
        if best is not None:
            time_us = best.supply / float((1 / net.beta_us_per_mb[best.resources]).sum())
        for sink in sinks[: max(1, _MOST_ARCS // len(tail))]:
            while True:
                capacity = np.concatenate([supply[having], time_us * network.rate])
                found = min_cut(tail, head, capacity, source, sink)
                if found.flow >= float(supply.sum()) * (1 - _SHORT):
                    break
                cut, rate = network.crossed(found.near, supply)
                if cut.supply <= time_us * rate * (1 + _SHORT):
                    break
                best, time_us = cut, cut.supply / rate
        return best

    def cheapest_cover(self, links: IntArray) -> IntArray | None:
        """Resources of least total bandwidth of which each of some links uses one; None if nothing limits them."""
        before, after = np.zeros(len(links), dtype=np.int64), np.ones(len(links), dtype=np.int64)
        network = self._network(before, after, links)
        supply = float(network.rate[np.isfinite(network.rate)].sum()) * 2
        if supply <= 0:
            return None
        source = network.num_vertices
        tail, head = np.append(network.tail, source), np.append(network.head, 0)
        found = min_cut(tail, head, np.append(self._with_alpha(network), supply), source, 1)
        if found.flow > supply * 0.75:
            return None
        cut, _ = network.crossed(found.near, np.zeros(self._net.num_ranks))
        return cut.resources

    def _with_alpha(self, network: _Network) -> FloatArray:
        """Amount that every arc lets through, a little less the larger its alpha is."""
        alpha_us = np.append(self._net.alpha_us, 0.0)[network.resource]
        found: FloatArray = network.rate * (1 - _SLOWER * alpha_us / max(float(alpha_us.max()), 1e-30))
        return found

    def _network(self, src: IntArray, dst: IntArray, links: IntArray) -> _Network:
        """Flow network of some links between given ends (indexed like `links`)."""
        ranks, num_links = self._net.num_ranks, self._net.num_links
        beta_of, ports = self._net.beta_us_per_mb, self._ports[links]
        tails, heads, near, far = [], [], src.copy(), dst.copy()
        for column in ports.T:
            mine = np.flatnonzero((column >= 0) & self._outward[column])
            tails.append(near[mine])
            heads.append(ranks + 2 * column[mine])
            near[mine] = ranks + 2 * column[mine] + 1
        for column in ports.T[::-1]:
            mine = np.flatnonzero((column >= 0) & ~self._outward[column])
            tails.append(ranks + 2 * column[mine] + 1)
            heads.append(far[mine])
            far[mine] = ranks + 2 * column[mine]
        vertices = ranks + 2 * self._num_ports
        free = np.unique(np.concatenate(tails) * vertices + np.concatenate(heads)) if tails else np.zeros(0, np.int64)
        used = np.unique(ports[ports >= 0])
        limited = np.concatenate([links, num_links + used])
        beta = np.concatenate([beta_of[limited], np.zeros(len(free))])
        return _Network(
            np.concatenate([near, ranks + 2 * used, free // vertices]),
            np.concatenate([far, ranks + 2 * used + 1, free % vertices]),
            np.concatenate([limited, np.full(len(free), -1)]),
            np.divide(1.0, beta, out=np.full(len(beta), np.inf), where=beta > 0),
            vertices,
        )


def _ports_of_links(net: Net) -> IntArray:
    """Ports of every link in order, padded with -1, [link, place]."""
    owner, port, place = _places(net)
    padded = np.full((net.num_links, int(place.max(initial=-1)) + 1), -1, dtype=np.int64)
    padded[owner, place] = port
    return padded


def _places(net: Net) -> tuple[IntArray, IntArray, IntArray]:
    """Link, port, and the port's place among the link's ports, for every pair of them."""
    is_port = net.use_resource >= net.num_links
    owner, port = net.use_link[is_port], net.use_resource[is_port] - net.num_links
    count = np.bincount(owner, minlength=net.num_links)
    return owner, port, places_in_runs(count)


def _outward_ports(net: Net) -> BoolArray:
    """True if a port lies on its senders' side: it has fewer senders than receivers, or is mostly in front, [port]."""
    owner, port, place = _places(net)
    num_ports = len(net.alpha_us) - net.num_links
    senders, receivers = (
        np.bincount(np.unique(port * net.num_ranks + ends[owner]) // net.num_ranks, minlength=num_ports)
        for ends in (net.src, net.dst)
    )
    in_front = 2 * place < np.bincount(owner, minlength=net.num_links)[owner]
    votes = np.bincount(port, weights=np.where(in_front, 1.0, -1.0), minlength=num_ports)
    outward = (senders < receivers) | ((senders == receivers) & (votes > 0))
    return np.append(outward, False)


def _links_into_a_rank(net: Net, supply: FloatArray, sinks: list[int]) -> ResourceCut | None:
    """The worst one of the cuts that consist of the links into a sink; None if nothing limits these."""
    beta = net.beta_us_per_mb[: net.num_links]
    rate = np.divide(1.0, beta, out=np.full(len(beta), np.inf), where=beta > 0)
    entering = np.bincount(net.dst, weights=rate, minlength=net.num_ranks)
    lacking = supply.sum() - supply
    time_us = np.divide(lacking, entering, out=np.zeros(net.num_ranks), where=entering > 0)
    sink = max(sinks, key=lambda rank: time_us[rank])
    if time_us[sink] <= 0:
        return None
    return ResourceCut(np.flatnonzero(net.dst == sink), np.arange(net.num_ranks) != sink, float(lacking[sink]))
