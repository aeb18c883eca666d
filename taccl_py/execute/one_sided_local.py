"""Execution plans on real data, all ranks in one process.

Threadblocks and proxies take turns. The proxy of a channel carries out what it is given in order and whenever it likes, so that what
nobody waits for happens late; with a drawn order of turns, so do threadblocks, which then move a part of their data at a time. Several
calls are made one after the other, as kernels on the stream of each rank: a rank that has done its part goes on with new data.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.compare import ResultCheck, total
from taccl_py.execute.data import CallData
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.one_sided import Channel, OneSidedBlock, OneSidedOperation, OneSidedPlan
from taccl_py.execute.one_sided_memory import ElementTransfer, OperationPass, PlanMemories
from taccl_py.execute.plan import ExecutablePlan, Operator, SizeCut
from taccl_py.execute.runs import (
    Call,
    CallOutcome,
    Conditions,
    Measured,
    collective_data,
    make_outcome,
    require_memory,
    run_local,
)
from taccl_py.execute.trouble import Trouble

_PACES = (0.02, 0.3, 0.6, 1.0)


def run_any(plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
    """Make a call of a plan of either kind with all ranks in this process; see `run_one_sided` and `taccl_py.execute.runs.run_local`."""
    if isinstance(plan, OneSidedPlan):
        return run_one_sided(plan, call, conditions)
    return run_local(plan, call, conditions)


def run_one_sided(plan: OneSidedPlan, call: Call, conditions: Conditions) -> CallOutcome:
    """Make calls with all ranks in this process, one after the other; a rank does not wait for the others before its next one.

    Raises
    ------
    InputError
        If that needs too much memory, or the runtime has no such operator.
    InvalidArtifact
        If the plan comes to a stop or does what cannot be done; wrong results are part of the outcome.
    """
    require_sum(plan, call)
    cut = cut_aligned(plan, call)
    require_memory(plan, cut, call)
    calls = [collective_data(plan, cut, call, conditions.seed + number) for number in range(conditions.repeats)]
    return make_outcome(plan, call, cut, measure_one_sided(plan, cut, calls, conditions))


def measure_one_sided(plan: OneSidedPlan, cut: SizeCut, calls: Sequence[CallData], conditions: Conditions) -> Measured:
    """Make calls with these data with all ranks in this process; see `run_one_sided`.

    Raises
    ------
    InvalidArtifact
        If the plan comes to a stop or does what cannot be done.
    """
    state = _OneSidedState(plan, cut, calls, conditions)
    start = time.perf_counter()
    found = state.run()
    seconds = time.perf_counter() - start - state.aside_seconds
    return Measured(1e6 * seconds / len(calls), total(found))


def require_sum(plan: OneSidedPlan, call: Call) -> None:
    """Refuse operators that the runtime does not have, and the placement that the plan is not for.

    Raises
    ------
    InputError
        If there is one.
    """
    if plan.reduces and call.operator is not Operator.SUM:
        raise InputError(
            f"MSCCL++ plans only sum, found {call.operator}; leave --op out", path="command line", field="--op"
        )
    if call.in_place is not plan.in_place:
        raise InputError(
            f"{plan.name} is for calls {'in' if plan.in_place else 'out of'} place alone; leave --placement out",
            path="command line",
            field="--placement",
        )


def cut_aligned(plan: OneSidedPlan, call: Call) -> SizeCut:
    """Cut for the largest size up to the wanted one whose chunks are aligned, but at least one unit a chunk."""
    unit = max(plan.alignment_bytes, call.data_type.size_bytes)
    elements = max(1, call.size_bytes // (unit * plan.chunks_per_size)) * unit // call.data_type.size_bytes
    return SizeCut(elements, elements, 1)


@dataclass(frozen=True, slots=True)
class _ProxyTask:
    """Request to a proxy: a transfer, a signal, or to tell when all before that is done."""

    move: ElementTransfer | None = None
    signals: bool = False
    flushed: _ThreadblockState | None = None


@dataclass(frozen=True, slots=True)
class _NextCall:
    """A rank that has left a call, and not begun the next one."""

    rank: int
    call: int


@dataclass(slots=True, eq=False)
class _ThreadblockState:
    """A threadblock in a call: its next operation, and how much of that is done.

    Attributes
    ----------
    taken
        Channels or semaphores that are done with.
    moves, moved
        What the operation still moves, and how many elements of the first of them are done.
    flushes
        Flushes that it waits for.
    lowered
        What a semaphore was before it came to it.
    """

    block: OneSidedBlock
    turns: list[OperationPass]
    call: int = 0
    position: int = 0
    taken: int = 0
    moves: deque[ElementTransfer] | None = None
    moved: int = 0
    flushes: int = 0
    lowered: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.position == len(self.turns)

    @property
    def where(self) -> str:
        step = self.turns[self.position].step if not self.has_ended else "at the end"
        return f"gpu {self.block.rank} tb {self.block.number} step {step}"


class _OneSidedState:
    """Memories, signals and semaphores of all ranks."""

    def __init__(self, plan: OneSidedPlan, cut: SizeCut, calls: Sequence[CallData], conditions: Conditions) -> None:
        self._plan = plan
        self._calls = calls
        cells, in_place = NumpyCells(calls[0].data_type), calls[0].in_place
        self._memories = [RankMemory(plan, cut, cells, r, in_place=in_place) for r in range(plan.num_ranks)]
        self._moving = PlanMemories(plan, cut, self._memories, cells, in_place=in_place)
        self._order = random.Random(conditions.seed) if conditions.shuffled else None
        self._signals: dict[Channel, int] = {}
        self._requests: dict[Channel, deque[_ProxyTask]] = {}
        self._semaphores = {
            (rank, number): value for rank, values in enumerate(plan.semaphores) for number, value in enumerate(values)
        }
        self._met: dict[tuple[int, int], list[_ThreadblockState]] = {}
        self._workers = [_ThreadblockState(block, self._moving.turns(block)) for block in plan.blocks]
        self._busy = [0] * plan.num_ranks
        self._results: list[ResultCheck] = []
        self._coming: list[_NextCall] = []
        self._paces: dict[Any, float] = {}
        self.aside_seconds = 0.0

    def run(self) -> list[ResultCheck]:
        """Run until all threadblocks and proxies have ended all calls; what was wrong.

        Raises
        ------
        InvalidArtifact
            If they come to a stop, or do what cannot be done.
        """
        try:
            for rank in range(self._plan.num_ranks):
                self._begin(rank, 1)
            active = [worker for worker in self._workers if not worker.has_ended]
            while active or self._coming or any(self._requests.values()):
                if not self._take_turns(active):
                    raise InvalidArtifact(self._plan.name, [self._stuck(worker) for worker in active])
                active = [worker for worker in self._workers if not worker.has_ended]
        except Trouble as trouble:
            raise InvalidArtifact(self._plan.name, [trouble.violation]) from None
        waited = {
            channel
            for worker in self._workers
            for turn in worker.turns
            if turn.operation.name in ("wait", "rlxwait")
            for channel in turn.operation.channels
        }
        left = sorted(channel for channel, count in self._signals.items() if count and channel in waited)
        if left:
            raise InvalidArtifact(self._plan.name, [_left_over(channel) for channel in left])
        return self._results

    def _begin(self, rank: int, call: int) -> None:
        """Begin a call: there is a new input, and nothing in the output."""
        start = time.perf_counter()
        self._calls[call - 1].fill(self._memories[rank], rank, scratch=call == 1)
        self.aside_seconds += time.perf_counter() - start
        own = [worker for worker in self._workers if worker.block.rank == rank]
        for worker in own:
            worker.position, worker.call = 0, call
        self._busy[rank] = sum(not worker.has_ended for worker in own)
        if not self._busy[rank]:
            self._end(rank, call)

    def _end(self, rank: int, call: int) -> None:
        """Compare what a rank has when it leaves a call, and begin the next one."""
        start = time.perf_counter()
        self._results.append(self._calls[call - 1].check(self._memories[rank], rank))
        self.aside_seconds += time.perf_counter() - start
        if call < len(self._calls):
            self._coming.append(_NextCall(rank, call + 1))

    def _take_turns(self, active: list[_ThreadblockState]) -> bool:
        """True if any threadblock or proxy advanced: some of them in any order, or if they cannot, all threadblocks, else proxies, else next calls."""
        proxies = [channel for channel, queue in self._requests.items() if queue]
        if self._order is not None:
            everybody: list[_ThreadblockState | Channel | _NextCall] = [*active, *proxies, *self._coming]
            some = [one for one in everybody if self._order.random() < self._pace(one)]
            self._order.shuffle(some)
            if any([self._turn(one) for one in some]):
                return True
        groups: tuple[Sequence[_ThreadblockState | Channel | _NextCall], ...] = (active, proxies, tuple(self._coming))
        return any(any([self._turn(one) for one in group]) for group in groups)

    def _pace(self, one: _ThreadblockState | Channel | _NextCall) -> float:
        """Probability that somebody does something: some are slow."""
        key = id(one) if isinstance(one, _ThreadblockState) else one
        if key not in self._paces and self._order is not None:
            self._paces[key] = self._order.choice(_PACES)
        return self._paces[key]

    def _turn(self, one: _ThreadblockState | Channel | _NextCall) -> bool:
        """Let a threadblock, or a proxy, do one thing, or a rank begin its next call; whether it could."""
        if isinstance(one, _NextCall):
            self._coming.remove(one)
            self._begin(one.rank, one.call)
            return True
        if isinstance(one, Channel):
            return self._carry_out(one)
        if one.has_ended:
            return False
        before = one.taken, one.moved, len(one.moves or ())
        if not self._do(one, one.turns[one.position]):
            return (one.taken, one.moved, len(one.moves or ())) != before
        self._go_on(one)
        return True

    def _go_on(self, worker: _ThreadblockState) -> None:
        worker.taken, worker.moved, worker.moves = 0, 0, None
        worker.position += 1
        if worker.has_ended:
            rank = worker.block.rank
            self._busy[rank] -= 1
            if not self._busy[rank]:
                self._end(rank, worker.call)

    def _carry_out(self, channel: Channel) -> bool:
        queue = self._requests[channel]
        if not queue:
            return False
        request = queue.popleft()
        if request.move is not None:
            self._moving.move(request.move, 0, request.move.count)
        if request.signals:
            self._signal(channel)
        if request.flushed is not None:
            request.flushed.flushes -= 1
        return True

    def _do(self, worker: _ThreadblockState, turn: OperationPass) -> bool:
        operation = turn.operation
        match operation.name:
            case "signal" | "rlxsignal":
                for channel in operation.channels:
                    if channel.type == "port":
                        self._ask(channel, _ProxyTask(signals=True))
                    else:
                        self._signal(channel)
            case "wait" | "rlxwait":
                return self._take(worker, list(operation.channels), self._signals)
            case "sem_release":
                for number in operation.semaphores:
                    self._semaphores[worker.block.rank, number] += 1
            case "sem_acquire":
                return self._acquire(worker, operation)
            case "barrier":
                return self._meet(worker, operation)
            case "flush":
                return self._flush(worker, operation)
            case _:
                return self._move(worker, turn)
        return True

    def _signal(self, channel: Channel) -> None:
        self._signals[channel.back] = self._signals.get(channel.back, 0) + 1

    def _ask(self, channel: Channel, request: _ProxyTask) -> None:
        self._requests.setdefault(channel, deque()).append(request)

    def _take(self, worker: _ThreadblockState, keys: list[Any], counts: dict[Any, int]) -> bool:
        """Take one of each; whether there were all."""
        while worker.taken < len(keys):
            key = keys[worker.taken]
            if not counts.get(key, 0):
                return False
            counts[key] -= 1
            worker.taken += 1
        return True

    def _acquire(self, worker: _ThreadblockState, operation: OneSidedOperation) -> bool:
        """Acquire semaphores: lower each, and wait until it is what it was before (`DeviceSemaphore::acquire` of the runtime)."""
        while worker.taken < len(operation.semaphores):
            key = worker.block.rank, operation.semaphores[worker.taken]
            if worker.lowered is None:
                worker.lowered = self._semaphores[key]
                self._semaphores[key] -= 1
            if worker.lowered <= 0 and self._semaphores[key] < worker.lowered:
                return False
            worker.lowered = None
            worker.taken += 1
        return True

    def _meet(self, worker: _ThreadblockState, operation: OneSidedOperation) -> bool:
        met = self._met.setdefault((worker.block.rank, operation.barrier), [])
        if worker not in met:
            met.append(worker)
            worker.taken = 1
        if len(met) < operation.barrier_blocks:
            return False
        others = [other for other in met if other is not worker]
        met.clear()
        for other in others:
            self._go_on(other)
        return True

    def _flush(self, worker: _ThreadblockState, operation: OneSidedOperation) -> bool:
        """Wait until proxies have done what they were asked for before."""
        if not worker.taken:
            for channel in operation.channels:
                worker.flushes += 1
                self._ask(channel, _ProxyTask(flushed=worker))
            worker.taken = 1
        return not worker.flushes

    def _move(self, worker: _ThreadblockState, turn: OperationPass) -> bool:
        """Move data that are there, or ask proxies to; while it waits for packets or a flush it is not done."""
        if worker.moves is None:
            worker.moves = deque(self._moving.element_transfers(turn, worker.call, worker.where))
        operation = turn.operation
        if operation.channels:
            return self._move_by_proxy(worker, operation)
        while worker.moves:
            move = worker.moves[0]
            ready = self._moving.ready(move, worker.moved)
            if not ready:
                return False
            count = ready if self._order is None else self._order.randint(1, ready)
            self._moving.move(move, worker.moved, count)
            worker.moved += count
            if worker.moved < move.count:
                return False
            worker.moves.popleft()
            worker.moved = 0
            if self._order is not None and worker.moves:
                return False
        return True

    def _move_by_proxy(self, worker: _ThreadblockState, operation: OneSidedOperation) -> bool:
        moves = worker.moves or deque()
        if worker.taken == 0:
            if operation.name == "rppkt" and any(self._moving.ready(move, 0) < move.count for move in moves):
                return False
            given = {id(move.transfer): move for move in moves}
            for transfer in operation.transfers:
                if transfer.channel is not None:
                    signals = operation.name in ("pws", "pwsf")
                    self._ask(transfer.channel, _ProxyTask(given.get(id(transfer)), signals))
                if operation.name == "pwsf" and transfer.channel is not None:
                    worker.flushes += 1
                    self._ask(transfer.channel, _ProxyTask(flushed=worker))
            worker.taken = 1
        return not worker.flushes

    def _stuck(self, worker: _ThreadblockState) -> Violation:
        operation = worker.turns[worker.position].operation
        if operation.name == "barrier":
            what = f"waits at barrier {operation.barrier}"
        elif operation.name == "sem_acquire":
            what = f"waits for semaphore {operation.semaphores[worker.taken]}"
        elif operation.transfers:
            what = "waits for packets that do not come"
        else:
            channel = operation.channels[worker.taken]
            what = f"waits for a signal of gpu {channel.peer} on {channel.type} channel {channel.number} between them"
        return Violation(worker.where, "deadlock", what)


def _left_over(channel: Channel) -> Violation:
    what = f"gpu {channel.peer} signals more on {channel.type} channel {channel.number} between them than it waits for"
    return Violation(f"gpu {channel.rank}", "left-over", what)
