import numpy as np
import pytest

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.shallow import varied_trees
from taccl_py.synthesis.trees.shared_trees import (
    SharedTreeSet,
    SharedTreeSetFinder,
    Wish,
    shared_tree_sets,
    unequal_cuts,
)
from taccl_py.topology.catalog import load_topology
from tests.instances import ring
from tests.synthesis.trees.test_packing import network_of, never, spans

WISH = Wish(part=0.4, end=1.0, depth=0.1, loss=0.001, least=0.02)


def finder(topology, limits=None):
    network = network_of(topology)
    packing = pack_trees(network, never)
    known = varied_trees(network, 1.0, never)
    return network, packing, SharedTreeSetFinder(network, packing, known, limits or Limits())


def load_us(network, shared):
    """Time of the fullest resource if every root has one megabyte."""
    pairs = zip(shared.trees, shared.amounts, strict=True)
    return max(sum(amount * network.load(tree.used()) for tree, amount in pairs))


@pytest.mark.parametrize("name", ["mi250x", "dgx1", "torus:4x4"])
def test_a_grove_spans_carries_all_and_loses_no_more_than_the_wish_allows(name):
    network, packing, found = finder(load_topology(name))
    shared = found.find(WISH)
    assert [tree.root for tree in shared.trees] == sorted(tree.root for tree in shared.trees)
    for root in range(len(network.roots)):
        own = [amount for tree, amount in zip(shared.trees, shared.amounts, strict=True) if tree.root == root]
        assert sum(own) == pytest.approx(1.0)
    assert all(spans(network, tree) for tree in shared.trees)
    assert load_us(network, shared) <= packing.load_us * 1.001 * (1 + 1e-6)


def test_two_mi250x_lose_next_to_nothing_with_at_most_eight_trees_a_root():
    """Eight trees that carry equal parts lose 1.8 %."""
    network, packing, found = finder(load_topology("mi250x", 2))
    shared = found.find(WISH)
    assert max(sum(tree.root == root for tree in shared.trees) for root in range(len(network.roots))) <= 8
    assert load_us(network, shared) <= packing.bound_us * 1.0011


def test_small_trees_are_left_out_where_others_can_do_without_them():
    _, _, found = finder(load_topology("mi250x", 2))
    loose, strict = (found.find(Wish(0.4, 1.0, 0.1, 0.01, least)) for least in (0.0, 0.06))
    assert len(strict.trees) < len(loose.trees)


def test_where_there_is_one_way_only_the_grove_is_the_packing():
    _, packing, found = finder(ring(5))
    shared = found.find(WISH)
    assert shared.amounts == pytest.approx((1.0,))
    assert np.array_equal(shared.trees[0].links, packing.trees[0].links)
    assert len(shared_tree_sets(found.find)) == 1


def test_nothing_is_looked_for_when_no_time_is_left_or_the_user_said_stop():
    _, _, late = finder(ring(5), Limits(seconds=0.0))
    assert shared_tree_sets(late.find) == []
    limits = Limits()
    _, _, stopped = finder(ring(5), limits)
    limits.stop.set()
    assert shared_tree_sets(stopped.find) == []


def test_cuts_are_in_proportion_and_every_tree_has_one():
    assert unequal_cuts(SharedTreeSet((), (0.6, 0.3, 0.08, 0.02)), 10) == (6, 3, 1, 1)
