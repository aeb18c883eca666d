"""One process for each rank under torchrun: messages go through torch.distributed, in groups of whole rounds."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from taccl_py.errors import InputError, InvalidArtifact, TacclError, Violation
from taccl_py.execute.compare import total
from taccl_py.execute.data import CallData
from taccl_py.execute.demand import RunnableDemand
from taccl_py.execute.demand_processes import DemandMail, TorchMail
from taccl_py.execute.engine import ThreadblockEngine
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.plan import Backend, ExecutablePlan, SizeCut
from taccl_py.execute.rounds import Mailbox, Round, find_rounds
from taccl_py.execute.runs import Call, CallOutcome, Conditions, Measured, make_call
from taccl_py.execute.torch_cells import TorchCells, load_torch
from taccl_py.execute.torch_wire import GlooWire, MessageWire, NcclWire, choose_backend, let_share, take_seat
from taccl_py.execute.trouble import lost_rank

T = TypeVar("T")

_LAST_WORDS_SECONDS = 10.0  # in which the rank that speaks says what has happened
_GRACE_SECONDS = 2.0  # in which ranks that noticed a lost rank find out which ones are left


class TorchSession:
    """One process among the ranks.

    Parameters
    ----------
    timeout_seconds
        How long a rank may not answer; with NCCL, how long a run may take.
    backend
        Transport of messages.
    environment
        Where variables of NCCL are set that let ranks share a GPU.

    Attributes
    ----------
    rank, num_ranks
        Which one it is, of how many.
    speaks
        Whether it is for this one to tell the user.

    Raises
    ------
    PackageMissing
        If there is no torch.
    InputError
        If torchrun has not started this process.
    """

    def __init__(
        self,
        timeout_seconds: float,
        backend: Backend = Backend.AUTO,
        environment: MutableMapping[str, str] | None = None,
    ) -> None:
        self._torch = load_torch()
        self._distributed = self._torch.distributed
        self._timeout_seconds, self._backend = timeout_seconds, backend
        self._environment: MutableMapping[str, str] = {} if environment is None else environment
        self._wire: MessageWire | None = None
        self._is_stuck = False
        try:
            self._distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
        except ValueError:
            raise InputError(
                "torch needs one process for each rank; write torchrun --nproc-per-node RANKS --no-python taccl run",
                path="command line",
                field="--with",
            ) from None
        self.rank = int(self._distributed.get_rank())
        self.num_ranks = int(self._distributed.get_world_size())
        self.speaks = self.rank == 0

    def share(self, make: Callable[[], T]) -> T:
        """Return what rank 0 makes, on all ranks.

        Raises
        ------
        TacclError
            Error that it raised, on all ranks.
        """
        shared: list[Any] = [None, None]
        if self.rank == 0:
            try:
                shared[0] = make()
            except TacclError as error:
                shared[1] = error
        self._distributed.broadcast_object_list(shared, src=0)
        if shared[1] is not None:
            raise shared[1]
        made: T = shared[0]
        return made

    def mail(self, name: str) -> DemandMail:
        """Messages of the schedule of a demand, by its name in errors; gloo carries them.

        Raises
        ------
        InputError
            If NCCL was asked for.
        """
        if self._backend is Backend.NCCL:
            raise InputError(
                "the messages of a demand are carried by gloo; leave it out", path="command line", field="--backend"
            )
        return TorchMail(self._torch, name, self._timeout_seconds)

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
                f"write torchrun --nproc-per-node {plan.num_ranks}",
                path=plan.name,
            )

    def open_wire(self) -> MessageWire:
        """Return what carries messages; the first time, all ranks must ask for it.

        Raises
        ------
        InputError
            On all ranks, if NCCL was asked for and cannot be used.
        """
        if self._wire is None:
            seats: list[Any] = [None] * self.num_ranks
            self._distributed.all_gather_object(seats, take_seat(self._torch, self.rank))
            if choose_backend(self._backend, seats) is Backend.NCCL:
                let_share(seats, self.rank, self._environment)
                self._wire = NcclWire(self._torch, seats[self.rank].local_rank, self._timeout_seconds)
            else:
                self._wire = GlooWire(self._torch)
        return self._wire

    def run(self, plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
        """Make a call; every process calls this with the same arguments, and has the same outcome.

        Raises
        ------
        InvalidArtifact
            If the program comes to a stop or does what cannot be done, or a rank does not answer.
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
        in_place = calls[0].in_place
        slots = conditions.runtime.fifo_slots[plan.protocol]
        rounds = find_rounds(plan, cut, slots, in_place=in_place)
        wire = self.open_wire()
        cells = wire.cells(calls[0].data_type)
        memory = RankMemory(plan, cut, cells, self.rank, in_place=in_place)
        seconds, found = 0.0, []
        try:
            for data in calls:
                data.fill(memory, self.rank)
                mailbox = Mailbox(slots)
                engine = ThreadblockEngine(plan, cut, {self.rank: memory}, mailbox, data.operator, cells)
                self._distributed.barrier()
                own = wire.measure(
                    partial(self._run_rounds, wire, rounds, engine, mailbox, cells), conditions.timeout_seconds
                )
                comparison = data.check(memory, self.rank)
                gathered: list[Any] = [None] * self.num_ranks
                self._distributed.all_gather_object(gathered, (own, comparison))
                seconds += max(each[0] for each in gathered)
                found += [each[1] for each in gathered]
        except (RuntimeError, TimeoutError) as error:
            self._is_stuck = isinstance(wire, NcclWire)
            late = isinstance(error, TimeoutError)
            raise InvalidArtifact(plan.name, self._explain(conditions.timeout_seconds, late=late)) from None
        return Measured(1e6 * seconds / len(calls), total(found))

    def end_all_at_exit(self, exit_code: int) -> None:
        """Torchrun ends the others when one ends with an error; work that is stuck on a GPU must not keep it from that.

        Nor must those who have nothing to say leave before the one who speaks has spoken.
        """
        if self._is_stuck:
            atexit.register(_leave, exit_code)
        if not self.speaks:
            atexit.register(_wait_in_silence)  # registered last, done first

    def close(self) -> None:
        """Let go of the others; torch ends the process with a signal otherwise."""
        if not self._is_stuck:
            self._distributed.destroy_process_group()

    def _run_rounds(
        self, wire: MessageWire, rounds: list[Round], engine: ThreadblockEngine, mailbox: Mailbox, cells: TorchCells
    ) -> None:
        for one in rounds:
            self._run_round(wire, engine, mailbox, one, cells)

    def _run_round(
        self, wire: MessageWire, engine: ThreadblockEngine, mailbox: Mailbox, one: Round, cells: TorchCells
    ) -> None:
        """Go on as far as possible, then exchange all messages of the round as one group."""
        for block in engine.blocks:
            engine.advance(block)
        staged = iter(mailbox.take_staged())
        mailbox.take_popped()
        works, arriving = [], []
        for parcel in one.parcels:
            connection = parcel.connection
            if connection.src == self.rank:
                _, message = next(staged)
                raw = message.reshape(-1).view(self._torch.uint8)
                works.append(self._distributed.P2POp(self._distributed.isend, raw, connection.dst, wire.group))
            elif connection.dst == self.rank:
                message = cells.empty(1, parcel.elements)
                raw = message.reshape(-1).view(self._torch.uint8)
                works.append(self._distributed.P2POp(self._distributed.irecv, raw, connection.src, wire.group))
                arriving.append((connection, message))
        for work in self._distributed.batch_isend_irecv(works) if works else ():
            work.wait()
        for connection, message in arriving:
            mailbox.deliver(connection, message)
        for connection in one.freed:
            mailbox.free(connection)

    def _explain(self, timeout_seconds: float, *, late: bool) -> list[Violation]:
        """Ask which ranks are still there: the others have stopped, or have been stopped; the first one there reports."""
        store = self._distributed.distributed_c10d._get_default_store()
        store.set(f"there {self.rank}", "yes")
        deadline = time.perf_counter() + timeout_seconds + _GRACE_SECONDS
        lost = list(range(self.num_ranks))
        while lost and time.perf_counter() < deadline:
            lost = [rank for rank in lost if not store.check([f"there {rank}"])]
            time.sleep(0.05)
        self.speaks = self.rank == min(set(range(self.num_ranks)) - set(lost))
        if lost:
            return [lost_rank(rank, timeout_seconds) for rank in lost]
        if late:
            what = f"the run has not ended on the GPUs within {timeout_seconds:g} seconds; use a larger --timeout"
            return [Violation("", "stopped", what)]
        return [Violation("", "lost-rank", "messages between the ranks were lost; see what torchrun says")]


def _wait_in_silence() -> None:
    """Leave the last words to the rank that speaks; a signal of the launcher ends this one without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    time.sleep(_LAST_WORDS_SECONDS)


def _leave(exit_code: int) -> None:
    """End at once, without waiting for a GPU."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
