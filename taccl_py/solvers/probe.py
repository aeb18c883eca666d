"""Solvers that are there, each asked for the answer of a problem of one variable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from taccl_py.errors import PackageMissing
from taccl_py.solvers.linear import LINEAR_SOLVERS, find_solver

CP_SAT = "cp-sat"
# Packages whose versions say something, and those that come with the program.
_PACKAGES = {CP_SAT: "ortools", "highs": "highspy", "cbc": "pulp", "scip": "pyscipopt", "gurobi": "gurobipy"}
_ALWAYS = (CP_SAT, "highs", "cbc")
_ANSWER = 3


@dataclass(frozen=True, slots=True)
class SolverProbe:
    """A solver, the version of its package, and why it is not to be had.

    Attributes
    ----------
    name, version
        Of the solver, and its package with the version if that is installed.
    fault
        Fault; empty if it answers rightly.
    is_missing
        Whether it is only not installed, as most solvers are.
    """

    name: str
    version: str
    fault: str = ""
    is_missing: bool = False


def probe_solvers() -> Iterator[SolverProbe]:
    """Ask every solver that the command line knows."""
    for name in (CP_SAT, *LINEAR_SOLVERS):
        version = _version(_PACKAGES.get(name, ""))
        try:
            found = _ask_cp_sat() if name == CP_SAT else _ask_linear(find_solver(name))
        except PackageMissing as error:
            yield SolverProbe(name, version, str(error), name not in _ALWAYS)
        except Exception as error:  # a solver's own, or its loader's: a licence, a library
            yield SolverProbe(name, version, " ".join(f"{type(error).__name__}: {error}".split()))
        else:
            right = found is not None and abs(found - _ANSWER) < 1e-6
            yield SolverProbe(name, version, "" if right else f"answers {found} where {_ANSWER} is right")


def _version(package: str) -> str:
    """Package with its version; empty if it is not installed, or the solver is no package."""
    try:
        return f"{package} {metadata.version(package)}" if package else ""
    except metadata.PackageNotFoundError:
        return ""


def _ask_cp_sat() -> float:
    from ortools.sat.python import cp_model

    model: Any = cp_model.CpModel()
    number = model.new_int_var(0, 2 * _ANSWER, "x")
    model.add(2 * number <= 2 * _ANSWER + 1)
    model.maximize(number)
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.solve(model)
    return float(solver.value(number))


def _ask_linear(provider: str) -> float | None:
    import pulp

    model: Any = pulp.LpProblem("probe", pulp.LpMaximize)
    number = pulp.LpVariable("x", 0, 2 * _ANSWER, cat="Integer")
    model += number
    model += 2 * number <= 2 * _ANSWER + 1
    model.solve(pulp.getSolver(provider, msg=False))
    value: float | None = pulp.value(number)
    return value
