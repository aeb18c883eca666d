"""What trees promise before their pieces are put in order."""

import math

import numpy as np
import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.trees.disjoint import disjoint_trees
from taccl_py.synthesis.trees.packing import SpanningTree
from taccl_py.synthesis.trees.pipeline import promise_of
from taccl_py.synthesis.trees.rounding import TreeSet
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from tests.instances import chain, machine
from tests.synthesis.trees.test_packing import network_of, never


def test_a_chain_is_as_fast_as_equal_pieces_can_be_but_for_the_first_hop():
    """100 MB in k pieces over five links: the last link takes k (1 + 1000 / k) us, the first piece as much on every link as it is large."""
    network = network_of(chain(6, alpha_us=1.0, beta_us_per_mb=10.0), Kind.BROADCAST)
    tree_set = TreeSet((SpanningTree(0, np.array([-1, 0, 1, 2, 3, 4])),), 1, 10.0)
    promise = promise_of(network, tree_set, 100.0, math.inf, both_directions=False)
    assert promise.pieces == pytest.approx(math.sqrt(5 * 1000))
    assert promise.time_us == pytest.approx(1000 + 5 + 2 * promise.pieces)
    assert promise_of(network, tree_set, 100.0, 20, both_directions=False).time_us == pytest.approx(
        1000 + 5 + 5000 / 20 + 20
    )


def test_sums_go_the_same_ways_before_and_load_the_links_back():
    links = [Link(a, b, 1.0, 10.0) for a, b in [(0, 1), (1, 0), (1, 2), (2, 1)]]
    network = network_of(machine(3, links), Kind.BROADCAST)
    tree_set = TreeSet((SpanningTree(0, np.array([-1, 0, 2])),), 1, 10.0)
    one, both = (promise_of(network, tree_set, 1.0, 10, both_directions=ways) for ways in (False, True))
    # 10 us on the fullest link; two hops one way, four both ways, of 1 us and of 10 us divided by the number of pieces.
    assert one.time_us == pytest.approx(10 + 2 + 2 * math.sqrt(20))
    assert both.time_us == pytest.approx(10 + 4 + 2 * math.sqrt(40))


def test_alphas_of_zero_let_pieces_be_as_small_as_may_be():
    network = network_of(chain(3, alpha_us=0.0, beta_us_per_mb=10.0), Kind.BROADCAST)
    tree_set = TreeSet((SpanningTree(0, np.array([-1, 0, 1])),), 1, 10.0)
    assert promise_of(network, tree_set, 1.0, 100, both_directions=False).time_us == pytest.approx(10 + 20 / 100)


def test_a_torus_keeps_the_promise():
    network = network_of(load_topology("torus:4x4"), Kind.BROADCAST, symmetric=False)
    promise = promise_of(network, disjoint_trees(network, 4, never), 16.8, 1024, both_directions=False)
    assert promise.time_us == pytest.approx(112.4, rel=0.05)
