"""Benches of real processes: rank 0 decides what runs, all take part, and times are taken where messages arrive."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from taccl_py.errors import InputError, TacclError
from taccl_py.measure.experiment import Experiment, MeasuredFlow
from taccl_py.measure.shared_emulation import Throttle
from taccl_py.topology.model import Topology

T = TypeVar("T")
_LATE, _LATE_US, _MOST_LATE_RUNS = 0.005, 200.0, 8  # part of the time, or this, by which a run may be late
_DISTURBED = 0.02  # part of the time for which others may have had the processor of a real run
# How long a run that is disturbed is repeated, and all such runs together; how long before the first one that is not; and for
# how long a run is repeated when that is over.
_WAIT_SECONDS, _WAIT_IN_ALL_SECONDS, _WAIT_AT_FIRST_SECONDS, _HURRY_SECONDS = 0.2, 12.0, 2.0, 0.005
_LEAD_SECONDS = 0.004  # from the order to its start on an emulated machine, so that nobody comes late


class LaunchedProcesses(ABC):
    """The processes that a launcher started.

    Parameters
    ----------
    rank
        Which process this is.
    hosts
        Name of the computer of every process.

    Attributes
    ----------
    rank, hosts
        The same.
    """

    def __init__(self, rank: int, hosts: Sequence[str]) -> None:
        self.rank = rank
        self.hosts = tuple(hosts)

    def share(self, make: Callable[[], T]) -> T:
        """Return on all ranks what rank 0 makes.

        Parameters
        ----------
        make
            Called on rank 0.

        Raises
        ------
        TacclError
            Error that it raised, on all ranks.
        """
        shared: tuple[T | None, TacclError | None] = (None, None)
        if self.rank == 0:
            try:
                shared = (make(), None)
            except TacclError as error:
                shared = (None, error)
        made, failed = self._broadcast(shared)
        if failed is not None:
            raise failed
        result: T = made
        return result

    @abstractmethod
    def bench(self, throttle: Throttle | None) -> ProcessBench:
        """These processes as a bench; see `ProcessBench`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the others."""

    @abstractmethod
    def _broadcast(self, value: Any) -> Any:
        """Return on all ranks the value of rank 0."""


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Order to all processes.

    Attributes
    ----------
    experiment
        Experiment that runs.
    start_seconds
        When, on the clock that the processes of one computer share; None: after a barrier.
    """

    experiment: Experiment
    start_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EndedProcesses:
    """End of a flow.

    Attributes
    ----------
    done_us
        Microseconds from the start.
    late_us
        By how much that is later than the emulated machine would have it, because this computer was busy; on a real one,
        how long some process waited for a processor that others had.
    """

    done_us: float
    late_us: float = 0.0

    @property
    def due_us(self) -> float:
        """Time at which it should have ended."""
        return self.done_us - self.late_us


@dataclass(frozen=True, slots=True)
class ExperimentPart:
    """Report of one rank on an experiment.

    Attributes
    ----------
    ended
        How each flow ended that arrives there, by its place.
    waited_us
        How long its process waited for a processor that others had.
    """

    ended: Mapping[int, EndedProcesses]
    waited_us: float = 0.0


class ProcessBench(ABC):
    """A bench that is the processes of a launcher; only rank 0 runs experiments, the others serve.

    Parameters
    ----------
    job
        All of them; processes whose computers have one name are one node.
    throttle
        The machine that is emulated, the same for all processes, or None for that which is there.

    Attributes
    ----------
    rank
        Which process this is.

    Raises
    ------
    InputError
        If the emulated machine has another number of ranks.
    """

    def __init__(self, job: LaunchedProcesses, throttle: Throttle | None) -> None:
        self.rank = job.rank
        self._throttle = throttle
        self._was_calm, self._wait_left_seconds = False, _WAIT_AT_FIRST_SECONDS
        numbers = {host: index for index, host in enumerate(dict.fromkeys(job.hosts))}
        self._node_of = tuple(numbers[host] for host in job.hosts) if throttle is None else throttle.topology.node_of
        if throttle is not None:
            require_ranks(throttle.topology, job)

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for people."""

    @property
    def node_of(self) -> tuple[int, ...]:
        """Node of every rank."""
        return self._node_of

    @property
    def pairs(self) -> tuple[MeasuredFlow, ...]:
        """Every pair; on an emulated machine those with a link."""
        if self._throttle is not None:
            return tuple(MeasuredFlow(src, dst) for src, dst in self._throttle.topology.links_between)
        ranks = range(len(self._node_of))
        return tuple(MeasuredFlow(src, dst) for src in ranks for dst in ranks if src != dst)

    def run(self, experiment: Experiment) -> tuple[float, ...]:
        """Run an experiment on all ranks; for rank 0.

        A run in which others had a processor that it needed is repeated, for a time. A run in which this
        computer was too busy to keep the time of the machine that it emulates is repeated, and for each
        flow the run counts in which it was least late.
        """
        throttle = self._throttle
        if throttle is None:
            return self._run_undisturbed(experiment)
        best: list[EndedProcesses] = []
        for _ in range(_MOST_LATE_RUNS):
            throttle.clear()
            found = self._run_once(WorkOrder(experiment, time.monotonic() + _LEAD_SECONDS))
            # Which of equal flows is served first is chance, so a run is compared with another in the order of its ends.
            places = sorted(found, key=lambda place: found[place].due_us)
            ended = [found[place] for place in places]
            best = [min(pair, key=_lateness) for pair in zip(ended, best or ended, strict=True)]
            if max(map(_lateness, best)) < 1:
                break
        times = dict(zip(places, best, strict=True))
        return tuple(times[place].done_us / throttle.scale for place in range(len(experiment.flows)))

    def _run_undisturbed(self, experiment: Experiment) -> tuple[float, ...]:
        runs: list[tuple[float, tuple[float, ...]]] = []
        begun = time.monotonic()
        while True:
            run_begun = time.monotonic()
            found = self._run_once(WorkOrder(experiment))
            times = tuple(found[place].done_us for place in range(len(experiment.flows)))
            runs.append((max(one.late_us for one in found.values()) / max(1e-3, *times), times))
            now = time.monotonic()
            if runs[-1][0] <= _DISTURBED:
                if not self._was_calm:
                    self._was_calm, self._wait_left_seconds = True, _WAIT_IN_ALL_SECONDS
                break
            self._wait_left_seconds -= now - run_begun
            if now - begun > (_WAIT_SECONDS if self._wait_left_seconds > 0 else _HURRY_SECONDS):
                break
        return min(runs)[1]

    def _run_once(self, order: WorkOrder) -> dict[int, EndedProcesses]:
        self._give(order)
        parts = self._collect(self._take_part(order))
        found = {place: ended for part in parts for place, ended in part.ended.items()}
        if self._throttle is not None:
            return found
        waited_us = max(part.waited_us for part in parts)
        return {place: EndedProcesses(one.done_us, waited_us) for place, one in found.items()}

    def finish(self) -> None:
        """Tell the other ranks that there is nothing more; for rank 0."""
        self._give(None)
        self._let_go()

    def serve(self) -> None:
        """Take part in experiments until rank 0 has no more; for the other ranks."""
        while (order := self._next_order()) is not None:
            self._report(self._take_part(order))
        self._let_go()

    def _let_go(self) -> None:
        if self._throttle is not None:
            self._throttle.close()

    @abstractmethod
    def _give(self, order: WorkOrder | None) -> None:
        """Tell all other ranks what to do; for rank 0."""

    @abstractmethod
    def _next_order(self) -> WorkOrder | None:
        """Wait for what rank 0 says."""

    @abstractmethod
    def _collect(self, own: ExperimentPart) -> list[ExperimentPart]:
        """Reports of all ranks; for rank 0."""

    @abstractmethod
    def _report(self, own: ExperimentPart) -> None:
        """Tell rank 0 what happened here."""

    @abstractmethod
    def _take_part(self, order: WorkOrder) -> ExperimentPart:
        """Send and receive."""


@dataclass
class Arrival:
    """Time at which the message of a flow counts as arrived, if the machine is an emulated one.

    Attributes
    ----------
    throttle, flow, size_bytes
        The machine, and what is sent.
    ready_seconds
        When the flow could send: the start, and then the end of its last message. How late the processes were to notice that
        is no matter of the machine that is emulated.
    due_seconds
        When the message in flight arrives; None until it is asked for.
    late_seconds
        How long after that it was noticed, for the last one that has arrived.
    """

    throttle: Throttle
    flow: MeasuredFlow
    size_bytes: int
    ready_seconds: float
    due_seconds: float | None = None
    late_seconds: float = 0.0

    @property
    def left_seconds(self) -> float:
        """Time that the message in flight still takes; 0 if none is."""
        return 0.0 if self.due_seconds is None else max(0.0, self.due_seconds - time.monotonic())

    def wait_seconds(self) -> float:
        """Time for which the message that has come is still in flight; 0 if it has arrived, and then the next one is asked for."""
        if self.due_seconds is None:
            passage = self.throttle.send(self.flow, self.size_bytes, self.ready_seconds)
            self.ready_seconds, self.due_seconds = passage.free_seconds, passage.due_seconds
        left = self.due_seconds - time.monotonic()
        if left > 0:
            return left
        self.due_seconds, self.late_seconds = None, -left
        return 0.0


def require_ranks(topology: Topology, job: LaunchedProcesses) -> None:
    """Raise InputError if an emulated machine has another number of ranks than there are processes."""
    if topology.num_ranks != len(job.hosts):
        raise InputError(
            f"has {topology.num_ranks} ranks, and processes have been started for {len(job.hosts)}; start as many",
            path=topology.name,
        )


def _lateness(ended: EndedProcesses) -> float:
    """Lateness of a flow, in times what it may be."""
    return ended.late_us / max(_LATE * ended.done_us, _LATE_US)


def payload_bytes(size_bytes: int, throttle: Throttle | None) -> int:
    """Bytes that are really sent for a message: all, unless the time is that of an emulated machine.

    Parameters
    ----------
    size_bytes
        Size of the message.
    throttle
        The emulated machine, or None.
    """
    most = math.inf if throttle is None else throttle.MOST_PAYLOAD_BYTES
    return int(min(size_bytes, most))


class Buffers:
    """Memory that messages are sent from and received into, kept so that only the first use of it is slow.

    Parameters
    ----------
    make
        Makes memory of so many bytes, all written to.
    """

    def __init__(self, make: Any) -> None:
        self._make = make
        self._kept: dict[tuple[str, int], Any] = {}

    def get(self, use: str, number: int, size_bytes: int) -> Any:
        """Memory of a size.

        Parameters
        ----------
        use, number
            Purpose; two uses at a time have two names.
        size_bytes
            How much.
        """
        kept = self._kept.get((use, number))
        if kept is None or len(kept) < size_bytes:
            kept = self._kept[use, number] = self._make(size_bytes)
        return kept[:size_bytes]
