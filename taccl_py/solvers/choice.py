"""Choice of a solver by its name on the command line."""

from __future__ import annotations

from importlib.util import find_spec

from taccl_py.solvers.cp_sat import import_cp_model
from taccl_py.solvers.linear import find_solver

CP_SAT = "cp-sat"


def choose_solver(name: str) -> str:
    """Solver for a name; ``auto`` is CP-SAT where OR-tools is installed, else HiGHS.

    Raises
    ------
    InputError, PackageMissing
        If the solver is unknown or not installed.
    """
    if name == "auto":
        return CP_SAT if find_spec("ortools") else "highs"
    if name == CP_SAT:
        import_cp_model()
    else:
        find_solver(name)
    return name
