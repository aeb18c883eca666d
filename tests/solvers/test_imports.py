"""highspy and ortools both bring HiGHS; with the wrong versions the second import ends the process."""

import subprocess
import sys

import pytest

SOLVE_WITH_BOTH = """
import {first}
import {second}
import highspy
from ortools.sat.python import cp_model

highs = highspy.Highs()
highs.setOptionValue("output_flag", False)
x = highs.addVariable(lb=2.0, obj=1.0)
highs.run()
assert highs.getInfo().objective_function_value == 2.0
model = cp_model.CpModel()
y = model.new_int_var(3, 9, "y")
model.minimize(y)
solver = cp_model.CpSolver()
assert solver.solve(model) == cp_model.OPTIMAL
assert solver.objective_value == 3.0
print("both")
"""
MODULES = ("highspy", "ortools.sat.python.cp_model")


@pytest.mark.parametrize(("first", "second"), [MODULES, MODULES[::-1]])
def test_highs_and_or_tools_work_in_one_process_in_either_order(first, second):
    program = SOLVE_WITH_BOTH.format(first=first, second=second)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["both"]


def test_engine_and_solver_modules_load_no_solver_by_themselves():
    """So that the command line starts quickly and works where one of them is missing."""
    program = (
        "import sys, taccl_py.synthesis.milp, taccl_py.pipeline.deliver\n"
        "print([name for name in ('highspy', 'ortools', 'pulp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
