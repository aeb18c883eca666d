"""One process for each rank, under mpiexec: threadblocks progress together, connections are messages and credits.

A sender may have as many messages on a connection as the runtime has slots; the receiver gives a credit back for each message
that a threadblock has taken, as long as there are messages that wait for one. So a program that stops on GPUs stops here too. Nothing waits for ever: where nothing has moved
for the time-out, all ranks tell rank 0 what they wait for, and a rank that does not answer is named.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from taccl_py.errors import InputError, InvalidArtifact, PackageMissing, TacclError, Violation
from taccl_py.execute.arithmetic import Array, NumpyCells, storage_type
from taccl_py.execute.compare import ResultCheck, total
from taccl_py.execute.data import CallData
from taccl_py.execute.demand import RunnableDemand
from taccl_py.execute.demand_processes import DemandMail, MpiMail
from taccl_py.execute.engine import ExecutedBlock, MessageQueue, ThreadblockEngine, Transport, count_messages
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.plan import DataType, ExecutablePlan, SizeCut
from taccl_py.execute.runs import Call, CallOutcome, Conditions, Measured, make_call
from taccl_py.execute.trouble import BlockedThreadblock, Trouble, explain_deadlock, explain_left_over, lost_rank

T = TypeVar("T")

# Polls without anything new after which a process lets others have the processor, if they want it, and after which it sleeps.
_PATIENCE, _LONG_PATIENCE, _NAP_SECONDS = 50, 5000, 2e-5
_POLLS_PER_CONTROL = 64
# How long the rank that speaks leaves to its launcher, which drops what it has not yet passed on when a process aborts, and
# how long the others leave to that rank.
_PASS_ON_SECONDS, _LAST_WORDS_SECONDS = 1.0, 10.0
_LEAST_LENT_BYTES = 16384  # smaller messages are copied sooner than one has looked after them
_CAN_YIELD = hasattr(os, "sched_yield")
_NOTHING = np.empty(0, dtype=np.uint8)
_STOP_TAG, _REPORT_TAG, _VERDICT_TAG = 1, 2, 3
# Longest that rank 0 waits for reports once somebody has stopped, as a part of the time-out, and at least.
_GRACE, _LEAST_GRACE_SECONDS = 0.5, 2.0


def load_mpi() -> Any:
    """Return mpi4py's module.

    Raises
    ------
    PackageMissing
        If mpi4py, or an MPI that it can load, is not installed.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PackageMissing(
            f"--with mpi needs mpi4py and an MPI library ({reason})", "install them with: pip install '.[mpi]'"
        ) from None
    return MPI


@dataclass(frozen=True, slots=True)
class _RankReport:
    """Report of one rank on one run."""

    rank: int
    seconds: float
    comparison: ResultCheck | None
    waits: tuple[BlockedThreadblock, ...]
    violations: tuple[Violation, ...]
    pushed: dict[MessageQueue, int]
    popped: dict[MessageQueue, int]

    @property
    def good(self) -> bool:
        """True if the rank's program came to its end."""
        return not self.waits and not self.violations


@dataclass(frozen=True, slots=True)
class _Credit:
    """Slots of every connection, and how many credits its sender waits for: one for each message that finds no slot free."""

    slots: int
    awaited: Counter[MessageQueue]


def _plan_credit(plan: ExecutablePlan, cut: SizeCut, slots: int) -> _Credit:
    return _Credit(
        slots, Counter({one: count - slots for one, count in count_messages(plan, cut).items() if count > slots})
    )


class _Messages(Transport):
    """Connections from and to this process."""

    def __init__(self, mpi: Any, comm: Any, credit: _Credit, data_type: DataType) -> None:
        self._mpi = mpi
        self._comm = comm
        self._credit = credit
        self._stored = storage_type(data_type)
        self._rank = int(comm.rank)
        self._open: Counter[MessageQueue] = Counter()
        self._arrived: dict[MessageQueue, deque[Array | None]] = {}
        self._pending: list[tuple[Any, Any]] = []
        self._lent: list[tuple[Any, Array]] = []
        self._wanted: dict[MessageQueue, Array] = {}
        self.pushed: Counter[MessageQueue] = Counter()
        self.popped: Counter[MessageQueue] = Counter()

    def has_room(self, connection: MessageQueue) -> bool:
        """True if a slot is free, as far as credits have come."""
        return self._open[connection] < self._credit.slots

    def push(self, connection: MessageQueue, message: Array) -> None:
        """Send a message."""
        self._push(connection, message, self._pending)

    def has_message(self, connection: MessageQueue) -> bool:
        """True if a message has come."""
        return bool(self._arrived.get(connection))

    def pop(self, connection: MessageQueue) -> Array | None:
        """Take the oldest message and give its slot back."""
        if self.popped[connection] < self._credit.awaited[connection]:
            self._send(_NOTHING, connection.src, _data_tag(connection.channel) + 1, self._pending)
        self.popped[connection] += 1
        return self._arrived[connection].popleft()

    @property
    def lends(self) -> bool:
        """True if messages lie in cells and have not left yet."""
        return bool(self._lent)

    def lend(self, connection: MessageQueue, cells: Array) -> bool:
        """Send cells without a copy, if they are in one piece and many enough for that to be faster."""
        if cells.nbytes < _LEAST_LENT_BYTES or not cells.flags.c_contiguous:
            return False
        self._push(connection, cells, self._lent)
        return True

    def are_lent(self, cells: Array) -> bool:
        """True if a message that has not left yet lies in any of these cells."""
        return any(np.may_share_memory(cells, lent) for _, lent in self._lent)

    def want(self, connection: MessageQueue, cells: Array) -> None:
        """Let the next message come into these cells."""
        if cells.nbytes >= _LEAST_LENT_BYTES and cells.flags.c_contiguous:
            self._wanted[connection] = cells

    def poll(self) -> bool:
        """Take in everything that has come; whether that was anything."""
        found = False
        status = self._mpi.Status()
        while True:
            message = self._comm.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)
            if message is None:
                break
            found = True
            self._take(message, status)
        if self._pending:
            self._pending = [one for one in self._pending if not one[0].Test()]
        if self._lent:
            before = len(self._lent)
            self._lent = [one for one in self._lent if not one[0].Test()]
            found = found or len(self._lent) < before
        return found

    @property
    def quiet(self) -> bool:
        """True if all has been sent."""
        return not self._pending and not self._lent

    def _take(self, message: Any, status: Any) -> None:
        size_bytes, source = status.Get_count(self._mpi.BYTE), status.Get_source()
        channel, is_credit = divmod(status.Get_tag(), 2)
        if is_credit:
            message.Recv([_NOTHING, self._mpi.BYTE])
            self._open[MessageQueue(self._rank, source, channel - 1)] -= 1
            return
        connection = MessageQueue(source, self._rank, channel - 1)
        queue = self._arrived.setdefault(connection, deque())
        wanted = self._wanted.pop(connection, None)
        if wanted is not None and not queue and wanted.nbytes == size_bytes:
            message.Recv([wanted.reshape(-1).view(np.uint8), self._mpi.BYTE])
            queue.append(None)
            return
        data = np.empty(size_bytes, dtype=np.uint8)
        message.Recv([data, self._mpi.BYTE])
        queue.append(data.view(self._stored))

    def _push(self, connection: MessageQueue, message: Array, where: list[tuple[Any, Array]]) -> None:
        self._open[connection] += 1
        self.pushed[connection] += 1
        self._send(message, connection.dst, _data_tag(connection.channel), where)

    def _send(self, data: Array, peer: int, tag: int, where: list[tuple[Any, Array]]) -> None:
        request = self._comm.Isend([data.reshape(-1).view(np.uint8), self._mpi.BYTE], dest=peer, tag=tag)
        if not request.Test():
            where.append((request, data))


def _data_tag(channel: int) -> int:
    """Tag of a channel's messages; its credits have the next one."""
    return 2 * (channel + 1)


class MpiSession:
    """One process among the ranks.

    Attributes
    ----------
    rank, num_ranks
        Which one it is, of how many.
    speaks
        Whether it is for this one to tell the user: rank 0, or rank 1 when rank 0 does not answer.

    Raises
    ------
    PackageMissing
        If there is no MPI.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._mpi = load_mpi()
        self._data = self._mpi.COMM_WORLD.Dup()
        self._control = self._mpi.COMM_WORLD.Dup()
        self.rank = int(self._data.rank)
        self.num_ranks = int(self._data.size)
        self.speaks = self.rank == 0
        self._requests: list[Any] = []

    def share(self, make: Callable[[], T]) -> T:
        """Return what rank 0 makes, on all ranks.

        Raises
        ------
        TacclError
            Error that it raised, on all ranks; InvalidArtifact if one of them does not come.
        """
        self._barrier("taccl run", self._timeout_seconds)
        made: tuple[T | None, TacclError | None] = (None, None)
        if self.rank == 0:
            try:
                made = (make(), None)
            except TacclError as error:
                made = (None, error)
        failed: TacclError | None = self._control.bcast(made[1])
        if failed is not None:
            raise failed
        value: T = self._control.bcast(made[0])
        return value

    def mail(self, name: str) -> DemandMail:
        """Messages of the schedule of a demand, by its name in errors."""
        return MpiMail(self._mpi, self._data, name, self._timeout_seconds)

    def require_ranks(self, plan: ExecutablePlan | RunnableDemand) -> None:
        """Refuse a program for another number of ranks than there are processes.

        Raises
        ------
        InputError
            If they differ.
        """
        if plan.num_ranks != self.num_ranks:
            raise InputError(
                f"is for {plan.num_ranks} ranks, and processes have been started for {self.num_ranks}; "
                f"write mpiexec -n {plan.num_ranks} taccl run",
                path=plan.name,
            )

    def run(self, plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
        """Make a call; every process calls this with the same arguments.

        The outcome of rank 0 counts the wrong elements of all ranks, those of the others only their own.

        Raises
        ------
        InvalidArtifact
            If the program comes to a stop or does what cannot be done, or a rank does not answer; `end_all_at_exit`
            is needed then.
        """
        return make_call(plan, call, conditions, self.measure)

    def measure(
        self, plan: ExecutablePlan, cut: SizeCut, calls: Sequence[CallData], conditions: Conditions
    ) -> Measured:
        """Make calls with these data, one after the other; every process calls this with the same arguments.

        Raises
        ------
        InvalidArtifact
            As `run` raises it.
        """
        cells = NumpyCells(calls[0].data_type)
        memory = RankMemory(plan, cut, cells, self.rank, in_place=calls[0].in_place)
        credit = _plan_credit(plan, cut, conditions.runtime.fifo_slots[plan.protocol])
        seconds, found = 0.0, []
        for data in calls:
            data.fill(memory, self.rank)
            messages = _Messages(self._mpi, self._data, credit, data.data_type)
            engine = ThreadblockEngine(plan, cut, {self.rank: memory}, messages, data.operator, cells)
            self._barrier(plan.name, conditions.timeout_seconds)
            report = self._run_once(engine, messages, conditions.timeout_seconds)
            if report.good:
                report = replace(report, comparison=data.check(memory, self.rank))
            reports = self._settle(plan.name, report, conditions.timeout_seconds)
            seconds += max(one.seconds for one in reports)
            found += [one.comparison for one in reports if one.comparison is not None]
        return Measured(1e6 * seconds / len(calls), total(found))

    def end_all_at_exit(self, exit_code: int) -> None:
        """End all processes when this one ends: after a run that did not come to its end they would wait for each other."""
        atexit.register(self._end_all, exit_code)

    def close(self) -> None:
        """MPI lets go of the others when the process ends."""

    def _end_all(self, exit_code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_PASS_ON_SECONDS if self.speaks else _LAST_WORDS_SECONDS)
        self._mpi.COMM_WORLD.Abort(exit_code)

    # One run

    def _run_once(self, engine: ThreadblockEngine, messages: _Messages, timeout_seconds: float) -> _RankReport:
        """Run until the end, the time-out, or until somebody else stops everybody."""
        start = moved = time.perf_counter()
        end: float | None = None
        active: list[ExecutedBlock] = engine.blocks
        violations: tuple[Violation, ...] = ()
        idle = polls = 0
        progress = True
        while active or not messages.quiet:
            try:
                # Where nothing has come nobody can move now; what has come may let one threadblock after the other move, and
                # all of them send what they can before the next message is taken in, which may be a long one.
                if messages.poll() or progress:
                    progress = _advance_all(engine, active)
            except Trouble as trouble:
                violations = (trouble.violation,)
                break
            polls, idle = polls + 1, 0 if progress else idle + 1
            if progress:
                moved = time.perf_counter()
                active = engine.blocks
                end = moved if end is None and not active else end
            else:
                _rest(idle)
            late = time.perf_counter() - moved > timeout_seconds
            if late or (polls % _POLLS_PER_CONTROL == 0 and self._somebody_stopped()):
                break
        seconds = (end or time.perf_counter()) - start
        waits = tuple(engine.waits(active))
        report = _RankReport(self.rank, seconds, None, waits, violations, dict(messages.pushed), dict(messages.popped))
        if not report.good or not messages.quiet:
            self._stop_everybody()
        return report

    def _somebody_stopped(self) -> bool:
        return bool(self._control.iprobe(source=self._mpi.ANY_SOURCE, tag=_STOP_TAG))

    def _stop_everybody(self) -> None:
        others = [rank for rank in range(self.num_ranks) if rank != self.rank]
        self._requests += [self._control.isend(None, dest=rank, tag=_STOP_TAG) for rank in others]

    # Before and after a run

    def _barrier(self, name: str, timeout_seconds: float) -> None:
        """Wait for all ranks.

        Raises
        ------
        InvalidArtifact
            If one of them does not come.
        """
        request = self._control.Ibarrier()
        deadline = time.perf_counter() + timeout_seconds
        idle = 0
        while not request.Test():
            if time.perf_counter() > deadline:
                self._settle(name, _RankReport(self.rank, 0.0, None, (), (), {}, {}), timeout_seconds)
                what = "not all ranks have come to the start of a run; raise --timeout if they only need longer"
                raise InvalidArtifact(name, [Violation("", "lost-rank", what)])
            idle += 1
            _rest(idle)

    def _settle(self, name: str, report: _RankReport, timeout_seconds: float) -> list[_RankReport]:
        """Reports of all ranks (on rank 0; elsewhere the own one).

        Raises
        ------
        InvalidArtifact
            On all ranks, if one of them did not come to its end.
        """
        if self.rank == 0:
            reports = self._collect(report, timeout_seconds)
            violations = _verify(reports, self.num_ranks, timeout_seconds)
            answering = [one.rank for one in reports if one.rank]
            self._requests += [self._control.isend(violations, dest=rank, tag=_VERDICT_TAG) for rank in answering]
        else:
            self._requests.append(self._control.isend(report, dest=0, tag=_REPORT_TAG))
            reports, violations = [report], self._await_verdict(timeout_seconds)
        self._requests = [request for request in self._requests if not request.Test()]
        if violations:
            raise InvalidArtifact(name, violations)
        return reports

    def _collect(self, own: _RankReport, timeout_seconds: float) -> list[_RankReport]:
        reports = {own.rank: own}
        grace = max(_LEAST_GRACE_SECONDS, _GRACE * timeout_seconds)
        patience = timeout_seconds + grace if own.good else grace
        deadline = time.perf_counter() + patience
        while len(reports) < self.num_ranks and time.perf_counter() < deadline:
            if not self._control.iprobe(source=self._mpi.ANY_SOURCE, tag=_REPORT_TAG):
                time.sleep(_NAP_SECONDS)
                continue
            report = self._control.recv(source=self._mpi.ANY_SOURCE, tag=_REPORT_TAG)
            reports[report.rank] = report
            patience = patience if report.good else min(patience, grace)
            deadline = time.perf_counter() + patience
        return [reports[rank] for rank in sorted(reports)]

    def _await_verdict(self, timeout_seconds: float) -> list[Violation]:
        """Errors that rank 0 finds in all reports; none when all came to their end."""
        deadline = time.perf_counter() + 3 * timeout_seconds + _LEAST_GRACE_SECONDS
        while not self._control.iprobe(source=0, tag=_VERDICT_TAG):
            if time.perf_counter() > deadline:
                self.speaks = self.rank == 1
                return [lost_rank(0, timeout_seconds)]
            time.sleep(_NAP_SECONDS)
        violations: list[Violation] = self._control.recv(source=0, tag=_VERDICT_TAG)
        return violations


def _advance_all(engine: ThreadblockEngine, active: list[ExecutedBlock]) -> bool:
    """Let threadblocks go on as far as they can; whether any has moved."""
    moved = False
    while any([engine.advance(block) for block in active]):
        moved = True
        active = engine.blocks
    return moved


def _rest(idle: int) -> None:
    """Let others have the processor: nobody at first, then whoever wants it, and after a while everybody."""
    if idle > _LONG_PATIENCE or (idle > _PATIENCE and not _CAN_YIELD):
        time.sleep(_NAP_SECONDS)
    elif idle > _PATIENCE:
        os.sched_yield()


def _verify(reports: list[_RankReport], num_ranks: int, timeout_seconds: float) -> list[Violation]:
    """Why the run did not come to its end: errors of ranks, lost ranks, waiting threadblocks, messages left over."""
    found = [violation for report in reports for violation in report.violations]
    missing = sorted(set(range(num_ranks)) - {report.rank for report in reports})
    found += [lost_rank(rank, timeout_seconds) for rank in missing]
    waits = [wait for report in reports for wait in report.waits]
    if waits and not found:
        found += explain_deadlock(waits)
    if not found:
        pushed: Counter[MessageQueue] = Counter()
        for report in reports:
            pushed.update(report.pushed)
            pushed.subtract(report.popped)
        found += [explain_left_over(*one) for one in sorted(pushed) if pushed[one] > 0]
    return found
