from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.hub import both_directions
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.oriented import HubTrees
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from tests.instances import MB, machine, ring
from tests.synthesis.trees.test_hub import from_hub
from tests.synthesis.trees.test_packing import never, spans


def hub_trees(topology):
    network = from_hub(topology)
    return network, HubTrees(network, Limits(), never)


def load_us(network, tree_set):
    """Of the fullest link if it carries what goes up the trees and what comes down."""
    return sum(both_directions(network).load(tree.used()) for tree in tree_set.trees).max() / tree_set.parts


# Edges of a tree by pairs of neighbours, times the 20 us (the ring's 10) that a megabyte takes; then numbers of trees and their load.
LOADS = [
    (load_topology("mesh:4x4"), 15 / 24, {1: 1, 2: 1, 3: 2 / 3, 8: 5 / 8}),
    (load_topology("mesh:8x8"), 63 / 112, {5: 3 / 5, 7: 4 / 7, 16: 9 / 16}),
    (load_topology("hypercube:3"), 7 / 12, {2: 1, 3: 2 / 3, 12: 7 / 12}),
    (load_topology("full:4"), 3 / 6, {1: 1, 2: 1 / 2}),
    (ring(5, beta_us_per_mb=20.0, both_ways=True), 4 / 5, {4: 1, 5: 4 / 5}),
]


@pytest.mark.parametrize(("topology", "least", "wholes"), LOADS, ids=lambda value: getattr(value, "name", ""))
def test_trees_load_links_as_little_as_trees_can(topology, least, wholes):
    network, trees = hub_trees(topology)
    assert trees.least_load_us() == pytest.approx(20 * least)
    for parts, load in wholes.items():
        assert trees.least_load_us(parts) == pytest.approx(20 * load)
        tree_set = trees.grown(parts)
        assert len(tree_set.trees) == tree_set.parts == parts
        assert all(spans(network, tree) for tree in tree_set.trees)
        assert tree_set.load_us == pytest.approx(20 * load)
        assert load_us(network, tree_set) == pytest.approx(20 * load)


@st.composite
def small_machines(draw):
    """Four ranks in a chain both ways, with other pairs linked, too, at costs of their own."""
    pairs = [(0, 1), (1, 2), (2, 3), *draw(st.lists(st.sampled_from([(0, 2), (0, 3), (1, 3)]), unique=True))]
    links = []
    for one, other in pairs:
        beta = draw(st.sampled_from([1.0, 2.0, 3.0]))
        links += [Link(one, other, 1.0, beta), Link(other, one, 1.0, beta)]
    return machine(4, links)


@given(small_machines(), st.integers(1, 3))
@settings(max_examples=50)
def test_no_trees_are_lighter(topology, parts):
    network, trees = hub_trees(topology)
    costs = {(min(k.src, k.dst), max(k.src, k.dst)): k.beta_us_per_mb for k in topology.links}
    pairs = list(costs)

    def joins_all(chosen):
        group = list(range(4))
        for one, other in chosen:
            group = [group[one] if g == group[other] else g for g in group]
        return len(set(group)) == 1

    loads = [
        np.array([costs[pair] if pair in chosen else 0.0 for pair in pairs])
        for chosen in combinations(pairs, 3)
        if joins_all(chosen)
    ]
    least_us = min(sum(chosen).max() for chosen in combinations_with_replacement(loads, parts)) / parts
    tree_set = trees.grown(parts)
    assert tree_set.load_us == pytest.approx(least_us)
    assert load_us(network, tree_set) == pytest.approx(least_us)
    assert all(spans(network, tree) for tree in tree_set.trees)
    assert trees.least_load_us() == pytest.approx(pack_trees(both_directions(network), never).load_us, rel=1e-4)


def test_other_seeds_give_other_trees_of_the_same_load_and_every_seed_always_the_same():
    _, trees = hub_trees(load_topology("mesh:4x4"))
    links = [[tree.links.tolist() for tree in trees.grown(8, seed).trees] for seed in (0, 0, 1, 2)]
    assert links[0] == links[1]
    assert len({str(each) for each in links}) > 1
    assert {round(trees.grown(8, seed).load_us, 9) for seed in range(4)} == {12.5}


def test_links_that_take_no_time_carry_all_trees():
    links = [Link(a, b, 1.0, beta) for a, b, beta in [(0, 1, 0.0), (1, 0, 0.0), (1, 2, 4.0), (2, 1, 4.0)]]
    network = CapacityNetwork.of(Problem.build(machine(3, links), Collective(Kind.BROADCAST, 3, root=1), None, MB))
    trees = HubTrees(network, Limits(), never)
    assert trees.grown(3).load_us == pytest.approx(4.0)


def test_out_of_time_there_are_no_trees():
    network = from_hub(load_topology("mesh:4x4"))
    trees = HubTrees(network, Limits(), lambda: True)
    assert trees.least_load_us() == float("inf")
    assert trees.grown(2) is None
