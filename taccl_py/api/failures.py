"""Schedules for every single failure of a machine: one search for each class of failures that are alike, the others as images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from taccl_py.answer import Answer
from taccl_py.api.kept import program_there
from taccl_py.api.lowering import Choice, delivered_instead, with_other_schedule
from taccl_py.api.policy import EFFORTS
from taccl_py.api.search import search_for
from taccl_py.collective import ROOTED
from taccl_py.errors import InputError, Interrupted, LoweringError, SynthesisError
from taccl_py.pipeline.images import LoweredImages, verified_image
from taccl_py.pipeline.replan import schedule_on
from taccl_py.pipeline.resolve import Request
from taccl_py.runtimes import Runtime
from taccl_py.solvers.limits import Deadline, Limits, Over
from taccl_py.solvers.processes import BackgroundCall
from taccl_py.synthesis.engine import Events
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.topology.failures import (
    Failure,
    FailureClass,
    FailureImage,
    FailureSort,
    failure_classes,
    single_failures,
)
from taccl_py.topology.model import Topology

# Ranks from which the whole machine is searched in another process while programs are made; to start one takes about a second.
_LEAST_RANKS_BESIDE = 32

# Part of a class's time that is for its programs, where limits are of the clock.
_LOWERING = 0.4

# Lowers an answer, and may take one of its runners-up for it, until time is up for trials, and for programs of the best ones; the failure is for
# messages, None for the whole machine.
Lowerer = Callable[[Answer, Failure | None, Over, Over], tuple[Answer, Choice | None]]
_LowererInTime = Callable[[Answer, Failure | None], tuple[Answer, Choice | None]]


@dataclass(frozen=True)
class ServedFailure:
    """A failure with the schedule that serves it, and its program if one was asked for; both verified.

    Attributes
    ----------
    failure
        The failure.
    number
        Number of its class.
    answer, choice
        Schedule and program.
    """

    failure: Failure
    number: int
    answer: Answer
    choice: Choice | None


@dataclass(frozen=True)
class ServedClass:
    """A class of failures that are alike.

    Attributes
    ----------
    failures
        The class.
    answer
        What serves the first of them; None if nothing does.
    reason
        Why nothing does.
    """

    failures: FailureClass
    answer: Answer | None
    reason: str = ""


@dataclass
class FailurePlan:
    """Search for every single failure of a machine.

    Attributes
    ----------
    request
        The request, for the whole machine; its engine and limits are those of each search.
    topology
        The whole machine.
    classes
        Classes of failures.
    healthy_us
        Time of a schedule on the whole machine, once everything is served; None if none was found.
    done
        Classes that have been searched.
    missing
        Failures that have no file, and why.
    """

    request: Request
    topology: Topology
    classes: tuple[FailureClass, ...]
    healthy_us: float | None = None
    done: list[ServedClass] = field(default_factory=list)
    missing: list[tuple[Failure, str]] = field(default_factory=list)
    _whole: tuple[Answer, Choice | None] | None = None

    @staticmethod
    def of(request: Request, topology: Topology, sorts: tuple[FailureSort, ...]) -> FailurePlan:
        """Plan for a request.

        Raises
        ------
        InputError
            If the machine has nothing that could fail so.
        """
        root = request.root if request.kind in ROOTED else None
        classes = failure_classes(topology, single_failures(topology, sorts), root)
        return FailurePlan(_on(request, topology), topology, classes)

    def served(
        self, runtime: Runtime, deadline: Deadline, events: Events, lower: Lowerer | None
    ) -> Iterator[ServedFailure]:
        """Failures as soon as each has its file. An interrupt of a search ends the searches; one that comes later ends the images too.

        The whole machine is searched too: first of all, and what is found serves failures where nothing faster is found for them; on many ranks
        beside the making of programs, with a quarter of the work, for comparison alone.

        Parameters
        ----------
        runtime
            Runtime for which is searched.
        deadline
            Of all searches and programs, where limits are of the clock.
        events
            Told of progress.
        lower
            Makes programs; None where schedules are enough.

        Raises
        ------
        LoweringError
            If a limit of the runtime cannot be kept.
        InvalidArtifact
            If the verifier reports errors in what was made.
        """
        limits = self.request.options.limits
        is_beside = limits.workers > 1 and limits.by_work and self.topology.num_ranks >= _LEAST_RANKS_BESIDE
        whole = self._within(self.request, replace(limits.within(limits.seconds * EFFORTS["quick"]), workers=1))
        with ExitStack() as stack:
            if not is_beside:
                events.stage("whole machine")
                self._serve_whole(self._limits(deadline, len(self.classes) + 1), runtime, lower)
            beside: BackgroundCall[float | None] | None = None
            for number, failures in enumerate(self.classes):
                share = self._limits(deadline, len(self.classes) - number)
                kept = 0.0 if lower is None else _LOWERING
                found = self._searched(failures, runtime, share.clock_share(1 - kept), events)
                self.done.append(found)
                if is_beside and beside is None and found.answer is not None and not limits.stop.is_set():
                    beside = BackgroundCall(stack, _time_on_whole, whole, runtime)
                in_time = _as_it_is if lower is None else _InTime.of(lower, share, kept * share.seconds)
                yield from self._served_class(number, found, runtime, events, in_time)
            if beside is not None:
                events.stage("whole machine")
                self.healthy_us = beside.result(limits.stop)
                if self.healthy_us is None and not limits.stop.is_set():  # the process may have died
                    self.healthy_us = _time_on_whole(whole, runtime)

    def _serve_whole(self, limits: Limits, runtime: Runtime, lower: Lowerer | None) -> None:
        """Search the whole machine, and lower what is found."""
        kept = 0.0 if lower is None else _LOWERING
        with suppress(SynthesisError, LoweringError, Interrupted):  # the searches that follow tell of the interrupt
            answer = search_for(self._within(self.request, limits.clock_share(1 - kept)), runtime, Events())
            self.healthy_us = answer.time_us
            self._whole = answer, None
            if lower is not None and not limits.stop.is_set():
                self._whole = _InTime.of(lower, limits, kept * limits.seconds)(answer, None)

    def _or_whole(self, answer: Answer, choice: Choice | None, runtime: Runtime) -> tuple[Answer, Choice | None]:
        """Schedule and program for a failure: those found for it, or those of the whole machine if they serve it too, as fast."""
        if self._whole is None:
            return answer, choice
        whole, program = self._whole
        schedule = schedule_on(whole.schedule, answer.schedule.topology)
        if isinstance(schedule, str):
            return answer, choice
        if choice is None:
            is_slower = schedule.makespan_us >= answer.schedule.makespan_us
            return (answer if is_slower else with_other_schedule(answer, schedule)), None
        there = None if program is None else program_there(program, schedule, runtime, answer.profile)
        if there is None or there.best_us > choice.best_us:
            return answer, choice
        found = delivered_instead(answer, there)
        return found.answer, found.choice

    def _served_class(
        self, number: int, found: ServedClass, runtime: Runtime, events: Events, lower: _LowererInTime
    ) -> Iterator[ServedFailure]:
        failures = found.failures
        if found.answer is None:
            self.missing += [(image.failure, found.reason) for image in failures.images]
            return
        events.stage(f"lowering for {failures.first.what}")
        answer, choice = self._or_whole(*lower(found.answer, failures.first), runtime)
        self.done[-1] = replace(found, answer=answer)
        stop = self.request.options.limits.stop
        was_stopped = stop.is_set()
        yield ServedFailure(failures.first, number, answer, choice)
        programs = None if choice is None else LoweredImages(choice.lowered, runtime)
        for place, image in enumerate(failures.images[1:], start=1):
            if stop.is_set() and not was_stopped:
                self.missing += [(each.failure, "interrupted before it") for each in failures.images[place:]]
                break
            events.stage(f"class {number + 1} of {len(self.classes)}: {place + 1} of {len(failures.images)} failures")
            yield self._image(image, number, answer, choice, programs, lower)

    def _image(
        self, image: FailureImage, number: int, answer: Answer, choice: Choice | None, programs: LoweredImages | None,
        lower: _LowererInTime,
    ) -> ServedFailure:  # fmt: skip
        machine = degraded(self.topology, image.failure.degradation)
        schedule = verified_image(answer.schedule, machine, image.renaming)
        here = replace(answer, schedule=schedule, runners_up=())
        if choice is None or programs is None:
            return ServedFailure(image.failure, number, here, None)
        lowered = programs.of(image.renaming)
        if lowered is None:
            return ServedFailure(image.failure, number, *lower(here, image.failure))
        return ServedFailure(image.failure, number, here, replace(choice, schedule=schedule, lowered=lowered))

    def _searched(self, failures: FailureClass, runtime: Runtime, limits: Limits, events: Events) -> ServedClass:
        if limits.stop.is_set():
            return ServedClass(failures, None, "interrupted before its search")
        if limits.seconds <= 0 or limits.is_cut:
            return ServedClass(failures, None, "no time was left for its search; give more with --time-limit")
        try:
            machine = degraded(self.topology, failures.first.degradation)
        except InputError as error:
            return ServedClass(failures, None, error.what.partition(" any more")[0])
        events.stage(f"search for {failures.first.what}, class {len(self.done) + 1} of {len(self.classes)}")
        try:
            request = self._within(_on(self.request, machine), limits)
            return ServedClass(failures, search_for(request, runtime, events))
        except SynthesisError as error:
            return ServedClass(failures, None, str(error))

    def _limits(self, deadline: Deadline, left: int) -> Limits:
        """Limits of the next search: the work of an effort as it is, a time shared out among the searches that are left."""
        limits = self.request.options.limits
        return limits.clock_share(1 / left) if limits.by_work else limits.within(deadline.left / left)

    def _within(self, request: Request, limits: Limits) -> Request:
        return replace(request, options=replace(request.options, limits=limits))


@dataclass(frozen=True)
class _InTime:
    """Lowers answers until time is over."""

    lower: Lowerer
    over: Over
    settled: Over

    @staticmethod
    def of(lower: Lowerer, limits: Limits, kept: float) -> _InTime:
        """Return the one for limits of work, or of the clock, of which so many seconds are kept for it."""
        if limits.by_work:
            return _InTime(lower, limits.to_lower(), limits.to_settle())
        over = limits.within(kept).countdown()
        return _InTime(lower, over, over)

    def __call__(self, answer: Answer, failure: Failure | None) -> tuple[Answer, Choice | None]:
        return self.lower(answer, failure, self.over, self.settled)


def _as_it_is(answer: Answer, _: Failure | None) -> tuple[Answer, None]:
    """Return the answer without a program, which nobody asked for."""
    return answer, None


def _time_on_whole(request: Request, runtime: Runtime) -> float | None:
    """Time of a schedule on the whole machine; None if none is found."""
    with suppress(SynthesisError):
        return search_for(request, runtime, Events()).time_us
    return None


def _on(request: Request, topology: Topology) -> Request:
    """The request for a machine that is given itself."""
    return replace(request, topology=topology, nodes=None, ranks=None, degradation=Degradation())
