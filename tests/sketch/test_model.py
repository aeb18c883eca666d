import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.sketch.model import Policy, Rotation, Sketch, Strategy, SwitchGroup, is_machine
from taccl_py.topology.model import Link
from tests.instances import machine, ring, two_nodes

ALL_TO_ALL = {0: (0, 1), 1: (0, 1)}


def switch(*ranks, policy=Policy.FREE):
    return SwitchGroup(ranks, policy)


def refusal(call, *arguments, **words):
    with pytest.raises(InputError) as caught:
        call(*arguments, **words)
    return caught.value


# What contradicts itself


@pytest.mark.parametrize(
    ("words", "field", "what"),
    [
        ({"strategy": Strategy.SWITCH}, "intra_node.switches", "no switch is listed"),
        ({"switches": (switch(0, 1),)}, "intra_node.strategy", "say switch"),
        (
            {"strategy": Strategy.MINMAX, "switches": (switch(0, 1),)},
            "intra_node.strategy",
            "the strategy is minmax",
        ),
        ({"strategy": Strategy.SWITCH, "switches": (switch(3),)}, "intra_node.switches.0", "at least two"),
        ({"strategy": Strategy.SWITCH, "switches": (switch(0, 1), switch(2, 2))}, "intra_node.switches.1", "different"),
        (
            {"strategy": Strategy.SWITCH, "switches": (switch(0, 1), switch(4, 5), switch(1, 2))},
            "intra_node.switches.2",
            "overlaps switch 0 in rank 1",
        ),
        (
            {"strategy": Strategy.SWITCH, "switches": (switch(0, 1, 2), switch(0, 1))},
            "intra_node.switches.1",
            "overlaps switch 0",
        ),
        ({"own_first": True}, "inter_node.own_first", "relays is not given"),
        (
            {"connections": {1: (0,)}, "relays": {0: (0, 1)}},
            "inter_node.relays.0",
            "rank 0 is no sender",
        ),
        ({"chunks_per_rank": 0}, "chunks_per_rank", "at least 1"),
    ],
)
def test_a_sketch_that_contradicts_itself_is_refused_with_the_field(words, field, what):
    error = refusal(Sketch, "mine", **words)
    assert error.field == field
    assert error.path == "sketch mine"
    assert what in error.what


def test_the_file_is_named_where_the_sketch_came_from_one():
    assert refusal(Sketch, "mine", chunks_per_rank=0, source="some/file.json").path == "some/file.json"


@pytest.mark.parametrize(
    "switches",
    [
        (switch(0, 1), switch(2, 3)),
        (switch(0, 1, 2, 3), switch(3, 2, 1, 0)),
        (switch(0, 1), switch(2, 3), switch(1, 0)),
    ],
)
def test_switches_may_be_disjoint_or_join_the_same_ranks(switches):
    assert Sketch("mine", strategy=Strategy.SWITCH, switches=switches).switches == switches


def test_relays_need_no_list_of_connections():
    for connections in (None, "direct", "fully-connected"):
        assert Sketch("mine", connections=connections, relays={0: (0, 1)}, own_first=True).own_first


def test_maps_are_read_only_and_in_order_of_rank():
    given = {2: (0,), 0: (1,)}
    sketch = Sketch("mine", connections=given)
    assert list(sketch.connections.items()) == [(0, (1,)), (2, (0,))]
    given[1] = (1,)
    assert 1 not in sketch.connections
    with pytest.raises(TypeError):
        sketch.connections[0] = (0,)


# What does not fit its topology

TWO_BY_TWO = two_nodes(2, ALL_TO_ALL)


@pytest.mark.parametrize(
    ("words", "field", "what"),
    [
        ({"topology": "ndv2"}, "topology", "is written for ndv2, not for test"),
        ({"nodes": (1, 4)}, "nodes", "written for 1, 4 nodes, the topology has 2"),
        (
            {"strategy": Strategy.SWITCH, "switches": (switch(0, 1), switch(2, 3))},
            "intra_node.switches.1",
            "local rank 2 does not exist, a node has ranks 0..1",
        ),
        ({"links": {2: (0,)}}, "intra_node.links.2", "local rank 2 does not exist"),
        ({"links": {0: (0,)}}, "intra_node.links.0", "no link from rank 0 to rank 0"),
        ({"connections": {0: (5,)}}, "inter_node.connections.0", "local rank 5 does not exist"),
        ({"relays": {0: (0, 1), 7: (0,)}}, "inter_node.relays.7", "local rank 7 does not exist"),
        ({"relays": {0: (0,)}}, "inter_node.relays", "no sender relays the chunks of local rank 1"),
        ({"permutations": ((0, 1, 2),)}, "symmetry.permutations.0", "not a permutation of all ranks 0..3"),
        ({"permutations": ((0, 1, 2, 3), (0, 1, 1, 3))}, "symmetry.permutations.1", "name each once"),
        ({"rotations": (Rotation(1, 3),)}, "symmetry.rotations.0", "does not divide 4"),
        ({"rotations": (Rotation(1, 2), Rotation(2, 8))}, "symmetry.rotations.1", "within 8 ranks"),
        ({"rotations": (Rotation(1, 0),)}, "symmetry.rotations.0", "within 0 ranks"),
    ],
)
def test_a_sketch_that_its_topology_contradicts_is_refused_with_the_field(words, field, what):
    error = refusal(Sketch("mine", **words).check_fits, TWO_BY_TWO)
    assert error.field == field
    assert what in error.what


def test_a_link_that_the_machine_lacks_is_refused():
    one_way = machine(4, [Link(0, 1, 1.0, 1.0), Link(2, 3, 1.0, 1.0), Link(1, 2, 1.0, 1.0)], node_of=(0, 0, 1, 1))
    assert refusal(Sketch("mine", links={1: (0,)}).check_fits, one_way).field == "intra_node.links.1"
    error = refusal(Sketch("mine", connections={0: (1,)}).check_fits, one_way)
    assert error.field == "inter_node.connections.0"
    assert "no link from rank 0 of a node to rank 1 of another" in error.what
    Sketch("mine", links={0: (1,)}, connections={1: (0,)}).check_fits(one_way)


def test_a_word_for_connections_that_lets_no_link_through_is_refused():
    crossed = two_nodes(2, {0: (1,), 1: (0,)})
    error = refusal(Sketch("mine", connections="direct").check_fits, crossed)
    assert error.field == "inter_node.connections"
    assert "no link between nodes that direct allows" in error.what
    Sketch("mine", connections="fully-connected").check_fits(crossed)


def test_local_ranks_need_nodes_of_one_size():
    uneven = machine(3, [Link(0, 1, 1.0, 1.0), Link(1, 2, 1.0, 1.0), Link(2, 0, 1.0, 1.0)], node_of=(0, 0, 1))
    error = refusal(Sketch("mine", connections={1: (0,)}).check_fits, uneven)
    assert error.field == "topology"
    assert "different size" in error.what
    Sketch("mine", chunks_per_rank=2, strategy=Strategy.MINMAX).check_fits(uneven)


def test_a_sketch_for_several_node_counts_fits_one_node_without_links_between_nodes():
    Sketch("mine", nodes=(1, 2), connections={0: (1,)}, relays={0: (0, 1)}, own_first=True).check_fits(
        two_nodes(2, {}, num_nodes=1)
    )


@pytest.mark.parametrize(
    ("name", "wanted", "fits"),
    [
        ("ndv2", "ndv2", True),
        ("ndv2-x2", "ndv2", True),
        ("torus-4x4", "torus:4x4", True),
        ("torus-4x4", "torus-4x4", True),
        ("torus-4x4", "torus:4x2", False),
        ("dgx2-x2", "ndv2", False),
        ("ndv20", "ndv2", False),
        # A name that merely goes on with -x is that of another machine.
        ("ndv2-xl", "ndv2", False),
        ("my-ndv2", "ndv2", False),
    ],
)
def test_a_topology_is_known_by_its_machines_name(name, wanted, fits):
    assert is_machine(name, wanted) is fits


# What it says


def test_connections_say_who_may_send_to_whom():
    listed = Sketch("mine", connections={0: (1,), 1: (0, 1)})
    assert [(a, b) for a in range(3) for b in range(3) if listed.connected(a, b)] == [(0, 1), (1, 0), (1, 1)]
    direct = Sketch("mine", connections="direct")
    assert [(a, b) for a in range(2) for b in range(2) if direct.connected(a, b)] == [(0, 0), (1, 1)]
    for connections in (None, "fully-connected"):
        assert all(Sketch("mine", connections=connections).connected(a, b) for a in range(2) for b in range(2))


def test_relays_say_who_sends_a_ranks_chunks():
    sketch = Sketch("mine", relays={0: (0, 1), 1: (1,)})
    assert [sketch.senders_of(rank) for rank in (0, 1, 2)] == [(0,), (0, 1), ()]
    assert Sketch("mine").senders_of(0) is None


@pytest.mark.parametrize(
    ("rotation", "image"),
    [
        (Rotation("node", "machine"), (2, 3, 0, 1)),
        (Rotation(1, "machine"), (1, 2, 3, 0)),
        (Rotation(1, "node"), (1, 0, 3, 2)),
        (Rotation(3, 4), (3, 0, 1, 2)),
        (Rotation(5, 4), (1, 2, 3, 0)),
    ],
)
def test_a_rotation_renames_ranks_by_its_formula(rotation, image):
    assert Sketch("mine", rotations=(rotation,)).generators(TWO_BY_TWO) == (("symmetry.rotations.0", image),)


def test_a_rotation_that_changes_nothing_is_no_symmetry():
    assert Sketch("mine", rotations=(Rotation("node", "node"), Rotation(4, 4))).generators(TWO_BY_TWO) == ()
    assert Sketch("mine", rotations=(Rotation("node", "machine"),)).generators(ring(4)) == ()


def test_generators_keep_the_names_of_their_fields():
    sketch = Sketch("mine", rotations=(Rotation(0, 4), Rotation(2, 4)), permutations=((1, 0, 3, 2),))
    assert sketch.generators(TWO_BY_TWO) == (
        ("symmetry.rotations.1", (2, 3, 0, 1)),
        ("symmetry.permutations.0", (1, 0, 3, 2)),
    )


def test_sketches_are_equal_by_content_wherever_they_came_from():
    one = Sketch("mine", connections={0: (1,)}, source="a.json")
    assert one == Sketch("mine", connections={0: (1,)}, source="b.json")
    assert one != Sketch("mine", connections={0: (0,)}, source="a.json")
    assert Collective(Kind.ALLGATHER, 4, one.chunks_per_rank).num_chunks == 4


# Sums


def one_way_ring(num_ranks):
    return machine(num_ranks, [Link(r, (r + 1) % num_ranks, 1.0, 1.0) for r in range(num_ranks)])


def test_a_sketch_goes_backwards_where_its_links_do():
    sketch = Sketch("mine", connections={0: (1,)}, relays={0: (0, 1)})
    both_ways = two_nodes(2, {0: (1,), 1: (0,)})
    assert sketch.for_sums(both_ways.reversed()) is sketch


def test_a_sketch_of_one_way_links_is_turned_around_with_its_machine():
    sketch = Sketch("mine", links={0: (1,), 1: (2,), 2: (0,)}, rotations=(Rotation(1, 3),))
    turned = sketch.for_sums(one_way_ring(3).reversed())
    assert turned.links == {1: (0,), 2: (1,), 0: (2,)}
    assert turned.rotations == sketch.rotations


def test_who_receives_over_one_way_connections_relays_for_sums():
    forth = two_nodes(3, {0: (1, 2), 1: (2,)})
    sketch = Sketch("mine", connections={0: (1, 2), 1: (2,)}, relays={0: (0, 1), 1: (2,)})
    sketch.check_fits(forth)
    turned = sketch.for_sums(forth.reversed())
    assert turned.connections == {1: (0,), 2: (0, 1)}
    assert turned.relays == {1: (0, 1), 2: (0, 1, 2)}
    turned.check_fits(forth.reversed())


def test_errors_use_the_words_of_the_file():
    words = {"inter_node": "outer", "inter_node.relays": "senders"}
    sketch = Sketch("mine", words=words)
    assert sketch.word("inter_node.relays.3") == "senders.3"
    assert sketch.word("inter_node.connections.0") == "outer.connections.0"
    assert sketch.word("symmetry.rotations.1") == "symmetry.rotations.1"
