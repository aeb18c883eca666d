import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import Generator, make_generator, orbit_labels
from taccl_py.topology.automorphism import image_of_links
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, full, machine, ring, two_nodes

TURN = (1, 2, 0)


def with_ports(ports, used, permutation=TURN):
    """Why a turn of three ranks in a cycle is no automorphism when link r -> r+1 has the ports ``used[r]``."""
    links = [Link(r, (r + 1) % 3, 1.0, 1.0, ports=used[r]) for r in range(3)]
    return image_of_links(
        machine(3, links, [Port(f"port {i}", 1.0, cost) for i, cost in enumerate(ports)]), permutation
    )


# Why something is no automorphism


def test_a_link_without_an_image_is_named():
    links = [Link(0, 1, 1.0, 1.0), Link(1, 2, 1.0, 1.0)]
    assert image_of_links(machine(3, links), TURN) == "link 1->2 would become 2->0, which does not exist"


def test_a_parallel_link_without_an_image_is_named():
    links = [*ring(3).links, Link(0, 1, 1.0, 10.0)]
    assert image_of_links(machine(3, links), TURN) == "link 0->1 would become 1->2, which does not exist"


@pytest.mark.parametrize("costs", [(2.0, 10.0, 0.0), (1.0, 11.0, 0.0), (1.0, 10.0, 0.5)])
def test_a_link_whose_image_costs_something_else_is_named(costs):
    links = [Link(0, 1, 1.0, 10.0), Link(1, 2, *costs), Link(2, 0, 1.0, 10.0)]
    assert image_of_links(machine(3, links), TURN) == "link 0->1 would become 1->2, which costs something else"


def test_a_port_counts_for_the_cost_of_its_link():
    sentence = with_ports([1.0, 1.0, 2.0], [(0,), (1,), (2,)])
    assert sentence == "link 1->2 would become 2->0, which costs something else"
    assert "costs something else" in with_ports([1.0, 1.0], [(0,), (1,), ()])


def test_links_that_share_a_port_must_still_share_one():
    assert with_ports([1.0, 1.0], [(0,), (0,), (1,)]) == "port 'port 0' would have to become two ports"


def test_ports_may_not_merge():
    pairs = [(0, 1), (1, 0), (2, 3), (3, 2)]
    links = [Link(a, b, 1.0, 1.0, ports=(port,)) for port, (a, b) in enumerate(pairs)]
    topology = machine(4, links, [Port(f"port {i}", 1.0, 1.0) for i in range(4)])
    assert image_of_links(topology, (2, 3, 2, 3)) == "two ports would become one"


def test_what_the_sketch_allows_must_be_kept():
    topology, collective = full(3), Collective(Kind.ALLGATHER, 3)
    allowed = np.ones((3, 6), dtype=bool)
    assert isinstance(make_generator(topology, collective, allowed, TURN), Generator)
    allowed[0, topology.links_between[1, 2][0]] = False
    assert make_generator(topology, collective, allowed, TURN) == (
        "it does not preserve what the sketch allows chunk 0 (of rank 0) on 1->2"
    )


@pytest.mark.parametrize("kind", [Kind.BROADCAST, Kind.GATHER, Kind.SCATTER])
def test_a_moved_root_has_an_empty_sentence(kind):
    allowed = np.ones((3, 6), dtype=bool)
    collective = Collective(kind, 3, 1, 1)
    assert make_generator(full(3), collective, allowed[: collective.num_chunks], TURN) == ""
    mirror = make_generator(full(3), collective, allowed[: collective.num_chunks], (2, 1, 0))
    assert isinstance(mirror, Generator)


# What an automorphism does


def test_links_and_ports_go_where_their_ranks_go():
    links, ports = with_ports([1.0, 1.0, 1.0, 7.0], [(2,), (0,), (1,)])
    assert links.tolist() == [1, 2, 0]
    assert ports.tolist() == [1, 2, 0, 3], "a port that no link uses stays"


def test_parallel_links_keep_their_lanes():
    links = [*ring(3).links, *ring(3).links]
    image, _ = image_of_links(machine(3, links), TURN)
    assert image.tolist() == [2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize("name", ["torus:3x4", "hypercube:3", "ring:5", "switch:6", "ndv2-x2", "dgx2", "ndv4-x2"])
@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL])
def test_generators_of_shipped_machines_preserve_everything(name, kind):
    topology = load_topology(name)
    collective = Collective(kind, topology.num_ranks)
    problem = Problem.build(topology, collective, None, MB)
    assert problem.generators
    for g in problem.generators:
        assert sorted(g.chunk.tolist()) == list(range(collective.num_chunks))
        assert sorted(g.link.tolist()) == list(range(len(topology.links)))
        assert sorted(g.port.tolist()) == list(range(len(topology.ports)))
        assert (problem.allowed == problem.allowed[np.ix_(g.chunk, g.link)]).all()
        for index, link in enumerate(topology.links):
            image = topology.links[g.link[index]]
            assert (image.src, image.dst) == (g.rank[link.src], g.rank[link.dst])
            assert topology.message_us(index, 777.0) == topology.message_us(int(g.link[index]), 777.0)
            assert [int(g.port[p]) for p in link.ports] == list(image.ports)
        for chunk in range(collective.num_chunks):
            assert collective.source[g.chunk[chunk]] == g.rank[collective.source[chunk]]
            image_wanted = {g.rank[rank] for rank in collective.wanted[chunk]}
            assert set(collective.wanted[g.chunk[chunk]]) == image_wanted


def test_every_part_of_a_share_keeps_its_number():
    problem = Problem.build(ring(3), Collective(Kind.ALLGATHER, 3, 2), None, MB)
    assert problem.generators[0].chunk.tolist() == [2, 3, 4, 5, 0, 1]


def test_a_permutation_across_nodes_is_checked_against_the_links_between_them():
    topology = two_nodes(2, {0: (1,)})
    collective = Collective(Kind.ALLGATHER, 4)
    allowed = Problem.build(topology, collective, Sketch("mine"), MB).permitted
    assert isinstance(make_generator(topology, collective, allowed, (2, 3, 0, 1)), Generator)
    assert make_generator(topology, collective, allowed, (3, 2, 1, 0)) == (
        "link 0->3 would become 3->0, which does not exist"
    )


# Orbits


def naive_labels(size, images):
    """Smallest member of everybody's orbit, by walking."""
    labels = list(range(size))
    for start in range(size):
        if labels[start] < start:
            continue
        seen, queue = {start}, [start]
        while queue:
            here = queue.pop()
            for image in images:
                if image[here] not in seen:
                    seen.add(image[here])
                    queue.append(image[here])
        for one in seen:
            labels[one] = min(labels[one], min(seen))
    return labels


@settings(max_examples=200)
@given(st.data(), st.integers(1, 40), st.integers(0, 3))
def test_orbits_are_what_walking_along_the_permutations_reaches(data, size, count):
    images = [data.draw(st.permutations(range(size))) for _ in range(count)]
    labels = orbit_labels(size, [np.array(image, dtype=np.int64) for image in images])
    assert labels.tolist() == naive_labels(size, images)


def test_a_long_cycle_is_one_orbit():
    size = 5000
    assert not orbit_labels(size, [np.roll(np.arange(size), 1)]).any()
