"""Budgets of searches."""

import math
import time

import pytest

from taccl_py.api.policy import budget
from taccl_py.errors import InputError
from taccl_py.solvers.limits import Limits


@pytest.mark.parametrize(("effort", "seconds"), [(None, 20.0), ("quick", 5.0), ("normal", 20.0), ("thorough", 100.0)])
def test_an_effort_is_an_amount_of_work(effort, seconds):
    found = budget(Limits(seed=3), 20.0, effort=effort, time_limit=None)
    assert (found.by_work, found.seconds, found.ends_at_s, found.seed) == (True, seconds, math.inf, 3)


def test_a_time_limit_alone_is_of_the_clock():
    found = budget(Limits(), 20.0, effort=None, time_limit=3.0)
    assert (found.by_work, found.seconds) == (False, 3.0)


def test_of_an_effort_and_a_time_limit_the_first_ends_the_search():
    found = budget(Limits(), 20.0, effort="normal", time_limit=3.0)
    assert (found.by_work, found.seconds) == (True, 20.0)
    assert found.ends_at_s == pytest.approx(time.monotonic() + 3.0, abs=1.0)


@pytest.mark.parametrize(
    ("effort", "time_limit", "seconds"), [(None, None, 20.0), ("quick", None, 5.0), ("normal", 3.0, 3.0)]
)
def test_a_solver_that_counts_no_work_ends_by_the_clock(effort, time_limit, seconds):
    found = budget(Limits(), 20.0, effort=effort, time_limit=time_limit, solver="cbc")
    assert (found.by_work, found.seconds) == (False, seconds)


@pytest.mark.parametrize("wrong", [{"effort": "much", "time_limit": None}, {"effort": None, "time_limit": 0.0}])
def test_a_wrong_budget_is_refused(wrong):
    with pytest.raises(InputError, match="found"):
        budget(Limits(), 20.0, **wrong)
