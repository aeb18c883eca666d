import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import TreeFinder, dive, pack_trees
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from tests.instances import MB, chain, machine, ring
from tests.synthesis.drawn import problems
from tests.synthesis.trees.boxes import boxes


def never():
    return False


def network_of(topology, kind=Kind.ALLGATHER, *, symmetric=True):
    problem = Problem.build(topology, Collective(kind, topology.num_ranks), None, MB)
    return CapacityNetwork.of(problem if symmetric else problem.without_symmetry())


def spans(network, tree):
    """Whether the tree's links reach every rank from its root, one link into each."""
    root = network.roots[tree.root]
    reached = {root}
    links = tree.used().tolist()
    for _ in links:
        reached |= {int(network.dst[link]) for link in links if int(network.src[link]) in reached}
    heads = sorted(int(network.dst[link]) for link in links)
    return reached == set(range(network.num_ranks)) and heads == sorted(set(reached) - {root})


# Microseconds if every rank has one megabyte: worst cuts, by hand.
OPTIMA = [
    (ring(4), 30.0),
    (ring(8, both_ways=True), 35.0),
    (load_topology("hypercube:3"), 7 / 3 * 20),
    (load_topology("torus:4x4"), 15 / 4 * 20),
    (load_topology("dgx1"), 7 / 3 * 20),
    (load_topology("ndv2", 2), 8 * 105.0),
    # Every GPU takes in 15 shares through its switch port and its NIC together.
    (boxes(2), 15 / (0.3 + 0.025)),
    # Every box takes in 24 shares through 8 NICs.
    (boxes(4), 24 / 8 * 40.0),
    # Half of the box of 16 takes in 14 shares over 300 GB/s.
    (load_topology("mi250x"), 14 / 0.3),
]


@pytest.mark.parametrize(("topology", "optimum_us"), OPTIMA, ids=lambda value: getattr(value, "name", ""))
def test_the_packing_reaches_the_worst_cut(topology, optimum_us):
    packing = pack_trees(network_of(topology), never)
    assert packing.load_us == pytest.approx(optimum_us, rel=1e-5)
    assert packing.bound_us == pytest.approx(optimum_us, rel=1e-5)


@pytest.mark.parametrize("name", ["dgx1", "mi250x", "torus:4x4"])
def test_symmetry_changes_nothing_but_the_work(name):
    topology = load_topology(name)
    small, large = network_of(topology), network_of(topology, symmetric=False)
    assert len(small.roots) < len(large.roots)
    assert pack_trees(small, never).load_us == pytest.approx(pack_trees(large, never).load_us, rel=1e-5)


@given(problems(kinds=(Kind.ALLGATHER, Kind.BROADCAST), most_ranks=5))
@settings(max_examples=40)
def test_amounts_add_up_and_loads_are_what_the_trees_load(drawn):
    problem = Problem.build(drawn.topology, drawn.collective, None, MB)
    network = CapacityNetwork.of(problem)
    packing = pack_trees(network, never)
    for root in range(len(network.roots)):
        own = [amount for tree, amount in zip(packing.trees, packing.amounts, strict=True) if tree.root == root]
        assert sum(own) == pytest.approx(1.0)
    assert all(spans(network, tree) for tree in packing.trees)
    load = sum(a * network.load(t.used()) for t, a in zip(packing.trees, packing.amounts, strict=True))
    assert load.max() == pytest.approx(packing.load_us, rel=1e-6, abs=1e-9)
    assert packing.bound_us <= packing.load_us * (1 + 1e-9)
    assert packing.bound_us == pytest.approx(packing.load_us, rel=1e-4)


def test_out_of_time_there_is_a_packing_and_its_bound_is_one():
    network = network_of(load_topology("mi250x"))
    packing = pack_trees(network, lambda: True)
    assert packing.bound_us <= 14 / 0.3 * (1 + 1e-9) <= packing.load_us * (1 + 1e-6)


@given(st.integers(1, 6), st.sampled_from([1, 4]))
@settings(max_examples=12)
def test_a_dive_gives_every_root_its_trees(parts, at_once):
    network = network_of(load_topology("mi250x"))
    packing = pack_trees(network, never)
    trees = dive(network, packing, parts, packing.load_us * parts, never, at_once=at_once)
    assert [tree.root for tree in trees] == sorted(list(range(len(network.roots))) * parts)
    assert all(spans(network, tree) for tree in trees)


def test_a_broadcast_packs_trees_of_its_root_alone():
    network = network_of(chain(4), Kind.BROADCAST)
    packing = pack_trees(network, never)
    assert network.roots == (0,)
    assert packing.load_us == pytest.approx(10.0)


def test_a_free_group_moves_every_rank_and_a_shared_port_forbids_it():
    network = network_of(boxes(2))
    assert len(network.images) == 16
    assert all((image != np.arange(16)).all() for image in network.images[1:])
    assert network.roots == (0,)
    shared = load_topology("dgx2", 2)
    # The exchange of two ranks that share a NIC keeps the NIC in its place.
    assert len(network_of(shared).images) == 16


def test_images_of_links_are_links_between_images():
    network = network_of(load_topology("torus:4x4"))
    for image, links in zip(network.images, network.link_images(), strict=True):
        assert (network.src[links] == image[network.src]).all()
        assert (network.dst[links] == image[network.dst]).all()


def test_reflections_of_a_line_that_keep_the_middle_are_not_used():
    links = [link for r in range(2) for link in chain(3).links[r : r + 1]]
    both = [*links, *(type(k)(k.dst, k.src, k.alpha_us, k.beta_us_per_mb) for k in links)]
    topology = machine(3, both, symmetry=[(2, 1, 0)])
    assert len(network_of(topology).images) == 1


def test_no_tree_is_cheaper_than_an_offer_says_though_hops_count_too():
    """Over ranks 0 -> 1 -> 2 a tree costs 2, and straight from rank 0 a millionth more, which is less than a second hop counts."""
    links = [Link(0, 1, 0.0, 1.0), Link(0, 2, 0.0, 1.000001), Link(1, 2, 0.0, 1.0)]
    network = network_of(machine(3, links), Kind.BROADCAST)
    prices = np.ones(network.num_resources)
    (offer,) = TreeFinder(network).cheapest(prices, 1e-5)
    assert network.lengths(prices)[offer.tree.used()].sum() == pytest.approx(2.000001, abs=1e-9)
    assert offer.least <= 2.0


def test_prices_of_one_root_are_smoothed_so_that_few_trees_are_enough():
    """Two MI250X nodes: 488 trees by present prices alone; the packing is the optimum all the same, all that a node's ports in bring."""
    packing = pack_trees(network_of(load_topology("mi250x", 2), Kind.BROADCAST), never)
    assert len(packing.known) < 330
    assert packing.load_us == pytest.approx(3.90625)
    assert packing.bound_us == pytest.approx(3.90625)
