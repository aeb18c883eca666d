"""Distances and neighbourhoods on a quotient, in units of its grid; shared by greedy, bounds and models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray
from taccl_py.grouping import by_number
from taccl_py.synthesis.distances import distances
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.quotient import Quotient

FAR = 1 << 60


@dataclass(frozen=True)
class Routes:
    """Static facts about the quotient's graph of states.

    Attributes
    ----------
    out, into
        Arcs that leave and that enter a state, [state].
    earliest
        Least time at which a state can hold when nothing is in the way (FAR if never), [state].
    hops
        Fewest arcs from a source, [state].
    remaining
        Longest of the shortest paths from a state to a wanted state that is best reached through it, [state].
    own_first_pairs
        (own, other) arcs of one link: if both are used, other starts no earlier than own.
    """

    out: tuple[tuple[int, ...], ...]
    into: tuple[tuple[int, ...], ...]
    earliest: tuple[int, ...]
    hops: tuple[int, ...]
    remaining: tuple[int, ...]
    own_first_pairs: tuple[tuple[int, int], ...]

    @staticmethod
    def of(quotient: Quotient, grid: TimeGrid) -> Routes:
        """Compute them."""
        tails, heads = quotient.tail.tolist(), quotient.head.tolist()
        out = by_number(quotient.num_states, ((tail, arc) for arc, tail in enumerate(tails)))
        into = by_number(quotient.num_states, ((head, arc) for arc, head in enumerate(heads)))
        cost = [grid.duration(arc) for arc in range(quotient.num_arcs)]
        sources = np.flatnonzero(quotient.source).tolist()
        lengths = np.array(cost, dtype=np.float64)
        earliest = _in_units(distances(quotient.num_states, quotient.tail, quotient.head, sources, lengths))
        hops = hops_of_states(quotient, quotient.source)
        return Routes(
            tuple(map(tuple, out)), tuple(map(tuple, into)), tuple(earliest), tuple(hops),
            tuple(_remaining(quotient, out, heads, cost, earliest)), tuple(_own_first_pairs(quotient)),
        )  # fmt: skip


def hops_of_states(quotient: Quotient, starts: BoolArray, *, backwards: bool = False) -> list[int]:
    """Fewest arcs from any of some states to every state, or backwards from every state to any of them; FAR if never, [state]."""
    tail, head = (quotient.head, quotient.tail) if backwards else (quotient.tail, quotient.head)
    return _in_units(distances(quotient.num_states, tail, head, np.flatnonzero(starts).tolist()))


def _in_units(found: FloatArray) -> list[int]:
    whole: list[int] = np.where(np.isfinite(found), found, FAR).astype(np.int64).tolist()
    return whole


def _remaining(
    quotient: Quotient, out: list[list[int]], heads: list[int], cost: list[int], earliest: list[int]
) -> list[int]:
    """Walk the shortest-path arcs backwards in order of distance; a wanted state itself counts 1, a useless one 0."""
    remaining = [1 if quotient.required[state] else 0 for state in range(quotient.num_states)]
    for state in sorted(range(quotient.num_states), key=lambda s: -earliest[s]):
        if earliest[state] >= FAR:
            continue
        for arc in out[state]:
            head = heads[arc]
            if remaining[head] and earliest[state] + cost[arc] == earliest[head]:
                remaining[state] = max(remaining[state], remaining[head] + cost[arc])
    return remaining


def _own_first_pairs(quotient: Quotient) -> list[tuple[int, int]]:
    problem = quotient.problem
    if problem.sketch is None or not problem.sketch.own_first:
        return []
    topology = problem.topology
    by_link: dict[int, tuple[list[int], list[int]]] = {}
    for arc in range(quotient.num_arcs):
        chunk, index = quotient.members(arc)[0]
        link = topology.links[index]
        if not topology.is_inside(link):
            own, other = by_link.setdefault(int(quotient.link_orbit[arc]), ([], []))
            (own if problem.goes_first(chunk, index) else other).append(arc)
    return [(mine, theirs) for own, other in by_link.values() for mine in own for theirs in other]
