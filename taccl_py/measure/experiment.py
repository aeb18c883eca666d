"""Experiments: flows that run at the same time, and what can run them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median_high
from typing import ClassVar, Protocol

_SPREAD_SAMPLES = 7


@dataclass(frozen=True, slots=True, order=True)
class MeasuredFlow:
    """Messages from one rank to another."""

    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """Flows that start together; each sends so many messages of one size, one after the other."""

    flows: tuple[MeasuredFlow, ...]
    size_bytes: int
    messages: int = 1


class Bench(Protocol):
    """A machine that experiments run on."""

    @property
    def name(self) -> str:
        """Name for people."""

    @property
    def node_of(self) -> tuple[int, ...]:
        """Node of every rank."""

    @property
    def pairs(self) -> tuple[MeasuredFlow, ...]:
        """All (src, dst) that can send directly, in order."""

    def run(self, experiment: Experiment) -> tuple[float, ...]:
        """Microseconds from the common start to the arrival of the last message of every flow."""


class Stopped(Exception):
    """The user has said stop; what is known is in the results so far."""


@dataclass
class Counted:
    """A bench that counts what runs on it, repeats every experiment and takes what is typical of each flow.

    That is the median; where runs scatter, they are repeated, and of what still scatters the lower quartile counts, because
    what disturbs a run makes it longer.

    Attributes
    ----------
    bench
        Where experiments run.
    repeats
        How often each runs at least.
    warm_ups
        Runs before those that count.
    least_us
        How long all runs of an experiment take together at least, though they are no more than `MOST_SHORT_RUNS`: what
        else a computer does lasts for milliseconds, and runs that are over sooner would all meet it, or all miss it.
    known
        Results that need not be measured again, by experiment; new ones are added.
    keep
        Called with every new result.
    stop
        When it is set, no further experiment runs.
    progress
        Called before every experiment with the stage and the number of experiments so far.
    stage
        Purpose of the experiments at the time, for people.
    experiments, busy_us
        How many experiments were needed, those in `known` included; how long flows ran in all.
    """

    # Of clocks and rounding; times are never the same to less than this.
    LEAST_SPREAD: ClassVar[float] = 0.01
    # By how much the median may exceed the least before a run is repeated, and how many times as many runs there may be.
    SCATTER: ClassVar[float] = 0.05
    MOST_REPEATS: ClassVar[int] = 4
    MOST_SHORT_RUNS: ClassVar[int] = 150
    # Part of the runs, the fastest, whose slowest counts where they scatter: with many runs fewer are enough.
    MANY_RUNS: ClassVar[int] = 40

    bench: Bench
    repeats: int = 3
    warm_ups: int = 0
    least_us: float = 0.0
    known: dict[Experiment, tuple[float, ...]] = field(default_factory=dict)
    keep: Callable[[Experiment, tuple[float, ...]], None] | None = None
    stop: threading.Event | None = None
    progress: Callable[[str, int], None] | None = None
    stage: str = ""
    experiments: int = 0
    busy_us: float = 0.0

    def spread(self, flows: Sequence[MeasuredFlow], size_bytes: int, messages: int) -> float:
        """Relative standard deviation of results, of experiments that are all the same but for their number of messages."""
        rates = [
            self.last_us(flows, size_bytes, messages + extra) / (messages + extra) for extra in range(_SPREAD_SAMPLES)
        ]
        middle = median_high(rates)
        return max(self.LEAST_SPREAD, 1.4826 * median_high(abs(rate / middle - 1) for rate in rates))

    def times_us(self, flows: Sequence[MeasuredFlow], size_bytes: int, messages: int = 1) -> tuple[float, ...]:
        """Typical time of every flow.

        Raises
        ------
        Stopped
            If `stop` is set and the result is not known.
        """
        experiment = Experiment(tuple(flows), size_bytes, messages)
        if self.progress is not None:
            self.progress(self.stage, self.experiments)
        if experiment not in self.known:
            if self.stop is not None and self.stop.is_set():
                raise Stopped
            self.known[experiment] = self._measured(experiment)
            if self.keep is not None:
                self.keep(experiment, self.known[experiment])
        self.experiments += 1
        return self.known[experiment]

    def last_us(self, flows: Sequence[MeasuredFlow], size_bytes: int, messages: int = 1) -> float:
        """Time until the last flow is done."""
        return max(self.times_us(flows, size_bytes, messages))

    def _measured(self, experiment: Experiment) -> tuple[float, ...]:
        for _ in range(self.warm_ups):
            self._run(experiment)
        runs = [self._run(experiment) for _ in range(self.repeats)]
        while len(runs) < self.MOST_SHORT_RUNS and sum(map(max, runs)) < self.least_us:
            runs.append(self._run(experiment))
        while len(runs) < self.MOST_REPEATS * self.repeats and self._scatter(runs):
            runs.append(self._run(experiment))
        scattered = 10 if len(runs) >= self.MANY_RUNS else 4
        return _typical(runs, scattered if self._scatter(runs) else 2)

    def _run(self, experiment: Experiment) -> tuple[float, ...]:
        times = self.bench.run(experiment)
        self.busy_us += max(times)
        return times

    def _scatter(self, runs: Sequence[tuple[float, ...]]) -> bool:
        ordered = [sorted(run) for run in runs]
        return any(median_high(times) > (1 + self.SCATTER) * min(times) for times in zip(*ordered, strict=True))


def _typical(runs: Sequence[tuple[float, ...]], part: int) -> tuple[float, ...]:
    """The middle (2) or lower quartile (4) of the first to end, of the second, and so on, given to the flows in their order.

    Which of equal flows ends first is chance, so that middles of single flows would lose how long the last one takes.
    """

    def pick(times: Sequence[float]) -> float:
        return sorted(times)[len(times) // part]

    own = [pick(times) for times in zip(*runs, strict=True)]
    places = [pick(times) for times in zip(*map(sorted, runs), strict=True)]
    order = sorted(range(len(own)), key=lambda flow: own[flow])
    found = dict(zip(order, places, strict=True))
    return tuple(found[flow] for flow in range(len(own)))
