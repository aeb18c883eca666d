import numpy as np
import pytest

from taccl_py.solvers.limits import Limits
from taccl_py.solvers.sparse import Coefficients, SparseProgram


def matrix(*entries):
    rows, columns, values = zip(*entries, strict=True)
    return Coefficients(np.array(rows), np.array(columns), np.array(values, dtype=float))


def blend():
    """x + y >= 4, x <= 3 (a row): 2x + 3y is least at x = 3, y = 1."""
    rows = matrix((0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0))
    return SparseProgram(np.array([2.0, 3.0]), rows, np.array([4.0, -np.inf]), np.array([np.inf, 3.0]))


def test_a_program_has_its_optimum_and_prices():
    optimum = blend().solve(Limits())
    assert optimum.objective == pytest.approx(9.0)
    assert optimum.values == pytest.approx([3.0, 1.0])
    assert optimum.prices == pytest.approx([3.0, -1.0])


def test_costs_and_bounds_may_change_between_solves():
    program = blend()
    program.solve(Limits())
    program.set_costs(np.array([3.0, 1.0]))
    assert program.solve(Limits()).values == pytest.approx([0.0, 4.0])
    program.set_upper(1, 2.5)
    assert program.solve(Limits()).values == pytest.approx([1.5, 2.5])


def test_entries_of_one_place_are_added_up():
    rows = matrix((0, 0, 1.0), (0, 0, 1.0))
    assert SparseProgram(np.array([1.0]), rows, np.array([4.0]), np.array([np.inf])).solve(Limits()).values == [2.0]


def test_there_may_be_no_solution():
    rows = matrix((0, 0, 1.0), (1, 0, 1.0))
    assert SparseProgram(np.array([1.0]), rows, np.array([4.0, 0.0]), np.array([5.0, 1.0])).solve(Limits()) is None
