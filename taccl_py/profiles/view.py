"""A machine as a runtime profile sees it: usable rates, and the machine that engines search on for one protocol."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile
from taccl_py.topology.model import Link, Medium, Port, Topology
from taccl_py.units import BYTES_PER_MB

_GB_PER_S_US = 1000.0  # a rate of 1 GB/s is 1000 bytes per microsecond


def is_far(topology: Topology, src: int, dst: int) -> bool:
    """True if a message between two ranks goes over NICs."""
    return topology.node_of[src] != topology.node_of[dst] or topology.inside is Medium.NETWORK


@dataclass(frozen=True, slots=True)
class Usable:
    """Usable parts of the topology's rates, between 0 and 1, of what lies inside nodes and of what only messages between nodes use."""

    near: float
    far: float


def usable_shares(topology: Topology, profile: RuntimeProfile) -> Usable:
    """Usable parts of the rates of a machine under a profile."""
    return Usable(_near_factor(topology, profile), _far_factor(profile))


def switch_share(topology: Topology, profile: RuntimeProfile) -> float:
    """Usable part of the rates inside nodes, between 0 and 1, for what switches multicast and add up."""
    if "nvls" in profile.shares and topology.inside is Medium.NVLINK:
        return profile.shares["nvls"].factor(gpu_gbps(topology))
    return _near_factor(topology, profile)


def serial_alphas(topology: Topology) -> tuple[bool, ...]:
    """For every resource, links first, whether the alphas of its messages follow each other.

    Those of NICs do. NVLink and its switches pass on packets of many messages among each other: the alpha is a latency that
    messages have side by side. AllReduce by packets of 8 to 72 KiB on 8 H100 takes x0.95 to x1.1 of its published time so, and x1.5
    to x1.7 with 7 alphas of a rank's port one after the other.
    """
    return tuple(far or topology.inside is not Medium.NVLINK for far in far_resources(topology))


def far_resources(topology: Topology) -> tuple[bool, ...]:
    """For every resource, links first, whether only messages between nodes use it: links between nodes, and NICs."""
    of_links = [is_far(topology, link.src, link.dst) for link in topology.links]
    of_ports = [True] * len(topology.ports)
    for link, far in zip(topology.links, of_links, strict=True):
        if not far:
            for port in link.ports:
                of_ports[port] = False
    return (*of_links, *of_ports)


def _far_factor(profile: RuntimeProfile) -> float:
    return profile.shares["nic"].factor(0) if "nic" in profile.shares else 1.0


def _near_factor(topology: Topology, profile: RuntimeProfile) -> float:
    of_gpu = (
        "nvlink",
        "xgmi",
    )  # where nothing says what joins the GPUs, too: their links are what their machines mostly have
    names = {Medium.NVLINK: of_gpu, Medium.UNKNOWN: of_gpu, Medium.PCIE: ("pcie",)}.get(topology.inside, ())
    for name in names:
        if name in profile.shares:
            rate = _link_gbps(topology) if name == "xgmi" else gpu_gbps(topology)
            return profile.shares[name].factor(rate)
    return 1.0


def _near_links(topology: Topology) -> Iterable[Link]:
    return (link for link in topology.links if topology.is_inside(link))


def _link_gbps(topology: Topology) -> float:
    """Rate of the narrowest link inside nodes: of one xGMI link."""
    return 1000 / max((link.beta_us_per_mb for link in _near_links(topology)), default=math.inf)


def gpu_gbps(topology: Topology) -> float:
    """Most that a rank can send inside its node; links that share a port count once."""
    betas: dict[int, dict[tuple[bool, int], float]] = {}
    for index, link in enumerate(topology.links):
        if topology.is_inside(link):
            place = (True, link.ports[0]) if link.ports else (False, index)
            beta = topology.ports[link.ports[0]].beta_us_per_mb if link.ports else link.beta_us_per_mb
            betas.setdefault(link.src, {})[place] = beta
    rates = [sum(1000 / beta for beta in of_rank.values() if beta > 0) for of_rank in betas.values()]
    return max(rates, default=0.0)


def with_alphas_side_by_side(topology: Topology) -> Topology:
    """The machine on which alphas that do not follow each other are latencies of messages: bounds under a profile are found on it."""
    serial, costs = serial_alphas(topology), topology.resource_cost
    if all(serial):
        return topology
    links = []
    for index, (link, resources) in enumerate(zip(topology.links, topology.resources_of, strict=True)):
        alpha_us = max((costs[each][0] for each in resources if not serial[each]), default=0.0)
        links.append(link if serial[index] else replace(link, alpha_us=0.0, latency_us=link.latency_us + alpha_us))
    first = len(topology.links)
    ports = tuple(
        port if serial[first + index] else replace(port, alpha_us=0.0) for index, port in enumerate(topology.ports)
    )
    return replace(topology, links=tuple(links), ports=ports)


def machine_under(topology: Topology, profile: RuntimeProfile, protocol: str, instances: int = 1) -> Topology:
    """The machine that engines search on for a protocol and a number of instances.

    A message occupies its link for the fixed cost of its operation, arrives a hop later, and moves at the usable rate of the
    wires or at that of the threadblocks that feed a link, whichever is less, each byte with its share of flags. Ports keep
    their alphas. Under the neutral profile it is the topology itself.

    Parameters
    ----------
    topology
        The machine.
    profile
        The runtime profile.
    protocol
        One of its protocols.
    instances
        Threadblocks that feed one link at a time.

    Raises
    ------
    InputError
        If the profile does not have the protocol.
    """
    if profile.is_neutral:
        return topology
    costs = profile.costs_of(protocol)
    return _changed(topology, profile, costs, costs.tb_gbps * instances)


def _changed(topology: Topology, profile: RuntimeProfile, costs: ProtocolCosts, feed_gbps: float) -> Topology:
    usable, far_of = usable_shares(topology, profile), far_resources(topology)
    feed_beta = BYTES_PER_MB / (_GB_PER_S_US * feed_gbps)
    first_port = len(topology.links)

    def beta(resource: int, own: float) -> float:
        return own * costs.wire / (usable.far if far_of[resource] else usable.near)

    links = []
    for index, link in enumerate(topology.links):
        far = is_far(topology, link.src, link.dst)
        hop_us = costs.hop_far_us if far else costs.hop_near_us
        latency_us, alpha_us = max(link.latency_us, hop_us), max(link.alpha_us, costs.op_us)
        rate = max(beta(index, link.beta_us_per_mb), feed_beta)
        links.append(replace(link, alpha_us=alpha_us, beta_us_per_mb=rate, latency_us=latency_us))
    ports = tuple(
        Port(port.name, port.alpha_us, beta(first_port + index, port.beta_us_per_mb))
        for index, port in enumerate(topology.ports)
    )
    return replace(topology, links=tuple(links), ports=ports)


def with_links_for_sums(machine: Topology, costs: ProtocolCosts, instances: int = 1) -> Topology:
    """The machine with two links for each: the first, 2 i of link i, for what is stored, and the second for what is added up.

    The receiver adds up by a step of its own. Both take turns: they share a port that costs what the link does.

    Parameters
    ----------
    machine
        The machine as a protocol sees it, of `machine_under`.
    costs
        Costs of the protocol.
    instances
        Threadblocks that add up what comes over one link at a time.
    """
    beta = 2 * BYTES_PER_MB / (_GB_PER_S_US * costs.reduce_gbps * instances)
    links, turns = list[Link](), list[Port]()
    for index, each in enumerate(machine.links):
        turns.append(Port(f"turns of link {index}", each.alpha_us, each.beta_us_per_mb))
        stores = replace(each, ports=(*each.ports, len(machine.ports) + index))
        adds = replace(stores, alpha_us=each.alpha_us + costs.reduce_us, beta_us_per_mb=each.beta_us_per_mb + beta)
        links += [stores, adds]
    return replace(machine, links=tuple(links), ports=(*machine.ports, *turns), symmetry=())
