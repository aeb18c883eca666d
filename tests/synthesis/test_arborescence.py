from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.synthesis.arborescence import ShortArborescences, cheapest_arborescence


@st.composite
def graphs(draw):
    """Number of vertices, and arcs (tail, head, cost), loops and parallel ones among them."""
    size = draw(st.integers(1, 5))
    vertex = st.integers(0, size - 1)
    return size, draw(st.lists(st.tuples(vertex, vertex, st.integers(0, 6).map(float)), max_size=14))


def solved(size, arcs, root):
    tail, head = (np.array([arc[i] for arc in arcs], dtype=np.int64) for i in (0, 1))
    into = cheapest_arborescence(size, tail, head, np.array([arc[2] for arc in arcs]), root)
    return None if into is None else into.tolist()


def way_up(parent, vertex):
    """Where as many steps to the parent as there are vertices end: at the root in an arborescence, and in no cycle."""
    for _ in parent:
        vertex = parent[vertex]
    return vertex


def least_cost(size, arcs, root):
    """Of all choices of an arc into every vertex; None if none is an arborescence. (networkx is wrong on some ties.)"""
    cost = {}
    for tail, head, price in arcs:
        cost[tail, head] = min(price, cost.get((tail, head), price))
    choices = [[root] if v == root else [u for u in range(size) if u != v and (u, v) in cost] for v in range(size)]
    trees = (tree for tree in product(*choices) if all(way_up(tree, vertex) == root for vertex in range(size)))
    return min((sum(cost[tree[v], v] for v in range(size) if v != root) for tree in trees), default=None)


@given(graphs(), st.data())
def test_no_arborescence_is_cheaper(graph, data):
    size, arcs = graph
    root = data.draw(st.integers(0, size - 1))
    into = solved(size, arcs, root)
    expected = least_cost(size, arcs, root)
    if expected is None:
        assert into is None
        return
    assert into[root] == -1
    assert all(arcs[into[vertex]][1] == vertex for vertex in range(size) if vertex != root)
    parent = [root if arc < 0 else arcs[arc][0] for arc in into]
    assert all(way_up(parent, vertex) == root for vertex in range(size))
    assert sum(arcs[arc][2] for arc in into if arc >= 0) == pytest.approx(expected)


def test_a_cycle_is_entered_where_that_costs_least():
    arcs = [(0, 1, 5.0), (0, 2, 9.0), (1, 2, 1.0), (2, 1, 1.0)]
    assert solved(3, arcs, root=0) == [-1, 0, 2]


def test_cycles_of_cycles_are_entered_where_that_costs_least():
    # 1-2 and 3-4 are cycles, and then one of the two; into it 0-3 costs 7 - 1 more, 0-2 costs 9 - 1 more.
    arcs = [(1, 2, 1.0), (2, 1, 1.0), (3, 4, 1.0), (4, 3, 1.0), (2, 3, 2.0), (4, 1, 2.0), (0, 3, 7.0), (0, 2, 9.0)]
    assert solved(5, arcs, root=0) == [-1, 5, 0, 6, 2]


def test_of_parallel_arcs_the_cheapest_counts_and_of_these_the_first():
    assert solved(2, [(0, 1, 3.0), (0, 1, 2.0), (0, 1, 2.0)], root=0) == [-1, 1]


def test_a_vertex_alone_needs_no_arc():
    assert solved(1, [], root=0) == [-1]
    assert solved(2, [], root=0) is None


@given(graphs(), st.integers(1, 4), st.data())
def test_short_arborescences_span_within_their_hops_and_are_no_cheaper_than_the_cheapest(graph, most, data):
    size, arcs = graph
    root = data.draw(st.integers(0, size - 1))
    cost = np.array([arc[2] for arc in arcs])
    short = ShortArborescences(size, *(np.array([arc[i] for arc in arcs], dtype=np.int64) for i in (0, 1)))
    cheapest = least_cost(size, arcs, root)
    if cheapest is None:
        with pytest.raises(ValueError, match="does not reach"):
            short.cheap(cost, root, most)
        return
    into = short.cheap(cost, root, most).tolist()
    assert into[root] == -1
    assert all(arcs[into[vertex]][1] == vertex for vertex in range(size) if vertex != root)
    assert max(hops_up(arcs, into, root, vertex) for vertex in range(size)) <= max(most, short.hops(root))
    assert sum(arcs[arc][2] for arc in into if arc >= 0) >= cheapest - 1e-9


def hops_up(arcs, into, root, vertex):
    hops = 0
    while vertex != root:
        vertex, hops = arcs[into[vertex]][0], hops + 1
        assert hops <= len(into)
    return hops


def test_a_hop_more_is_taken_where_it_is_cheaper_and_allowed():
    """From 0 to 1 and 2 directly for 1 and 5, from 1 to 2 for 1."""
    tail, head, cost = np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([1.0, 5.0, 1.0])
    short = ShortArborescences(3, tail, head)
    assert short.hops(0) == 1
    assert short.cheap(cost, 0, 1).tolist() == [-1, 0, 1]
    assert short.cheap(cost, 0, 2).tolist() == [-1, 0, 2]
