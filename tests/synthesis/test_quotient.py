import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Rotation, Sketch
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, full, machine, ring, two_nodes
from tests.synthesis.drawn import node_problems, problems

MACHINES = ("ring:4", "ring:5", "torus:3x3", "torus:2x4", "hypercube:3", "full:4", "switch:5", "mesh:2x3")


def quotient(topology, kind=Kind.ALLGATHER, sketch=None, chunks=1, root=0):
    collective = Collective(kind, topology.num_ranks, chunks, root)
    return Quotient.of(Problem.build(topology, collective, sketch, MB))


def members(q):
    return [set(q.members(arc)) for arc in range(q.num_arcs)]


def images(problem, pair):
    return {(int(g.chunk[pair[0]]), int(g.link[pair[1]])) for g in problem.generators}


# Sizes by hand


def test_without_symmetry_everything_stands_for_itself():
    q = quotient(full(3), sketch=Sketch("mine"))
    assert q.num_arcs == 3 * 4, "three chunks, and of six links the two into the source are of no use"
    assert q.num_states == 9
    assert all(len(one) == 1 for one in members(q))
    assert int(q.source.sum()) == 3
    assert int(q.required.sum()) == 6


def test_a_rotation_leaves_one_chunk_of_a_ring():
    q = quotient(ring(4, both_ways=True))
    assert q.num_states == 4, "the chunk at distance 0, 1, 2, 3 from home"
    assert q.num_arcs == 6, "eight links, two of them into the source"
    assert all(len(one) == 4 for one in members(q))
    assert len(set(q.link_orbit.tolist())) == 2, "with and against the clock"
    assert q.source.tolist() == [True, False, False, False]
    assert q.required.tolist() == [False, True, True, True]


def test_every_part_of_a_share_keeps_its_own_variables():
    assert quotient(ring(4), chunks=3).num_states == 3 * quotient(ring(4)).num_states


def test_two_generators_make_one_group():
    q = quotient(load_topology("torus:3x3"))
    assert q.num_states == 9
    assert all(len(one) == 9 for one in members(q))
    assert q.num_arcs == 36 - 4


def test_alltoall_keeps_one_row_of_chunks():
    q = quotient(full(4), Kind.ALLTOALL)
    assert int(q.required.sum()) == 3, "to the next rank, the next but one, the next but two"
    assert all(len(one) == 4 for one in members(q))


def test_ports_are_in_orbits_like_links():
    q = quotient(load_topology("switch:4"))
    assert len(set(q.resource_orbit.tolist())) == 3 + 2, "a link for every distance, one port out and one port in"
    for arc in range(q.num_arcs):
        assert q.resources[arc][0] == q.link_orbit[arc]
        assert len(q.resources[arc]) == 3


# Orbits that cannot act at one time


def mirror_broadcast():
    """Rank 0 in the middle of a ring of 4; the mirror exchanges ranks 1 and 3, which both lead to rank 2."""
    return quotient(ring(4, both_ways=True), Kind.BROADCAST, Sketch("mine", permutations=((0, 3, 2, 1),)))


def test_members_that_would_deliver_to_one_rank_are_left_out():
    q = mirror_broadcast()
    ends = {(q.problem.topology.links[k].src, q.problem.topology.links[k].dst) for arc in members(q) for _, k in arc}
    assert ends == {(0, 1), (0, 3), (2, 1), (2, 3)}
    assert q.problem.allowed.sum() == 6, "1->2 and 3->2 are allowed"
    unreachable = set(np.flatnonzero(q.required).tolist()) - set(q.head.tolist())
    assert len(unreachable) == 1, "so nothing is left that brings the chunk to rank 2, which engines must notice"


def test_members_that_would_meet_at_a_port_are_left_out():
    """Two leaves exchanged by symmetry reach rank 0 through one port: with the symmetry they would send at the same time."""
    links = [Link(1, 0, 1.0, 1.0, ports=(0,)), Link(2, 0, 1.0, 1.0, ports=(0,))]
    topology = machine(3, links, [Port("in", 1.0, 1.0)])
    sketch = Sketch("mine", permutations=((0, 2, 1),))
    assert quotient(topology, Kind.GATHER, sketch).num_arcs == 0
    assert quotient(topology, Kind.GATHER, Sketch("mine")).num_arcs == 2
    apart = machine(3, [Link(1, 0, 1.0, 1.0), Link(2, 0, 1.0, 1.0)])
    assert quotient(apart, Kind.GATHER, sketch).num_arcs == 1


def test_members_that_would_meet_on_a_link_are_left_out():
    """The symmetry exchanges the chunks of ranks 0 and 1, which both have to cross the one link from rank 2 to rank 3."""
    links = [Link(0, 2, 1.0, 1.0), Link(1, 2, 1.0, 1.0), Link(2, 3, 1.0, 1.0)]
    q = quotient(machine(4, links), Kind.GATHER, Sketch("mine", permutations=((1, 0, 2, 3),)), root=3)
    used = {k for arc in members(q) for _, k in arc}
    assert used == {0, 1, 2}
    assert {chunk for arc in members(q) for chunk, k in arc if k == 2} == {2}, "its own chunk may still cross"


def naive_quotient(problem):
    """Orbits of allowed (chunk, link) pairs by walking, without those in conflict with themselves."""
    topology = problem.topology
    left = {(int(c), int(k)) for c, k in np.argwhere(problem.allowed)}
    orbits = []
    while left:
        orbit, queue = set(), [min(left)]
        while queue:
            pair = queue.pop()
            if pair not in orbit:
                orbit.add(pair)
                queue += images(problem, pair)
        left -= orbit
        used = [("link", k) for _, k in orbit] + [("port", p) for _, k in orbit for p in topology.links[k].ports]
        used += [("state", c, topology.links[k].dst) for c, k in orbit]
        if len(set(used)) == len(used):
            orbits.append(orbit)
    return orbits


def agrees_with_walking(problem):
    q = Quotient.of(problem)
    assert sorted(map(sorted, members(q))) == sorted(map(sorted, naive_quotient(problem)))
    links = problem.topology.links
    state_of = {}
    for arc in range(q.num_arcs):
        for chunk, k in q.members(arc):
            for state, rank in ((q.tail[arc], links[k].src), (q.head[arc], links[k].dst)):
                assert state_of.setdefault((chunk, rank), state) == state, "a (chunk, rank) is in one orbit"
            assert q.resource_orbit[k] == q.link_orbit[arc]
    for (chunk, rank), state in state_of.items():
        is_source = problem.collective.source[chunk] == rank
        assert q.source[state] == is_source
        assert q.required[state] == (rank in problem.collective.wanted[chunk] and not is_source)


@settings(max_examples=40)
@given(
    st.sampled_from(MACHINES),
    st.sampled_from([Kind.ALLGATHER, Kind.ALLTOALL, Kind.BROADCAST, Kind.SCATTER]),
    st.integers(1, 2),
)
def test_orbits_on_symmetric_machines_are_what_walking_finds(name, kind, chunks):
    topology = load_topology(name)
    agrees_with_walking(Problem.build(topology, Collective(kind, topology.num_ranks, chunks), None, MB))


@settings(max_examples=60)
@given(problems() | node_problems())
def test_orbits_of_random_problems_are_what_walking_finds(drawn):
    agrees_with_walking(Problem.build(drawn.topology, drawn.collective, drawn.sketch, drawn.chunk_bytes))


def test_a_sketch_with_two_rotations_divides_by_both():
    topology = two_nodes(4, {r: (r,) for r in range(4)})
    one = quotient(topology, sketch=Sketch("mine", rotations=(Rotation("node", "machine"),)))
    both = quotient(topology, sketch=Sketch("mine", rotations=(Rotation("node", "machine"), Rotation(1, "node"))))
    assert (one.num_states, both.num_states) == (64 // 2, 64 // 8)
