from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.disjoint import disjoint_trees, least_whole_load_us, shares_only_links
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import SpanningTree, pack_trees
from taccl_py.synthesis.trees.rounding import round_packing
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from tests.instances import MB, chain, machine, ring
from tests.synthesis.drawn import problems
from tests.synthesis.trees.boxes import boxes
from tests.synthesis.trees.test_packing import network_of, never, spans
from tests.synthesis.trees.test_rounding import hops


def plain(topology, kind=Kind.BROADCAST):
    return network_of(topology, kind, symmetric=False)


def load_us(network, tree_set):
    return sum(network.load(tree.used()) for tree in tree_set.trees).max() / tree_set.parts


# Microseconds for one megabyte down so many trees, by hand: every link of these takes 20 us (the ring's 10) for one megabyte.
LOADS = [
    (ring(8, both_ways=True), 1, 10.0),
    (ring(8, both_ways=True), 2, 5.0),
    # Two links lead into every rank, so one of them carries two of three trees.
    (ring(8, both_ways=True), 3, 20 / 3),
    (load_topology("torus:4x4"), 4, 5.0),
    (load_topology("torus:8x8"), 4, 5.0),
    (load_topology("torus:8x8"), 8, 5.0),
    (load_topology("hypercube:3"), 3, 20 / 3),
    # Seven links lead into every rank.
    (load_topology("full:8"), 7, 20 / 7),
    # A corner has two links.
    (load_topology("mesh:4x4"), 2, 10.0),
    (load_topology("mesh:4x4"), 4, 10.0),
]


@pytest.mark.parametrize(
    ("topology", "parts", "expected_us"), LOADS, ids=lambda value: str(getattr(value, "name", value))
)
def test_trees_of_one_root_load_links_as_evenly_as_cuts_allow(topology, parts, expected_us):
    network = plain(topology)
    tree_set = disjoint_trees(network, parts, never)
    assert tree_set.load_us == pytest.approx(expected_us)
    assert load_us(network, tree_set) == pytest.approx(expected_us)
    assert len(tree_set.trees) == tree_set.parts == parts
    assert all(spans(network, tree) for tree in tree_set.trees)


@given(problems(kinds=(Kind.ALLGATHER, Kind.BROADCAST), most_ranks=5), st.integers(1, 4))
@settings(max_examples=60)
def test_forests_are_whole_and_between_the_packing_and_the_rounded_one(drawn, parts):
    network = CapacityNetwork.of(Problem.build(drawn.topology, drawn.collective, None, MB).without_symmetry())
    assume(shares_only_links(network))
    tree_set = disjoint_trees(network, parts, never)
    assert [tree.root for tree in tree_set.trees] == [r for r in range(len(network.roots)) for _ in range(parts)]
    assert all(spans(network, tree) for tree in tree_set.trees)
    packing = pack_trees(network, never)
    assert load_us(network, tree_set) <= tree_set.load_us * (1 + 1e-9)
    assert (
        packing.bound_us * (1 - 1e-6)
        <= tree_set.load_us
        <= round_packing(network, packing, parts, never).load_us * (1 + 1e-6)
    )


@st.composite
def small_machines(draw):
    """Four ranks on a ring one way, with more links of their own between some."""
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b and b != (a + 1) % 4]
    chosen = [(a, (a + 1) % 4) for a in range(4)] + draw(st.lists(st.sampled_from(pairs), unique=True, max_size=5))
    return machine(4, [Link(a, b, 1.0, draw(st.sampled_from([1.0, 2.0, 3.0]))) for a, b in chosen])


def all_trees(network):
    """Every spanning tree of the only root."""
    (root,) = network.roots
    into = [[-1] if rank == root else np.flatnonzero(network.dst == rank).tolist() for rank in range(network.num_ranks)]
    drawn = [SpanningTree(0, np.array(links)) for links in product(*into)]
    return [tree for tree in drawn if spans(network, tree)]


@given(small_machines(), st.integers(1, 3))
@settings(max_examples=60)
def test_no_trees_are_lighter(topology, parts):
    network = plain(topology)
    loads = [network.load(tree.used()) for tree in all_trees(network)]
    least_us = min(sum(chosen).max() for chosen in combinations_with_replacement(loads, parts)) / parts
    assert least_whole_load_us(network, parts) == pytest.approx(least_us)
    assert load_us(network, disjoint_trees(network, parts, never)) == pytest.approx(least_us)


def test_trees_are_nearly_as_shallow_as_the_machine():
    """On a torus of 8 x 8 the farthest rank is eight hops away. Four trees that were grown one by one had 37 levels."""
    network = plain(load_topology("torus:8x8"))
    assert max(hops(network, tree) for tree in disjoint_trees(network, 4, never).trees) <= 12


def test_a_link_that_a_later_tree_needs_is_left_to_it():
    """Rank 2 is reached over 0 -> 2 and 1 -> 2. If the first tree took both 0 -> 1 and 1 -> 2, no link would lead the second to rank 1."""
    network = plain(machine(3, [Link(0, 1, 1, 1), Link(0, 2, 1, 1), Link(1, 2, 1, 1), Link(2, 1, 1, 1)]))
    tree_set = disjoint_trees(network, 2, never)
    assert tree_set.load_us == pytest.approx(0.5)
    assert np.bincount(np.concatenate([tree.used() for tree in tree_set.trees])).tolist() == [1, 1, 1, 1]


def test_links_that_take_no_time_carry_all_trees():
    network = plain(machine(3, [Link(0, 1, 1.0, 0.0), Link(1, 2, 1.0, 2.0), Link(0, 2, 1.0, 2.0)]))
    tree_set = disjoint_trees(network, 2, never)
    assert tree_set.load_us == pytest.approx(1.0)


def test_all_roots_of_an_all_gather_grow_side_by_side():
    """Two links into each of four ranks, over which three others' megabytes come at 10 us each."""
    network = plain(ring(4, both_ways=True), Kind.ALLGATHER)
    assert least_whole_load_us(network, 1) == pytest.approx(20.0)
    assert disjoint_trees(network, 2, never).load_us == pytest.approx(15.0)


def test_out_of_time_there_are_no_trees():
    assert disjoint_trees(plain(ring(4)), 1, lambda: True) is None


def test_growing_is_deterministic():
    network = plain(load_topology("hypercube:4"))
    one, other = (disjoint_trees(network, 4, never) for _ in range(2))
    assert all(np.array_equal(a.links, b.links) for a, b in zip(one.trees, other.trees, strict=True))


@pytest.mark.parametrize(
    ("topology", "is_so"),
    [
        (chain(3), True),
        (load_topology("torus:4x4"), True),
        (load_topology("dgx1"), True),
        (load_topology("mi250x"), True),
        # A switch port carries all that leaves a GPU.
        (boxes(1), False),
        (load_topology("ndv4", 2), False),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_machines_whose_links_share_a_port_are_told_apart(topology, is_so):
    assert shares_only_links(plain(topology)) is is_so


def test_a_group_that_repeats_trees_shares_more_than_links():
    assert not shares_only_links(network_of(load_topology("torus:4x4"), Kind.ALLGATHER))
