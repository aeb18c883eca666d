"""From a plan of moves to a schedule: links, what is copied together, exact times, and the better of two orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import Draft
from taccl_py.schedule.timing import build_schedule, dispatch_messages
from taccl_py.schedule.transform import drafts_of
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.outline import MOST_PACKED_BYTES, most_packed
from taccl_py.synthesis.sums import adds_up
from taccl_py.synthesis.templates.moves import Plan, as_drafts, cut
from taccl_py.topology.model import Topology

# Copies through scratch must save this much time.
_WORTH_COPIES = 0.98


def fitted(demand: Demand, plan: Plan) -> Schedule | None:
    """The plan on the machine's links, or None if it does not fit them.

    The order of the plan at links and ports is kept, or what has the longest way to go is sent first, whichever is faster.
    """
    topology, collective = demand.topology, demand.collective(plan.chunks_per_rank)
    chunk_bytes = demand.chunk_bytes(collective)
    drafts = as_drafts(topology, chunk_bytes, plan.moves)
    if drafts is None:
        return None
    whole = [part for draft in drafts for part in ((draft,) if draft.reduce else _packed(draft, chunk_bytes))]
    found = list(_timed(topology, collective, chunk_bytes, whole, as_named=False))
    if collective.reduces and len(found[0].messages) > len(whole):
        # Sums that do not lie together can be packed, or moved to scratch for good, for copies that others need not.
        packed = [part for draft in drafts for part in _packed(draft, chunk_bytes)]
        copying = [*_timed(topology, collective, chunk_bytes, packed, as_named=False)]
        copying += _timed(topology, collective, chunk_bytes, whole, as_named=True)
        least_us = min(schedule.makespan_us for schedule in found) * _WORTH_COPIES
        found += [schedule for schedule in copying if schedule.makespan_us < least_us]
    exchanges = demand.kind is Kind.ALLREDUCE
    right = (schedule for schedule in found if not exchanges or adds_up(schedule))
    return min(right, key=lambda schedule: schedule.makespan_us, default=None)


def _timed(
    topology: Topology, collective: Collective, chunk_bytes: float, drafts: Sequence[Draft], *, as_named: bool
) -> Iterator[Schedule]:
    """The plan in its own order and in the other one."""
    schedule = build_schedule(topology, collective, chunk_bytes, drafts, as_named=as_named)
    yield schedule
    yield replace(schedule, messages=dispatch_messages(topology, chunk_bytes, drafts_of(schedule)))


def _packed(draft: Draft, chunk_bytes: float) -> Iterator[Draft]:
    """The draft in parts whose chunks may be copied together.

    What lies together in as few parts is not cut: the runtime cuts it as it cuts what lies together. It is copied if it is small.
    """
    most, number = most_packed(chunk_bytes), len(draft.chunks)
    parts, runs = -(-number // max(1, most)), _runs(draft.chunks)
    if most < 2 or runs == 1:
        yield draft
    elif runs <= parts:
        yield replace(draft, packed=number * chunk_bytes <= MOST_PACKED_BYTES)
    else:
        for part in cut(number, parts):
            yield replace(draft, chunks=tuple(draft.chunks[place] for place in part), packed=True)


def _runs(chunks: Sequence[int]) -> int:
    """How many runs of chunks that follow each other there are."""
    ordered = sorted(chunks)
    return 1 + sum(after != before + 1 for before, after in pairwise(ordered))
