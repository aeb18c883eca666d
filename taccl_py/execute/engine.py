"""Threadblocks at work: each runs its steps in order, and waits for messages, free slots and other threadblocks.

As in the kernels: a chunk that is larger than a message goes in slices, and all steps are run through once for every slice; a
step of several chunks is several messages when they do not fit into one; a connection holds a fixed number of messages;
a step waits for the other threadblock's last signal, whose place is (pass, number of the step).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from taccl_py.collective import Address
from taccl_py.execute.arithmetic import CellArithmetic
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.plan import ExecutablePlan, Operator, SizeCut, Step, Threadblock
from taccl_py.execute.trouble import BlockedThreadblock, BlockName, Trouble


class MessageQueue(NamedTuple):
    """A queue of messages from one rank to another; threadblocks that name the same one share it."""

    src: int
    dst: int
    channel: int


class Transport:
    """Carries messages over connections. One that need not copy says so by taking and giving cells of buffers themselves."""

    def has_room(self, connection: MessageQueue) -> bool:
        """True if a message can be pushed."""
        raise NotImplementedError

    def push(self, connection: MessageQueue, message: Any) -> None:
        """Hand over a message, which is in one piece; it must not be changed afterwards."""
        raise NotImplementedError

    def has_message(self, connection: MessageQueue) -> bool:
        """True if a message can be popped."""
        raise NotImplementedError

    def pop(self, connection: MessageQueue) -> Any:
        """Take the oldest message, in whatever shape, and free its slot; None if it lies where it was wanted already."""
        raise NotImplementedError

    @property
    def lends(self) -> bool:
        """True if any cells are lent."""
        return False

    def lend(self, connection: MessageQueue, cells: Any) -> bool:  # noqa: ARG002
        """True if cells of a buffer have been pushed as they are; they must not be changed while they `are_lent`."""
        return False

    def are_lent(self, cells: Any) -> bool:  # noqa: ARG002
        """True if any of these cells are still needed."""
        return False

    def want(self, connection: MessageQueue, cells: Any) -> None:
        """Tell where the next message may be put when it comes: nobody uses these cells until it is popped."""


@dataclass(frozen=True, slots=True)
class Signal:
    """The last step that a threadblock has told others of: pass and number; pass -1 for none."""

    turn: int = -1
    number: int = -1


@dataclass(slots=True, eq=False)
class ExecutedBlock:
    """State of a threadblock: pass, position in the steps, chunks of the step that are done, what it waits for."""

    name: BlockName
    steps: tuple[Step, ...]
    source: MessageQueue
    target: MessageQueue
    turn: int = 0
    position: int = 0
    done: int = 0
    wants: bool = False
    awaits: bool = False  # a message, and nothing else has to be looked at before that comes
    signal: Signal = Signal()


class ThreadblockEngine:
    """Runs the threadblocks of some of the ranks.

    Parameters
    ----------
    plan, cut
        Program to run, and how data are cut.
    memories
        Buffers of the ranks that run here.
    transport
        How messages travel.
    operator, cells
        How contributions are combined.
    """

    def __init__(
        self,
        plan: ExecutablePlan,
        cut: SizeCut,
        memories: Mapping[int, RankMemory],
        transport: Transport,
        operator: Operator,
        cells: CellArithmetic,
    ) -> None:
        self._plan = plan
        self._cut = cut
        self._memories = memories
        self._transport = transport
        self._operator = operator
        self._cells = cells
        self._by_name = {
            BlockName(rank, tb.id): _make_block(rank, tb) for rank in sorted(memories) for tb in plan.ranks[rank].threadblocks
        }  # fmt: skip

    @property
    def blocks(self) -> list[ExecutedBlock]:
        """Threadblocks that have not ended."""
        return [block for block in self._by_name.values() if not self._has_ended(block)]

    def advance(self, block: ExecutedBlock, most: int | None = None) -> bool:
        """Let a threadblock go on until it must wait, or for so many operations; whether it moved at all.

        Raises
        ------
        Trouble
            If it does what cannot be done.
        """
        if block.awaits and not self._transport.has_message(block.source):
            return False
        moved = 0
        while not self._has_ended(block) and (most is None or moved < most) and self._is_free(block):
            self._operate(block)
            moved += 1
        if not block.wants and (most is None or moved < most):
            self._want(block)
        return moved > 0

    def waits(self, blocks: Iterable[ExecutedBlock]) -> list[BlockedThreadblock]:
        """Obstacles of the threadblocks that wait; those that could go on are left out."""
        return [self._wait(block) for block in blocks if not self._is_free(block)]

    def _want(self, block: ExecutedBlock) -> None:
        """Say where the message may go that a threadblock waits for and does nothing with but to store it."""
        if self._has_ended(block):
            return
        step = block.steps[block.position]
        action = step.action
        only_stores = action.receives and action.writes and not action.reads and not action.sends
        if only_stores and self._is_awaited(block, step) and not self._is_target_lent(block, step):
            self._transport.want(block.source, self._next_target(block, step))
            block.wants = True

    def _is_awaited(self, block: ExecutedBlock, step: Step) -> bool:
        """True if a threadblock waits for nothing but a message."""
        ready = step.waits_for is None or block.done > 0 or self._is_signalled(block, step)
        return ready and not self._transport.has_message(block.source)

    def _is_target_lent(self, block: ExecutedBlock, step: Step) -> bool:
        """True if the next operation writes to cells that are lent; an operation whose cells do not exist may go on and fail."""
        if not step.action.writes or not self._transport.lends:
            return False
        try:
            return self._transport.are_lent(self._next_target(block, step))
        except Trouble:
            return False

    def _has_ended(self, block: ExecutedBlock) -> bool:
        return block.position == len(block.steps)

    def _is_free(self, block: ExecutedBlock) -> bool:
        step = block.steps[block.position]
        action = step.action
        # The most frequent and quickest test comes first: most threadblocks wait for messages, most of the time.
        block.awaits = action.receives and not self._transport.has_message(block.source)
        if block.awaits:
            return False
        if step.waits_for is not None and block.done == 0 and not self._is_signalled(block, step):
            return False
        return not self._is_target_lent(block, step) and (not action.sends or self._transport.has_room(block.target))

    def _next_target(self, block: ExecutedBlock, step: Step) -> Any:
        """Cells that the next operation of a threadblock writes."""
        count, part = self._extent(block, step)
        where = f"{block.name} step {block.position}"
        return self._local(block.name.rank, _later(step.target, block.done), count, part, where)

    def _extent(self, block: ExecutedBlock, step: Step) -> tuple[int, slice]:
        """Chunks of the next operation, and what part of each."""
        count = min(self._cut.chunks_per_operation, step.count - block.done)
        first = block.turn * self._cut.slice_elements
        return count, slice(first, min(first + self._cut.slice_elements, self._cut.chunk_elements))

    def _is_signalled(self, block: ExecutedBlock, step: Step) -> bool:
        if step.waits_for is None:
            return True
        other = self._by_name.get(BlockName(block.name.rank, step.waits_for.threadblock))
        if other is None:
            return False
        return (other.signal.turn, other.signal.number) >= (block.turn, step.waits_for.step)

    def _operate(self, block: ExecutedBlock) -> None:
        """Carry out one operation: a step, or as much of it as one message carries."""
        step = block.steps[block.position]
        count, part = self._extent(block, step)
        if count:
            self._move(block, step, count, part)
        block.done, block.wants = block.done + count, False
        if block.done < step.count:
            return
        if step.signals:
            block.signal = Signal(block.turn, step.number)
        block.position, block.done = block.position + 1, 0
        if self._has_ended(block) and block.turn + 1 < self._cut.num_passes:
            block.turn, block.position = block.turn + 1, 0

    def _move(self, block: ExecutedBlock, step: Step, count: int, part: slice) -> None:
        action, rank = step.action, block.name.rank
        where = f"{block.name} step {block.position}"

        def local(address: Address) -> Any:
            return self._local(rank, _later(address, block.done), count, part, where)

        values = None
        if action.receives:
            message = self._transport.pop(block.source)
            if message is None:
                return
            values = self._shaped(message, count, part.stop - part.start, where)
        elif action.sends and self._transport.lend(block.target, local(step.source)):
            return
        elif action.sends or action.accumulates:
            values = self._copy(local(step.target if action.accumulates else step.source))
        if action.reads and values is None:
            values = local(step.source)
        elif action.reads and action.writes and not action.sends:
            self._combine_to(local(step.target), values, local(step.source))
            return
        elif action.reads and (action.receives or action.accumulates):
            values = self._combine(values, local(step.source))
        if values is None:
            return
        if action.writes:
            self._store(local(step.target), values)
        if action.sends:
            self._transport.push(block.target, values)

    def _shaped(self, message: Any, count: int, width: int, where: str) -> Any:
        """Return a message as rows of chunks."""
        length = self._cells.length(message)
        if length != count * width:
            what = f"it takes {count} chunks of {width} elements, and a message of {length} elements comes"
            raise Trouble(where, "count-mismatch", f"{what}; sender and receiver must count alike")
        return message.reshape(count, width)

    # Operations on data

    def _local(self, rank: int, address: Address, count: int, part: slice, where: str) -> Any:
        return self._memories[rank].cells(address, count, part, where)

    def _combine(self, own: Any, other: Any) -> Any:
        """Combine a message or a copy, which may become the result, with cells of a buffer."""
        return self._cells.combine_into(self._operator, own, other)

    def _combine_to(self, target: Any, own: Any, other: Any) -> None:
        """Combine them, and store the result."""
        self._cells.combine_to(self._operator, target, own, other)

    def _copy(self, values: Any) -> Any:
        return self._cells.copy(values)

    def _store(self, cells: Any, values: Any) -> None:
        cells[...] = values

    # Obstacles of threadblocks that wait

    def _wait(self, block: ExecutedBlock) -> BlockedThreadblock:
        step = block.steps[block.position]
        rank = block.name.rank
        if block.done == 0 and step.waits_for is not None and not self._is_signalled(block, step):
            target = BlockName(rank, step.waits_for.threadblock)
            what = f"step {step.waits_for.step} of tb {target.threadblock}"
            return BlockedThreadblock(block.name, block.position, what, target if target in self._by_name else None)
        if step.action.receives and not self._transport.has_message(block.source):
            source = block.source
            what = f"a message from rank {source.src} on channel {source.channel}"
            return BlockedThreadblock(block.name, block.position, what, self._peer(source.src, source, sends=True))
        if self._is_target_lent(block, step):
            return BlockedThreadblock(block.name, block.position, "a message to leave the cells that it writes", None)
        target_queue = block.target
        what = f"a free slot of its connection to rank {target_queue.dst} on channel {target_queue.channel}"
        return BlockedThreadblock(
            block.name, block.position, what, self._peer(target_queue.dst, target_queue, sends=False)
        )

    def _peer(self, rank: int, connection: MessageQueue, *, sends: bool) -> BlockName | None:
        """Return the threadblock at the other end of a connection, wherever it runs."""
        for tb in self._plan.ranks[rank].threadblocks:
            block = _make_block(rank, tb)
            acts = any(step.action.sends if sends else step.action.receives for step in tb.steps)
            if acts and (block.target if sends else block.source) == connection:
                return block.name
        return None


def count_messages(plan: ExecutablePlan, cut: SizeCut) -> Counter[MessageQueue]:
    """Messages that each connection carries if the program comes to its end."""
    counts: Counter[MessageQueue] = Counter()
    for rank in plan.ranks:
        for tb in rank.threadblocks:
            block = _make_block(rank.rank, tb)
            operations = sum(-(-step.count // cut.chunks_per_operation) for step in tb.steps if step.action.sends)
            counts[block.target] += operations * cut.num_passes
    return counts


def _make_block(rank: int, tb: Threadblock) -> ExecutedBlock:
    return ExecutedBlock(
        BlockName(rank, tb.id),
        tb.steps,
        MessageQueue(tb.recv_peer, rank, tb.channel),
        MessageQueue(rank, tb.send_peer, tb.channel),
    )


def _later(address: Address, chunks: int) -> Address:
    return Address(address.buffer, address.offset + chunks) if chunks else address
