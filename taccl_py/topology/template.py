"""One node of a machine, written once, and the machine that any number of such nodes make.

A template says what a node has: direct links, switches, NICs, and further ports that links share. `instantiate` turns it
into a `Topology`, by these rules:

* A switch joins each of its ranks to each other one. All links leaving a rank share the rank's port *out*, all links
  reaching it share its port *in*; links and ports have the switch's cost.
* A NIC and every further port are full duplex: a port *out* and a port *in*, which do not disturb each other.
* Between nodes there is a link from rank u to rank v for every NIC that serves u and every NIC of the same plane that serves
  v. Its cost is the larger alpha and the larger beta of the two NICs; it shares, in this order, what lies between u and its NIC, that
  NIC's port out, the other NIC's port in, and what lies between that NIC and v.

A port that no link shares is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from taccl_py.errors import InputError
from taccl_py.topology.model import GPUS_TOGETHER, Link, Medium, Port, Switch, Topology

MAX_LINKS = 5_000_000  # about 2 GB of records; more is a typing error rather than a machine
MAX_WIDTH = 1024  # parallel links


class Side(StrEnum):
    """The two directions of a full duplex port, as seen from its node."""

    OUT = "out"
    IN = "in"

    @property
    def opposite(self) -> Side:
        """The other direction."""
        return Side.IN if self is Side.OUT else Side.OUT


class NetworkReach(StrEnum):
    """Ranks of two nodes that the network joins."""

    ALL = "all"
    RAIL = "rail"


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Time that a message occupies something: ``alpha_us + beta_us_per_mb * megabytes``."""

    alpha_us: float
    beta_us_per_mb: float


@dataclass(frozen=True, slots=True)
class PortSide:
    """One direction of a further port of the node, by the port's name."""

    port: str
    side: Side


@dataclass(frozen=True, slots=True)
class NodeLink:
    """One directed link inside the node.

    Attributes
    ----------
    src, dst
        Local ranks.
    cost
        Time that a message occupies it.
    latency_us
        Propagation after that, which occupies nothing.
    ports
        Directions of further ports that it shares, the sender's side first.
    """

    src: int
    dst: int
    cost: AlphaBeta
    latency_us: float = 0.0
    ports: tuple[PortSide, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePort:
    """A full duplex port that is neither a switch's nor a NIC's: a PCIe uplink, for instance."""

    name: str
    cost: AlphaBeta


@dataclass(frozen=True, slots=True)
class NodeSwitch:
    """A switch inside the node.

    Attributes
    ----------
    name
        Name, unique in the node.
    ranks
        Local ranks that it joins.
    cost
        Cost of each of its links and of each of its ports.
    multicast, reduce
        Whether the device can copy a message to several ranks, or add messages of several ranks; see `Switch`.
    rank_costs
        Ranks whose ports have another cost than the others, as where a link of theirs is lost. A link between two ranks
        has the larger alpha and the larger beta of both.
    """

    name: str
    ranks: tuple[int, ...]
    cost: AlphaBeta
    multicast: bool = False
    reduce: bool = False
    rank_costs: tuple[tuple[int, AlphaBeta], ...] = ()

    def cost_of(self, rank: int) -> AlphaBeta:
        """Cost of the two ports of a rank."""
        return next((cost for other, cost in self.rank_costs if other == rank), self.cost)


@dataclass(frozen=True, slots=True)
class Nic:
    """A network port of the node.

    Attributes
    ----------
    name
        Name, unique in the node.
    ranks
        Local ranks that use it.
    cost
        Cost of each of its two directions.
    via
        For a local rank, the further ports between it and the NIC, the rank's side first, each with the direction that
        sending uses; receiving uses the opposite one.
    plane
        Network that it is on; only NICs of one plane reach each other.
    """

    name: str
    ranks: tuple[int, ...]
    cost: AlphaBeta
    via: Mapping[int, tuple[PortSide, ...]] = field(default_factory=dict)
    plane: str = ""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """Network between the nodes.

    Attributes
    ----------
    reach
        Whether a rank reaches every rank of another node, or only the one with its own local number.
    latency_us
        Propagation between nodes, which occupies nothing.
    """

    reach: NetworkReach = NetworkReach.ALL
    latency_us: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """One node of a machine.

    Attributes
    ----------
    name, description, source
        Name of the machine, one sentence about it, and where its figures come from.
    num_ranks
        Ranks of a node; local ranks are 0..num_ranks-1.
    links, switches, nics, ports
        Links, switches, ports and NICs of the node.
    symmetry
        Permutations of the local ranks that leave links and switches as they are. Where there are several nodes, those
        that would make the NICs others are not used.
    network
        Network between nodes; unused without NICs.
    inside
        Medium that joins the ranks of a node; of several the worst.
    gpu
        Model of the GPUs, such as ``a100``; empty if unknown.
    near_nics
        True if NICs write into the memory of GPUs themselves, over PCIe switches alone.
    """

    name: str
    description: str
    source: str
    num_ranks: int
    links: tuple[NodeLink, ...] = ()
    switches: tuple[NodeSwitch, ...] = ()
    nics: tuple[Nic, ...] = ()
    ports: tuple[NodePort, ...] = ()
    symmetry: tuple[tuple[int, ...], ...] = ()
    network: NodeNetwork = NodeNetwork()
    inside: Medium = Medium.UNKNOWN
    gpu: str = ""
    near_nics: bool = False

    @property
    def num_local_links(self) -> int:
        """Links inside one node."""
        return len(self.links) + sum(len(switch.ranks) * (len(switch.ranks) - 1) for switch in self.switches)

    @property
    def num_links_between(self) -> int:
        """Links from one node to one other."""
        serving = Counter((nic.plane, rank) for nic in self.nics for rank in nic.ranks)
        if self.network.reach is NetworkReach.RAIL:
            return sum(count * count for count in serving.values())
        on_plane: Counter[str] = Counter()
        for (plane, _), count in serving.items():
            on_plane[plane] += count
        return sum(count * count for count in on_plane.values())


class PortTable:
    """Ports by name, numbered in the order in which links first ask for them."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._ports: list[Port] = []

    def index(self, name: str, cost: AlphaBeta) -> int:
        """Return the number of the port with this name, made at the first call.

        Parameters
        ----------
        name
            Name for people.
        cost
            Its cost; of no importance when the port exists.
        """
        if name not in self._index:
            self._index[name] = len(self._ports)
            self._ports.append(Port(name, cost.alpha_us, cost.beta_us_per_mb))
        return self._index[name]

    @property
    def ports(self) -> tuple[Port, ...]:
        """All of them, in the order of their numbers."""
        return tuple(self._ports)


def instantiate(template: NodeTemplate, nodes: int = 1) -> Topology:
    """Return the machine of so many equal nodes.

    Rank ``node * num_ranks + local`` is local rank ``local`` of the node. The symmetry of the result is the template's,
    applied in every node at once, and, for several nodes, their rotation.

    Parameters
    ----------
    template
        The node.
    nodes
        How many of them, at least 1.

    Raises
    ------
    InputError
        If there cannot be so many nodes, or if the template refers to a rank that it does not have.
    """
    if nodes < 1:
        raise InputError(f"found {nodes} nodes, at least 1 is needed")
    if nodes > 1 and not template.nics:
        raise InputError(f"{template.name} has no NICs that could join {nodes} nodes; ask for 1 node")
    num_links = nodes * template.num_local_links + nodes * (nodes - 1) * template.num_links_between
    if num_links > MAX_LINKS:
        raise InputError(
            f"{nodes} nodes of {template.name} have {num_links} links, more than {MAX_LINKS}; use fewer nodes"
        )
    local = template.symmetry if nodes == 1 else tuple(g for g in template.symmetry if _keeps_nics(template, g))
    return _assemble(
        [template] * nodes,
        template.name if nodes == 1 else f"{template.name}-x{nodes}",
        repeat_symmetry(local, template.num_ranks, nodes),
    )


def join_nodes(templates: Sequence[NodeTemplate], name: str) -> Topology:
    """Return the machine of these nodes, which need not be alike; ranks are numbered node by node.

    Nodes that are all equal are what `instantiate` makes. Of others the network is rails if any is, with the longest latency; their
    symmetry is to turn each sort of nodes, all at once, and what is symmetry in all nodes.

    Parameters
    ----------
    templates
        One for each node, at least one.
    name
        Name of the machine.

    Raises
    ------
    InputError
        If a node has no NIC, if there would be too many links, or if ranks are joined by their local number and a node has
        more of them than another.
    """
    if all(template == templates[0] for template in templates):
        return instantiate(templates[0], len(templates))
    for number, template in enumerate(templates):
        if not template.nics:
            raise InputError(f"node {number} ({template.name}) has no NIC that could join it to the others")
    sizes = {template.num_ranks for template in templates}
    if _joint_network(templates).reach is NetworkReach.RAIL and len(sizes) > 1:
        raise InputError(f"nodes have {' and '.join(map(str, sorted(sizes)))} ranks, on rails all have the same number")
    nic_ranks = sum(len(nic.ranks) for template in templates for nic in template.nics)
    num_links = nic_ranks * nic_ranks + sum(template.num_local_links for template in templates)
    if num_links > MAX_LINKS:
        raise InputError(f"these nodes have up to {num_links} links, more than {MAX_LINKS}; use fewer nodes")
    return _assemble(templates, name, _joint_symmetry(templates))


def _joint_network(templates: Sequence[NodeTemplate]) -> NodeNetwork:
    """Network between nodes that may differ: it reaches as far as the least of theirs, and takes as long as the slowest."""
    rail = any(template.network.reach is NetworkReach.RAIL for template in templates)
    return NodeNetwork(
        NetworkReach.RAIL if rail else NetworkReach.ALL, max(template.network.latency_us for template in templates)
    )


def _joint_symmetry(templates: Sequence[NodeTemplate]) -> tuple[tuple[int, ...], ...]:
    """Generators of the symmetry of nodes that differ: what moves the ranks of all nodes at once, and a turn of each sort at once."""
    base = [0, *accumulate(template.num_ranks for template in templates)]
    found = [
        tuple(start + rank for start, image in zip(base, images, strict=False) for rank in image)
        for images in _moves_of_all(templates)
    ]
    turned = list(range(len(templates)))
    for number, template in enumerate(templates):
        alike = [other for other, one in enumerate(templates) if one == template]
        turned[number] = alike[(alike.index(number) + 1) % len(alike)]
    if turned != list(range(len(templates))):
        found.append(
            tuple(base[turned[node]] + rank for node, t in enumerate(templates) for rank in range(t.num_ranks))
        )
    return tuple(found)


def _moves_of_all(templates: Sequence[NodeTemplate]) -> Iterator[list[tuple[int, ...]]]:
    """Symmetries that move ranks of all nodes, as the image of the local ranks of every node: first those that all nodes have.

    Where every rank reaches all other nodes, nodes may also move each in its own way. They return after the same number of steps, so
    that none stays in place while others move: engine trees repeats its trees by such symmetries alone.
    """
    sorts = [template for number, template in enumerate(templates) if template not in templates[:number]]
    kept = [[image for image in sort.symmetry if _keeps_nics(sort, image)] for sort in sorts]
    common = [image for image in kept[0] if all(image in images for images in kept)]
    yield from ([image] * len(templates) for image in common)
    if _joint_network(templates).reach is not NetworkReach.ALL:
        return
    first, *others = ([image for image in images if image not in common] for images in kept)
    for image in first:
        chosen = [image]
        for images in others:
            steps = math.gcd(*map(_order, chosen))
            chosen += sorted(images, key=lambda other: -math.gcd(steps, _order(other)))[:1]
        steps = math.gcd(*map(_order, chosen))
        if len(chosen) == len(sorts) and steps > 1:
            for images, used in zip(others, chosen[1:], strict=True):
                images.remove(used)
            moved = [_repeated(one, _order(one) // steps) for one in chosen]
            yield [moved[sorts.index(template)] for template in templates]


def _order(image: tuple[int, ...]) -> int:
    """Times that a permutation has to be repeated until all are in their places."""
    times, at = 1, image
    while at != tuple(range(len(image))):
        times, at = times + 1, tuple(image[rank] for rank in at)
    return times


def _repeated(image: tuple[int, ...], times: int) -> tuple[int, ...]:
    at = tuple(range(len(image)))
    for _ in range(times):
        at = tuple(image[rank] for rank in at)
    return at


def _assemble(templates: Sequence[NodeTemplate], name: str, symmetry: tuple[tuple[int, ...], ...]) -> Topology:
    builder = _Builder(templates)
    numbers = range(len(templates))
    for node in numbers:
        builder.add_node(node)
    for here in numbers:
        for there in numbers:
            if here != there:
                builder.join(here, there)
    gpus = {template.gpu for template in templates}
    return Topology(
        name=name,
        source="; ".join(dict.fromkeys(template.source for template in templates)),
        node_of=tuple(node for node in numbers for _ in range(templates[node].num_ranks)),
        ports=builder.table.ports,
        links=tuple(builder.links),
        symmetry=symmetry,
        switches=tuple(builder.switches),
        inside=max((template.inside for template in templates), key=list(Medium).index),
        gpu="" if "" in gpus else GPUS_TOGETHER.join(sorted(gpus)),
        # What is safe between GPUs of one model need not be between two.
        near_nics=all(template.near_nics for template in templates) and len(gpus) == 1,
    )


def repeat_symmetry(local: tuple[tuple[int, ...], ...], num_ranks: int, nodes: int) -> tuple[tuple[int, ...], ...]:
    """Generators of the symmetry of equal nodes: each local one in all nodes at once, then the rotation of the nodes.

    Parameters
    ----------
    local
        Permutations of the local ranks.
    num_ranks
        Ranks of a node.
    nodes
        Number of nodes; one node is not rotated.
    """
    total = nodes * num_ranks
    everywhere = tuple(
        tuple(node * num_ranks + image[rank] for node in range(nodes) for rank in range(num_ranks)) for image in local
    )
    rotation = tuple((rank + num_ranks) % total for rank in range(total))
    return everywhere if nodes == 1 else (*everywhere, rotation)


def _keeps_nics(template: NodeTemplate, image: tuple[int, ...]) -> bool:
    """True if renaming local rank r to ``image[r]`` makes each NIC, with what lies before it, one of the NICs."""
    cost_of = {port.name: port.cost for port in template.ports}
    new_name: dict[str, str] = {}
    taken: set[int] = set()
    for nic in template.nics:
        ranks = {image[rank] for rank in nic.ranks}
        match = next(
            (
                i
                for i, other in enumerate(template.nics)
                if i not in taken and set(other.ranks) == ranks and other.plane == nic.plane
            ),
            None,
        )
        if match is None or template.nics[match].cost != nic.cost:
            return False
        taken.add(match)
        for rank in nic.ranks:
            old, new = nic.via.get(rank, ()), template.nics[match].via.get(image[rank], ())
            if len(old) != len(new):
                return False
            for use, other in zip(old, new, strict=True):
                if use.side is not other.side or new_name.setdefault(use.port, other.port) != other.port:
                    return False
                if cost_of[use.port] != cost_of[other.port]:
                    return False
    return True


class _Builder:
    """Collects the links and ports of a machine."""

    def __init__(self, templates: Sequence[NodeTemplate]) -> None:
        self.templates = templates
        self.table = PortTable()
        self.links: list[Link] = []
        self.switches: list[Switch] = []
        self._network = _joint_network(templates)
        self._cost_of = [{port.name: port.cost for port in template.ports} for template in templates]
        self._serving = [
            [[nic for nic in template.nics if rank in nic.ranks] for rank in range(template.num_ranks)]
            for template in templates
        ]
        self._base = [0, *accumulate(template.num_ranks for template in templates)]
        # Ports between a rank and the network, which all its links to other nodes share.
        self._ways_out: dict[tuple[int, int, str], tuple[int, ...]] = {}
        self._ways_in: dict[tuple[int, int, str], tuple[int, ...]] = {}

    def add_node(self, node: int) -> None:
        """Add the links inside one node."""
        base, template = self._base[node], self.templates[node]
        for link in template.links:
            ports = tuple(self._further(node, use.port, use.side) for use in link.ports)
            cost = link.cost
            self.links.append(
                Link(base + link.src, base + link.dst, cost.alpha_us, cost.beta_us_per_mb, link.latency_us, ports)
            )
        for switch in template.switches:
            self._add_switch(node, switch)

    def _add_switch(self, node: int, switch: NodeSwitch) -> None:
        base = self._base[node]
        if switch.multicast or switch.reduce:
            ranks = tuple(sorted(base + rank for rank in switch.ranks))
            self.switches.append(Switch(f"node {node} {switch.name}", ranks, switch.multicast, switch.reduce))
        for src in switch.ranks:
            for dst in switch.ranks:
                if src == dst:
                    continue
                sender, receiver = switch.cost_of(src), switch.cost_of(dst)
                ports = (
                    self.table.index(f"node {node} rank {base + src} {switch.name} {Side.OUT}", sender),
                    self.table.index(f"node {node} rank {base + dst} {switch.name} {Side.IN}", receiver),
                )
                alpha_us = max(sender.alpha_us, receiver.alpha_us)
                beta_us_per_mb = max(sender.beta_us_per_mb, receiver.beta_us_per_mb)
                self.links.append(Link(base + src, base + dst, alpha_us, beta_us_per_mb, ports=ports))

    def join(self, here: int, there: int) -> None:
        """Add the links from one node to another."""
        rail = self._network.reach is NetworkReach.RAIL
        for src in range(self.templates[here].num_ranks):
            for dst in (src,) if rail else range(self.templates[there].num_ranks):
                for sender in self._serving[here][src]:
                    for receiver in (nic for nic in self._serving[there][dst] if nic.plane == sender.plane):
                        ports = (*self._way_out(here, src, sender), *self._way_in(there, dst, receiver))
                        self._add_remote(self._base[here] + src, self._base[there] + dst, sender, receiver, ports)

    def _add_remote(self, src: int, dst: int, sender: Nic, receiver: Nic, ports: tuple[int, ...]) -> None:
        alpha_us = max(sender.cost.alpha_us, receiver.cost.alpha_us)
        beta_us_per_mb = max(sender.cost.beta_us_per_mb, receiver.cost.beta_us_per_mb)
        self.links.append(Link(src, dst, alpha_us, beta_us_per_mb, self._network.latency_us, ports))

    def _way_out(self, node: int, rank: int, nic: Nic) -> tuple[int, ...]:
        found = self._ways_out.get((node, rank, nic.name))
        if found is None:
            before = (self._further(node, use.port, use.side) for use in nic.via.get(rank, ()))
            found = (*before, self.table.index(f"node {node} {nic.name} {Side.OUT}", nic.cost))
            self._ways_out[node, rank, nic.name] = found
        return found

    def _way_in(self, node: int, rank: int, nic: Nic) -> tuple[int, ...]:
        found = self._ways_in.get((node, rank, nic.name))
        if found is None:
            after = (self._further(node, use.port, use.side.opposite) for use in reversed(nic.via.get(rank, ())))
            found = (self.table.index(f"node {node} {nic.name} {Side.IN}", nic.cost), *after)
            self._ways_in[node, rank, nic.name] = found
        return found

    def _further(self, node: int, name: str, side: Side) -> int:
        return self.table.index(f"node {node} {name} {side}", self._cost_of[node][name])
