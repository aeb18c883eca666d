"""TACCL's own topology profiles, read unchanged.

A profile says what one chunk costs on each link of a node and between nodes; which ranks are linked between nodes, and which
share a switch, is said by the sketch. The size of the chunk is the field ``chunk_bytes``, which TACCL passes over, else what
the name ends in, as in TACCL's own files (``NDv2_1MB``, ``DGX2_32KB``), else 1 MB. Times are microseconds, or so many of them
as the field ``unit_us`` says.

TACCL names the kind of the machine on its command line. It follows from the fields: two betas are NDv2 (the hybrid cube
mesh of a DGX-1), one beta is a machine in which every pair is linked (DGX2, HubAndSpoke), matrices are a custom machine.

So that a profile is a machine like any other, beta becomes that of a megabyte. On a link inside the node alpha is
``invbw - beta``, so that one chunk costs ``invbw``; between nodes alpha is ``remote_alpha`` and beta is ``remote_beta`` times
the share of a NIC that TACCL gives to a link, ``connections / nics_per_node``. Nothing is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, read_json
from taccl_py.topology.files import require_connected
from taccl_py.topology.model import Link, Topology
from taccl_py.topology.template import MAX_LINKS, MAX_WIDTH, AlphaBeta, PortTable, repeat_symmetry
from taccl_py.units import BYTES_PER_MB, MAX_COST_US, MAX_RANKS, MAX_SIZE_BYTES, parse_size

NDV2_RANKS = 8
# Size at the end of a profile's name; without a B it is some other number.
_NAMED_SIZE = re.compile(r"_([0-9]+(?:\.[0-9]+)?[KMG]?B)$", re.IGNORECASE)
_NDV2_FAST = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_NDV2_SLOW = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))


@dataclass(frozen=True, slots=True)
class ProfileLink:
    """Parallel links from one local rank to another.

    Attributes
    ----------
    src, dst
        Local ranks.
    cost
        Cost of one of them.
    width
        How many there are.
    """

    src: int
    dst: int
    cost: AlphaBeta
    width: int = 1


@dataclass(frozen=True, slots=True)
class ProfileRemote:
    """Links between nodes, as the profile describes them.

    Attributes
    ----------
    cost
        Cost of a NIC that nobody shares.
    nics_per_node
        NICs of a node.
    """

    cost: AlphaBeta
    nics_per_node: int


@dataclass(frozen=True, slots=True)
class _ProfileUnits:
    """Size and time that the figures of a profile count in."""

    chunk_bytes: int
    unit_us: Decimal

    @classmethod
    def of(cls, fields: Fields, name: str) -> _ProfileUnits:
        named = _NAMED_SIZE.search(name)
        usual = BYTES_PER_MB if named is None else fields.build("name", lambda: parse_size(named[1]))
        chunk_bytes = fields.integer("chunk_bytes", usual, least=1, most=MAX_SIZE_BYTES)
        return cls(chunk_bytes, _decimal(fields.number("unit_us", 1.0, above=0.0, most=MAX_COST_US)))

    def cost(self, alpha: Decimal, beta: float) -> AlphaBeta:
        """Cost by size, of the cost of one chunk."""
        beta_us = _decimal(beta) * self.unit_us
        return AlphaBeta(float(alpha * self.unit_us), float(beta_us * BYTES_PER_MB / self.chunk_bytes))


def _decimal(figure: float) -> Decimal:
    """The figure as in the file: 17.38 - 14.38 is 3, where the difference of the nearest binary fractions is not."""
    return Decimal(repr(figure))


@dataclass(frozen=True, slots=True)
class TacclProfile:
    """A topology profile of TACCL.

    Attributes
    ----------
    name
        Name given in the file.
    chunk_bytes
        Size of the messages that its costs are for.
    num_ranks
        GPUs of a node.
    links
        Links inside the node.
    remote
        Links between nodes, or None if the profile says nothing of them.
    source
        File that it was read from, for error messages.
    """

    name: str
    chunk_bytes: int
    num_ranks: int
    links: tuple[ProfileLink, ...]
    remote: ProfileRemote | None
    source: str = field(default="", compare=False)

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise an `InputError` about one field."""
        raise InputError(what, path=self.source or f"profile {self.name}", field=name)


def read_profile(path: Path) -> TacclProfile:
    """Return the profile of a file.

    Raises
    ------
    InputError
        If the file cannot be read or is not such a profile.
    """
    return profile_from_fields(Fields(read_json(path), str(path)))


def profile_from_fields(fields: Fields) -> TacclProfile:
    """Return the profile of a JSON object.

    Raises
    ------
    InputError
        If a field is missing, wrong or unknown.
    """
    name = fields.text("name")
    num_ranks = fields.integer("gpus_per_node", least=1, most=MAX_RANKS)
    units = _ProfileUnits.of(fields, name)
    fields.number("alpha")  # TACCL asks for it; what a chunk costs follows from beta and invbw
    if any(fields.has(key) for key in ("links", "betas", "invbws")):
        links = _custom_links(fields, units, num_ranks)
        default_nics = None
    else:
        links, default_nics = _listed_links(fields, units, num_ranks)
    remote = _remote(fields, units, default_nics)
    fields.finish()
    return TacclProfile(name, units.chunk_bytes, num_ranks, links, remote, fields.path)


def _listed_links(fields: Fields, units: _ProfileUnits, num_ranks: int) -> tuple[tuple[ProfileLink, ...], int | None]:
    """Links of a profile with lists, and the NICs that TACCL assumes where the kind of the machine decides them."""
    if not fields.has("node_betas_list") and not fields.has("node_invbws_list"):
        fields.fail(
            "node_betas_list", "is missing; give node_betas_list and node_invbws_list, or links, betas and invbws"
        )
    betas = fields.numbers("node_betas_list", most=MAX_COST_US)
    invbws = fields.numbers("node_invbws_list", most=MAX_COST_US)
    if len(betas) not in (1, 2):
        fields.fail(
            "node_betas_list",
            f"found {len(betas)} costs; 1 is for DGX2 and HubAndSpoke, 2 are for NDv2, else use matrices",
        )
    if len(invbws) != len(betas):
        fields.fail("node_invbws_list", f"found {len(invbws)} costs, but node_betas_list has {len(betas)}")
    costs = [
        _link_cost(fields, units, f"node_invbws_list/{place}", beta, invbw)
        for place, (beta, invbw) in enumerate(zip(betas, invbws, strict=True))
    ]
    ranks = range(num_ranks)
    if len(costs) == 1:
        if num_ranks * (num_ranks - 1) > MAX_LINKS:
            fields.fail("gpus_per_node", f"{num_ranks} GPUs have a link for every pair, more than {MAX_LINKS} in all")
        return tuple(ProfileLink(src, dst, costs[0]) for src in ranks for dst in ranks if src != dst), None
    if num_ranks != NDV2_RANKS:
        fields.fail("gpus_per_node", f"found {num_ranks}, but two betas are TACCL's NDv2, which has {NDV2_RANKS} GPUs")
    pairs = [(pair, costs[0]) for pair in _NDV2_FAST] + [(pair, costs[1]) for pair in _NDV2_SLOW]
    both_ways = [(src, dst, cost) for (one, two), cost in pairs for src, dst in ((one, two), (two, one))]
    return tuple(ProfileLink(src, dst, cost) for src, dst, cost in both_ways), 1


def _custom_links(fields: Fields, units: _ProfileUnits, num_ranks: int) -> tuple[ProfileLink, ...]:
    widths = _matrix(fields, "links", num_ranks, MAX_WIDTH)
    betas, invbws = (_matrix(fields, key, num_ranks, MAX_COST_US) for key in ("betas", "invbws"))
    links = []
    for dst in range(num_ranks):
        for src in range(num_ranks):
            width, place = widths[dst][src], f"{dst}/{src}"
            if width != int(width):
                fields.fail(f"links/{place}", f"found {width}, a number of parallel links is whole")
            if not width:
                continue
            if src == dst:
                fields.fail(f"links/{place}", f"found {width:g}, but a rank has no link to itself; write 0")
            cost = _link_cost(fields, units, f"invbws/{place}", betas[dst][src], invbws[dst][src])
            links.append(ProfileLink(src, dst, cost, int(width)))
    return tuple(links)


def _matrix(fields: Fields, key: str, size: int, most: float) -> list[list[float]]:
    rows = fields.items(key)
    if len(rows) != size:
        fields.fail(key, f"found {len(rows)} rows, one for each of the {size} GPUs is needed")
    matrix = []
    for place, row in enumerate(rows):
        holder = Fields({str(place): row}, fields.path, f"{fields.pointer}/{key}")
        numbers = holder.numbers(str(place), most=most)
        if len(numbers) != size:
            fields.fail(f"{key}/{place}", f"found {len(numbers)} numbers, one for each of the {size} GPUs is needed")
        matrix.append(numbers)
    return matrix


def _link_cost(fields: Fields, units: _ProfileUnits, key: str, beta: float, invbw: float) -> AlphaBeta:
    if invbw < beta:
        fields.fail(key, f"found {invbw:g}, less than its beta {beta:g}; invbw is alpha + beta, the cost of one chunk")
    if invbw == 0:
        fields.fail(key, "alpha and beta are both 0; give the link a cost")
    return units.cost(_decimal(invbw) - _decimal(beta), beta)


def _remote(fields: Fields, units: _ProfileUnits, default_nics: int | None) -> ProfileRemote | None:
    given = [key for key in ("nics_per_node", "remote_alpha", "remote_beta", "remote_invbw") if fields.has(key)]
    if not given:
        return None
    if default_nics is not None:
        nics = fields.integer("nics_per_node", default_nics, least=1)
    else:
        nics = fields.integer("nics_per_node", least=1)
    alpha, beta = (fields.number(key, most=MAX_COST_US) for key in ("remote_alpha", "remote_beta"))
    if fields.has("remote_invbw"):
        fields.number("remote_invbw")  # TACCL computes it again from the other two
    if alpha == beta == 0:
        fields.fail("remote_beta", "remote_alpha and remote_beta are both 0; give the links between nodes a cost")
    return ProfileRemote(units.cost(_decimal(alpha), beta), nics)


def profile_topology(
    profile: TacclProfile,
    *,
    nodes: int,
    connections: Mapping[int, Sequence[int]],
    switches: Sequence[Sequence[int]],
) -> Topology:
    """Return the machine that a profile and the words of a sketch stand for.

    Parameters
    ----------
    profile
        Costs of a node and its NICs.
    nodes
        Number of nodes.
    connections
        For each local rank that sends to other nodes, the local ranks there that it sends to. Each connection exists
        between every two nodes, in both directions: reductions run backwards over it, at the same cost. Of no importance
        when there is one node.
    switches
        Sets of local ranks that share a switch, any two of them disjoint or equal. k equal sets make k parallel links of
        each pair, beta / k each, and each of them with its own ports. A port is as fast as its fastest link.

    Raises
    ------
    InputError
        If the connections or the switches do not fit the profile, or if some rank cannot reach another.
    """
    if nodes < 1:
        raise InputError(f"found {nodes} nodes, at least 1 is needed")
    machine = _ProfileMachine(profile, _switch_groups(profile, switches))
    joined = _checked(profile, connections) if nodes > 1 else _Connections((), 0)
    num_links = nodes * machine.num_local_links + nodes * (nodes - 1) * len(joined.pairs)
    if num_links > MAX_LINKS:
        raise InputError(
            f"{nodes} nodes of {profile.name} have {num_links} links, more than {MAX_LINKS}; use fewer nodes"
        )
    for node in range(nodes):
        machine.add_node(node)
    if nodes > 1:
        machine.join(nodes, joined)
    try:
        topology = Topology(
            name=profile.name if nodes == 1 else f"{profile.name}-x{nodes}",
            source=f"the TACCL profile {profile.name}, of messages of {profile.chunk_bytes} bytes",
            node_of=tuple(node for node in range(nodes) for _ in range(profile.num_ranks)),
            ports=machine.table.ports,
            links=tuple(machine.links),
            symmetry=repeat_symmetry((), profile.num_ranks, nodes),
            measured_chunk_bytes=profile.chunk_bytes,
        )
        require_connected(topology)
    except InputError as error:
        profile.refuse("links", error.what)
    return topology


@dataclass(frozen=True, slots=True)
class _ChannelLink:
    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class _Connections:
    pairs: tuple[_ChannelLink, ...]
    num_declared: int


def _checked(profile: TacclProfile, connections: Mapping[int, Sequence[int]]) -> _Connections:
    """Declared connections, then the reverse ones that are not declared themselves."""
    declared: list[_ChannelLink] = []
    for sender, receivers in connections.items():
        for receiver in receivers:
            for rank in (sender, receiver):
                _check_rank(profile, rank, f"the connection {sender} -> {receiver}")
            pair = _ChannelLink(sender, receiver)
            if pair in declared:
                raise InputError(f"the connection {sender} -> {receiver} is declared twice; remove one")
            declared.append(pair)
    if not declared:
        raise InputError("no connection between the nodes is declared; name senders and their receivers")
    known = set(declared)
    backward = [_ChannelLink(pair.dst, pair.src) for pair in declared]
    return _Connections((*declared, *(pair for pair in backward if pair not in known)), len(declared))


def _check_rank(profile: TacclProfile, rank: int, what: str) -> None:
    if not 0 <= rank < profile.num_ranks:
        raise InputError(
            f"{what}: rank {rank} does not exist, {profile.name} has the local ranks 0..{profile.num_ranks - 1}"
        )


@dataclass(frozen=True, slots=True)
class _ProfileSwitch:
    """Equal switches: the numbers that the sketch gives them, and the local ranks that they join."""

    numbers: tuple[int, ...]
    ranks: frozenset[int]


def _switch_groups(profile: TacclProfile, switches: Sequence[Sequence[int]]) -> tuple[_ProfileSwitch, ...]:
    numbers_of: dict[frozenset[int], list[int]] = {}
    for number, ranks in enumerate(switches):
        for rank in ranks:
            _check_rank(profile, rank, f"switch {number}")
        members = frozenset(ranks)
        if len(members) != len(ranks):
            raise InputError(f"switch {number} names a rank twice; name it once")
        if len(members) < 2:
            raise InputError(f"switch {number} joins {len(members)} rank(s); a switch needs at least two")
        for other, earlier in numbers_of.items():
            if members != other and members & other:
                raise InputError(
                    f"switches {earlier[0]} and {number} share rank {min(members & other)} but not all ranks; "
                    "two switches join the same ranks or have none in common"
                )
        numbers_of.setdefault(members, []).append(number)
    return tuple(_ProfileSwitch(tuple(numbers), ranks) for ranks, numbers in numbers_of.items())


class _ProfileMachine:
    """Collects the links and ports of a machine."""

    def __init__(self, profile: TacclProfile, groups: Sequence[_ProfileSwitch]) -> None:
        self.profile = profile
        self.table = PortTable()
        self.links: list[Link] = []
        self._group_of = {rank: group for group in groups for rank in group.ranks}
        self._port_cost = self._fastest_links()

    def _group(self, link: ProfileLink) -> _ProfileSwitch | None:
        """Return the switches that join the two ranks, or None if the link is a plain one."""
        group = self._group_of.get(link.src)
        return group if group is not None and link.dst in group.ranks else None

    def _fastest_links(self) -> dict[str, AlphaBeta]:
        """Cost of every switch port, by its name within the node: that of the fastest link that shares it."""
        fastest: dict[str, AlphaBeta] = {}
        for link in self.profile.links:
            group = self._group(link)
            if group is None:
                continue
            cost = _split(link.cost, group)
            for key in (f"{link.src} out", f"{link.dst} in"):
                other = fastest.get(key, cost)
                fastest[key] = AlphaBeta(
                    min(cost.alpha_us, other.alpha_us), min(cost.beta_us_per_mb, other.beta_us_per_mb)
                )
        return fastest

    @property
    def num_local_links(self) -> int:
        """Links inside one node."""
        groups = [(link.width, self._group(link)) for link in self.profile.links]
        return sum(width * (len(group.numbers) if group else 1) for width, group in groups)

    def add_node(self, node: int) -> None:
        """Add the links inside one node."""
        base = node * self.profile.num_ranks
        for link in self.profile.links:
            group = self._group(link)
            cost = _split(link.cost, group)
            for number in (None,) if group is None else group.numbers:
                ports = () if number is None else self._switch_ports(node, link, number)
                parallel = Link(base + link.src, base + link.dst, cost.alpha_us, cost.beta_us_per_mb, ports=ports)
                self.links.extend([parallel] * link.width)

    def _switch_ports(self, node: int, link: ProfileLink, number: int) -> tuple[int, ...]:
        base = node * self.profile.num_ranks
        out, into = self._port_cost[f"{link.src} out"], self._port_cost[f"{link.dst} in"]
        return (
            self.table.index(f"node {node} rank {base + link.src} switch {number} out", out),
            self.table.index(f"node {node} rank {base + link.dst} switch {number} in", into),
        )

    def join(self, nodes: int, connections: _Connections) -> None:
        """Add the links between every two nodes."""
        cost = self._remote_cost(nodes, connections.num_declared)
        num_ranks = self.profile.num_ranks
        for here in range(nodes):
            for there in (node for node in range(nodes) if node != here):
                for pair in connections.pairs:
                    src, dst = here * num_ranks + pair.src, there * num_ranks + pair.dst
                    ports: tuple[int, ...] = ()
                    if nodes > 2:  # with two nodes no two remote links of a rank lead to different nodes
                        ports = (
                            self.table.index(f"node {here} rank {src} remote out", cost),
                            self.table.index(f"node {there} rank {dst} remote in", cost),
                        )
                    self.links.append(Link(src, dst, cost.alpha_us, cost.beta_us_per_mb, ports=ports))

    def _remote_cost(self, nodes: int, num_declared: int) -> AlphaBeta:
        remote = self.profile.remote
        if remote is None:
            self.profile.refuse(
                "nics_per_node",
                f"the profile {self.profile.name} has no nics_per_node, remote_alpha and remote_beta, which {nodes} nodes "
                "need; add them, or use 1 node",
            )
        share = num_declared / remote.nics_per_node
        return AlphaBeta(remote.cost.alpha_us, remote.cost.beta_us_per_mb * share)


def _split(cost: AlphaBeta, group: _ProfileSwitch | None) -> AlphaBeta:
    return cost if group is None else AlphaBeta(cost.alpha_us, cost.beta_us_per_mb / len(group.numbers))
