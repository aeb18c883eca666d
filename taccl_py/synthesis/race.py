"""Race: several engines on several demands, each run in a process of its own.

The results come back in the order of the runs, whoever was first, so what is made of them does not depend on timing. A run
that has no answer (an engine that cannot serve the demand, no path through a sketch, no time) says why.

Under a budget of work, a race takes what it would take on `Params.processors` processors, whatever processors there are: runs count what they do, and
one that would not have begun there in time has no answer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any, Generic, TypeVar

from taccl_py.errors import TacclError
from taccl_py.grouping import by_number
from taccl_py.solvers.processes import Workers, start_workers
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis
from taccl_py.synthesis.justify import with_better_starts
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.uneven import fit_to_size
from taccl_py.work import count_seconds, work_set_aside


@dataclass(frozen=True)
class Params:
    """Numbers of races.

    Attributes
    ----------
    processors
        Processors on which counted work is thought to be done side by side. Guess.
    most_under_way
        Runs that are begun before the work of the first of them is counted. Guess.
    patience_seconds
        Seconds after which a run that does not end in time is given up where there is no answer; where there is one,
        the grace of the limits is enough. Measured: 100000 chunks, where the race hung.
    """

    processors: int = 2
    most_under_way: int = 4
    patience_seconds: float = 30.0


PARAMS = Params()

_NO_TIME = "no time was left"
_NOT_NEEDED = "a run before it was enough"
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
    part
        Part of the time for one run within which it ends.
    """

    engine: str
    demand: Demand
    asked: Demand | None = None
    bound: Bound | None = None
    part: float = 1.0


@dataclass(frozen=True)
class RaceOutcome:
    """Outcome of a run: an answer, or the reason why there is none."""

    run: EngineRun
    synthesis: Synthesis | None
    reason: str = ""


def _never(_: object) -> bool:
    """Of no result: all runs are needed."""
    return False


@dataclass(frozen=True)
class SecondRuns(Generic[_Result]):
    """Runs for processors that the first runs of a race leave free; they count if what those find is not enough.

    Attributes
    ----------
    runs
        The runs, in their order.
    are_needless
        Of the results of first runs: whether they are enough.
    """

    runs: Sequence[EngineRun] = ()
    are_needless: Callable[[Sequence[_Result]], bool] = _never


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
        self._deadline = options.limits.deadline()
        self._processes: Workers | None = None
        self._is_ended = False

    @property
    def over(self) -> bool:
        """True if no time is left, the user said stop, or the processes were ended as an outcome was enough."""
        return self._is_ended or self._deadline.over()

    @contextmanager
    def running(self) -> Iterator[Racer]:
        """Start the processes and end them."""
        if self._workers == 1:
            yield self
            return
        with start_workers(self._workers) as self._processes:
            yield self

    def within(self, seconds: float, least_seconds: float = 0.0, ends_at_s: float = math.inf) -> Racer:
        """Return one with the same processes and another time limit, which is counted from now on.

        Parameters
        ----------
        seconds
            The limit.
        least_seconds
            Seconds that it has in any case, whatever the clock says.
        ends_at_s
            Time of the clock (`time.monotonic`) at which it ends even so.
        """
        limits = self._options.limits.within(max(seconds, least_seconds)).until(ends_at_s).at_least(least_seconds)
        options = replace(self._options, limits=limits)
        found = Racer(options, self._seconds, self._workers, has_answer=self._has_answer)
        found._processes = self._processes
        return found

    def race(
        self,
        runs: Sequence[EngineRun],
        events: Events,
        is_enough: Callable[[RaceOutcome], bool] = _never,
        second: SecondRuns[RaceOutcome] | None = None,
    ) -> list[RaceOutcome]:
        """Carry out runs; those that were not begun in time, and those that come behind one whose outcome is enough, have no answer."""
        return self.race_for(_as_it_is, runs, events, is_enough, second)

    def race_for(
        self,
        use: Callable[[RaceOutcome], _Result],
        runs: Sequence[EngineRun],
        events: Events,
        is_enough: Callable[[_Result], bool] = _never,
        second: SecondRuns[_Result] | None = None,
    ) -> list[_Result]:
        """Carry out runs, and in the same processes what is made of each outcome by a function that can be sent there."""
        limits = self._options.limits.within(self._seconds)
        entered = _RaceRuns(use, tuple(runs), second or SecondRuns(), is_enough, limits.by_work)
        if self.over:  # processes take some runs even so
            return [entered.without_answer(run, _NO_TIME).result for run in entered.runs]
        options = replace(self._options, limits=limits)
        if self._processes is None:
            found = self._one_by_one(entered, options, events)
        else:
            found = self._side_by_side(self._processes, entered, options, events)
        found = entered.that_count(found, self._deadline.budget_left)
        if limits.by_work:
            count_seconds(starts_on(PARAMS.processors, [each.seconds for each in found])[1])
        reason = _NO_TIME if entered.is_next_needed(found) else _NOT_NEEDED
        found += [entered.without_answer(run, reason) for run in entered.runs[len(found) :]]
        return [each.result for each in found]

    def _one_by_one(self, entered: _RaceRuns[_Result], options: Options, events: Events) -> list[_Carried[_Result]]:
        """Carry out runs in this process, up to one that is not needed."""
        found: list[_Carried[_Result]] = []
        for run in entered.runs:
            if not entered.is_next_needed(found):
                break
            if self.over or entered.next_start_s(found) >= self._deadline.left:
                found.append(entered.without_answer(run, _NO_TIME))
                continue
            events.stage(f"{run.engine} at {run.demand.size_bytes:g} bytes")
            limits = options.limits if entered.by_work else options.limits.within(self._deadline.left)
            found.append(_carry_out(run, replace(options, limits=limits), entered.use))
        return found

    def spread(self, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Results of a function of the top level of some module for all items, found side by side.

        An item is not asked for before there is a process for it.
        """
        coming, taken = iter(items), list[_Item]()
        if self._processes is not None:
            with suppress(BrokenProcessPool):
                futures: list[Future[tuple[_Result, float]]] = []
                for item in coming:
                    taken.append(item)
                    futures.append(self._processes.submit(_counted, function, item))
                    if len(under_way := [future for future in futures if not future.done()]) >= self._workers:
                        wait(under_way, return_when=FIRST_COMPLETED)
                    # Whoever is done by now: what is asked for next may depend on what is counted.
                    if self._options.limits.by_work and len(futures) >= PARAMS.most_under_way:
                        count_seconds(futures[-PARAMS.most_under_way].result()[1] / PARAMS.processors)
                results = [future.result() for future in futures]
                count_seconds(_of_last(results) / PARAMS.processors)
                return [result for result, _ in results]
        results = []
        for item in chain(taken, coming):
            results.append(_counted(function, item))
            if len(results) >= PARAMS.most_under_way:
                count_seconds(results[-PARAMS.most_under_way][1] / PARAMS.processors)
        count_seconds(_of_last(results) / PARAMS.processors)
        return [result for result, _ in results]

    def spread_longest_first(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item], length: Callable[[_Item], float]
    ) -> list[_Result]:
        """Results of a function for all items, in their order; what takes longest is begun first, so that processes end together."""
        order = sorted(range(len(items)), key=lambda place: -length(items[place]))
        found = dict(zip(order, self.spread(function, [items[place] for place in order]), strict=True))
        return [found[place] for place in range(len(items))]

    def spread_together(self, *several: tuple[Callable[[Any], Any], Iterable[Any]]) -> list[list[Any]]:
        """Results of several functions, each for its items, as `spread` finds them: one after the other, with no wait between two of them."""
        calls = (
            _SpreadCall(place, function, item) for place, (function, items) in enumerate(several) for item in items
        )
        return by_number(len(several), self.spread(_result_of, calls))

    def _side_by_side(
        self, processes: Workers, entered: _RaceRuns[_Result], options: Options, events: Events
    ) -> list[_Carried[_Result]]:
        """Carry out runs in processes, up to one that is not needed; they end with one that is enough.

        When time is up or the user says stop, cancel what waits and let what runs come to its end, if that is soon.
        """
        futures: list[Future[_Carried[_Result]]] = []
        pending, waiting = set[Future[_Carried[_Result]]](), deque(entered.runs)
        over_since: float | None = None
        while pending or waiting:
            if entered.makes_second_needless(entered.carried(futures)):
                waiting = deque(entered.first[len(futures) :])
            # What waits in a pool could not be cancelled, and would run to its end in vain.
            while waiting and len(pending) < self._workers and self._may_begin(entered, futures):
                futures.append(processes.submit(_carry_out, waiting.popleft(), options, entered.use))
                pending.add(futures[-1])
            if not pending:
                break
            events.stage(f"race: {len(futures) - len(pending)} of {len(futures) + len(waiting)} runs")
            ready, pending = wait(pending, COMMON.poll_seconds, FIRST_COMPLETED)
            self._has_answer |= any(future.exception() is None and future.result().is_answer for future in ready)
            done = entered.carried(takewhile(Future.done, futures))
            if pending and not all(entered.is_next_needed(done[:place]) for place in range(1, len(done) + 1)):
                self._is_ended = True
                processes.abandon()
                break
            if self.over:
                processes.stop()
                pending = {future for future in pending if not future.cancel()}
                waiting.clear()
                over_since = over_since or time.monotonic()
                if time.monotonic() - over_since > self._patience_seconds:
                    processes.abandon()
        return entered.carried(futures)

    def _may_begin(self, entered: _RaceRuns[_Result], futures: Sequence[Future[_Carried[_Result]]]) -> bool:
        """True if the run behind those that have begun would begin in time by counted work, or that is not known and a processor idles."""
        if not entered.by_work or (not all(future.done() for future in futures) and self._workers > PARAMS.processors):
            return True
        seconds = [
            each.seconds if future.done() else math.inf
            for each, future in zip(entered.carried(futures), futures, strict=True)
        ]
        return starts_on(PARAMS.processors, [*seconds, 0.0])[0][-1] < self._deadline.left

    @property
    def _patience_seconds(self) -> float:
        limits = self._options.limits
        return limits.grace_seconds if self._has_answer else max(PARAMS.patience_seconds, self._seconds)


@dataclass(frozen=True)
class _SpreadCall:
    """A call of one of several functions, by its place among them."""

    place: int
    function: Callable[[Any], Any]
    item: Any


def _result_of(call: _SpreadCall) -> tuple[int, Any]:
    return call.place, call.function(call.item)


@dataclass(frozen=True)
class _Carried(Generic[_Result]):
    """Result that was made of an outcome, whether that was an answer, and the seconds of work that it took."""

    result: _Result
    is_answer: bool
    seconds: float = 0.0


@dataclass(frozen=True)
class _RaceRuns(Generic[_Result]):
    """The runs of a race, and which of them are needed.

    Attributes
    ----------
    use
        What is made of each outcome.
    first, second
        Those that begin first, and those for processors that these leave free.
    is_enough
        Of the result of a run: whether those behind it are needless.
    by_work
        Whether runs begin and end by their counted work.
    """

    use: Callable[[RaceOutcome], _Result]
    first: Sequence[EngineRun]
    second: SecondRuns[_Result]
    is_enough: Callable[[_Result], bool]
    by_work: bool

    @property
    def runs(self) -> list[EngineRun]:
        """All runs, in their order."""
        return [*self.first, *self.second.runs]

    def without_answer(self, run: EngineRun, reason: str) -> _Carried[_Result]:
        """Result of a run that has no answer."""
        return _Carried(self.use(RaceOutcome(run, None, reason)), is_answer=False)

    def carried(self, futures: Iterable[Future[_Carried[_Result]]]) -> list[_Carried[_Result]]:
        """Results of the first of all runs."""
        return [self._carried(run, future) for run, future in zip(self.runs, futures, strict=False)]

    def _carried(self, run: EngineRun, future: Future[_Carried[_Result]]) -> _Carried[_Result]:
        reason = _NO_TIME
        if future.done() and not future.cancelled():
            with suppress(BrokenProcessPool):
                return future.result()
            reason = DIED
        return self.without_answer(run, reason)

    def next_start_s(self, found: Sequence[_Carried[_Result]]) -> float:
        """Counted seconds after which the next run begins, by those before it; 0 where nothing is counted."""
        return starts_on(PARAMS.processors, [*(each.seconds for each in found), 0.0])[0][-1] if self.by_work else 0.0

    def is_next_needed(self, found: Sequence[_Carried[_Result]]) -> bool:
        """True if the run behind some, whose results are known and which are needed, is needed."""
        if found and self.is_enough(found[-1].result):
            return False
        return len(found) < len(self.first) or not self.makes_second_needless(found)

    def makes_second_needless(self, found: Sequence[_Carried[_Result]]) -> bool:
        """True if what first runs have found so far is enough."""
        return self.second.are_needless([each.result for each in found[: len(self.first)]])

    def that_count(self, found: Sequence[_Carried[_Result]], left: float) -> list[_Carried[_Result]]:
        """Results up to the first run that is not needed; of runs that begin after so many counted seconds, that there was no time."""
        kept: list[_Carried[_Result]] = []
        for run, each in zip(self.runs, found, strict=False):
            if not self.is_next_needed(kept):
                break
            in_time = not self.by_work or self.next_start_s(kept) < left
            kept.append(each if in_time else self.without_answer(run, _NO_TIME))
        return kept


def _as_it_is(outcome: RaceOutcome) -> RaceOutcome:
    """The outcome itself."""
    return outcome


def starts_on(processors: int, seconds: Sequence[float]) -> tuple[list[float], float]:
    """Starts of runs that take so many seconds, each on the processor that is free first, and the end of all of them."""
    free, begun = [0.0] * processors, list[float]()
    for lasting in seconds:
        begun.append(min(free))
        free[free.index(begun[-1])] += lasting
    return begun, max(free)


def _carry_out(run: EngineRun, options: Options, use: Callable[[RaceOutcome], _Result]) -> _Carried[_Result]:
    limits = options.limits.within(options.limits.seconds * run.part)
    with work_set_aside() as spent:
        outcome = _answer(run, replace(options, limits=limits))
        result = use(outcome)
    return _Carried(result, outcome.synthesis is not None, spent[0])


def _of_last(results: Sequence[tuple[_Result, float]]) -> float:
    """Work of those that are the last under way."""
    return sum(seconds for _, seconds in results[1 - PARAMS.most_under_way :])


def _counted(function: Callable[[_Item], _Result], item: _Item) -> tuple[_Result, float]:
    """Result, and the seconds of work that it took."""
    with work_set_aside() as spent:
        result = function(item)
    return result, spent[0]


def _answer(run: EngineRun, options: Options) -> RaceOutcome:
    try:
        deadline = options.limits.deadline()
        answer = load_engine(run.engine)(run.demand, replace(options, bound=run.bound), Events())
        if run.asked is not None:
            answer = fit_to_size(answer, run.asked, options.limits.within(deadline.left))
        return RaceOutcome(run, with_better_starts(answer, run.demand, options.limits.within(deadline.left)))
    except TacclError as error:
        return RaceOutcome(run, None, str(error))
