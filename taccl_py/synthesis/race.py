"""Race: several engines on several demands, each run in a process of its own.

The results come back in the order of the runs, whoever was first, so what is made of them does not depend on timing. A run
that has no answer (an engine that cannot serve the demand, no way through a sketch, no time) says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, TypeVar

from taccl_py.errors import TacclError
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.solvers.processes import STOP, Workers, start_workers
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis
from taccl_py.synthesis.uneven import fit_to_size

_POLL_SECONDS = 0.1
# Without any answer, what does not end so long after it should have, or as long again as it had, is given up. Otherwise there is less to
# lose, and the limits' grace is enough.
_PATIENCE_SECONDS = 30.0
_NO_TIME = "no time was left"
DIED = "a process of the race died, perhaps for want of memory, or was given up as it did not end in time"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class EngineRun:
    """One engine on one demand.

    Attributes
    ----------
    engine
        Its name.
    demand
        What it is asked.
    asked
        The demand that the race serves, where the run's own has a chunk count or a sketch that the race only tries: an answer
        is bound by what was asked. None: the run's own.
    bound
        Bound that holds for every algorithm for the demand, if it is known, so that the engine need not compute it.
    """

    engine: str
    demand: Demand
    asked: Demand | None = None
    bound: Bound | None = None


@dataclass(frozen=True)
class RaceOutcome:
    """What became of a run: an answer, or the reason why there is none."""

    run: EngineRun
    synthesis: Synthesis | None
    reason: str = ""


class Racer:
    """Carries out runs on several processes, which live as long as this object's context."""

    def __init__(self, options: Options, seconds_per_run: float, workers: int, *, has_answer: bool = False) -> None:
        """Prepare.

        Parameters
        ----------
        options
            Solver, and the limits of the whole race.
        seconds_per_run
            Most seconds for one run.
        workers
            Processes; 1 runs everything in this one.
        has_answer
            Whether there is an answer already, so that what does not end in time is soon given up.
        """
        self._has_answer = has_answer
        self._options, self._seconds, self._workers = options, seconds_per_run, workers
        self._deadline = Deadline(options.limits.seconds)
        self._processes: Workers | None = None

    @property
    def over(self) -> bool:
        """Whether no time is left or the user said stop."""
        return self._deadline.left <= 0 or self._options.limits.stop.is_set()

    @contextmanager
    def running(self) -> Iterator[Racer]:
        """Start the processes and end them."""
        if self._workers == 1:
            yield self
            return
        with start_workers(self._workers) as self._processes:
            yield self

    def within(self, seconds: float) -> Racer:
        """Return one with the same processes and another time limit, which is counted from now on."""
        options = replace(self._options, limits=self._options.limits.within(seconds))
        found = Racer(options, self._seconds, self._workers, has_answer=self._has_answer)
        found._processes = self._processes
        return found

    def race(self, runs: Sequence[EngineRun], events: Events) -> list[RaceOutcome]:
        """Carry out runs; those that were not begun in time have no answer."""
        return self.race_for(_as_it_is, runs, events)

    def race_for(
        self, use: Callable[[RaceOutcome], _Result], runs: Sequence[EngineRun], events: Events
    ) -> list[_Result]:
        """Carry out runs, and in the same processes what is made of each outcome by a function that can be sent there."""
        if self._processes is None:
            return [use(self._here(run, events)) for run in runs]
        if self.over:  # processes take some runs even so
            return [use(RaceOutcome(run, None, _NO_TIME)) for run in runs]
        settings = _Settings.of(replace(self._options, limits=self._options.limits.within(self._seconds)))
        futures = [self._processes.submit(_carry_out, run, settings, use) for run in runs]
        self._await(self._processes, futures, events)
        return [_result(use, run, future) for run, future in zip(runs, futures, strict=True)]

    def spread(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Results of a function of the top level of some module for all items, found side by side.

        An item is not asked for before there is a process for it.
        """
        coming, taken = iter(items), list[_Item]()
        if self._processes is not None:
            with suppress(BrokenProcessPool):
                futures: list[Future[_Result]] = []
                for item in coming:
                    taken.append(item)
                    futures.append(self._processes.submit(function, item))
                    if len(under_way := [future for future in futures if not future.done()]) >= self._workers:
                        wait(under_way, return_when=FIRST_COMPLETED)
                return [future.result() for future in futures]
        return [function(item) for item in chain(taken, coming)]

    def _here(self, run: EngineRun, events: Events) -> RaceOutcome:
        if self.over:
            return RaceOutcome(run, None, _NO_TIME)
        events.stage(f"{run.engine} at {run.demand.size_bytes:g} bytes")
        seconds = min(self._seconds, self._deadline.left)
        return _answer(run, replace(self._options, limits=self._options.limits.within(seconds)))

    def _await(self, processes: Workers, futures: Sequence[Future[_Carried[_Result]]], events: Events) -> None:
        """Wait for all; when time is up or the user says stop, cancel what waits and let what runs come to its end, if that is soon."""
        pending = set(futures)
        over_since: float | None = None
        while pending:
            events.stage(f"race: {len(futures) - len(pending)} of {len(futures)} runs")
            ready, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
            self._has_answer |= any(future.exception() is None and future.result().is_answer for future in ready)
            if self.over:
                processes.stop()
                pending = {future for future in pending if not future.cancel()}
                over_since = over_since or time.monotonic()
                if time.monotonic() - over_since > self._patience_seconds:
                    processes.abandon()

    @property
    def _patience_seconds(self) -> float:
        limits = self._options.limits
        return limits.grace_seconds if self._has_answer else max(_PATIENCE_SECONDS, self._seconds)


@dataclass(frozen=True)
class _Carried(Generic[_Result]):
    """What was made of an outcome, and whether that was an answer."""

    result: _Result
    is_answer: bool


@dataclass(frozen=True)
class _Settings:
    """Options without what cannot cross to another process."""

    solver: str
    seconds: float
    work: float | None
    workers: int
    seed: int

    @staticmethod
    def of(options: Options) -> _Settings:
        limits = options.limits
        return _Settings(options.solver, limits.seconds, limits.work, limits.workers, limits.seed)

    def options(self) -> Options:
        """Options of a run here."""
        return Options(self.solver, Limits(self.seconds, self.work, self.workers, self.seed, STOP))


def _as_it_is(outcome: RaceOutcome) -> RaceOutcome:
    """What is made of an outcome that is wanted itself."""
    return outcome


def _result(use: Callable[[RaceOutcome], _Result], run: EngineRun, future: Future[_Carried[_Result]]) -> _Result:
    if not future.done() or future.cancelled():
        return use(RaceOutcome(run, None, _NO_TIME))
    try:
        return future.result().result
    except BrokenProcessPool:
        return use(RaceOutcome(run, None, DIED))


def _carry_out(run: EngineRun, settings: _Settings, use: Callable[[RaceOutcome], _Result]) -> _Carried[_Result]:
    outcome = _answer(run, settings.options())
    return _Carried(use(outcome), outcome.synthesis is not None)


def _answer(run: EngineRun, options: Options) -> RaceOutcome:
    try:
        deadline = Deadline(options.limits.seconds)
        answer = load_engine(run.engine)(run.demand, replace(options, bound=run.bound), Events())
        if run.asked is not None:
            answer = fit_to_size(answer, run.asked, options.limits.within(deadline.left))
        return RaceOutcome(run, answer)
    except TacclError as error:
        return RaceOutcome(run, None, str(error))
