"""Demands that are one of the eight collectives, with ranks and chunks in any order: engines of collectives then answer them.

What counts is who has what and who wants it, and how much of it, whatever it is called and wherever it lies. So an AllGather is a demand in which
every rank holds as many bytes as any other and all others want them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Collective, Kind
from taccl_py.demand import DataDemand
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import PlanDependences
from taccl_py.synthesis.demands.classes import ChunkClass, DemandCut, classes_of

# Holders of each term, and who wants it and lacks it.
ChunkKey = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
# Kinds whose size is that of all ranks' shards.
PER_RANK = frozenset({Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER})


@dataclass(frozen=True, slots=True)
class KnownDemand:
    """Name and size of the collective that a demand is.

    Attributes
    ----------
    kind, root
        Collective.
    size_bytes
        Size as nccl-tests counts it.
    """

    kind: Kind
    root: int
    size_bytes: int


def recognized(demand: DataDemand) -> KnownDemand | None:
    """The collective that a demand is, or None."""
    classes = classes_of(demand)
    sizes = {each.size_bytes for each in classes}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    keys = {(each.terms, each.wants) for each in classes}
    ends = {rank for terms, wants in keys for rank in (*wants, *(r for term in terms for r in term))}
    if len(ends) < demand.num_ranks:
        return None
    for kind, root in _candidates(classes, demand.num_ranks):
        collective = Collective(kind, demand.num_ranks, 1, root)
        if {key for key in keys_by_chunk(collective) if key is not None} == keys:
            return KnownDemand(kind, root, size * (demand.num_ranks if kind in PER_RANK else 1))
    return None


def _candidates(classes: Sequence[ChunkClass], ranks: int) -> list[tuple[Kind, int]]:
    """Collectives with so many classes, and the roots that they could have."""
    sums = all(each.is_sum for each in classes)
    if len(classes) == 1:
        (only,) = classes
        rooted = (Kind.REDUCE, only.wants[0]) if sums else (Kind.BROADCAST, only.terms[0][0])
        return [rooted, *([(Kind.ALLREDUCE, 0)] if sums else [])]
    if sums:
        return [(Kind.REDUCESCATTER, 0)] if len(classes) == ranks else []
    found = [(Kind.ALLGATHER, 0)] if len(classes) == ranks else []
    if len(classes) == ranks * (ranks - 1):
        found.append((Kind.ALLTOALL, 0))
    if len(classes) == ranks - 1:
        found += [(Kind.SCATTER, classes[0].terms[0][0]), (Kind.GATHER, classes[0].wants[0])]
    return found


def as_demand_schedule(schedule: Schedule, demand: DataDemand) -> DemandSchedule:
    """Schedule of a collective as one of the demand that was recognized as it.

    Bytes of the demand with the same holders and wants are dealt out to the collective's chunks, in order; where an element cannot be cut, chunks
    differ by one, and times are found again.
    """
    collective = schedule.collective
    keys = keys_by_chunk(collective)
    count = Counter(key for key in keys if key is not None)
    streams = {
        (each.terms, each.wants): iter(each.cut(demand, count[each.terms, each.wants])) for each in classes_of(demand)
    }
    cut = DemandCut(demand)
    parts_of = [cut.number(next(streams[key], ()) if key is not None else ()) for key in keys]
    carried = [tuple(part for chunk in message.chunks for part in parts_of[chunk]) for message in schedule.messages]
    return carried_over(schedule, cut.demand(), carried)


def carried_over(schedule: Schedule, cut: DataDemand, carried: Sequence[tuple[int, ...]]) -> DemandSchedule:
    """Schedule of a demand with the messages of a collective's, each carrying other data; times are found again where sizes differ.

    Parameters
    ----------
    schedule
        Of the collective.
    cut
        What moves, in the parts that messages carry.
    carried
        Numbers of parts in each message; a message without any is left out.
    """
    sizes = [sum(cut.chunks[chunk].size_bytes for chunk in chunks) for chunks in carried]
    untimed = [
        UntimedMessage(message.link, chunks, message.start_us, message.end_us, message.reduce, packed=True)
        for message, chunks in zip(schedule.messages, carried, strict=True)
    ]
    if any(
        size != len(message.chunks) * schedule.chunk_bytes
        for size, message in zip(sizes, schedule.messages, strict=True)
    ):
        used = [i for i, chunks in enumerate(carried) if chunks]
        plan = PlanDependences.of(schedule.topology, [untimed[i] for i in used])
        untimed = plan.in_order([sizes[i] for i in used])
    messages = tuple(Message(d.link, d.chunks, d.start, d.end, d.reduce, len(d.chunks) > 1) for d in untimed)
    return DemandSchedule(schedule.topology, cut, messages)


def keys_by_chunk(collective: Collective) -> list[ChunkKey | None]:
    """Ranks that have and that lack each chunk; None of what nobody lacks."""
    everyone = tuple((rank,) for rank in range(collective.num_ranks))
    found: list[ChunkKey | None] = []
    for chunk in range(collective.num_chunks):
        wants = tuple(sorted(collective.wanted[chunk]))
        if collective.reduces:
            found.append((everyone, wants))
            continue
        source = collective.source[chunk]
        lacking = tuple(rank for rank in wants if rank != source)
        found.append((((source,),), lacking) if lacking else None)
    return found
