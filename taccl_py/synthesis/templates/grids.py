"""Grids of one to three axes over a machine's ranks, along which templates work one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from taccl_py.synthesis.templates.patterns import DIRECT, PATTERNS, RING, Axis, Groups, axis
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class RankGrid:
    """Ranks as a grid.

    Attributes
    ----------
    name
        Its sides, in the order in which the axes are gone through.
    axes
        For every axis, the groups of ranks that differ in this coordinate alone.
    """

    name: str
    axes: tuple[Groups, ...]

    @cached_property
    def sides(self) -> tuple[int, ...]:
        """Length of every axis."""
        return tuple(len(groups[0]) for groups in self.axes)


def grids(topology: Topology, most_axes: int = 3) -> Iterator[RankGrid]:
    """Grids whose axes run along the ranks' numbers, inside nodes and across them, the inner axes first and last."""
    inner = len(topology.node_ranks[0]) if topology.has_even_nodes else topology.num_ranks
    order = tuple(rank for ranks in topology.node_ranks for rank in ranks)
    across = len(order) // inner
    for sides in _factors(inner, most_axes if across == 1 else most_axes - 1):
        whole = sides if across == 1 else (*sides, across)
        axes = tuple(_along(order, whole, i) for i in range(len(whole)))
        yield RankGrid("x".join(map(str, whole)), axes)
        if len(axes) > 1:
            yield RankGrid("x".join(map(str, whole[::-1])) + " outer first", axes[::-1])
    if across > 1:
        yield RankGrid(str(len(order)), (_along(order, (len(order),), 0),))


def _factors(number: int, most: int) -> list[tuple[int, ...]]:
    """Factorizations of a number of at most so many numbers above 1, in order."""
    if number == 1:
        return [()]
    found: list[tuple[int, ...]] = [(number,)]
    if most > 1:
        for first in range(2, number // 2 + 1):
            if number % first == 0:
                found += [(first, *rest) for rest in _factors(number // first, most - 1)]
    return found


def _along(order: tuple[int, ...], sides: tuple[int, ...], number: int) -> Groups:
    """Groups of ranks that differ in one coordinate alone; the first coordinate is the innermost."""
    stride = 1
    for side in sides[:number]:
        stride *= side
    side = sides[number]
    starts = [start for start in range(len(order)) if start // stride % side == 0]
    return tuple(tuple(order[start + i * stride] for i in range(side)) for start in starts)


@dataclass(frozen=True, slots=True)
class Walk:
    """A grid with a pattern for every axis."""

    name: str
    axes: tuple[Axis, ...]


def walks(site: TemplateSite) -> Iterator[Walk]:
    """All grids with each pattern, or the first possible one on the axes where it is not possible."""
    known: dict[Groups, dict[str, Axis]] = {}
    seen = set()
    for grid in grids(site.topology):
        for groups in grid.axes:
            if groups not in known:
                found = {name: axis(site, name, groups) for name in PATTERNS}
                if found[DIRECT] is not None:
                    del found[RING]  # never better than straight to everyone
                known[groups] = {name: each for name, each in found.items() if each is not None}
        if not all(known[groups] for groups in grid.axes):
            continue
        for name in PATTERNS:
            chosen = tuple(known[groups].get(name) or next(iter(known[groups].values())) for groups in grid.axes)
            key = tuple((each.groups, each.steps) for each in chosen)
            if key not in seen:
                seen.add(key)
                names = [each.name for each in chosen]
                yield Walk(f"{' '.join(dict.fromkeys(names))} {grid.name}", chosen)
