"""Minimum cuts, and flows whose arcs change."""

import numpy as np
import pytest

from taccl_py.solvers.max_flow import FlowNetwork, min_cut


def cut(arcs, source, sink):
    tail, head, capacity = zip(*arcs, strict=True)
    return min_cut(np.array(tail), np.array(head), np.array(capacity, dtype=float), source, sink)


def test_the_cut_lies_where_it_is_narrow():
    """0 -> 1 -> 3 lets 2 through, 0 -> 2 -> 3 lets 1.5 through at its first arc."""
    found = cut([(0, 1, 5.0), (1, 3, 2.0), (0, 2, 1.5), (2, 3, np.inf)], 0, 3)
    assert found.flow == pytest.approx(3.5)
    assert found.near.tolist() == [True, True, False, False]


def test_parallel_arcs_add_up_and_arcs_have_a_direction():
    assert cut([(0, 1, 1.0), (0, 1, 2.0), (1, 0, 9.0)], 0, 1).flow == pytest.approx(3.0)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_capacities_may_be_small_or_large(scale):
    found = cut([(0, 1, 3.0 * scale), (1, 2, scale / 3)], 0, 2)
    assert found.flow == pytest.approx(scale / 3)
    assert found.near.tolist() == [True, True, False]


def test_nothing_flows_where_there_is_no_path():
    found = cut([(0, 1, 1.0), (2, 3, 1.0)], 0, 3)
    assert found.flow == 0.0
    assert found.near.tolist() == [True, True, False, False]


def test_arcs_change_from_one_flow_to_the_next():
    """0 -> 1 -> 2 beside 0 -> 2."""
    network = FlowNetwork(*(np.array(values) for values in ([0, 1, 0], [1, 2, 2], [3, 2, 0])))
    assert network.flow(0, 2) == 2
    network.limit(2, 5)
    assert network.flow(0, 2) == 7
    network.limit(1, FlowNetwork.UNLIMITED)
    assert network.flow(0, 2) == 8
    network.limit(0, 0)
    assert network.flow(0, 2) == 5
    assert network.flow(2, 0) == 0
