"""A bench of real processes under mpiexec.

Every flow sends its next message when the last one has arrived (synchronous sends), so that n messages take
n (alpha + beta s).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl_py.measure.experiment import MeasuredFlow
from taccl_py.measure.processes import (
    Arrival,
    Buffers,
    EndedProcesses,
    ExperimentPart,
    LaunchedProcesses,
    ProcessBench,
    WorkOrder,
    payload_bytes,
)
from taccl_py.measure.processor_wait import Waiting
from taccl_py.measure.shared_emulation import Throttle

_ORDER_TAG, _REPORT_TAG, _DATA_TAG = 1, 2, 7
# Naps of a rank that has no flows, and between two looks at messages on an emulated machine. Processes that look all the time
# would keep others from the processors.
_IDLE_SECONDS, _NAP_SECONDS = 2e-4, 1e-4


@dataclass
class _FlowProgress:
    """One flow out of this rank: what is left, and the message in flight."""

    dst: int
    tag: int
    left: int
    data: Any
    request: Any = None


@dataclass
class _Receiving:
    """One flow into this rank."""

    place: int
    src: int
    tag: int
    left: int
    buffer: Any
    request: Any
    arrival: Arrival | None = None
    arrived: bool = False
    done_us: float = 0.0


class MpiProcesses(LaunchedProcesses):
    """The processes of mpiexec.

    Parameters
    ----------
    mpi
        The module of mpi4py.
    """

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self._comm = mpi.COMM_WORLD.Dup()
        super().__init__(int(self._comm.rank), self._comm.allgather(mpi.Get_processor_name()))

    def bench(self, throttle: Throttle | None) -> ProcessBench:
        """These processes as a bench; see `ProcessBench`."""
        return MpiBench(self, throttle)

    def close(self) -> None:
        """MPI lets go of the others when the process ends."""

    def _broadcast(self, value: Any) -> Any:
        return self._comm.bcast(value)


class MpiBench(ProcessBench):
    """Processes that exchange messages through MPI.

    Parameters
    ----------
    job
        The processes.
    throttle
        See `ProcessBench`.
    """

    def __init__(self, job: MpiProcesses, throttle: Throttle | None = None) -> None:
        self._mpi = job.mpi
        self._comm = job.mpi.COMM_WORLD.Dup()
        self._control = job.mpi.COMM_WORLD.Dup()
        self._buffers = Buffers(lambda size_bytes: np.ones(size_bytes, dtype=np.uint8))
        self._waiting = Waiting()
        super().__init__(job, throttle)

    @property
    def name(self) -> str:
        """Name for people."""
        return f"mpi-{self._comm.size}" if self._throttle is None else self._throttle.topology.name

    def _let_go(self) -> None:
        self._waiting.close()
        super()._let_go()

    def _give(self, order: WorkOrder | None) -> None:
        for request in [self._control.isend(order, dest=rank, tag=_ORDER_TAG) for rank in range(1, self._comm.size)]:
            request.wait()

    def _next_order(self) -> WorkOrder | None:
        order: WorkOrder | None = self._take(0, _ORDER_TAG)
        return order

    def _collect(self, own: ExperimentPart) -> list[ExperimentPart]:
        return [own, *(self._take(rank, _REPORT_TAG) for rank in range(1, self._comm.size))]

    def _report(self, own: ExperimentPart) -> None:
        self._control.send(own, dest=0, tag=_REPORT_TAG)

    def _take(self, source: int, tag: int) -> Any:
        while not self._control.iprobe(source=source, tag=tag):
            time.sleep(_IDLE_SECONDS)
        return self._control.recv(source=source, tag=tag)

    def _take_part(self, order: WorkOrder) -> ExperimentPart:
        flows = list(enumerate(order.experiment.flows))
        sending = [self._sender(place, flow, order) for place, flow in flows if flow.src == self.rank]
        receiving = [self._receiver(place, flow, order) for place, flow in flows if flow.dst == self.rank]
        waited_us = self._waiting.waited_us()
        begun = self._begin(order)
        busy_out, busy_in = list(sending), list(receiving)
        while busy_out or busy_in:
            busy_out = [one for one in busy_out if self._push(one)]
            busy_in = [one for one in busy_in if self._pull(one, begun)]
            if self._throttle is None:
                os.sched_yield()  # there may be more processes than processors
            else:
                time.sleep(_nap_seconds(busy_out, busy_in))
        # A rank without a part disturbs nobody.
        waited_us = self._waiting.waited_us() - waited_us if sending or receiving else 0.0
        return ExperimentPart({one.place: _ended(one) for one in receiving}, waited_us)

    def _sender(self, place: int, flow: MeasuredFlow, order: WorkOrder) -> _FlowProgress:
        size_bytes = payload_bytes(order.experiment.size_bytes, self._throttle)
        data = self._buffers.get("out", place, size_bytes)
        return _FlowProgress(flow.dst, _DATA_TAG + place, order.experiment.messages, data)

    def _receiver(self, place: int, flow: MeasuredFlow, order: WorkOrder) -> _Receiving:
        experiment = order.experiment
        buffer = self._buffers.get("in", place, payload_bytes(experiment.size_bytes, self._throttle))
        arrival = None
        if self._throttle is not None and order.start_seconds is not None:
            arrival = Arrival(self._throttle, flow, experiment.size_bytes, order.start_seconds)
        tag = _DATA_TAG + place
        return _Receiving(
            place, flow.src, tag, experiment.messages, buffer, self._receive(buffer, flow.src, tag), arrival
        )

    def _begin(self, order: WorkOrder) -> float:
        """Wait for the common start, and say when that was."""
        if order.start_seconds is not None:
            time.sleep(max(0.0, order.start_seconds - time.monotonic()))
            return order.start_seconds
        self._comm.Barrier()
        return time.monotonic()

    def _receive(self, buffer: Any, src: int, tag: int) -> Any:
        return self._comm.Irecv([buffer, self._mpi.BYTE], source=src, tag=tag)

    def _push(self, one: _FlowProgress) -> bool:
        """Send the next message if the last has arrived; whether the flow goes on."""
        if one.request is not None and not one.request.Test():
            return True
        if one.left == 0:
            return False
        one.left -= 1
        one.request = self._comm.Issend([one.data, self._mpi.BYTE], dest=one.dst, tag=one.tag)
        return True

    def _pull(self, one: _Receiving, begun: float) -> bool:
        """Take a message that has come; whether more are to come."""
        one.arrived = one.arrived or bool(one.request.Test())
        if not one.arrived or (one.arrival is not None and one.arrival.wait_seconds() > 0):
            return True
        one.arrived = False
        one.left -= 1
        if one.left == 0:
            one.done_us = (time.monotonic() - begun) * 1e6
            return False
        one.request = self._receive(one.buffer, one.src, one.tag)
        return True


def _nap_seconds(busy_out: Sequence[_FlowProgress], busy_in: Sequence[_Receiving]) -> float:
    """Time for which nothing can happen, or until somebody has to look for it."""
    dues = [one.arrival.left_seconds for one in busy_in if one.arrived and one.arrival is not None]
    looking = bool(busy_out) or len(dues) < len(busy_in)
    return min([*dues, _NAP_SECONDS if looking else _IDLE_SECONDS])


def _ended(one: _Receiving) -> EndedProcesses:
    return EndedProcesses(one.done_us, 0.0 if one.arrival is None else 1e6 * one.arrival.late_seconds)
