from dataclasses import replace

import pytest

from taccl_py.solvers import classes
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis import sizes
from taccl_py.synthesis.sizes import Chains, MessageTime, PortTurn, best_sizes, undominated


def test_of_two_links_the_faster_one_carries_more():
    # Two pieces of one share at once: 10 us and 30 us a unit, so sizes 1.5 and 0.5 and 15 us for both.
    chains = Chains([range(2)], [[0], [1]], [[MessageTime(0.0, 10.0)], [MessageTime(0.0, 30.0)]], [[], []], [], 20.0)
    found = best_sizes(chains, Limits())
    assert found.time_us == pytest.approx(15.0, rel=1e-4)
    assert found.sizes == pytest.approx((1.5, 0.5), rel=1e-3)


def test_the_last_of_a_chain_waits_for_those_before_it():
    # Piece 0 goes over two links one after the other, piece 1 follows it on the first: 10 + s0 * 20 = 10 + (s0 + s1) * 10 ...
    costs = [[MessageTime(1.0, 10.0)]] * 3
    chains = Chains([range(2)], [[0], [0], [1]], costs, [[], [0], []], [PortTurn(0, 2, MessageTime(1.0, 10.0))], 20.0)
    found = best_sizes(chains, Limits())
    # ... both ways take 2 + 20 us when the sizes are 1 and 1; a smaller first piece leaves 2 + 20 us for the second way.
    assert found.time_us == pytest.approx(22.0, rel=1e-4)


def test_of_many_rows_sizes_that_are_not_below_a_time_are_not_looked_for(monkeypatch):
    """The first example, 15 us: at least that is known by classes, and the program as it is is solved only where it is asked for less."""
    monkeypatch.setattr(sizes, "PARAMS", replace(sizes.PARAMS, many_rows=0))
    chains = Chains([range(2)], [[0], [1]], [[MessageTime(0.0, 10.0)], [MessageTime(0.0, 30.0)]], [[], []], [], 20.0)
    assert best_sizes(chains, Limits(), below_us=16.0) == best_sizes(chains, Limits())
    # Where classes are as many as rows, nothing tells that soon.
    assert best_sizes(chains, Limits(), below_us=14.0) is not None
    monkeypatch.setattr(classes, "_MOST_CLASSES", 1.0)
    monkeypatch.setattr(sizes, "SparseProgram", None)
    assert best_sizes(chains, Limits(), below_us=14.0) is None


def test_costs_that_others_exceed_do_not_count():
    costs = [MessageTime(1.0, 2.0), MessageTime(2.0, 3.0), MessageTime(3.0, 1.0), MessageTime(2.0, 3.0)]
    assert undominated(costs) == [MessageTime(2.0, 3.0), MessageTime(3.0, 1.0)]


def test_a_program_that_would_take_longer_to_build_than_there_is_time_is_not_begun(monkeypatch):
    monkeypatch.setattr("taccl_py.synthesis.sizes.SparseProgram", None)
    costs = [[MessageTime(1.0, 10.0)]] * 2
    assert best_sizes(Chains([range(1)], [[0], [0]], costs, [[], [0]], [], 20.0), Limits(seconds=0.0)) is None
