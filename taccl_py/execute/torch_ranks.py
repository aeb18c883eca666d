"""One process for each rank under torchrun: messages go through torch.distributed (gloo), in groups of whole rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from taccl_py.errors import InputError, InvalidArtifact, PackageMissing, TacclError, Violation
from taccl_py.execute.arithmetic import Array, storage_type
from taccl_py.execute.compare import compare_rank, total
from taccl_py.execute.engine import Engine
from taccl_py.execute.memory import Memory
from taccl_py.execute.plan import DataType, Operator, Plan, cut_size
from taccl_py.execute.promise import Promises, make_task
from taccl_py.execute.rounds import Mailbox, Round, find_rounds
from taccl_py.execute.runs import Call, Conditions, Measured, Outcome, fill, make_outcome

T = TypeVar("T")

# Whole numbers without a sign, for which torch has hardly any operator, are computed as those with one.
_SIGNED = {DataType.UINT32: "int32", DataType.UINT64: "int64"}
_GRACE_SECONDS = 2.0  # in which those who noticed that somebody is lost find out who is not


def load_torch() -> Any:
    """Return torch with its distributed part.

    Raises
    ------
    PackageMissing
        If it is not installed.
    """
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise PackageMissing(
            f"--with torch needs torch ({error})", "install it with: pip install 'taccl-py[torch]'"
        ) from None
    return torch


class TorchCells:
    """Elements in torch's tensors."""

    def __init__(self, torch: Any, data_type: DataType) -> None:
        self.data_type = data_type
        self._torch = torch
        self._stored = getattr(torch, _SIGNED.get(data_type, str(data_type)))

    def empty(self, rows: int, columns: int) -> Any:
        """Return cells that hold anything."""
        return self._torch.empty((rows, columns), dtype=self._stored)

    def set_bytes(self, cells: Any, byte: int) -> None:
        """Give all bytes of cells a value."""
        cells.view(self._torch.uint8)[...] = byte

    def load(self, values: Array) -> Any:
        """Return elements of numpy as cells in a row."""
        raw = np.array(values).view(np.uint8)
        return self._torch.from_numpy(raw).view(self._stored)

    def unload(self, cells: Any) -> Array:
        """Return cells as elements of numpy in a row."""
        raw = cells.reshape(-1).view(self._torch.uint8).numpy()
        return np.asarray(raw.view(storage_type(self.data_type)))

    def length(self, cells: Any) -> int:
        """Return the number of elements."""
        return int(cells.numel())

    def copy(self, cells: Any) -> Any:
        """Return the same in one piece of memory of its own."""
        return cells.clone(memory_format=self._torch.contiguous_format)

    def combine(self, operator: Operator, one: Any, other: Any) -> Any:
        """Combine contributions of two sides, element by element."""
        torch = self._torch
        if operator in (Operator.SUM, Operator.AVG):
            return torch.add(one, other)
        if operator is Operator.PROD:
            return torch.mul(one, other)
        function = torch.minimum if operator is Operator.MIN else torch.maximum
        if self.data_type not in _SIGNED:
            return function(one, other)
        # Turning the highest bit around orders them as if they had no sign.
        top = torch.iinfo(self._stored).min
        return torch.bitwise_xor(function(torch.bitwise_xor(one, top), torch.bitwise_xor(other, top)), top)


class TorchSession:
    """One process among the ranks.

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

    def __init__(self, timeout_seconds: float) -> None:
        self._torch = load_torch()
        self._distributed = self._torch.distributed
        self._torch.set_num_threads(1)
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
            What it raised, on all ranks.
        """
        shared: list[Any] = [None, None]
        if self.rank == 0:
            try:
                shared[0] = make()
            except TacclError as error:
                shared[1] = (type(error), error.__dict__, error.args)
        self._distributed.broadcast_object_list(shared, src=0)
        if shared[1] is not None:
            raise TacclError.revived(*shared[1])
        made: T = shared[0]
        return made

    def require_ranks(self, plan: Plan) -> None:
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

    def run(self, plan: Plan, call: Call, conditions: Conditions) -> Outcome:
        """Make a call; every process calls this with the same arguments, and has the same outcome.

        Raises
        ------
        InvalidArtifact
            If the program comes to a stop or does what cannot be done, or a rank does not answer.
        """
        cut = cut_size(plan, call.size_bytes, call.data_type, conditions.runtime)
        slots = conditions.runtime.fifo_slots[plan.protocol]
        rounds = find_rounds(plan, cut, slots, in_place=call.in_place)
        task = make_task(plan, cut.chunk_elements, call.data_type, call.operator, conditions.seed)
        cells = TorchCells(self._torch, call.data_type)
        promises, memory = Promises(task), Memory(plan, cut, cells, self.rank, in_place=call.in_place)
        seconds, found = 0.0, []
        try:
            for _ in range(conditions.repeats):
                fill(plan, task, memory, self.rank)
                mailbox = Mailbox(slots)
                engine = Engine(plan, cut, {self.rank: memory}, mailbox, call.operator, cells)
                self._distributed.barrier()
                start = time.perf_counter()
                for one in rounds:
                    self._run_round(engine, mailbox, one, cells)
                own = time.perf_counter() - start
                comparison = compare_rank(plan, promises, memory, self.rank, in_place=call.in_place)
                gathered: list[Any] = [None] * self.num_ranks
                self._distributed.all_gather_object(gathered, (own, comparison))
                seconds += max(each[0] for each in gathered)
                found += [each[1] for each in gathered]
        except RuntimeError:
            raise InvalidArtifact(plan.name, self._find_lost(conditions.timeout_seconds)) from None
        return make_outcome(plan, call, cut, Measured(1e6 * seconds / conditions.repeats, total(found)))

    def end_all_at_exit(self, exit_code: int) -> None:
        """Torchrun ends the others when one ends with an error."""

    def close(self) -> None:
        """Let go of the others; torch ends the process with a signal otherwise."""
        self._distributed.destroy_process_group()

    def _run_round(self, engine: Engine, mailbox: Mailbox, one: Round, cells: TorchCells) -> None:
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
                works.append(self._distributed.P2POp(self._distributed.isend, raw, connection.dst))
            elif connection.dst == self.rank:
                message = cells.empty(1, parcel.elements)
                raw = message.reshape(-1).view(self._torch.uint8)
                works.append(self._distributed.P2POp(self._distributed.irecv, raw, connection.src))
                arriving.append((connection, message))
        for work in self._distributed.batch_isend_irecv(works) if works else ():
            work.wait()
        for connection, message in arriving:
            mailbox.deliver(connection, message)
        for connection in one.freed:
            mailbox.free(connection)

    def _find_lost(self, timeout_seconds: float) -> list[Violation]:
        """Ask who is still there: the others have stopped, or have been stopped; the first who is there speaks."""
        store = self._distributed.distributed_c10d._get_default_store()
        store.set(f"there {self.rank}", "yes")
        deadline = time.perf_counter() + timeout_seconds + _GRACE_SECONDS
        lost = list(range(self.num_ranks))
        while lost and time.perf_counter() < deadline:
            lost = [rank for rank in lost if not store.check([f"there {rank}"])]
            time.sleep(0.05)
        self.speaks = self.rank == min(set(range(self.num_ranks)) - set(lost))
        what = f"it has not answered for {timeout_seconds:g} seconds, so its process has ended, was stopped, or needs a larger "
        return [Violation(f"rank {rank}", "lost-rank", f"{what}--timeout") for rank in lost] or [
            Violation("", "lost-rank", "messages between the ranks were lost; see what torchrun says")
        ]
