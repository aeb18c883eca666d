"""The six flat cases whose times on ASTRA-sim 518bd51 are known, as schedules written by hand: 0.5 us and 20 us/MB."""

from itertools import permutations

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.topology.machines import formula_topology

RANKS = 8
MB = 1_000_000


def built(machine, kind, size_bytes, parts, moves):
    """Schedule of moves (step, src, dst, chunks, whether they are added)."""
    topology = formula_topology(machine)
    collective = Collective(kind, topology.num_ranks, parts)
    drafts = [
        UntimedMessage(topology.links_between[src, dst][0], chunks, step, step + 1, adds, packed=len(chunks) > 1)
        for step, src, dst, chunks, adds in sorted(moves)
    ]
    return build_schedule(topology, collective, collective.chunk_bytes(size_bytes), drafts)


def direct(kind, size_bytes):
    """Every rank to every other one at once; AllReduce sums so first."""
    pairs = list(permutations(range(RANKS), 2))
    if kind is Kind.ALLTOALL:
        moves = [(0, a, b, (a * RANKS + b,), False) for a, b in pairs]
    else:
        moves = [(1, a, b, (a,), False) for a, b in pairs]
    if kind is Kind.ALLREDUCE:
        moves += [(0, a, b, (b,), True) for a, b in pairs]
    return built(f"full:{RANKS}", kind, size_bytes, 1, moves)


def spread_on_ring():
    """AllGather of two halves per rank: three steps both directions, and half of it each way to the rank opposite."""
    for step in range(4):
        for rank in range(RANKS):
            for side, half in ((1, 0), (-1, 1)):
                owner = (rank - side * step) % RANKS
                chunks = (2 * owner, 2 * owner + 1) if step < 3 else (2 * owner + half,)
                yield step, rank, (rank + side) % RANKS, chunks, False


def gather_on_ring(size_bytes):
    return built(f"ring:{RANKS}", Kind.ALLGATHER, size_bytes, 2, spread_on_ring())


def sum_on_ring(size_bytes):
    """AllReduce: the AllGather backwards, adding, then the AllGather."""
    gather = list(spread_on_ring())
    moves = [(3 - step, dst, src, chunks, True) for step, src, dst, chunks, _ in gather]
    moves += [(4 + step, *rest) for step, *rest in gather]
    return built(f"ring:{RANKS}", Kind.ALLREDUCE, size_bytes, 2, moves)


def exchange_on_ring(size_bytes):
    """AllToAll in seven messages on every link: far data together three steps on, then data for two ranks on, for the next, and the last step.

    Two halves per pair; the rank opposite gets one from each side.
    """
    moves = []
    for rank in range(RANKS):
        for side, half in ((1, 0), (-1, 1)):

            def data(distance, rank=rank, side=side, half=half):
                first = (rank * RANKS + (rank + side * distance) % RANKS) * 2
                return (first, first + 1) if distance < 4 else (first + half,)

            def move(step, hop, chunks, rank=rank, side=side):
                src = (rank + side * (hop - 1)) % RANKS
                moves.append((step, src, (src + side) % RANKS, chunks, False))

            for hop in (1, 2, 3):
                move(hop - 1, hop, data(3) + data(4))
            move(3, 1, data(2))
            move(4, 2, data(2))
            move(5, 1, data(1))
            move(6, 4, data(4))
    return built(f"ring:{RANKS}", Kind.ALLTOALL, size_bytes, 2, moves)


# What ASTRA-sim says, in microseconds.
SIX = {
    "full:8 allgather 1 MB": (lambda: direct(Kind.ALLGATHER, MB), 3.0),
    "full:8 allreduce 64 MB": (lambda: direct(Kind.ALLREDUCE, 64 * MB), 321.0),
    "full:8 alltoall 16 MB": (lambda: direct(Kind.ALLTOALL, 16 * MB), 40.5),
    "ring:8 allgather 16 MB": (lambda: gather_on_ring(16 * MB), 142.0),
    "ring:8 allreduce 1 MB": (lambda: sum_on_ring(MB), 21.5),
    "ring:8 alltoall 1 MB": (lambda: exchange_on_ring(MB), 23.5),
}
