"""Chunks that can share a message: arcs of one link whose chunks are neighbours in the buffers at both ends.

Alpha is shared only by neighbours, so a planner may join an arc only to its predecessor here. Places in input and output are
fixed. Ranks that relay chunks which they do not want keep what passes through them in scratch, ordered by final rank and
origin; `taccl_py.schedule.layout` decides the real order afterwards and cuts what does not fit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from taccl_py.collective import Collective
from taccl_py.synthesis.quotient import Quotient


@dataclass(frozen=True)
class Params:
    """Numbers of the adjacency of chunks.

    Attributes
    ----------
    least_joint_part
        Part of the links of an orbit on which two chunks must be neighbours to be planned together. Guess.
    """

    least_joint_part: float = 0.75


PARAMS = Params()


def predecessors(quotient: Quotient) -> dict[int, int]:
    """For an arc, the arc on the same link that carries the chunk just before its own, on (nearly) every link of the orbit.

    A rotation wraps the numbering around at some link of an orbit, where two chunks are not neighbours after all. One message
    more there costs less than giving up the joint message everywhere; the exact timing of the lifted schedule charges it.
    """
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
        before = Counter(
            by_place.get((index, here - 1, there - 1), -1) if here > 0 and there > 0 else -1
            for index, here, there in own
        )
        candidate, count = max(before.items(), key=lambda item: (item[1], -item[0]))
        if candidate >= 0 and count >= PARAMS.least_joint_part * len(own):
            found[arc] = candidate
    return _without_cycles(found)


def _without_cycles(predecessor: dict[int, int]) -> dict[int, int]:
    """Drop one entry of every cycle, which the images of a chunk under a rotation form where its orbit wraps around."""
    kept: dict[int, int] = {}
    # Some arc towards the first one of a chain: chains of many chunks would take long.
    ahead: dict[int, int] = {}
    for arc, before in predecessor.items():
        first = before
        while (next_one := ahead.get(first)) is not None:
            ahead[first] = ahead.get(next_one, next_one)
            first = next_one
        if first != arc:
            kept[arc] = ahead[arc] = before
    return kept


def _places(quotient: Quotient) -> list[dict[int, int]]:
    """Planning position of every chunk at every rank; gaps of two keep different buffers apart.

    At a rank that relays, only its costliest links decide which chunks lie in scratch together: there sharing alpha pays most.
    """
    collective = quotient.problem.collective
    links = quotient.problem.topology.links
    passing: list[set[int]] = [set() for _ in range(collective.num_ranks)]
    relayed: list[set[int]] = [set() for _ in range(collective.num_ranks)]
    on_link: dict[int, set[int]] = {}
    for chunk, index in zip(quotient.member_chunk.tolist(), quotient.member_link.tolist(), strict=True):
        link = links[index]
        on_link.setdefault(index, set()).add(chunk)
        passing[link.src].add(chunk)
        passing[link.dst].add(chunk)
        if link.dst not in collective.wanted[chunk]:
            relayed[link.dst].add(chunk)
    together = [set(chunks) for chunks in relayed]
    costliest = [0.0] * collective.num_ranks
    busy = [index for index in on_link if on_link[index] & (relayed[links[index].src] | relayed[links[index].dst])]
    for index in busy:
        for rank in (links[index].src, links[index].dst):
            if on_link[index] & relayed[rank]:
                costliest[rank] = max(costliest[rank], links[index].alpha_us)
    for index in busy:
        for rank in (links[index].src, links[index].dst):
            if on_link[index] & relayed[rank] and links[index].alpha_us >= costliest[rank]:
                together[rank] |= on_link[index]
    return [_rank_places(collective, rank, passing[rank], together[rank]) for rank in range(collective.num_ranks)]


def _rank_places(collective: Collective, rank: int, chunks: set[int], together: set[int]) -> dict[int, int]:
    order = sorted(together, key=lambda c: (collective.wanted[c][0], collective.source[c], c))
    places = {chunk: position for position, chunk in enumerate(order)}
    after_scratch = len(order) + 2
    for chunk in chunks - together:
        output = collective.output_address(chunk, rank)
        address = output or collective.input_address(chunk, rank)
        if address is not None:
            shift = 0 if output is not None else collective.output_chunks + 2
            places[chunk] = address.offset + after_scratch + shift
    return places
