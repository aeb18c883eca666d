"""AllGather templates, from which ReduceScatter and most of AllReduce follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, permutations

from taccl_py.synthesis.templates.delegates import Delegates
from taccl_py.synthesis.templates.grids import walks
from taccl_py.synthesis.templates.messages import (
    TemplateMessage,
    TemplateMessages,
    TemplatePlan,
    end_of,
    in_turn,
    shifted,
)
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING, RING, Axis, Groups, axis, spread
from taccl_py.synthesis.templates.site import Edge, IsUsefulAt, TemplateSite
from taccl_py.topology.model import Topology


def allgather_plans(
    site: TemplateSite, chunks_per_rank: int | None, is_useful_at: IsUsefulAt
) -> Iterator[TemplatePlan]:
    """Every AllGather template that the machine's links allow; the chunk count is the template's where it is None."""
    chunks = chunks_per_rank or 1
    held = _own_chunks(site, chunks)
    for walk in walks(site):
        yield TemplatePlan(chunks, spread(walk.axes, held), walk.name)
    yield from sparse_plans(site, chunks_per_rank, is_useful_at)
    delegates = Delegates.of(site)
    if delegates is not None:
        yield TemplatePlan(chunks, delegates.allgather(held), "delegates")
    for name, messages in _relayed(site, held):
        yield TemplatePlan(chunks, messages, name)
    for camp in camps(site):
        for suffix, inside in _gathered_in(camp, site, held):
            yield TemplatePlan(chunks, _spread_in(camp, site, held, inside), f"{camp.name}{suffix}")


def sparse_plans(site: TemplateSite, chunks_per_rank: int | None, is_useful_at: IsUsefulAt) -> Iterator[TemplatePlan]:
    """AllGather templates that need no regular links: quickest paths, and rings."""
    chunks = chunks_per_rank or 1
    held = _own_chunks(site, chunks)
    flooded = flood(site, (tuple(range(site.topology.num_ranks)),), held)
    if flooded is not None:
        yield TemplatePlan(chunks, flooded, "shortest paths")
    yield from _over_nodes(site, held, chunks)
    if is_useful_at((site.topology.num_ranks - 1) * site.least_message_us):
        yield from _rings(site, chunks_per_rank)


def _own_chunks(site: TemplateSite, chunks_per_rank: int) -> dict[int, tuple[int, ...]]:
    """Chunks of every rank's shard."""
    return {
        rank: tuple(range(rank * chunks_per_rank, (rank + 1) * chunks_per_rank))
        for rank in range(site.topology.num_ranks)
    }


def flood(
    site: TemplateSite, groups: Iterable[tuple[int, ...]], held: Mapping[int, tuple[int, ...]]
) -> TemplateMessages | None:
    """Send what each rank holds to its group along quickest paths, one link a step, in one message with all that takes the same link.

    None if a rank of a group is cut off, or a path leads out of its group.
    """
    carried: dict[tuple[int, int, int], list[int]] = {}
    for group in groups:
        for origin in group:
            parent = site.path_parents(origin)
            for rank in group:
                if rank == origin:
                    continue
                message = _links_inside(parent, origin, rank, group)
                if message is None:
                    return None
                carried.setdefault((message, parent[rank], rank), []).extend(held[origin])
    return tuple(
        TemplateMessage(src, dst, tuple(chunks), message, message + 1)
        for (message, src, dst), chunks in sorted(carried.items())
    )


def _links_inside(parent: list[int], origin: int, rank: int, group: tuple[int, ...]) -> int | None:
    """Hops from the origin to the parent of a rank; None if one of them leads out of the group."""
    links, above = 0, parent[rank]
    while above != origin:
        if above not in group:
            return None
        links, above = links + 1, parent[above]
    return links


def _over_nodes(
    site: TemplateSite, held: Mapping[int, tuple[int, ...]], chunks_per_rank: int
) -> Iterator[TemplatePlan]:
    """Quickest paths inside nodes and exchange across them, either first; for nodes without regular links."""
    topology = site.topology
    if topology.num_nodes == 1 or not topology.has_even_nodes:
        return
    across = _first_axis(site, tuple(zip(*topology.node_ranks, strict=True)))
    if across is None:
        return
    of_node = {
        rank: tuple(c for other in ranks for c in held[other]) for ranks in topology.node_ranks for rank in ranks
    }
    of_rail = {rank: tuple(c for other in group for c in held[other]) for group in across.groups for rank in group}
    inner_first = flood(site.inside, topology.node_ranks, held)
    outer_first = flood(site.inside, topology.node_ranks, of_rail)
    if inner_first is not None and outer_first is not None:
        yield TemplatePlan(
            chunks_per_rank, in_turn(inner_first, spread((across,), of_node)), "paths inside, then across"
        )
        yield TemplatePlan(chunks_per_rank, in_turn(spread((across,), held), outer_first), "across, then paths inside")


def _relayed(site: TemplateSite, held: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[str, TemplateMessages]]:
    """Groups of a node whose rank in one position sends to other nodes, and the one in another position receives.

    Groups gather, and then the rest of the node does while messages between nodes are on the way. These go around groups and
    then from group to group.
    """
    topology = site.topology
    size = len(topology.node_ranks[0])
    if topology.num_nodes == 1 or not topology.has_even_nodes:
        return
    for width in (width for width in range(2, size) if size % width == 0):
        groups = tuple(ranks[i : i + width] for ranks in topology.node_ranks for i in range(0, size, width))
        columns = tuple(ranks[i::width] for ranks in topology.node_ranks for i in range(width))
        inside, along = _first_axis(site, groups), _first_axis(site, columns)
        if inside is None or along is None:
            continue
        shard = {rank: tuple(c for other in group for c in held[other]) for group in groups for rank in group}
        for out, into in permutations(range(width), 2):
            rails = tuple(
                zip(*(groups[i : i + size // width] for i in range(0, len(groups), size // width)), strict=True)
            )
            sent = [(one[out], other[into], one) for rail in rails for one, other in permutations(rail, 2)]
            if not all(site.linked(src, dst) for src, dst, _ in sent):
                continue
            foreign: dict[int, list[int]] = {}
            for _, dst, group in sent:
                foreign.setdefault(dst, []).extend(shard[group[0]])
            first = spread((inside,), held)
            across = tuple(TemplateMessage(src, dst, shard[src], 0, 1) for src, dst, _ in sent)
            own = (*shifted(across, end_of(first)), *shifted(spread((along,), shard), end_of(first)))
            dealt = [handed_out(site, group[into], group, tuple(foreign[group[into]])) or () for group in groups]
            late = {rank: tuple(foreign[group[into]]) for group in groups for rank in group}
            messages = in_turn(
                (*first, *own), tuple(message for part in dealt for message in part), spread((along,), late)
            )
            yield f"from rank {out} to rank {into} of {width}", messages


def _rings(site: TemplateSite, chunks_per_rank: int | None) -> Iterator[TemplatePlan]:
    """Every shard cut into parts, each of which goes around a ring of its own."""
    for rings in ring_sets(site):
        number = len(rings)
        if number <= (chunks_per_rank or number):
            chunks = chunks_per_rank or number
            messages = [message for j in range(chunks) for message in _around(rings[j % number], j, chunks)]
            yield TemplatePlan(chunks, tuple(messages), f"{number} ring{'s' if number > 1 else ''}")


def ring_sets(site: TemplateSite) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Cycles through all ranks: one, and more where that takes load off the busiest link or port.

    Each is followed by the same one backwards where there are links; later ones avoid what is busy, and leave nodes from other
    ranks.
    """
    topology = site.topology
    load = [0] * topology.num_resources
    rings: list[tuple[int, ...]] = []
    least_us = math.inf
    while len(rings) < PARAMS.most_rings:
        turn = len(rings) if topology.num_nodes > 1 else 0
        order = [rank for ranks in topology.node_ranks for rank in _rotated(ranks, turn)]
        cycle = site.cycle(order, load)
        if cycle is None:
            break
        back = (cycle[0], *cycle[:0:-1])
        has_back = all(site.linked(a, b) for a, b in _steps_of(back))
        for ring in (cycle, back) if has_back else (cycle,):
            rings.append(ring)
            _add_load(topology, ring, load)
        for number in (1, len(rings)) if not math.isfinite(least_us) else (len(rings),):
            load_us = _busiest_us(site, rings[:number]) / number
            if load_us < least_us * PARAMS.ring_load_factor:
                least_us = load_us
                yield tuple(rings[:number])


def _add_load(topology: Topology, ring: tuple[int, ...], load: list[int]) -> None:
    """Count a message on every step of a ring, parallel links by turns."""
    for src, dst in _steps_of(ring):
        for resource in topology.resources_of[min(topology.links_between[src, dst], key=load.__getitem__)]:
            load[resource] += 1


def _busiest_us(site: TemplateSite, rings: list[tuple[int, ...]]) -> float:
    """Time of the busiest link or port if a message takes each step of each ring."""
    load = [0] * site.topology.num_resources
    for ring in rings:
        _add_load(site.topology, ring, load)
    return max(site.topology.occupancy_us(r, site.chunk_bytes) * count for r, count in enumerate(load))


def _rotated(ranks: tuple[int, ...], by: int) -> tuple[int, ...]:
    return ranks[by % len(ranks) :] + ranks[: by % len(ranks)]


def _steps_of(ring: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return pairwise((*ring, ring[0]))


def _around(ring: tuple[int, ...], part: int, chunks_per_rank: int) -> Iterator[TemplateMessage]:
    """Part `part` of every shard around a ring."""
    size = len(ring)
    for step in range(size - 1):
        for i in range(size):
            chunk = ring[(i - step) % size] * chunks_per_rank + part
            yield TemplateMessage(ring[i], ring[(i + 1) % size], (chunk,), step, step + 1)


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
        Exchange within camps; None if their links follow no pattern.
    across
        Exchange among leaders of one position in all nodes.
    local
        Exchange among the leaders of a node; None if it has one.
    """

    name: str
    members: Groups
    leaders: tuple[int, ...]
    inside: Axis | None
    across: Axis
    local: Axis | None

    @property
    def between(self) -> tuple[Axis, ...]:
        """All exchange among leaders."""
        return (self.across,) if self.local is None else (self.across, self.local)


def camps(site: TemplateSite) -> Iterator[Camp]:
    """Camps of neighbouring ranks of every possible size, with each of their positions as the leader's."""
    topology = site.topology
    size = len(topology.node_ranks[0])
    if topology.num_nodes == 1 or not topology.has_even_nodes:
        return
    for width in range(2, size + 1):
        if size % width == 0:
            members = tuple(ranks[i : i + width] for ranks in topology.node_ranks for i in range(0, size, width))
            inside = _first_axis(site, members)
            seen = set()
            for position in range(width):
                sort = _sort_of_leader(site, members, position)
                if sort not in seen and math.isfinite(sort.inside_us):
                    seen.add(sort)
                    yield from _camp(site, members, inside, position)


@dataclass(frozen=True, slots=True)
class _MessageSort:
    """Kind of leaders: the time of a tree in their camp, and of messages between them."""

    inside_us: float
    across_us: tuple[float, ...]


def _sort_of_leader(site: TemplateSite, members: Groups, position: int) -> _MessageSort:
    leaders = [ranks[position] for ranks in members]
    edges = site.tree((leaders[0],), members[0], site.chunk_bytes) or ()
    across = (site.cost_us.get((leaders[0], other), math.inf) for other in leaders[1:])
    return _MessageSort(max((edge.end_us for edge in edges), default=math.inf), tuple(across))


def _camp(site: TemplateSite, members: Groups, inside: Axis | None, position: int) -> Iterator[Camp]:
    nodes = site.topology.num_nodes
    leaders = tuple(ranks[position] for ranks in members)
    in_node = len(leaders) // nodes
    across = _first_axis(site, tuple(leaders[i::in_node] for i in range(in_node)))
    local = _first_axis(site, tuple(leaders[i * in_node : (i + 1) * in_node] for i in range(nodes)))
    if across is not None and (in_node == 1 or local is not None):
        name = f"leaders {position} of {len(members[0])}"
        yield Camp(name, members, leaders, inside, across, local if in_node > 1 else None)


def _first_axis(site: TemplateSite, groups: Groups) -> Axis | None:
    """Doubling if possible, else direct, else around."""
    found = (axis(site, name, groups) for name in (DOUBLING, DIRECT, RING))
    return next((each for each in found if each is not None), None)


def _gathered_in(
    camp: Camp, site: TemplateSite, held: dict[int, tuple[int, ...]]
) -> Iterator[tuple[str, TemplateMessages]]:
    """AllGather in camps by their pattern, and along quickest paths."""
    if camp.inside is not None:
        yield "", spread((camp.inside,), held)
    flooded = flood(site.inside, camp.members, held)
    if flooded is not None:
        yield ", paths inside", flooded


def _spread_in(
    camp: Camp, site: TemplateSite, held: dict[int, tuple[int, ...]], inside: TemplateMessages
) -> TemplateMessages:
    """Among leaders after an AllGather in camps; what is the own node's goes around while other nodes' chunks are on the way."""
    shard = {
        leader: tuple(chunk for rank in ranks for chunk in held[rank])
        for leader, ranks in zip(camp.leaders, camp.members, strict=True)
    }
    across = spread((camp.across,), shard)
    foreign = {
        rank: tuple(chunk for other in group if other != rank for chunk in shard[other])
        for group in camp.across.groups
        for rank in group
    }
    start = end_of(inside)
    early = shifted(_around_node(camp, site, shard, known=shard), start)
    across = shifted(across, start)
    late = _around_node(camp, site, foreign, known={})
    return (*inside, *across, *early, *shifted(late, end_of((*across, *early))))


def _around_node(
    camp: Camp, site: TemplateSite, shard: dict[int, tuple[int, ...]], known: dict[int, tuple[int, ...]]
) -> TemplateMessages:
    """Send what the leaders of a node have to all of the node; `known` is what their camps have already."""
    node_of = site.topology.node_of
    among = spread((camp.local,), shard) if camp.local is not None else ()
    out: list[TemplateMessage] = []
    for leader, ranks in zip(camp.leaders, camp.members, strict=True):
        of_node = sorted(c for other in camp.leaders if node_of[other] == node_of[leader] for c in shard[other])
        missing = tuple(chunk for chunk in of_node if chunk not in known.get(leader, ()))
        if missing:
            out += handed_out(site, leader, ranks, missing) or ()
    return in_turn(among, tuple(out))


def handed_out(
    site: TemplateSite, root: int, ranks: tuple[int, ...], chunks: tuple[int, ...]
) -> TemplateMessages | None:
    """Chunks from one rank to all of the ranks along a tree; None if some rank cannot be reached."""
    edges = site.tree((root,), ranks, len(chunks) * site.chunk_bytes)
    return None if edges is None else along(edges, chunks)


def along(edges: Iterable[Edge], chunks: tuple[int, ...]) -> TemplateMessages:
    """Chunks along all edges of a tree."""
    return tuple(TemplateMessage(edge.src, edge.dst, chunks, edge.start_us, edge.end_us) for edge in edges)
