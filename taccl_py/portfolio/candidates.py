"""Candidates: algorithms with their time as a function of size, raced at probe sizes spread over a range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taccl_py.pipeline import require_valid
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.cost_curve import CostCurve, cost_curve
from taccl_py.synthesis.auto import first_runs, second_runs
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.synthesis.race import Outcome, Racer

# A size whose best time is this close to the bound is not raced again.
_CLOSE = 0.01


@dataclass(frozen=True)
class Candidate:
    """An algorithm.

    Attributes
    ----------
    engine, solver
        What made it.
    schedule
        It, with the times of the size that it was made for.
    curve
        Its time at every size of the range.
    """

    engine: str
    solver: str
    schedule: Schedule
    curve: CostCurve


@dataclass(frozen=True)
class Probe:
    """A size at which engines run.

    Attributes
    ----------
    demand
        The demand of this size.
    bound
        No algorithm is faster at this size.
    """

    demand: Demand
    bound: Bound

    def gap(self, candidates: Iterable[Candidate]) -> float:
        """Relative distance of the best candidate from the bound."""
        best = min((c.curve.time_us(self.demand.size_bytes) for c in candidates), default=math.inf)
        return best / self.bound.time_us - 1 if self.bound.time_us > 0 else math.inf


def race_candidates(probes: Sequence[Probe], racer: Racer, events: Events) -> list[Candidate]:
    """Candidates of all engines at all probes; a second round only where the first one left a gap."""
    low, high = (round(probes[i].demand.size_bytes) for i in (0, -1))
    found = _Found(low, high)
    found.add(racer.race([run for probe in probes for run in first_runs(probe.demand)], events))
    wide = [probe for probe in probes if probe.gap(found.candidates) > _CLOSE]
    found.add(racer.race([run for probe in wide for run in second_runs(probe.demand)], events))
    return found.candidates


class _Found:
    """Candidates so far, each kept once."""

    def __init__(self, min_bytes: int, max_bytes: int) -> None:
        self.candidates: list[Candidate] = []
        self._min_bytes, self._max_bytes = min_bytes, max_bytes

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take the answers of a round."""
        for outcome in outcomes:
            if outcome.synthesis is None:
                continue
            for schedule in (outcome.synthesis.schedule, *outcome.synthesis.runners_up):
                require_valid(schedule)
                curve = cost_curve(schedule, self._min_bytes, self._max_bytes)
                if not any(_no_slower(other.curve, curve) for other in self.candidates):
                    self.candidates = [c for c in self.candidates if not _no_slower(curve, c.curve)]
                    self.candidates.append(
                        Candidate(outcome.run.engine, outcome.synthesis.solver, schedule, curve)
                    )  # fmt: skip


def _no_slower(one: CostCurve, other: CostCurve) -> bool:
    """Whether one curve is nowhere above another: both are straight between their breakpoints."""
    borders = {one.min_bytes, one.max_bytes, *(p.from_bytes for c in (one, other) for p in c.pieces)}
    return all(one.time_us(size) <= other.time_us(size) * (1 + 1e-9) for size in borders)
