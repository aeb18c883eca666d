"""Whole machines as graphs with switches, and topologies of TE-CCL and SCCL; those of networkx are in `taccl_py.discover.node_link`.

They become ranks, links and ports: what leads from one rank to another over switches only is a link that shares a port with
all others for each edge on its path.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from taccl_py.discover.rates import GPU_LINK_ALPHA_US
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields
from taccl_py.topology.files import require_connected
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Topology
from taccl_py.topology.template import MAX_LINKS, AlphaBeta, PortTable
from taccl_py.units import MAX_COST_US, MAX_RANKS


@dataclass
class SwitchedGraph:
    """A directed graph; an edge is used by one message at a time, alpha is paid once for each edge."""

    name: str
    source: str
    node_of: dict[str, int] = field(default_factory=dict)  # ranks only, in their order
    vertices: dict[str, None] = field(default_factory=dict)
    edges: dict[tuple[str, str], list[AlphaBeta]] = field(default_factory=dict)
    latency_is_free: bool = False

    def topology(self, path: str) -> Topology:
        """Machine of the graph.

        Raises
        ------
        InputError
            If there is no rank, or one cannot reach another.
        """
        ranks = {name: index for index, name in enumerate(self.node_of)}
        if not 0 < len(ranks) <= MAX_RANKS:
            raise InputError(f"has {len(ranks)} vertices that are ranks, 1 to {MAX_RANKS} are possible", path=path)
        beside: dict[str, list[str]] = {}
        for near, far in self.edges:
            beside.setdefault(near, []).append(far)
        table, links = PortTable(), []
        for name, src in ranks.items():
            for other, vertices in self._paths(name, beside).items():
                links += self._links(src, ranks[other], vertices, table)
                if len(links) > MAX_LINKS:
                    raise InputError(f"has more than {MAX_LINKS} links; import a smaller machine", path=path)
        try:
            topology = Topology(self.name, self.source, tuple(self.node_of.values()), table.ports, tuple(links))
            require_connected(topology)
        except InputError as error:
            raise InputError(error.what, path=path) from None
        return topology

    def _paths(self, start: str, beside: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
        """Shortest path to every rank that can be reached over switches only."""
        paths: dict[str, tuple[str, ...]] = {start: (start,)}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            if here != start and here in self.node_of:
                continue
            for there in beside.get(here, []):
                if there not in paths:
                    paths[there] = (*paths[here], there)
                    waiting.append(there)
        return {name: path for name, path in paths.items() if name in self.node_of and name != start}

    def _links(self, src: int, dst: int, vertices: tuple[str, ...], table: PortTable) -> list[Link]:
        hops = list(pairwise(vertices))
        lanes = 1 if len(hops) > 1 else len(self.edges[hops[0]])
        links = []
        for lane in range(lanes):
            costs = [self.edges[hop][lane % len(self.edges[hop])] for hop in hops]
            ports: tuple[int, ...] = ()
            if len(hops) > 1:
                # Parallel edges to a switch are one port of their common rate.
                ports = tuple(table.index(f"{a} to {b}", self._trunk(a, b)) for a, b in hops)
                costs = [self._trunk(a, b) for a, b in hops]
            alpha_us = sum(cost.alpha_us for cost in costs)
            beta_us_per_mb = max(cost.beta_us_per_mb for cost in costs)
            if self.latency_is_free:
                links.append(Link(src, dst, 0.0, beta_us_per_mb, alpha_us, ports))
            else:
                links.append(Link(src, dst, alpha_us, beta_us_per_mb, 0.0, ports))
        return links

    def _trunk(self, a: str, b: str) -> AlphaBeta:
        costs = self.edges[a, b]
        alpha_us = 0.0 if self.latency_is_free and len(costs) > 1 else max(cost.alpha_us for cost in costs)
        rate = sum(1 / cost.beta_us_per_mb for cost in costs if cost.beta_us_per_mb)
        return AlphaBeta(alpha_us, 1 / rate if rate else 0.0)


def is_teccl(value: Any) -> bool:
    """True if a JSON value is an input of TE-CCL, or a topology of it in matrices."""
    return isinstance(value, dict) and ("TopologyParams" in value or "capacity" in value)


def read_teccl(value: Any, path: str, name: str) -> Topology:
    """Machine of a TE-CCL input file, or of the matrices that its topology classes hold.

    Inputs name a topology that TE-CCL builds in code: DGX1, Mesh and Torus are known here. Matrices are ``capacity`` in chunks a
    second, ``alpha`` in seconds, ``chunk_size`` in GB (default 1), ``switch_indices``. TE-CCL's alpha is a latency that
    occupies nothing.

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
        If a field is wrong, or the topology is none of the known ones.
    """
    fields = Fields(value, path)
    if fields.has("TopologyParams"):
        return _teccl_by_name(fields.object("TopologyParams"))
    rows = fields.items("capacity")
    chunk_gb = fields.number("chunk_size", 1.0, above=0.0)
    switches = set(fields.integers("switch_indices", [], least=0))
    per_chassis = fields.integer("node_per_chassis", len(rows), least=1)
    alphas = fields.items("alpha")
    graph = SwitchedGraph(name, "the matrices of a TE-CCL topology; its alpha is latency that occupies nothing")
    graph.latency_is_free = True
    for index in range(len(rows)):
        graph.vertices[str(index)] = None
        if index not in switches:
            graph.node_of[str(index)] = len(graph.node_of) // per_chassis
    for src, row in enumerate(rows):
        capacity = _row(fields, "capacity", src, row, len(rows))
        alpha = _row(fields, "alpha", src, alphas[src] if src < len(alphas) else [], len(rows))
        for dst, rate in enumerate(capacity):
            if rate > 0 and src != dst:
                graph.edges[str(src), str(dst)] = [AlphaBeta(max(alpha[dst], 0.0) * 1e6, 1000 / (rate * chunk_gb))]
    return graph.topology(path)


def _row(fields: Fields, key: str, place: int, row: Any, size: int) -> list[float]:
    numbers = Fields({str(place): row}, fields.path, f"/{key}").numbers(str(place), least=-1.0, most=MAX_COST_US)
    if len(numbers) != size:
        fields.fail(f"{key}/{place}", f"found {len(numbers)} numbers, {size} are needed, one for each vertex")
    return numbers


def _teccl_by_name(params: Fields) -> Topology:
    """Machines that TE-CCL's own classes build, by the figures that stand there."""
    word = params.text("name").lower()
    chassis = params.integer("chassis", 1, least=1)
    alpha_us = 1e6 * params.numbers("alpha")[0] if params.has("alpha") and params.items("alpha") else 0.0
    if word in ("mesh", "torus") and chassis == 1:
        side = params.integer("side_length", 4, least=2, most=256)
        machine = formula_topology(f"{word}:{side}x{side},alpha_us=0,beta_us_per_mb=10")
        pairs = {(k.src, k.dst): k.beta_us_per_mb for k in machine.links}
        node_of = machine.node_of
    elif word == "dgx1" and chassis == 1:
        pairs, node_of = {}, (0,) * 8
        for a, b, width in _DGX1:
            pairs[a, b] = pairs[b, a] = 1000 / (25 * width)
    else:
        params.fail(
            "name",
            f"found {params.text('name')!r} with {chassis} chassis, which TE-CCL builds in code; give its capacity, alpha "
            "and switch_indices as JSON matrices (known by name, with 1 chassis: DGX1, Mesh, Torus)",
        )
    links = tuple(Link(a, b, 0.0, beta, alpha_us) for (a, b), beta in pairs.items())
    source = f"TE-CCL's {params.text('name')} with the alpha of the input file, which is latency that occupies nothing"
    return Topology(f"teccl-{word}", source, node_of, (), links)


def is_sccl(value: Any) -> bool:
    """True if a JSON value is a topology that SCCL (msccl-tools) saved."""
    return isinstance(value, dict) and "topology" in (value.get("sccl_type"), value.get("msccl_type"))


def read_sccl(value: Any, path: str, name: str, unit_gbps: float) -> Topology:
    """Machine of a topology that SCCL saved.

    ``links[dst][src]`` are chunks of a round, 0 without a link; a switch (sources, destinations, chunks of a round, name) is a port
    that all links from its sources to its destinations share (``sccl/topologies/topology.py`` of msccl-tools).

    Parameters
    ----------
    value
        The JSON value.
    path
        File name for error messages.
    name
        Name of the machine.
    unit_gbps
        Rate that one chunk of a round stands for, in GB/s.

    Raises
    ------
    InputError
        If a field is wrong, or some rank cannot reach another.
    """
    fields = Fields(value, path)
    rows = fields.items("links")
    if not 0 < len(rows) <= MAX_RANKS:
        fields.fail("links", f"found {len(rows)} rows, 1 to {MAX_RANKS} are possible, one for each rank")
    table, shared = PortTable(), _sccl_switches(fields, len(rows), unit_gbps)
    links = []
    for dst, row in enumerate(rows):
        for src, chunks in enumerate(_row(fields, "links", dst, row, len(rows))):
            if chunks > 0 and src != dst:
                ports = tuple(table.index(port, cost) for port, ends, cost in shared if (src, dst) in ends)
                links.append(Link(src, dst, GPU_LINK_ALPHA_US, 1000 / (unit_gbps * chunks), ports=ports))
    source = (
        f"the SCCL topology {fields.text('name')}, one chunk of a round as {unit_gbps:g} GB/s; alpha is {GPU_LINK_ALPHA_US} us, "
        "not measured"
    )
    try:
        topology = Topology(name, source, (0,) * len(rows), table.ports, tuple(links))
        require_connected(topology)
    except InputError as error:
        raise InputError(error.what, path=path) from None
    return topology


def _sccl_switches(
    fields: Fields, num_ranks: int, unit_gbps: float
) -> list[tuple[str, set[tuple[int, int]], AlphaBeta]]:
    """Name, pairs (source, destination) and cost of every switch."""
    found: list[tuple[str, set[tuple[int, int]], AlphaBeta]] = []
    for place, item in enumerate(fields.items("switches", [])):
        if not isinstance(item, list) or len(item) != 4:
            fields.fail(f"switches/{place}", "is no list of sources, destinations, chunks of a round and a name")
        parts = Fields(dict(zip(("0", "1", "2", "3"), item, strict=True)), fields.path, f"/switches/{place}")
        sources, destinations = parts.integers("0", least=0), parts.integers("1", least=0)
        if max([*sources, *destinations], default=0) >= num_ranks:
            parts.fail("0", f"names a rank that does not exist, ranks are 0..{num_ranks - 1}")
        cost = AlphaBeta(0.0, 1000 / (unit_gbps * parts.number("2", above=0.0)))
        found.append((f"{parts.text('3')} ({place})", {(a, b) for a in sources for b in destinations}, cost))
    return found


_DGX1 = (
    (0, 1, 2), (0, 2, 1), (0, 3, 1), (0, 4, 2), (1, 2, 1), (1, 3, 2), (1, 5, 1), (2, 3, 2),
    (2, 6, 2), (3, 7, 1), (4, 5, 2), (4, 6, 1), (4, 7, 1), (5, 6, 1), (5, 7, 2), (6, 7, 2),
)  # fmt: skip
