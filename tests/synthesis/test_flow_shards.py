import numpy as np

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.flow.shards import whole_shards, with_port_owners, with_rails
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, machine, ring, star_in, two_nodes


def shares(topology, kind=Kind.ALLTOALL, **how):
    return whole_shards(Demand(topology, kind, MB, **how))


def test_a_share_is_one_chunk_however_it_will_be_cut():
    for parts in (None, 1, 4):
        problem = shares(ring(4), chunks_per_rank=parts)
        assert problem.collective.chunks_per_rank == 1
        assert problem.chunk_bytes == MB / 4


def test_symmetry_that_keeps_a_rank_in_place_is_left_out():
    """A reflection keeps rank 0: images of a path from there would be two paths of one chunk."""
    rotated = ring(4, both_ways=True)
    topology = machine(4, rotated.links, symmetry=[*rotated.symmetry, (0, 3, 2, 1)])
    assert [g.rank for g in shares(topology).generators] == [(1, 2, 3, 0)]


def test_symmetry_that_exchanges_users_of_a_port_is_left_out():
    links = [Link(0, 1, 0.0, 1.0, ports=(0,)), Link(1, 0, 0.0, 1.0, ports=(0,))]
    assert shares(machine(2, links, [Port("bus", 0.0, 1.0)], symmetry=[(1, 0)])).generators == ()


def test_only_one_rank_uses_a_shared_port():
    problem = with_port_owners(shares(load_topology("dgx2-x2")))
    topology = problem.topology
    between = [
        link
        for index, link in enumerate(topology.links)
        if topology.node_of[link.src] != topology.node_of[link.dst] and problem.permitted[:, index].any()
    ]
    users = {}
    for link in between:
        for port in link.ports:
            users.setdefault((port, "out"), set()).add(link.src)
            users.setdefault((port, "in"), set()).add(link.dst)
    nics = {port for port, _ in users}
    assert all(min(len(users[port, "out"]), len(users[port, "in"])) == 1 for port in nics)
    assert {link.src % 2 for link in between} == {0}
    assert problem.generators, "nodes and NICs may still be exchanged"


def test_a_machine_without_shared_ports_stays_as_it_is():
    assert with_port_owners(shares(load_topology("torus:3x3"))) is None
    assert with_port_owners(shares(load_topology("switch:4"))) is None


def test_a_port_that_all_need_is_not_given_to_one():
    """Each leaf has no other path to rank 0 than through the port, which rank 0 owns."""
    assert with_port_owners(shares(star_in(3, Port("in", 0.0, 10.0)), Kind.GATHER)) is None
    links = [Link(a, b, 0.0, 1.0, ports=(0,)) for a in range(3) for b in range(3) if a != b]
    assert with_port_owners(shares(machine(3, links, [Port("bus", 0.0, 1.0)]))) is None


def test_what_is_permitted_is_the_same_for_images():
    problem = with_port_owners(shares(load_topology("dgx2-x2")))
    for generator in problem.generators:
        assert np.array_equal(problem.permitted[np.ix_(generator.chunk, generator.link)], problem.permitted)


def test_on_rails_a_rank_sends_what_is_its_own_to_its_like():
    problem = with_rails(shares(load_topology("ndv4-x2")))
    topology, source = problem.topology, problem.collective.source
    crossing = [i for i, k in enumerate(topology.links) if topology.node_of[k.src] != topology.node_of[k.dst]]
    for chunk, index in np.argwhere(problem.permitted[:, crossing]).tolist():
        link = topology.links[crossing[index]]
        assert (link.src, link.dst % 8) == (source[chunk], link.src % 8)
    assert len(problem.generators) == 2


def test_a_rank_without_a_rail_uses_those_of_others():
    owned = with_port_owners(shares(load_topology("dgx2-x2")))
    railed = with_rails(owned)
    odd = [chunk for chunk, source in enumerate(railed.collective.source) if source == 1]
    links = [railed.topology.links[index] for index in np.flatnonzero(railed.permitted[odd].any(axis=0)).tolist()]
    assert {link.src for link in links if link.dst >= 16 > link.src} == set(range(0, 16, 2))


def test_without_rails_or_nodes_a_machine_stays_as_it_is():
    assert with_rails(shares(load_topology("torus:3x3"))) is None
    assert with_rails(shares(two_nodes(2, {1: (0,)}))) is None
