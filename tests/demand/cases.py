"""Machines and random demands for tests."""

import json
import math
import random

from hypothesis import strategies as st

from taccl_py.demand import ChunkPlace, DataDemand
from taccl_py.demand.files import read_demand
from taccl_py.demand.variable import allgatherv, alltoallv, reducescatterv, sendrecv
from taccl_py.solvers.limits import Limits
from taccl_py.topology.model import Link, Port, Topology

# For tests of what is done with a schedule, where any one will do.
QUICK = Limits(seconds=0.1, by_work=True)


def full(ranks, alpha=0.5, beta=20.0):
    """A machine in which every pair has a link."""
    links = tuple(Link(a, b, alpha, beta) for a in range(ranks) for b in range(ranks) if a != b)
    return Topology(f"full-{ranks}", "test", (0,) * ranks, (), links)


def ring(ranks, alpha=0.5, beta=20.0):
    """A ring in both directions."""
    pairs = sorted({(a, (a + step) % ranks) for a in range(ranks) for step in (1, ranks - 1)})
    return Topology(f"ring-{ranks}", "test", (0,) * ranks, (), tuple(Link(a, b, alpha, beta) for a, b in pairs))


def switch(ranks, alpha=3.0, beta=2.0):
    """A switch with one port in and one port out for every rank."""
    ports = tuple(Port(f"{rank} {way}", alpha, beta) for rank in range(ranks) for way in ("out", "in"))
    links = tuple(
        Link(a, b, alpha, beta, 0.0, (2 * a, 2 * b + 1)) for a in range(ranks) for b in range(ranks) if a != b
    )
    return Topology(f"switch-{ranks}", "test", (0,) * ranks, ports, links)


def hosts(number, gpus=4, gb_per_s=1.25, inside=1e-3):
    """AlpaComm's machine: hosts with so much bandwidth each way, fast inside, no alphas."""
    beta, ranks = 1e3 / gb_per_s, number * gpus
    ports = tuple(Port(f"host {host} {way}", 0.0, beta) for host in range(number) for way in ("out", "in"))

    def link(a, b):
        one, other = a // gpus, b // gpus
        return Link(a, b, 0.0, inside) if one == other else Link(a, b, 0.0, beta, 0.0, (2 * one, 2 * other + 1))

    links = tuple(link(a, b) for a in range(ranks) for b in range(ranks) if a != b)
    return Topology(f"hosts-{number}", "test", tuple(rank // gpus for rank in range(ranks)), ports, links)


def irregular():
    """Five ranks with links of different speed, both ways, and no symmetry."""
    costs = {(0, 1): 20.0, (1, 2): 40.0, (2, 3): 20.0, (3, 4): 30.0, (4, 0): 20.0, (1, 3): 60.0}
    links = sorted((*ends, cost) for (a, b), cost in costs.items() for ends in ((a, b), (b, a)))
    return Topology("irregular", "test", (0,) * 5, (), tuple(Link(a, b, 1.0, cost) for a, b, cost in links))


@st.composite
def demands(draw, most_ranks=6, most_chunks=6):
    """Copies and sums of unequal chunks, with several holders and several ranks that want them."""
    ranks = draw(st.integers(3, most_ranks))
    dtype = draw(st.sampled_from(["uint8", "float32", "bfloat16"]))
    size = {"uint8": 1, "float32": 4, "bfloat16": 2}[dtype]
    chunks = []
    for _ in range(draw(st.integers(1, most_chunks))):
        order = draw(st.permutations(range(ranks)))
        held = draw(st.integers(1, ranks))
        terms = draw(st.integers(1, held))
        had = [order[term:held:terms] for term in range(terms)]
        wants = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=ranks, unique=True))
        chunks.append(
            {"bytes": size * draw(st.integers(1, 300)), "wants": wants}
            | ({"adds": had} if terms > 1 else {"holds": had[0]})
        )
    return demand_of(ranks, chunks, dtype)


def demand_of(ranks, chunks, dtype="uint8"):
    """Demand of chunks as a file has them."""
    file = {"format": "taccl-demand", "version": 1, "ranks": ranks, "dtype": dtype, "chunks": chunks}
    return read_demand(json.dumps(file), "my.json")


def relabelled(demand, ranks, chunks):
    """The demand with rank r called ``ranks[r]``, and its chunks in another order."""
    place = dict(enumerate(ranks))

    def moved(regions):
        return tuple(ChunkPlace(place[rank], offset) for rank, offset in regions)

    new = tuple(
        type(chunk)(chunk.size_bytes, tuple(moved(term) for term in chunk.terms), moved(chunk.wants))
        for chunk in (demand.chunks[number] for number in chunks)
    )
    lengths = [[0] * demand.num_ranks, [0] * demand.num_ranks]
    for old, name in place.items():
        lengths[0][name], lengths[1][name] = demand.input_bytes[old], demand.output_bytes[old]
    return DataDemand(demand.name, demand.num_ranks, new, tuple(lengths[0]), tuple(lengths[1]), demand.dtype)


def stragglar(ranks, size_bytes):
    """AllReduce of which all ranks but the last have reduce-scattered their part."""
    shard = size_bytes // (ranks - 1) // 4 * 4
    last = ranks - 1
    chunks = [{"bytes": shard, "adds": [[rank], [last]], "wants": list(range(ranks))} for rank in range(last)]
    return demand_of(ranks, chunks, "float32")


def is_near(one, other, part=1e-9):
    return math.isclose(one, other, rel_tol=part)


def scaled(demand, factor):
    """The demand with all sizes, places and lengths so many times as large."""

    def moved(regions):
        return tuple(ChunkPlace(rank, offset * factor) for rank, offset in regions)

    chunks = tuple(
        type(chunk)(chunk.size_bytes * factor, tuple(map(moved, chunk.terms)), moved(chunk.wants))
        for chunk in demand.chunks
    )
    inputs, outputs = (
        tuple(length * factor for length in lengths) for lengths in (demand.input_bytes, demand.output_bytes)
    )
    return DataDemand(demand.name, demand.num_ranks, chunks, inputs, outputs, demand.dtype)


# Two copies, one of them for two ranks, a sum whose summands two ranks hold, and a rank without an output.
MIXED = [
    {"bytes": 4800, "holds": [0, 1], "wants": [2, 3]},
    {"bytes": 1600, "adds": [[0], [1, 2], [3]], "wants": [2, 0]},
    {"bytes": 64, "holds": [3], "wants": [0]},
]


def drawn_demands(ranks, number, unit=10**6):
    """Demands of some units of bytes for a machine of so many ranks, by name; the same number gives the same ones everywhere."""
    rng = random.Random(number)
    counts = [[rng.randrange(1, 9) * unit // ranks for _ in range(ranks)] for _ in range(ranks)]
    pairs = [(*rng.sample(range(ranks), 2), rng.randrange(1, 9) * unit) for _ in range(2 * ranks)]
    return {
        "AllToAllv": alltoallv(counts),
        "AllGatherv": allgatherv([rng.randrange(1, 9) * unit for _ in range(ranks)]),
        "ReduceScatterv": reducescatterv([rng.randrange(1, 9) * unit // 4 for _ in range(ranks)]),
        "sends between pairs": sendrecv(pairs, ranks),
        "copies and sums of a few ranks": demand_of(ranks, [_drawn_chunk(rng, ranks, unit) for _ in range(12)]),
    }


def _drawn_chunk(rng, ranks, unit):
    """A copy for one to three ranks, or a sum of two to four, for another rank or for some of those who add to it."""
    order, size = rng.sample(range(ranks), ranks), rng.randrange(1, 9) * unit
    sort = rng.choice(("copy", "sum", "exchange"))
    if sort == "copy":
        return {"bytes": size, "holds": order[: rng.choice((1, 1, 2))], "wants": order[2 : 3 + rng.randrange(3)]}
    if sort == "sum":
        return {"bytes": size, "adds": order[: rng.randrange(2, 5)], "wants": [order[5]]}
    return {"bytes": size, "adds": order[:4], "wants": order[: rng.randrange(2, 5)]}
