"""What every engine takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from taccl_py.collective import Collective
from taccl_py.schedule.ir import Schedule
from taccl_py.sketch.model import Sketch
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.topology.model import Topology


class Proof(StrEnum):
    """What is known of a schedule's quality.

    ``optimal``: its time equals a lower bound that holds for every schedule of the problem.
    ``optimal-in-class``: a solver proved that no schedule with the same symmetry and chunks is faster on its time grid.
    ``feasible``: neither; a limit ended the search, or the search was a heuristic.
    """

    OPTIMAL = "optimal"
    IN_CLASS = "optimal-in-class"
    FEASIBLE = "feasible"


@dataclass(frozen=True)
class Options:
    """How to search.

    Attributes
    ----------
    solver
        ``auto``, ``cp-sat`` or a linear solver's name.
    limits
        Time, work, seed and the user's interrupt.
    """

    solver: str = "auto"
    limits: Limits = field(default_factory=Limits)


class Events:
    """Progress hooks; this one does nothing."""

    def stage(self, name: str) -> None:
        """Report that a stage begins."""

    def incumbent(self, time_us: float) -> None:
        """Report a better schedule."""

    def bound(self, time_us: float) -> None:
        """Report a better bound."""


@dataclass(frozen=True)
class Synthesis:
    """Answer of an engine.

    Attributes
    ----------
    schedule
        Best schedule found.
    bound
        Best proven lower bound.
    proof
        See `Proof`.
    solver
        Name of the solver that was used.
    stage_seconds
        Wall-clock time of every stage.
    runners_up
        Schedules nearly as fast, for runtimes that cannot keep the best one's order.
    """

    schedule: Schedule
    bound: Bound
    proof: Proof
    solver: str
    stage_seconds: Mapping[str, float]
    runners_up: tuple[Schedule, ...] = ()

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return max(0.0, self.schedule.makespan_us / self.bound.time_us - 1) if self.bound.time_us > 0 else 0.0


class Engine(Protocol):
    """Turns a problem into a schedule."""

    def __call__(
        self,
        topology: Topology,
        collective: Collective,
        sketch: Sketch | None,
        chunk_bytes: float,
        options: Options,
        events: Events,
    ) -> Synthesis:
        """Synthesize.

        Raises
        ------
        InputError, Infeasible, LimitReached, PackageMissing
            See `taccl_py.errors`.
        """
        ...
