"""A program executed without data: what every rank computes, and what is exchanged when, for all ranks at once.

Threadblocks go on as far as what has arrived lets them; then everything that was sent is exchanged as one round. A rank waits in a
round for messages of that round alone, and its peers post those in the same round, which they reach, as by induction all earlier rounds
end everywhere: nothing can hang. All ranks trace all ranks, so both ends of a pair have their messages in the same order.

A message that is only stored lands in its place at once if nobody uses that between its arrival and the step that stores it;
what would be overwritten before the round ends is sent from a copy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from taccl_py.collective import Address, Buffer
from taccl_py.errors import InvalidArtifact
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.engine import ExecutedBlock, ThreadblockEngine
from taccl_py.execute.memory import lengths_of, require_cells
from taccl_py.execute.plan import DataType, ExecutablePlan, Operator, SizeCut, Step
from taccl_py.execute.rounds import Mailbox
from taccl_py.execute.trouble import Trouble, explain_deadlock, explain_left_over
from taccl_py.torch.steps import ChunkRun, LocalOperation, shared_address

_UNLIMITED = sys.maxsize


@dataclass(slots=True, eq=False)
class TracedMessage:
    """A message of a round: from where at its sender to where at its receiver; `lands_in_scratch` if it has no place of its own."""

    src: int
    dst: int
    round: int
    source: ChunkRun
    target: ChunkRun
    lands_in_scratch: bool = True


@dataclass(slots=True)
class TracedRound:
    """Operations of every rank, and the messages that are exchanged after them."""

    operations: list[list[LocalOperation]]
    messages: list[TracedMessage]


@dataclass(slots=True)
class TracedProgram:
    """Rounds, and the scratch of every rank, in which no two landing places overlap yet.

    Attributes
    ----------
    rounds
        In their order.
    own_scratch
        Scratch of the program itself, by rank.
    used_scratch
        That and all landing places, by rank.
    """

    rounds: list[TracedRound]
    own_scratch: list[int]
    used_scratch: list[int]


@dataclass(slots=True)
class _RankState:
    """Operations of the current round, messages that leave at its end, when each chunk was last used, and how long scratch is."""

    operations: list[LocalOperation] = field(default_factory=list)
    leaving: list[TracedMessage] = field(default_factory=list)
    used: dict[tuple[Buffer, int], int] = field(default_factory=dict)
    scratch: int = 0

    def reserve(self, count: int) -> ChunkRun:
        """Scratch that nobody has used."""
        region = ChunkRun(Buffer.SCRATCH, self.scratch, count)
        self.scratch += count
        return region


class _TracingEngine(ThreadblockEngine):
    """An engine whose threadblocks note what they would do."""

    def __init__(self, plan: ExecutablePlan, mailbox: Mailbox, *, in_place: bool) -> None:
        nowhere = dict.fromkeys(range(plan.num_ranks))
        cut = SizeCut(chunk_elements=1, slice_elements=1, chunks_per_operation=_UNLIMITED)
        super().__init__(plan, cut, nowhere, mailbox, Operator.SUM, NumpyCells(DataType.INT8))  # type: ignore[arg-type]
        self._in_place = in_place
        self._lengths = [lengths_of(plan, rank, in_place=in_place) for rank in range(plan.num_ranks)]
        # The gap keeps what lands from being joined with the program's own scratch, which stays where it is.
        self.states = [_RankState(scratch=rank.scratch_chunks + 1) for rank in plan.ranks]
        self.round = 0

    # A round's operations have the time 2 * round, its exchange the one after that.

    @property
    def _now(self) -> int:
        return 2 * self.round

    def _local(self, rank: int, address: Address, count: int, part: slice, where: str) -> ChunkRun:  # noqa: ARG002
        require_cells(self._lengths[rank], address, count, where)
        buffer, offset = address.buffer, address.offset
        if self._in_place:
            plan = self._plan
            buffer, offset = shared_address(rank, plan.input_chunks, plan.output_chunks, buffer, offset)
        return ChunkRun(buffer, offset, count)

    def _move(self, block: ExecutedBlock, step: Step, count: int, part: slice) -> None:
        action, rank = step.action, block.name.rank
        state, where = self.states[rank], f"{block.name} step {block.position}"
        source = self._local(rank, step.source, count, part, where) if action.reads else None
        target = self._local(rank, step.target, count, part, where) if action.writes else None
        message: TracedMessage | None = self._transport.pop(block.source) if action.receives else None
        if message is not None and message.source.chunks != count:
            what = f"it takes {count} chunks, and a message of {message.source.chunks} comes"
            raise Trouble(where, "count-mismatch", f"{what}; sender and receiver must count alike")
        if message is None:
            result = self._compute_locally(state, source, target, accumulates=action.accumulates)
        elif source is None:
            result = self._store(state, message, target)
        else:
            result = target or message.target
            self._operate_on(state, LocalOperation(result, source, message.target))
        if action.sends:
            peer = block.target.dst
            self._mark(state, result, self._now + 1)
            sent = TracedMessage(rank, peer, self.round, result, self.states[peer].reserve(count))
            state.leaving.append(sent)
            self._transport.push(block.target, sent)

    def _compute_locally(
        self, state: _RankState, source: ChunkRun | None, target: ChunkRun | None, *, accumulates: bool
    ) -> ChunkRun:
        """Note a step that receives nothing, and return what it would send."""
        if source is None:
            raise ValueError("a step that receives nothing reads")
        if target is None:
            return source
        if accumulates:
            self._operate_on(state, LocalOperation(target, target, source))
        elif target != source:
            self._operate_on(state, LocalOperation(target, source))
        return target

    def _store(self, state: _RankState, message: TracedMessage, target: ChunkRun | None) -> ChunkRun:  # type: ignore[override]
        """Put a message into its place, at its arrival if nobody has used that since."""
        if target is None:
            return message.target
        landed = 2 * message.round + 1
        if all(state.used.get((target.buffer, chunk), -1) < landed for chunk in range(target.offset, target.end)):
            message.target, message.lands_in_scratch = target, False
            self._mark(state, target, self._now)
        else:
            self._operate_on(state, LocalOperation(target, message.target))
        return target

    def _operate_on(self, state: _RankState, operation: LocalOperation) -> None:
        """Note an operation; what it overwrites and is still to leave is kept in a copy, and so is what it reads and overwrites in part."""
        target, first, second = operation
        for message in state.leaving:
            if message.source.overlaps(target):
                copy = state.reserve(message.source.chunks)
                state.operations.append(LocalOperation(copy, message.source))
                message.source = copy
        kept = []
        for operand in (first, second):
            if operand is not None and operand.overlaps(target) and operand != target:
                copy = state.reserve(operand.chunks)
                state.operations.append(LocalOperation(copy, operand))
                operand = copy
            kept.append(operand)
        state.operations.append(LocalOperation(target, kept[0] or first, kept[1]))
        for region in (target, first, second):
            if region is not None:
                self._mark(state, region, self._now)

    @staticmethod
    def _mark(state: _RankState, region: ChunkRun, time: int) -> None:
        for chunk in range(region.offset, region.end):
            key = (region.buffer, chunk)
            state.used[key] = max(time, state.used.get(key, -1))


def trace_program(plan: ExecutablePlan, *, in_place: bool) -> TracedProgram:
    """Trace a program.

    Raises
    ------
    InvalidArtifact
        If it comes to a stop, does what cannot be done, or leaves messages behind.
    """
    mailbox = Mailbox(_UNLIMITED)
    engine = _TracingEngine(plan, mailbox, in_place=in_place)
    rounds: list[TracedRound] = []
    active = engine.blocks
    try:
        while active:
            if not _advance_all(engine, active):
                raise InvalidArtifact(plan.name, explain_deadlock(engine.waits(active)))
            staged = mailbox.take_staged()
            mailbox.take_popped()
            for connection, message in staged:
                mailbox.deliver(connection, message)
            rounds.append(TracedRound([state.operations for state in engine.states], [each for _, each in staged]))
            for state in engine.states:
                state.operations, state.leaving = [], []
            engine.round += 1
            active = engine.blocks
    except Trouble as trouble:
        raise InvalidArtifact(plan.name, [trouble.violation]) from None
    left = mailbox.left_over()
    if left:
        raise InvalidArtifact(plan.name, [explain_left_over(one.src, one.dst, one.channel) for one in left])
    return TracedProgram(
        rounds, [rank.scratch_chunks for rank in plan.ranks], [state.scratch for state in engine.states]
    )


def _advance_all(engine: _TracingEngine, active: list[ExecutedBlock]) -> bool:
    """Let threadblocks go on until nobody can; whether anybody has moved."""
    moved = False
    while any([engine.advance(block) for block in active]):
        moved = True
        active = engine.blocks
    return moved
