"""Schedule -> program for one runtime: the passes, in order.

::

    folded              fewer chunks, where steps cannot carry whole messages
    order_events        starts and arrivals in one order of time
    place_messages      -> actions on buffer cells: receives, sends, local copies
    cut_actions         -> instances, steps of bounded length
    sequence_actions    one message at a time on every connection
    trace_flow          who forwards and who reads what an action makes
    assign_channels     transfers -> channels
    make_threadblocks   actions -> threadblocks, forwards fused
    pack_scratch        as few scratch cells as cost nothing
    find_turns          who goes first through a port, if that is wanted
    find_dependencies   waits between threadblocks
    (revise)            too long, or can stop: decide otherwise and lay out again
    assemble_gpus       numbers, nops, buffer sizes
    require_limits      nothing leaves that the runtime would not run
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from taccl_py.collective import Buffer, Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.actions import RankAction, RankWork, cut_actions
from taccl_py.lowering.assemble import assemble_gpus
from taccl_py.lowering.attempts import Decisions, ProgramRevision, least_cells_per_operation, loosen, shorten
from taccl_py.lowering.balance import ThreadblockBalance
from taccl_py.lowering.buffers import BufferSizes, CallPlacement, Flags, placement_flags
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.channels import ChannelRules, LinkOrbits, assign_channels
from taccl_py.lowering.copies import OneInstance
from taccl_py.lowering.deadlock import FifoModel
from taccl_py.lowering.dependencies import find_dependencies
from taccl_py.lowering.flow import DataFlow, trace_flow
from taccl_py.lowering.fold import folded
from taccl_py.lowering.limits import require_limits, require_name, require_sizes
from taccl_py.lowering.local_work import in_parts
from taccl_py.lowering.memory import CellHistory
from taccl_py.lowering.message_ends import PlacementRules
from taccl_py.lowering.order import Event, order_events
from taccl_py.lowering.place import place_messages, whole_transfers
from taccl_py.lowering.port_order import PortOrder, find_turns
from taccl_py.lowering.program import Program, Protocol
from taccl_py.lowering.protocol import (
    ProtocolChoice,
    cells_per_operation,
    choose_protocol,
    flag_is_early,
    largest_size_bytes,
    largest_size_with,
)
from taccl_py.lowering.scratch import PackedRank, pack_scratch
from taccl_py.lowering.sequence import sequence_actions
from taccl_py.lowering.subject import CellSchedule
from taccl_py.lowering.threadblocks import ThreadblockRules, make_threadblocks
from taccl_py.runtimes import MAX_COUNT, MAX_NAME, MAX_OFFSET, Runtime
from taccl_py.schedule.ir import Schedule

__all__ = ["CallPlacement", "LoweredRank", "Lowering", "LoweringOptions", "PortOrder", "lower", "lower_rank"]

_MAX_ATTEMPTS = 60
# Sets of actions that are kept for further attempts.
_MOST_PLACED = 2
_FEWEST_SLOTS = 2  # of any protocol of any runtime; a ring of fused steps needs them


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """User's choices for a program.

    Attributes
    ----------
    runtime
        For which runtime.
    placement
        How the user's buffers may lie. The legacy runtime knows one placement for each file; ``both`` means in place there
        (out of place for AllToAll).
    protocol
        None chooses by size.
    instances
        Into how many parts every chunk is cut, each carried by threadblocks of its own.
    min_bytes, max_bytes
        Sizes, as the runtime counts them, for which the program may be used; both inclusive. None is the largest size for
        which it is safe.
    name
        None makes one from collective and machine.
    max_threadblocks
        Most threadblocks on a GPU; None is what certainly runs at the same time.
    port_order
        Which messages keep the schedule's order at the ports of their rank, at the price of waiting for each other.
    times_blocks
        Whether what threadblocks do takes time, as under a runtime profile. Local copies and sums then take all threadblocks that are left, sums
        with one destination and sources that arrive at one moment wait for all of them first, so that the runtime fuses them, no arrival waits for a
        scratch cell until a sum has read it, and the channels of a link take turns, so that all of their threadblocks have work at any time.
    """

    runtime: Runtime
    placement: CallPlacement = CallPlacement.BOTH
    protocol: Protocol | None = None
    instances: int = 1
    min_bytes: int = 0
    max_bytes: int | None = None
    name: str | None = None
    max_threadblocks: int | None = None
    port_order: PortOrder = PortOrder.FREE
    times_blocks: bool = False


@dataclass(frozen=True, slots=True)
class LoweredRank:
    """The rank that a part is lowered for.

    Attributes
    ----------
    rank
        The rank.
    orbits
        What has the same channels as its links.
    seams
        See `taccl_py.lowering.message_ends.PlacementRules`.
    """

    rank: int
    orbits: LinkOrbits
    seams: frozenset[int] = frozenset()

    @property
    def decisions(self) -> Decisions:
        """Decisions of the first attempt."""
        spread = self.orbits.spread
        return Decisions({link: spread[orbit] for link, orbit in self.orbits.of.items() if orbit in spread})


@dataclass(frozen=True, slots=True)
class Room:
    """Room for one of several copies of a program.

    Attributes
    ----------
    max_threadblocks
        Most threadblocks on a GPU; None is what certainly runs at the same time.
    copies
        Copies that there are to be, all of which need scratch.
    balanced
        Whether links and local work have threadblocks in proportion to what they carry; see `taccl_py.lowering.balance`.
    """

    max_threadblocks: int | None = None
    copies: int = 1
    balanced: bool = False


@dataclass(frozen=True, slots=True)
class _LoweringCase:
    """Facts decided before the first attempt and never again, but for the protocol."""

    schedule: CellSchedule
    options: LoweringOptions
    flags: Flags
    geometry: BufferSizes
    events: tuple[Event, ...]
    choice: ProtocolChoice
    subject: LoweredRank | None = None
    room: Room = field(default_factory=Room)

    @property
    def most_threadblocks(self) -> int:
        """Most threadblocks on a GPU."""
        runtime = self.options.runtime
        return min(self.options.max_threadblocks or runtime.resident_threadblocks, runtime.max_threadblocks)

    @property
    def slots(self) -> int:
        """Operations that a connection holds."""
        return self.options.runtime.fifo_slots[self.choice.protocol]


def lower(schedule: CellSchedule, options: LoweringOptions) -> Program:
    """Make the program that carries out a schedule.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    options
        The runtime and the user's wishes.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InputError
        If an option is impossible, or the schedule is not valid.
    """
    return Lowering(schedule, options).program(options.port_order)


def lower_rank(part: Schedule, subject: LoweredRank, options: LoweringOptions) -> Program:
    """Make the program of one rank.

    Parameters
    ----------
    part
        The messages that the rank sends and receives, and no others.
    subject
        The rank; the program's other GPUs do only their part of these messages.
    options
        As for `lower`.

    Raises
    ------
    LoweringError, InputError
        See `lower`.
    """
    return Lowering(part, options, subject).program(options.port_order)


@dataclass(frozen=True, slots=True)
class _LoweredPlacement:
    """Steps of every rank, before it is decided which threadblock does them."""

    work: RankWork
    flow: DataFlow
    spread: Mapping[int, int]


class Lowering:
    """Programs of one schedule that differ in the order of messages at ports or in room; their common parts are made once.

    Parameters
    ----------
    schedule, options
        As for `lower`.
    subject
        As for `lower_rank`, or None.

    Raises
    ------
    LoweringError, InputError
        See `lower`.
    """

    def __init__(self, schedule: CellSchedule, options: LoweringOptions, subject: LoweredRank | None = None) -> None:
        runtime, kind = options.runtime, schedule.collective.kind
        _require_options(options)
        # Ranks that are lowered one by one could not agree on larger chunks.
        schedule = folded(schedule) if subject is None and isinstance(schedule, Schedule) else schedule
        self._name = options.name or default_name(schedule)
        require_name(self._name, kind, runtime)
        self._case = _LoweringCase(
            schedule,
            options,
            placement_flags(options.placement, runtime, kind),
            BufferSizes(schedule.collective, options.instances, runtime.checks_chunk_counts),
            order_events(schedule),
            choose_protocol(schedule, options.protocol, runtime),
            subject,
        )
        self._whole: dict[frozenset[int], RankWork] = {}
        self._placed: dict[tuple[frozenset[int], int, bool], _LoweredPlacement] = {}
        self._enough = subject.decisions if subject is not None else Decisions()
        self._made: ProgramRevision | None = None

    def one_instance(self, program: Program) -> OneInstance:
        """The program that was made last, for copies of it."""
        runtime, least_cells = self._case.options.runtime, dict[int, int]()
        if self._made is None:
            raise ValueError("no program was made")
        for slots in sorted(set(runtime.fifo_slots.values())):
            with suppress(LoweringError):
                least_cells[slots] = least_cells_per_operation(self._made, slots, runtime)
        return OneInstance(program, self._case.geometry, runtime, least_cells)

    def is_unbalanced(self, room: Room) -> bool:
        """True if in this room links and local work would have other threadblocks in proportion to their work."""
        case = self._case_in(room, self._case.options.port_order)
        work = self._whole_work(frozenset())
        balance = ThreadblockBalance.of(work, case.schedule.collective.num_ranks, case.most_threadblocks)
        return bool(balance.spread) or balance.work is not work

    def _case_in(self, room: Room, port_order: PortOrder) -> _LoweringCase:
        options = replace(self._case.options, port_order=port_order, max_threadblocks=room.max_threadblocks)
        return replace(self._case, options=options, room=room)

    def program(self, port_order: PortOrder, room: Room | None = None) -> Program:
        """Make the program with this order at ports and, unless None, this room, whatever the options say of them.

        Raises
        ------
        LoweringError, InputError
            See `lower`.
        """
        room = room or Room(self._case.options.max_threadblocks)
        case, attempt = self._settle(self._case_in(room, port_order))
        options = case.options
        self._made = attempt
        program = Program(
            name=self._name,
            kind=case.schedule.collective.kind,
            num_chunks_per_loop=case.geometry.chunks_per_loop,
            num_channels=attempt.num_channels,
            protocol=case.choice.protocol,
            in_place=case.flags.in_place,
            out_of_place=case.flags.out_of_place,
            min_bytes=options.min_bytes,
            max_bytes=_max_bytes(case, attempt),
            gpus=assemble_gpus(attempt.blocks, attempt.dependencies, case.geometry, attempt.scratch_cells),
        )
        require_limits(program, options.runtime)
        require_sizes(program, options.runtime)
        return program

    def _settle(self, case: _LoweringCase) -> tuple[_LoweringCase, ProgramRevision]:
        """Lay out threadblocks until everything fits."""
        runtime = case.options.runtime
        alike = case.subject.orbits.of if case.subject else None
        decisions = self._enough
        for _ in range(_MAX_ATTEMPTS):
            placed = self._place(case, decisions.staged)
            decisions = decisions.with_spread(placed.spread)
            attempt = _laid_out(case, decisions, placed)
            better: Decisions | None = shorten(attempt, decisions, runtime, alike)
            if better == decisions:
                attempt = _completed(case, attempt)
                better = shorten(attempt, decisions, runtime, alike)
            if better == decisions:
                choice = _other_choice(case, attempt)
                if choice != case.choice:
                    case = replace(case, choice=choice)
                    continue
                attempt = _without_early_flags(case, attempt, decisions, placed)
                better = _unblock(case, attempt, decisions)
            if better is None or better == decisions:
                # A program too long for threadblocks, or that stops, in one order at ports will do so in others.
                if not case.room.balanced:
                    self._enough = replace(decisions, staged=frozenset())
                return case, attempt
            decisions = better
        raise LoweringError(
            f"the steps cannot be shared out so that no threadblock has more than the {runtime.max_steps} that "
            f"{runtime.title} allows",
            runtime=runtime.name,
            limit="max_steps",
            remedy="use fewer instances, or a schedule with fewer messages",
        )

    def _place(self, case: _LoweringCase, staged: frozenset[int]) -> _LoweredPlacement:
        """Actions on cells when these messages arrive in spare scratch, with local work cut for the threadblocks of a GPU."""
        key = (staged, case.most_threadblocks, case.room.balanced)
        if key not in self._placed:
            work = self._whole_work(staged)
            _forget_last(self._placed)
            self._placed[key] = _in_sequence(case, work)
        return self._placed[key]

    def _whole_work(self, staged: frozenset[int]) -> RankWork:
        """Actions in the order of time when these messages arrive in spare scratch."""
        if staged not in self._whole:
            _forget_last(self._whole)
            self._whole[staged] = _placed(self._case, staged)
        return self._whole[staged]


def _forget_last(placed: dict[Any, Any]) -> None:
    """Make room for another one; the first one, with nothing in spare scratch, is where every order at ports begins, and stays."""
    if len(placed) == _MOST_PLACED:
        placed.pop(list(placed)[-1])


def _require_options(options: LoweringOptions) -> None:
    if options.instances < 1:
        raise InputError(f"there must be at least 1 instance, found {options.instances}", field="instances")
    if options.max_threadblocks is not None and options.max_threadblocks < 1:
        raise InputError(
            f"at least 1 threadblock is needed, found {options.max_threadblocks}", field="max_threadblocks"
        )
    if options.min_bytes < 0:
        raise InputError(f"the smallest size cannot be {options.min_bytes} bytes", field="min_bytes")
    if options.max_bytes is not None and options.max_bytes < max(1, options.min_bytes):
        raise InputError(
            f"the largest size ({options.max_bytes} bytes) must be at least 1 and the smallest ({options.min_bytes})",
            field="max_bytes",
        )


def default_name(schedule: CellSchedule) -> str:
    """Name of collective and machine, in signs that a file can hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{schedule.collective.kind}-{schedule.topology.name}")[:MAX_NAME]


def _placed(case: _LoweringCase, staged: frozenset[int]) -> RankWork:
    """Place the messages, some of which arrive in spare scratch, and cut them into instances."""
    options, geometry = case.options, case.geometry
    identical = options.placement is CallPlacement.IN_PLACE
    rules = PlacementRules(case.flags.in_place, identical, options.runtime.fused, staged)
    if case.subject is not None:
        rules = replace(rules, subject=case.subject.rank, seams=case.subject.seams)
    actions = place_messages(case.schedule, case.events, geometry, rules)
    if case.schedule.collective.kind is Kind.ALLGATHER and not case.flags.out_of_place:
        in_chunks = replace(geometry, instances=1)
        actions = tuple(_in_output(action, in_chunks) for action in actions)
    return cut_actions(actions, whole_transfers(case.schedule), options.instances)


def _in_sequence(case: _LoweringCase, work: RankWork) -> _LoweredPlacement:
    """Cut local work for so many threadblocks, where it takes time, and put everything in the order of its connections."""
    options, schedule = case.options, case.schedule
    spread: Mapping[int, int] = {}
    num_ranks = schedule.collective.num_ranks
    if case.room.balanced:
        balance = ThreadblockBalance.of(work, num_ranks, case.most_threadblocks)
        work, spread = balance.work, balance.spread
    if options.times_blocks:
        cell_bytes = schedule.chunk_bytes / options.instances
        work = in_parts(work, num_ranks, case.most_threadblocks, cell_bytes)
    work = sequence_actions(work, CellHistory(work.actions, case.geometry, aliased=case.flags.in_place))
    return _LoweredPlacement(work, trace_flow(work, schedule.makespan_us), spread)


def _in_output(action: RankAction, geometry: BufferSizes) -> RankAction:
    """The same action with its input under its name in the output, as the files that come with runtimes have it in place.

    Both ends of a message then name the same offsets, without which tools that convert such files take none.
    """

    def named(cells: CellRange | None) -> CellRange | None:
        if cells is None or cells.buffer is not Buffer.INPUT:
            return cells
        return CellRange(Buffer.OUTPUT, cells.first - geometry.input_shift(action.rank), cells.count)

    return action.on(named(action.reads), named(action.writes))


def _laid_out(
    case: _LoweringCase, decisions: Decisions, placed: _LoweredPlacement, *, exchange: bool = False
) -> ProgramRevision:
    """Threadblocks without nops, on scratch cells that are not packed yet."""
    runtime, options, subject, work = case.options.runtime, case.options, case.subject, placed.work
    orbits = subject.orbits if subject is not None else None
    channel_rules = ChannelRules(runtime, options.instances, decisions.spread, options.times_blocks, orbits)
    channels = assign_channels(work, case.schedule.topology, channel_rules)
    block_rules = ThreadblockRules(
        runtime,
        case.most_threadblocks,
        decisions.local,
        runtime.max_threadblocks if options.times_blocks else options.instances,
        decisions.apart,
        fuse=options.port_order is PortOrder.FREE,
        instances=options.instances,
        exchange=exchange,
    )
    blocks = make_threadblocks(work, placed.flow, channels, case.schedule.collective.num_ranks, block_rules)
    return ProgramRevision(blocks, work.transfers, 1 + max(channels, default=0))


def _completed(case: _LoweringCase, revision: ProgramRevision) -> ProgramRevision:
    """Threadblocks on their last cells, and the waits between them."""
    options = case.options
    packed = _packed(case, revision)
    blocks = tuple(rank.threadblocks for rank in packed)
    turns = find_turns(blocks, revision.transfers, case.schedule.topology, options.port_order)
    aliased, whole = case.flags.in_place, case.subject is None
    return replace(
        revision,
        blocks=blocks,
        scratch_cells=tuple(rank.scratch_cells for rank in packed),
        dependencies=find_dependencies(
            blocks, case.geometry, aliased=aliased, turns=turns, whole=whole, gather=options.times_blocks
        ),
    )


def _packed(case: _LoweringCase, revision: ProgramRevision) -> tuple[PackedRank, ...]:
    """Threadblocks on scratch cells that serve once, or several times where that costs nothing or there are too many of them."""
    options = case.options
    once = tuple(pack_scratch(of_rank, revision.transfers, reuse=False) for of_rank in revision.blocks)
    most = max((rank.scratch_cells for rank in once), default=0)
    if flag_is_early(options.runtime, case.choice.protocol) or (
        options.times_blocks and most * case.room.copies <= MAX_OFFSET
    ):
        return once
    return tuple(pack_scratch(of_rank, revision.transfers, reuse=True) for of_rank in revision.blocks)


def _other_choice(case: _LoweringCase, attempt: ProgramRevision) -> ProtocolChoice:
    """Return the protocol, or another one if its flags come too early for this program."""
    runtime, choice = case.options.runtime, case.choice
    if choice.asked or not attempt.dependencies.frees_source or not flag_is_early(runtime, choice.protocol):
        return choice
    return choose_protocol(case.schedule, None, runtime, barred=frozenset({choice.protocol}))


def _without_early_flags(
    case: _LoweringCase, attempt: ProgramRevision, decisions: Decisions, placed: _LoweredPlacement
) -> ProgramRevision:
    """The attempt, or, where it waits for flags of sends that come too early, one whose threadblocks receive from whom they send to.

    Only the verifier tells whether none comes too early then.
    """
    runtime = case.options.runtime
    if not attempt.dependencies.frees_source or not flag_is_early(runtime, case.choice.protocol):
        return attempt
    other = _completed(case, _laid_out(case, decisions, placed, exchange=True))
    return other if shorten(other, decisions, runtime) == decisions else attempt


def _unblock(case: _LoweringCase, attempt: ProgramRevision, decisions: Decisions) -> Decisions | None:
    """Return other decisions if the program can stop at a size at which it is to be used, or None."""
    stops = enough = FifoModel(_FEWEST_SLOTS, MAX_COUNT)
    if not attempt.fifos.stuck(stops):
        stops = FifoModel(case.slots, 1)
        enough = FifoModel(case.slots, _cells_at(case, _wanted_bytes(case)))
        if not attempt.fifos.stuck(enough):
            return None
    return loosen(attempt, decisions, stops, enough)


def _cells_at(case: _LoweringCase, size_bytes: int) -> int:
    """Cells that one operation carries at a size, which is safe if connections that hold so much do not stop the program."""
    runtime, protocol = case.options.runtime, case.choice.protocol
    if size_bytes > largest_size_bytes(case.geometry, runtime, protocol):
        return 1
    return cells_per_operation(size_bytes, case.geometry, runtime, protocol)


def _safe_bytes(case: _LoweringCase, attempt: ProgramRevision) -> int:
    """Largest size at which the program does not stop, and which the runtime can count."""
    runtime, protocol = case.options.runtime, case.choice.protocol
    cells = least_cells_per_operation(attempt, case.slots, runtime)
    largest = largest_size_bytes(case.geometry, runtime, protocol)
    return min(largest, largest_size_with(cells, case.geometry, runtime, protocol)) if cells > 1 else largest


def _wanted_bytes(case: _LoweringCase) -> int:
    """Largest size for which the program must be usable: the user's, else the one that the schedule was made for."""
    if case.options.max_bytes is not None:
        return case.options.max_bytes
    made_for = case.geometry.bytes_per_call(case.schedule.chunk_bytes)
    return max(case.options.min_bytes, int(made_for))


def _max_bytes(case: _LoweringCase, attempt: ProgramRevision) -> int:
    safe = _safe_bytes(case, attempt)
    if case.options.max_bytes is None and safe >= case.options.min_bytes:
        return safe
    asked = case.options.max_bytes or case.options.min_bytes
    if asked > safe:
        raise LoweringError(
            f"{asked} bytes are asked for, but with protocol {case.choice.protocol} this program is safe on "
            f"{case.options.runtime.title} up to {safe}; lower the size, or use another protocol or more chunks",
            runtime=case.options.runtime.name,
            limit="max_bytes",
        )
    return asked
