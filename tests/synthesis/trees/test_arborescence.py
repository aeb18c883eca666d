from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.synthesis.trees.arborescence import cheapest_arborescence


@st.composite
def costs(draw):
    size = draw(st.integers(2, 5))
    entry = st.one_of(st.integers(0, 6).map(float), st.just(float("inf")))
    rows = draw(st.lists(st.lists(entry, min_size=size, max_size=size), min_size=size, max_size=size))
    return np.array(rows)


def way_up(parent, vertex):
    """Where as many steps to the parent as there are vertices end: at the root in an arborescence, and in no circle."""
    for _ in parent:
        vertex = parent[vertex]
    return vertex


def least_cost(cost, root):
    """Of all choices of a parent for every vertex; None if none is an arborescence. (networkx is wrong on some ties.)"""
    size = len(cost)
    choices = [[root] if v == root else [u for u in range(size) if u != v and cost[u, v] < np.inf] for v in range(size)]
    trees = (tree for tree in product(*choices) if all(way_up(tree, vertex) == root for vertex in range(size)))
    return min((sum(cost[tree[v], v] for v in range(size) if v != root) for tree in trees), default=None)


@given(costs(), st.data())
def test_no_arborescence_is_cheaper(cost, data):
    root = data.draw(st.integers(0, len(cost) - 1))
    parent = cheapest_arborescence(cost, root)
    expected = least_cost(cost, root)
    if expected is None:
        assert parent is None
        return
    assert parent[root] == root
    assert all(way_up(parent, vertex) == root for vertex in range(len(cost)))
    total = sum(cost[parent[vertex], vertex] for vertex in range(len(cost)) if vertex != root)
    assert total == pytest.approx(expected)


def test_a_cycle_is_entered_where_that_costs_least():
    inf = float("inf")
    cost = np.array([[inf, 5.0, 9.0], [inf, inf, 1.0], [inf, 1.0, inf]])
    assert cheapest_arborescence(cost, 0).tolist() == [0, 0, 1]


def test_costs_are_left_as_they_are():
    cost = np.ones((3, 3))
    cheapest_arborescence(cost, 0)
    assert (cost == 1).all()
