"""Execute a plan: who waits for whom, what is certain to have happened before what, and what cells hold.

Every threadblock has a clock: how far each threadblock certainly is, how many of each proxy channel's requests are certainly
complete, and which ranks have certainly begun the call. A signal carries the clock of its threadblock to the one that waits for
it; a relaxed one of a memory channel carries no memory ("use it only for synchronizing execution", semaphore_device.hpp), only that
the call has begun and that reads are over. A port channel has no relaxed ones: the runtime takes them for the others (`handleSignal`). What a proxy puts is complete when it is flushed, or
when the receiver has waited for its signal: requests of one channel keep their order.

Two accesses to one cell, of which one writes, must be ordered: by a signal, a semaphore or a packet between threadblocks, by a
meeting of the threads (``nop``, ``barrier``) inside one. Then every execution gives the same result, so one is enough; but where
several threadblocks wait for one counter, who comes first may decide who comes at all, and the plan is executed in several orders.
"""

from __future__ import annotations

import random

import numpy as np

from taccl_py.verify.msccl.findings import Findings, place
from taccl_py.verify.msccl.semantics import Contents
from taccl_py.verify.mscclpp.grammar import MEMORY, PORT, Operation, Plan
from taccl_py.verify.mscclpp.memory import FarAccess, PlanMemory
from taccl_py.verify.mscclpp.network import ChannelNetwork, End, ThreadblockSeat
from taccl_py.verify.mscclpp.spans import Sizing, SpanReader
from taccl_py.verify.mscclpp.tally import CERTAIN, LOOSE, READ, Clock, Tally
from taccl_py.verify.mscclpp.workers import Access, ExecutedThreadblock, Origin

_SIGNALS, _WAITS = ("signal", "rlxsignal"), ("wait", "rlxwait")


class PlanExecution:
    """One execution.

    Parameters
    ----------
    plan, sizing
        A plan without structural mistakes, and the length of its chunks.
    contents
        Cells of all ranks.
    findings
        What to reject.
    order
        Draws who goes on next; None: all by turns, as far as they can.
    """

    def __init__(
        self, plan: Plan, sizing: Sizing, contents: Contents, findings: Findings, order: random.Random | None = None
    ) -> None:
        self._plan = plan
        self._findings = findings
        self._order = order
        reader = SpanReader(plan, contents.setting.regions, sizing, findings)
        steps = {
            ThreadblockSeat(gpu.id, block.id): reader.steps(gpu, block) for gpu in plan.gpus for block in gpu.blocks
        }
        self.network = ChannelNetwork(plan, steps)
        self._shared = self.network.contended()
        self._memory = PlanMemory(plan, sizing, self.network, contents, findings)
        self._signals: dict[End, Tally] = {}
        self._semaphores: dict[tuple[int, int], Tally] = {}
        self._arrived: dict[tuple[int, int], list[ExecutedThreadblock]] = {}
        self._passed: dict[ThreadblockSeat, Clock] = {}
        self._workers: dict[ThreadblockSeat, ExecutedThreadblock] = {}
        for seat, own in steps.items():
            self._memory.expect(seat, own)
            gpu, clock = plan.gpus[seat.gpu], np.zeros((3, self.network.width), dtype=np.int32)
            clock[:, self.network.begun_column(seat.gpu)] = 1
            column = self.network.column(seat)
            self._workers[seat] = ExecutedThreadblock(seat, gpu, gpu.blocks[seat.block], own, column, clock)

    def execute(self) -> bool:
        """Run until nothing moves; whether all has ended."""
        if self._findings.broken:
            return False
        active = [worker for worker in self._workers.values() if not worker.has_ended]
        while active:
            if self._order is not None:
                self._order.shuffle(active)
            moved = False
            for worker in active:
                while not worker.has_ended and self._advance(worker):
                    moved = True
                    if self._order is not None and self._order.random() < 0.3:
                        break
            active = [worker for worker in active if not worker.has_ended]
            if active and not moved:
                self._explain(sorted(active, key=lambda worker: worker.seat))
                return False
        self._check_ends()
        return True

    def _advance(self, worker: ExecutedThreadblock) -> bool:
        """Do one operation, or as much of it as can be done; whether anything was."""
        before, operation = worker.taken, worker.step.operation
        if not self._do(worker, operation):
            return worker.taken > before
        worker.taken = 0
        worker.position += 1
        worker.clock[LOOSE, worker.column] = worker.position
        if self._shared and operation.name in ("nop", "barrier"):
            self._conclude(worker)
        return True

    def _conclude(self, worker: ExecutedThreadblock) -> None:
        """Let a threadblock know what waits of several threadblocks prove together."""
        for tally in (*self._signals.values(), *self._semaphores.values()):
            clock, relaxed = tally.proof_of_all(worker.clock) if len(tally.takes) > 1 else (None, False)
            if clock is not None:
                known = self.network.without_memory(clock) if relaxed else clock
                np.maximum(worker.clock, known, out=worker.clock)

    def _do(self, worker: ExecutedThreadblock, operation: Operation) -> bool:
        match operation.name:
            case "nop":
                worker.meet()
            case "barrier":
                return self._meet_others(worker, operation)
            case "signal" | "rlxsignal":
                for thread in range(len(worker.step.channels)):
                    self._send(worker, thread, relaxed=operation.name == "rlxsignal")
            case "wait" | "rlxwait":
                return self._wait(worker, operation)
            case "flush":
                for thread in range(min(len(operation.targets), len(worker.step.channels))):
                    worker.hear(thread, self._completed(worker, thread, worker.known_to(thread)))
            case "sem_release":
                self._release(worker, operation)
            case "sem_acquire":
                return self._acquire(worker, operation)
            case _:
                return self._move(worker, operation)
        return True

    # Order

    def _completed(self, worker: ExecutedThreadblock, thread: int, clock: Clock) -> Clock:
        """Add what is complete when the proxy has come to what a thread asks of a channel now: all that was asked before."""
        channel = worker.step.channels[thread]
        clock = clock.copy()
        for seat, other, column in self.network.requesters(worker.gpu.id, channel):
            asked = self._workers[seat].requests.get((channel, other), [])
            for row in (CERTAIN, LOOSE, READ):
                if seat == worker.seat and (row == LOOSE or other == thread):
                    known = len(asked)
                elif seat == worker.seat:
                    known = sum(one.position <= worker.met for one in asked)
                else:
                    known = sum(one.position < clock[row][self.network.column(seat)] for one in asked)
                clock[row][column] = max(clock[row][column], known)
        return clock

    def _send(self, worker: ExecutedThreadblock, thread: int, *, relaxed: bool) -> None:
        kind, clock = worker.step.operation.channel_type, worker.told_by(thread)
        if kind == PORT:
            clock = self._completed(worker, thread, clock)
        elif relaxed:
            clock = self.network.without_memory(clock)
        end = self.network.other_end(End(worker.gpu.id, kind, worker.step.channels[thread]))
        self._tally(end).post(worker.seat, worker.column, worker.position + 1, clock)

    def _tally(self, end: End) -> Tally:
        if end not in self._signals:
            self._signals[end] = Tally(0, self.network.posts(end), self.network.takes(end))
        return self._signals[end]

    def _wait(self, worker: ExecutedThreadblock, operation: Operation) -> bool:
        for thread in range(worker.taken, len(worker.step.channels)):
            end = End(worker.gpu.id, operation.channel_type, worker.step.channels[thread])
            tally = self._tally(end)
            if tally.left <= 0:
                return False
            relaxed = operation.name == "rlxwait" and operation.channel_type == MEMORY
            known = worker.known_to(thread)
            clock = tally.take(worker.seat, worker.column, worker.position + 1, known, relaxed=relaxed)
            clock = np.zeros_like(worker.clock) if clock is None else clock.copy()
            clock[:, self.network.begun_column(self.network.other_end(end).gpu)] = 1
            if relaxed:
                clock = self.network.without_memory(clock)
            worker.hear(thread, clock)
            worker.taken += 1
        return True

    def _semaphore(self, gpu: int, number: int) -> Tally:
        key = gpu, number
        if key not in self._semaphores:
            initial = self._plan.gpus[gpu].semaphores[number]
            self._semaphores[key] = Tally(initial, self.network.releases(*key), self.network.acquires(*key))
        return self._semaphores[key]

    def _release(self, worker: ExecutedThreadblock, operation: Operation) -> None:
        for thread, number in enumerate(operation.semaphores):
            clock = worker.told_by(thread)
            self._semaphore(worker.gpu.id, number).post(worker.seat, worker.column, worker.position + 1, clock)

    def _acquire(self, worker: ExecutedThreadblock, operation: Operation) -> bool:
        for thread, number in enumerate(operation.semaphores[worker.taken :], worker.taken):
            tally = self._semaphore(worker.gpu.id, number)
            if not tally.may_pass(worker.seat):
                return False
            clock = tally.take(worker.seat, worker.column, worker.position + 1, worker.known_to(thread))
            if clock is not None:
                worker.hear(thread, clock)
            worker.taken += 1
        return True

    def _meet_others(self, worker: ExecutedThreadblock, operation: Operation) -> bool:
        if worker.seat in self._passed:
            worker.meet()
            np.maximum(worker.clock, self._passed.pop(worker.seat), out=worker.clock)
            return True
        group = self._arrived.setdefault((worker.gpu.id, operation.barrier or 0), [])
        if worker not in group:
            worker.meet()
            group.append(worker)
            worker.taken = 1
        if len(group) < operation.barrier_blocks:
            return False
        clock = np.maximum.reduce([one.told_by(-2) for one in group])
        origins = set().union(*(one.origins for one in group))
        for one in group:
            one.origins |= origins
            self._passed[one.seat] = clock
        group.clear()
        return self._meet_others(worker, operation)

    def _move(self, worker: ExecutedThreadblock, operation: Operation) -> bool:
        if not self._memory.is_ready(worker):
            return False
        self._memory.carry_out(worker)
        if operation.name == "rppkt" and operation.channel_type == PORT:
            worker.meet()  # `handleReadPutPackets` lets threads meet when they have read
        if operation.name in ("pws", "pwsf"):
            for thread in range(len(operation.targets)):
                self._send(worker, thread, relaxed=False)
        if operation.name == "pwsf":
            for thread in range(len(operation.targets)):
                worker.hear(thread, self._completed(worker, thread, worker.known_to(thread)))
        return True

    # The end

    def _check_ends(self) -> None:
        """Report what is not over when ranks leave, and what is left for the next call."""
        leaving = {gpu.id: np.zeros((3, self.network.width), dtype=np.int32) for gpu in self._plan.gpus}
        origins: dict[int, set[Origin]] = {gpu.id: set() for gpu in self._plan.gpus}
        for worker in self._workers.values():
            clock = leaving[worker.gpu.id]
            np.maximum(clock, worker.final(), out=clock)
            origins[worker.gpu.id] |= worker.origins | worker.fresh
        for far, accesses in self._memory.far.items():
            self._check_far(far, accesses, leaving[far.rank])
        self._check_proxied(leaving, origins)
        self._check_early(leaving, origins)
        for end, tally in sorted(self._signals.items()):
            if tally.left and tally.takes:
                what = f"{tally.left} signals on its {end.kind} channel {end.channel} are never waited for, and disturb the next call"
                where = place(end.gpu, min(tally.takes).block)
                self._findings.violation(where, "signal-without-wait", f"{what}; wait for them")
        for (rank, number), tally in sorted(self._semaphores.items()):
            if tally.left != tally.initial:
                what = f"semaphore {number} is left at {tally.left}, not at its value at the start; acquire what is released"
                self._findings.violation(place(rank), "semaphore-left-over", what)

    def _check_far(self, far: FarAccess, accesses: list[Access], leaving: Clock) -> None:
        last = max(accesses, key=lambda access: access.count)
        if leaving[READ if far.verb == "reads from" else CERTAIN][far.column] >= last.count:
            return
        what = f"it {far.verb} gpu {far.rank}, which can leave before that is done"
        if leaving[LOOSE][far.column] >= last.count:
            what = f"{what}, as threads have not met between that and what tells of it"
            self._findings.violation(last.where, "missing-nop", f"{what}; put a nop between")
            return
        remedy = self._relaxed_since(last, far.rank) or "let that wait for a signal"
        rule = "unawaited-read" if far.verb == "reads from" else "unawaited-write"
        self._findings.violation(last.where, rule, f"{what}; {remedy}")

    def _check_proxied(self, leaving: dict[int, Clock], origins: dict[int, set[Origin]]) -> None:
        """Report what proxies may still be reading; of packets, what they may still be reading when their scratch is used again."""
        for worker, access, packets, read in self._memory.proxied:
            rank = worker.gpu.id
            done = leaving[rank][READ][access.column] >= access.count or origins[rank].issuperset(read)
            if packets and self._plan.doubles_scratch and not done:
                targets = [span.rank for move in worker.steps[access.position].moves for span in move.targets]
                done = all(leaving[rank][CERTAIN][self.network.begun_column(one)] for one in targets)
            if not done and leaving[rank][LOOSE][access.column] >= access.count:
                what = "the proxy may still be reading when the call ends, as threads have not met between the put and its flush"
                self._findings.violation(access.where, "missing-nop", f"{what}; put a nop between")
            elif not done:
                what = "the proxy may still be reading when the call ends; end with a flush, which waits for it"
                self._findings.violation(access.where, "unflushed-put", what)

    def _check_early(self, leaving: dict[int, Clock], origins: dict[int, set[Origin]]) -> None:
        """Report packets of the next call that may come while those of this one are still read.

        Who leaves must know that they have been read, or that the rank has begun this call and so left the one before, in which
        the other half of a doubled scratch was used.
        """
        for (writer, rank, cell), where in self._memory.early.items():
            begun = leaving[writer][CERTAIN][self.network.begun_column(rank)]
            if self._plan.doubles_scratch and begun:
                continue
            for reader in self._memory.packet_readers(rank, cell):
                known = leaving[writer][READ][reader.column] >= reader.count
                if not known and (reader.number, rank, cell) not in origins[writer]:
                    what = f"its packets of the next call may reach gpu {rank} while that still reads those of this one"
                    advice = "use_double_scratch_buffer, or wait for something of that rank first"
                    self._findings.violation(where, "before-entry", f"{what}; {advice}")
                    break

    def _relaxed_since(self, access: Access, rank: int) -> str:
        """Remedy for a relaxed signal, or a relaxed wait, that tells a rank of an access and does not order it; or empty."""
        own = self._workers[access.seat]
        for step in own.steps[access.position + 1 :]:
            operation = step.operation
            if operation.name not in _SIGNALS or operation.channel_type != MEMORY:
                continue
            for channel in step.channels:
                end = self.network.other_end(End(access.seat.gpu, MEMORY, channel))
                if end.gpu != rank:
                    continue
                if operation.name == "rlxsignal":
                    number = step.where.rpartition(" ")[2]
                    return f"its last signal, step {number}, is relaxed, which says nothing of memory; make it a signal"
                if self._has_relaxed_wait(end):
                    return f"the wait of gpu {rank} for it is relaxed, which says nothing of memory; make it a wait"
        return ""

    def _has_relaxed_wait(self, end: End) -> bool:
        return any(
            step.operation.name == "rlxwait" and end.channel in step.channels
            for seat in self.network.takes(end)
            for step in self._workers[seat].steps
        )

    def _explain(self, stuck: list[ExecutedThreadblock]) -> None:
        """Report what keeps everybody waiting: waits for what nobody does first, else the cycle."""
        found = False
        waiting = {worker.seat for worker in stuck}
        for worker in stuck:
            helpers, text = self._helpers(worker)
            if not any(helper in waiting for helper in helpers):
                found = True
                rule = "wait-without-signal" if worker.step.operation.name in _WAITS else "never-released"
                what = f"it waits {text}, which never comes; add that or take the wait away"
                self._findings.violation(worker.step.where, rule, what)
        if not found:
            names = ", ".join(f"{worker.step.where} waits {self._helpers(worker)[1]}" for worker in stuck[:6])
            more = f" and {len(stuck) - 6} more" if len(stuck) > 6 else ""
            self._findings.violation("", "deadlock", f"everybody waits for somebody: {names}{more}; change the order")

    def _helpers(self, worker: ExecutedThreadblock) -> tuple[list[ThreadblockSeat], str]:
        """Threadblocks that could end a wait, and what for it waits."""
        step, gpu = worker.step, worker.gpu
        operation = step.operation
        if operation.name == "barrier":
            others = [block for block in gpu.blocks if block.id != worker.block.id]
            users = [b for b in others if any(op.barrier == operation.barrier for _, op in b.all_operations)]
            return [ThreadblockSeat(gpu.id, block.id) for block in users], f"at barrier {operation.barrier}"
        if operation.name == "sem_acquire":
            semaphore = operation.semaphores[worker.taken]
            return list(self.network.releases(gpu.id, semaphore)), f"for semaphore {semaphore}"
        if operation.name not in _WAITS:
            rank, cell = worker.missing or (gpu.id, 0)
            span = next(s for m in step.moves for s in m.sources if s.packets and s.rank == rank)
            name = self._memory.name(rank, span.buffer, cell, packets=True)
            return self._memory.writers(rank, cell), f"for a packet in {name} of gpu {rank}"
        end = End(gpu.id, operation.channel_type, step.channels[worker.taken])
        posts = self.network.posts(end)
        other = self.network.other_end(end).gpu
        users = [b for b in self._plan.gpus[other].blocks if self._uses(other, b.id, self.network.other_end(end))]
        shown = min(posts) if posts else ThreadblockSeat(other, users[0].id if users else -1)
        return list(posts), f"for a signal of {place(other, None if shown.block < 0 else shown.block)}"

    def _uses(self, gpu: int, block: int, end: End) -> bool:
        return end.channel in self._plan.gpus[gpu].blocks[block].channels.get(end.kind, ())
