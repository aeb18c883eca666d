"""Run a schedule of a demand with one process for each rank: every message is one of MPI's or of torch.distributed's.

All processes go through the starts and arrivals in the same order of time. A start sends without waiting, so a rank that waits for an arrival
never waits for one that waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from taccl_py.errors import InvalidArtifact, Violation
from taccl_py.execute.arithmetic import Array, storage_type
from taccl_py.execute.demand import DemandRun, HeldChunks, RunnableDemand, compare_outputs, event_order
from taccl_py.execute.plan import DataType

_NAP_SECONDS = 2e-5
_TAGS = 1 << 15  # MPI promises as many; messages of one tag between two ranks keep their order


class DemandMail(Protocol):
    """Messages between this process and the others; what does not come in time raises an InvalidArtifact."""

    @property
    def rank(self) -> int:
        """Which one of the ranks this is."""

    def send(self, values: Array, rank: int, tag: int) -> None:
        """Begin to send elements."""

    def receive(self, values: Array, rank: int, tag: int) -> None:
        """Wait for elements, and put them there."""

    def finish(self) -> None:
        """Wait until all has left."""

    def gather(self, value: Any) -> list[Any]:
        """Values of all ranks, when all have come here."""


def run_demand_among(runnable: RunnableDemand, inputs: Sequence[Array], mail: DemandMail) -> DemandRun:
    """Run the messages of this process's rank; the outcome counts what is wrong on all ranks.

    Raises
    ------
    InvalidArtifact
        If a message does not come in time.
    """
    demand, rank, messages = runnable.demand, mail.rank, runnable.messages
    held = HeldChunks(demand, inputs, (rank,))
    mail.gather(None)
    begun = time.perf_counter()
    for is_start, index in event_order(messages):
        message = messages[index]
        if is_start and message.src == rank:
            mail.send(_packed(held, message.chunks, rank), message.dst, index % _TAGS)
        elif not is_start and message.dst == rank:
            lengths = [demand.chunks[number].size_bytes // demand.element_bytes for number in message.chunks]
            values = np.empty(sum(lengths), dtype=storage_type(DataType(demand.dtype)))
            mail.receive(values, message.src, index % _TAGS)
            for number, part in zip(message.chunks, np.split(values, np.cumsum(lengths)[:-1]), strict=True):
                held.take(number, rank, part, reduce=message.reduce)
    mail.finish()
    took_us = (time.perf_counter() - begun) * 1e6
    outputs = held.outputs()
    reports = mail.gather((*compare_outputs(demand, inputs, outputs, (rank,)), took_us))
    return DemandRun(
        outputs,
        sum(wrong for wrong, _, _ in reports),
        next((first for _, first, _ in reports if first), ""),
        max(each for _, _, each in reports),
    )


def _packed(held: HeldChunks, chunks: Sequence[int], rank: int) -> Array:
    """Elements of a message in one row; zeros where the rank holds nothing, which shows at the end."""
    parts = [held.values(number, rank) for number in chunks]
    return np.concatenate([held.nothing(n) if part is None else part for n, part in zip(chunks, parts, strict=True)])


def _late(name: str, rank: int, timeout_seconds: float) -> InvalidArtifact:
    what = f"nothing has come from it for {timeout_seconds:g} seconds, so its process has ended, was stopped, or needs a larger --timeout"
    return InvalidArtifact(name, [Violation(f"rank {rank}", "lost-rank", what)])


@dataclass(slots=True)
class MpiMail:
    """Messages of MPI."""

    mpi: Any
    comm: Any
    name: str
    timeout_seconds: float
    sent: list[tuple[Any, Array, int]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Which one of the ranks this is."""
        return int(self.comm.rank)

    def send(self, values: Array, rank: int, tag: int) -> None:
        """Begin to send elements."""
        request = self.comm.Isend([values.view(np.uint8), self.mpi.BYTE], dest=rank, tag=tag)
        self.sent = [one for one in self.sent if not one[0].Test()]
        self.sent.append((request, values, rank))

    def receive(self, values: Array, rank: int, tag: int) -> None:
        """Wait for elements."""
        self._wait(self.comm.Irecv([values.view(np.uint8), self.mpi.BYTE], source=rank, tag=tag), rank)

    def finish(self) -> None:
        """Wait until all has left."""
        for request, _, rank in self.sent:
            self._wait(request, rank)
        self.sent = []

    def gather(self, value: Any) -> list[Any]:
        """Values of all ranks."""
        self._wait(self.comm.Ibarrier(), (self.rank + 1) % int(self.comm.size))
        return list(self.comm.allgather(value))

    def _wait(self, request: Any, rank: int) -> None:
        deadline = time.perf_counter() + self.timeout_seconds
        while not request.Test():
            if time.perf_counter() > deadline:
                raise _late(self.name, rank, self.timeout_seconds)
            time.sleep(_NAP_SECONDS)


@dataclass(slots=True)
class TorchMail:
    """Messages of torch.distributed over gloo, which has the time-out of its group."""

    torch: Any
    name: str
    timeout_seconds: float
    sent: list[tuple[Any, Any, int]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """Which one of the ranks this is."""
        return int(self.torch.distributed.get_rank())

    def send(self, values: Array, rank: int, tag: int) -> None:
        """Begin to send elements."""
        raw = self.torch.from_numpy(values.view(np.uint8))
        self.sent.append((self.torch.distributed.isend(raw, rank, tag=tag), raw, rank))

    def receive(self, values: Array, rank: int, tag: int) -> None:
        """Wait for elements."""
        self._wait(self.torch.distributed.irecv(self.torch.from_numpy(values.view(np.uint8)), rank, tag=tag), rank)

    def finish(self) -> None:
        """Wait until all has left."""
        for work, _, rank in self.sent:
            self._wait(work, rank)
        self.sent = []

    def gather(self, value: Any) -> list[Any]:
        """Values of all ranks."""
        found: list[Any] = [None] * int(self.torch.distributed.get_world_size())
        try:
            self.torch.distributed.all_gather_object(found, value)
        except RuntimeError:
            raise _late(self.name, (self.rank + 1) % len(found), self.timeout_seconds) from None
        return found

    def _wait(self, work: Any, rank: int) -> None:
        try:
            work.wait()
        except RuntimeError:
            raise _late(self.name, rank, self.timeout_seconds) from None
