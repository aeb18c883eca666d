"""Schedule -> execution plan: decide, look what that needs, and decide otherwise until it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.buffers import BufferSizes, CallPlacement
from taccl_py.lowering.lower import default_name
from taccl_py.lowering.mscclpp.blocks import Post, share_out
from taccl_py.lowering.mscclpp.emit import emit_blocks
from taccl_py.lowering.mscclpp.groups import cells_match, in_groups, in_loops
from taccl_py.lowering.mscclpp.limits import beyond, require_threadblocks
from taccl_py.lowering.mscclpp.packets import SCRATCH_FACTOR, packet_gpus
from taccl_py.lowering.mscclpp.rails import NodeRails
from taccl_py.lowering.mscclpp.signals import find_signals
from taccl_py.lowering.mscclpp.switch import SwitchCut, switch_gpus
from taccl_py.lowering.mscclpp.tasks import Places, TaskStream, make_tasks
from taccl_py.lowering.mscclpp.wiring import Wiring, peers_of, wire_up
from taccl_py.lowering.plan import PACKETS, SIMPLE, Plan, PlanBlock, PlanGpu, emit_plan
from taccl_py.lowering.subject import CellSchedule
from taccl_py.runtimes import MSCCLPP
from taccl_py.schedule.ir import Schedule

_MAX_ATTEMPTS = 60
_CLOCK_BUDGET = 60_000_000


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """User's choices for a plan.

    Attributes
    ----------
    placement
        A plan knows one placement; ``both`` means in place (out of place for AllToAll, which is called so).
    instances
        Into how many parts every chunk is cut, each put by threadblocks of its own.
    min_bytes, max_bytes
        Sizes for which it may be used, as the runtime counts them: of the output for AllGather, else of the input. None is
        the largest possible.
    name
        None makes one from collective and machine.
    switch
        Whether the switches of the topology multicast and add up, instead of messages.
    owners, pieces, rails
        Of a plan by switch; see `SwitchCut`.
    protocol
        ``Simple``, or ``LL``: by packets, not by a switch.
    group
        Threadblocks that share every operation; not by a switch.
    loop_bytes
        Bytes of every operation that a pass of a loop does; 0 is no loop. Not by packets or a switch, nor in groups.
    """

    placement: CallPlacement = CallPlacement.BOTH
    instances: int = 1
    min_bytes: int = 0
    max_bytes: int | None = None
    name: str | None = None
    switch: bool = False
    owners: int | None = None
    pieces: int = 1
    rails: NodeRails = NodeRails.DIRECT
    protocol: str = SIMPLE
    group: int = 1
    loop_bytes: int = 0


@dataclass(frozen=True)
class LoweredPlan:
    """A plan and its JSON."""

    plan: Plan

    @cached_property
    def text(self) -> str:
        """The JSON; of plans that are only tried nobody asks for it."""
        return emit_plan(self.plan)


@dataclass(frozen=True, slots=True)
class PlanParts:
    """Threadblocks of all ranks, and what they were made of."""

    stream: TaskStream
    wiring: Wiring
    blocks: tuple[tuple[PlanBlock, ...], ...]


def lower_plan(schedule: Schedule, options: PlanOptions) -> LoweredPlan:
    """Make the plan that carries out a schedule.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    options
        The user's wishes.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InputError
        If an option is impossible, or the schedule is not valid.
    """
    if options.instances < 1:
        raise InputError(f"there must be at least 1 instance, found {options.instances}", field="instances")
    unit = MSCCLPP.alignment_bytes
    unfit = options.group > 1 or options.protocol == PACKETS or options.switch
    if options.loop_bytes % unit or (options.loop_bytes and unfit):
        raise InputError(
            f"a loop does a multiple of {unit} bytes with protocol {SIMPLE}, and no group of threadblocks; found {options.loop_bytes}",
            field="loop_bytes",
        )
    kind = schedule.collective.kind
    in_place = options.placement is not CallPlacement.OUT_OF_PLACE
    if options.placement is CallPlacement.BOTH and kind is Kind.ALLTOALL:
        in_place = False
    if options.switch:
        cut = SwitchCut(options.instances, options.owners, options.pieces, options.rails)
        gpus = switch_gpus(schedule, cut, in_place=in_place)
    elif options.protocol == PACKETS:
        grouped = options.group > 1
        gpus = in_groups(packet_gpus(schedule, options.instances, in_place=in_place, grouped=grouped), options.group)
    else:
        gpus = in_groups(_message_gpus(schedule, options, in_place), options.group)
    if options.loop_bytes:
        gpus = in_loops(in_groups(gpus, options.instances, cut=True), options.loop_bytes)
    for gpu in gpus:
        require_threadblocks(gpu.rank, len(gpu.blocks))
    counted = gpus[0].output_chunks if kind is Kind.ALLGATHER else gpus[0].input_chunks
    factor = SCRATCH_FACTOR if options.protocol == PACKETS else 1
    longest = max(max(gpu.input_chunks, gpu.output_chunks, factor * gpu.scratch_chunks) for gpu in gpus)
    least, most = _sizes(options, counted, longest)
    name = options.name or default_name(schedule)
    plan = Plan(name, MSCCLPP.collectives[kind], in_place, MSCCLPP.alignment_bytes, least, most, gpus, options.protocol)
    return LoweredPlan(plan)


def _message_gpus(schedule: Schedule, options: PlanOptions, in_place: bool) -> tuple[PlanGpu, ...]:
    """Programs of all ranks that carry out the messages of a schedule."""
    instances = 1 if options.loop_bytes else options.instances  # in loops they are made afterwards
    collective = schedule.collective
    draft = settle(schedule, Places(BufferSizes(collective, instances, exact=False), in_place), options)
    return gpus_of(draft, (collective.input_chunks * instances, collective.output_chunks * instances))


def gpus_of(draft: PlanParts, chunks: tuple[int, int]) -> tuple[PlanGpu, ...]:
    """Programs of all ranks, whose inputs and outputs have so many chunks."""
    return tuple(
        PlanGpu(
            rank=rank,
            input_chunks=chunks[0],
            output_chunks=chunks[1],
            scratch_chunks=draft.stream.scratch_cells[rank],
            peers=peers_of(rank, draft.wiring.wires[rank]),
            remotes=draft.wiring.remotes[rank],
            num_semaphores=sum(source.rank == rank for source, _ in draft.wiring.semaphores),
            blocks=blocks,
        )
        for rank, blocks in enumerate(draft.blocks)
    )


def _sizes(options: PlanOptions, counted: int, longest: int) -> tuple[int, int]:
    """Smallest and largest size: whole aligned chunks, and no offset beyond what an operation can hold."""
    unit = MSCCLPP.alignment_bytes
    least = max(options.min_bytes, unit * counted * options.group)  # every threadblock of a group has something to do
    safe = MSCCLPP.max_offset_bytes // longest // unit * unit * counted
    most = safe if options.max_bytes is None else options.max_bytes
    if least > most or most > safe:
        raise beyond(
            "max_bytes" if most > safe else "min_bytes",
            f"{least} to {most} bytes are asked for, but {MSCCLPP.title} can run this plan from {unit * counted} to {safe} "
            "bytes; ask for sizes between, or use fewer chunks",
        )
    if most // (unit * counted) * unit * counted < least:
        raise beyond(
            "min_bytes",
            f"none of the sizes from {least} to {most} bytes is a multiple of {unit * counted} bytes, as {MSCCLPP.title} needs "
            "for this plan; ask for a wider range, or for fewer chunks or instances",
        )
    return least, most


def settle(schedule: CellSchedule, places: Places, options: PlanOptions) -> PlanParts:
    """Draft until everything fits.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """

    def tasks(staged: frozenset[int]) -> TaskStream:
        stream = make_tasks(schedule, places, staged)
        looped = bool(options.loop_bytes)
        if (looped or options.group > 1) and not cells_match(stream, alike=looped):
            stream = make_tasks(schedule, places, staged, 1)
        return stream

    staged: frozenset[int] = frozenset()
    parts: dict[Post, int] = {}
    stream = tasks(staged)
    for _ in range(_MAX_ATTEMPTS):
        posts = share_out(stream, parts)
        _require_room(stream, posts, schedule.collective.num_ranks, options.group)
        signals = find_signals(stream, posts)
        if signals.crowded:
            if signals.crowded <= staged:
                raise ValueError("a message that lands in scratch of its own disturbs somebody")
            staged |= signals.crowded
            stream = tasks(staged)
            continue
        wiring = wire_up(stream, posts, signals, schedule.topology.node_of)
        draft = PlanParts(stream, wiring, emit_blocks(stream, posts, signals, wiring))
        for rank, blocks in enumerate(draft.blocks):
            require_threadblocks(rank, options.group * len(blocks))
        crowded = dict(_too_large(draft))
        if not crowded:
            return draft
        for post, number in crowded.items():
            # Half as many again: a threadblock of which no part becomes small enough is soon known to find no room.
            before = parts.get(post, 1)
            parts[post] = max(number, before + max(1, before // 2))
    raise beyond(
        "max_operations",
        f"the work cannot be shared out so that no threadblock has more than {MSCCLPP.max_operations} operations and "
        f"{MSCCLPP.max_channels} channels of a type, which {MSCCLPP.title} allows; use fewer instances, or a schedule with "
        "fewer messages",
    )


def _too_large(draft: PlanParts) -> Iterator[tuple[Post, int]]:
    """Yield threadblocks that must be cut, and into how many at least."""
    totals: dict[Post, int] = {}
    over: set[Post] = set()
    for posts, blocks in zip(draft.wiring.posts, draft.blocks, strict=True):
        for post, block in zip(posts, blocks, strict=True):
            totals[post.whole] = totals.get(post.whole, 0) + len(block.operations)
            named = max(map(len, (*block.channels.values(), *block.remotes.values())), default=0)
            if len(block.operations) > MSCCLPP.max_operations or named > MSCCLPP.max_channels:
                over.add(post.whole)
    for post in sorted(over):
        yield post, -(-totals[post] // MSCCLPP.max_operations)


def _require_room(stream: TaskStream, posts: tuple[Post, ...], num_ranks: int, group: int) -> None:
    """Refuse what would need more threadblocks than a GPU has, in groups of so many, or clocks larger than the memory."""
    everybody = set(posts)
    for rank in range(num_ranks):
        require_threadblocks(rank, group * sum(post.rank == rank for post in everybody))
    if len(stream.tasks) * len(everybody) > _CLOCK_BUDGET:
        raise beyond(
            "size",
            f"{len(stream.tasks)} puts, copies and reductions in {len(everybody)} threadblocks are too many to be ordered; use "
            "fewer ranks, chunks or instances",
        )
