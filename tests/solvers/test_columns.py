import numpy as np
import pytest

from taccl_py.solvers.columns import ColumnProgram


def test_two_columns_share_the_load():
    program = ColumnProgram([1.0], 2)
    program.add(0, np.array([2.0, 0.0]))
    assert program.solve().objective == pytest.approx(2.0)
    program.add(0, np.array([0.0, 1.0]))
    solution = program.solve()
    assert solution.objective == pytest.approx(2 / 3)
    assert solution.amounts == pytest.approx([1 / 3, 2 / 3])


def test_prices_add_up_to_one_and_price_the_columns_in_use_alike():
    program = ColumnProgram([1.0], 2)
    loads = [np.array([2.0, 0.0]), np.array([0.0, 1.0])]
    for load in loads:
        program.add(0, load)
    solution = program.solve()
    assert solution.prices.sum() == pytest.approx(1.0)
    assert [solution.prices @ load for load in loads] == pytest.approx([solution.worth[0]] * 2)


def test_settled_load_counts_and_what_is_left_shrinks():
    program = ColumnProgram([2.0, 1.0], 1)
    program.add(0, np.array([3.0]))
    program.add(1, np.array([1.0]))
    assert program.solve().objective == pytest.approx(7.0)
    program.settle([1.0, 0.0], np.array([0.5]))
    solution = program.solve()
    assert solution.objective == pytest.approx(3.5)
    assert solution.amounts == pytest.approx([1.0, 0.0])


def test_up_to_its_goal_the_fullest_resource_counts_less_than_all_loads():
    """A column loads two resources by 2 each, another one by 3; 0.1 for each unit of load. Above a load of 3 the second one is lean."""
    loads = [np.array([2.0, 2.0]), np.array([3.0, 0.0])]
    for goal, amounts, cost in ((4.0, [0.0, 1.0], 4.3), (2.0, [1.0, 0.0], 2.4), (0.0, [1.0, 0.0], 2.4)):
        program = ColumnProgram([1.0], 2, goal=goal, lean=0.1)
        for load in loads:
            program.add(0, load)
        solution = program.solve()
        assert solution.amounts == pytest.approx(amounts)
        assert solution.cost == pytest.approx(cost)
        assert solution.objective == pytest.approx(max(goal, 2.0))
        # Below the goal load costs nothing but what all loads do.
        prices = 0.0 if goal > 3 else 1.0
        assert solution.prices.sum() == pytest.approx(prices)
        used = loads[int(np.argmax(amounts))]
        assert solution.worth[0] == pytest.approx(solution.prices @ used + 0.1 * used.sum())


def test_a_share_without_a_column_has_no_optimum():
    program = ColumnProgram([1.0], 1)
    with pytest.raises(ValueError, match="HiGHS"):
        program.solve()
