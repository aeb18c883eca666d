"""Race: several engines on several demands, each run in a process of its own.

The results come back in the order of the runs, whoever was first, so what is made of them does not depend on timing. A run
that has no answer (an engine that cannot serve the demand, no way through a sketch, no time) says why.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event as SharedEvent

from taccl_py.errors import TacclError
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis

_POLL_SECONDS = 0.1
# In a process of a race: set when the race is to end.
_stop = threading.Event()


@dataclass(frozen=True)
class Run:
    """One engine on one demand.

    Attributes
    ----------
    engine
        Its name.
    demand
        What it is asked.
    """

    engine: str
    demand: Demand


@dataclass(frozen=True)
class Outcome:
    """What became of a run: an answer, or the reason why there is none."""

    run: Run
    synthesis: Synthesis | None
    reason: str = ""


class Racer:
    """Carries out runs on several processes, which live as long as this object's context."""

    def __init__(self, options: Options, seconds_per_run: float, workers: int) -> None:
        """Prepare.

        Parameters
        ----------
        options
            Solver, and the limits of the whole race.
        seconds_per_run
            Most seconds for one run.
        workers
            Processes; 1 runs everything in this one.
        """
        self._options, self._seconds, self._workers = options, seconds_per_run, workers
        self._deadline = Deadline(options.limits.seconds)
        self._pool: ProcessPoolExecutor | None = None
        self._shared_stop: SharedEvent | None = None

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
        context = multiprocessing.get_context("spawn")
        self._shared_stop = context.Event()
        with ProcessPoolExecutor(self._workers, context, _prepare, (self._shared_stop,)) as self._pool:
            try:
                yield self
            finally:
                self._shared_stop.set()
                self._pool.shutdown(cancel_futures=True)

    def race(self, runs: Sequence[Run], events: Events) -> list[Outcome]:
        """Carry out runs; those that were not begun in time have no answer."""
        if self._pool is None:
            return [self._here(run, events) for run in runs]
        settings = _Settings.of(replace(self._options, limits=self._options.limits.within(self._seconds)))
        futures = [self._pool.submit(_carry_out, run, settings) for run in runs]
        self._await(futures, events)
        return [
            future.result() if future.done() and not future.cancelled() else Outcome(run, None, "no time was left")
            for run, future in zip(runs, futures, strict=True)
        ]

    def _here(self, run: Run, events: Events) -> Outcome:
        if self.over:
            return Outcome(run, None, "no time was left")
        events.stage(f"{run.engine} at {run.demand.size_bytes:g} bytes")
        seconds = min(self._seconds, self._deadline.left)
        return _answer(run, replace(self._options, limits=self._options.limits.within(seconds)))

    def _await(self, futures: Sequence[Future[Outcome]], events: Events) -> None:
        """Wait for all; when time is up or the user says stop, cancel what waits and let what runs come to its end."""
        pending = set(futures)
        while pending:
            events.stage(f"race: {len(futures) - len(pending)} of {len(futures)} runs")
            _, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
            if self.over and self._shared_stop is not None:
                self._shared_stop.set()
                pending = {future for future in pending if not future.cancel()}


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
        return Options(self.solver, Limits(self.seconds, self.work, self.workers, self.seed, _stop))


def _prepare(shared: SharedEvent) -> None:
    """Leave interrupts to the parent, and pass its stop on to this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def relay() -> None:
        shared.wait()
        _stop.set()

    threading.Thread(target=relay, daemon=True).start()


def _carry_out(run: Run, settings: _Settings) -> Outcome:
    return _answer(run, settings.options())


def _answer(run: Run, options: Options) -> Outcome:
    try:
        return Outcome(run, load_engine(run.engine)(run.demand, options, Events()))
    except TacclError as error:
        return Outcome(run, None, str(error))
