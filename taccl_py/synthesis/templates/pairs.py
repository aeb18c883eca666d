"""AllToAll templates: every pair's chunk over a few ranks, with whatever takes the same link at the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from taccl_py.synthesis.templates.delegates import Delegates, flipped
from taccl_py.synthesis.templates.grids import RankGrid, grids
from taccl_py.synthesis.templates.messages import (
    SharedMessage,
    TemplateMessage,
    TemplateMessages,
    TemplatePlan,
    with_chunks,
)
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.patterns import DOUBLING
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.synthesis.templates.spreading import Camp, camps

# Ranks that a chunk visits, from its source to its destination.
RankPath = Callable[[int, int], tuple[int, ...]]


def alltoall_plans(site: TemplateSite, chunks_per_rank: int) -> Iterator[TemplatePlan]:
    """Every AllToAll template that the machine's links allow."""
    num_ranks, num_nodes = site.topology.num_ranks, site.topology.num_nodes
    parents = [site.path_parents(source) for source in range(num_ranks)]
    if any(parent.count(-1) > 1 for parent in parents):
        return
    quickest = _quickest(parents)
    paths: dict[str, RankPath] = {"shortest paths": quickest}
    # Many axes are for many ranks in one message, half of all at most, which can be packed where it is not large.
    small = site.all_small(num_ranks * site.chunk_bytes)
    packable = small or (
        num_ranks <= PARAMS.most_small_ranks and num_ranks * site.chunk_bytes <= 2 * PARAMS.most_packed_bytes
    )
    for grid in grids(site.topology, most_axes=PARAMS.most_packed_axes if packable else PARAMS.most_axes):
        if site.uniform and list(grid.sides) not in (sorted(grid.sides), sorted(grid.sides, reverse=True)):
            continue  # as good as one of those
        if packable or not site.linked_inside_nodes or len(grid.axes) == min(2, num_nodes):
            paths[f"turns {grid.name}"] = _turns(grid, num_ranks)
    rails = _by_rails(site)
    if rails is not None:
        paths["paths inside, then rails"] = rails
    delegates = Delegates.of(site)
    if delegates is not None and packable:
        paths["delegates"] = delegates.path
    for camp in camps(site):
        paths |= {camp.name: _led(camp, site, quickest, by_rail=False)}
        paths |= {f"{camp.name}, by rail": _led(camp, site, quickest, by_rail=True)}
        if small and num_nodes > 2 and num_nodes & (num_nodes - 1) == 0 and camp.across.name == DOUBLING:
            paths[f"{camp.name}, doubling"] = _doubled(_led(camp, site, quickest, by_rail=False), camp, site)
    if small and num_nodes > 2:
        yield from _in_waves(site, quickest, chunks_per_rank)
    for name, path in paths.items():
        messages = _along(path, num_ranks, chunks_per_rank, far_first=False)
        if all(site.linked(message.src, message.dst) for message in messages):
            yield TemplatePlan(chunks_per_rank, messages, name)
            yield TemplatePlan(
                chunks_per_rank, _along(path, num_ranks, chunks_per_rank, far_first=True), f"{name}, far first"
            )


def _quickest(parents: list[list[int]]) -> RankPath:
    """Paths on which the rank before each rank is its parent in the source's tree."""

    def path(src: int, dst: int) -> tuple[int, ...]:
        found = [dst]
        while found[-1] != src:
            found.append(parents[src][found[-1]])
        return tuple(found[::-1])

    return path


def _by_rails(site: TemplateSite) -> RankPath | None:
    """Inside the node to the rank with the destination's local number, which waits for the whole node, then across.

    None if there is one node, or one that falls apart without the others.
    """
    topology = site.topology
    parents = [site.inside.path_parents(source) for source in range(topology.num_ranks)]
    whole = all(parents[a][b] >= 0 for ranks in topology.node_ranks for a in ranks for b in ranks if a != b)
    if topology.num_nodes == 1 or not whole:
        return None
    inside = _quickest(parents)
    longest = max(len(inside(a, b)) for ranks in topology.node_ranks for a in ranks for b in ranks)

    def path(src: int, dst: int) -> tuple[int, ...]:
        ranks = topology.node_ranks[topology.node_of[src]]
        if dst in ranks:
            return inside(src, dst)
        begin = inside(src, ranks[min(topology.local_rank[dst], len(ranks) - 1)])
        return (*(src,) * (longest - len(begin)), *begin, dst)

    return path


def _turns(grid: RankGrid, num_ranks: int) -> RankPath:
    """Paths along the axes of a grid, one after the other."""
    place: list[list[int]] = [[0] * len(grid.axes) for _ in range(num_ranks)]
    group_of: list[dict[int, tuple[int, ...]]] = []
    for number, groups in enumerate(grid.axes):
        group_of.append({rank: group for group in groups for rank in group})
        for group in groups:
            for position, rank in enumerate(group):
                place[rank][number] = position

    def path(src: int, dst: int) -> tuple[int, ...]:
        found = [src]
        for number in range(len(grid.axes)):
            found.append(group_of[number][found[-1]][place[dst][number]])
        return tuple(found)

    return path


def _led(camp: Camp, site: TemplateSite, quickest: RankPath, *, by_rail: bool) -> RankPath:
    """To another node through a leader of the own node and the leader of the destination; inside a node on a quickest path.

    The leader of the own node is the source's, or ``by_rail`` the one in the same position as the destination's. Leaders wait
    for all of their camp.
    """
    node_of = site.topology.node_of
    leader_of = {rank: leader for leader, ranks in zip(camp.leaders, camp.members, strict=True) for rank in ranks}
    on_rail = {(node_of[rank], other): rank for group in camp.across.groups for rank in group for other in group}

    def sender(src: int, dst: int) -> int:
        return on_rail[node_of[src], leader_of[dst]] if by_rail else leader_of[src]

    longest = max(
        len(quickest(rank, leader))
        for rank in leader_of
        for leader in (camp.leaders if by_rail else (leader_of[rank],))
        if node_of[leader] == node_of[rank]
    )

    def path(src: int, dst: int) -> tuple[int, ...]:
        if node_of[src] == node_of[dst]:
            return quickest(src, dst)
        out, onward = sender(src, dst), leader_of[dst]
        begin = quickest(src, out)
        return (*(src,) * (longest - len(begin)), *begin, *quickest(out, onward)[1:], *quickest(onward, dst)[1:])

    return path


def _doubled(path: RankPath, camp: Camp, site: TemplateSite) -> RankPath:
    """The same paths, but from leader to leader over others: one bit of the place after the other, together with theirs."""
    node_of = site.topology.node_of
    places = {rank: (group, place) for group in camp.across.groups for place, rank in enumerate(group)}

    def found(src: int, dst: int) -> tuple[int, ...]:
        path_ranks = path(src, dst)
        crossing = next((i for i, (a, b) in enumerate(pairwise(path_ranks)) if node_of[a] != node_of[b]), None)
        # A quickest path inside a node may lead through another one, past the leaders.
        if crossing is None or not {path_ranks[crossing], path_ranks[crossing + 1]} <= places.keys():
            return path_ranks
        (group, begin), (other, end) = places[path_ranks[crossing]], places[path_ranks[crossing + 1]]
        if group != other:
            return path_ranks
        between = [group[place] for place in flipped(begin, end, len(group))]
        return (*path_ranks[:crossing], *between, *path_ranks[crossing + 2 :])

    return found


def _in_waves(site: TemplateSite, quickest: RankPath, chunks_per_rank: int) -> Iterator[TemplatePlan]:
    """Leaders again, but what is for each node is gathered, crosses and is dealt out for itself.

    So the first message to another node waits for less, and less is left to be dealt out behind the last one; what is between these
    has time while they are on their way.
    """
    num_ranks = site.topology.num_ranks
    for camp in camps(site):
        path = _led(camp, site, quickest, by_rail=False)
        carried: dict[SharedMessage, list[int]] = {}
        for src in range(num_ranks):
            for dst in range(num_ranks):
                first = (src * num_ranks + dst) * chunks_per_rank
                for message in _messages_in_waves(_without_cycles(path(src, dst)), site):
                    carried.setdefault(message, []).extend(range(first, first + chunks_per_rank))
        if all(site.linked(message.src, message.dst) for message in carried):
            yield TemplatePlan(chunks_per_rank, with_chunks(carried), f"{camp.name}, node by node")


def _messages_in_waves(path_ranks: tuple[int, ...], site: TemplateSite) -> Iterator[SharedMessage]:
    """Messages of a path, with times: nodes are gathered for one after the other, then they are sent to, dealing out meanwhile."""
    node_of, num_nodes, length = site.topology.node_of, site.topology.num_nodes, site.topology.num_ranks
    wave = (node_of[path_ranks[-1]] - node_of[path_ranks[0]]) % num_nodes
    # Inside a node there is time while the first messages cross.
    at = (wave - 1 if wave else num_nodes - 1) * length
    for here, there in pairwise(path_ranks):
        lasts = 1
        if wave and node_of[here] != node_of[there]:
            at, lasts = max(at, (num_nodes + wave - 2) * length), length
        if here != there:
            yield SharedMessage(at, at + lasts, here, there)
        at += lasts


def _without_cycles(path: tuple[int, ...]) -> tuple[int, ...]:
    """The same path, but that a chunk stays where it would come back to."""
    last = {rank: place for place, rank in enumerate(path)}
    found: list[int] = []
    for place, rank in enumerate(path):
        found.append(found[-1] if found and last[found[-1]] > place else rank)
    return tuple(found)


def _along(path: RankPath, num_ranks: int, chunks_per_rank: int, *, far_first: bool) -> TemplateMessages:
    """Messages along the paths; one to where a chunk is already is none. Whom a rank serves first differs from rank to rank.

    With ``far_first`` chunks travel with those that have as many links to go, the farthest first.
    """
    carried: dict[tuple[int, int, int, int, int], list[int]] = {}
    for src in range(num_ranks):
        for dst in range(num_ranks):
            path_ranks = _without_cycles(path(src, dst))
            for number, (here, there) in enumerate(pairwise(path_ranks)):
                if here != there:
                    left = sum(one != two for one, two in pairwise(path_ranks[number + 1 :])) if far_first else 0
                    first = (src * num_ranks + dst) * chunks_per_rank
                    key = (number, -left, (there - here) % num_ranks, here, there)
                    carried.setdefault(key, []).extend(range(first, first + chunks_per_rank))
    return tuple(
        TemplateMessage(here, there, tuple(chunks), number, number + 1)
        for (number, _, _, here, there), chunks in sorted(carried.items())
    )
