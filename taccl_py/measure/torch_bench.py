"""A bench of real processes under torchrun: gloo moves host memory, nccl the memory of GPUs.

With gloo every flow has a thread at each end; the receiver answers each message, and the next one leaves when the answer has
come. With nccl every flow has a communicator and a stream of its own at each end, and events of the receiving device
take the time; messages of a stream follow each other.
"""

from __future__ import annotations

import platform
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from taccl_py.errors import InputError
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
from taccl_py.measure.shared_emulation import Throttle

_TIMEOUT = timedelta(minutes=30)  # rank 0 may think for long between two experiments


class TorchProcesses(LaunchedProcesses):
    """The processes that torchrun started.

    Parameters
    ----------
    torch
        The module, with its distributed part.
    devices
        Whether to measure the memory of GPUs; None: where every process of a node has one.

    Attributes
    ----------
    torch
        The module.
    device
        This process's GPU, or None.

    Raises
    ------
    InputError
        If torchrun has not started this process, or GPUs are asked for and a process has none.
    """

    def __init__(self, torch: Any, *, devices: bool | None = None) -> None:
        self.torch = torch
        distributed = torch.distributed
        try:
            distributed.init_process_group("gloo", timeout=_TIMEOUT)
        except ValueError:
            raise InputError(
                "torch needs one process for each rank; write torchrun --nproc-per-node RANKS --no-python taccl profile",
                path="command line",
                field="--with",
            ) from None
        here = (platform.node(), int(torch.cuda.device_count()))
        gathered: list[tuple[str, int]] = [here] * int(distributed.get_world_size())
        distributed.all_gather_object(gathered, here)
        super().__init__(int(distributed.get_rank()), [host for host, _ in gathered])
        enough = all(self.hosts.count(host) <= count for host, count in gathered)
        if devices and not enough:
            raise InputError(
                "not every process has a GPU of its own; start as many processes on a node as it has GPUs, or write gloo",
                path="command line",
                field="--backend",
            )
        self.device: Any = None
        if enough and devices is not False:
            self.device = torch.device("cuda", self.hosts[: self.rank].count(here[0]))

    def bench(self, throttle: Throttle | None) -> ProcessBench:
        """These processes as a bench, of their GPUs where they have them, of host memory otherwise; see `ProcessBench`."""
        if self.device is None or throttle is not None:
            return GlooBench(self, throttle)
        self.torch.cuda.set_device(self.device)
        return DeviceBench(self, self.torch.cuda, self.device)

    def close(self) -> None:
        """Let go of the others; torch ends the process with a signal otherwise."""
        self.torch.distributed.destroy_process_group()

    def _broadcast(self, value: Any) -> Any:
        shared = [value]
        self.torch.distributed.broadcast_object_list(shared, src=0)
        return shared[0]


class TorchBench(ProcessBench):
    """Common part of the benches of all backends."""

    def __init__(self, job: TorchProcesses, device: Any, throttle: Throttle | None = None) -> None:
        self._job = job
        self._distributed = job.torch.distributed
        uint8 = job.torch.uint8
        self._buffers = Buffers(lambda size_bytes: job.torch.ones(size_bytes, dtype=uint8, device=device))
        super().__init__(job, throttle)

    def _give(self, order: WorkOrder | None) -> None:
        self._job.share(lambda: order)

    def _next_order(self) -> WorkOrder | None:
        order: WorkOrder | None = self._job.share(lambda: None)
        return order

    def _collect(self, own: ExperimentPart) -> list[ExperimentPart]:
        gathered: list[ExperimentPart] = [own] * len(self._job.hosts)
        self._distributed.gather_object(own, gathered, dst=0)
        return gathered

    def _report(self, own: ExperimentPart) -> None:
        self._distributed.gather_object(own, None, dst=0)

    def _take_part(self, order: WorkOrder) -> ExperimentPart:
        flows = [
            (place, flow) for place, flow in enumerate(order.experiment.flows) if self.rank in (flow.src, flow.dst)
        ]
        return ExperimentPart(self._exchange(order, flows))

    @abstractmethod
    def _exchange(self, order: WorkOrder, flows: Sequence[tuple[int, MeasuredFlow]]) -> dict[int, EndedProcesses]:
        """Carry out the flows, with their places, that begin or end here; times of those that end here."""


class GlooBench(TorchBench):
    """Processes that exchange host memory through gloo.

    Parameters
    ----------
    job
        The processes.
    throttle
        See `ProcessBench`.
    """

    def __init__(self, job: TorchProcesses, throttle: Throttle | None = None) -> None:
        super().__init__(job, "cpu", throttle)
        self._answer = job.torch.ones(1, dtype=job.torch.uint8)

    @property
    def name(self) -> str:
        """Name for people."""
        return f"gloo-{len(self.node_of)}" if self._throttle is None else self._throttle.topology.name

    def _exchange(self, order: WorkOrder, flows: Sequence[tuple[int, MeasuredFlow]]) -> dict[int, EndedProcesses]:
        found: dict[int, EndedProcesses] = {}
        failed: list[Exception] = []
        ready = threading.Barrier(len(flows) + 1)

        def follow(place: int, flow: MeasuredFlow) -> None:
            try:
                if flow.src == self.rank:
                    self._send(order, place, flow, ready)
                else:
                    found[place] = self._receive(order, place, flow, ready)
            except RuntimeError as error:
                failed.append(error)

        threads = [threading.Thread(target=follow, args=one, daemon=True) for one in flows]
        for thread in threads:
            thread.start()
        if order.start_seconds is None:
            self._distributed.barrier()
        ready.wait()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return found

    def _send(self, order: WorkOrder, place: int, flow: MeasuredFlow, ready: threading.Barrier) -> None:
        size_bytes = payload_bytes(order.experiment.size_bytes, self._throttle)
        data, answer = self._buffers.get("out", place, size_bytes), self._buffers.get("answer", place, 1)
        ready.wait()
        self._wait_for_start(order)
        for _ in range(order.experiment.messages):
            self._distributed.isend(data, flow.dst, tag=2 * place).wait()
            self._distributed.irecv(answer, flow.dst, tag=2 * place + 1).wait()

    def _receive(self, order: WorkOrder, place: int, flow: MeasuredFlow, ready: threading.Barrier) -> EndedProcesses:
        experiment = order.experiment
        buffer = self._buffers.get("in", place, payload_bytes(experiment.size_bytes, self._throttle))
        ready.wait()
        begun = self._wait_for_start(order)
        arrival = None
        if self._throttle is not None:
            arrival = Arrival(self._throttle, flow, experiment.size_bytes, begun)
        end, works = begun, []
        for _ in range(experiment.messages):
            self._distributed.irecv(buffer, flow.src, tag=2 * place).wait()
            while arrival is not None and (left := arrival.wait_seconds()) > 0:
                time.sleep(left)
            end = time.monotonic()
            works.append(self._distributed.isend(self._answer, flow.src, tag=2 * place + 1))
        for work in works:
            work.wait()
        return EndedProcesses(1e6 * (end - begun), 0.0 if arrival is None else 1e6 * arrival.late_seconds)

    def _wait_for_start(self, order: WorkOrder) -> float:
        if order.start_seconds is None:
            return time.monotonic()
        time.sleep(max(0.0, order.start_seconds - time.monotonic()))
        return order.start_seconds


class DeviceBench(TorchBench):
    """Processes that exchange the memory of GPUs through NCCL.

    Parameters
    ----------
    job
        The processes.
    streams
        Module with streams and events, such as ``torch.cuda``.
    device
        Where the memory is.
    """

    def __init__(self, job: TorchProcesses, streams: Any, device: Any) -> None:
        super().__init__(job, device)
        self._streams = streams
        self._groups: dict[MeasuredFlow, Any] = {}

    @property
    def name(self) -> str:
        """Name for people."""
        return f"nccl-{len(self.node_of)}"

    def _exchange(self, order: WorkOrder, flows: Sequence[tuple[int, MeasuredFlow]]) -> dict[int, EndedProcesses]:
        experiment = order.experiment
        lanes = []
        for place, flow in flows:
            buffer = self._buffers.get("in" if flow.dst == self.rank else "out", place, experiment.size_bytes)
            # A communicator has one stream, and so one flow at a time; both ends make it when they first need it.
            if flow not in self._groups:
                self._groups[flow] = self._distributed.new_group(
                    [flow.src, flow.dst], backend="nccl", use_local_synchronization=True
                )
                self._step(flow, buffer, self._groups[flow]).wait()  # makes the connection
            lanes.append((place, flow, buffer, self._streams.Stream()))
        self._streams.synchronize()
        self._distributed.barrier()
        events = {}
        for place, flow, buffer, stream in lanes:
            with self._streams.stream(stream):
                begin, end = (self._streams.Event(enable_timing=True) for _ in range(2))
                begin.record()
                for _ in range(experiment.messages):
                    self._step(flow, buffer, self._groups[flow]).wait()
                end.record()
            if flow.dst == self.rank:
                events[place] = (begin, end)
        self._streams.synchronize()
        return {place: EndedProcesses(1e3 * begin.elapsed_time(end)) for place, (begin, end) in events.items()}

    def _step(self, flow: MeasuredFlow, buffer: Any, group: Any) -> Any:
        if flow.src == self.rank:
            return self._distributed.isend(buffer, flow.dst, group=group)
        return self._distributed.irecv(buffer, flow.src, group=group)
