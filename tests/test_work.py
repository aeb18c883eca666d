"""Counted work."""

import pytest

from taccl_py.work import RATES, count_seconds, count_work, work_seconds, work_set_aside


def test_units_become_seconds_by_their_rate():
    before = work_seconds()
    count_work("timed", 1000)
    assert work_seconds() - before == pytest.approx(1000 * RATES.timed)


def test_work_that_is_set_aside_is_told_and_not_counted():
    before = work_seconds()
    with work_set_aside() as spent:
        count_seconds(3.0)
        with work_set_aside() as inner:
            count_seconds(4.0)
    assert (spent, inner) == ([pytest.approx(3.0)], [pytest.approx(4.0)])
    assert work_seconds() == before


def _fail():
    with work_set_aside():
        count_seconds(2.0)
        raise ValueError("enough")


def test_work_is_set_aside_also_where_it_fails():
    before = work_seconds()
    with pytest.raises(ValueError, match="enough"):
        _fail()
    assert work_seconds() == before


def test_an_unknown_kind_is_a_mistake():
    with pytest.raises(KeyError):
        count_work("thought", 1)
