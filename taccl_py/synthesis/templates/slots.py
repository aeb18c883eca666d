"""Slots: when the messages of trees leave, where every rank has one port out and one in and all messages take as long.

With k trees every port serves at most k messages in a period of k slots. Messages are edges between ports out and ports in, and a
slot of the period is a colour: k colours are enough for such a bipartite graph. König: Über Graphen und ihre Anwendung auf
Determinantentheorie und Mengenlehre. Math. Ann. 77 (1916).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hop:
    """A message of a stripe's first piece, and the slot in which it leaves."""

    src: int
    dst: int
    slot: int


def slotted(trees: Sequence[Mapping[int, Sequence[int]]], root: int) -> list[list[Hop]]:
    """Slots such that no two messages meet at a port, even if all is repeated as often as every so many slots as there are trees.

    Parameters
    ----------
    trees
        Whom each rank tells; it tells at most as many others in all trees together as there are trees.
    root
        Root of all trees.
    """
    period = len(trees)
    colours = _Colours(period)
    for tree in trees:
        ready = {root: 0}
        for src, dst in _downwards(tree, root):
            ready[dst] = _next(ready[src], colours.add(src, dst, ready[src]), period) + 1
    # Later messages may have changed the colours of earlier ones.
    final = iter(colours.of)
    found = []
    for tree in trees:
        hops, ready = list[Hop](), {root: 0}
        for src, dst in _downwards(tree, root):
            hops.append(Hop(src, dst, _next(ready[src], next(final), period)))
            ready[dst] = hops[-1].slot + 1
        found.append(hops)
    return found


def _next(ready: int, colour: int, period: int) -> int:
    """First slot of a colour from when a rank is ready on."""
    return ready + (colour - ready) % period


def _downwards(tree: Mapping[int, Sequence[int]], root: int) -> Iterator[tuple[int, int]]:
    front = [root]
    for src in front:
        for dst in tree.get(src, ()):
            yield src, dst
            front.append(dst)


class _Colours:
    """Colours of edges between ports, none of them twice at a port."""

    def __init__(self, number: int) -> None:
        self.of: list[int] = []
        self._number = number
        self._ends: list[tuple[tuple[str, int], tuple[str, int]]] = []
        self._edge_at: dict[tuple[str, int], dict[int, int]] = {}

    def add(self, src: int, dst: int, ready: int) -> int:
        """Colour an edge: with the next slot from when it is ready that is free at both ports, or one that can be made so."""
        ends = ("out", src), ("in", dst)
        taken = [self._edge_at.setdefault(end, {}) for end in ends]
        free = [[colour for colour in range(self._number) if colour not in each] for each in taken]
        both = set(free[0]).intersection(free[1])
        if both:
            colour = min(both, key=lambda each: (each - ready) % self._number)
        else:
            colour = min(free[0], key=lambda each: (each - ready) % self._number)
            self._exchange(ends[1], colour, free[1][0])
        self.of.append(colour)
        self._ends.append(ends)
        for end in taken:
            end[colour] = len(self.of) - 1
        return colour

    def _exchange(self, port: tuple[str, int], one: int, other: int) -> None:
        """Exchange two colours along the way of edges that have them by turns, which begins at a port and ends at another one."""
        path, colour = list[int](), one
        while (edge := self._edge_at[port].get(colour)) is not None:
            path.append(edge)
            port = self._ends[edge][self._ends[edge][0] == port]
            colour = one + other - colour
        for edge in path:
            for end in self._ends[edge]:
                self._edge_at[end].pop(self.of[edge], None)
        for edge in path:
            self.of[edge] = one + other - self.of[edge]
            for end in self._ends[edge]:
                self._edge_at[end][self.of[edge]] = edge
