"""OR-tools CP-SAT, run with limits, interrupts and progress."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from taccl_py.errors import import_package
from taccl_py.solvers.limits import Limits, run_interruptibly
from taccl_py.work import RATES, count_work


class Status(StrEnum):
    """End of a solve."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"

    @property
    def has_solution(self) -> bool:
        """True if a solution was found, the best one or not."""
        return self in (Status.OPTIMAL, Status.FEASIBLE)


@dataclass(frozen=True)
class SolverOutcome:
    """Result of a solve.

    Attributes
    ----------
    status
        See `Status`.
    objective
        In its own unit; None without a solution.
    work
        CP-SAT's deterministic time.
    value
        Value of a variable in the best solution.
    """

    status: Status
    objective: float | None
    work: float
    value: Callable[[Any], int]


def import_cp_model() -> Any:
    """OR-tools' module, imported when it is needed.

    Raises
    ------
    PackageMissing
        If OR-tools is not installed.
    """
    return import_package("ortools.sat.python.cp_model", "OR-tools", "pip install ortools")


def solve_cp(
    model: Any, limits: Limits, on_progress: Callable[[float], None] | None = None, *, kind: str = "solver"
) -> SolverOutcome:
    """Minimize a CpModel.

    Parameters
    ----------
    model
        A ``cp_model.CpModel`` with an objective.
    limits
        When to stop.
    on_progress
        Called with the objective at every better solution.
    kind
        Kind of work that this is; see `taccl_py.work.WorkRates`.
    """
    cp_model = import_cp_model()
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = limits.clock_seconds
    work = min(
        limits.seconds / getattr(RATES, kind) if limits.by_work else math.inf,
        math.inf if limits.work is None else limits.work,
    )
    if work < math.inf:
        parameters.max_deterministic_time = work
    # One worker: parallel search is not deterministic, and its interleaved mode aborts the process when it is stopped early.
    parameters.num_workers = 1
    parameters.random_seed = limits.seed
    parameters.catch_sigint_signal = False

    class Watcher(cp_model.CpSolverSolutionCallback):  # type: ignore[misc,name-defined]
        def on_solution_callback(self) -> None:
            if on_progress is not None:
                on_progress(self.objective_value)

    statuses: list[int] = []

    def solve() -> None:
        try:
            statuses.append(solver.solve(model, Watcher()))
        except IndexError:
            # OR-tools 9.15: presolve may fail so where it finds while it merges duplicates that nothing is feasible.
            parameters.cp_model_presolve = False
            statuses.append(solver.solve(model, Watcher()))

    run_interruptibly(solve, limits.stop, solver.stop_search)
    if statuses[0] == cp_model.MODEL_INVALID:
        raise ValueError(f"the model is invalid: {model.validate()}")
    status = {
        cp_model.OPTIMAL: Status.OPTIMAL,
        cp_model.FEASIBLE: Status.FEASIBLE,
        cp_model.INFEASIBLE: Status.INFEASIBLE,
    }.get(statuses[0], Status.UNKNOWN)
    count_work(kind, float(solver.response_proto.deterministic_time))
    found = status.has_solution
    return SolverOutcome(
        status,
        solver.objective_value if found else None,
        float(solver.response_proto.deterministic_time),
        lambda variable: int(solver.value(variable)),
    )
