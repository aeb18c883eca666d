"""Links that each chunk may use: the sketch's restrictions as named masks, and evidence when they leave no path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.collective import Collective, Kind
from taccl_py.errors import Infeasible
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.traffic import ChunkTraffic
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology

Mask = BoolArray
# Of every chunk at every rank and on every link; sums of several fit.
Hops = NDArray[np.int32]

_T = TypeVar("_T", bound=np.generic)

UNREACHED = np.int32(1 << 28)


@dataclass(frozen=True)
class Params:
    """Numbers of the paths that chunks may take.

    Attributes
    ----------
    most_free_pairs
        Pairs of chunk and link up to which a chunk for one rank may take any path. Guess.
    most_detour_pairs
        Pairs up to which it may take one hop more than the shortest path. Guess.
    """

    most_free_pairs: int = 1_000
    most_detour_pairs: int = 12_000


PARAMS = Params()


@dataclass(frozen=True, slots=True)
class Restriction:
    """One field of the sketch and what it leaves: ``keeps`` broadcasts to [chunk, link]."""

    field: str
    what: str
    keeps: Mask


@dataclass(frozen=True)
class RestrictionArrays:
    """Arrays that all restrictions look at.

    Attributes
    ----------
    source
        Source rank, [chunk]; one of them where several ranks hold the chunk.
    held
        Whether a rank holds a chunk at the start, [chunk, rank].
    wanted
        Whether a rank wants a chunk that it does not start with, [chunk, rank].
    src, dst
        Ends of the links, [link].
    """

    topology: Topology
    traffic: ChunkTraffic
    source: IntArray
    held: Mask
    wanted: Mask
    src: IntArray
    dst: IntArray

    @staticmethod
    def of(topology: Topology, traffic: ChunkTraffic) -> RestrictionArrays:
        """Build the arrays."""
        holders = traffic.holders
        source = np.array([ranks[0] for ranks in holders], dtype=np.int64)
        held, wanted = (np.zeros((traffic.num_chunks, traffic.num_ranks), dtype=bool) for _ in range(2))
        for chunk, (own, ranks) in enumerate(zip(holders, traffic.wanted, strict=True)):
            held[chunk, list(own)] = True
            wanted[chunk, list(ranks)] = True
        wanted &= ~held
        return RestrictionArrays(topology, traffic, source, held, wanted, *ends_of(topology.links))

    def hops_from_source(self, allowed: Mask) -> Hops:
        """Fewest links from the source of a chunk to a rank over allowed links, [chunk, rank]."""
        return self._hops(self.held, allowed, self.src, self.dst)

    def hops_to_wanted(self, allowed: Mask) -> Hops:
        """Fewest links from a rank to a rank that wants the chunk, [chunk, rank]."""
        return self._hops(self.wanted, allowed, self.dst, self.src)

    def at_start(self, of_rank: NDArray[_T]) -> NDArray[_T]:
        """Values at the ranks that links lead from, [chunk, link]."""
        return np.take(of_rank, self.src, axis=1)

    def at_end(self, of_rank: NDArray[_T]) -> NDArray[_T]:
        """Values at the ranks that links lead to, [chunk, link]."""
        return np.take(of_rank, self.dst, axis=1)

    @staticmethod
    def _hops(start: Mask, allowed: Mask, tail: IntArray, head: IntArray) -> Hops:
        # What is said of all chunks at once lies together: [rank, chunk] and [link, chunk].
        front: Mask = np.ascontiguousarray(start.T)
        usable = np.ascontiguousarray(allowed.T)
        hops: Hops = np.where(front, np.int32(0), UNREACHED)
        into = [np.flatnonzero(head == rank) for rank in range(len(front))]
        step = 0
        while bool(front.any()):
            step += 1
            reached = np.zeros_like(front)
            has_some: Mask = np.asarray(front.any(axis=1), dtype=bool)
            for rank, links in enumerate(into):
                for link in links[has_some[tail[links]]].tolist():
                    reached[rank] |= front[tail[link]] & usable[link]
            front = np.asarray(reached & (hops == UNREACHED), dtype=bool)
            hops[front] = step
        return np.ascontiguousarray(hops.T)


@dataclass(frozen=True, slots=True)
class AllowedLinks:
    """Links that each chunk may use, [chunk, link].

    Attributes
    ----------
    permitted
        By the topology and the sketch.
    allowed
        Of these, the ones that engines consider.
    narrowed
        Whether useful paths were left out, to have fewer choices.
    """

    permitted: Mask
    allowed: Mask
    narrowed: bool


def find_allowed_links(
    topology: Topology, traffic: ChunkTraffic, sketch: Sketch | None, most_hops: int | None = None
) -> AllowedLinks:
    """Apply a sketch's restrictions and leave out what can be of no use.

    A chunk may use every link that leads on to a rank that wants it. Where that would be too many choices, a chunk wanted by
    one rank makes at most one hop more than the fewest that its restrictions allow, or none more (counted on the links that
    are left, so a mandatory relay is never cut off).

    Parameters
    ----------
    topology, traffic, sketch
        What is asked.
    most_hops
        Hops that a chunk can make at most, if that is known; then nothing else is left out.

    Raises
    ------
    Infeasible
        Naming the chunk, the rank and the restriction that took the last path.
    """
    reach = RestrictionArrays.of(topology, traffic)
    allowed = _physical(reach)
    hops = reach.hops_from_source(allowed)
    _require_reached(reach, hops, None)
    for restriction in _restrictions(reach, sketch) if sketch else ():
        allowed = allowed & restriction.keeps
        hops = reach.hops_from_source(allowed)
        _require_reached(reach, hops, restriction)
    permitted = allowed
    onward = reach.hops_to_wanted(allowed)
    allowed = allowed & reach.at_start(hops < UNREACHED)
    allowed &= reach.at_end(onward < UNREACHED)
    allowed[np.flatnonzero(~reach.wanted.any(axis=1))] = False
    through = reach.at_start(hops + 1)
    through += reach.at_end(onward)
    if most_hops is not None:
        return AllowedLinks(permitted, allowed & (through <= most_hops), narrowed=False)
    kept = allowed & _short_enough(reach, allowed, hops, through)
    return AllowedLinks(permitted, kept, bool((kept != allowed).any()))


def require_some_paths(topology: Topology, sketch: Sketch) -> str:
    """Refuse a sketch that leaves paths for no collective; return why it serves rooted ones alone, or an empty text.

    Raises
    ------
    Infeasible
        If ranks reach each other neither all, nor from one rank, nor to one; naming chunk, rank and restriction of AllGather.
    """
    ranks = range(topology.num_ranks)
    try:
        find_allowed_links(topology, Collective(Kind.ALLGATHER, len(ranks)), sketch)
    except Infeasible as error:
        for kind, root in product((Kind.BROADCAST, Kind.GATHER), ranks):
            with suppress(Infeasible):
                find_allowed_links(topology, Collective(kind, len(ranks), root=root), sketch)
                return str(error)
        raise
    return ""


def _short_enough(reach: RestrictionArrays, allowed: Mask, hops: Hops, through: Hops) -> Mask:
    """Links on paths that are short enough, for chunks wanted by one rank: the more hops the fewer choices there are."""
    single = (reach.wanted.sum(axis=1) == 1)[:, None]
    if int((allowed & single).sum()) <= PARAMS.most_free_pairs:
        return np.ones_like(allowed)
    shortest = np.where(reach.wanted, hops, 0).max(axis=1)[:, None]
    detour = ~single | (through <= shortest + 1)
    few = int((allowed & single & detour).sum()) <= PARAMS.most_detour_pairs
    return np.asarray(detour if few else ~single | (through <= shortest))


def _physical(reach: RestrictionArrays) -> Mask:
    """A chunk never comes to a rank that holds it at the start, nor leaves the only rank that wants it."""
    allowed: Mask = ~reach.at_end(reach.held)
    single = reach.wanted.sum(axis=1) == 1
    sink = reach.wanted.argmax(axis=1)
    leaves_sink = single[:, None] & np.asarray(reach.src[None, :] == sink[:, None])
    return np.asarray(allowed & ~leaves_sink)


def _restrictions(reach: RestrictionArrays, sketch: Sketch) -> Iterator[Restriction]:
    """Every restriction of the sketch, in the order in which evidence should name them."""
    topology = reach.topology
    node = np.array(topology.node_of, dtype=np.int64)
    local = np.array(topology.local_rank, dtype=np.int64)
    inside = node[reach.src] == node[reach.dst]
    if sketch.links is not None:
        listed = np.array([v in sketch.links.get(u, ()) for u, v in _local_pairs(reach, local)])
        yield Restriction(sketch.word("intra_node.links"), "lists the links inside a node", (listed | ~inside)[None, :])
    if topology.num_nodes == 1:
        return
    if sketch.connections is not None:
        listed = np.array([sketch.connected(u, v) for u, v in _local_pairs(reach, local)])
        yield Restriction(
            sketch.word("inter_node.connections"), "lists who sends between nodes", (listed | inside)[None, :]
        )
    if sketch.relays is not None:
        senders = np.zeros((len(local), len(local)), dtype=bool)  # [rank of origin, sender]
        for rank in range(len(local)):
            for sender in sketch.senders_of(int(local[rank])) or ():
                senders[rank, topology.node_ranks[node[rank]][sender]] = True
        yield Restriction(
            sketch.word("inter_node.relays"),
            "says who sends a rank's chunks out of its node",
            inside[None, :] | senders[reach.source][:, reach.src],
        )
    if sketch.connections is not None or sketch.relays is not None:
        yield Restriction(
            sketch.word("inter_node"),
            "sends chunks straight from their own node to each node that wants them",
            _straight(reach, node),
        )


def _local_pairs(reach: RestrictionArrays, local: IntArray) -> list[tuple[int, int]]:
    return list(zip(local[reach.src].tolist(), local[reach.dst].tolist(), strict=True))


def _straight(reach: RestrictionArrays, node: IntArray) -> Mask:
    """Between nodes a chunk goes only from its own node to a node that wants it."""
    wanted_in = np.zeros((len(reach.source), int(node.max()) + 1), dtype=bool)
    for rank in range(len(node)):
        wanted_in[:, node[rank]] |= reach.wanted[:, rank]
    own = node[reach.source]
    leaves_own = node[reach.src][None, :] == own[:, None]
    enters_wanted = wanted_in[:, node[reach.dst]] & (node[reach.dst][None, :] != own[:, None])
    inside = (node[reach.src] == node[reach.dst])[None, :]
    return np.asarray(inside | (leaves_own & enters_wanted))


def _require_reached(reach: RestrictionArrays, hops: Hops, restriction: Restriction | None) -> None:
    missing = np.argwhere(reach.wanted & (hops == UNREACHED))
    if not len(missing):
        return
    chunk, rank = int(missing[0][0]), int(missing[0][1])
    name = reach.traffic.describe_chunk(chunk)
    if restriction is None:
        raise Infeasible(
            f"{name} cannot get from rank {reach.source[chunk]} to rank {rank}: "
            f"{reach.topology.name} has no path of links between them",
            chunk=chunk, source=int(reach.source[chunk]), rank=rank, restriction="topology",
        )  # fmt: skip
    raise Infeasible(
        f"{name} cannot get from rank {reach.source[chunk]} to rank {rank}: the last path is closed by the sketch's field "
        f"{restriction.field}, which {restriction.what}; allow a path there ({len(missing)} such chunks and ranks in all)",
        chunk=chunk, source=int(reach.source[chunk]), rank=rank, restriction=restriction.field,
    )  # fmt: skip
