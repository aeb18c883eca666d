"""Topology files: one node to be instantiated, or a whole machine rank by rank. ``topologies/README.md`` documents both.

The *node form* is what people write; the *expanded form* is what the program writes, alone or inside a schedule file. Both
are objects with ``"format": "taccl-topology"``; the first has the field ``node``, the second ``node_of``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, parse_json, read_json, read_text
from taccl_py.topology.model import Link, Medium, Port, Switch, Topology, missing_node
from taccl_py.topology.template import (
    MAX_WIDTH,
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
    instantiate,
)
from taccl_py.units import BYTES_PER_MB, MAX_COST_US, MAX_RANKS, MAX_SIZE_BYTES, MIN_COST_US, format_count

FORMAT = "taccl-topology"
VERSION = 1

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_GPU = re.compile(r"[a-z0-9][a-z0-9-]{0,31}(\+[a-z0-9][a-z0-9-]{0,31})*")


def is_taccl_profile(value: Any) -> bool:
    """True if a JSON value is a topology profile of TACCL (for `taccl_py.topology.taccl_profile`), not one of our files."""
    return isinstance(value, dict) and "gpus_per_node" in value and "format" not in value


def read_topology(path: Path, nodes: int | None = None) -> Topology:
    """Return the machine of a topology file of either form.

    Parameters
    ----------
    path
        The file.
    nodes
        Number of nodes that the node form is instantiated for (None: 1). A machine in expanded form has the nodes that it
        has; another number is refused.

    Raises
    ------
    InputError
        If the file cannot be read, is no topology, has a wrong or unknown field, or if some rank cannot reach another.
    """
    return _machine(read_text(path), str(path), nodes)


# A command asks for its machine more than once, and one of a thousand ranks takes seconds.
@lru_cache(maxsize=2)
def _machine(text: str, path: str, nodes: int | None) -> Topology:
    """The machine of a file with this text."""
    value = parse_json(text, path)
    if is_taccl_profile(value):
        raise InputError(
            "is a TACCL profile, which says nothing of the links between nodes; give it together with a TACCL sketch",
            path=path,
        )
    fields = Fields(value, path)
    if not fields.has("node"):
        machine = topology_from_fields(fields)
        fields.build("links", lambda: require_connected(machine))
        if nodes is not None and nodes != machine.num_nodes:
            fields.fail(
                "node_of",
                f"the machine has {format_count(machine.num_nodes, 'node')} and cannot have {nodes}; leave the number out",
            )
        return machine
    template = template_from_fields(fields)
    topology: Topology = fields.build("", lambda: instantiate(template, 1 if nodes is None else nodes))
    fields.build("node", lambda: require_connected(topology))
    return topology


def read_template(path: Path) -> NodeTemplate:
    """Return the node of a topology file in node form.

    Raises
    ------
    InputError
        If the file cannot be read, is not in node form, or has a wrong or unknown field.
    """
    return template_from_fields(Fields(read_json(path), str(path)))


def require_connected(topology: Topology) -> None:
    """Refuse a machine in which some rank cannot reach another, over whatever ranks lie between.

    Raises
    ------
    InputError
        Naming a rank that is cut off, and rank 0.
    """
    forward: list[list[int]] = [[] for _ in range(topology.num_ranks)]
    backward: list[list[int]] = [[] for _ in range(topology.num_ranks)]
    for link in topology.links:
        forward[link.src].append(link.dst)
        backward[link.dst].append(link.src)
    for neighbours, sentence in (
        (forward, "rank {rank} cannot be reached from rank 0"),
        (backward, "rank 0 cannot be reached from rank {rank}"),
    ):
        missing = _first_unreached(neighbours)
        if missing is not None:
            raise InputError(f"{sentence.format(rank=missing)}; add links, or leave the rank out")


def _first_unreached(neighbours: Sequence[Sequence[int]]) -> int | None:
    reached = {0}
    waiting = [0]
    while waiting:
        for rank in neighbours[waiting.pop()]:
            if rank not in reached:
                reached.add(rank)
                waiting.append(rank)
    return next((rank for rank in range(len(neighbours)) if rank not in reached), None)


# The expanded form


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """Return the expanded form of a machine, which `topology_from_fields` reads back without any change."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": topology.name,
        "source": topology.source,
        "node_of": list(topology.node_of),
        "ports": [
            {"name": port.name, "alpha_us": float(port.alpha_us), "beta_us_per_mb": float(port.beta_us_per_mb)}
            for port in topology.ports
        ],
        "links": [_link_to_json(link) for link in topology.links],
        "symmetry": [list(image) for image in topology.symmetry],
        **({"measured_chunk_bytes": topology.measured_chunk_bytes} if topology.measured_chunk_bytes else {}),
        **({"switches": [_switch_to_json(switch) for switch in topology.switches]} if topology.switches else {}),
        **_kinds_to_json(topology),
    }


def _kinds_to_json(machine: Topology | NodeTemplate) -> dict[str, str | bool]:
    gpu = {"gpu": machine.gpu} if machine.gpu else {}
    return {"inside": str(machine.inside), **gpu, **({"near_nics": True} if machine.near_nics else {})}


def _kinds(fields: Fields) -> tuple[Medium, str, bool]:
    """Medium that joins the ranks of a node, model of the GPUs, and whether NICs are near."""
    inside = Medium(fields.choice("inside", tuple(Medium))) if fields.has("inside") else Medium.UNKNOWN
    gpu = fields.text("gpu", "")
    if gpu and not _GPU.fullmatch(gpu):
        fields.fail("gpu", f"found {gpu!r}; write the model in small letters, for example a100, or a100+h100 for both")
    return inside, gpu, fields.boolean("near_nics", False)


def _switch_to_json(switch: Switch) -> dict[str, Any]:
    return {
        "name": switch.name,
        "ranks": list(switch.ranks),
        "multicast": switch.multicast,
        "reduce": switch.reduce,
    }


def _link_to_json(link: Link) -> dict[str, Any]:
    value: dict[str, Any] = {
        "from": link.src,
        "to": link.dst,
        "alpha_us": float(link.alpha_us),
        "beta_us_per_mb": float(link.beta_us_per_mb),
    }
    if link.latency_us:
        value["latency_us"] = float(link.latency_us)
    if link.ports:
        value["ports"] = list(link.ports)
    return value


def topology_from_fields(fields: Fields) -> Topology:
    """Return the machine of an expanded form.

    Parameters
    ----------
    fields
        The object, in a file of its own or inside a schedule file.

    Raises
    ------
    InputError
        If a field is wrong, missing or unknown.
    """
    fields.header(FORMAT, VERSION)
    name = fields.text("name")
    source = fields.text("source", "")
    fields.text("description", "")  # for people
    node_of = _node_of(fields)
    ports = _expanded_ports(fields)
    links = [_expanded_link(item, len(node_of), len(ports)) for item in fields.objects("links")]
    symmetry = _permutations(fields, len(node_of))
    measured = fields.integer("measured_chunk_bytes", 0, least=1, most=MAX_SIZE_BYTES) or None
    if fields.boolean("chunk_costs", False):  # as earlier versions wrote of TACCL profiles
        measured = BYTES_PER_MB
    switches = tuple(_expanded_switch(item, len(node_of)) for item in fields.objects("switches", []))
    kinds = _kinds(fields)
    fields.finish()
    topology: Topology = fields.build(
        "", lambda: Topology(name, source, node_of, tuple(ports), tuple(links), symmetry, measured, switches, *kinds)
    )
    return topology


def _node_of(fields: Fields) -> tuple[int, ...]:
    node_of = fields.integers("node_of", least=0)
    if not node_of:
        fields.fail("node_of", "found an empty list; give the node of every rank")
    empty = missing_node(node_of)
    if empty is not None:
        fields.fail("node_of", f"node {empty} has no rank; number the nodes 0, 1, 2 and so on")
    return tuple(node_of)


def _expanded_ports(fields: Fields) -> list[Port]:
    ports: list[Port] = []
    number_of: dict[str, int] = {}
    for item in fields.objects("ports", []):
        port = Port(item.text("name"), _time(item, "alpha_us"), _beta_us_per_mb(item))
        item.finish()
        if port.name in number_of:
            item.fail("name", f"{port.name!r} is already the name of port {number_of[port.name]}; names are unique")
        number_of[port.name] = len(ports)
        ports.append(port)
    return ports


def _expanded_link(item: Fields, num_ranks: int, num_ports: int) -> Link:
    src, dst = _rank(item, "from", num_ranks), _rank(item, "to", num_ranks)
    if src == dst:
        item.fail("to", f"found {dst}, the link's own start; a link joins two different ranks")
    cost = _cost(item)
    ports = item.integers("ports", [], least=0)
    for place, port in enumerate(ports):
        if port >= num_ports:
            item.fail(f"ports/{place}", f"found {port}, but there are {num_ports} ports, counted from 0")
    _check_once(item, "ports", ports)
    link = Link(src, dst, cost.alpha_us, cost.beta_us_per_mb, _time(item, "latency_us", 0.0), tuple(ports))
    item.finish()
    return link


def _expanded_switch(item: Fields, num_ranks: int) -> Switch:
    ranks = item.integers("ranks", least=0)
    for place, rank in enumerate(ranks):
        if rank >= num_ranks:
            item.fail(f"ranks/{place}", f"found {rank}, but there are {num_ranks} ranks, counted from 0")
    if len(set(ranks)) != len(ranks):
        item.fail("ranks", "names a rank twice; name every rank once")
    if len(ranks) < 2:
        item.fail("ranks", f"a switch joins at least two ranks, found {len(ranks)}")
    switch = Switch(item.text("name"), tuple(sorted(ranks)), item.boolean("multicast"), item.boolean("reduce"))
    item.finish()
    return switch


# The node form


def template_from_fields(fields: Fields) -> NodeTemplate:
    """Return the node of a node form.

    Parameters
    ----------
    fields
        The whole file.

    Raises
    ------
    InputError
        If a field is wrong, missing or unknown.
    """
    fields.header(FORMAT, VERSION)
    name, description, source = fields.text("name"), fields.text("description"), fields.text("source")
    node = fields.object("node")
    num_ranks = node.integer("ranks", least=1, most=MAX_RANKS)
    ports = tuple(_node_port(item) for item in node.objects("ports", []))
    known = {port.name for port in ports}
    switches = tuple(_node_switch(item, num_ranks) for item in node.objects("switches", []))
    nics = tuple(_nic(item, num_ranks, known) for item in node.objects("nics", []))
    links = _node_links(node, num_ranks, known)
    symmetry = _permutations(node, num_ranks)
    kinds = _kinds(node)
    node.finish()
    _check_names(node, ports, switches, nics)
    _check_use(node, ports, links, nics)
    network = _network(fields, bool(nics))
    fields.finish()
    return NodeTemplate(name, description, source, num_ranks, links, switches, nics, ports, symmetry, network, *kinds)


def template_to_json(template: NodeTemplate) -> dict[str, Any]:
    """Return the node form of a node, which `template_from_fields` reads back without any change."""
    node: dict[str, Any] = {"ranks": template.num_ranks, **_kinds_to_json(template)}
    if template.links:
        node["links"] = _node_links_to_json(template.links)
    if template.switches:
        node["switches"] = [
            {"name": switch.name, "ranks": list(switch.ranks), **_cost_to_json(switch.cost)}
            | ({"multicast": True} if switch.multicast else {})
            | ({"reduce": True} if switch.reduce else {})
            | ({"rank_costs": slow} if (slow := {str(r): _cost_to_json(c) for r, c in switch.rank_costs}) else {})
            for switch in template.switches
        ]
    if template.ports:
        node["ports"] = [{"name": port.name, **_cost_to_json(port.cost)} for port in template.ports]
    if template.nics:
        node["nics"] = [_nic_to_json(nic) for nic in template.nics]
    if template.symmetry:
        node["symmetry"] = [list(image) for image in template.symmetry]
    value = {
        "format": FORMAT,
        "version": VERSION,
        "name": template.name,
        "description": template.description,
        "source": template.source,
        "node": node,
    }
    if template.nics:
        network = template.network
        value["network"] = {"reach": str(network.reach), "latency_us": float(network.latency_us)}
    return value


def _node_links_to_json(links: Sequence[NodeLink]) -> list[dict[str, Any]]:
    values = []
    for link, width in Counter(links).items():
        value: dict[str, Any] = {"from": link.src, "to": [link.dst], **_cost_to_json(link.cost)}
        if link.latency_us:
            value["latency_us"] = float(link.latency_us)
        if link.ports:
            value["ports"] = [f"{use.port}.{use.side}" for use in link.ports]
        values.append(value | ({"width": width} if width > 1 else {}))
    return values


def _nic_to_json(nic: Nic) -> dict[str, Any]:
    value: dict[str, Any] = {"name": nic.name, "ranks": list(nic.ranks), **_cost_to_json(nic.cost)}
    if nic.via:
        value["via"] = {
            str(rank): [use.port if use.side is Side.OUT else f"{use.port}.{use.side}" for use in uses]
            for rank, uses in nic.via.items()
        }
    return value | ({"plane": nic.plane} if nic.plane else {})


def _cost_to_json(cost: AlphaBeta) -> dict[str, float]:
    return {"alpha_us": float(cost.alpha_us), "beta_us_per_mb": float(cost.beta_us_per_mb)}


def _network(fields: Fields, has_nics: bool) -> NodeNetwork:
    if not has_nics:
        if fields.has("network"):
            fields.fail("network", "the node has no nics that could use it; add node.nics or remove the network")
        return NodeNetwork()
    item = fields.object("network")
    reach = NetworkReach(item.choice("reach", tuple(NetworkReach)))
    network = NodeNetwork(reach, _time(item, "latency_us", 0.0))
    item.finish()
    return network


def _node_port(item: Fields) -> NodePort:
    port = NodePort(_name(item), _cost(item))
    item.finish()
    return port


def _node_switch(item: Fields, num_ranks: int) -> NodeSwitch:
    name, ranks, cost = _name(item), _ranks(item, num_ranks), _cost(item)
    if len(ranks) < 2:
        item.fail("ranks", f"a switch joins at least two ranks, found {len(ranks)}")
    multicast, reduce = item.boolean("multicast", False), item.boolean("reduce", False)
    switch = NodeSwitch(name, ranks, cost, multicast, reduce, _rank_costs(item, ranks))
    item.finish()
    return switch


def _rank_costs(item: Fields, ranks: Sequence[int]) -> tuple[tuple[int, AlphaBeta], ...]:
    """Costs of the ranks of a switch that have others than it states."""
    costs = item.object("rank_costs") if item.has("rank_costs") else Fields({}, item.path)
    found = {}
    for key in costs.names():
        if key not in map(str, ranks):
            costs.fail(key, f"{key!r} is not one of the ranks that the switch joins")
        cost = costs.object(key)
        found[int(key)] = _cost(cost)
        cost.finish()
    return tuple(sorted(found.items()))


def _nic(item: Fields, num_ranks: int, known: set[str]) -> Nic:
    name, ranks, cost = _name(item), _ranks(item, num_ranks), _cost(item)
    via: dict[int, tuple[PortSide, ...]] = {}
    if item.has("via"):
        named = item.object("via")
        served = {str(rank) for rank in ranks}
        for key in named.names():
            if key not in served:
                named.fail(key, f"{key!r} is not one of the ranks that the NIC serves")
            uses = [_via_side(named, f"{key}/{place}", text, known) for place, text in enumerate(_texts(named, key))]
            _check_once(named, key, [use.port for use in uses])
            via[int(key)] = tuple(uses)
    plane = item.text("plane", "")
    item.finish()
    return Nic(name, ranks, cost, via, plane)


def _node_links(node: Fields, num_ranks: int, known: set[str]) -> tuple[NodeLink, ...]:
    links: list[NodeLink] = []
    seen: set[NodeLink] = set()
    for item in node.objects("links", []):
        width = item.integer("width", 1, least=1, most=MAX_WIDTH)
        for link in _links_of_entry(item, num_ranks, known):
            if link in seen:
                item.fail(
                    "to", f"the link {link.src} -> {link.dst} stands twice; remove one, or say width for parallel links"
                )
            seen.add(link)
            links.extend([link] * width)
        item.finish()
    return tuple(links)


def _links_of_entry(item: Fields, num_ranks: int, known: set[str]) -> list[NodeLink]:
    src, cost = _rank(item, "from", num_ranks), _cost(item)
    latency_us = _time(item, "latency_us", 0.0)
    ports = tuple(_port_side(item, place, text, known) for place, text in enumerate(_texts(item, "ports")))
    _check_once(item, "ports", [f"{use.port}.{use.side}" for use in ports])
    both_ways = item.boolean("both_ways", False)
    targets = item.integers("to")
    if not targets:
        item.fail("to", "found an empty list; name the ranks that the links lead to")
    links = []
    for place, dst in enumerate(targets):
        _check_rank(item, f"to/{place}", dst, num_ranks)
        if src == dst:
            item.fail(f"to/{place}", f"found {dst}, the link's own start; a link joins two different ranks")
        links.append(NodeLink(src, dst, cost, latency_us, ports))
        if both_ways:
            # The reverse link uses the other direction of the same ports, in the opposite order.
            back = tuple(PortSide(use.port, use.side.opposite) for use in reversed(ports))
            links.append(NodeLink(dst, src, cost, latency_us, back))
    return links


def _port_side(item: Fields, place: int, text: str, known: set[str]) -> PortSide:
    name, _, side = text.rpartition(".")
    if side not in tuple(Side):
        item.fail(f"ports/{place}", f"found {text!r}; write the port and its direction, as in uplink.out or uplink.in")
    if name not in known:
        item.fail(f"ports/{place}", _unknown_port(name, known))
    return PortSide(name, Side(side))


def _via_side(named: Fields, key: str, text: str, known: Iterable[str]) -> PortSide:
    """A port on the path to a NIC, with the direction that sending uses: out, unless the text says the other one."""
    name, _, side = text.rpartition(".")
    use = PortSide(name, Side(side)) if side in tuple(Side) and name else PortSide(text, Side.OUT)
    if use.port not in known:
        named.fail(key, _unknown_port(use.port, known))
    return use


def _unknown_port(name: str, known: Iterable[str]) -> str:
    return f"{name!r} is not in node.ports (known: {', '.join(sorted(known)) or 'none'}); declare it there"


def _check_names(node: Fields, ports: Sequence[NodePort], switches: Sequence[NodeSwitch], nics: Sequence[Nic]) -> None:
    taken: dict[str, str] = {}
    groups: dict[str, Sequence[NodePort | NodeSwitch | Nic]] = {"ports": ports, "switches": switches, "nics": nics}
    for key, group in groups.items():
        for place, device in enumerate(group):
            if device.name in taken:
                node.fail(f"{key}/{place}/name", f"{device.name!r} is already the name of node.{taken[device.name]}")
            taken[device.name] = f"{key}.{place}"


def _check_use(node: Fields, ports: Sequence[NodePort], links: Sequence[NodeLink], nics: Sequence[Nic]) -> None:
    used = {use.port for link in links for use in link.ports}
    used.update(use.port for nic in nics for uses in nic.via.values() for use in uses)
    for place, port in enumerate(ports):
        if port.name not in used:
            node.fail(f"ports/{place}", f"no link and no NIC uses {port.name!r}; name it there, or remove it")


# Fields of both forms


def _name(item: Fields) -> str:
    name = item.text("name")
    if not _NAME.fullmatch(name):
        item.fail("name", f"found {name!r}; use letters, digits, - and _, a letter first")
    return name


def _time(item: Fields, key: str, default: float | None = None) -> float:
    cost = item.number(key, default, most=MAX_COST_US)
    if 0 < cost < MIN_COST_US:
        item.fail(key, f"found {cost}, a cost that is not 0 is at least {MIN_COST_US:g}")
    return cost


def _cost(item: Fields) -> AlphaBeta:
    cost = AlphaBeta(_time(item, "alpha_us"), _beta_us_per_mb(item))
    if cost.alpha_us == 0 and cost.beta_us_per_mb == 0:
        item.fail("beta_us_per_mb", "alpha and beta are both 0; give it a cost")
    return cost


def _beta_us_per_mb(item: Fields) -> float:
    if item.has("bandwidth_gbps"):
        if item.has("beta_us_per_mb"):
            item.fail("bandwidth_gbps", "says the same as beta_us_per_mb (1000 / bandwidth); keep one of them")
        beta_us_per_mb = 1000 / item.number("bandwidth_gbps", above=0.0)
        if beta_us_per_mb > MAX_COST_US:
            item.fail("bandwidth_gbps", f"is so small that a megabyte takes more than {MAX_COST_US:g} us; write more")
        return beta_us_per_mb
    if not item.has("beta_us_per_mb"):
        item.missing("beta_us_per_mb", "bandwidth_gbps")
    return _time(item, "beta_us_per_mb")


def _rank(item: Fields, key: str, num_ranks: int) -> int:
    rank = item.integer(key)
    _check_rank(item, key, rank, num_ranks)
    return rank


def _check_rank(item: Fields, key: str, rank: int, num_ranks: int) -> None:
    if not 0 <= rank < num_ranks:
        item.fail(key, f"rank {rank} does not exist, ranks are 0..{num_ranks - 1}")


def _ranks(item: Fields, num_ranks: int) -> tuple[int, ...]:
    if item.raw("ranks") == "all":
        return tuple(range(num_ranks))
    ranks = item.integers("ranks")
    if not ranks:
        item.fail("ranks", 'found an empty list; name ranks, or write "all"')
    for place, rank in enumerate(ranks):
        _check_rank(item, f"ranks/{place}", rank, num_ranks)
        if rank in ranks[:place]:
            item.fail(f"ranks/{place}", f"rank {rank} stands twice; name it once")
    return tuple(ranks)


def _check_once(item: Fields, key: str, values: Sequence[int | str]) -> None:
    for place, value in enumerate(values):
        if value in values[:place]:
            item.fail(f"{key}/{place}", f"port {value} stands twice; a message uses a port once, name it once")


def _texts(item: Fields, key: str) -> list[str]:
    texts = item.items(key, [])
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            item.fail(f"{key}/{place}", f"found {text!r}, a text is needed")
    return texts


def _permutations(fields: Fields, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    images = []
    for place, _ in enumerate(fields.items("symmetry", [])):
        image = _integer_row(fields, "symmetry", place)
        if sorted(image) != list(range(num_ranks)):
            fields.fail(
                f"symmetry/{place}", f"is not a permutation of the ranks 0..{num_ranks - 1}; list each rank once"
            )
        images.append(tuple(image))
    return tuple(images)


def _integer_row(fields: Fields, key: str, place: int) -> list[int]:
    row = fields.items(key)[place]
    return Fields({str(place): row}, fields.path, f"{fields.pointer}/{key}").integers(str(place))
