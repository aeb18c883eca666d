"""Random problems: small machines with ports, latency and parallel links, and repeated nodes with a sketch that fits."""

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.sketch.model import Policy, Rotation, Sketch, Strategy, SwitchGroup
from taccl_py.topology.model import Link, Port, Topology
from tests.instances import MB, machine

ROUTED_KINDS = (Kind.ALLGATHER, Kind.BROADCAST, Kind.GATHER, Kind.SCATTER, Kind.ALLTOALL)
_ALPHAS_US = (0.0, 1.0, 3.0, 10.0)
_BETAS = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class Drawn:
    """What an engine is asked."""

    topology: Topology
    collective: Collective
    sketch: Sketch | None = None
    chunk_bytes: float = MB


def draw_collective(rng, kinds, num_ranks, chunks_per_rank):
    kind = rng.choice(kinds)
    root = rng.randrange(num_ranks) if kind in ROOTED else 0
    return Collective(kind, num_ranks, chunks_per_rank, root)


def draw_machine(rng, num_ranks, alphas_us=_ALPHAS_US, mixed_latency=False):
    """A strongly connected machine; costs are whole so that the solvers' grid is exact.

    All links have the same latency unless `mixed_latency`.
    """
    latencies_us = (0.0, 0.0, 4.0) if mixed_latency else (rng.choice([0.0, 0.0, 4.0]),)
    order = rng.sample(range(num_ranks), num_ranks)
    pairs = [(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True)]
    if rng.random() < 0.6:
        pairs += [(b, a) for a, b in pairs]
    pairs += [tuple(rng.sample(range(num_ranks), 2)) for _ in range(rng.randrange(num_ranks + 1))]
    pairs = sorted(set(pairs))
    if rng.random() < 0.2:
        pairs.append(rng.choice(pairs))
    style = rng.choice(["none", "any", "switch"])
    num_ports = {"none": 0, "any": num_ranks, "switch": 2 * num_ranks}[style]
    ports = [Port(f"port {i}", rng.choice(alphas_us), rng.choice(_BETAS)) for i in range(num_ports)]

    def ports_of(src, dst):
        if style == "switch":
            return (2 * src, 2 * dst + 1)
        return tuple(rng.sample(range(num_ports), rng.randrange(min(3, num_ports + 1)))) if num_ports else ()

    links = [
        Link(a, b, rng.choice(alphas_us), rng.choice(_BETAS), rng.choice(latencies_us), ports_of(a, b))
        for a, b in pairs
    ]
    node_of = None if rng.random() < 0.6 else tuple(sorted(r % 2 for r in range(num_ranks)))
    return machine(num_ranks, links, ports, node_of)


def draw_problem(rng, kinds=ROUTED_KINDS, alphas_us=_ALPHAS_US, most_ranks=4, most_chunks=6, mixed_latency=False):
    """A problem without sketch, small enough for an exhaustive search."""
    while True:
        num_ranks = rng.randrange(2, most_ranks + 1)
        collective = draw_collective(rng, kinds, num_ranks, rng.choice([1, 1, 2]))
        if collective.num_chunks <= most_chunks:
            return Drawn(draw_machine(rng, num_ranks, alphas_us, mixed_latency), collective)


def draw_nodes(rng, kinds=ROUTED_KINDS):
    """Equal nodes, joined like in a random sketch; the sketch permits a way for every chunk."""
    per_node, num_nodes = rng.choice([1, 2, 3, 3]), rng.choice([2, 2, 3])
    senders = sorted(rng.sample(range(per_node), rng.randrange(1, per_node + 1)))
    connections = {s: tuple(sorted(rng.sample(range(per_node), rng.randrange(1, per_node + 1)))) for s in senders}
    topology = _repeated_nodes(rng, per_node, num_nodes, connections)
    return Drawn(
        topology,
        draw_collective(rng, kinds, topology.num_ranks, rng.choice([1, 1, 2])),
        _sketch_for(rng, per_node, connections),
    )


def _repeated_nodes(rng, per_node, num_nodes, connections):
    alphas_us = rng.choice([(0.0,), _ALPHAS_US, (10.0, 30.0)])
    inside = {
        (a, b): (rng.choice(alphas_us), rng.choice(_BETAS))
        for a in range(per_node)
        for b in range(per_node)
        if b == (a + 1) % per_node != a or (a != b and rng.random() < 0.5)
    }
    between = (rng.choice([0.0, 10.0, 50.0]), rng.choice([20.0, 50.0]))
    port_costs = [(rng.choice(alphas_us), rng.choice(_BETAS)) for _ in range(2)]
    has_switch, has_nic = rng.random() < 0.4, rng.random() < 0.4
    ports = []
    for node in range(num_nodes):
        ports += [Port(f"{node} {rank} {way}", *port_costs[0]) for rank in range(per_node) for way in ("out", "in")]
        ports += [Port(f"{node} nic {way}", *port_costs[1]) for way in ("out", "in")]
    ports_per_node = 2 * per_node + 2
    links = []
    for node in range(num_nodes):
        base, first_port = node * per_node, node * ports_per_node
        for (a, b), cost in inside.items():
            used = (first_port + 2 * a, first_port + 2 * b + 1) if has_switch else ()
            links.append(Link(base + a, base + b, *cost, ports=used))
        for other in (n for n in range(num_nodes) if n != node):
            used = (first_port + 2 * per_node, other * ports_per_node + 2 * per_node + 1) if has_nic else ()
            links += [
                Link(base + a, other * per_node + b, *between, ports=used)
                for a, receivers in connections.items()
                for b in receivers
            ]
    return machine(
        num_nodes * per_node, links, ports, tuple(r // per_node for r in range(num_nodes * per_node)), name="nodes"
    )


def _sketch_for(rng, per_node, connections):
    words = {}
    if rng.random() < 0.5:
        words["connections"] = rng.choice([connections, "fully-connected"])
    if rng.random() < 0.5:
        served = {sender: [] for sender in connections}
        for rank in range(per_node):
            served[rng.choice(list(connections))].append(rank)
        words["relays"] = {sender: tuple(ranks) for sender, ranks in served.items() if ranks}
        words["own_first"] = rng.random() < 0.7
    if rng.random() < 0.7:
        words["rotations"] = (Rotation("node", "machine"),)
    strategy = rng.choice(list(Strategy))
    if strategy is Strategy.SWITCH and per_node > 1:
        words["switches"] = (SwitchGroup(tuple(range(per_node)), rng.choice(list(Policy))),)
    if strategy is not Strategy.SWITCH or per_node > 1:
        words["strategy"] = strategy
    return Sketch("drawn", chunks_per_rank=1, **words)


def _seeds(draw, **how):
    return st.integers(0, 2**32).map(lambda seed: draw(random.Random(seed), **how))


def problems(**how):
    return _seeds(draw_problem, **how)


def node_problems(**how):
    return _seeds(draw_nodes, **how)


def joined_nodes(rng, per_node, num_nodes, alphas_us, betas):
    """Nodes with rings, some more links and perhaps a switch, joined by a few links behind NICs."""
    num_ranks = per_node * num_nodes
    ports = [
        Port(f"{rank} {way}", rng.choice(alphas_us), rng.choice(betas)) for rank in range(num_ranks) for way in "oi"
    ]
    nics = [
        Port(f"nic {node} {way}", rng.choice((2.0, 5.0, 10.0)), rng.choice(betas))
        for node in range(num_nodes)
        for way in "oi"
    ]
    switched, shared = rng.random() < 0.5, rng.random() < 0.7
    links = []
    for a in range(num_ranks):
        for b in range(num_ranks):
            here, there = a // per_node, b // per_node
            if a == b:
                continue
            if here == there:
                if (b - a) % per_node in (1, per_node - 1) or rng.random() < 0.5:
                    used = (2 * a, 2 * b + 1) if switched else ()
                    links.append(Link(a, b, rng.choice((0.5, 1.0)), rng.choice(betas), ports=used))
            elif a % per_node == b % per_node == 0 or rng.random() < 0.3:
                used = (2 * num_ranks + 2 * here, 2 * num_ranks + 2 * there + 1) if shared else ()
                links.append(Link(a, b, rng.choice((2.0, 5.0, 10.0)), rng.choice(betas), rng.choice((0.0, 1.0)), used))
    return machine(num_ranks, links, (*ports, *nics), tuple(r // per_node for r in range(num_ranks)))
