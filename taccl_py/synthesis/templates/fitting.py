"""From a plan of messages to a schedule: links, what is copied together, exact times, and the better of two orders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.layout import ChunkBlocks, Scratch, UntimedMessage, choose_scratch, contiguous_runs
from taccl_py.schedule.timing import PlanDependences
from taccl_py.solvers.limits import Over, never, until
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.sums import add_up
from taccl_py.synthesis.templates.messages import TemplatePlan, as_untimed
from taccl_py.synthesis.templates.packing import packed_parts
from taccl_py.synthesis.templates.params import PARAMS as TEMPLATE_PARAMS
from taccl_py.topology.model import Topology


def fitted(demand: Demand, plan: TemplatePlan, over: Over = never, *, promised_us: float = math.inf) -> Schedule | None:
    """The plan on the machine's links, or None if it does not fit them.

    The order of the plan at links and ports is kept, or what has the longest path to go is sent first, whichever is faster; where time
    is over, it is kept. If it does not keep what the plan promised, what the plan starts first is also sent first of what can be sent,
    so that nothing that comes late holds up what is there.
    """
    topology, collective = demand.topology, demand.collective(plan.chunks_per_rank)
    chunk_bytes = demand.chunk_bytes(collective)
    untimed = as_untimed(topology, chunk_bytes, plan.messages)
    if untimed is None:
        return None
    parts_of = partial(packed_parts, chunk_bytes=chunk_bytes, message_chunks=demand.message_chunks)
    whole = [part for message in untimed for part in ((message,) if message.reduce else parts_of(message))]
    packed = [part for message in untimed for part in parts_of(message)]
    blocks = _blocks(collective, [*whole, *packed])
    timed_of = partial(_timed, topology, chunk_bytes, blocks)
    found = list(until(over, timed_of(whole, promised_us=promised_us)))
    if collective.reduces and len(found[0].untimed) > len(whole) and not over():
        # Sums that do not lie together can be packed, or moved to scratch for good, for copies that others need not.
        copying = list(until(over, chain(timed_of(packed), timed_of(whole, as_named=True))))
        least_us = min(timed.end_us for timed in found) * TEMPLATE_PARAMS.copy_factor
        found += [timed for timed in copying if timed.end_us < least_us]
    for timed in sorted(found, key=lambda timed: timed.end_us):
        if demand.kind is not Kind.ALLREDUCE or add_up(topology, timed.messages, blocks.wanted):
            messages = tuple(
                Message(m.link, blocks.chunks(m.chunks), m.start_us, m.end_us, m.reduce, m.packed)
                for m in timed.messages
            )
            return Schedule(topology, collective, chunk_bytes, messages, blocks.fine_scratch(timed.scratch))
    return None


def _blocks(collective: Collective, untimed: Sequence[UntimedMessage]) -> ChunkBlocks:
    """Blocks of chunks; for sums at some ranks alone each chunk is one, as plans with named scratch look at how many there are."""
    if collective.kind in (Kind.REDUCESCATTER, Kind.REDUCE):
        return ChunkBlocks.single(collective)
    return ChunkBlocks.of(collective, untimed)


@dataclass(frozen=True)
class _TimedMessages:
    """Untimed messages with exact times, and what lies where in scratch."""

    untimed: Sequence[UntimedMessage]
    scratch: Scratch

    @property
    def end_us(self) -> float:
        """Time when all has arrived."""
        return max((message.end for message in self.untimed), default=0.0)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The untimed messages as messages."""
        return tuple(Message(d.link, d.chunks, d.start, d.end, d.reduce, d.packed) for d in self.untimed)


def _timed(
    topology: Topology,
    chunk_bytes: float,
    blocks: ChunkBlocks,
    untimed: Sequence[UntimedMessage],
    *,
    as_named: bool = False,
    promised_us: float = math.inf,
) -> Iterator[_TimedMessages]:
    """The plan in its own order and in the others."""
    untimed = [blocks.coarse(message) for message in untimed]
    scratch = choose_scratch(topology, blocks, untimed, as_named=as_named)
    runs = contiguous_runs(topology, blocks, scratch, untimed)
    sizes_bytes = [chunk_bytes * blocks.size(run.chunks) for run in runs]
    plan = PlanDependences.of(topology, runs)
    kept = plan.in_order(sizes_bytes)
    kept.sort(key=lambda message: (message.start, message.link, message.chunks))
    found = _TimedMessages(kept, scratch)
    yield found
    if found.end_us > promised_us * TEMPLATE_PARAMS.kept_promise:
        yield _TimedMessages(plan.dispatched(sizes_bytes, as_planned=True), scratch)
    yield _TimedMessages(
        PlanDependences.of(topology, kept).dispatched([chunk_bytes * blocks.size(run.chunks) for run in kept]), scratch
    )
