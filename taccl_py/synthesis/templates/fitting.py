"""From a plan of messages to a schedule: links, what is copied together, exact times, and the better of two orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.layout import Scratch, UntimedMessage, choose_scratch, contiguous_runs
from taccl_py.schedule.timing import dispatch_untimed, time_untimed
from taccl_py.solvers.limits import Over, never, until
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.sums import add_up
from taccl_py.synthesis.templates.messages import TemplatePlan, as_untimed
from taccl_py.synthesis.templates.packing import chunk_runs, packed_parts
from taccl_py.synthesis.templates.params import PARAMS as TEMPLATE_PARAMS
from taccl_py.topology.model import Topology


def fitted(demand: Demand, plan: TemplatePlan, over: Over = never) -> Schedule | None:
    """The plan on the machine's links, or None if it does not fit them.

    The order of the plan at links and ports is kept, or what has the longest path to go is sent first, whichever is faster; where time
    is over, it is kept.
    """
    topology, collective = demand.topology, demand.collective(plan.chunks_per_rank)
    chunk_bytes = demand.chunk_bytes(collective)
    untimed = as_untimed(topology, chunk_bytes, plan.messages)
    if untimed is None:
        return None
    parts_of = partial(packed_parts, chunk_bytes=chunk_bytes, message_chunks=demand.message_chunks)
    whole = [part for message in untimed for part in ((message,) if message.reduce else parts_of(message))]
    packed = [part for message in untimed for part in parts_of(message)]
    blocks = _Blocks.of(collective, [*whole, *packed])
    timed_of = partial(_timed, topology, collective, chunk_bytes, blocks)
    found = list(until(over, timed_of(whole)))
    if collective.reduces and len(found[0].untimed) > len(whole) and not over():
        # Sums that do not lie together can be packed, or moved to scratch for good, for copies that others need not.
        copying = list(until(over, chain(timed_of(packed), timed_of(whole, as_named=True))))
        least_us = min(timed.end_us for timed in found) * TEMPLATE_PARAMS.copy_factor
        found += [timed for timed in copying if timed.end_us < least_us]
    for timed in sorted(found, key=lambda timed: timed.end_us):
        if demand.kind is not Kind.ALLREDUCE or add_up(topology, timed.messages, blocks.wanted(collective)):
            return Schedule(topology, collective, chunk_bytes, *blocks.fine(timed))
    return None


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


@dataclass(frozen=True)
class _Blocks:
    """Chunks that follow each other and always go together, which need not be looked at one by one.

    In sums of everything everywhere the chunks are all alike, so that the first chunks can stand for blocks; elsewhere each chunk
    is a block.

    Attributes
    ----------
    borders
        First chunk of every block, and the one after the last.
    """

    borders: tuple[int, ...]

    @staticmethod
    def of(collective: Collective, untimed: Sequence[UntimedMessage]) -> _Blocks:
        """Find them."""
        if collective.kind is not Kind.ALLREDUCE:
            return _Blocks(tuple(range(collective.num_chunks + 1)))
        ends = {end for chunks in {message.chunks for message in untimed} for run in chunk_runs(chunks) for end in run}
        return _Blocks(tuple(sorted({0, collective.num_chunks, *ends})))

    @cached_property
    def _place(self) -> dict[int, int]:
        return {border: place for place, border in enumerate(self.borders)}

    def coarse(self, message: UntimedMessage) -> UntimedMessage:
        """The message with blocks instead of chunks."""
        place = self._place
        chunks = tuple(place[chunk] for chunk in message.chunks if chunk in place)
        return UntimedMessage(
            message.link, chunks, message.start, message.end, message.reduce, message.lead, message.packed
        )

    def size(self, blocks: Sequence[int]) -> int:
        """Number of chunks of some blocks."""
        return sum(self.borders[block + 1] - self.borders[block] for block in blocks)

    def wanted(self, collective: Collective) -> Sequence[Sequence[int]]:
        """Ranks that want each block."""
        return collective.wanted[: len(self.borders) - 1]

    def fine(self, timed: _TimedMessages) -> tuple[tuple[Message, ...], Scratch]:
        """Messages and scratch with chunks instead of blocks."""
        messages = tuple(replace(message, chunks=self._chunks(message.chunks)) for message in timed.messages)
        return messages, tuple(self._chunks(blocks) for blocks in timed.scratch)

    def _chunks(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(chain.from_iterable(range(self.borders[b], self.borders[b + 1]) for b in blocks))


def _timed(
    topology: Topology,
    collective: Collective,
    chunk_bytes: float,
    blocks: _Blocks,
    untimed: Sequence[UntimedMessage],
    *,
    as_named: bool = False,
) -> Iterator[_TimedMessages]:
    """The plan in its own order and in the other one."""
    untimed = [blocks.coarse(message) for message in untimed]
    scratch = choose_scratch(topology, collective, untimed, as_named=as_named)
    runs = contiguous_runs(topology, collective, scratch, untimed)
    kept = time_untimed(topology, [chunk_bytes * blocks.size(run.chunks) for run in runs], runs)
    kept.sort(key=lambda message: (message.start, message.link, message.chunks))
    yield _TimedMessages(kept, scratch)
    yield _TimedMessages(
        dispatch_untimed(topology, [chunk_bytes * blocks.size(run.chunks) for run in kept], kept), scratch
    )
