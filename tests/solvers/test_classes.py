"""Classes of the columns and rows of linear programs."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taccl_py.solvers.classes import LinearClasses, least_cost
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.sparse import Coefficients, SparseProgram


def program(cost, rows, low):
    """Arrays of a program whose rows are given as {column: value}."""
    entries = [(row, column, value) for row, each in enumerate(rows) for column, value in each.items()]
    row, column, value = zip(*entries, strict=True)
    matrix = Coefficients(np.array(row), np.array(column), np.array(value, dtype=float))
    return np.array(cost, dtype=float), matrix, np.array(low, dtype=float), np.full(len(low), np.inf)


def classes_of(*given_program):
    found = LinearClasses.of(*given_program)
    return found.of_column.tolist(), found.of_row.tolist()


def test_columns_and_rows_that_are_exchanged_are_of_one_class():
    # Each of three columns is at least 1, and any two at least 3 together.
    pairs = [(0, 1), (1, 2), (2, 0)]
    rows = [{column: 1} for column in range(3)] + [{one: 1, other: 1} for one, other in pairs]
    columns, of_row = classes_of(*program([1, 1, 1], rows, [1, 1, 1, 3, 3, 3]))
    assert len(set(columns)) == 1
    assert of_row[:3] == [of_row[0]] * 3
    assert of_row[3:] == [of_row[3]] * 3
    assert of_row[0] != of_row[3]


def test_what_costs_entries_or_limits_tell_apart_is_not():
    rows = [{0: 1, 1: 1}, {2: 1, 3: 1}]
    alike = [0, 0, 0, 0], [0, 0]
    assert classes_of(*program([1, 1, 1, 1], rows, [1, 1])) == alike
    # A cost, a coefficient and a limit, each of which splits its neighbours too.
    assert len(set(classes_of(*program([1, 2, 1, 1], rows, [1, 1]))[0])) == 3
    assert len(set(classes_of(*program([1, 1, 1, 1], [{0: 1, 1: 2}, {2: 1, 3: 1}], [1, 1]))[0])) == 3
    (one, other, *rest), of_row = classes_of(*program([1, 1, 1, 1], rows, [1, 2]))
    assert (one == other, rest[0] == rest[1], one == rest[0]) == (True, True, False)
    assert of_row[0] != of_row[1]


def test_a_difference_far_away_is_found():
    # A chain of columns, each of which is to exceed the one before; only ends are different, so every column is.
    chain = [{column: -1, column + 1: 1} for column in range(9)]
    columns, of_row = classes_of(*program([0] * 10, chain, [1] * 9))
    assert (len(set(columns)), len(set(of_row))) == (10, 9)


def test_there_may_be_no_solution():
    assert least_cost(*program([1, 1], [{0: -1}, {1: -1}], [1, 1]), Limits()) is None


def test_nothing_is_solved_where_classes_are_not_far_fewer():
    whole = program([1, 1], [{0: 1}, {1: 1}, {0: 1, 1: 1}], [1, 1, 3])
    assert len(set(classes_of(*whole)[1])) == 2
    assert least_cost(*whole, Limits()) == -math.inf


@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 3), min_size=1), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_the_least_cost_is_that_of_the_whole_program(cost, rows, copies):
    """Copies of a random covering program, with a row over all of them, so that the copies are alike."""
    width = len(cost)
    kept = [{column % width: value for column, value in row.items()} for row in rows]
    copied = [{copy * width + column: value for column, value in row.items()} for copy in range(copies) for row in kept]
    copied.append(dict.fromkeys(range(copies * width), 1))
    low = [1 + number for number in range(len(kept))] * copies + [2 * copies]
    whole = program(cost * copies, copied, low)
    assert len(set(classes_of(*whole)[0])) <= width
    found = least_cost(*whole, Limits())
    assume(found is not None)  # interior points alone do not end at some programs as small as these
    if found == -math.inf:
        assert 2 * len(set(classes_of(*whole)[1])) > len(copied)
        return
    assert found == pytest.approx(SparseProgram(*whole).solve(Limits()).objective, rel=1e-5)
