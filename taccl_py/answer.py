"""Answer: a schedule with all that is known of it, made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import PlanRuntime, Runtime
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Proof
from taccl_py.units import relative_gap

# Engines whose bound is that of the chunks, and of the sketch, that they are given; bounds of the others hold for any algorithm.
OF_FIXED_CHUNKS = ("milp", "cp")


class Scope(StrEnum):
    """Algorithms for which a bound holds."""

    PHYSICAL = "physical"  # any algorithm, on links and ports alone
    RUNTIME = "runtime"  # any algorithm, under a runtime profile
    RESTRICTED = "restricted"  # algorithms with a number of chunks or a sketch, on links and ports alone


@dataclass(frozen=True, slots=True)
class ScopedBound:
    """A proven lower bound on time, and the algorithms for which it holds.

    Attributes
    ----------
    scope
        See `Scope`.
    time_us
        None of these algorithms is faster; microseconds.
    reason
        The cause: a latency, a cut, a launch.
    holds_for
        The scope in words: ``any algorithm``, ``any algorithm under runtime profile rccl-mi300x``, ``1 chunk per rank, sketch ndv2-sk-1``.
    """

    scope: Scope
    time_us: float
    reason: str
    holds_for: str


class Ended(StrEnum):
    """End of a search: what ended it."""

    PROVED = "proved"  # nothing better exists, in the sense of the answer's proof
    EFFORT = "effort"  # the work that it was given is done, or all that it tries
    TIME_LIMIT = "time limit"  # a clock limited it
    INTERRUPTED = "interrupted"

    @staticmethod
    def of(limits: Limits, *, is_proved: bool, is_guarded: bool = False) -> Ended:
        """End of a search with such limits, asked at its end; guarded, it is never one that the clock has ended, as such answers are not used."""
        if is_proved:
            return Ended.PROVED
        if limits.stop.is_set():
            return Ended.INTERRUPTED
        return Ended.EFFORT if is_guarded or (limits.by_work and not limits.is_cut) else Ended.TIME_LIMIT


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of an answer.

    Attributes
    ----------
    engine
        Engine that was asked.
    found_by
        Engine that found the schedule, where the one that was asked is a race.
    solver
        Solver that was used, or ``none``.
    sketch
        Name of the sketch; empty without one.
    seed
        Random seed.
    version
        Version of this package.
    """

    engine: str
    found_by: str
    solver: str
    sketch: str
    seed: int
    version: str


@dataclass(frozen=True)
class Answer:
    """A verified schedule, and all that is known of it.

    Attributes
    ----------
    schedule
        The fastest schedule on links and ports.
    bounds
        Lower bounds, at most one of each scope; the physical one is always there.
    proof
        ``optimal``: as fast as a bound that holds for the chunks and the sketch asked for; ``optimal-in-class``: proved on a time grid,
        among schedules with the same symmetry; ``feasible``: neither.
    ended
        How the search ended.
    provenance
        Engine, solver, sketch, seed and version.
    runtime
        Runtime for which the schedule was searched and is lowered.
    profile
        Runtime profile under which it was searched and is lowered; the neutral one is links and ports alone.
    runners_up, kept
        Other schedules, of which lowering takes one where its program is faster; the first `kept` of them are tried even if time is up.
    fixed_chunks
        The chunks are the user's, a sketch's, or what the restricted bound is for: lowering does not cut them.
    stage_seconds
        Wall-clock seconds of every stage of the search.
    """

    schedule: Schedule
    bounds: tuple[ScopedBound, ...]
    proof: Proof
    ended: Ended
    provenance: Provenance
    runtime: Runtime | PlanRuntime
    profile: RuntimeProfile
    runners_up: tuple[Schedule, ...]
    fixed_chunks: bool
    stage_seconds: Mapping[str, float]
    kept: int = 0

    @property
    def time_us(self) -> float:
        """Predicted time of the schedule on links and ports, in microseconds."""
        return self.schedule.makespan_us

    def bound(self, scope: Scope = Scope.PHYSICAL) -> ScopedBound | None:
        """Bound of a scope, or None: a restricted one where chunks are free, one of a runtime under the neutral profile."""
        return next((each for each in self.bounds if each.scope is scope), None)

    @property
    def own_bound(self) -> ScopedBound:
        """The bound that the proof is about: the restricted one if there is one, else the physical one."""
        return self.bound(Scope.RESTRICTED) or self.bounds[0]

    @property
    def wire_bounds(self) -> tuple[ScopedBound, ...]:
        """Bounds on links and ports, which those of the schedule's time are; a runtime's bound is on the time of a program."""
        return tuple(each for each in self.bounds if each.scope is not Scope.RUNTIME)

    def gap(self, scope: Scope = Scope.PHYSICAL) -> float | None:
        """Distance of the schedule from a bound on links and ports, as a part of the bound (0.09 is 9 %).

        None where there is no such bound, and for that of a runtime, which is on the time of a program and not of a schedule.
        """
        found = None if scope is Scope.RUNTIME else self.bound(scope)
        return None if found is None else relative_gap(self.schedule.makespan_us, found.time_us)
