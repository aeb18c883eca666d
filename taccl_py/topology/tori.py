"""Grids by formula: tori, twisted tori and meshes, whose ranks pass messages on by software or by routers.

On a plain grid only neighbours are linked. On a *routed* one, as of TPUs and of most torus networks, every pair is: routers pass a
message on, along a shortest path, one dimension after the other, the last one first. Where several are as short (half way around a
ring, for one) each is a link. A message leaves its rank by the first wire of its path and enters another by the last one, with the
alpha of a message at both, shares every wire between with whatever else passes there, at beta, and arrives `hop_us` later for every
hop after the first. So what only neighbours send each other takes as long as on the plain grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from taccl_py.topology.fabrics import NodeParts
from taccl_py.topology.template import AlphaBeta, NodeLink, NodePort, PortSide, Side

_Place = tuple[int, ...]
# From a place, a dimension and a direction (-1 or 1) to the place next to it.
_Next = Callable[[_Place, int, int], _Place]


def torus(sides: _Place, cost: AlphaBeta, hop_us: float | None = None) -> NodeParts:
    """Grid whose sides are rings; routed if there is a cost for each further hop."""
    return _closed(sides, cost, hop_us, ())


def twisted(sides: _Place, cost: AlphaBeta, hop_us: float | None = None) -> NodeParts:
    """Torus in which going around a short side also moves half way along every long one."""
    return _closed(sides, cost, hop_us, [dim for dim, side in enumerate(sides) if side > min(sides)])


def mesh(sides: _Place, cost: AlphaBeta, hop_us: float | None = None) -> NodeParts:
    """Grid whose sides are lines; routed if there is a cost for each further hop."""
    places = list(_places(sides))

    def next_to(place: _Place, dimension: int, step: int) -> _Place:
        return _moved(place, dimension, place[dimension] + step)

    if hop_us is None:
        links = tuple(
            NodeLink(_rank_at(place, sides), _rank_at(next_to(place, dimension, step), sides), cost)
            for place in places
            for dimension, side in enumerate(sides)
            for step in (-1, 1)
            if 0 <= place[dimension] + step < side
        )
        return NodeParts(len(places), links)
    moves = (
        (here, [tuple(b - a for a, b in zip(here, there, strict=True))])
        for here, there in itertools.permutations(places, 2)
    )
    return _routed(sides, cost, hop_us, next_to, moves)


def _closed(sides: _Place, cost: AlphaBeta, hop_us: float | None, turned: Sequence[int]) -> NodeParts:
    """Torus, in which going around any other side moves along the `turned` ones by as much as that side is long."""

    def next_to(place: _Place, dimension: int, step: int) -> _Place:
        around = (place[dimension] + step) // sides[dimension]
        found = list(_moved(place, dimension, (place[dimension] + step) % sides[dimension]))
        if dimension not in turned:
            for other in turned:
                found[other] = (found[other] + around * sides[dimension]) % sides[other]
        return tuple(found)

    places, dimensions = list(_places(sides)), range(len(sides))
    shifts = tuple(tuple(_rank_at(next_to(place, dim, 1), sides) for place in places) for dim in dimensions)
    if hop_us is not None:
        moves = [found for offset, found in enumerate(_shortest_moves(sides, next_to)) if offset]
        return _routed(sides, cost, hop_us, next_to, itertools.product(places, moves), shifts)
    links = []
    for place in places:
        for dimension in dimensions:
            # On a side of 2 the next rank and the previous one are the same: one link, not two.
            for neighbour in dict.fromkeys(_rank_at(next_to(place, dimension, step), sides) for step in (-1, 1)):
                links.append(NodeLink(_rank_at(place, sides), neighbour, cost))
    return NodeParts(len(places), tuple(links), symmetry=shifts)


def _shortest_moves(sides: _Place, next_to: _Next) -> list[list[_Place]]:
    """For every rank the numbers of steps along each dimension, forwards or backwards, that lead there from rank 0 in the fewest."""
    found: list[list[_Place]] = [[] for _ in range(math.prod(sides))]
    near = itertools.product(*(range(-side, side + 1) for side in sides))
    for move in sorted(near, key=lambda each: (_length(each), [-steps for steps in each])):
        moves = found[_rank_at(_path((0,) * len(sides), move, next_to)[-1], sides)]
        if not moves or _length(move) == _length(moves[0]):
            moves.append(move)
    return found


def _length(move: _Place) -> int:
    return sum(map(abs, move))


def _path(place: _Place, move: _Place, next_to: _Next) -> list[_Place]:
    """Places on the way, both ends included, one dimension after the other, the last one first."""
    found = [place]
    for dimension in reversed(range(len(move))):
        for _ in range(abs(move[dimension])):
            found.append(next_to(found[-1], dimension, 1 if move[dimension] > 0 else -1))
    return found


def _routed(
    sides: _Place,
    cost: AlphaBeta,
    hop_us: float,
    next_to: _Next,
    moves: Iterator[tuple[_Place, list[_Place]]],
    symmetry: tuple[_Place, ...] = (),
) -> NodeParts:
    """Links along all the given moves from all places; those that lead over the same ranks are one."""
    links: list[NodeLink] = []
    wires: dict[tuple[int, int], None] = {}
    for place, shortest in moves:
        walks = ([_rank_at(each, sides) for each in _path(place, move, next_to)] for move in shortest)
        for walk in dict.fromkeys(map(tuple, walks)):
            hops = list(pairwise(walk))
            wires.update(dict.fromkeys(hops))
            ports = (
                PortSide(_end(*hops[0]), Side.OUT),
                *(PortSide(_wire(*hop), Side.OUT) for hop in hops),
                PortSide(_end(*hops[-1]), Side.IN),
            )
            links.append(NodeLink(walk[0], walk[-1], cost, hop_us * (len(hops) - 1), ports))
    passing = AlphaBeta(0.0, cost.beta_us_per_mb)
    ends = tuple(NodePort(_end(*wire), cost) for wire in wires)
    between = tuple(NodePort(_wire(*wire), passing) for wire in wires)
    return NodeParts(math.prod(sides), tuple(links), symmetry=symmetry, ports=(*ends, *between))


def _end(src: int, dst: int) -> str:
    """Name of what messages occupy that begin with this wire (its side out) or end with it (its side in)."""
    return f"end {src}->{dst}"


def _wire(src: int, dst: int) -> str:
    return f"wire {src}->{dst}"


def _places(sides: Sequence[int]) -> Iterator[_Place]:
    """Coordinates of every rank, in order of rank."""
    return itertools.product(*(range(side) for side in sides))


def _rank_at(place: Sequence[int], sides: Sequence[int]) -> int:
    rank = 0
    for coordinate, side in zip(place, sides, strict=True):
        rank = rank * side + coordinate
    return rank


def _moved(place: _Place, dimension: int, to: int) -> _Place:
    return (*place[:dimension], to, *place[dimension + 1 :])
