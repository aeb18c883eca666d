"""Experiments: flows that run at the same time, and what can run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

_SPREAD_SAMPLES = 7


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """Messages from one rank to another."""

    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """Flows that start together; each sends so many messages of one size, one after the other."""

    flows: tuple[Flow, ...]
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
    def pairs(self) -> tuple[Flow, ...]:
        """All (src, dst) that can send directly, in order."""

    def run(self, experiment: Experiment) -> tuple[float, ...]:
        """Microseconds from the common start to the arrival of the last message of every flow."""


@dataclass
class Counted:
    """A bench that counts what runs on it, repeats every experiment and takes the median of each flow.

    Attributes
    ----------
    bench
        Where experiments run.
    repeats
        How often each runs.
    known
        Results that need not be measured again, by experiment; new ones are added.
    keep
        Called with every new result.
    experiments, busy_us
        How many experiments were needed, those in `known` included; how long flows ran in all.
    """

    # Of clocks and rounding; times are never the same to less than this.
    LEAST_SPREAD: ClassVar[float] = 0.01

    bench: Bench
    repeats: int = 3
    known: dict[Experiment, tuple[float, ...]] = field(default_factory=dict)
    keep: Callable[[Experiment, tuple[float, ...]], None] | None = None
    experiments: int = 0
    busy_us: float = 0.0

    def spread(self, flow: Flow, size_bytes: int, messages: int) -> float:
        """Relative standard deviation of medians, of experiments that are all the same but for their number of messages."""
        rates = [
            self.last_us([flow], size_bytes, messages + extra) / (messages + extra) for extra in range(_SPREAD_SAMPLES)
        ]
        middle = sorted(rates)[len(rates) // 2]
        deviations = sorted(abs(rate / middle - 1) for rate in rates)
        return max(self.LEAST_SPREAD, 1.4826 * deviations[len(deviations) // 2])

    def times_us(self, flows: Sequence[Flow], size_bytes: int, messages: int = 1) -> tuple[float, ...]:
        """Median time of every flow."""
        experiment = Experiment(tuple(flows), size_bytes, messages)
        self.experiments += 1
        if experiment in self.known:
            return self.known[experiment]
        runs = [self.bench.run(experiment) for _ in range(self.repeats)]
        self.busy_us += sum(max(run) for run in runs)
        times = tuple(sorted(times)[len(times) // 2] for times in zip(*runs, strict=True))
        self.known[experiment] = times
        if self.keep is not None:
            self.keep(experiment, times)
        return times

    def last_us(self, flows: Sequence[Flow], size_bytes: int, messages: int = 1) -> float:
        """Time until the last flow is done."""
        return max(self.times_us(flows, size_bytes, messages))
