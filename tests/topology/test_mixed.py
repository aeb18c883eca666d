"""Machines of several sorts of nodes: ``h100-x2+a100-x2``."""

import json

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.topology.automorphism import image_of_links
from taccl_py.topology.catalog import canonical_name, load_topology, topology_file
from taccl_py.topology.fabrics import rotation
from taccl_py.topology.files import topology_from_fields, topology_to_json
from taccl_py.topology.template import AlphaBeta, NetworkReach, Nic, NodeNetwork, NodeSwitch, NodeTemplate, join_nodes


def node(tmp_path, name, ranks, **network):
    """A file in node form: a switch and a NIC for all."""
    value = {
        "format": "taccl-topology", "version": 1, "name": name, "description": "a node", "source": "invented",
        "node": {
            "ranks": ranks,
            "switches": [{"name": "plane", "ranks": "all", "alpha_us": 1, "beta_us_per_mb": 10}],
            "nics": [{"name": "ib", "ranks": "all", "alpha_us": 2, "beta_us_per_mb": 40}],
        },
        "network": {"reach": "all", **network},
    }  # fmt: skip
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def cost(machine, src, dst):
    (link,) = [machine.links[index] for index in machine.links_between[src, dst]]
    return link.alpha_us, link.beta_us_per_mb


def test_nodes_stand_in_the_order_in_which_they_are_written():
    machine = load_topology("h100-x2+a100-x2")
    assert (machine.name, machine.num_ranks, machine.num_nodes) == ("ndv5-x2+ndv4-x2", 32, 4)
    assert cost(machine, 0, 1)[1] == pytest.approx(1000 / 450)
    assert cost(machine, 16, 17)[1] == pytest.approx(1000 / 300)
    assert machine.gpu == "a100+h100"


def test_between_two_sorts_the_slower_nic_counts_and_each_has_its_own_port():
    machine = load_topology("ndv5+ndv4")
    assert cost(machine, 0, 8)[1] == cost(machine, 8, 0)[1] == 40
    ports = {port.name: port.beta_us_per_mb for port in machine.ports}
    assert (ports["node 0 ib0 out"], ports["node 1 ib0 in"]) == (20, 40)
    # Two H100 nodes reach each other at the full rate.
    assert cost(load_topology("ndv5-x2+ndv4"), 0, 8)[1] == 20


def test_the_same_nodes_are_the_machine_of_so_many():
    assert load_topology("ndv4+ndv4-x2").links == load_topology("ndv4-x3").links


def test_files_of_nodes_are_parts_and_nodes_may_be_uneven(tmp_path):
    large, small = node(tmp_path, "large", 3, latency_us=0.5), node(tmp_path, "small", 2, latency_us=0.25)
    machine = load_topology(f"{large}-x2+{small}")
    assert machine.node_of == (0, 0, 0, 1, 1, 1, 2, 2)
    assert machine.name == "large-x2+small"
    assert {link.latency_us for link in machine.links} == {0.0, 0.5}


def test_its_symmetry_turns_each_sort_of_nodes():
    machine = load_topology("ndv5-x2+ndv4-x3")
    everywhere, turned = machine.symmetry
    assert turned[:17] == (*range(8, 16), *range(8), 24)
    assert turned[32:] == tuple(range(16, 24))
    assert everywhere[:9] == (1, 2, 3, 4, 5, 6, 7, 0, 9)
    for image in machine.symmetry:
        assert not isinstance(image_of_links(machine, image), str)


def turning(ranks, *by, reach="all"):
    """Ranks with a NIC each, and as symmetries their turns by so many places."""
    everyone = tuple(range(ranks))
    return NodeTemplate(
        f"turning-{ranks}", "", "", ranks, switches=(NodeSwitch("switch", everyone, AlphaBeta(1, ranks)),),
        nics=tuple(Nic(f"ib{rank}", (rank,), AlphaBeta(2, 40)) for rank in everyone),
        symmetry=tuple(rotation(ranks, places) for places in by), network=NodeNetwork(NetworkReach(reach)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "images"),
    [
        # Both return after two steps.
        ((turning(2, 1), turning(4, 1)), [(1, 0, 4, 5, 2, 3)]),
        # The first of two turns that have something in common with that of three ranks: it returns after six steps, two of them at once after three.
        ((turning(3, 1), turning(6, 1, 2)), [(1, 2, 0, 5, 6, 7, 8, 3, 4)]),
        # After two steps and after three: one of them would stay in place.
        ((turning(2, 1), turning(3, 1)), []),
        # Each sort's move in all of its nodes, and the turn of the two nodes of a sort.
        ((turning(2, 1), turning(2, 1), turning(4, 2)), [(1, 0, 3, 2, 6, 7, 4, 5), (2, 3, 0, 1, 4, 5, 6, 7)]),
    ],
)
def test_nodes_of_several_sizes_move_in_step(nodes, images):
    machine = join_nodes(nodes, "mixed")
    assert [*machine.symmetry] == images
    assert not any(isinstance(image_of_links(machine, image), str) for image in images)


def test_trees_of_three_ranks_serve_all_ranks_of_two_sorts_of_nodes():
    # Two DGX-2 have 32 ranks and eight NICs each, which eight steps of two ranks take to each other: with the turn of the nodes 16 images.
    machine = load_topology("ndv5-x2+dgx2-x2")
    problem = Problem.build(machine, Collective(Kind.ALLGATHER, machine.num_ranks, 1), None, 1 << 20)
    network = CapacityNetwork.of(problem)
    assert (network.roots, len(network.images)) == ((0, 16, 17), 16)


def test_it_is_written_and_read_as_any_other():
    machine = load_topology("ndv5+ndv4")
    assert topology_from_fields(Fields(topology_to_json(machine), "x")) == machine
    assert canonical_name("h100+a100") == "h100+a100"


@pytest.mark.parametrize(
    ("name", "near"), [("ndv4+ndv4", True), ("ndv5+ndv4", False), ("ndv4+ndv2", False), ("ndv2+ndv2", False)]
)
def test_nics_are_near_where_those_of_all_nodes_are_and_gpus_are_of_one_model(name, near):
    machine = load_topology(name)
    assert machine.near_nics is near
    assert machine.keeps_stores_whole is near
    assert machine.subset(range(4)).keeps_stores_whole  # of one node


def test_a_file_with_a_plus_in_its_name_is_a_file(tmp_path):
    path = node(tmp_path, "a", 2).rename(tmp_path / "a+b.json")
    assert topology_file(str(path)) == path
    assert load_topology(str(path)).num_ranks == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ndv5+", "'' is no node"), ("ndv5+ring:4", "'ring:4' is no node"), ("ndv5+dgx1", "node 1 .dgx1. has no NIC"),
        ("ndv5-x0+ndv4", "found 0 nodes"), ("ndv5+missing.json", "missing.json"), ("v100+ndv4", "GPU of several machines"),
    ],
)  # fmt: skip
def test_what_is_no_node_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        load_topology(text)


def test_the_number_of_nodes_is_not_said_twice():
    with pytest.raises(InputError, match="leave the number of nodes out"):
        load_topology("ndv5+ndv4", 4)


def test_a_whole_machine_is_no_node(tmp_path):
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(topology_to_json(load_topology("ring:4"))), encoding="utf-8")
    with pytest.raises(InputError, match=r"whole\.json"):
        load_topology(f"{path}+ndv4")
