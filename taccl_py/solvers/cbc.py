"""CBC, a program of its own, run so that the user's interrupt and the time limit end it wherever it is.

PuLP would wait for it to the end. CBC itself stops at SIGINT, with its best solution, but only once it searches; before that
(presolve, the first relaxation) and where it does not listen it is killed, and what it may have found is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from taccl_py.solvers.limits import Limits

_POLL_S = 0.05
# How long CBC may take to write down its best solution.
_GRACE_S = 1.0
# Exit codes of a program that was interrupted before it listened.
_KILLED = (-signal.SIGINT, -signal.SIGTERM)


def run_cbc(solver: Any, problem: Any, limits: Limits, warm_start: bool) -> bool:
    """Solve and leave values and status in the problem; False if CBC had to be killed and told nothing.

    Parameters
    ----------
    solver
        PuLP's object for CBC, with all its options.
    problem
        PuLP's problem.
    limits
        When to stop.
    warm_start
        Whether the variables' initial values are a solution.

    Raises
    ------
    ChildProcessError
        If CBC fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, start, solution = (str(Path(folder) / name) for name in ("model.mps", "start.mst", "solution.sol"))
        variables, variable_names, row_names, _ = problem.writeMPS(model, rename=1)
        arguments = [solver.path, model]
        if warm_start:
            solver.writesol(start, problem, variables, variable_names, row_names)
            arguments += ["-mips", start]
        arguments += ["-sec", str(limits.seconds)]
        arguments += [word for option in [*solver.options, *solver.getOptions()] for word in f"-{option}".split()]
        arguments += ["-solve", "-printingOptions", "all", "-solution", solution]
        code = _run(arguments, limits)
        if code is None:
            return False
        if code != 0 or not os.path.exists(solution):
            raise ChildProcessError(f"{solver.path} ended with code {code}")
        status, values, _, _, _, solution_status = solver.readsol_MPS(
            solution, problem, variables, variable_names, row_names
        )
    problem.assignVarsVals(values)
    problem.assignStatus(status, solution_status)
    return True


def _run(arguments: list[str], limits: Limits) -> int | None:
    """Exit code of a program, or None if it was killed: here, by whoever ends all processes of a job, or before it knew of signals."""
    deadline = replace(limits, seconds=limits.seconds + _GRACE_S, by_work=False).deadline()
    # In a session of its own: a terminal sends Ctrl-C to everyone, and a second one would end CBC without an answer.
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not deadline.over():
            code = _wait(process, _POLL_S)
            if code is not None:
                return None if code in _KILLED else code
        if os.name != "posix":
            return None
        process.send_signal(signal.SIGINT)
        code = _wait(process, _GRACE_S)
        return None if code in _KILLED else code
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
