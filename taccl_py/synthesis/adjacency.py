"""Which chunks can travel together: arcs of one link whose chunks are neighbours in the buffers at both ends.

Alpha is shared only by neighbours, so a planner may join an arc only to its predecessor here. Places in input and output are
fixed. Ranks that relay chunks which they do not want keep what passes through them in scratch, ordered by final rank and
origin; `taccl_py.schedule.layout` decides the real order afterwards and cuts what does not fit.
"""

from __future__ import annotations

from taccl_py.collective import Collective
from taccl_py.synthesis.quotient import Quotient


def predecessors(quotient: Quotient) -> dict[int, int]:
    """For an arc, the arc on the same link that carries the chunk just before its own, on every link of the orbit."""
    places = _places(quotient)
    links = quotient.problem.topology.links
    by_place: dict[tuple[int, int, int], int] = {}
    arc_places: list[list[tuple[int, int, int]]] = []
    for arc in range(quotient.num_arcs):
        own = []
        for chunk, index in quotient.members(arc):
            link = links[index]
            place = (index, places[link.src].get(chunk, -1), places[link.dst].get(chunk, -1))
            own.append(place)
            by_place[place] = arc
        arc_places.append(own)
    found = {}
    for arc, own in enumerate(arc_places):
        before = {
            by_place.get((index, here - 1, there - 1), -1) for index, here, there in own if here > 0 and there > 0
        }
        if len(before) == 1 and -1 not in before and all(here > 0 and there > 0 for _, here, there in own):
            found[arc] = before.pop()
    return found


def _places(quotient: Quotient) -> list[dict[int, int]]:
    """Planning position of every chunk at every rank; gaps of two keep different buffers apart."""
    collective = quotient.problem.collective
    links = quotient.problem.topology.links
    passing: list[set[int]] = [set() for _ in range(collective.num_ranks)]
    relays = [False] * collective.num_ranks
    for chunk, index in zip(quotient.member_chunk.tolist(), quotient.member_link.tolist(), strict=True):
        link = links[index]
        passing[link.src].add(chunk)
        passing[link.dst].add(chunk)
        if link.dst not in collective.wanted[chunk]:
            relays[link.dst] = True
    return [_rank_places(collective, rank, passing[rank], relays[rank]) for rank in range(collective.num_ranks)]


def _rank_places(collective: Collective, rank: int, chunks: set[int], relays: bool) -> dict[int, int]:
    if relays:
        order = sorted(chunks, key=lambda c: (collective.wanted[c][0], collective.source[c], c))
        return {chunk: position for position, chunk in enumerate(order)}
    places = {}
    for chunk in chunks:
        output = collective.output_address(chunk, rank)
        address = output or collective.input_address(chunk, rank)
        if address is not None:
            shift = 0 if output is not None else collective.output_chunks + 2
            places[chunk] = address.offset + shift
    return places
