"""AllToAll templates: every pair's chunk over a few ranks, with whatever goes the same way at the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taccl_py.synthesis.templates.grids import Grid, grids
from taccl_py.synthesis.templates.moves import Move, Moves
from taccl_py.synthesis.templates.site import Site
from taccl_py.synthesis.templates.spreading import Plan, camps

# Ranks that a chunk visits, from its source to its destination.
Way = Callable[[int, int], tuple[int, ...]]


def alltoall_plans(site: Site, chunks_per_rank: int) -> Iterator[Plan]:
    """Every AllToAll template that the machine's links allow."""
    num_ranks = site.topology.num_ranks
    parents = [site.path_parents(source) for source in range(num_ranks)]

    def quickest(src: int, dst: int) -> tuple[int, ...]:
        way = [dst]
        while way[-1] != src:
            way.append(parents[src][way[-1]])
        return tuple(way[::-1])

    if all(parent.count(-1) == 1 for parent in parents):
        yield Plan("shortest paths", chunks_per_rank, _along(quickest, num_ranks, chunks_per_rank))
    for grid in grids(site.topology):
        turns = _turns(grid, num_ranks)
        moves = _along(turns, num_ranks, chunks_per_rank)
        if all(site.linked(move.src, move.dst) for move in moves):
            yield Plan(f"turns {grid.name}", chunks_per_rank, moves)
    for camp in camps(site):
        leader_of = {rank: leader for leader, ranks in zip(camp.leaders, camp.members, strict=True) for rank in ranks}
        led = _led(site.topology.node_of, leader_of, quickest)
        yield Plan(camp.name, chunks_per_rank, _along(led, num_ranks, chunks_per_rank))


def _turns(grid: Grid, num_ranks: int) -> Way:
    """Ways along the axes of a grid, one after the other."""
    place: list[list[int]] = [[0] * len(grid.axes) for _ in range(num_ranks)]
    group_of: list[dict[int, tuple[int, ...]]] = []
    for number, groups in enumerate(grid.axes):
        group_of.append({rank: group for group in groups for rank in group})
        for group in groups:
            for position, rank in enumerate(group):
                place[rank][number] = position

    def way(src: int, dst: int) -> tuple[int, ...]:
        found = [src]
        for number in range(len(grid.axes)):
            found.append(group_of[number][found[-1]][place[dst][number]])
        return tuple(found)

    return way


def _led(node_of: tuple[int, ...], leader_of: dict[int, int], quickest: Way) -> Way:
    """To another node through the leaders of both camps, who wait for all of their camp; inside a node on a quickest path."""
    farthest = max(len(quickest(rank, leader)) for rank, leader in leader_of.items())

    def way(src: int, dst: int) -> tuple[int, ...]:
        if node_of[src] == node_of[dst]:
            return quickest(src, dst)
        out, onward = leader_of[src], leader_of[dst]
        begin = quickest(src, out)
        return (*(src,) * (farthest - len(begin)), *begin, *quickest(out, onward)[1:], *quickest(onward, dst)[1:])

    return way


def _along(way: Way, num_ranks: int, chunks_per_rank: int) -> Moves:
    """Moves along the ways; a hop to where a chunk is already is none. Whom a rank serves first differs from rank to rank."""
    carried: dict[tuple[int, int, int, int], list[int]] = {}
    for src in range(num_ranks):
        for dst in range(num_ranks):
            if src == dst:
                continue
            hops = way(src, dst)
            for number in range(len(hops) - 1):
                here, there = hops[number], hops[number + 1]
                if here != there:
                    first = (src * num_ranks + dst) * chunks_per_rank
                    key = (number, (there - here) % num_ranks, here, there)
                    carried.setdefault(key, []).extend(range(first, first + chunks_per_rank))
    return tuple(
        Move(here, there, tuple(chunks), number, number + 1)
        for (number, _, here, there), chunks in sorted(carried.items())
    )
