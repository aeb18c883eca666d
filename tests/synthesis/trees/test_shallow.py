import numpy as np
import pytest

from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.shallow import shallow_machines
from taccl_py.topology.catalog import load_topology
from tests.instances import ring
from tests.synthesis.trees.boxes import boxes
from tests.synthesis.trees.test_packing import network_of, never


def machines(topology):
    network = network_of(topology)
    packing = pack_trees(network, never)
    return network, packing, shallow_machines(network, packing, 1.0, never)


def load_us(network, packing):
    loads = (amount * network.load(tree.used()) for tree, amount in zip(packing.trees, packing.amounts, strict=True))
    return float(sum(loads, np.zeros(network.num_resources)).max())


@pytest.mark.parametrize(
    "topology", [boxes(3), load_topology("mi250x"), load_topology("mi250x", 2)], ids=lambda each: each.name
)
def test_next_to_no_throughput_is_given_up(topology):
    network, packing, found = machines(topology)
    assert found
    for machine in found:
        assert load_us(network, machine.packing) <= packing.load_us * 1.002 * (1 + 1e-6)


def test_only_roots_send_to_their_own_place_in_other_boxes():
    network, _, (machine, *_) = machines(boxes(3))
    for tree in machine.packing.trees:
        for link in tree.used().tolist():
            src, dst = int(network.src[link]), int(network.dst[link])
            if src // 8 != dst // 8:
                assert src == network.roots[tree.root]
                assert src % 8 == dst % 8


def test_where_there_is_one_way_only_it_stays():
    network, packing, found = machines(ring(5))
    assert [len(tree.used()) for tree in found[0].packing.trees] == [4]
    assert found[0].packing.load_us == pytest.approx(packing.load_us)
    assert np.array_equal(found[0].packing.trees[0].links, packing.trees[0].links)
    assert network.num_ranks == 5


def test_trees_of_two_mi250x_become_shallower():
    network, packing, found = machines(load_topology("mi250x", 2))

    def depth(tree):
        above = {int(network.dst[link]): int(network.src[link]) for link in tree.used().tolist()}
        deepest = 0
        for rank in above:
            hops = 0
            while rank in above:
                rank, hops = above[rank], hops + 1
            deepest = max(deepest, hops)
        return deepest

    assert max(map(depth, found[0].packing.trees)) < max(map(depth, packing.trees))
