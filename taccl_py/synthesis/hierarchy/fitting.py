"""From a plan of moves to a schedule: links, what is copied together, exact times, and the better of two orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import Draft
from taccl_py.schedule.timing import build_schedule, dispatch_messages
from taccl_py.schedule.transform import drafts_of
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.outline import most_packed
from taccl_py.synthesis.sums import adds_up
from taccl_py.synthesis.templates.moves import Plan, as_drafts, cut


def fitted(demand: Demand, plan: Plan) -> Schedule | None:
    """The plan on the machine's links, or None if it does not fit them.

    The order of the plan at links and ports is kept, or what has the longest way to go is sent first, whichever is faster.
    """
    topology, collective = demand.topology, demand.collective(plan.chunks_per_rank)
    chunk_bytes = demand.chunk_bytes(collective)
    drafts = as_drafts(topology, chunk_bytes, plan.moves)
    if drafts is None:
        return None
    packed = [part for draft in drafts for part in _packed(draft, most_packed(chunk_bytes))]
    found = []
    for as_named in (False, True) if collective.reduces else (False,):
        schedule = build_schedule(topology, collective, chunk_bytes, packed, as_named=as_named)
        messages = dispatch_messages(topology, chunk_bytes, drafts_of(schedule))
        found += [schedule, replace(schedule, messages=messages)]
    sums = demand.kind is Kind.ALLREDUCE
    right = (schedule for schedule in found if not sums or adds_up(schedule))
    return min(right, key=lambda schedule: schedule.makespan_us, default=None)


def _packed(draft: Draft, most: int) -> Iterator[Draft]:
    """The draft in parts whose chunks may be copied together; as it is where they may not."""
    if draft.reduce or most < 2 or len(draft.chunks) == 1:
        yield draft
        return
    for part in cut(len(draft.chunks), -(-len(draft.chunks) // most)):
        yield replace(draft, chunks=tuple(draft.chunks[place] for place in part), packed=True)
