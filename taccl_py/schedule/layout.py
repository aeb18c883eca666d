"""Where chunks lie: choose scratch places so that as many planned batches as possible are contiguous at both ends.

A planner says which chunks it would like to send together. Whether they can be one message depends on the buffers: input
and output places are fixed by the collective, the order in scratch is free. `choose_scratch` fixes that order rank by rank
and `contiguous_runs` cuts every batch into runs that are neighbours, in one order, at both ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, pairwise

from taccl_py.collective import Address, Buffer, Collective
from taccl_py.topology.model import Topology

Scratch = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A planned message: a batch of chunks on a link, with the planner's times (any unit, only their order counts).

    Where it has to be cut, none of the chunks in ``lead`` starts after the others. With ``packed`` it is never cut.
    """

    link: int
    chunks: tuple[int, ...]
    start: float
    end: float
    reduce: bool = False
    lead: frozenset[int] = frozenset()
    packed: bool = False


def place_of(collective: Collective, index: dict[int, int], chunk: int, rank: int) -> Address | None:
    """Address of a chunk by the rules of `taccl_py.schedule.ir`, given the rank's scratch positions."""
    position = index.get(chunk)
    if position is not None:
        return Address(Buffer.SCRATCH, position)
    return collective.output_address(chunk, rank) or collective.input_address(chunk, rank)


def choose_scratch(
    topology: Topology, collective: Collective, drafts: Sequence[Draft], *, as_named: bool = False
) -> Scratch:
    """Scratch list of every rank.

    A chunk that a rank receives and does not want must be there. Chunks that have another place join them when a batch
    holds both kinds and would otherwise be cut. Among a few natural orders the one that cuts least is taken.

    Parameters
    ----------
    topology, collective, drafts
        The plan.
    as_named
        Keep all batches of several chunks in scratch, in the order in which the largest ones name their chunks, so that those
        that are parts of each other, as in a tree, stay whole at both ends.
    """
    batches: list[list[tuple[int, ...]]] = [[] for _ in range(collective.num_ranks)]
    needed: list[set[int]] = [set() for _ in range(collective.num_ranks)]
    for draft in drafts:
        link = topology.links[draft.link]
        for chunk in draft.chunks:
            if link.dst not in collective.wanted[chunk]:
                needed[link.dst].add(chunk)
        if len(draft.chunks) > 1:
            batches[link.src].append(draft.chunks)
            batches[link.dst].append(draft.chunks)
    if as_named:
        return tuple(_named_list(needed[rank], batches[rank]) for rank in range(collective.num_ranks))
    orders = _orders(collective)
    return tuple(
        _best_list(collective, rank, needed[rank], batches[rank], orders) for rank in range(collective.num_ranks)
    )


def _named_list(needed: set[int], batches: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The largest batches first; one that goes on where another begins or ends is put there."""
    runs: list[deque[int]] = []
    run_of: dict[int, deque[int]] = {}
    for batch in sorted(dict.fromkeys(batches), key=len, reverse=True):
        new = [chunk for chunk in batch if chunk not in run_of]
        known = [chunk for chunk in batch if chunk in run_of]
        run = run_of[known[0]] if new and known else deque[int]()
        if known and batch == (*new, *known) and known == list(islice(run, len(known))):
            run.extendleft(reversed(new))
        elif known and batch == (*known, *new) and known == list(islice(reversed(run), len(known)))[::-1]:
            run.extend(new)
        elif new:
            run = deque(new)
            runs.append(run)
        run_of.update(dict.fromkeys(new, run))
    return (*chain.from_iterable(runs), *sorted(needed - run_of.keys()))


def _orders(collective: Collective) -> tuple[Callable[[int], tuple[int, int, int]], ...]:
    """Sort keys for scratch: by final rank then origin, by origin then final rank, and by number."""

    def sink(chunk: int) -> int:
        wanted = collective.wanted[chunk]
        return wanted[0] if len(wanted) == 1 else 0

    def origin(chunk: int) -> int:
        return 0 if collective.reduces else collective.source[chunk]

    return (
        lambda chunk: (sink(chunk), origin(chunk), chunk),
        lambda chunk: (origin(chunk), sink(chunk), chunk),
        lambda chunk: (0, 0, chunk),
    )


def _best_list(
    collective: Collective,
    rank: int,
    needed: set[int],
    batches: list[tuple[int, ...]],
    orders: tuple[Callable[[int], tuple[int, int, int]], ...],
) -> tuple[int, ...]:
    if not batches or not needed:
        return tuple(sorted(needed))
    mixed = needed.union(*[batch for batch in batches if needed.intersection(batch)])
    candidates = [tuple(sorted(chunks, key=order)) for chunks in (needed, mixed) for order in orders]

    def cuts(candidate: tuple[int, ...]) -> tuple[int, int]:
        index = {chunk: position for position, chunk in enumerate(candidate)}
        total = 0
        for batch in batches:
            places = sorted(place for chunk in batch if (place := place_of(collective, index, chunk, rank)) is not None)
            total += sum(not _adjacent(one, two) for one, two in pairwise(places))
        return total, len(candidate)

    return min(candidates, key=cuts)


def _adjacent(one: Address, two: Address) -> bool:
    return one.buffer == two.buffer and two.offset == one.offset + 1


def contiguous_runs(
    topology: Topology, collective: Collective, scratch: Scratch, drafts: Sequence[Draft]
) -> list[Draft]:
    """Cut batches where their chunks are not neighbours, in the same order, at both ends.

    The runs of a batch keep its times and follow each other in buffer order, those of its leading chunks first.
    """
    index = [{chunk: position for position, chunk in enumerate(chunks)} for chunks in scratch]
    result = []
    for draft in drafts:
        if len(draft.chunks) == 1:
            result.append(_as_run(draft, draft.chunks))
            continue
        link = topology.links[draft.link]
        places = []
        for chunk in draft.chunks:
            here = place_of(collective, index[link.src], chunk, link.src)
            there = place_of(collective, index[link.dst], chunk, link.dst)
            if here is None or there is None:
                raise ValueError(f"chunk {chunk} has no place on link {link.src}->{link.dst}")
            places.append((here, there, chunk))
        runs = _cut(sorted(places))
        if draft.packed and len(runs) > 1:
            result.append(replace(draft, chunks=_as_stored(places)))
        else:
            result += [_as_run(draft, run) for run in leaders_first(runs, draft.lead)]
    return result


def _as_run(draft: Draft, chunks: tuple[int, ...]) -> Draft:
    """The draft with neighbouring chunks only, itself where that is what it has; there are very many."""
    if not draft.packed and chunks == draft.chunks:
        return draft
    return Draft(draft.link, chunks, draft.start, draft.end, draft.reduce, draft.lead)


def _as_stored(places: list[tuple[Address, Address, int]]) -> tuple[int, ...]:
    """Chunks in the order of the end at which they are neighbours, else in that of the receiver."""
    by_sender = sorted(places)
    if all(_adjacent(one[0], two[0]) for one, two in pairwise(by_sender)):
        return tuple(chunk for _, _, chunk in by_sender)
    return tuple(chunk for _, _, chunk in sorted(places, key=lambda place: place[1:]))


def _cut(places: list[tuple[Address, Address, int]]) -> list[tuple[int, ...]]:
    """Runs of chunks, given in buffer order with their places at both ends."""
    runs = [[places[0][2]]]
    for (here, there, _), (next_here, next_there, chunk) in pairwise(places):
        if _adjacent(here, next_here) and _adjacent(there, next_there):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return [tuple(run) for run in runs]


def leaders_first(runs: Sequence[tuple[int, ...]], lead: Collection[int]) -> list[tuple[int, ...]]:
    """Order runs so that none of `lead` comes after others; runs of both kinds are parted, but for the last of them."""
    before: list[tuple[int, ...]] = []
    mixed: list[tuple[int, ...]] = []
    after: list[tuple[int, ...]] = []
    for run in runs:
        leading = sum(item in lead for item in run)
        (before if leading == len(run) else mixed if leading else after).append(run)
    for run in mixed[:-1]:
        for leads, part in groupby(run, lambda item: item in lead):
            (before if leads else after).append(tuple(part))
    return [*before, *mixed[-1:], *after]
