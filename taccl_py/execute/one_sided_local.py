"""Execution plans on real data, all ranks in one process.

Threadblocks and proxies take turns. A proxy carries out what it is given in order and whenever it likes, so that what nobody
waits for happens late; with a drawn order of turns, so do threadblocks.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.compare import compare_rank, total
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.one_sided import Channel, OneSidedBlock, OneSidedOperation, OneSidedPlan, Place
from taccl_py.execute.plan import ExecutablePlan, Operator, SizeCut
from taccl_py.execute.promise import ExpectedOutputs, make_task
from taccl_py.execute.runs import Call, CallOutcome, Conditions, Measured, fill, make_outcome, require_memory, run_local
from taccl_py.execute.trouble import Trouble

_ALL = slice(None)


def run_any(plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
    """Make a call of a plan of either kind with all ranks in this process; see `run_one_sided` and `taccl_py.execute.runs.run_local`."""
    if isinstance(plan, OneSidedPlan):
        return run_one_sided(plan, call, conditions)
    return run_local(plan, call, conditions)


def run_one_sided(plan: OneSidedPlan, call: Call, conditions: Conditions) -> CallOutcome:
    """Make a call with all ranks in this process.

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
    task = make_task(plan, cut.chunk_elements, call.data_type, call.operator, conditions.seed)
    cells = NumpyCells(call.data_type)
    memories = [RankMemory(plan, cut, cells, rank, in_place=call.in_place) for rank in range(plan.num_ranks)]
    promises = ExpectedOutputs(task)
    order = random.Random(conditions.seed) if conditions.shuffled else None
    seconds, found = 0.0, []
    for _ in range(conditions.repeats):
        for rank, memory in enumerate(memories):
            fill(plan, task, memory, rank)
        start = time.perf_counter()
        _OneSidedState(plan, memories, cells, order).run()
        seconds += time.perf_counter() - start
        found += [compare_rank(plan, promises, one, r, in_place=call.in_place) for r, one in enumerate(memories)]
    return make_outcome(plan, call, cut, Measured(1e6 * seconds / conditions.repeats, total(found)))


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


@dataclass(slots=True, eq=False)
class _ThreadblockState:
    """A threadblock: its next operation, and how much of that is done; requests that its proxies have not carried out."""

    block: OneSidedBlock
    position: int = 0
    taken: int = 0
    requests: deque[OneSidedOperation] = field(default_factory=deque)

    @property
    def has_ended(self) -> bool:
        return self.position == len(self.block.operations) and not self.requests

    @property
    def where(self) -> str:
        return f"gpu {self.block.rank} tb {self.block.number} step {self.position}"


class _OneSidedState:
    """Memories, signals and semaphores of all ranks."""

    def __init__(
        self, plan: OneSidedPlan, memories: list[RankMemory], cells: NumpyCells, order: random.Random | None
    ) -> None:  # fmt: skip
        self._plan = plan
        self._memories = memories
        self._cells = cells
        self._order = order
        self._signals: dict[Channel, int] = {}
        self._semaphores = {
            (rank, number): value for rank, values in enumerate(plan.semaphores) for number, value in enumerate(values)
        }
        self._met: dict[tuple[int, int], list[_ThreadblockState]] = {}
        self._workers = [_ThreadblockState(block) for block in plan.blocks]

    def run(self) -> None:
        """Run until all threadblocks and proxies have ended.

        Raises
        ------
        InvalidArtifact
            If they come to a stop, or do what cannot be done.
        """
        active = self._workers
        try:
            while active:
                if not self._take_turns(active):
                    raise InvalidArtifact(self._plan.name, [self._stuck(worker) for worker in active])
                active = [worker for worker in active if not worker.has_ended]
        except Trouble as trouble:
            raise InvalidArtifact(self._plan.name, [trouble.violation]) from None
        left = sorted(channel for channel, count in self._signals.items() if count)
        if left:
            raise InvalidArtifact(self._plan.name, [_left_over(channel) for channel in left])

    def _take_turns(self, active: list[_ThreadblockState]) -> bool:
        """True if any threadblock advanced; some of them are tried in any order, or if they cannot, all."""
        if self._order is not None:
            some = self._order.sample(active, self._order.randint(1, len(active)))
            if any([self._turn(worker, self._order.random() < 0.5) for worker in some]):
                return True
        return any([self._turn(worker, proxy) for worker in active for proxy in (False, True)])

    def _turn(self, worker: _ThreadblockState, proxy: bool) -> bool:
        """Let a threadblock, or its proxies, do one thing; whether they could."""
        if proxy:
            return self._carry_out(worker)
        if worker.position == len(worker.block.operations):
            return False
        operation = worker.block.operations[worker.position]
        before = worker.taken
        if not self._do(worker, operation):
            return worker.taken > before
        worker.taken = 0
        worker.position += 1
        return True

    def _carry_out(self, worker: _ThreadblockState) -> bool:
        if not worker.requests:
            return False
        operation = worker.requests.popleft()
        self._move(worker, operation)
        if operation.name in ("pws", "pwsf"):
            self._signal(operation.channels[0])
        return True

    def _do(self, worker: _ThreadblockState, operation: OneSidedOperation) -> bool:
        match operation.name:
            case "signal" | "rlxsignal":
                for channel in operation.channels:
                    self._signal(channel)
            case "wait" | "rlxwait":
                return self._take(worker, list(operation.channels), self._signals)
            case "sem_release":
                for number in operation.semaphores:
                    self._semaphores[worker.block.rank, number] += 1
            case "sem_acquire":
                return self._take(worker, [(worker.block.rank, one) for one in operation.semaphores], self._semaphores)
            case "barrier":
                return self._meet(worker, operation)
            case "flush":
                return not any(request.channels[0] in operation.channels for request in worker.requests)
            case "put" | "pws" | "pwsf" | "copy" | "re" | "glres" | "gstore":
                return self._start(worker, operation)
        return True

    def _signal(self, channel: Channel) -> None:
        self._signals[channel.back] = self._signals.get(channel.back, 0) + 1

    def _take(self, worker: _ThreadblockState, keys: list[Any], counts: dict[Any, int]) -> bool:
        """Take one of each; whether there were all."""
        while worker.taken < len(keys):
            key = keys[worker.taken]
            if not counts.get(key, 0):
                return False
            counts[key] -= 1
            worker.taken += 1
        return True

    def _meet(self, worker: _ThreadblockState, operation: OneSidedOperation) -> bool:
        met = self._met.setdefault((worker.block.rank, operation.barrier), [])
        if worker not in met:
            met.append(worker)
            worker.taken = 1
        if len(met) < operation.barrier_blocks:
            return False
        for other in met:
            if other is not worker:
                other.taken, other.position = 0, other.position + 1
        met.clear()
        return True

    def _start(self, worker: _ThreadblockState, operation: OneSidedOperation) -> bool:
        """Move data, or ask the proxy to; a flush waits until it has."""
        if not operation.is_proxied:
            self._move(worker, operation)
            return True
        if worker.taken == 0:
            worker.requests.append(operation)
            worker.taken = 1
        return operation.name != "pwsf" or not worker.requests

    def _move(self, worker: _ThreadblockState, operation: OneSidedOperation) -> None:
        if operation.target is None:
            return
        values = self._cells.copy(self._view(worker, operation.sources[0]))
        for source in operation.sources[1:]:
            values = self._cells.combine(Operator.SUM, values, self._view(worker, source))
        for place in (operation.target, *operation.copies):
            self._view(worker, place)[...] = values

    def _view(self, worker: _ThreadblockState, place: Place) -> Any:
        return self._memories[place.rank].cells(place.address, place.count, _ALL, worker.where)

    def _stuck(self, worker: _ThreadblockState) -> Violation:
        operation = worker.block.operations[worker.position]
        if operation.name == "barrier":
            what = f"waits at barrier {operation.barrier}"
        elif operation.name == "sem_acquire":
            what = f"waits for semaphore {operation.semaphores[worker.taken]}"
        else:
            channel = operation.channels[worker.taken]
            what = f"waits for a signal of gpu {channel.peer} on {channel.type} channel {channel.number} between them"
        return Violation(worker.where, "deadlock", what)


def _left_over(channel: Channel) -> Violation:
    what = f"gpu {channel.peer} signals more on {channel.type} channel {channel.number} between them than it waits for"
    return Violation(f"gpu {channel.rank}", "left-over", what)
