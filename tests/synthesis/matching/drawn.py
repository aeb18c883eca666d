"""Machines without any regularity, for tests of what serves any shape."""

import random

from taccl_py.collective import Collective
from taccl_py.synthesis.matching.exchange import exchange
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.flood import ChunkPriority, FloodRule, flood
from taccl_py.topology.model import Link, Port, Topology


def torn(draw_seed, ranks):
    """A machine that still holds together: a ring, and some links besides, of all sorts."""
    rng = random.Random(draw_seed)
    pairs = {(r, (r + 1) % ranks) for r in range(ranks)}
    pairs |= {tuple(rng.sample(range(ranks), 2)) for _ in range(2 * ranks)}
    links = [Link(a, b, rng.choice((0.2, 1.0, 3.0)), rng.choice((5.0, 20.0, 80.0))) for a, b in sorted(pairs)]
    drawn = sorted(rng.randrange(3) for _ in range(ranks))
    nodes = tuple(sorted(set(drawn)).index(node) for node in drawn)
    return Topology("torn", "drawn", nodes, (), tuple(links))


def with_ports(topology, draw_seed):
    """Some links behind ports that they share, of which some links have two."""
    rng = random.Random(draw_seed)
    ports = tuple(Port(f"port {number}", rng.choice((0.1, 1.0)), rng.choice((5.0, 40.0))) for number in range(4))
    links = tuple(
        Link(k.src, k.dst, k.alpha_us, k.beta_us_per_mb, rng.choice((0.0, 2.0)), tuple(rng.sample(range(4), rng.randrange(3))))
        for k in topology.links
    )  # fmt: skip
    return Topology("ported", "drawn", topology.node_of, ports, links)


def matched(topology, kind, *, chunks=1, chunk_bytes=1e5, seed=0):
    """Fabric, collective and messages of one attempt."""
    collective = Collective(kind, topology.num_ranks, chunks)
    fabric = Fabric.of(topology, chunk_bytes)
    if kind == "alltoall":
        return fabric, collective, exchange(fabric, chunks, range(topology.num_ranks))
    return (
        fabric,
        collective,
        flood(fabric, collective.source, FloodRule(ChunkPriority.RAREST, True, seed), lambda: False),
    )
