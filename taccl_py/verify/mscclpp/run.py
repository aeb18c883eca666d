"""Execute a plan: who waits for whom, what is certain to have happened before what, and what cells hold.

Every threadblock has a clock: how far each threadblock certainly is, how many of each proxy channel's requests are certainly
complete, and which ranks have certainly begun the call. A signal carries the clock of its threadblock to the one that waits for
it; a relaxed one carries no memory, only that the call has begun. The n-th wait on a channel is for the n-th signal. What a proxy
puts is complete when it is flushed, or when the receiver has waited for its signal: requests of one channel keep their order.

Two accesses to one cell, of which one writes, must be ordered: by a signal or a semaphore between threadblocks, by a meeting of
the threads (``nop``, ``barrier``) inside one. Then every execution gives the same result, so one is enough.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taccl_py.collective import Address, Buffer
from taccl_py.verify.msccl.findings import Findings, place
from taccl_py.verify.msccl.semantics import Contents
from taccl_py.verify.mscclpp.grammar import PORT, Gpu, Operand, Operation, Plan, PlanThreadblock
from taccl_py.verify.mscclpp.network import ChannelNetwork, ThreadblockSeat
from taccl_py.verify.mscclpp.rules import owners_of

_Clock = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Access:
    """An operation that has touched a cell.

    Attributes
    ----------
    seat, step
        Who, and which of its operations.
    column, count
        It is certainly over in a clock whose `column` is at least `count`.
    proxied
        Whether a proxy does it, after the operation itself.
    """

    seat: ThreadblockSeat
    step: int
    column: int
    count: int
    proxied: bool


@dataclass(slots=True)
class _ExecutedThreadblock:
    """State of a threadblock that is executed."""

    seat: ThreadblockSeat
    gpu: Gpu
    block: PlanThreadblock
    clock: _Clock
    step: int = 0
    met: int = -1  # last operation at which all threads met
    heard: int = -1  # last operation that waited
    touched: int = -1  # last operation of all threads that touched memory
    taken: int = 0  # channels or semaphores of the present operation that are done with


@dataclass(slots=True)
class _Cell:
    """Who has touched a cell last."""

    written: Access | None = None
    read: list[Access] = field(default_factory=list)


class PlanExecution:
    """One execution.

    Parameters
    ----------
    plan
        A plan without structural mistakes.
    network
        Its connections.
    contents
        Cells of all ranks.
    findings
        What to reject.
    """

    def __init__(self, plan: Plan, network: ChannelNetwork, contents: Contents, findings: Findings) -> None:
        self._plan = plan
        self._network = network
        self._contents = contents
        self._findings = findings
        self._signals: dict[tuple[ThreadblockSeat, int, str], deque[_Clock]] = {}
        self._releases: dict[tuple[int, int], deque[_Clock]] = {}
        self._released: dict[tuple[int, int], _Clock] = {}
        self._acquired: dict[tuple[int, int], int] = {}
        self._arrived: dict[tuple[int, int], list[_ExecutedThreadblock]] = {}
        self._passed: dict[ThreadblockSeat, _Clock] = {}
        self._requests: dict[int, int] = {}
        self._asked: dict[int, int] = {}  # operation that made the last request
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._far: dict[tuple[int, int, str], list[Access]] = {}  # by column, rank and what it does there
        self._proxied: list[tuple[int, Access]] = []
        self._workers = [self._worker(gpu, block) for gpu in plan.gpus for block in gpu.blocks]

    def _worker(self, gpu: Gpu, block: PlanThreadblock) -> _ExecutedThreadblock:
        clock = np.zeros(self._network.width, dtype=np.int32)
        clock[self._network.begun_column(gpu.id)] = 1
        return _ExecutedThreadblock(ThreadblockSeat(gpu.id, block.id), gpu, block, clock)

    def execute(self) -> bool:
        """Run until nothing moves; whether all has ended."""
        for gpu in self._plan.gpus:
            for number, value in enumerate(gpu.semaphores):
                blank = np.zeros(self._network.width, dtype=np.int32)
                self._releases[gpu.id, number] = deque([blank] * value)
        active = list(self._workers)
        while active:
            moved = False
            for worker in active:
                while worker.step < len(worker.block.operations) and self._advance(worker):
                    moved = True
            active = [worker for worker in active if worker.step < len(worker.block.operations)]
            if active and not moved:
                self._explain(active)
                return False
        self._check_ends()
        return True

    def _advance(self, worker: _ExecutedThreadblock) -> bool:
        """Do one operation, or as much of it as can be done; whether anything was."""
        operation = worker.block.operations[worker.step]
        before = worker.taken
        if not self._do(worker, operation):
            return worker.taken > before
        worker.taken = 0
        worker.step += 1
        worker.clock[self._network.column(worker.seat)] = worker.step
        return True

    def _do(self, worker: _ExecutedThreadblock, operation: Operation) -> bool:
        match operation.name:
            case "nop":
                worker.met = worker.step
            case "barrier":
                return self._meet_others(worker, operation)
            case "signal" | "rlxsignal":
                self._signal(worker, operation)
            case "wait" | "rlxwait":
                return self._wait(worker, operation)
            case "flush":
                self._flush(worker, operation)
            case "sem_release":
                self._release(worker, operation)
            case "sem_acquire":
                return self._acquire(worker, operation)
            case _:
                self._move(worker, operation)
        return True

    # Order

    def _told(self, worker: _ExecutedThreadblock) -> _Clock:
        """Clock of a threadblock that has done the present operation."""
        clock = worker.clock.copy()
        clock[self._network.column(worker.seat)] = worker.step + 1
        return clock

    def _require_met(self, worker: _ExecutedThreadblock, name: str) -> None:
        last = max(worker.touched, worker.heard)
        if last > worker.met:
            what = f"the threads have not met since operation {last}, so {name} may come before what it tells of"
            self._object(worker, "missing-nop", f"{what}; put a nop before it")

    def _signal(self, worker: _ExecutedThreadblock, operation: Operation) -> None:
        relaxed = operation.name == "rlxsignal"
        if not relaxed:
            self._require_met(worker, operation.name)
        for place_in_list, channel in enumerate(operation.channels):
            if not relaxed and operation.channel_type == PORT:
                self._require_asked(worker, operation.name, place_in_list, channel)
            self._send(worker, operation.channel_type, channel, relaxed=relaxed)

    def _send(self, worker: _ExecutedThreadblock, kind: str, channel: int, *, relaxed: bool) -> None:
        clock = self._told(worker)
        if relaxed:
            clock = self._network.only_begun(clock)
        elif kind == PORT:
            column = self._network.request_column(worker.seat, channel)
            clock[column] = self._requests.get(column, 0)
        end = self._network.other_end(worker.seat, kind, channel)
        self._signals.setdefault((end.seat, end.channel, kind), deque()).append(clock)

    def _wait(self, worker: _ExecutedThreadblock, operation: Operation) -> bool:
        for channel in operation.channels[worker.taken :]:
            queue = self._signals.get((worker.seat, channel, operation.channel_type))
            if not queue:
                return False
            clock = queue.popleft()
            worker.taken += 1
            if operation.name == "rlxwait":
                clock = self._network.only_begun(clock)
            np.maximum(worker.clock, clock, out=worker.clock)
        worker.heard = worker.step
        return True

    def _flush(self, worker: _ExecutedThreadblock, operation: Operation) -> None:
        """Wait for proxies."""
        for place_in_list, channel in enumerate(operation.channels):
            self._require_asked(worker, operation.name, place_in_list, channel)
            column = self._network.request_column(worker.seat, channel)
            worker.clock[column] = self._requests.get(column, 0)
        worker.heard = worker.step

    def _require_asked(self, worker: _ExecutedThreadblock, name: str, place_in_list: int, channel: int) -> None:
        """Report what a thread asks of a proxy too soon: the first one asks it to put, the n-th one what is for the n-th channel."""
        column = self._network.request_column(worker.seat, channel)
        if place_in_list and self._asked.get(column, -1) > worker.met:
            what = f"another thread does the {name} than the put, and they have not met since, so it may come before the put"
            self._object(worker, "missing-nop", f"{what}; put a nop before it")

    def _release(self, worker: _ExecutedThreadblock, operation: Operation) -> None:
        self._require_met(worker, operation.name)
        for semaphore in operation.semaphores:
            key = worker.gpu.id, semaphore
            clock = self._told(worker)
            self._releases[key].append(clock)
            known = self._released.setdefault(key, np.zeros_like(clock))
            np.maximum(known, clock, out=known)

    def _acquire(self, worker: _ExecutedThreadblock, operation: Operation) -> bool:
        for semaphore in operation.semaphores[worker.taken :]:
            key = worker.gpu.id, semaphore
            if not self._releases[key]:
                return False
            clock = self._releases[key].popleft()
            worker.taken += 1
            self._acquired[key] = self._acquired.get(key, 0) + 1
            users = self._network.users(worker.gpu.id, semaphore)
            if users.acquirers == 1 and users.releasers <= 1:
                np.maximum(worker.clock, clock, out=worker.clock)
            elif users.acquirers == 1 and self._acquired[key] == users.num_releases + worker.gpu.semaphores[semaphore]:
                # Who has taken all there are has heard from everybody.
                np.maximum(worker.clock, self._released[key], out=worker.clock)
        worker.heard = worker.step
        return True

    def _meet_others(self, worker: _ExecutedThreadblock, operation: Operation) -> bool:
        if worker.seat in self._passed:
            np.maximum(worker.clock, self._passed.pop(worker.seat), out=worker.clock)
            worker.met = worker.heard = worker.step
            return True
        group = self._arrived.setdefault((worker.gpu.id, operation.barrier or 0), [])
        if worker not in group:
            group.append(worker)
            worker.taken = 1
        if len(group) < operation.barrier_blocks:
            return False
        clock = np.maximum.reduce([self._told(one) for one in group])
        self._passed.update({one.seat: clock for one in group})
        group.clear()
        return self._meet_others(worker, operation)

    # Memory

    def _move(self, worker: _ExecutedThreadblock, operation: Operation) -> None:
        if worker.heard > worker.met:
            what = f"the threads have not met since operation {worker.heard}, so {operation.name} may come before what it waits for"
            self._object(worker, "missing-nop", f"{what}; put a nop before it")
        proxied = operation.channel_type == PORT
        access = self._access(worker, operation, proxied=proxied)
        where = place(worker.gpu.id, worker.block.id, worker.step)
        values: list[int] | None = None
        (target,) = operation.targets
        sources = [each for one in operation.sources for each in self._places(worker, operation, one)]
        targets = self._places(worker, operation, target)
        self._check_overlap(worker, sources, targets, target.size)
        for gpu, address in sources:
            self._touch(worker, gpu, address, target.size, access, writes=False)
            found = self._contents.read(gpu.id, address, target.size, where)
            values = found if values is None else self._contents.add(values, found, where)
        for gpu, address in targets:
            self._touch(worker, gpu, address, target.size, access, writes=True)
            start = self._start(gpu, address)
            self._contents.cells[gpu.id][start : start + target.size] = values or []
        for verb, owners in (("reads from", sources), ("writes into", targets)):
            for rank in sorted({gpu.id for gpu, _ in owners if gpu.id != worker.gpu.id}):
                self._check_begun(worker, verb, rank)
                self._far.setdefault((access.column, rank, verb), []).append(access)
        if proxied:
            self._proxied.append((worker.gpu.id, access))
            self._finish_request(worker, operation, access)
        else:
            worker.touched = worker.step

    def _access(self, worker: _ExecutedThreadblock, operation: Operation, *, proxied: bool) -> Access:
        if not proxied:
            return Access(worker.seat, worker.step, self._network.column(worker.seat), worker.step + 1, False)
        column = self._network.request_column(worker.seat, operation.channels[0])
        self._requests[column] = self._requests.get(column, 0) + 1
        self._asked[column] = worker.step
        return Access(worker.seat, worker.step, column, self._requests[column], True)

    def _finish_request(self, worker: _ExecutedThreadblock, operation: Operation, access: Access) -> None:
        if operation.name in ("pws", "pwsf"):
            self._send(worker, PORT, operation.channels[0], relaxed=False)
        if operation.name == "pwsf":
            worker.clock[access.column] = access.count
            worker.heard = worker.step

    def _places(
        self, worker: _ExecutedThreadblock, operation: Operation, operand: Operand
    ) -> list[tuple[Gpu, Address]]:
        owners = owners_of(self._plan, worker.gpu, worker.block, operation, operand)
        return [(gpu, Address(buffer, operand.index)) for gpu, buffer in owners]

    def _start(self, gpu: Gpu, address: Address) -> int:
        """First cell of an address."""
        return self._contents.setting.regions[gpu.id].base(address.buffer) + address.offset

    def _check_overlap(
        self, worker: _ExecutedThreadblock, sources: list[tuple[Gpu, Address]], targets: list[tuple[Gpu, Address]], size: int
    ) -> None:  # fmt: skip
        """Report cells that are moved to others among them: threads read and write in any order."""
        written = {(gpu.id, self._start(gpu, address)) for gpu, address in targets}
        for gpu, address in sources:
            start = self._start(gpu, address)
            if any(rank == gpu.id and 0 < abs(start - first) < size for rank, first in written):
                what = f"its {size} cells from {address.buffer}[{address.offset}] on overlap the cells that it writes"
                self._object(worker, "overlapping-cells", f"{what}; go through others")

    def _touch(
        self, worker: _ExecutedThreadblock, gpu: Gpu, address: Address, size: int, access: Access, *, writes: bool
    ) -> None:  # fmt: skip
        start = self._start(gpu, address)
        for offset in range(start, start + size):
            cell = self._cells.setdefault((gpu.id, offset), _Cell())
            before = [] if cell.written is None else [cell.written]
            for other in (*before, *cell.read) if writes else before:
                self._require_order(worker, gpu, address.buffer, other, access)
            if writes:
                cell.written, cell.read = access, []
            else:
                cell.read.append(access)

    def _require_order(
        self, worker: _ExecutedThreadblock, gpu: Gpu, buffer: Buffer, other: Access, access: Access
    ) -> None:
        if other.seat == access.seat and other.step == access.step:
            return
        same = other.seat == worker.seat and not other.proxied
        if other.step <= worker.met if same else worker.clock[other.column] >= other.count:
            return
        name = {"i": "the input", "o": "the output", "s": "scratch"}[buffer]
        if same:
            what = f"it touches cells of {name} of gpu {gpu.id} as operation {other.step} does, and the threads have not met since"
            self._object(worker, "missing-nop", f"{what}; put a nop between")
            return
        whom = place(other.seat.gpu, other.seat.block, other.step)
        what = f"it touches cells of {name} of gpu {gpu.id} that {whom} may still be using"
        self._object(worker, "race", f"{what}; wait for a signal that comes after that")

    def _check_begun(self, worker: _ExecutedThreadblock, verb: str, rank: int) -> None:
        if not worker.clock[self._network.begun_column(rank)]:
            what = f"it {verb} gpu {rank}, which may not have begun this call, so its buffers may be in use"
            self._object(worker, "before-entry", f"{what}; wait for a signal of gpu {rank} first")

    # The end

    def _check_ends(self) -> None:
        """Report what is not over when ranks leave, and to what is left for the next call."""
        leaving: dict[int, _Clock] = {gpu.id: np.zeros(self._network.width, dtype=np.int32) for gpu in self._plan.gpus}
        for worker in self._workers:
            clock = leaving[worker.gpu.id]
            np.maximum(clock, worker.clock, out=clock)
        for (column, rank, verb), accesses in sorted(self._far.items()):
            last = max(accesses, key=lambda access: access.count)
            if leaving[rank][column] < last.count:
                remedy = self._relaxed_since(last, rank) or "let that wait for a signal"
                what = f"it {verb} gpu {rank}, which can leave before that is done; {remedy}"
                rule = "unawaited-read" if verb == "reads from" else "unawaited-write"
                self._findings.violation(place(last.seat.gpu, last.seat.block, last.step), rule, what)
        for rank, access in self._proxied:
            if leaving[rank][access.column] < access.count:
                what = "the proxy may still be reading when the call ends; end with a flush, which waits for it"
                self._findings.violation(place(rank, access.seat.block, access.step), "unflushed-put", what)
        for (seat, channel, kind), queue in sorted(self._signals.items(), key=lambda item: item[0]):
            if queue:
                what = f"{len(queue)} signals on its {kind} channel {channel} are never waited for, and disturb the next call"
                self._findings.violation(place(seat.gpu, seat.block), "signal-without-wait", f"{what}; wait for them")
        for (rank, semaphore), tokens in sorted(self._releases.items()):
            if len(tokens) != self._plan.gpus[rank].semaphores[semaphore]:
                what = f"semaphore {semaphore} is left at {len(tokens)}, not at its value at the start; acquire what is released"
                self._findings.violation(place(rank), "semaphore-left-over", what)

    def _relaxed_since(self, access: Access, rank: int) -> str:
        """Remedy for a relaxed signal, or a relaxed wait, that tells a rank of an access and does not order it; or empty."""
        seat = access.seat
        block = next(one.block for one in self._workers if one.seat == seat)
        for step, operation in enumerate(block.operations):
            if step <= access.step or operation.name not in ("signal", "rlxsignal"):
                continue
            for channel in operation.channels:
                end = self._network.other_end(seat, operation.channel_type, channel)
                if end.seat.gpu != rank:
                    continue
                if operation.name == "rlxsignal":
                    return f"its last signal, step {step}, is relaxed, which says nothing of memory; make it a signal"
                waiting = next(one.block for one in self._workers if one.seat == end.seat)
                if any(one.name == "rlxwait" and end.channel in one.channels for one in waiting.operations):
                    return f"the wait of gpu {rank} for it is relaxed, which says nothing of memory; make it a wait"
        return ""

    def _explain(self, stuck: list[_ExecutedThreadblock]) -> None:
        """Report what keeps everybody waiting: waits for what nobody does first, else the cycle."""
        found = False
        waiting = {worker.seat: worker for worker in stuck}
        for worker in stuck:
            operation = worker.block.operations[worker.step]
            helpers, text = self._helpers(worker, operation)
            if not any(helper in waiting for helper in helpers):
                found = True
                rule = "wait-without-signal" if "wait" in operation.name else "never-released"
                self._object(worker, rule, f"it waits {text}, which never comes; add that or take the wait away")
        if not found:
            names = ", ".join(
                f"{place(worker.gpu.id, worker.block.id, worker.step)} waits "
                f"{self._helpers(worker, worker.block.operations[worker.step])[1]}"
                for worker in stuck[:6]
            )
            more = f" and {len(stuck) - 6} more" if len(stuck) > 6 else ""
            self._findings.violation("", "deadlock", f"everybody waits for somebody: {names}{more}; change the order")

    def _helpers(self, worker: _ExecutedThreadblock, operation: Operation) -> tuple[list[ThreadblockSeat], str]:
        """Threadblocks that could end a wait, and what for it waits."""
        if operation.name == "barrier":
            others = [block for block in worker.gpu.blocks if block.id != worker.block.id]
            users = [b for b in others if any(op.barrier == operation.barrier for op in b.operations)]
            return [ThreadblockSeat(worker.gpu.id, block.id) for block in users], f"at barrier {operation.barrier}"
        if operation.name == "sem_acquire":
            semaphore = operation.semaphores[worker.taken]
            found = self._network.releasers(worker.gpu.id, semaphore)
            return list(found), f"for semaphore {semaphore}"
        end = self._network.other_end(worker.seat, operation.channel_type, operation.channels[worker.taken])
        return [end.seat], f"for a signal of {place(end.seat.gpu, end.seat.block)}"

    def _object(self, worker: _ExecutedThreadblock, rule: str, what: str) -> None:
        self._findings.violation(place(worker.gpu.id, worker.block.id, worker.step), rule, what)
