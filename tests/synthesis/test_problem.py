"""The question as engines get it: what a sketch removes, what is left for a chunk, and which symmetry is believed."""

import numpy as np
import pytest
from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.errors import Infeasible, InputError
from taccl_py.sketch.model import Rotation, Sketch
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.model import Link
from tests.instances import MB, chain, full, machine, ring, two_nodes
from tests.synthesis.drawn import node_problems, problems

CONNECTED = {0: (0, 1), 1: (0, 1)}


def build(topology, sketch=None, kind=Kind.ALLGATHER, chunks=1, root=0):
    return Problem.build(topology, Collective(kind, topology.num_ranks, chunks, root), sketch, MB)


def removed_by(sketch, topology, kind=Kind.ALLGATHER):
    """(chunk, sender, receiver) that a sketch takes away."""
    before, after = build(topology, None, kind).permitted, build(topology, sketch, kind).permitted
    assert not (after & ~before).any()
    ends = [(link.src, link.dst) for link in topology.links]
    return {(int(chunk), *ends[link]) for chunk, link in np.argwhere(before & ~after)}


def possible(topology, taken, kind=Kind.ALLGATHER):
    """The (chunk, sender, receiver) without a sketch for which `taken` is true."""
    collective = Collective(kind, topology.num_ranks)
    permitted = build(topology, None, kind).permitted
    return {
        (chunk, link.src, link.dst)
        for chunk in range(collective.num_chunks)
        for index, link in enumerate(topology.links)
        if permitted[chunk, index] and taken(chunk, link.src, link.dst)
    }


# Each field of a sketch removes exactly what it says. Nodes are {0, 1} and {2, 3}; chunk c starts at rank c.


def node(rank):
    return rank // 2


def test_an_empty_sketch_removes_nothing():
    topology = two_nodes(2, CONNECTED)
    assert removed_by(Sketch("mine"), topology) == set()
    assert removed_by(Sketch("mine", connections=None, links=None, relays=None), topology) == set()


def test_a_chunk_never_comes_home():
    permitted = build(full(4)).permitted
    assert {(int(c), full(4).links[i].dst) for c, i in np.argwhere(~permitted)} == {(c, c) for c in range(4)}


def test_a_list_of_links_removes_the_others_inside_nodes():
    topology = two_nodes(3, {0: (0,)})
    sketch = Sketch("mine", links={0: (1,), 1: (2,), 2: (0,)})
    backwards = possible(topology, lambda _, a, b: a // 3 == b // 3 and (b - a) % 3 != 1)
    assert removed_by(sketch, topology) == backwards
    assert len(backwards) == 6 * 6 - 6, "six links, which only the chunk at their end does not use"


@pytest.mark.parametrize(
    ("connections", "open_pairs"),
    [({0: (1,)}, {(0, 1)}), ("direct", {(0, 0), (1, 1)}), ({1: (0, 1)}, {(1, 0), (1, 1)})],
)
def test_connections_remove_the_other_links_between_nodes(connections, open_pairs):
    topology = two_nodes(2, CONNECTED)
    closed = possible(topology, lambda _, a, b: node(a) != node(b) and (a % 2, b % 2) not in open_pairs)
    detours = possible(topology, lambda c, a, b: node(a) != node(b) and node(a) != node(c))
    assert removed_by(Sketch("mine", connections=connections), topology) == closed | detours


def test_fully_connected_removes_only_the_way_through_other_nodes():
    topology = two_nodes(1, {0: (0,)}, num_nodes=3)
    through = possible(topology, lambda c, a, _: a != c)
    assert removed_by(Sketch("mine", connections="fully-connected"), topology) == through
    assert len(through) == 3 * 2, "three chunks, each by two foreign nodes to the respective third"


def test_relays_remove_every_other_way_out_of_a_chunks_node():
    topology = two_nodes(2, CONNECTED)
    sketch = Sketch("mine", relays={0: (0, 1)})
    assert removed_by(sketch, topology) == possible(topology, lambda _, a, b: node(a) != node(b) and a % 2 != 0) | possible(
        topology, lambda c, a, b: node(a) != node(b) and node(a) != node(c)
    )  # fmt: skip
    own = Sketch("mine", relays={0: (0,), 1: (1,)})
    assert removed_by(own, topology) == possible(topology, lambda c, a, b: node(a) != node(b) and a != c)


def test_relays_are_no_matter_on_one_node():
    topology = two_nodes(2, {}, num_nodes=1)
    sketch = Sketch("mine", connections={0: (1,)}, relays={0: (0, 1)}, own_first=True)
    assert removed_by(sketch, topology) == set()


def test_strategy_and_symmetry_remove_nothing():
    topology = two_nodes(2, CONNECTED)
    for words in ({"strategy": "minmax"}, {"rotations": (Rotation("node", "machine"),)}):
        assert removed_by(Sketch("mine", **words), topology) == set()


def test_alltoall_chunks_enter_only_the_node_that_wants_them():
    topology = two_nodes(1, {0: (0,)}, num_nodes=3)
    problem = build(topology, Sketch("mine", connections="fully-connected"), Kind.ALLTOALL)
    for chunk, link in np.argwhere(problem.permitted):
        ends = topology.links[link]
        assert (ends.src, ends.dst) == (chunk // 3, chunk % 3)


# When nothing is left


def infeasible(topology, sketch=None, kind=Kind.ALLGATHER, root=0):
    with pytest.raises(Infeasible) as caught:
        build(topology, sketch, kind, root=root)
    return caught.value


def test_a_machine_without_a_path_names_the_chunk_and_the_rank():
    error = infeasible(chain(3))
    assert (error.chunk, error.rank, error.restriction) == (1, 0, "topology")
    assert "chunk 1 (of rank 1)" in str(error)
    assert "from rank 1 to rank 0" in str(error)
    assert infeasible(chain(3), kind=Kind.GATHER, root=0).rank == 0
    assert build(chain(3), kind=Kind.GATHER, root=2).allowed.any()


def test_the_field_that_took_the_last_way_is_named():
    topology = two_nodes(2, CONNECTED)
    error = infeasible(topology, Sketch("mine", links={0: (1,)}, connections={0: (0,)}))
    assert (error.chunk, error.rank, error.restriction) == (1, 0, "inter_node.connections"), (
        "rank 1 could still go by the other node before"
    )
    assert "inter_node.connections" in str(error)
    assert "such chunks and ranks in all" in str(error)
    error = infeasible(two_nodes(2, {0: (0,)}), Sketch("mine", links={0: (1,)}))
    assert (error.chunk, error.rank, error.restriction) == (1, 0, "intra_node.links")
    error = infeasible(two_nodes(2, {0: (0,)}), Sketch("mine", relays={1: (0, 1)}))
    assert (error.chunk, error.rank, error.restriction) == (0, 2, "inter_node.relays")


def test_the_rule_of_going_straight_is_named_where_it_closes_the_last_way():
    """Nodes 0 -> 1 -> 2 -> 0 in a cycle: a chunk that may not pass through a foreign node cannot get to the next but one."""
    cycle = machine(3, [Link(0, 1, 0, 1), Link(1, 2, 0, 1), Link(2, 0, 0, 1)], node_of=(0, 1, 2))
    assert build(cycle).allowed.any()
    error = infeasible(cycle, Sketch("mine", connections="fully-connected"))
    assert (error.chunk, error.rank, error.restriction) == (0, 2, "inter_node")


def test_a_sketch_for_another_machine_is_refused_before_anything_else():
    with pytest.raises(InputError) as caught:
        build(chain(3), Sketch("mine", topology="ndv2"))
    assert caught.value.field == "topology"


# What is left


def test_where_there_are_many_choices_a_chunk_for_one_rank_may_not_wander():
    """On a ring both ways the far half is no way to a neighbour, but both halves lead to the rank across."""
    topology = ring(6, both_ways=True)
    problem = build(topology, kind=Kind.SCATTER, chunks=30)
    assert problem.narrowed
    to_three = {topology.links[i].dst for i in np.flatnonzero(problem.allowed[3 * 30])}
    assert to_three == {1, 2, 3, 4, 5}
    to_one = {(topology.links[i].src, topology.links[i].dst) for i in np.flatnonzero(problem.allowed[1 * 30])}
    assert to_one == {(0, 1)}


def test_where_there_are_few_choices_it_may_go_any_way():
    topology = ring(6, both_ways=True)
    problem = build(topology, kind=Kind.SCATTER)
    assert not problem.narrowed
    to_one = {(topology.links[i].src, topology.links[i].dst) for i in np.flatnonzero(problem.allowed[1])}
    assert to_one > {(0, 5), (5, 4), (4, 3), (3, 2), (2, 1), (0, 1)}


def test_the_roots_own_chunk_goes_nowhere():
    for kind in (Kind.SCATTER, Kind.GATHER):
        problem = build(full(3), kind=kind, root=1)
        assert not problem.allowed[1].any()
        assert problem.allowed[0].any()


@settings(max_examples=60)
@given(problems() | node_problems())
def test_engines_consider_permitted_links_that_lead_from_the_source_to_somebody_who_wants_the_chunk(drawn):
    problem = Problem.build(drawn.topology, drawn.collective, drawn.sketch, drawn.chunk_bytes)
    assert not (problem.allowed & ~problem.permitted).any()
    assert not problem.allowed.flags.writeable
    assert not problem.permitted.flags.writeable
    links = drawn.topology.links
    for chunk, source in enumerate(drawn.collective.source):
        usable = [links[i] for i in np.flatnonzero(problem.allowed[chunk])]
        wanted = set(drawn.collective.wanted[chunk]) - {source}
        reached, useful = {source}, set(wanted)
        for _ in links:
            reached |= {link.dst for link in usable if link.src in reached}
            useful |= {link.src for link in usable if link.dst in useful}
        assert wanted <= reached
        assert all(link.src in reached and link.dst in useful and link.dst != source for link in usable)


# Symmetry


def test_the_machines_own_symmetry_serves_where_there_is_no_sketch():
    assert [g.rank for g in build(ring(4)).generators] == [(1, 2, 3, 0)]
    assert build(ring(4), kind=Kind.BROADCAST).generators == (), "it moves the root"
    assert build(ring(4)).without_symmetry().generators == ()


def test_a_sketchs_symmetry_takes_the_place_of_the_machines():
    topology = full(4)
    sketch = Sketch("mine", permutations=((1, 0, 3, 2),))
    assert [g.rank for g in build(topology, sketch).generators] == [(1, 0, 3, 2)]
    assert build(topology, Sketch("mine")).generators == ()


def test_a_symmetry_that_the_machine_lacks_is_left_out_unless_a_sketch_asks_for_it():
    links = [Link(r, (r + 1) % 4, 1.0, 10.0 + (r == 2)) for r in range(4)]
    uneven = machine(4, links, symmetry=[(1, 2, 3, 0)])
    assert build(uneven).generators == ()
    with pytest.raises(InputError) as caught:
        build(uneven, Sketch("mine", rotations=(Rotation(2, 4), Rotation(1, "machine"))))
    assert caught.value.field == "symmetry.rotations.0"
    assert caught.value.path == "sketch mine"
    assert "is not a symmetry of test: link 0->1 would become 2->3, which costs something else" in caught.value.what


def test_a_symmetry_that_other_fields_of_the_sketch_break_is_refused():
    topology = two_nodes(2, CONNECTED)
    with pytest.raises(InputError) as caught:
        build(topology, Sketch("mine", connections={0: (1,)}, rotations=(Rotation(1, "node"),)))
    assert caught.value.field == "symmetry.rotations.0"
    assert "does not preserve what the sketch allows" in caught.value.what


def test_a_sketchs_symmetry_that_moves_the_root_is_left_out():
    sketch = Sketch("mine", rotations=(Rotation("node", "machine"), Rotation(1, "node")))
    topology = two_nodes(2, CONNECTED)
    assert [g.rank for g in build(topology, sketch).generators] == [(2, 3, 0, 1), (1, 0, 3, 2)]
    assert build(topology, sketch, Kind.BROADCAST).generators == ()


def test_only_order_keeping_symmetry_is_left_on_request():
    topology = two_nodes(3, {0: (0,), 1: (1,), 2: (2,)})
    swapped = machine(6, topology.links, node_of=topology.node_of, symmetry=[(3, 4, 5, 0, 1, 2), (2, 1, 0, 5, 4, 3)])
    problem = build(swapped)
    assert [g.rank for g in problem.generators] == [(3, 4, 5, 0, 1, 2), (2, 1, 0, 5, 4, 3)]
    assert [g.rank for g in problem.with_order_kept().generators] == [(3, 4, 5, 0, 1, 2)]
    sketch = Sketch("mine", permutations=((2, 1, 0, 5, 4, 3),))
    asked_for = build(swapped, sketch)
    assert asked_for.with_order_kept() is asked_for


def test_a_message_costs_what_the_topology_says():
    problem = Problem.build(chain(2, 1.0, 10.0, 5.0), Collective(Kind.BROADCAST, 2, 3), None, 2 * MB)
    assert problem.message_us(0) == 1.0 + 20.0 + 5.0
    assert problem.message_us(0, 3) == 1.0 + 60.0 + 5.0
