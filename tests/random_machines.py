"""Irregular machines by number: the same number gives the same machine everywhere."""

import random

from taccl_py.topology.model import Link, Port, Topology

# us for each MB: 100, 50, 25 and 12.5 GB/s, so that sums are exact.
_BETAS = (10.0, 20.0, 40.0, 80.0)
_ALPHAS_US = (0.3, 0.7, 1.5)


def random_machine(number: int, fewest_ranks: int = 6, most_ranks: int = 24) -> Topology:
    """A strongly connected machine of links that cost something else in each direction, and of ports that they share.

    A ring in random order, most of it both ways, with chords. Ports lie at the ranks, out of or into some of them, or somewhere, so that
    links share one which have no rank in common. A third of the machines has few ports that are slow, a third has as many as ranks.
    """
    rng = random.Random(number)
    ranks = rng.randrange(fewest_ranks, most_ranks + 1)
    pairs = _pairs(rng, ranks)
    num_ports = rng.choice([max(2, ranks // 4), ranks // 2, ranks])
    slowest = rng.choice([2, 3, 4])
    ports = [Port(f"p{port}", rng.choice((0.0, 0.5)), rng.choice(_BETAS[:slowest]) / 2) for port in range(num_ports)]
    uses = {pair: _ports_of(rng, *pair, num_ports) for pair in pairs}
    used = sorted({port for each in uses.values() for port in each})
    links = [
        Link(*pair, rng.choice(_ALPHAS_US), rng.choice(_BETAS), 0.0, tuple(used.index(port) for port in uses[pair]))
        for pair in pairs
    ]
    return Topology(
        f"random{number}", f"tests.random_machines, number {number}", (0,) * ranks,
        tuple(ports[port] for port in used), tuple(links),
    )  # fmt: skip


def _pairs(rng: random.Random, ranks: int) -> list[tuple[int, int]]:
    order = rng.sample(range(ranks), ranks)
    ring = list(zip(order, order[1:] + order[:1], strict=True))
    back = [(b, a) for a, b in ring if rng.random() < 0.8]
    chords = [tuple(rng.sample(range(ranks), 2)) for _ in range(rng.randrange(ranks))]
    return sorted({*ring, *back, *chords})


def _ports_of(rng: random.Random, src: int, dst: int, num_ports: int) -> tuple[int, ...]:
    """None, one at either end, both, or one somewhere."""
    place = rng.randrange(5)
    found = {0: (), 1: (src,), 2: (src, dst + 1), 3: (dst,), 4: (rng.randrange(num_ports),)}[place]
    return tuple(dict.fromkeys(port % num_ports for port in found))
