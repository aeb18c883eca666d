"""Switched fabrics and clusters by formula: dragonflies, fat trees, racks, rail-optimised nodes.

Ranks sit behind a NIC of their own, and paths through switches are fixed: a link of the topology is one pair of ranks with the
ports that its path shares. A channel that can never be what holds its traffic up (because all of it goes on to one NIC that is
as slow) is left out.

Sources. Dragonfly: Kim, Dally, Scott, Abts, "Technology-driven, highly-scalable dragonfly topology" (ISCA 2008), balanced
(a = 2p = 2h), one channel between any two groups, minimal paths. Fat tree: Al-Fares, Loukissas, Vahdat, "A scalable, commodity
data center network architecture" (SIGCOMM 2008), with the path up chosen by the receiver's number (D-mod-k). HPN: Qian et al.,
"Alibaba HPN" (SIGCOMM 2024): 8 GPUs a node, 8 NICs of two 200 Gb/s ports, which go to two planes; H800: 400 GB/s of NVLink in
both directions together. GB200 NVL72: NVIDIA's data sheet, 72 GPUs, 1.8 TB/s of NVLink each in both directions together, a
400 Gb/s NIC each. Alphas of clusters are those that TACCL measured on a DGX-2 (0.3 us NVSwitch, 2.6 us InfiniBand).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from taccl_py.topology.model import Medium
from taccl_py.topology.template import (
    AlphaBeta,
    NetworkReach,
    Nic,
    NodeLink,
    NodeNetwork,
    NodePort,
    NodeSwitch,
    NodeTemplate,
    PortSide,
    Side,
)

NVSWITCH_ALPHA_US, NIC_ALPHA_US = 0.3, 2.6
_GBPS_US_PER_MB = 1000.0


@dataclass(frozen=True, slots=True)
class NodeParts:
    """Parts of a machine of one node: ranks, links, switches, ports and symmetry."""

    num_ranks: int
    links: tuple[NodeLink, ...] = ()
    switches: tuple[NodeSwitch, ...] = ()
    symmetry: tuple[tuple[int, ...], ...] = ()
    ports: tuple[NodePort, ...] = ()


def rotation(num_ranks: int, by: int = 1) -> tuple[int, ...]:
    """Permutation that takes every rank so many ranks on, around the end."""
    return tuple((rank + by) % num_ranks for rank in range(num_ranks))


def dragonfly_ranks(outgoing: int) -> int:
    """Number of ranks of a balanced dragonfly whose routers have so many channels to other groups."""
    return 2 * outgoing * outgoing * (2 * outgoing * outgoing + 1)


def dragonfly(outgoing: int, cost: AlphaBeta) -> NodeParts:
    """Balanced dragonfly: `outgoing` ranks and channels to other groups for each of a group's ``2 * outgoing`` routers.

    Channel ``c`` of a group goes ``c + 1`` groups on, and belongs to router ``c // outgoing``.
    """
    per_router, routers = outgoing, 2 * outgoing
    channels = routers * outgoing
    groups, per_group = channels + 1, routers * per_router
    num_ranks = groups * per_group

    def between(group: int, one: int, two: int) -> list[str]:
        return [] if one == two else [f"group {group} router {one} to {two}"]

    def path(src: int, dst: int) -> list[str]:
        here, there = src // per_group, dst // per_group
        first, last = src % per_group // per_router, dst % per_group // per_router
        if here == there:
            return between(here, first, last)
        leaves = ((there - here) % groups - 1) // outgoing
        enters = ((here - there) % groups - 1) // outgoing
        return [
            *between(here, first, leaves),
            f"group {here} to {there}",
            *between(there, enters, last),
        ]

    paths = ((src, dst, path(src, dst)) for src, dst in itertools.permutations(range(num_ranks), 2))
    around = rotation(num_ranks, per_group)
    beside = tuple(rank // per_router * per_router + (rank % per_router + 1) % per_router for rank in range(num_ranks))
    return _switched(num_ranks, paths, cost, (beside, around) if per_router > 1 else (around,))


def fat_tree_ranks(ports: int) -> int:
    """Number of ranks of a fat tree of switches with so many ports."""
    return ports**3 // 4


def fat_tree(ports: int, cost: AlphaBeta) -> NodeParts:
    """Three-level fat tree of switches with `ports` ports: as many pods, of half as many switches at each level."""
    half = ports // 2
    num_ranks = fat_tree_ranks(ports)

    def path(src: int, dst: int) -> list[str]:
        pod, edge = src // (half * half), src // half % half
        dst_pod, dst_edge, dst_host = dst // (half * half), dst // half % half, dst % half
        if src // half == dst // half:
            return []
        up = [f"pod {pod} edge {edge} up {dst_host}"]
        return up if pod == dst_pod else [*up, f"pod {pod} aggregation {dst_host} up {dst_edge}"]

    def renamed(pods: int, edges: int, hosts: int) -> tuple[int, ...]:
        places = itertools.product(range(ports), range(half), range(half))
        return tuple(((p + pods) % ports * half + (e + edges) % half) * half + (h + hosts) % half for p, e, h in places)

    paths = ((src, dst, path(src, dst)) for src, dst in itertools.permutations(range(num_ranks), 2))
    return _switched(num_ranks, paths, cost, (renamed(1, 0, 0), renamed(0, 1, 0), renamed(0, 0, 1)))


def _switched(
    num_ranks: int, paths: Iterator[tuple[int, int, list[str]]], cost: AlphaBeta, symmetry: tuple[tuple[int, ...], ...]
) -> NodeParts:
    """Links along the given paths, each through the sender's NIC, the channels named, and the receiver's NIC.

    A message holds the NICs for its alpha too; switches pass messages on without one.
    """
    names = [f"nic {rank}" for rank in range(num_ranks)]
    channels: dict[str, PortSide] = {}
    outs = [PortSide(name, Side.OUT) for name in names]
    ins = [PortSide(name, Side.IN) for name in names]
    links = []
    for src, dst, path in paths:
        between = (channels.setdefault(name, PortSide(name, Side.OUT)) for name in path)
        links.append(NodeLink(src, dst, cost, ports=(outs[src], *between, ins[dst])))
    passing = AlphaBeta(0.0, cost.beta_us_per_mb)
    ports = (*(NodePort(name, cost) for name in names), *(NodePort(name, passing) for name in channels))
    return NodeParts(num_ranks, tuple(links), symmetry=symmetry, ports=ports)


def rail_nodes(
    name: str,
    ranks: int,
    nvlink_gbps: float,
    nic_gbps: float,
    planes: int = 1,
    nvlink_alpha_us: float = NVSWITCH_ALPHA_US,
    nic_alpha_us: float = NIC_ALPHA_US,
) -> NodeTemplate:
    """One node of a rail-optimised cluster: ranks on a switch, each with NICs that reach only its own number elsewhere.

    Parameters
    ----------
    name
        Name of the machine.
    ranks
        Ranks of a node.
    nvlink_gbps, nic_gbps
        Bandwidth of a rank on the switch and to the network, in each direction.
    planes
        Networks without a path between them; a rank has a NIC on each, and its bandwidth is dealt out to them.
    nvlink_alpha_us, nic_alpha_us
        Time of the smallest message on the switch and over a NIC.
    """
    nics = tuple(
        Nic(
            f"nic{rank}" if planes == 1 else f"nic{rank} plane {plane}",
            (rank,),
            AlphaBeta(nic_alpha_us, _GBPS_US_PER_MB * planes / nic_gbps),
            plane=str(plane) if planes > 1 else "",
        )
        for rank in range(ranks)
        for plane in range(planes)
    )
    switch = NodeSwitch("nvswitch", tuple(range(ranks)), AlphaBeta(nvlink_alpha_us, _GBPS_US_PER_MB / nvlink_gbps))
    return NodeTemplate(
        name=name,
        description=f"{ranks} GPUs on NVSwitch, rails of {nic_gbps:g} GB/s",
        source=f"nominal rates, {nvlink_gbps:g} GB/s on NVSwitch and {nic_gbps:g} GB/s of NIC per GPU (taccl_py/topology/fabrics.py); "
        "alphas are assumed",
        num_ranks=ranks,
        switches=(switch,),
        nics=nics,
        symmetry=(rotation(ranks),),
        network=NodeNetwork(NetworkReach.RAIL),
        inside=Medium.NVLINK,
    )
