"""A bench of real processes under mpiexec: rank 0 decides what runs, all take part.

Every flow sends its next message when the last one has arrived (synchronous sends), so that n messages take
n (alpha + beta s). Times are taken where messages arrive, from the end of a barrier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl_py.measure.experiment import Experiment, Flow

_DATA_TAG = 7


@dataclass
class _Sending:
    """One flow out of this rank: what is left, and the message under way."""

    dst: int
    tag: int
    left: int
    request: Any = None


@dataclass
class _Receiving:
    """One flow into this rank."""

    place: int
    src: int
    tag: int
    left: int
    buffer: Any
    request: Any = None
    done_us: float = 0.0


class MpiBench:
    """A bench that is the processes of a communicator; only rank 0 runs experiments, the others serve.

    Parameters
    ----------
    mpi
        The module of mpi4py.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD.Dup()
        self.rank = int(self._comm.rank)
        hosts = self._comm.allgather(mpi.Get_processor_name())
        numbers = {host: index for index, host in enumerate(dict.fromkeys(hosts))}
        self._node_of = tuple(numbers[host] for host in hosts)

    @property
    def name(self) -> str:
        """Name for people."""
        return f"mpi-{len(self._node_of)}"

    @property
    def node_of(self) -> tuple[int, ...]:
        """Node of every rank: processes with one host name are one node."""
        return self._node_of

    @property
    def pairs(self) -> tuple[Flow, ...]:
        """Every pair: MPI connects all."""
        ranks = range(len(self._node_of))
        return tuple(Flow(src, dst) for src in ranks for dst in ranks if src != dst)

    def run(self, experiment: Experiment) -> tuple[float, ...]:
        """Run an experiment on all ranks; for rank 0."""
        self._comm.bcast(experiment, root=0)
        return self._take_part(experiment)

    def finish(self) -> None:
        """Tell the other ranks that there is nothing more; for rank 0."""
        self._comm.bcast(None, root=0)

    def serve(self) -> None:
        """Take part in experiments until rank 0 has no more; for the other ranks."""
        while (experiment := self._comm.bcast(None, root=0)) is not None:
            self._take_part(experiment)

    def _take_part(self, experiment: Experiment) -> tuple[float, ...]:
        size = experiment.size_bytes
        data = np.zeros(size, dtype=np.uint8)
        sending, receiving = [], []
        for place, flow in enumerate(experiment.flows):
            if flow.src == self.rank:
                sending.append(_Sending(flow.dst, _DATA_TAG + place, experiment.messages))
            if flow.dst == self.rank:
                buffer = np.empty(size, dtype=np.uint8)
                receiving.append(_Receiving(place, flow.src, _DATA_TAG + place, experiment.messages, buffer))
        for flow_in in receiving:
            flow_in.request = self._receive(flow_in)
        self._comm.Barrier()
        begun = time.perf_counter()
        busy_out, busy_in = list(sending), list(receiving)
        while busy_out or busy_in:
            busy_out = [one for one in busy_out if self._push(one, data)]
            busy_in = [one for one in busy_in if self._pull(one, begun)]
        found = [(one.place, one.done_us) for one in receiving]
        everything = dict(pair for part in self._comm.allgather(found) for pair in part)
        return tuple(everything[place] for place in range(len(experiment.flows)))

    def _receive(self, one: _Receiving) -> Any:
        return self._comm.Irecv([one.buffer, self._mpi.BYTE], source=one.src, tag=one.tag)

    def _push(self, one: _Sending, data: Any) -> bool:
        """Send the next message if the last has arrived; whether the flow goes on."""
        if one.request is not None and not one.request.Test():
            return True
        if one.left == 0:
            return False
        one.left -= 1
        one.request = self._comm.Issend([data, self._mpi.BYTE], dest=one.dst, tag=one.tag)
        return True

    def _pull(self, one: _Receiving, begun: float) -> bool:
        """Take a message that has come; whether more are to come."""
        if not one.request.Test():
            return True
        one.left -= 1
        if one.left == 0:
            one.done_us = (time.perf_counter() - begun) * 1e6
            return False
        one.request = self._receive(one)
        return True
