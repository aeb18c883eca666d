"""Demands that are nearly one of the eight collectives: a schedule of that collective, with what nobody needs left out and the demand's sizes.

A collective covers a demand if each class of chunks has, among those who hold them, one that holds a chunk of the collective which at least the
same ranks want. What a class does not need of that chunk's messages is left out: those to ranks that hold it, or from which nobody gets it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from taccl_py.collective import Collective, Kind
from taccl_py.demand import DataDemand
from taccl_py.errors import Infeasible, LimitReached
from taccl_py.grouping import grouped
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message, Schedule, rounding_us
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.demands.classes import ChunkClass, DemandCut
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.recognize import PER_RANK, ChunkKey, carried_over, keys_by_chunk
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.topology.model import Topology

_ENGINE = "auto"


def covered(
    topology: Topology, demand: DataDemand, classes: Sequence[ChunkClass], limits: Limits
) -> Iterator[DemandSchedule]:
    """Schedule of the collective that covers the demand with the least that nobody wants; none where all waste too much."""
    found = _least_waste(classes, topology.num_ranks) if classes else None
    if found is None:
        return
    collective, keys = found
    amounts = Counter[ChunkKey]()
    for each, key in zip(classes, keys, strict=True):
        amounts[key] += each.size_bytes
    # What most ranks have counts, not the average: the collective's schedule is to be good for most.
    size = sorted(amounts.values())[len(amounts) // 2]
    whole = size * (topology.num_ranks if collective.kind in PER_RANK else 1)
    asked = Demand(topology, collective.kind, whole, collective.root)
    options = Options(limits=replace(limits, workers=1))
    try:
        schedule = load_engine(_ENGINE)(asked, options, Events()).schedule
    except (Infeasible, LimitReached):
        # The collective wants what the demand does not, where no path leads, or there was no time for it.
        return
    fitted = _fitted(schedule, demand, classes, keys)
    if fitted is not None:
        yield fitted


def _least_waste(classes: Sequence[ChunkClass], ranks: int) -> tuple[Collective, list[ChunkKey]] | None:
    """The collective that covers a demand with the least waste, and its chunk for each class."""
    best: tuple[float, Collective, list[ChunkKey]] | None = None
    for collective in _candidates(classes, ranks):
        keys = [key for key in keys_by_chunk(collective) if key is not None]
        chosen = [_covering(each, keys) for each in classes]
        whole = [key for key in chosen if key is not None]
        if len(whole) < len(classes):
            continue
        amounts = Counter[ChunkKey]()
        for each, key in zip(classes, whole, strict=True):
            amounts[key] += each.size_bytes
        size = sorted(amounts.values())[len(amounts) // 2]
        needed = sum(each.size_bytes * len(each.wants) for each in classes)
        waste = sum(max(size, amounts[key]) * len(key[1]) for key in set(keys)) / needed
        if waste <= PARAMS.most_waste and (best is None or waste < best[0]):
            best = (waste, collective, whole)
    return best[1:] if best is not None else None


def _candidates(classes: Sequence[ChunkClass], ranks: int) -> Iterator[Collective]:
    """Collectives of copies or of sums, with every root that they could have."""
    if len({each.is_sum for each in classes}) > 1:
        return
    held = {rank for each in classes for term in each.terms for rank in term}
    wanted = {rank for each in classes for rank in each.wants}
    if classes[0].is_sum:
        if any(len(term) > 1 for each in classes for term in each.terms):
            return
        kinds = [(Kind.REDUCESCATTER, (0,)), (Kind.ALLREDUCE, (0,)), (Kind.REDUCE, sorted(wanted))]
    else:
        kinds = [(Kind.ALLGATHER, (0,)), (Kind.ALLTOALL, (0,)), (Kind.GATHER, sorted(wanted))]
        kinds += [(Kind.BROADCAST, sorted(held)), (Kind.SCATTER, sorted(held))]
    for kind, roots in kinds:
        for root in roots:
            yield Collective(kind, ranks, 1, root)


def _covering(each: ChunkClass, keys: Sequence[ChunkKey]) -> ChunkKey | None:
    """Chunk of a collective that covers a class: the one that the fewest ranks want."""
    # Who holds a chunk needs no message; who adds to a sum has not got it yet.
    there = () if each.is_sum else each.terms[0]
    found = [key for key in keys if set(each.wants) <= {*key[1], *there} and _is_held(each, key)]
    return min(found, key=lambda key: len(key[1]), default=None)


def _is_held(each: ChunkClass, key: ChunkKey) -> bool:
    """True if the collective's source holds it, or all who add to it add to the collective's."""
    if each.is_sum:
        return len(key[0]) > 1
    return len(key[0]) == 1 and key[0][0][0] in each.terms[0]


def _fitted(
    schedule: Schedule, demand: DataDemand, classes: Sequence[ChunkClass], keys: Sequence[ChunkKey]
) -> DemandSchedule | None:
    """The collective's schedule with the demand's chunks in its messages; None where, at other times, a term would count twice."""
    of_key = grouped((key, chunk) for chunk, key in enumerate(keys_by_chunk(schedule.collective)))
    by_chunk = _by_chunk(schedule.messages)
    demand_cut = DemandCut(demand)
    class_of: list[ChunkClass] = []
    carried: list[list[int]] = [[] for _ in schedule.messages]
    for each, key in zip(classes, keys, strict=True):
        for chunk, cut in zip(of_key[key], each.cut(demand, len(of_key[key])), strict=False):
            parts = demand_cut.number(cut)
            class_of += [each] * len(cut)
            for number in _needed(schedule, by_chunk.get(chunk, []), each):
                carried[number] += parts
    found = carried_over(schedule, demand_cut.demand(), [tuple(chunks) for chunks in carried])
    by_part = _by_chunk(found.messages)
    # Where sizes differ, a sum may have grown before a rank passes on what it had, so that this would count twice.
    return found if all(_is_served(found, by_part.get(part, []), each) for part, each in enumerate(class_of)) else None


def _by_chunk(messages: Sequence[Message]) -> dict[int, list[int]]:
    """Numbers of the messages that carry each chunk."""
    return grouped((chunk, number) for number, message in enumerate(messages) for chunk in message.chunks)


def _needed(schedule: Schedule, numbers: Sequence[int], each: ChunkClass) -> list[int]:
    """Messages of a chunk, in order of their starts, that a class of the demand needs."""
    links, messages = schedule.topology.links, schedule.messages
    # When each rank needs what has come to it: when it sends it on, or at the end.
    needs: defaultdict[int, list[float]] = defaultdict(list, {rank: [math.inf] for rank in each.wants})
    found = []
    # Backwards: what nobody needs afterwards is left out.
    for number in reversed(_useful(schedule, numbers, each)):
        message = messages[number]
        link = links[message.link]
        later = [us for us in needs[link.dst] if message.end_us <= us + rounding_us(us, schedule.makespan_us)]
        if later:
            found.append(number)
            if not message.reduce:
                needs[link.dst] = [us for us in needs[link.dst] if us not in later]
            needs[link.src].append(message.start_us)
    return found[::-1]


def _useful(schedule: Schedule, numbers: Sequence[int], each: ChunkClass) -> list[int]:
    """Messages, of those given, that bring a rank something of a class that it has not got by then."""
    found = [number for number, there, came in _arrivals(schedule, numbers, each) if not came <= there]
    return sorted(found, key=numbers.index)


def _is_served(schedule: DemandSchedule, numbers: Sequence[int], each: ChunkClass) -> bool:
    """True if messages bring all terms of a class to those who want it, and add none twice."""
    held = {rank: frozenset({number}) for number, term in enumerate(each.terms) for rank in term}
    for number, there, came in _arrivals(schedule, numbers, each):
        reduce = schedule.messages[number].reduce
        if reduce and there & came:
            return False
        held[schedule.topology.links[schedule.messages[number].link].dst] = there | came if reduce else came
    return all(len(held.get(rank, ())) == len(each.terms) for rank in each.wants)


def _arrivals(
    schedule: Schedule | DemandSchedule, numbers: Sequence[int], each: ChunkClass
) -> Iterator[tuple[int, frozenset[int], frozenset[int]]]:
    """Messages of a chunk as they arrive, the terms of a class that are there, and those that come; they change nothing if all are there."""
    links, messages = schedule.topology.links, schedule.messages
    # Terms that each rank has: its own, or the one there is where nothing is added.
    held = {rank: frozenset({number}) for number, term in enumerate(each.terms) for rank in term}
    ends = [(messages[number].end_us, False, number) for number in numbers]
    starts = [
        (messages[n].start_us + rounding_us(messages[n].start_us, schedule.makespan_us), True, n) for n in numbers
    ]
    carried: dict[int, frozenset[int]] = {}
    for _, is_start, number in sorted([*ends, *starts]):
        message = messages[number]
        link = links[message.link]
        if is_start:
            carried[number] = held.get(link.src, frozenset())
            continue
        # One that takes less time than rounding does has not been seen to start.
        there, came = held.get(link.dst, frozenset()), carried.get(number, held.get(link.src, frozenset()))
        yield number, there, came
        if not came <= there:
            held[link.dst] = there | came if message.reduce else came
