import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.rounding import least_load_us, round_packing
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from tests.instances import MB, machine, ring
from tests.synthesis.drawn import problems
from tests.synthesis.trees.boxes import boxes
from tests.synthesis.trees.test_packing import network_of, never, spans


def rounded(topology, parts):
    network = network_of(topology)
    packing = pack_trees(network, never)
    return network, packing, round_packing(network, packing, parts, never)


def hops(network, tree):
    """Links from the root to the farthest rank."""
    parent = {int(network.dst[link]): int(network.src[link]) for link in tree.used().tolist()}
    farthest = 0
    for rank in parent:
        count = 0
        while rank in parent:
            rank, count = parent[rank], count + 1
        farthest = max(farthest, count)
    return farthest


@given(problems(kinds=(Kind.ALLGATHER, Kind.BROADCAST), most_ranks=5), st.integers(1, 4))
@settings(max_examples=40)
def test_there_is_a_tree_for_every_part_and_the_load_is_theirs(drawn, parts):
    network = CapacityNetwork.of(Problem.build(drawn.topology, drawn.collective, None, MB))
    packing = pack_trees(network, never)
    tree_set = round_packing(network, packing, parts, never)
    assert [tree.root for tree in tree_set.trees] == [r for r in range(len(network.roots)) for _ in range(parts)]
    assert all(spans(network, tree) for tree in tree_set.trees)
    load = sum(network.load(tree.used()) for tree in tree_set.trees) / parts
    assert load.max() == pytest.approx(tree_set.load_us)
    assert tree_set.load_us >= least_load_us(network, packing.bound_us * (1 - 1e-6), parts) * (1 - 1e-6)


# Losses of whole trees against the best packing that must not get worse, with the number of trees for each root.
LOSSES = [
    (load_topology("ring:8"), 2, 0.0),
    (load_topology("hypercube:3"), 3, 0.0),
    (load_topology("torus:4x4"), 4, 0.0),
    (load_topology("dgx1"), 6, 0.0),
    (load_topology("mi250x"), 6, 0.0),
    (load_topology("mi250x"), 8, 0.02),
    (load_topology("ndv2", 2), 1, 0.0),
    (load_topology("dgx2", 2), 1, 0.005),
    (boxes(2), 1, 0.0112),
    (boxes(2), 8, 0.0022),
    (boxes(2), 13, 0.0),
    (boxes(4), 1, 0.0),
    (load_topology("torus:4x4x4"), 2, 0.0),
]


@pytest.mark.parametrize(("topology", "parts", "loss"), LOSSES, ids=lambda value: str(getattr(value, "name", value)))
def test_a_few_whole_trees_lose_little(topology, parts, loss):
    _, packing, tree_set = rounded(topology, parts)
    assert tree_set.load_us <= packing.bound_us * (1 + loss + 2e-3)


def test_trees_of_boxes_have_two_hops():
    network, _, tree_set = rounded(boxes(4), 1)
    assert hops(network, tree_set.trees[0]) == 2


def test_ranks_hang_as_near_to_the_root_as_the_load_allows():
    # Links of the root are fast, so all three ranks can hang there although a chain would load them less.
    links = [Link(0, r, 1.0, 1.0) for r in (1, 2, 3)] + [Link(r, r + 1, 1.0, 1.0) for r in (1, 2)]
    network = network_of(machine(4, links), Kind.BROADCAST)
    tree_set = round_packing(network, pack_trees(network, never), 1, never)
    assert hops(network, tree_set.trees[0]) == 1


def test_the_least_load_is_a_multiple_of_a_part():
    network = network_of(ring(4))
    assert least_load_us(network, 30.0, 1) == pytest.approx(30.0)
    assert least_load_us(network, 31.0, 1) == pytest.approx(40.0)
    assert least_load_us(network, 31.0, 4) == pytest.approx(32.5)


def test_out_of_time_the_trees_are_still_whole():
    network = network_of(load_topology("mi250x"))
    packing = pack_trees(network, lambda: True)
    tree_set = round_packing(network, packing, 3, lambda: True)
    assert all(spans(network, tree) for tree in tree_set.trees)


def test_rounding_is_deterministic():
    one, other = (rounded(load_topology("mi250x"), 3)[2] for _ in range(2))
    assert all(np.array_equal(a.links, b.links) for a, b in zip(one.trees, other.trees, strict=True))


def test_trees_of_one_root_enter_the_other_node_once_each():
    """16 trees and 16 NICs of 16 GB/s: each carries one part. Trees that cross more than once left 7.8 us for the last ones."""
    network = network_of(load_topology("mi250x", 2), Kind.BROADCAST)
    packing = pack_trees(network, never)
    assert packing.load_us == pytest.approx(62.5 / 16)
    assert round_packing(network, packing, 16, never).load_us == pytest.approx(62.5 / 16)
