"""Tiny problems whose best time is derived by hand, and TACCL's machines and sketches as data in its own file format.

The time of an `Instance` is in its ``optimum_us``; how it follows is in the docstring of the function that makes it. Links
take ``alpha + beta * n`` for n chunks, and all chunks have 1 MB unless said otherwise.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Rotation, Sketch
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.topology.model import Link, Port, Topology

MB = 1_000_000

# PuLP 3.3 announces PuLP 4 at every variable, and every warning is an error here.
quiet_pulp = pytest.mark.filterwarnings(
    "ignore:Constructing LpVariable:DeprecationWarning", "ignore:PULP_CBC_CMD is deprecated:DeprecationWarning"
)


@dataclass(frozen=True)
class Instance:
    """A problem with its best time; ``tight`` says that a simple cut or path argument proves it, so the bound must."""

    name: str
    topology: Topology
    collective: Collective
    optimum_us: float
    tight: bool = True
    sketch: Sketch | None = None
    chunk_bytes: float = MB

    def __str__(self) -> str:
        return self.name


def demand_of_chunks(topology, collective, sketch, chunk_bytes):
    """Demand for a collective whose chunks are given, with their size."""
    size_bytes = chunk_bytes * collective.chunks_per_size
    return Demand(topology, collective.kind, size_bytes, collective.root, sketch, collective.chunks_per_rank)


def machine(num_ranks, links, ports=(), node_of=None, symmetry=(), name="test"):
    return Topology(name, "made up", node_of or (0,) * num_ranks, tuple(ports), tuple(links), tuple(symmetry))


def ring(num_ranks, alpha_us=1.0, beta_us_per_mb=10.0, both_ways=False, latency_us=0.0):
    """A ring with the rotation as its symmetry."""
    links = [Link(r, (r + 1) % num_ranks, alpha_us, beta_us_per_mb, latency_us) for r in range(num_ranks)]
    if both_ways:
        links += [Link(k.dst, k.src, alpha_us, beta_us_per_mb, latency_us) for k in links]
    return machine(num_ranks, links, symmetry=[tuple((r + 1) % num_ranks for r in range(num_ranks))])


def chain(num_ranks, alpha_us=1.0, beta_us_per_mb=10.0, latency_us=0.0):
    """Rank 0 -> 1 -> 2 -> ... and no way back."""
    return machine(num_ranks, [Link(r, r + 1, alpha_us, beta_us_per_mb, latency_us) for r in range(num_ranks - 1)])


def star_in(num_leaves, port, beta_us_per_mb=10.0):
    """Leaves 1, 2, ... with a link each into rank 0, all behind one port of rank 0."""
    return machine(
        num_leaves + 1, [Link(r, 0, 0.0, beta_us_per_mb, ports=(0,)) for r in range(1, num_leaves + 1)], [port]
    )


def full(num_ranks, alpha_us=1.0, beta_us_per_mb=10.0):
    """Every pair linked, with the rotation as its symmetry."""
    links = [Link(a, b, alpha_us, beta_us_per_mb) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    return machine(num_ranks, links, symmetry=[tuple((r + 1) % num_ranks for r in range(num_ranks))])


def lines_of_three(nic_us=5.0, num_nodes=2):
    """Nodes of three ranks in a line, with 1 us a hop; every rank has a NIC and reaches all ranks of other nodes in 5 us."""
    num_ranks = 3 * num_nodes
    links = [Link(a, b, 1.0, 0.0) for a in range(num_ranks) for b in (a - 1, a + 1) if b >= 0 and a // 3 == b // 3]
    links += [
        Link(a, b, 5.0, 0.0, ports=(a, num_ranks + b))
        for a in range(num_ranks)
        for b in range(num_ranks)
        if a // 3 != b // 3
    ]
    ports = [Port(f"nic {rank % num_ranks} {rank // num_ranks}", nic_us, 0.0) for rank in range(2 * num_ranks)]
    return machine(num_ranks, links, ports, tuple(rank // 3 for rank in range(num_ranks)))


def two_nodes(per_node, connections, inside=(0.0, 10.0), between=(0.0, 50.0), num_nodes=2):
    """Nodes in which every pair is linked, and links between all nodes as in a sketch's connections.

    `inside` and `between` are (alpha_us, beta_us_per_mb).
    """
    links = []
    for node in range(num_nodes):
        base = node * per_node
        links += [Link(base + a, base + b, *inside) for a in range(per_node) for b in range(per_node) if a != b]
        for other in range(num_nodes):
            if other != node:
                links += [
                    Link(base + a, other * per_node + b, *between) for a, receivers in connections.items()
                    for b in receivers
                ]  # fmt: skip
    num_ranks = num_nodes * per_node
    return machine(
        num_ranks, links, node_of=tuple(r // per_node for r in range(num_ranks)),
        symmetry=[tuple((r + per_node) % num_ranks for r in range(num_ranks))],
    )  # fmt: skip


def nodes_with_nics(num_nodes, per_node, inside_us, across_us):
    """Nodes on a switch, each with one NIC that all of its ranks share."""
    ports = [Port(f"rank {r} {way}", inside_us, 0.0) for r in range(num_nodes * per_node) for way in ("out", "in")]
    first_nic = len(ports)
    ports += [Port(f"nic {n} {way}", across_us, 0.0) for n in range(num_nodes) for way in ("out", "in")]
    links = []
    for a in range(num_nodes * per_node):
        for b in range(num_nodes * per_node):
            here, there = a // per_node, b // per_node
            if here == there and a != b:
                links.append(Link(a, b, inside_us, 0.0, ports=(2 * a, 2 * b + 1)))
            elif here != there:
                links.append(Link(a, b, across_us, 0.0, ports=(first_nic + 2 * here, first_nic + 2 * there + 1)))
    return machine(num_nodes * per_node, links, ports, tuple(r // per_node for r in range(num_nodes * per_node)))


NODES = (Rotation("node", "machine"),)


def one_way_ring():
    """AllGather on a ring of 4: a chunk makes 3 hops of 11 us, and while it does nothing else is in its way: 33."""
    return Instance("one-way ring", ring(4), Collective(Kind.ALLGATHER, 4), 33.0)


def two_way_ring():
    """AllGather on a ring of 4 with links both ways: the chunk of the rank across needs 2 hops: 22."""
    return Instance("two-way ring", ring(4, both_ways=True), Collective(Kind.ALLGATHER, 4), 22.0)


def shared_port():
    """Gather of 3 leaves through a port as fast as the links: one after the other, 30."""
    return Instance("shared port", star_in(3, Port("in", 0.0, 10.0)), Collective(Kind.GATHER, 4), 30.0)


def fast_port():
    """Gather of 3 leaves; a message holds the port for 4 us and its link for 10: starts at 0, 4, 8, the last ends at 18.

    A count of the port alone gives 12, so the bound may stay below.
    """
    return Instance("fast port", star_in(3, Port("in", 0.0, 4.0)), Collective(Kind.GATHER, 4), 18.0, tight=False)


def slow_port():
    """Gather of 3 leaves through a port that is slower than the links: 25 us each, 75."""
    return Instance("slow port", star_in(3, Port("in", 0.0, 25.0)), Collective(Kind.GATHER, 4), 75.0)


def relay_between_nodes():
    """AllGather of two nodes of 2 ranks, joined by one link each way: 2 chunks of 50 us cross it, and then one hop: 110."""
    topology = two_nodes(2, {1: (0,)})
    sketch = Sketch("relay", connections={1: (0,)}, rotations=NODES)
    return Instance("relay between nodes", topology, Collective(Kind.ALLGATHER, 4), 110.0, sketch=sketch)


def small_messages():
    """The same where a message between nodes costs 100 us and a chunk in it 10, inside a node 1 and 1.

    Two messages between nodes take 220. One message waits 2 us for the neighbour's chunk, takes 120, and its two chunks need
    3 us more, together, to the last rank: 125.
    """
    topology = two_nodes(2, {1: (0,)}, inside=(1.0, 1.0), between=(100.0, 10.0))
    sketch = Sketch("relay", connections={1: (0,)}, rotations=NODES)
    return Instance("small messages", topology, Collective(Kind.ALLGATHER, 4), 125.0, tight=False, sketch=sketch)


def two_level():
    """AllGather of two nodes of 2 ranks that are joined rank by rank: across (50) and then to the neighbour (10): 60."""
    topology = two_nodes(2, {0: (0,), 1: (1,)})
    sketch = Sketch("direct", connections="direct", rotations=NODES)
    return Instance("two levels", topology, Collective(Kind.ALLGATHER, 4), 60.0, sketch=sketch)


def chain_scatter():
    """Scatter on a chain of 3: the far chunk first (11, then its second hop until 22), the near one behind it (22)."""
    return Instance("chain scatter", chain(3), Collective(Kind.SCATTER, 3), 22.0)


def delayed_chain():
    """Broadcast of 2 chunks over 2 links with 5 us of latency, which occupies nothing.

    The second chunk leaves rank 0 at 11, is at rank 1 at 27 and at rank 2 at 27 + 11 + 5 = 43; as one message they would be
    there at 26 + 26.
    """
    topology = chain(3, latency_us=5.0)
    return Instance("delayed chain", topology, Collective(Kind.BROADCAST, 3, 2), 43.0, tight=False)


def lanes():
    """Broadcast of 2 chunks to one rank over two parallel links: each takes one, 11."""
    links = [Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 10.0)]
    return Instance("lanes", machine(2, links), Collective(Kind.BROADCAST, 2, 2), 11.0)


def alltoall_ring():
    """AllToAll on a one-way ring of 3 without alpha: every link carries 2 own chunks and 1 in transit: 30."""
    return Instance("alltoall ring", ring(3, alpha_us=0.0), Collective(Kind.ALLTOALL, 3), 30.0)


def alltoall_full():
    """AllToAll where every pair is linked: all at once, 11."""
    return Instance("alltoall full", full(3), Collective(Kind.ALLTOALL, 3), 11.0)


def shared_port_reduce():
    """Reduce of 3 leaves through one port: 30, as the Gather, for a sum is as long as each of its parts."""
    return Instance("shared port reduce", star_in(3, Port("in", 0.0, 10.0)), Collective(Kind.REDUCE, 4), 30.0, False)


def ring_reducescatter():
    """ReduceScatter on a one-way ring of 4: a sum travels 3 hops, 33."""
    return Instance("ring reducescatter", ring(4), Collective(Kind.REDUCESCATTER, 4), 33.0)


def pair_allreduce():
    """AllReduce of two ranks without alpha: each chunk crosses twice, the two links share 4 crossings of 10 us: 20."""
    return Instance("pair allreduce", full(2, alpha_us=0.0), Collective(Kind.ALLREDUCE, 2), 20.0)


ROUTED = (
    one_way_ring(), two_way_ring(), shared_port(), fast_port(), slow_port(), relay_between_nodes(), small_messages(),
    two_level(), chain_scatter(), delayed_chain(), lanes(), alltoall_ring(), alltoall_full(),
)  # fmt: skip
COMBINING = (shared_port_reduce(), ring_reducescatter(), pair_allreduce())
INSTANCES = ROUTED + COMBINING


class StopAt(Events):
    """Sets a stop event as soon as a schedule is at least as fast as a target, so that a test need not wait for the end."""

    def __init__(self, target_us: float, stop: Any) -> None:
        self.target_us = target_us
        self.stop = stop

    def incumbent(self, time_us: float) -> None:
        if time_us <= self.target_us:
            self.stop.set()


# TACCL's machines and sketches, in its own format. Costs of the 1MB profiles are in us, of the 1KB profiles in 0.01 us.

_REMOTE_1MB = {"remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107.6}
_REMOTE_1KB = {"remote_alpha": 260, "remote_beta": 10.25, "remote_invbw": 270.25}
TACCL_PROFILES: Mapping[str, dict[str, Any]] = {
    "NDv2_1MB": {
        "name": "NDv2_1MB", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 0.3,
        "node_betas_list": [23, 46], "node_invbws_list": [23, 46], **_REMOTE_1MB,
    },
    "NDv2_1KB": {
        "name": "NDv2_1KB", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 30,
        "node_betas_list": [2.24, 4.5], "node_invbws_list": [32.25, 34.5], **_REMOTE_1KB,
    },
    "DGX2_1MB": {
        "name": "DGX2_1MB", "gpus_per_node": 16, "nics_per_node": 8, "alpha": 0.3,
        "node_betas_list": [8], "node_invbws_list": [8], **_REMOTE_1MB,
    },
    "DGX2_1KB": {
        "name": "DGX2_1KB", "gpus_per_node": 16, "nics_per_node": 8, "alpha": 30,
        "node_betas_list": [1], "node_invbws_list": [31], **_REMOTE_1KB,
    },
}  # fmt: skip


def taccl_sketch(nodes, connections=None, *, chunks=1, offsets=(), switches=(), policy="uc-min", relays=None, **more):
    """A sketch in TACCL's format; further words are fields of ``internode_sketch``."""
    intra: dict[str, Any] = {"strategy": "none"}
    if switches:
        intra = {
            "strategy": "switch",
            "switches": [list(ranks) for ranks in switches],
            "switch_hyperedge_strategy": [policy] * len(switches),
        }
    value: dict[str, Any] = {
        "nnodes": nodes,
        "intranode_sketch": intra,
        "symmetry_offsets": [list(pair) for pair in offsets],
        "hyperparameters": {"input_chunkup": chunks},
    }
    if connections is not None:
        value["internode_sketch"] = {"strategy": "relay", "internode_conn": connections, **more}
        if relays is not None:
            value["internode_sketch"]["gpus_to_sender_rev_map"] = relays
    return value


_NVSWITCH = [range(16)]
_DGX2_SYMMETRY = ((2, 16), (16, 32))
_PAIRS = range(1, 16, 2)  # of the two GPUs on a NIC the odd one sends
TACCL_SKETCHES: Mapping[str, dict[str, Any]] = {
    "ndv2-n1": taccl_sketch(1),
    "ndv2-n1-6": taccl_sketch(1, chunks=6),
    "ndv2-sk-1": taccl_sketch(2, {"0": [1]}, offsets=[(8, 16)]),
    "ndv2-sk-2": taccl_sketch(2, "fully-connected", offsets=[(8, 16)]),
    "ndv2-sk-3": taccl_sketch(2, "direct-map", offsets=[(8, 16)]),
    "dgx2-sk-1": taccl_sketch(
        2, {str(r): [r - 1] for r in _PAIRS}, chunks=2, offsets=_DGX2_SYMMETRY, switches=_NVSWITCH,
        relays={str(r): [r - 1, r] for r in _PAIRS}, enforce_ordering=True,
    ),
    "dgx2-sk-2": taccl_sketch(
        2, "direct-map", offsets=_DGX2_SYMMETRY, switches=_NVSWITCH, policy="uc-max",
        relays={str(r): [r] for r in range(16)},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class TacclFiles:
    """Paths of a profile and a sketch."""

    profile: Path
    sketch: Path


def write_taccl(folder: Path, profile: str, sketch: str) -> TacclFiles:
    """Write a profile and a sketch as TACCL keeps them."""
    files = TacclFiles(folder / f"{profile}.json", folder / f"{sketch}.json")
    files.profile.write_text(json.dumps(TACCL_PROFILES[profile]), encoding="utf-8")
    files.sketch.write_text(json.dumps(TACCL_SKETCHES[sketch]), encoding="utf-8")
    return files
