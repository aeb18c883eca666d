"""Least cost of gossip: hand-worked graphs, and all sequences of messages of small ones."""

import heapq
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.synthesis.arborescence import cheapest_arborescence
from taccl_py.synthesis.bounds import gossip
from taccl_py.synthesis.bounds.gossip import least_gossip_cost


def bound(count, arcs, enough=np.inf):
    tail, head, cost = (np.array(values) for values in zip(*arcs, strict=True))
    return least_gossip_cost(count, tail, head, cost.astype(float), enough=enough)


def least_of_all(count, arcs):
    """Cost of the cheapest sequence of messages, found by trying all (Dijkstra)."""
    start = tuple(1 << rank for rank in range(count))
    costs, waiting = {start: 0.0}, [(0.0, start)]
    while waiting:
        cost, known = heapq.heappop(waiting)
        if all(each == (1 << count) - 1 for each in known):
            return cost
        if cost > costs[known]:
            continue
        for tail, head, each in arcs:
            after = (*known[:head], known[head] | known[tail], *known[head + 1 :])
            if cost + each < costs.get(after, np.inf):
                costs[after] = cost + each
                heapq.heappush(waiting, (cost + each, after))
    raise AssertionError("the graph is not connected")


def through_a_root(count, arcs):
    """Cost of the cheapest tree into a rank with one out of it."""
    tail, head, cost = (np.array(values) for values in zip(*arcs, strict=True))
    best = np.inf
    for root in range(count):
        trees = [cheapest_arborescence(count, *ends, cost.astype(float), root) for ends in ((tail, head), (head, tail))]
        best = min(best, sum(float(cost[tree[tree >= 0]].sum()) for tree in trees))
    return best


def strongly_connected(rng, count):
    order = rng.sample(range(count), count)
    pairs = list(zip(order, order[1:] + order[:1], strict=True))
    pairs += [tuple(rng.sample(range(count), 2)) for _ in range(rng.randrange(2 * count))]
    return [(*pair, rng.choice([0.0, 1.0, 2.0, 5.0])) for pair in sorted(set(pairs))]


def test_one_message_in_turn_needs_2n_minus_2_of_them():
    """Harary and Schwenk, "The communication problem on graphs and digraphs", 1974."""
    full = [(a, b, 1.0) for a in range(5) for b in range(5) if a != b]
    assert bound(5, full) == pytest.approx(8)
    ring = [(a, (a + 1) % 6, 1.0) for a in range(6)]
    assert bound(6, ring) == pytest.approx(10)


def test_ranks_that_tell_each_other_at_no_cost_are_one():
    """Two pairs; 3 one way and 4 back is all that costs."""
    arcs = [(0, 1, 0.0), (1, 0, 0.0), (2, 3, 0.0), (3, 2, 0.0), (1, 2, 3.0), (3, 0, 4.0)]
    assert bound(4, arcs) == pytest.approx(7)
    assert bound(4, [(a, b, 0.0) for a, b, _ in arcs]) == 0


def test_around_a_ring_twice_but_for_two_neighbouring_links():
    """Rank 3 hears of everyone without its link out (2) and tells everyone without its link in (10): 2 * 14 - 12."""
    ring = [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 10.0), (3, 0, 2.0)]
    assert least_of_all(4, ring) == through_a_root(4, ring) == 16
    assert bound(4, ring) == pytest.approx(16)


def test_no_more_than_enough_is_proved():
    full = [(a, b, 1.0) for a in range(4) for b in range(4) if a != b]
    assert bound(4, full, enough=6.0) <= 6.0 + 1e-9


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 4), st.randoms(use_true_random=False))
def test_no_sequence_of_messages_costs_less(count, rng):
    arcs = strongly_connected(random.Random(rng.randrange(1 << 30)), count)
    least = least_of_all(count, arcs)
    assert bound(count, arcs) == pytest.approx(least)
    assert through_a_root(count, arcs) == pytest.approx(least)


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 4), st.randoms(use_true_random=False))
def test_what_the_first_rank_and_all_others_need_is_a_bound(count, rng):
    arcs = strongly_connected(random.Random(rng.randrange(1 << 30)), count)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gossip, "_MOST_SEARCHED", 0)
        assert bound(count, arcs) <= least_of_all(count, arcs) + 1e-9


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 4), st.integers(1, 30), st.randoms(use_true_random=False))
def test_a_search_that_ends_early_has_proved_a_bound(count, states, rng):
    arcs = strongly_connected(random.Random(rng.randrange(1 << 30)), count)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gossip, "_MOST_STATES", states)
        assert bound(count, arcs) <= least_of_all(count, arcs) + 1e-9
