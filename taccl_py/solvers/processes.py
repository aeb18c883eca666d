"""Processes that solve side by side and end together: when they are told to, and when their parent is gone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

from taccl_py.solvers.limits import INTERRUPTS, STOP

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

# Seconds between two looks at whether the user wants an end.
_POLL_SECONDS = 0.1
# One thread at a time starts a process.
_STARTING = threading.Lock()


@dataclass(frozen=True)
class Workers:
    """Processes that were started by `start_workers`, or those of a cluster (`taccl_py.solvers.cluster`).

    Attributes
    ----------
    pool
        Runs functions in them.
    lost
        Error raised for calls whose process has died.
    """

    pool: Executor
    _end: Callable[[], None]
    lost: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    _kill: Callable[[], None] = lambda: None

    def submit(
        self, function: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
    ) -> Future[_Result]:
        """Begin with a call; where a process has died before, its result is that, as for the calls that ran then."""
        try:
            with _interrupts_held():
                return self.pool.submit(function, *given, **named)
        except self.lost as error:
            lost = error
        except RuntimeError as error:  # of a pool that was given up
            lost = self.lost[0](str(error))
        found: Future[_Result] = Future()
        found.set_exception(lost)
        return found

    def stop(self) -> None:
        """Tell all processes to come to an end, by setting `STOP` there; may be said more than once."""
        self._end()

    def abandon(self) -> None:
        """End all processes that are on this machine, whatever they do; running calls are lost."""
        self._kill()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold interrupts back, in this thread and in the processes that it starts, which cannot leave them to their parent at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _UnnamedMain(ModuleType):
    """The main module without its name and file, for which a new process looks to run it again; all else is as there."""

    def __init__(self, main: ModuleType) -> None:
        super().__init__(main.__name__)
        self._main, self.__file__ = main, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._main, name)


@contextmanager
def _main_not_run_again() -> Iterator[None]:
    """Start processes that do not run the program's main module: what they are sent is in modules of this package.

    A script that calls this package at its top level, without a guard, would otherwise run again in each of them.
    """
    with _STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = _UnnamedMain(main)
        try:
            yield
        finally:
            sys.modules["__main__"] = main


class _Process(SpawnProcess):
    """A process that does not run the main module, and leaves signals to its parent, so that only a kill ends it from outside."""

    def start(self) -> None:
        """Start it."""
        with _main_not_run_again():
            super().start()

    def terminate(self) -> None:
        """End it; a pool does this with the others when one of them has died."""
        self.kill()


class _Context(SpawnContext):
    Process = _Process


def _kill_all() -> None:
    """End the processes that were started here; those that the program has started itself go on."""
    for process in multiprocessing.active_children():
        if isinstance(process, _Process):
            process.kill()


@contextmanager
def start_workers(number: int) -> Iterator[Workers]:
    """Start so many processes, and end them at the end of the context; an interrupt does not wait for what they do."""
    context = _Context()
    # Not an event: setting one waits for its sleepers, and those that were killed never answer.
    listens, ends = context.Pipe(duplex=False)
    with ProcessPoolExecutor(number, context, _prepare, (listens, gc.get_threshold())) as pool:

        def abandon() -> None:
            # Cancelled calls are taken out first: the pool's thread, which tells all calls that they are lost, fails at theirs.
            pool.shutdown(wait=False, cancel_futures=True)
            _kill_all()

        try:
            yield Workers(pool, ends.close, _kill=abandon)
        except KeyboardInterrupt:
            abandon()
            raise
        finally:
            ends.close()
            pool.shutdown(cancel_futures=True)


class BackgroundCall(Generic[_Result]):
    """A call in a process of its own, which ends with a stack of contexts."""

    def __init__(self, stack: ExitStack, function: Callable[..., _Result], *given: object) -> None:
        """Begin with it.

        Parameters
        ----------
        stack
            Ends the process.
        function, given
            A function of the top level of some module, and what it is given.
        """
        self._workers = stack.enter_context(start_workers(1))
        # Pickled now: the pool would do so in a thread, while this one adds to what is given.
        self._future = self._workers.submit(_called, pickle.dumps((function, given)))

    def result(self, stop: threading.Event) -> _Result | None:
        """Result, for which this may wait; None if the process has died. The process is told if the user wants an end."""
        while not self._future.done():
            wait([self._future], _POLL_SECONDS)
            if stop.is_set():
                self._workers.stop()
        try:
            found: _Result = self._future.result()
        except BrokenProcessPool:  # perhaps for want of memory
            return None
        return found


def _called(pickled: bytes) -> Any:
    function, given = pickle.loads(pickled)
    return function(*given)


def _prepare(listens: Connection, collects_after: tuple[int, int, int]) -> None:
    """Leave interrupts to the parent, and stop when its end of the pipe is closed, be it because it was killed.

    Garbage is looked for as rarely as in the parent.

    A terminal sends Ctrl-C to everyone, and a cluster's scheduler SIGTERM: what becomes of that is the parent's decision.
    """
    gc.set_threshold(*collects_after)
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    # They were held back since the process began (`_interrupts_held`); those that came meanwhile are dropped with that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    parent = multiprocessing.parent_process()

    def relay() -> None:
        with suppress(EOFError, OSError):
            listens.recv()
        STOP.set()
        if parent is not None:
            # Processes of a pool hold each other's queue open, so they would wait for a next call from nobody.
            parent.join()
            os._exit(1)

    threading.Thread(target=relay, daemon=True).start()
