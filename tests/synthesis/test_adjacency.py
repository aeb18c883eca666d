from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.adjacency import _without_cycles, predecessors
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from tests.instances import MB, chain, machine, ring, two_nodes


def joins(topology, kind, sketch=None, chunks=1):
    """{(chunk, sender, receiver): chunk before it} for every arc that may follow another; arcs stand for themselves."""
    collective = Collective(kind, topology.num_ranks, chunks)
    q = Quotient.of(Problem.build(topology, collective, sketch, MB).without_symmetry())
    named = [
        (chunk, topology.links[k].src, topology.links[k].dst) for a in range(q.num_arcs) for chunk, k in q.members(a)
    ]
    result = {}
    for arc, before in predecessors(q).items():
        assert q.link_orbit[arc] == q.link_orbit[before]
        result[named[arc]] = named[before][0]
    return result


def test_chunks_of_one_buffer_follow_each_other():
    assert joins(chain(2), Kind.BROADCAST, chunks=3) == {(1, 0, 1): 0, (2, 0, 1): 1}


def test_gathered_chunks_are_neighbours_where_their_ranks_are():
    found = joins(ring(4), Kind.ALLGATHER)
    assert found[(1, 1, 2)] == 0
    assert (0, 0, 1) not in found, "nothing lies before chunk 0"
    assert all(chunk == before + 1 for (chunk, _, _), before in found.items())


def test_chunks_for_different_ranks_go_alone_where_every_link_leads_to_its_receiver():
    star = machine(3, [Link(0, 1, 1.0, 1.0), Link(0, 2, 1.0, 1.0)])
    assert joins(star, Kind.SCATTER) == {}


def test_chunks_that_pass_a_relay_together_are_neighbours_in_scratch():
    """AllToAll through one link: what rank 1 relays to one rank of the other node comes from ranks 0 and 1."""
    found = joins(two_nodes(2, {1: (0,)}), Kind.ALLTOALL, Sketch("mine", connections={1: (0,)}))
    across = {key: before for key, before in found.items() if key[1:] == (1, 2)}
    assert across, "four chunks cross from rank 1 to rank 2"
    assert all(key[0] % 4 in (2, 3) and before % 4 in (2, 3) for key, before in across.items())


def test_a_predecessor_is_followed_by_one_chunk_only_on_every_link():
    for topology, kind in ((ring(5), Kind.ALLGATHER), (two_nodes(3, {0: (1,)}), Kind.ALLTOALL)):
        found = joins(topology, kind)
        followers = [(before, *key[1:]) for key, before in found.items()]
        assert len(set(followers)) == len(followers)


def test_arcs_never_follow_each_other_in_a_circle():
    """Under a rotation of 8 ranks the chunks for them are one orbit each, and the last is the neighbour of the first."""
    topology = load_topology("ndv4-x2")
    problem = Problem.build(topology, Collective(Kind.ALLTOALL, 16), None, MB)
    rails = np.array([k.dst // 8 == k.src // 8 or k.dst % 8 == k.src % 8 for k in topology.links])
    joins = predecessors(Quotient.of(replace(problem, allowed=problem.permitted & rails)))
    assert joins
    for arc in joins:
        seen = {arc}
        while (arc := joins.get(arc)) is not None:
            assert arc not in seen
            seen.add(arc)


def ends(found):
    """Whether the way back from every arc comes to an end."""
    for arc in found:
        seen = {arc}
        while arc in found:
            arc = found[arc]
            if arc in seen:
                return False
            seen.add(arc)
    return True


@given(st.dictionaries(st.integers(0, 12), st.integers(0, 12)))
def test_no_arc_comes_before_itself_and_no_more_is_dropped_than_that_takes(predecessor):
    kept = _without_cycles(predecessor)
    assert ends(kept)
    assert kept.items() <= predecessor.items()
    assert not any(ends({**kept, arc: before}) for arc, before in predecessor.items() if arc not in kept)


def test_a_chain_of_many_chunks_is_no_long_way():
    many = 200_000
    assert len(_without_cycles({arc: arc - 1 for arc in range(many, 0, -1)})) == many
    assert len(_without_cycles({arc: arc - 1 for arc in range(1, many)})) == many - 1
