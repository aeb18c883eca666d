"""Attempts of matching, one with each seed: here one after the other, on other processors or a cluster, with the same results.

Results come in the order of the attempts, whoever is done first, and what is made of them does not depend on who did it.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.transform import allreduce, combining, dispatched
from taccl_py.solvers.cluster import cluster_workers
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.solvers.processes import Workers, start_workers
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.matching.exchange import exchange
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.flood import ChunkPriority, FloodRule, flood
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.synthesis.matching.regrow import RegrowTask, regrown
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.reversal import ROUTED
from taccl_py.topology.model import Topology
from taccl_py.work import count_seconds, work_set_aside


@dataclass(frozen=True, slots=True)
class MatchingVariant:
    """One variant of matching chunks with links.

    Attributes
    ----------
    cuts
        Chunks of a rank's share.
    seed
        Of the choices among equals.
    thrifty
        Whether a chunk goes into a node once.
    most_reordered
        Messages up to which they are then put into the order of the longest path still to go, if that is faster.
    improved
        Whether what is found is improved step by step.
    """

    cuts: int
    seed: int
    thrifty: bool
    most_reordered: int
    improved: bool = False


class Attempts:
    """Carries out attempts on one demand, on several processors where that pays."""

    def __init__(self, demand: Demand, limits: Limits, over: Callable[[], bool], deadline: Deadline) -> None:
        self._demand, self._limits, self._over, self._deadline = demand, limits, over, deadline
        # In a process of a race the others are busy too.
        self._number = limits.workers if multiprocessing.parent_process() is None else 1
        self._scheduler = limits.scheduler
        self._stack = ExitStack()
        self._workers: Workers | None = None

    def __enter__(self) -> Attempts:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the processes."""
        self._stack.__exit__(kind, error, at)

    def results(self, attempts: Sequence[MatchingVariant], messages: int) -> Generator[Schedule | None, None, None]:
        """Results in order, None where time was over; whoever needs no more of them closes the iterator.

        Parameters
        ----------
        attempts
            What to try.
        messages
            How many messages each of them has, about.
        """
        # The first one is often as good as can be, and no processes are needed.
        is_alone = self._number == 1 and not self._scheduler
        here = len(attempts) if is_alone or messages * (len(attempts) - 1) < PARAMS.least_process_messages else 1
        for attempt in attempts[:here]:
            yield carry_out(self._demand, attempt, self._over)
        if here == len(attempts):
            return
        if self._workers is None:
            helpers = cluster_workers(self._scheduler) if self._scheduler else start_workers(self._number)
            self._workers = self._stack.enter_context(helpers)
        limits = replace(self._limits, seconds=self._deadline.left)
        others = attempts[here:]
        # Pickled now: the pool would do so in a thread, while this one adds to what the topology remembers.
        pickled = pickle.dumps(self._demand)
        futures = [self._workers.submit(_carry_out_there, pickled, each, limits) for each in others]
        try:
            for attempt, future in zip(others, futures, strict=True):
                yield self._awaited(self._workers, attempt, future)
        finally:
            for future in futures:
                future.cancel()

    def _awaited(
        self, workers: Workers, attempt: MatchingVariant, future: Future[tuple[Schedule | None, float]]
    ) -> Schedule | None:
        if self._limits.by_work and self._over():  # whoever is done by now
            return None
        while not future.done():
            wait([future], COMMON.poll_seconds)
            if self._over():
                workers.stop()
                future.cancel()
        try:
            found, seconds = future.result()
            count_seconds(seconds / self._number)
            return found
        except CancelledError:
            return None
        except workers.lost:  # perhaps for want of memory, of which one alone needs less
            return carry_out(self._demand, attempt, self._over)


def _carry_out_there(pickled: bytes, attempt: MatchingVariant, limits: Limits) -> tuple[Schedule | None, float]:
    """Schedule, and the seconds of work that it took."""
    with work_set_aside() as spent:
        found = carry_out(pickle.loads(pickled), attempt, limits.countdown())
    return found, spent[0]


def carry_out(demand: Demand, attempt: MatchingVariant, over: Callable[[], bool]) -> Schedule | None:
    """Schedule of one attempt, or None if time was over before."""
    found = _matched(demand, attempt, over)
    return dispatched(found) if found is not None and len(found.messages) <= attempt.most_reordered else found


def _matched(demand: Demand, attempt: MatchingVariant, over: Callable[[], bool]) -> Schedule | None:
    topology, kind = demand.topology, ROUTED[demand.kind]
    if kind is demand.kind:
        return _routed(demand, topology, attempt, over)
    backward = _routed(demand, topology.reversed(), attempt, over)
    if backward is None or demand.kind is not Kind.ALLREDUCE:
        return None if backward is None else combining(backward, topology)
    forward = _routed(demand, topology, attempt, over)
    return None if forward is None else allreduce(forward, backward)


def _routed(demand: Demand, topology: Topology, attempt: MatchingVariant, over: Callable[[], bool]) -> Schedule | None:
    collective = Collective(ROUTED[demand.kind], topology.num_ranks, attempt.cuts, demand.root)
    chunk_bytes = demand.chunk_bytes(demand.collective(attempt.cuts))
    fabric = Fabric.of(topology, chunk_bytes)
    grown: Sequence[Message] | None
    if collective.kind is Kind.ALLTOALL:
        grown = exchange(fabric, attempt.cuts, range(topology.num_ranks))
    else:
        counted = len(topology.links) * collective.num_chunks
        choice = ChunkPriority.CHANCE if counted > PARAMS.most_counted else ChunkPriority.RAREST
        grown = flood(fabric, collective.source, FloodRule(choice, attempt.thrifty, attempt.seed), over)
    if grown is None:
        return None
    if attempt.improved:
        grown = regrown(fabric, RegrowTask.of(fabric, collective), grown, attempt.seed, over)
    return _scheduled(topology, collective, chunk_bytes, grown)


def _scheduled(topology: Topology, collective: Collective, chunk_bytes: float, grown: Sequence[Message]) -> Schedule:
    relayed: list[set[int]] = [set() for _ in range(topology.num_ranks)]
    if collective.kind is Kind.ALLTOALL:
        for message in grown:
            dst = topology.links[message.link].dst
            relayed[dst].update(chunk for chunk in message.chunks if collective.wanted[chunk] != (dst,))
    scratch = tuple(tuple(sorted(chunks)) for chunks in relayed)
    return Schedule(topology, collective, chunk_bytes, tuple(grown), scratch)
