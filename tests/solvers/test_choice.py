"""Names of solvers, and what they mean where packages are missing."""

import sys

import pytest

from taccl_py.errors import InputError, PackageMissing
from taccl_py.solvers.choice import choose_solver


def test_auto_is_or_tools_where_it_is_and_else_highs(monkeypatch):
    assert choose_solver("auto") == "cp-sat"
    monkeypatch.setitem(sys.modules, "ortools", None)
    assert choose_solver("auto") == "highs"


@pytest.mark.parametrize("name", ["cp-sat", "cbc", "highs"])
def test_a_solver_that_is_installed_is_taken_by_its_name(name):
    assert choose_solver(name) == name


def test_cp_sat_without_or_tools_says_what_to_install(monkeypatch):
    for name in ("ortools", "ortools.sat", "ortools.sat.python", "ortools.sat.python.cp_model"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PackageMissing, match="pip install ortools"):
        choose_solver("cp-sat")


def test_a_name_that_nobody_knows_is_refused():
    with pytest.raises(InputError, match="is not a solver"):
        choose_solver("abacus")
