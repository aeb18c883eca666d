"""Owners of the sums of an AllReduce between unequal nodes, in proportion to the bandwidth of their NICs.

Every node sums its ranks' data at *gates*, ranks with a link out of the node, and each part of the data has an *owner*: the gate
at which the sums of all nodes come together, and from which the result goes to the gates of the other nodes. With ``N`` nodes a gate that
represents a share ``x`` of the data and owns a share ``q`` sends, and receives, ``x + q (N - 2)``. So gates of a node share
the data in the ratio of their bandwidths, and own of it what fills their time: who is slow owns little or nothing.

Gates with equal local numbers form a *rail*. Where a gate has failed, the others of its node stand in for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.synthesis.apportion import to_whole
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class OwnerShards:
    """Owners of an AllReduce, and who stands for them in every node.

    Attributes
    ----------
    rails
        Owners of every rail, by node; ranks.
    owned
        Chunks that every rank owns, [rank].
    gate_of
        Rank of a node at which the node's part of what a rank owns is summed, [node, owner]; -1 where the rank owns nothing.
    rate
        Bandwidth between nodes of every rank, megabytes per microsecond, [rank].
    """

    rails: tuple[tuple[int, ...], ...]
    owned: IntArray
    gate_of: IntArray
    rate: FloatArray

    @staticmethod
    def of(topology: Topology, chunks: int) -> OwnerShards | None:
        """Deal out so many chunks; None if there are not several nodes with a link out of each.

        Parameters
        ----------
        topology
            The machine.
        chunks
            How many there are in all.
        """
        rate = gate_rates(topology)
        members = topology.node_ranks
        if len(members) < 2 or any(rate[list(ranks)].max() <= 0 for ranks in members):
            return None
        most = max(map(len, members))
        every_rail = [[ranks[place] for ranks in members if place < len(ranks)] for place in range(most)]
        rails = [tuple(rank for rank in rail if rate[rank] > 0) for rail in every_rail]
        rails = [rail for rail in rails if rail]
        share = np.zeros(topology.num_ranks)
        for ranks in members:
            share[list(ranks)] = rate[list(ranks)] / rate[list(ranks)].sum()
        owned = np.zeros(topology.num_ranks, dtype=np.int64)
        ends = np.linspace(0, chunks, len(rails) + 1).astype(np.int64)
        for rail, size in zip(rails, np.diff(ends).tolist(), strict=True):
            own = _own_shards(share[list(rail)], rate[list(rail)], len(members), size / chunks)
            owned[list(rail)] = to_whole((own / own.sum() * size).tolist(), size)
        # A rail without an owner would be a rail of no chunks.
        kept = tuple(tuple(rank for rank in rail if owned[rank]) for rail in rails)
        kept = tuple(rail for rail in kept if rail)
        return OwnerShards(kept, owned, _gates(members, kept, owned, share), rate)


def gate_rates(topology: Topology) -> FloatArray:
    """Bandwidth of every rank to and from other nodes, in megabytes per microsecond, [rank].

    Ranks behind one port share it; the smaller one of out and in counts.
    """
    net = Net.of(topology)
    node_of = net.node_of
    crossing = node_of[net.src] != node_of[net.dst]
    kept = crossing[net.use_link]
    link, resource = net.use_link[kept], net.use_resource[kept]
    outwards, inwards = (_rates(net, link, resource, *ends) for ends in ((net.src, net.dst), (net.dst, net.src)))
    return np.minimum(outwards, inwards)


def _rates(net: Net, link: IntArray, resource: IntArray, ends: IntArray, far_ends: IntArray) -> FloatArray:
    """Bandwidth of the ranks at one end of some links: that of the ports on their side, as far as the links fill them."""
    users, others = _distinct(net, resource, ends[link]), _distinct(net, resource, far_ends[link])
    rate: FloatArray = 1 / np.maximum(net.beta_us_per_mb, PARAMS.least_beta_us_per_mb)
    is_own = (resource >= net.num_links) & (users <= others)[resource]
    # Of several ports in a row the one that leaves a rank least.
    per_rank: FloatArray = rate / np.maximum(users, 1)
    own = np.flatnonzero(is_own)
    order = own[np.lexsort((-per_rank[resource[own]], link[own]))]
    port = np.full(net.num_links, -1, dtype=np.int64)
    port[link[order]] = resource[order]
    links = np.flatnonzero(np.bincount(link, minlength=net.num_links))
    resources = len(rate)
    gate, inverse = np.unique(
        ends[links] * resources + np.where(port[links] < 0, links, port[links]), return_inverse=True
    )
    rank, last = np.divmod(gate, resources)
    filled = np.asarray(np.bincount(inverse, weights=rate[links]), dtype=np.float64)
    limit = np.where(last >= net.num_links, per_rank[last], np.inf)
    found = np.bincount(rank, weights=np.minimum(filled, limit), minlength=net.num_ranks)
    return np.asarray(found, dtype=np.float64)


def _distinct(net: Net, resource: IntArray, ends: IntArray) -> IntArray:
    """Number of different ranks that use each resource, [resource]."""
    pairs = np.sort(resource * net.num_ranks + ends)  # what np.unique does takes ten times as long with so many
    first = np.flatnonzero(np.diff(pairs, prepend=-1))
    found: IntArray = np.bincount(pairs[first] // net.num_ranks, minlength=len(net.alpha_us))
    return found


def _own_shards(share: FloatArray, rate: FloatArray, num_nodes: int, total: float) -> FloatArray:
    """Chunks of all data that the gates of a rail own, so that they are done at the same time, [gate]."""
    if num_nodes == 2:
        return rate
    low, high = 0.0, float(((share + total * num_nodes) / rate).max())
    for _ in range(PARAMS.shard_halvings):
        time = (low + high) / 2
        filled = np.maximum(0.0, time * rate - share).sum() / (num_nodes - 2)
        low, high = (time, high) if filled < total else (low, time)
    return np.maximum(0.0, high * rate - share)


def _gates(
    members: Sequence[Sequence[int]], rails: Sequence[Sequence[int]], owned: IntArray, share: FloatArray
) -> IntArray:
    """Gates: the rank of each node that serves each owner, [node, owner]."""
    found = np.full((len(members), len(owned)), -1, dtype=np.int64)
    total = int(owned.sum())
    local = {rank: place for ranks in members for place, rank in enumerate(ranks)}
    for node, ranks in enumerate(members):
        room = {rank: float(share[rank] * total) for rank in ranks}
        left: list[int] = []
        for rail in rails:
            place = local[rail[0]]
            home = ranks[place] if place < len(ranks) else ranks[0]
            for owner in rail:
                # A node's own owners stand for themselves; elsewhere the rank of the same rail, as far as it goes.
                gate = owner if owner in room else home
                if owner not in room and room[home] < owned[owner] / 2:
                    left.append(owner)
                    continue
                found[node, owner] = gate
                room[gate] -= float(owned[owner])
        gate = -1
        for owner in left:
            # Neighbours in the buffers stay together as long as the rank has room.
            if room.get(gate, 0.0) < owned[owner] / 2:
                gate = max(ranks, key=lambda r: (room[r], -r))
            found[node, owner] = gate
            room[gate] -= float(owned[owner])
    return found
