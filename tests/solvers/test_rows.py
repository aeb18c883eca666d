"""Programs that grow by rows: a hand-worked one, whose prices prove its optimum."""

import numpy as np
import pytest

from taccl_py.solvers.rows import RowProgram
from taccl_py.solvers.sparse import Coefficients


def two_links_behind_a_port():
    """Links of 1 and 2 us a unit, and a port that both use at 1 us."""
    return Coefficients(np.array([0, 1, 2, 2]), np.array([0, 1, 0, 1]), np.array([1.0, 2.0, 1.0, 1.0]))


def test_rows_are_added_and_the_optimum_rises():
    program = RowProgram(two_links_behind_a_port(), 3, 2)
    program.add(np.array([0]), np.array([1.0]), 1.0)
    assert program.solve().objective == pytest.approx(1)
    program.add(np.array([1]), np.array([1.0]), 1.0)
    both = program.solve()  # the port carries one unit for each
    assert both.objective == pytest.approx(2)
    assert both.values == pytest.approx([1, 1])


def test_prices_of_resources_and_rows_prove_the_optimum():
    program = RowProgram(two_links_behind_a_port(), 3, 2)
    program.add(np.array([0, 1]), np.array([1.0, 1.0]), 3.0)
    program.add(np.array([0]), np.array([2.0]), 1.0)
    found = program.solve()
    assert found.objective == pytest.approx(3)
    assert found.prices.sum() == pytest.approx(1)
    assert found.worth @ [3, 1] == pytest.approx(3)
