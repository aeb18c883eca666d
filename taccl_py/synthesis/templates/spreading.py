"""AllGather templates, from which ReduceScatter and most of AllReduce follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taccl_py.synthesis.templates.grids import walks
from taccl_py.synthesis.templates.moves import Move, Moves, end_of, in_turn, shifted
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING, RING, Axis, axis, spread
from taccl_py.synthesis.templates.site import Site

# Most rings that share the work.
_MOST_RINGS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """A template fitted to a machine.

    Attributes
    ----------
    name
        What it is.
    chunks_per_rank
        Of the collective.
    moves
        What it does.
    """

    name: str
    chunks_per_rank: int
    moves: Moves


def allgather_plans(site: Site, chunks_per_rank: int | None) -> Iterator[Plan]:
    """Every AllGather template that the machine's links allow; the chunk count is the template's where it is None."""
    chunks = chunks_per_rank or 1
    held = {rank: own_chunks(rank, chunks) for rank in range(site.topology.num_ranks)}
    for walk in walks(site):
        yield Plan(walk.name, chunks, spread(walk.axes, held))
    flooded = flood(site, chunks)
    if flooded is not None:
        yield Plan("shortest paths", chunks, flooded)
    yield from _rings(site, chunks_per_rank)
    for camp in camps(site):
        yield Plan(camp.name, chunks, _spread_in(camp, site, held))


def own_chunks(rank: int, chunks_per_rank: int) -> tuple[int, ...]:
    """Chunks of a rank's share."""
    return tuple(range(rank * chunks_per_rank, (rank + 1) * chunks_per_rank))


def flood(site: Site, chunks_per_rank: int) -> Moves | None:
    """Every share along quickest paths, one hop a step, together with whatever takes the same hop; None if a rank is cut off."""
    num_ranks = site.topology.num_ranks
    carried: dict[tuple[int, int, int], list[int]] = {}
    for origin in range(num_ranks):
        parent = site.path_parents(origin)
        if parent.count(-1) > 1:
            return None
        for rank in range(num_ranks):
            if rank != origin:
                hop, above = 0, parent[rank]
                while above != origin:
                    hop, above = hop + 1, parent[above]
                carried.setdefault((hop, parent[rank], rank), []).extend(own_chunks(origin, chunks_per_rank))
    return tuple(Move(src, dst, tuple(chunks), hop, hop + 1) for (hop, src, dst), chunks in sorted(carried.items()))


def _rings(site: Site, chunks_per_rank: int | None) -> Iterator[Plan]:
    """One ring, the same both ways, and as many as are found, each with its part of every share."""
    cycles = find_rings(site)
    for number in (1, 2, 3, 4, 6, 8):
        if number <= len(cycles) and number <= (chunks_per_rank or number):
            chunks = chunks_per_rank or number
            moves = [move for j in range(chunks) for move in _around(cycles[j % number], j, chunks)]
            yield Plan(f"{number} ring{'s' if number > 1 else ''}", chunks, tuple(moves))


def find_rings(site: Site) -> list[tuple[int, ...]]:
    """Cycles through all ranks, each followed by the same one backwards where there are links; later ones avoid loads."""
    topology = site.topology
    load = [0] * topology.num_resources
    rings: list[tuple[int, ...]] = []
    while len(rings) < _MOST_RINGS:
        cycle = site.cycle([rank for ranks in topology.node_ranks for rank in ranks], load)
        if cycle is None:
            break
        back = (cycle[0], *cycle[:0:-1])
        two_way = all(site.linked(a, b) for a, b in zip(back, back[1:] + back[:1], strict=True))
        for ring in (cycle, back) if two_way else (cycle,):
            rings.append(ring)
            for src, dst in zip(ring, ring[1:] + ring[:1], strict=True):
                links = topology.links_between[src, dst]
                for resource in topology.resources_of[min(links, key=lambda link: load[link])]:
                    load[resource] += 1
    return rings


def _around(ring: tuple[int, ...], part: int, chunks_per_rank: int) -> Iterator[Move]:
    """Part `part` of every share around a ring."""
    size = len(ring)
    for step in range(size - 1):
        for i in range(size):
            chunk = ring[(i - step) % size] * chunks_per_rank + part
            yield Move(ring[i], ring[(i + 1) % size], (chunk,), step, step + 1)


@dataclass(frozen=True, slots=True)
class Camp:
    """Nodes cut into camps of ranks, each with a leader who alone talks to other nodes.

    Attributes
    ----------
    name
        For people.
    members
        Ranks of every camp.
    leaders
        Leader of every camp.
    inside
        Exchange within camps.
    across
        Exchange among leaders of one position in all nodes.
    local
        Exchange among the leaders of a node; None if it has one.
    """

    name: str
    members: tuple[tuple[int, ...], ...]
    leaders: tuple[int, ...]
    inside: Axis
    across: Axis
    local: Axis | None

    @property
    def between(self) -> tuple[Axis, ...]:
        """All exchange among leaders."""
        return (self.across,) if self.local is None else (self.across, self.local)


def camps(site: Site) -> Iterator[Camp]:
    """Camps of neighbouring ranks of every possible size, with each of their positions as the leader's."""
    topology = site.topology
    size = len(topology.node_ranks[0])
    if topology.num_nodes == 1 or any(len(ranks) != size for ranks in topology.node_ranks):
        return
    for width in range(2, size + 1):
        if size % width == 0:
            members = tuple(ranks[i : i + width] for ranks in topology.node_ranks for i in range(0, size, width))
            inside = _first_axis(site, members)
            for position in range(width):
                if inside is not None:
                    yield from _camp(site, members, inside, position)


def _camp(site: Site, members: tuple[tuple[int, ...], ...], inside: Axis, position: int) -> Iterator[Camp]:
    nodes = site.topology.num_nodes
    leaders = tuple(ranks[position] for ranks in members)
    in_node = len(leaders) // nodes
    across = _first_axis(site, tuple(leaders[i::in_node] for i in range(in_node)))
    local = _first_axis(site, tuple(leaders[i * in_node : (i + 1) * in_node] for i in range(nodes)))
    if across is not None and (in_node == 1 or local is not None):
        name = f"leaders {position} of {len(members[0])}"
        yield Camp(name, members, leaders, inside, across, local if in_node > 1 else None)


def _first_axis(site: Site, groups: tuple[tuple[int, ...], ...]) -> Axis | None:
    """Doubling if possible, else direct, else around."""
    found = (axis(site, name, groups) for name in (DOUBLING, DIRECT, RING))
    return next((each for each in found if each is not None), None)


def _spread_in(camp: Camp, site: Site, held: dict[int, tuple[int, ...]]) -> Moves:
    """AllGather in camps, then among leaders; what comes from the own node goes around while other nodes' chunks are on the way."""
    inside = spread((camp.inside,), held)
    share = {
        leader: tuple(chunk for rank in ranks for chunk in held[rank])
        for leader, ranks in zip(camp.leaders, camp.members, strict=True)
    }
    across = spread((camp.across,), share)
    foreign = {
        rank: tuple(chunk for other in group if other != rank for chunk in share[other])
        for group in camp.across.groups
        for rank in group
    }
    start = end_of(inside)
    early = shifted(_around_node(camp, site, share, known=share), start)
    across = shifted(across, start)
    late = _around_node(camp, site, foreign, known={})
    return (*inside, *across, *early, *shifted(late, end_of((*across, *early))))


def _around_node(camp: Camp, site: Site, share: dict[int, tuple[int, ...]], known: dict[int, tuple[int, ...]]) -> Moves:
    """What the leaders of a node have, to all of the node; `known` is what their camps have already."""
    node_of = site.topology.node_of
    among = spread((camp.local,), share) if camp.local is not None else ()
    out: list[Move] = []
    for leader, ranks in zip(camp.leaders, camp.members, strict=True):
        of_node = sorted(c for other in camp.leaders if node_of[other] == node_of[leader] for c in share[other])
        missing = tuple(chunk for chunk in of_node if chunk not in known.get(leader, ()))
        if missing:
            out += handed_out(site, leader, ranks, missing) or ()
    return in_turn(among, tuple(out))


def handed_out(site: Site, root: int, ranks: tuple[int, ...], chunks: tuple[int, ...]) -> Moves | None:
    """Chunks from one rank to all of the ranks along a tree; None if some rank cannot be reached."""
    edges = site.tree((root,), ranks, len(chunks) * site.chunk_bytes)
    if edges is None:
        return None
    return tuple(Move(edge.src, edge.dst, chunks, edge.start_us, edge.end_us) for edge in edges)
