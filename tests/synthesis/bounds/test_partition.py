"""The narrowest partition, against all partitions of small graphs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.synthesis.bounds.partition import narrowest_partition
from tests.synthesis.bounds.test_division import partitions


def shortfall(edges, each, groups):
    group_of = {vertex: number for number, group in enumerate(groups) for vertex in group}
    between = sum(weight for one, other, weight in edges if group_of[one] != group_of[other])
    return each * (len(groups) - 1) - between


def narrowest(count, edges, each):
    ends = np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2)
    return narrowest_partition(count, ends[:, 0], ends[:, 1], np.array([edge[2] for edge in edges], dtype=float), each)


def test_two_triangles_with_a_thin_edge_between_fall_apart_there():
    """2 of each edge hold two trees of a triangle; the edge between carries 1 where 2 are wanted."""
    triangles = [(0, 1, 2.0), (1, 2, 2.0), (2, 0, 2.0), (3, 4, 2.0), (5, 4, 2.0), (3, 5, 2.0)]
    group_of, short = narrowest(6, [*triangles, (2, 3, 1.0)], 2.0)
    assert group_of.tolist() == [0, 0, 0, 3, 3, 3]
    assert short == pytest.approx(1)


def test_edges_of_both_directions_count_together():
    _, short = narrowest(2, [(0, 1, 0.75), (1, 0, 0.75)], 2.0)
    assert short == pytest.approx(0.5)
    _, short = narrowest(2, [(0, 1, 0.75), (1, 0, 1.25)], 2.0)
    assert short == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.data())
def test_no_partition_falls_shorter(count, data):
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=12))
    edges = [(*pair, data.draw(st.integers(0, 4)) / 2) for pair in chosen]
    group_of, short = narrowest(count, edges, 1.5)
    worst = max(shortfall(edges, 1.5, groups) for groups in partitions(list(range(count))))
    assert short == pytest.approx(worst, abs=1e-9)
    if short > 0:
        members = [np.flatnonzero(group_of == group).tolist() for group in np.unique(group_of)]
        assert shortfall(edges, 1.5, members) == pytest.approx(worst)
