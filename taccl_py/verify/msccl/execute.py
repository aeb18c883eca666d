"""Does the program end: program counters, bounded queues and flags, without data.

An operation may run when the operations whose flags it waits for are done; it moves its messages one by one, each needing
a message in its inbound queue and room in its outbound queue. All these conditions stay true once they are, so one run in
any order decides: where it gets stuck every run gets stuck, and going on from there with longer queues gives the same as
having started with them. A program that ends with one chunk in each message ends with any number of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from taccl_py.runtimes import MAX_COUNT
from taccl_py.verify.msccl.findings import place
from taccl_py.verify.msccl.geometry import operations_of
from taccl_py.verify.msccl.operations import KernelOperation, KernelProgram


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Progress of a program: how far it comes.

    Attributes
    ----------
    capacity
        Shortest queue length with which it ends, None when it never does.
    order
        Operations in the order in which they were completed.
    """

    capacity: int | None
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeadlockCycle:
    """Threadblocks that wait for each other, or in vain: where the first is, and the sentence."""

    where: str
    what: str


def least_capacity(plan: KernelProgram, chunks_per_message: int) -> ExecutionResult:
    """Shortest queues with which the program ends when a message carries at most that many chunks."""
    machine = ExecutionState(plan, chunks_per_message, capacity=1)
    machine.run()
    while not machine.ended and machine.lengthen_queues():
        machine.run()
    return ExecutionResult(machine.capacity if machine.ended else None, tuple(machine.order))


def is_split(plan: KernelProgram, chunks_per_message: int) -> bool:
    """True if some operation carries more messages when they hold this few chunks than when they hold all that they can."""
    counts = {op.step.count for op in plan.operations if op.carries}
    return any(operations_of(count, chunks_per_message) != operations_of(count, MAX_COUNT) for count in counts)


def ends_without_queues(plan: KernelProgram) -> bool:
    """True if the program ends even with queues of no length, where an operation sends only while another receives: then it does with any.

    Each message is one with its receipt, and so is an operation that passes on what it receives with both; the program ends if what is so joined
    can be done one after the other. With queues of one, all of one then move at once.
    """
    flows = _flows(plan)
    if flows is None or any(wait.operation is None for op in plan.operations for wait in op.waits):
        return False
    before: dict[int, set[int]] = {flow: set() for flow in flows}
    for block in plan.blocks:
        for one, two in pairwise(block.operations):
            before[flows[two.index]].add(flows[one.index])
    for op in plan.operations:
        before[flows[op.index]].update(flows[wait.operation] for wait in op.waits if wait.operation is not None)
    with suppress(CycleError):
        TopologicalSorter(before).prepare()
        return True
    return False


def _flows(plan: KernelProgram) -> list[int] | None:
    """First operation of the flow of each: what one sends another receives, and may pass on; None if ends differ in length, or a flow goes in a circle."""
    sent: dict[int, list[int]] = {}
    received: dict[int, list[int]] = {}
    for block in plan.blocks:
        for op in block.operations:
            if op.outbound is not None:
                sent.setdefault(op.outbound, []).append(op.index)
            if op.inbound is not None:
                received.setdefault(op.inbound, []).append(op.index)
    counts = [op.step.count for op in plan.operations]
    taker: dict[int, int] = {}
    for connection in sent.keys() | received.keys():
        givers, takers = sent.get(connection, []), received.get(connection, [])
        if [counts[giver] for giver in givers] != [counts[one] for one in takers]:
            return None
        taker.update(zip(givers, takers, strict=True))
    flows = [-1] * len(plan.operations)
    for first in set(range(len(plan.operations))).difference(taker.values()):
        index: int | None = first
        while index is not None:
            flows[index] = first
            index = taker.get(index)
    return None if -1 in flows else flows


def ends(plan: KernelProgram, chunks_per_message: int, capacity: int) -> bool:
    """True if the program ends with queues of that length."""
    machine = ExecutionState(plan, chunks_per_message, capacity)
    machine.run()
    return machine.ended


def find_cycles(plan: KernelProgram, chunks_per_message: int, capacity: int | None) -> tuple[DeadlockCycle, ...]:
    """Waits of the threadblocks when the program does not end; `capacity` None stands for queues without limit."""
    machine = ExecutionState(plan, chunks_per_message, capacity or 1)
    machine.run()
    while capacity is None and not machine.ended and machine.lengthen_queues():
        machine.run()
    return tuple(machine.cycles())


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Obstacle of a threadblock, and the threadblock that would have to act (None when nobody can)."""

    what: str
    block: int | None


class ExecutionState:
    """The state of all threadblocks."""

    def __init__(self, plan: KernelProgram, chunks_per_message: int, capacity: int) -> None:
        self.capacity = capacity
        self.order: list[int] = []
        self._plan = plan
        self._messages = [
            1 if op.inbound is None and op.outbound is None else operations_of(op.step.count, chunks_per_message)
            for op in plan.operations
        ]
        self._moved = [0] * len(plan.operations)
        self._done = [False] * len(plan.operations)
        self._position = [0] * len(plan.blocks)
        self._queued = [0] * len(plan.connections)
        self._waiting: dict[int, list[int]] = {}
        self._without_room: list[int] = []
        # Connections whose receiver waits for data, and those whose sender waits for room; perhaps no longer.
        self._starved = [False] * len(plan.connections)
        self._full = [False] * len(plan.connections)
        self._ready = deque(range(len(plan.blocks)))
        self._is_ready = [True] * len(plan.blocks)

    @property
    def ended(self) -> bool:
        """True if every operation is done."""
        return len(self.order) == len(self._plan.operations)

    def run(self) -> None:
        """Let everybody go on until nobody can."""
        while self._ready:
            block = self._ready.popleft()
            self._is_ready[block] = False
            self._advance(block)

    def lengthen_queues(self) -> bool:
        """Make all queues longer by one; return whether anybody waited for that."""
        self.capacity += 1
        waiting, self._without_room = self._without_room, []
        for block in waiting:
            self._wake(block)
        return bool(waiting)

    def cycles(self) -> Iterator[DeadlockCycle]:
        """Every cycle of waiting threadblocks, and every threadblock that waits in vain, once each."""
        seen: set[int] = set()
        for start in range(len(self._plan.blocks)):
            path: list[int] = []
            block: int | None = start
            while block is not None and block not in seen and self._current(block) is not None:
                seen.add(block)
                path.append(block)
                block = self._obstacle(block).block
            if block in path:
                cycle = path[path.index(block) :]
                first = cycle.index(min(cycle))
                yield self._describe(cycle[first:] + cycle[:first], "each waits for the next one for ever")
            elif path and (block is None or self._current(block) is None):
                yield self._describe(path[-1:], "which never comes")

    def _advance(self, block: int) -> None:
        operations, position = self._plan.blocks[block].operations, self._position[block]
        waiting = self._waiting
        while position < len(operations):
            operation = operations[position]
            if (operation.waits and not self._may_start(operation)) or not self._move(operation):
                break
            position += 1
            index = operation.index
            self._done[index] = True
            self.order.append(index)
            if index in waiting:
                for waiter in waiting.pop(index):
                    self._wake(waiter)
        self._position[block] = position

    def _may_start(self, operation: KernelOperation) -> bool:
        for wait in operation.waits:
            if wait.operation is None:
                return False
            if not self._done[wait.operation]:
                self._waiting.setdefault(wait.operation, []).append(operation.block)
                return False
        return True

    def _move(self, operation: KernelOperation) -> bool:
        """Move as many messages as possible; return whether all have been."""
        index, inbound, outbound = operation.index, operation.inbound, operation.outbound
        if inbound is None and outbound is None:
            return True
        queued = self._queued
        count = missing = self._messages[index] - self._moved[index]
        if inbound is not None and queued[inbound] < count:
            count = queued[inbound]
        if outbound is not None and self.capacity - queued[outbound] < count:
            count = self.capacity - queued[outbound]
        if count > 0:
            self._moved[index] += count
            if inbound is not None:
                queued[inbound] -= count
                if self._full[inbound]:
                    self._full[inbound] = False
                    self._wake(self._plan.senders[inbound])
            if outbound is not None:
                queued[outbound] += count
                if self._starved[outbound]:
                    self._starved[outbound] = False
                    self._wake(self._plan.receivers[outbound])
        if count == missing:
            return True
        if inbound is not None and queued[inbound] == 0:
            self._starved[inbound] = True
        if outbound is not None and queued[outbound] == self.capacity:
            self._full[outbound] = True
            self._without_room.append(operation.block)
        return False

    def _wake(self, block: int) -> None:
        if not self._is_ready[block]:
            self._is_ready[block] = True
            self._ready.append(block)

    def _current(self, block: int) -> KernelOperation | None:
        operations = self._plan.blocks[block].operations
        return operations[self._position[block]] if self._position[block] < len(operations) else None

    def _obstacle(self, block: int) -> _Obstacle:
        operation = self._current(block)
        if operation is None:
            raise ValueError("a threadblock that has ended waits for nothing")
        for wait in operation.waits:
            owner = self._plan.blocks[wait.block].id
            if wait.operation is None:
                return _Obstacle(f"for step {wait.step} of tb {owner}, at or after which no flag is raised", None)
            if not self._done[wait.operation]:
                return _Obstacle(f"for the flag of step {wait.step} of tb {owner}", wait.block)
        inbound, outbound = operation.inbound, operation.outbound
        if inbound is not None and self._queued[inbound] == 0:
            return _Obstacle(f"for data from gpu {self._plan.connections[inbound].src}", self._plan.senders[inbound])
        if outbound is None:
            raise ValueError("a threadblock that can go on waits for nothing")
        return _Obstacle(f"for room towards gpu {self._plan.connections[outbound].dst}", self._plan.receivers[outbound])

    def _describe(self, cycle: list[int], ending: str) -> DeadlockCycle:
        parts = []
        for position, block in enumerate(cycle):
            operation = self._current(block)
            if operation is None:
                raise ValueError("a threadblock that has ended waits for nothing")
            owner = self._plan.blocks[block]
            name = place(owner.gpu, owner.id, operation.step.index)
            parts.append(f"{name if position else 'it'} waits {self._obstacle(block).what}")
            if position == 0:
                where = name
        shown = parts if len(parts) <= 8 else [*parts[:6], f"and so on over {len(parts) - 7} more", parts[-1]]
        return DeadlockCycle(where, f"{', '.join(shown)}; {ending}")
