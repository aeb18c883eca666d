"""Rings and trees of a schedule, as NCCL's channels have them.

NCCL cuts a buffer into equal parts, one for each channel. On a ring a rank's part goes round from rank to rank (AllGather,
ReduceScatter; AllReduce sums up to one rank and copies on from there, each rank being the last for an equal part). On a tree sums go
up to the root, and copies down the same links (AllReduce alone). A schedule is a set of channels if each of its chunks goes so. A ring
or tree that carries a multiple of another's part is written so many times, and parts may be rounded a little for that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from taccl_py.collective import COMBINING, Kind
from taccl_py.errors import LoweringError
from taccl_py.schedule.ir import Schedule

TARGET = "the channels of NCCL and RCCL"
# Half of MAXCHANNELS (``src/include/device.h`` of NCCL 2.30.7; ``src/init.cc`` has the half): NCCL doubles what it is given.
MAX_CHANNELS = 32
_RINGS_OF = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE)
_NO_RANK = -1
# A ring or tree may carry so much more or less, as a part of what it carries in the schedule.
_MOST_ROUNDED = 0.05

Ring = tuple[int, ...]
Arcs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class NcclChannels:
    """Channels of one node: rings, or trees.

    Attributes
    ----------
    rings
        Ranks in the order in which data passes them, from rank 0; the last one sends to the first.
    trees
        Parent of every rank, -1 for the root.
    gbps
        Rate of one channel in GB/s, by the slowest of the links and ports that channels share.
    rounded
        By how much the part of a ring or tree differs from the schedule's, at most, as a part of that.
    """

    rings: tuple[Ring, ...]
    trees: tuple[tuple[int, ...], ...]
    gbps: float
    rounded: float = field(default=0.0, compare=False)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len((self.rings or self.trees)[0])


def find_channels(schedule: Schedule) -> NcclChannels:
    """Return the rings or trees of a schedule.

    Raises
    ------
    LoweringError
        If it is not rings or trees of one node alone, with equal parts; the message says which chunk, or what, is not.
    """
    topology, collective = schedule.topology, schedule.collective
    if topology.num_nodes > 1:
        raise _refusal(
            f"the machine has {topology.num_nodes} nodes, and between nodes NCCL connects rings and trees itself",
            "nodes",
        )
    if collective.kind not in _RINGS_OF:
        raise _refusal(
            f"NCCL makes {collective.kind} of single sends and receives, without rings or trees", "collective"
        )
    copies, adds = _arcs_of_chunks(schedule)
    parts = [
        _ChunkPath(chunk, copies[chunk], adds[chunk], topology.num_ranks) for chunk in range(collective.num_chunks)
    ]
    rings = [part.ring() for part in parts]
    trees = [part.tree() if collective.kind is Kind.ALLREDUCE else None for part in parts]
    if all(ring is not None for ring in rings) and (topology.num_ranks > 2 or _is_even(schedule, parts)):
        for each in dict.fromkeys(rings):
            _require_even(schedule, [part for part, ring in zip(parts, rings, strict=True) if ring == each])
        found, rounded = _channels(rings)
        return NcclChannels(found, (), _rate_gbps(schedule, [_arcs_of_ring(ring) for ring in found]), rounded)
    if all(tree is not None for tree in trees):
        found, rounded = _channels(trees)
        return NcclChannels((), found, _rate_gbps(schedule, [_arcs_of_tree(tree) for tree in found]), rounded)
    raise _refusal_of_chunk(schedule, rings, trees)


@dataclass(frozen=True, slots=True)
class _ChunkPath:
    """The pairs of ranks over which one chunk is copied, and over which its contributions are added up."""

    chunk: int
    copies: Arcs
    adds: Arcs
    num_ranks: int

    def ring(self) -> Ring | None:
        """The ring round which it goes, from rank 0; None if it does not."""
        copied, added = _chain(self.copies, self.num_ranks), _chain(self.adds, self.num_ranks)
        if (self.copies and copied is None) or (self.adds and added is None):
            return None
        if copied is not None and added is not None and (copied[0] != added[-1] or _turned(copied) != _turned(added)):
            return None
        chain = copied if copied is not None else added
        return None if chain is None else _turned(chain)

    def last(self) -> int:
        """The rank where its sum is complete, or else the one that it comes from."""
        chain = _chain(self.adds, self.num_ranks)
        if chain is not None:
            return chain[-1]
        chain = _chain(self.copies, self.num_ranks)
        return _NO_RANK if chain is None else chain[0]

    def tree(self) -> tuple[int, ...] | None:
        """Parents in the tree that it goes up and down; None if it does not."""
        if {(dst, src) for src, dst in self.copies} != set(self.adds) or len(self.copies) != len(self.adds):
            return None
        parents = [_NO_RANK] * self.num_ranks
        for child, parent in self.adds:
            if parents[child] != _NO_RANK:
                return None
            parents[child] = parent
        return tuple(parents) if is_tree(parents) else None


def is_tree(parents: Sequence[int]) -> bool:
    """True if the ranks have one root, which all of them reach."""
    reached = {rank for rank, parent in enumerate(parents) if parent == _NO_RANK}
    if len(reached) != 1:
        return False
    for _ in parents:
        reached |= {rank for rank, parent in enumerate(parents) if parent in reached}
    return len(reached) == len(parents)


def children_of(parents: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Children of every rank, in order."""
    return tuple(tuple(child for child, parent in enumerate(parents) if parent == rank) for rank in range(len(parents)))


def _arcs_of_chunks(schedule: Schedule) -> tuple[Mapping[int, Arcs], Mapping[int, Arcs]]:
    """Pairs (sender, receiver) of every chunk's copies and of its sums, in the order of time."""
    copies: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    adds: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for message in schedule.messages:
        link = schedule.topology.links[message.link]
        for chunk in message.chunks:
            (adds if message.reduce else copies)[chunk].append((link.src, link.dst))
    chunks = range(schedule.collective.num_chunks)
    return {c: tuple(copies[c]) for c in chunks}, {c: tuple(adds[c]) for c in chunks}


def _chain(arcs: Arcs, num_ranks: int) -> Ring | None:
    """All ranks in the order in which arcs join them, each once; None if arcs are no such chain."""
    after = dict(arcs)
    (start, *more) = [rank for rank in range(num_ranks) if rank not in set(after.values())] or [_NO_RANK]
    if len(arcs) != num_ranks - 1 or len(after) != len(arcs) or more or start == _NO_RANK:
        return None
    chain = [start]
    while chain[-1] in after:
        chain.append(after[chain[-1]])
    return tuple(chain) if len(chain) == num_ranks else None


def _turned(chain: Ring) -> Ring:
    """The ring that a chain is a part of, from rank 0."""
    first = chain.index(0)
    return chain[first:] + chain[:first]


def _is_even(schedule: Schedule, parts: Iterable[_ChunkPath]) -> bool:
    """True if every rank is the last, or the first, for equally many chunks, as on NCCL's rings; with a root it is the root alone."""
    if schedule.collective.kind in (Kind.BROADCAST, Kind.REDUCE):
        return True
    counts = Counter(part.last() for part in parts)
    return len(counts) == schedule.topology.num_ranks and len(set(counts.values())) == 1


def _require_even(schedule: Schedule, parts: Sequence[_ChunkPath]) -> None:
    if not _is_even(schedule, parts):
        counts = Counter(part.last() for part in parts)
        rank, count = counts.most_common(1)[0]
        raise _refusal(
            f"on NCCL's rings every rank has an equal part of the data, and here one ring has {count} of {counts.total()} chunks for "
            f"rank {rank}",
            "rings",
        )


def _channels(found: Iterable[Ring | None]) -> tuple[tuple[Ring, ...], float]:
    """Every ring or tree as often as it carries the common part, in the order of the chunks, and by how much that is rounded."""
    counts = Counter(each for each in found if each is not None)
    total = counts.total()
    for number in range(len(counts), MAX_CHANNELS + 1):
        times = {each: round(count * number / total) for each, count in counts.items()}
        used = sum(times.values())
        if not all(times.values()) or used > MAX_CHANNELS:
            continue
        rounded = max(abs(times[each] * total / (used * count) - 1) for each, count in counts.items())
        if rounded <= _MOST_ROUNDED:
            return tuple(each for each, count in times.items() for _ in range(count)), rounded
    raise _refusal(
        f"NCCL cuts the data into equal parts for at most {MAX_CHANNELS} channels, and what its {len(counts)} rings or trees carry is "
        "not nearly a few of such parts each; synthesize with fewer --chunks, or at another size",
        "channels",
    )


def _rate_gbps(schedule: Schedule, channels: Sequence[set[tuple[int, int]]]) -> float:
    """Rate that one channel has of the link or port that is shared most, in proportion to its rate."""
    topology = schedule.topology
    uses: Counter[int] = Counter()
    for arcs in channels:
        for pair in arcs:
            uses.update(topology.resources_of[topology.links_between[pair][0]])
    rates = []
    for resource, count in uses.items():
        _, beta_us_per_mb = topology.resource_cost[resource]
        lanes = _lanes(schedule, resource) if resource < len(topology.links) else 1
        if beta_us_per_mb > 0:
            rates.append(1000 * lanes / (beta_us_per_mb * count))
    if not rates:
        raise _refusal("links take no time for a byte, and NCCL asks for a rate of its channels", "rate")
    return min(rates)


def _lanes(schedule: Schedule, link: int) -> int:
    """Number of links that are parallel to a link."""
    one = schedule.topology.links[link]
    return len(schedule.topology.links_between[one.src, one.dst])


def _arcs_of_ring(ring: Ring) -> set[tuple[int, int]]:
    return set(zip(ring, ring[1:] + ring[:1], strict=True))


def _arcs_of_tree(parents: Ring) -> set[tuple[int, int]]:
    up = {(rank, parent) for rank, parent in enumerate(parents) if parent != _NO_RANK}
    return up | {(parent, rank) for rank, parent in up}


def _refusal_of_chunk(schedule: Schedule, rings: Sequence[Ring | None], trees: Sequence[Ring | None]) -> LoweringError:
    """Error that says which chunk is on no channel, or that chunks are on channels of both kinds."""
    collective = schedule.collective
    for chunk, both in enumerate(zip(rings, trees, strict=True)):
        if both == (None, None):
            a_tree = ", nor up and down one tree" if collective.kind is Kind.ALLREDUCE else ""
            does = "is summed" if collective.kind in COMBINING else "goes"
            return _refusal(
                f"{collective.describe_chunk(chunk)} {does} neither from rank to rank round a ring of all{a_tree}",
                "rings",
            )
    return _refusal(
        "some chunks go round rings and others up and down trees, and NCCL uses one or the other for a call", "rings"
    )


def _refusal(why: str, limit: str) -> LoweringError:
    return LoweringError(f"the schedule is none for {TARGET}: {why}", runtime=TARGET, limit=limit)
