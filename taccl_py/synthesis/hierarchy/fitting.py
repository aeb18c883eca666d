"""From a plan of moves to a schedule: links, what is copied together, exact times, and the better of two orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import Draft
from taccl_py.schedule.timing import build_schedule, dispatch_messages
from taccl_py.schedule.transform import drafts_of
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.sums import adds_up
from taccl_py.synthesis.templates.moves import Plan, as_drafts
from taccl_py.synthesis.templates.packing import WORTH_COPIES, packed_parts
from taccl_py.topology.model import Topology


def fitted(demand: Demand, plan: Plan) -> Schedule | None:
    """The plan on the machine's links, or None if it does not fit them.

    The order of the plan at links and ports is kept, or what has the longest way to go is sent first, whichever is faster.
    """
    topology, collective = demand.topology, demand.collective(plan.chunks_per_rank)
    chunk_bytes = demand.chunk_bytes(collective)
    drafts = as_drafts(topology, chunk_bytes, plan.moves)
    if drafts is None:
        return None
    whole = [part for draft in drafts for part in ((draft,) if draft.reduce else packed_parts(draft, chunk_bytes))]
    found = list(_timed(topology, collective, chunk_bytes, whole, as_named=False))
    if collective.reduces and len(found[0].messages) > len(whole):
        # Sums that do not lie together can be packed, or moved to scratch for good, for copies that others need not.
        packed = [part for draft in drafts for part in packed_parts(draft, chunk_bytes)]
        copying = [*_timed(topology, collective, chunk_bytes, packed, as_named=False)]
        copying += _timed(topology, collective, chunk_bytes, whole, as_named=True)
        least_us = min(schedule.makespan_us for schedule in found) * WORTH_COPIES
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
