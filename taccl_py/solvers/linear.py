"""Mixed-integer linear programs through PuLP: any solver that PuLP finds, with limits and a warm start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from taccl_py.errors import InputError, PackageMissing, import_package
from taccl_py.solvers.cbc import run_cbc
from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits, run_interruptibly
from taccl_py.spelling import did_you_mean
from taccl_py.work import RATES, count_work

_CBC = ("PULP_CBC_CMD", "COIN_CMD")
# Solver names of ours and the PuLP classes that provide them, the in-process one first, with how to get one.
_PROVIDERS: dict[str, tuple[tuple[str, ...], str]] = {
    "highs": (("HiGHS", "HiGHS_CMD"), "pip install 'highspy<1.14'"),
    "cbc": (_CBC, "pip install pulp (it brings CBC)"),
    "scip": (("SCIP_PY", "SCIP_CMD", "FSCIP_CMD"), "pip install '.[scip]'"),
    "gurobi": (("GUROBI", "GUROBI_CMD"), "pip install '.[gurobi]' and a licence"),
    "cplex": (("CPLEX_PY", "CPLEX_CMD"), "install CPLEX and its Python package"),
    "glpk": (("GLPK_CMD", "PYGLPK"), "install glpsol (package glpk-utils)"),
    "xpress": (("XPRESS_PY", "XPRESS"), "install FICO Xpress"),
    "mosek": (("MOSEK",), "pip install mosek and a licence"),
    "copt": (("COPT", "COPT_CMD"), "pip install coptpy and a licence"),
}
# Iterations of the simplex method between two calls of HiGHS that ask whether to go on, about.
_ITERATIONS_PER_CALL = 10
LINEAR_SOLVERS = tuple(_PROVIDERS)


@dataclass(frozen=True)
class LinearOutcome:
    """Result of a linear solve.

    Attributes
    ----------
    status
        See `Status`.
    objective
        Of the best solution, or None.
    """

    status: Status
    objective: float | None


@dataclass
class LinearModel:
    """A minimization problem, gathered by the models and handed to PuLP once.

    Variables are PuLP variables; rows are ``sum(coefficient * variable) (<=, >=, =) right``.
    """

    name: str
    pulp: Any = field(init=False)
    problem: Any = field(init=False)
    _variable: Any = field(init=False)
    start: dict[Any, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Import PuLP and begin an empty problem."""
        self.pulp = _import_pulp()
        self.problem = self.pulp.LpProblem(self.name, self.pulp.LpMinimize)
        # From PuLP 3.3 on, which warns of variables that are made by themselves.
        self._variable = getattr(self.problem, "add_variable", self.pulp.LpVariable)

    def binary(self, name: str) -> Any:
        """Return a new 0/1 variable."""
        return self._variable(name, cat=self.pulp.LpBinary)

    def real(self, name: str, low: float, high: float | None) -> Any:
        """Return a new continuous variable."""
        return self._variable(name, low, high)

    def at_least(self, terms: Iterable[tuple[Any, float]], right: float) -> None:
        """Add the row: sum of terms >= right."""
        self._row(terms, self.pulp.LpConstraintGE, right)

    def at_most(self, terms: Iterable[tuple[Any, float]], right: float) -> None:
        """Add the row: sum of terms <= right."""
        self._row(terms, self.pulp.LpConstraintLE, right)

    def equal(self, terms: Iterable[tuple[Any, float]], right: float) -> None:
        """Add the row: sum of terms = right."""
        self._row(terms, self.pulp.LpConstraintEQ, right)

    def _row(self, terms: Iterable[tuple[Any, float]], sense: int, right: float) -> None:
        summed: dict[Any, float] = {}
        for variable, coefficient in terms:
            summed[variable] = summed.get(variable, 0.0) + coefficient
        expression = self.pulp.LpAffineExpression(summed)
        self.problem.addConstraint(self.pulp.LpConstraint(expression, sense, rhs=right))

    def minimize(self, terms: Iterable[tuple[Any, float]]) -> None:
        """Set the objective."""
        self.problem.setObjective(self.pulp.LpAffineExpression(dict(terms)))

    def set_start(self, values: Mapping[Any, float]) -> None:
        """Give a warm start; solvers without one ignore it."""
        self.start.update(values)

    def solve(self, solver: str, limits: Limits) -> LinearOutcome:
        """Solve and leave the best solution in the variables.

        Raises
        ------
        PackageMissing
            If the solver is not installed.
        """
        provider = find_solver(solver)
        for variable, value in self.start.items():
            variable.setInitialValue(value, check=False)
        status = _solve_highs(self, limits) if provider == "HiGHS" else _solve_other(self, provider, limits)
        found = status.has_solution
        return LinearOutcome(status, float(self.pulp.value(self.problem.objective) or 0.0) if found else None)


def _import_pulp() -> Any:
    return import_package("pulp", "PuLP", "pip install pulp")


def find_solver(name: str) -> str:
    """PuLP class that provides a solver by our name, or by PuLP's own.

    Raises
    ------
    InputError
        If nobody knows the name.
    PackageMissing
        If it is known but not installed.
    """
    pulp = _import_pulp()
    known = pulp.listSolvers()
    by_lower = {solver.lower(): solver for solver in known}
    if name.lower() in _PROVIDERS:
        classes, remedy = _PROVIDERS[name.lower()]
    elif name.lower() in by_lower:
        classes, remedy = (by_lower[name.lower()],), f"install the solver that PuLP calls {by_lower[name.lower()]}"
    else:
        known_names = ", ".join(_PROVIDERS)
        hint = did_you_mean(name, ("cp-sat", *_PROVIDERS))
        raise InputError(
            f"{name!r} is not a solver; {hint}use cp-sat, {known_names} or a PuLP solver name", field="solver"
        )
    available = set(pulp.listSolvers(onlyAvailable=True))
    for candidate in classes:
        if candidate in available:
            return candidate
    raise PackageMissing(f"solver {name} is not installed", remedy)


def _solve_other(model: LinearModel, provider: str, limits: Limits) -> Status:
    """Run a solver that PuLP drives; only CBC hears the user's interrupt, others end by their own time limit."""
    pulp = model.pulp
    options: dict[str, Any] = {"msg": False, "timeLimit": min(limits.seconds, limits.clock_seconds)}
    try:
        if provider in _CBC:
            options["threads"] = limits.workers
            options["options"] = [f"randomSeed {limits.seed}", f"randomCbcSeed {limits.seed}"]
            if not run_cbc(pulp.getSolver(provider, **options), model.problem, limits, bool(model.start)):
                return Status.UNKNOWN
        else:
            model.problem.solve(pulp.getSolver(provider, **options))
    except (pulp.PulpSolverError, OSError) as error:
        raise PackageMissing(
            f"solver {provider} failed: {error}", "check its installation or use --solver highs"
        ) from None
    if model.problem.status == pulp.LpStatusInfeasible:
        # Also where CBC's presolve finds it out, after which PuLP says of the solution only that there is none.
        return Status.INFEASIBLE
    return {
        pulp.LpSolutionOptimal: Status.OPTIMAL,
        pulp.LpSolutionIntegerFeasible: Status.FEASIBLE,
    }.get(model.problem.sol_status, Status.UNKNOWN)


def _solve_highs(model: LinearModel, limits: Limits) -> Status:
    """HiGHS in this process through PuLP's own interface, with its callbacks for interrupts."""
    import highspy

    pulp = model.pulp
    kinds = highspy.cb.HighsCallbackType

    places = model.problem.numVariables() + model.problem.numConstraints()
    asked, most = 0, limits.seconds / (RATES.linear * places * _ITERATIONS_PER_CALL) if limits.by_work else math.inf

    def watch(_kind: Any, _message: str, _out: Any, into: Any, _data: Any) -> None:
        nonlocal asked
        asked += 1
        if limits.stop.is_set() or asked > most:
            into.user_interrupt = True

    solver = pulp.HiGHS(
        msg=False,
        timeLimit=limits.clock_seconds,
        threads=1,
        gapRel=1e-9,
        random_seed=limits.seed,
        callbackTuple=(watch, None),
        callbacksToActivate=[kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt],
    )
    solver.createAndConfigureSolver(model.problem)
    solver.buildSolverModel(model.problem)
    highs = model.problem.solverModel
    variables = model.problem.variables()
    if model.start:
        solution = highspy.HighsSolution()
        solution.col_value = [float(model.start.get(variable, 0.0)) for variable in variables]
        highs.setSolution(solution)
    run_interruptibly(highs.run, limits.stop, lambda: None)
    info = highs.getInfo()
    count_work("linear", max(0, info.simplex_iteration_count) * places)
    ended = highs.getModelStatus()
    values = list(highs.getSolution().col_value)
    if ended == highspy.HighsModelStatus.kInfeasible:
        return Status.INFEASIBLE
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible or not values:
        return Status.UNKNOWN
    for variable, value in zip(variables, values, strict=True):
        variable.varValue = value
    return Status.OPTIMAL if ended == highspy.HighsModelStatus.kOptimal else Status.FEASIBLE
