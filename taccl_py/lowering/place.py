"""Schedule -> actions: the steps that every rank has to do, in chunks, before they belong to threadblocks.

Local copies are made real here: own chunks that travel with received ones, own chunks that stay (input to output), and
chunks that are kept in scratch but wanted. Copies of own chunks come first of all, so that nobody has to wait for them; the
others come as soon as the chunk is there and what it overwrites is used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.actions import NONE, RankAction, StepTransfer
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.coarse import CoarseChunks
from taccl_py.lowering.homes import Homes, assign_homes
from taccl_py.lowering.message_ends import (
    START,
    MessageEnd,
    MessageHandling,
    PlacementRules,
    Survey,
    spans_seam,
    survey_messages,
)
from taccl_py.lowering.order import Event
from taccl_py.lowering.program import Op
from taccl_py.lowering.subject import CellSchedule
from taccl_py.schedule.ir import Schedule

_DURING, _AFTER = 1, 2


@dataclass(frozen=True, slots=True)
class _Moment:
    """Place of an action in the order of time: the event that it belongs to, during it or after it."""

    event: int
    phase: int


@dataclass(frozen=True, slots=True)
class _Copy:
    """A local copy of one chunk and the event after which it can be done."""

    source: Address
    target: Address
    after: int


def place_messages(
    schedule: CellSchedule, events: tuple[Event, ...], geometry: BufferSizes, rules: PlacementRules
) -> tuple[RankAction, ...]:
    """Turn the messages into actions on cells of the size of a chunk; transfers are the messages.

    Raises
    ------
    InputError
        If the schedule sends what a rank does not hold, leaves out a wanted chunk, or has no place for a chunk.
    """
    if isinstance(schedule, Schedule) and rules.subject is None and not rules.seams:
        coarse = CoarseChunks.of(schedule)
        if coarse is not None:
            sizes = replace(geometry, collective=coarse.schedule.collective)
            with suppress(InputError):  # what is wrong is told of the schedule's own chunks
                writer = _placed(coarse.schedule, events, sizes, rules)
                return coarse.refined(writer.actions(), writer.scratch)
    return _placed(schedule, events, geometry, rules).actions()


def _placed(
    schedule: CellSchedule, events: tuple[Event, ...], geometry: BufferSizes, rules: PlacementRules
) -> _ActionWriter:
    """All actions on cells of the size of a chunk."""
    survey = survey_messages(schedule, events, rules)
    homes = assign_homes(schedule, survey, geometry, rules)
    finisher = _Finisher(schedule, survey, homes, rules)
    writer = _ActionWriter(schedule, events, homes, rules)
    for use in survey.uses:
        writer.add_use(use, finisher.landing(use))
    wanted_by: list[list[int]] = [[] for _ in range(schedule.collective.num_ranks)]
    for chunk, ranks in enumerate(schedule.collective.wanted):
        for rank in filter(rules.counts, ranks):
            wanted_by[rank].append(chunk)
    for rank, chunks in enumerate(wanted_by):
        writer.add_copies(rank, finisher.copies(rank, chunks), NONE)
    return writer


def whole_transfers(schedule: CellSchedule) -> tuple[StepTransfer, ...]:
    """One transfer for each message, in chunks."""
    links = schedule.topology.links
    return tuple(
        StepTransfer(index, 0, m.link, links[m.link].src, links[m.link].dst, len(m.chunks), m.start_us)
        for index, m in enumerate(schedule.messages)
    )


class _ActionWriter:
    """Collects actions with their moments and puts them into order.

    Attributes
    ----------
    scratch
        For every rank, the chunk that each cell of its scratch is for.
    """

    def __init__(self, schedule: CellSchedule, events: tuple[Event, ...], homes: Homes, rules: PlacementRules) -> None:
        self._schedule = schedule
        self._events = events
        self._homes = homes
        self._rules = rules
        self.scratch = list(map(list, homes.scratch))
        self._spare_of: dict[int, CellRange] = {}
        self._found: list[tuple[int, int, int, RankAction]] = []

    def actions(self) -> tuple[RankAction, ...]:
        """Return all actions, numbered in the order of time."""
        ordered = sorted(self._found, key=lambda item: item[:3])
        return tuple(
            action.at(order, self._events[event].time_us if event != START else 0.0)
            for order, (event, _, _, action) in enumerate(ordered)
        )

    def add_use(self, use: MessageEnd, landing: CellRange | None = None) -> None:
        """Add what one end of a message does; a sum that it completes may be stored elsewhere than at home."""
        now = _Moment(use.event, _DURING)
        message = self._schedule.messages[use.message]
        link = self._schedule.topology.links[message.link]
        busy_us = max(0.0, message.end_us - message.start_us - link.latency_us)
        own = self._own_cells(use) if use.straight else None
        beside = use.message if use.beside else NONE
        self.add_copies(use.rank, self._fetches(use), beside)
        if use.handling is MessageHandling.SEND:
            reads = self._spare_of.get(use.spare_of) or own or self._packed(use) or self._home_cells(use)
            self._add(now, RankAction(0, use.rank, Op.SEND, reads, None, leaves=use.message, busy_us=busy_us))
            return
        staged = use.message in self._rules.staged
        if use.handling is MessageHandling.UNPACK and (staged or self._homes.run(use.rank, use.chunks) is None):
            spare = self._spare_cells(use)
            self._add(now, RankAction(0, use.rank, Op.RECV, None, spare, arrives=use.message, busy_us=busy_us))
            self.add_copies(use.rank, self._kept(use, spare, use.chunks), NONE)
            return
        if use.handling is MessageHandling.ADD_APART:
            spare = self._spare_cells(use)
            self._add(now, RankAction(0, use.rank, Op.RECV, None, spare, arrives=use.message, busy_us=busy_us))
            for run in _runs(self._kept(use, spare, use.chunks), self._rules.seams):
                self._add(now, RankAction(0, use.rank, Op.REDUCE, run.source, run.target))
            return
        home = self._home_cells(use)
        if use.handling is MessageHandling.ADD:
            op = Op.RECV_REDUCE_COPY
            target = landing or home
            self._add(now, RankAction(0, use.rank, op, own or home, target, arrives=use.message, busy_us=busy_us))
            return
        direct = use.handling in (MessageHandling.STORE, MessageHandling.UNPACK, MessageHandling.ADD_OWN)
        target = home if direct else self._spare_cells(use)
        self._add(now, RankAction(0, use.rank, Op.RECV, None, target, arrives=use.message, busy_us=busy_us))
        if use.handling is MessageHandling.STORE_LATER:
            self._add(now, RankAction(0, use.rank, Op.COPY, target, home))
        elif use.handling is MessageHandling.ADD_SPARE:
            self._add(now, RankAction(0, use.rank, Op.REDUCE, own, target, beside=beside))
            self.add_copies(use.rank, self._kept(use, target, use.keep), NONE)
        elif use.handling not in (MessageHandling.STORE, MessageHandling.UNPACK):
            operand = own if use.handling is MessageHandling.ADD_OWN else target
            self._add(now, RankAction(0, use.rank, Op.REDUCE, operand, home, beside=beside))

    def add_copies(self, rank: int, copies: Iterable[_Copy], beside: int) -> None:
        """Add local copies, neighbours together."""
        for run in _runs(copies, self._rules.seams):
            moment = _Moment(run.after, _AFTER)
            self._add(moment, RankAction(0, rank, Op.COPY, run.source, run.target, beside=beside))

    def _add(self, moment: _Moment, action: RankAction) -> None:
        self._found.append((moment.event, moment.phase, len(self._found), action))

    def _own_cells(self, use: MessageEnd) -> CellRange | None:
        address = self._schedule.collective.input_address(use.chunks[0], use.rank)
        return CellRange(Buffer.INPUT, address.offset, len(use.chunks)) if address else None

    def _home_cells(self, use: MessageEnd) -> CellRange:
        return self._homes.cells(use.rank, use.chunks, use.message)

    def _spare_cells(self, use: MessageEnd) -> CellRange:
        first = len(self.scratch[use.rank])
        self.scratch[use.rank] += use.chunks
        self._spare_of[use.message] = CellRange(Buffer.SCRATCH, first, len(use.chunks))
        return self._spare_of[use.message]

    def _packed(self, use: MessageEnd) -> CellRange | None:
        """Spare cells into which the chunks of a packed message are copied; None if they are neighbours anyway."""
        if not use.since or (START not in use.since and self._homes.run(use.rank, use.chunks) is not None):
            return None
        spare = self._spare_cells(use)
        if not self._rules.counts(use.rank):
            return spare  # cells copied there came in messages that are not in the schedule
        copies = []
        for step, (chunk, since) in enumerate(zip(use.chunks, use.since, strict=True)):
            own = self._schedule.collective.input_address(chunk, use.rank) if since == START else None
            source = own or self._homes.address_of[use.rank][chunk]
            copies.append(_Copy(source, Address(spare.buffer, spare.first + step), since))
        self.add_copies(use.rank, copies, NONE)
        return spare

    def _kept(self, use: MessageEnd, spare: CellRange, keep: tuple[int, ...]) -> Iterator[_Copy]:
        for step, chunk in enumerate(use.chunks):
            if chunk in keep:
                source = Address(spare.buffer, spare.first + step)
                yield _Copy(source, self._homes.address_of[use.rank][chunk], use.event)

    def _fetches(self, use: MessageEnd) -> Iterator[_Copy]:
        for chunk in use.fetch:
            source = self._schedule.collective.input_address(chunk, use.rank)
            target = self._homes.address_of[use.rank][chunk]
            if source is None or (self._rules.identical and target.buffer is Buffer.OUTPUT):
                continue
            yield _Copy(source, target, START)


class _Finisher:
    """Finds the copies that bring wanted chunks into the output: own ones, and those kept in scratch."""

    def __init__(self, schedule: CellSchedule, survey: Survey, homes: Homes, rules: PlacementRules) -> None:
        self._schedule = schedule
        self._survey = survey
        self._homes = homes
        self._rules = rules
        self._landed: set[tuple[int, int]] = set()
        self._last_sent: dict[tuple[int, int], int] = {}
        for use in survey.uses:
            if use.handling is MessageHandling.SEND:
                self._last_sent.update(((use.rank, chunk), use.event) for chunk in use.chunks)

    def landing(self, use: MessageEnd) -> CellRange | None:
        """Cells of the output in which a fused step can store sums that are complete with it and go nowhere else; no copy brings these there."""
        rank, collective = use.rank, self._schedule.collective
        first = collective.output_address(use.chunks[0], rank)
        if use.handling is not MessageHandling.ADD or first is None or not self._rules.counts(rank):
            return None
        cells = CellRange(first.buffer, first.offset, len(use.chunks))
        for step, chunk in enumerate(use.chunks):
            is_last = self._survey.last_arrival[rank][chunk] == use.event > self._last_sent.get((rank, chunk), START)
            place = Address(first.buffer, first.offset + step)
            if not is_last or collective.output_address(chunk, rank) != place:
                return None
        if spans_seam(first, len(use.chunks), self._rules.seams):
            return None
        self._landed.update((rank, chunk) for chunk in use.chunks)
        return cells

    def copies(self, rank: int, chunks: Iterable[int]) -> Iterator[_Copy]:
        """Yield the copies of one rank for the chunks that it wants."""
        free_at = _free_events(self._schedule, self._survey, rank) if self._rules.aliased else {}
        for chunk in chunks:
            target = self._schedule.collective.output_address(chunk, rank)
            if target is None:
                continue
            if chunk in self._survey.last_arrival[rank]:
                home = self._homes.address_of[rank][chunk]
                after = max(self._survey.last_arrival[rank][chunk], free_at.get(target.offset, START))
                if home != target and (rank, chunk) not in self._landed:
                    yield _Copy(home, target, after)
            else:
                yield from self._own(rank, chunk, target)

    def _own(self, rank: int, chunk: int, target: Address) -> Iterator[_Copy]:
        collective = self._schedule.collective
        own = collective.input_address(chunk, rank)
        if own is None:
            raise InputError(
                f"{collective.describe_chunk(chunk)} never comes to rank {rank}, which wants it; check the schedule"
            )
        home = self._homes.address_of[rank].get(chunk)
        if self._rules.identical or (chunk in self._survey.fetched[rank] and home == target):
            return
        yield _Copy(own, target, START)


def _free_events(schedule: CellSchedule, survey: Survey, rank: int) -> dict[int, int]:
    """Event after which each output cell may be written, where the own chunk in the same memory is read late.

    Only AllToAll has other chunks there, at the same offset.
    """
    found: dict[int, int] = {}
    if schedule.collective.kind is not Kind.ALLTOALL:
        return found
    for own, event in survey.last_read[rank].items():
        address = schedule.collective.input_address(own, rank)
        if address is not None:
            found[address.offset] = event
    return found


@dataclass(frozen=True, slots=True)
class _CopyRun:
    """Copies of neighbouring chunks as one."""

    source: CellRange
    target: CellRange
    after: int


def _runs(copies: Iterable[_Copy], seams: frozenset[int]) -> Iterator[_CopyRun]:
    """Join copies of neighbouring chunks; what is not there yet does not hold up what is."""
    run: list[_Copy] = []
    for copy in copies:
        if run and not _follows(run[-1], copy, seams):
            yield _joined(run)
            run = []
        run.append(copy)
    if run:
        yield _joined(run)


def _follows(before: _Copy, copy: _Copy, seams: frozenset[int]) -> bool:
    if spans_seam(before.source, 2, seams) or spans_seam(before.target, 2, seams):
        return False
    source = Address(before.source.buffer, before.source.offset + 1)
    target = Address(before.target.buffer, before.target.offset + 1)
    return before.after == copy.after and copy.source == source and copy.target == target


def _joined(run: list[_Copy]) -> _CopyRun:
    source, target = run[0].source, run[0].target
    return _CopyRun(
        CellRange(source.buffer, source.offset, len(run)),
        CellRange(target.buffer, target.offset, len(run)),
        run[0].after,
    )
