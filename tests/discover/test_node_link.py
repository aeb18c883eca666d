"""Machines as graphs of networkx, and back."""

import json

import networkx
import pytest

from taccl_py.discover.importer import import_machine
from taccl_py.discover.node_link import from_networkx, to_networkx
from taccl_py.errors import InputError
from taccl_py.topology.catalog import list_topologies, load_topology
from tests.cli.inputs import write_json
from tests.discover import dumps

NAMES = [
    *((entry.name, nodes) for entry in list_topologies() for nodes in ((1, 2) if entry.multi_node else (1,))),
    ("ring:8", None), ("torus:4x4", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "nodes"), NAMES)
def test_a_machine_comes_back_from_its_graph_as_it_was(name, nodes):
    machine = load_topology(name, nodes)
    graph = to_networkx(machine)
    assert isinstance(graph, networkx.DiGraph)
    assert graph.number_of_edges() == len(machine.links)
    assert list(graph) == list(range(machine.num_ranks))
    assert from_networkx(graph) == machine


def test_a_machine_comes_back_from_the_file_of_its_graph(tmp_path):
    machine = load_topology("ndv2", 2)
    write_json(
        tmp_path / "graph.json", json.loads(json.dumps(networkx.node_link_data(to_networkx(machine), edges="links")))
    )
    found = import_machine([tmp_path / "graph.json"], gpu=machine.gpu, inside=machine.inside).topology
    assert found == machine


def test_edges_have_the_costs_and_ports_of_links():
    machine = load_topology("ndv2", 2)
    graph = to_networkx(machine)
    link = next(each for each in machine.links if each.ports)
    edges = [graph.edges[link.src, link.dst]] if not graph.is_multigraph() else list(graph[link.src][link.dst].values())
    assert edges[0]["beta_us_per_mb"] == link.beta_us_per_mb
    assert edges[0]["ports"] == [machine.ports[port].name for port in link.ports]


def test_a_changed_graph_is_a_changed_machine():
    graph = to_networkx(load_topology("full:4"))
    graph.remove_node(1)
    graph.remove_edge(0, 2)
    graph.edges[2, 3]["beta_us_per_mb"] = 77.0
    machine = from_networkx(graph, "smaller")
    assert (machine.name, machine.num_ranks) == ("smaller", 3)
    assert [(link.src, link.dst) for link in machine.links] == [(0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert machine.links[2].beta_us_per_mb == 77.0


def test_a_switch_joins_the_ranks_that_are_left():
    machine = load_topology("ndv5", 2)
    graph = to_networkx(machine)
    graph.remove_nodes_from([1, *range(8, 15)])
    found = from_networkx(graph).switches
    assert [each.ranks for each in machine.switches] == [tuple(range(8)), tuple(range(8, 16))]
    assert [each.ranks for each in found] == [tuple(range(7))]


def test_an_undirected_graph_with_switches_is_a_machine_with_ports():
    value = dumps.networkx_leaf_spine()
    machine = from_networkx(networkx.node_link_graph(value, edges="links"), "tree")
    assert (machine.num_ranks, machine.num_nodes, len(machine.links)) == (4, 2, 12)
    assert all(len(link.ports) in (2, 4) for link in machine.links)


def test_a_graph_of_ones_own_needs_only_rates():
    graph = networkx.DiGraph([(0, 1), (1, 0)], name="two")
    networkx.set_edge_attributes(graph, 25.0, "bandwidth_gbps")
    machine = from_networkx(graph)
    assert (machine.name, [link.beta_us_per_mb for link in machine.links]) == ("two", [40.0, 40.0])


def cut(graph):
    graph.remove_edges_from([edge for edge in graph.edges if edge[1] == 0])


def without_cost(graph):
    del graph.edges[0, 1]["beta_us_per_mb"]


def strange_port(graph):
    graph.edges[0, 1]["ports"] = ["ib9"]


def without_node(graph):
    del graph.nodes[1]["node"]


def no_format(graph):
    graph.graph["format"] = "another"


WRONG = {
    cut: "rank 0 cannot be reached",
    without_cost: "beta_us_per_mb: is missing",
    strange_port: "edges.0.ports.0: 'ib9' is no port",
    without_node: "nodes.1.node: is missing",
    no_format: "graph.format: ",
}


@pytest.mark.parametrize("spoil", WRONG)
def test_a_wrong_graph_is_refused_in_one_sentence(spoil):
    graph = to_networkx(load_topology("full:3"))
    spoil(graph)
    with pytest.raises(InputError) as caught:
        from_networkx(graph)
    assert str(caught.value).startswith("networkx graph: ")
    assert WRONG[spoil] in str(caught.value)
