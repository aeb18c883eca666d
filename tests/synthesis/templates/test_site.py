"""What templates ask of a machine: orders of ranks and trees, which any reader can check link by link."""

from dataclasses import replace
from itertools import pairwise

import pytest

from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Port
from tests.instances import MB, chain, full, machine, ring
from tests.synthesis.templates.machines import load


def linked(topology, order):
    return all(pair in topology.links_between for pair in pairwise(order))


@pytest.mark.parametrize("name", ["dgx1", "ndv4", "torus:4x4", "hypercube:3", "mi250x", "ndv2-x2"])
def test_a_cycle_visits_every_rank_once_and_comes_home(name):
    topology = load(name)
    cycle = TemplateSite(topology, MB).cycle(range(topology.num_ranks), [0] * topology.num_resources)
    assert sorted(cycle) == list(range(topology.num_ranks))
    assert linked(topology, (*cycle, cycle[0]))


def test_there_is_no_cycle_where_a_rank_has_one_neighbour():
    topology = machine(3, [*chain(3).links, *chain(3).reversed().links])
    site = TemplateSite(topology, MB)
    assert site.cycle(range(3), [0] * topology.num_resources) is None
    assert site.path(range(3), 0) == (0, 1, 2)
    assert site.path(range(3), 1) is None


def test_a_cycle_avoids_busy_links():
    topology = full(4)
    site = TemplateSite(topology, MB)
    first = site.cycle(range(4), [0] * topology.num_resources)
    load = [0] * topology.num_resources
    for pair in pairwise((*first, first[0])):
        load[topology.links_between[pair][0]] += 1
    second = site.cycle(range(4), load)
    assert set(pairwise((*first, first[0]))).isdisjoint(pairwise((*second, second[0])))


@pytest.mark.parametrize(("name", "dimensions"), [("hypercube:3", 3), ("dgx1", 3), ("torus:4x4", 4), ("ring:4", 2)])
def test_a_cube_links_all_that_differ_in_one_bit(name, dimensions):
    topology = load(name)
    order = TemplateSite(topology, MB).cube(range(1 << dimensions))
    assert sorted(order) == list(range(1 << dimensions))
    for position, rank in enumerate(order):
        for bit in range(dimensions):
            assert (rank, order[position ^ (1 << bit)]) in topology.links_between


@pytest.mark.parametrize("name", ["ring:8", "full:6"])
def test_there_is_no_cube_where_links_or_ranks_are_missing(name):
    topology = load(name)
    assert TemplateSite(topology, MB).cube(range(topology.num_ranks)) is None


def test_a_tree_behind_ports_doubles_what_it_reaches():
    topology = load("switch:16")
    edges = TemplateSite(topology, 1.0).tree((0,), range(16), 1.0)
    step_us = topology.message_us(0, 1.0)
    by_step = [round(edge.end_us / step_us) for edge in edges]
    assert [by_step.count(step) for step in (1, 2, 3, 4)] == [1, 2, 4, 8]


def test_a_tree_begins_with_the_slow_link_to_the_other_node():
    topology = load("ndv4-x2")
    edges = TemplateSite(topology, 1.0).tree((0,), range(16), 1.0)
    across = [edge for edge in edges if topology.node_of[edge.src] != topology.node_of[edge.dst]]
    assert min(edge.start_us for edge in across) == 0.0
    assert max(edge.end_us for edge in edges) < 3.3, (
        "2.6 us between nodes, and fewer than three steps of 0.3 us after it"
    )


def test_a_tree_with_one_entry_a_node_reaches_many_nodes_sooner():
    topology = load("ndv4-x4")
    one, other = (TemplateSite(topology, 1.0).tree((0,), range(32), 1.0, one_entry=each) for each in (False, True))
    entries = [topology.node_of[edge.dst] for edge in other if topology.node_of[edge.src] != topology.node_of[edge.dst]]
    assert sorted(entries) == [1, 2, 3]
    assert max(edge.end_us for edge in other) < max(edge.end_us for edge in one)


def test_trees_from_several_roots_share_the_ranks():
    edges = TemplateSite(ring(8, both_ways=True), MB).tree((0, 1), range(8), MB)
    assert sorted(edge.dst for edge in edges) == [2, 3, 4, 5, 6, 7]
    assert len({edge.end_us for edge in edges}) == 3


def test_a_tree_that_misses_a_rank_is_none():
    assert TemplateSite(chain(3), MB).tree((1,), range(3), MB) is None


def test_quickest_paths_take_two_cheap_links_rather_than_a_dear_one():
    cheap, dear = full(3, 1.0, 1.0).links, full(3, 1.0, 100.0).links
    topology = machine(3, [link for link in cheap if {link.src, link.dst} != {0, 2}] + [dear[1]])
    assert (dear[1].src, dear[1].dst) == (0, 2)
    assert TemplateSite(topology, MB).path_parents(0) == [-1, 0, 1]


def test_only_machines_whose_ranks_are_all_linked_alike_are_uniform():
    for name, uniform in (
        ("switch:6", True),
        ("full:6", True),
        ("torus:4x4", False),
        ("ndv4-x2", False),
        ("dgx1", False),
    ):
        assert TemplateSite(load(name), 1024.0).uniform == uniform
    shared = Port("of ranks 0 and 1", 1.0, 10.0)
    links = [replace(link, ports=(0,) if link.src in (0, 1) else ()) for link in full(4).links]
    assert not TemplateSite(machine(4, links, [shared]), 1024.0).uniform


def test_on_a_switch_every_rank_has_one_port_for_all_that_it_sends_and_one_for_all_that_it_receives():
    for name, one_ported in (
        ("switch:6", True),
        ("nvl72:1", True),
        ("full:6", False),
        ("ndv4-x2", False),
        ("dgx1", False),
    ):
        assert TemplateSite(load(name), 1024.0).one_ported == one_ported
