"""Machines as graphs of networkx, and back; the same for files that ``networkx.node_link_data`` writes.

A machine becomes a directed graph: a vertex for each rank, an edge for each link, costs as attributes. The ports that links
share are an attribute of the graph, and each edge names those that it uses. A graph that was made elsewhere may have switches as
vertices; what leads from one rank to another over switches only becomes a link.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from taccl_py.discover.graphs import SwitchedGraph
from taccl_py.discover.rates import NETWORK_ALPHA_US
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields
from taccl_py.topology.files import FORMAT, require_connected, topology_from_fields, topology_to_json
from taccl_py.topology.model import Topology
from taccl_py.topology.template import AlphaBeta
from taccl_py.units import MAX_COST_US

if TYPE_CHECKING:
    import networkx

_SWITCH_WORDS = ("switch", "nvswitch", "spine", "leaf", "tor")
_RATE_KEYS = ("beta_us_per_mb", "bandwidth_gbps")
# Fields of a topology file that are vertices and edges of a graph, and those of a link that are the ends of an edge.
_VERTICES, _EDGES, _ENDS = "node_of", "links", ("from", "to")
# Name in errors about a graph, in place of a file's.
_PATH = "networkx graph"


def to_networkx(topology: Topology) -> networkx.DiGraph:
    """Directed graph of a machine, which `from_networkx` turns back into the same machine.

    Vertices are the ranks 0, 1, 2 and so on, with the attribute ``node``. Edges are the links, with the attributes ``alpha_us``,
    ``beta_us_per_mb`` (microseconds per 10^6 bytes), ``latency_us`` if it is not 0, and ``ports``, the names of the ports that the link uses,
    if there are any. All else is in the attributes of the graph, with the keys of a topology file.

    Parameters
    ----------
    topology
        The machine.

    Returns
    -------
    networkx.DiGraph
        A ``networkx.MultiDiGraph``, which is one too, where some ranks have parallel links.
    """
    import networkx

    value = topology_to_json(topology)
    parallel = len(topology.links_between) < len(topology.links)
    attributes = {key: each for key, each in value.items() if key not in (_VERTICES, _EDGES)}
    graph = (networkx.MultiDiGraph if parallel else networkx.DiGraph)(**attributes)
    graph.add_nodes_from((rank, {"node": node}) for rank, node in enumerate(topology.node_of))
    names = [port.name for port in topology.ports]
    for link in value[_EDGES]:
        costs = {key: each for key, each in link.items() if key not in _ENDS}
        if "ports" in costs:
            costs["ports"] = [names[port] for port in costs["ports"]]
        graph.add_edge(*(link[end] for end in _ENDS), **costs)
    return graph


def from_networkx(graph: networkx.Graph, name: str = "") -> Topology:
    """Machine of a networkx graph: one that `to_networkx` made, changed or not, or any graph with costs on its edges.

    Parameters
    ----------
    graph
        Of a graph that `to_networkx` made, vertices and edges may be taken away and costs changed; ranks and nodes are then numbered
        anew in their order. In any other graph vertices are ranks or switches, and edges have ``bandwidth_gbps`` or
        ``beta_us_per_mb``; see `read_node_link`.
    name
        Name of the machine; empty: that of the graph.

    Returns
    -------
    Topology
        The machine.

    Raises
    ------
    InputError
        If an attribute is wrong or missing, or some rank cannot reach another.
    """
    if not all(hasattr(graph, name) for name in ("is_directed", "graph", "nodes", "edges")):
        raise InputError(
            f"found {type(graph).__name__}, a graph of networkx is needed", path="arguments", field="graph"
        )
    value = {
        "directed": graph.is_directed(),
        "graph": {**graph.graph, **({"name": name} if name else {})},
        "nodes": [{**attributes, "id": vertex} for vertex, attributes in graph.nodes(data=True)],
        "edges": [{**attributes, "source": a, "target": b} for a, b, attributes in graph.edges(data=True)],
    }
    return read_node_link(value, _PATH, name or str(graph.graph.get("name") or "networkx-graph"))


def _expanded(fields: Fields, attributes: Fields) -> Topology:
    """Machine of the graph of a machine."""
    if attributes.text("format") != FORMAT or not fields.boolean("directed", False):
        attributes.fail(
            "format", f"a directed graph with the format {FORMAT!r} is needed; leave the attribute out for any other"
        )
    rank_of: dict[str, int] = {}
    nodes = []
    for item in fields.objects("nodes"):
        rank_of[str(item.raw("id"))] = len(rank_of)
        nodes.append(item.integer("node", least=0))
    number_of = {node: number for number, node in enumerate(sorted(set(nodes)))}
    value = {key: attributes.raw(key) for key in attributes.names()}
    ports = {str(port["name"]): place for place, port in enumerate(value.get("ports", [])) if "name" in dict(port)}
    value[_VERTICES] = [number_of[node] for node in nodes]
    value[_EDGES] = list(_links(fields, rank_of, ports))
    value["symmetry"] = [image for image in value.get("symmetry", []) if len(image) == len(nodes)]
    if "switches" in value:
        value["switches"] = list(_switches(attributes, rank_of))
    topology = topology_from_fields(Fields(value, fields.path))
    try:
        require_connected(topology)
    except InputError as error:
        raise InputError(error.what, path=fields.path) from None
    return topology


def _switches(attributes: Fields, rank_of: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Switches that still join two ranks, with the ranks' new numbers."""
    for item in attributes.objects("switches"):
        ranks = [rank_of[str(rank)] for rank in item.integers("ranks") if str(rank) in rank_of]
        if len(ranks) > 1:
            yield {**{key: item.raw(key) for key in item.names()}, "ranks": ranks}


def _links(fields: Fields, rank_of: dict[str, int], ports: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Links of a topology file, of the edges of a graph of a machine."""
    for item in fields.objects("edges" if fields.has("edges") else "links"):
        link = {key: item.raw(key) for key in item.names() if key not in ("source", "target", "key")}
        for word, end in zip(("source", "target"), _ENDS, strict=True):
            vertex = str(item.raw(word))
            if vertex not in rank_of:
                item.fail(word, f"{vertex!r} is no vertex of the graph; name one of nodes")
            link[end] = rank_of[vertex]
        for place, port in enumerate(item.items("ports", [])):
            if port not in ports:
                item.fail(f"ports/{place}", f"{port!r} is no port of the graph; name one of its attribute ports")
        if "ports" in link:
            link["ports"] = [ports[port] for port in link["ports"]]
        yield link


def read_node_link(value: Any, path: str, name: str) -> Topology:
    """Machine of a networkx graph as ``networkx.node_link_data`` writes it.

    A graph that `to_networkx` made gives its machine back. Of any other graph a vertex is a switch if its attribute ``type`` (or ``kind``) says so, or ``switch`` is true; all others are ranks, in the
    order of the file; ``node`` is the number of its server (default 0). An edge needs ``bandwidth_gbps`` or
    ``beta_us_per_mb``; ``alpha_us`` is NCCL's figure for a network where it is not given. Edges of an undirected graph are
    full duplex.

    Parameters
    ----------
    value
        The JSON value.
    path
        File name for error messages.
    name
        Name of the machine.

    Raises
    ------
    InputError
        If a vertex or an edge is wrong, or some rank cannot reach another.
    """
    fields = Fields(value, path)
    if fields.has("graph") and (attributes := fields.object("graph")).has("format"):
        return _expanded(fields, attributes)
    directed = fields.boolean("directed", False)
    graph = SwitchedGraph(
        name, f"the networkx graph {name}; edges without alpha_us have {NETWORK_ALPHA_US} us, not measured"
    )
    servers: dict[str, int] = {}
    for item in fields.objects("nodes"):
        key = str(item.raw("id"))
        if key in graph.vertices:
            item.fail("id", f"{key!r} stands twice; name a vertex once")
        graph.vertices[key] = None
        kind = item.text("type", "") or item.text("kind", "")
        if kind.lower() not in _SWITCH_WORDS and not (item.has("switch") and item.boolean("switch")):
            server = str(item.raw("node")) if item.has("node") else "0"
            graph.node_of[key] = servers.setdefault(server, len(servers))
    for item in fields.objects("edges" if fields.has("edges") else "links"):
        ends = [str(item.raw("source")), str(item.raw("target"))]
        for end, word in zip(ends, ("source", "target"), strict=True):
            if end not in graph.vertices:
                item.fail(word, f"{end!r} is no vertex of the graph; name one of nodes")
        if ends[0] == ends[1]:
            item.fail("target", f"{ends[0]!r} is the edge's own start; an edge joins two vertices")
        cost = _edge_cost(item)
        for a, b in [(ends[0], ends[1])] + ([] if directed else [(ends[1], ends[0])]):
            graph.edges.setdefault((a, b), []).append(cost)
    return graph.topology(path)


def _edge_cost(item: Fields) -> AlphaBeta:
    alpha_us = item.number("alpha_us", NETWORK_ALPHA_US, most=MAX_COST_US)
    if not any(item.has(key) for key in _RATE_KEYS):
        item.fail("bandwidth_gbps", "is missing, and so is beta_us_per_mb; add one of them to every edge")
    if item.has("bandwidth_gbps"):
        return AlphaBeta(alpha_us, 1000 / item.number("bandwidth_gbps", above=1e-6))
    return AlphaBeta(alpha_us, item.number("beta_us_per_mb", above=0.0, most=MAX_COST_US))
