import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.synthesis.trees.arborescence import cheapest_arborescence


@st.composite
def costs(draw):
    size = draw(st.integers(2, 7))
    entry = st.one_of(st.integers(0, 6).map(float), st.just(float("inf")))
    rows = draw(st.lists(st.lists(entry, min_size=size, max_size=size), min_size=size, max_size=size))
    return np.array(rows)


def least_cost(cost, root):
    """By another implementation, with the root's incoming arcs taken away; None if there is no arborescence."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(cost)))
    for tail, head in np.argwhere(np.isfinite(cost)).tolist():
        if tail != head and head != root:
            graph.add_edge(tail, head, weight=cost[tail, head])
    if len(networkx.descendants(graph, root)) < len(cost) - 1:
        return None
    tree = networkx.minimum_spanning_arborescence(graph)
    return sum(weight for _, _, weight in tree.edges(data="weight"))


@given(costs(), st.data())
def test_no_arborescence_is_cheaper(cost, data):
    root = data.draw(st.integers(0, len(cost) - 1))
    parent = cheapest_arborescence(cost, root)
    expected = least_cost(cost, root)
    if expected is None:
        assert parent is None
        return
    assert parent[root] == root
    for vertex in range(len(cost)):
        steps = vertex
        for _ in range(len(cost)):
            steps = parent[steps]
        assert steps == root
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
