from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.topology.machines import SHAPES, formula_topology, is_formula
from taccl_py.topology.model import Topology

IsAutomorphism = Callable[[Topology, tuple[int, ...]], bool]


def neighbours(topology: Topology, rank: int) -> set[int]:
    return {dst for src, dst in topology.links_between if src == rank}


# Machine, ranks, links, degrees
COUNTED_BY_HAND = [
    ("ring:8", 8, 16, {2}),
    ("ring:3", 3, 6, {2}),
    ("ring:2", 2, 2, {1}),
    ("torus:4x4", 16, 64, {4}),
    ("torus:4x4x4", 64, 384, {6}),
    ("torus:2x3", 6, 18, {3}),
    ("torus:2x2", 4, 8, {2}),
    ("mesh:4x4", 16, 48, {2, 3, 4}),
    ("mesh:5", 5, 8, {1, 2}),
    ("mesh:2x2x2", 8, 24, {3}),
    ("hypercube:3", 8, 24, {3}),
    ("hypercube:1", 2, 2, {1}),
    ("full:8", 8, 56, {7}),
    ("switch:16", 16, 240, {15}),
    ("twisted:4x8", 32, 128, {4}),
    ("twisted:2x2x4", 16, 96, {6}),
    ("twisted:4x8x8", 256, 1536, {6}),
    ("torus:16x16x16", 4096, 24576, {6}),
    ("dragonfly:1", 6, 30, {5}),
    ("dragonfly:2", 72, 72 * 71, {71}),
    ("fattree:4", 16, 240, {15}),
]


@pytest.mark.parametrize(
    ("formula", "ranks", "links", "degrees"), COUNTED_BY_HAND, ids=[row[0] for row in COUNTED_BY_HAND]
)
def test_shape_has_the_ranks_links_and_degrees_counted_by_hand(
    formula: str, ranks: int, links: int, degrees: set[int]
) -> None:
    topology = formula_topology(formula)
    assert (topology.num_ranks, len(topology.links), topology.num_nodes) == (ranks, links, 1)
    assert set(Counter(link.src for link in topology.links).values()) == degrees
    assert set(Counter(link.dst for link in topology.links).values()) == degrees
    assert len(topology.links_between) == links, "no parallel links"


def test_neighbours_are_those_of_the_shape() -> None:
    assert neighbours(formula_topology("ring:5"), 0) == {1, 4}
    assert neighbours(formula_topology("torus:3x4"), 0) == {1, 3, 4, 8}, "row by row: 4 is one row down, 8 one row up"
    assert neighbours(formula_topology("mesh:3x4"), 0) == {1, 4}
    assert neighbours(formula_topology("mesh:3x4"), 5) == {4, 6, 1, 9}
    assert neighbours(formula_topology("hypercube:3"), 5) == {4, 7, 1}
    assert neighbours(formula_topology("torus:2x3x4"), 0) == {1, 3, 4, 8, 12}


def test_every_link_of_a_shape_goes_both_ways_but_of_kautz_graphs() -> None:
    for shape in SHAPES:
        if shape.name == "kautz":
            continue
        topology = formula_topology(shape.example)
        assert all((dst, src) in topology.links_between for src, dst in topology.links_between), shape.name


def test_costs_are_the_defaults_unless_options_say_otherwise() -> None:
    link = formula_topology("ring:4").links[0]
    assert (link.alpha_us, link.beta_us_per_mb, link.latency_us, link.ports) == (0.5, 20.0, 0.0, ())
    link = formula_topology("ring:4,alpha_us=0.7,beta_us_per_mb=40").links[0]
    assert (link.alpha_us, link.beta_us_per_mb) == (0.7, 40.0)
    link = formula_topology("mesh:2x2, beta_us_per_mb = 1e1").links[0]
    assert (link.alpha_us, link.beta_us_per_mb) == (0.5, 10.0)


def test_switch_gives_each_rank_one_port_out_and_one_in() -> None:
    topology = formula_topology("switch:4,alpha_us=1,beta_us_per_mb=8")
    assert len(topology.ports) == 8
    assert {(port.alpha_us, port.beta_us_per_mb) for port in topology.ports} == {(1.0, 8.0)}
    for one, two in itertools.combinations(topology.links, 2):
        assert (one.ports[0] == two.ports[0]) == (one.src == two.src)
        assert (one.ports[1] == two.ports[1]) == (one.dst == two.dst)
        assert one.ports[0] != two.ports[1]


@pytest.mark.parametrize(
    ("formula", "group"),
    [
        ("ring:6", 6),
        ("torus:2x3", 6),
        ("torus:3x3x2", 18),
        ("hypercube:3", 8),
        ("full:5", 5),
        ("switch:4", 4),
        ("twisted:3x6", 18),
        ("twisted:2x2x4", 16),
        ("twisted:2x4x4", 32),
        ("torus:4x3,routed", 12),
        ("twisted:2x4,routed", 8),
        ("fattree:4", 16),
        ("hpn:3", 24),
        ("hpn:2,planes=2", 16),
    ],
)
def test_symmetry_takes_every_rank_to_every_other_and_keeps_the_machine(
    is_automorphism: IsAutomorphism, formula: str, group: int
) -> None:
    topology = formula_topology(formula)
    assert all(is_automorphism(topology, image) for image in topology.symmetry)
    reached = {0}
    while new := {image[rank] for image in topology.symmetry for rank in reached} - reached:
        reached |= new
    assert len(reached) == topology.num_ranks == group


def test_going_around_a_short_side_of_a_twisted_torus_moves_half_way_along_the_long_one() -> None:
    # Rank 0 is (0, 0) of 2 rows of 4: one row up is (-1, 0), which is (1, 0 - 2), rank 6.
    assert neighbours(formula_topology("twisted:2x4"), 0) == {1, 3, 4, 6}
    assert neighbours(formula_topology("torus:2x4"), 0) == {1, 3, 4}


def test_going_around_the_short_side_moves_half_way_along_both_long_ones() -> None:
    # Rank 0 is (0, 0, 0) of 2x4x4: one back along the first side is (1, 0 - 2, 0 - 2), rank 16 + 2 * 4 + 2.
    assert neighbours(formula_topology("twisted:2x4x4"), 0) == {16, 26, 4, 12, 1, 3}


def test_a_twisted_torus_of_256_has_the_distances_that_are_published_of_it() -> None:
    topology = formula_topology("twisted:4x8x8")
    far = nx.single_source_shortest_path_length(nx.DiGraph(list(topology.links_between)), 0)
    assert max(far.values()) == 6
    assert sum(far.values()) / (len(far) - 1) == pytest.approx(4.329, abs=1e-3)


def names_of_ports(topology: Topology, src: int, dst: int) -> list[str]:
    (link,) = topology.links_between[src, dst]
    return [topology.ports[port].name.removeprefix("node 0 ") for port in topology.links[link].ports]


def test_dragonfly_goes_through_the_routers_that_own_the_channel_between_two_groups() -> None:
    # 9 groups of 4 routers of 2 ranks. From group 0 to 3: channel 2, of router 1; back from 3 to 0: channel 5, of router 2.
    topology = formula_topology("dragonfly:2")
    assert names_of_ports(topology, 0, 1) == ["nic 0 out", "nic 1 in"]
    assert names_of_ports(topology, 0, 7) == ["nic 0 out", "group 0 router 0 to 3 out", "nic 7 in"]
    assert names_of_ports(topology, 1, 24) == [
        "nic 1 out", "group 0 router 0 to 1 out", "group 0 to 3 out", "group 3 router 2 to 0 out", "nic 24 in"
    ]  # fmt: skip
    assert names_of_ports(topology, 2, 28) == ["nic 2 out", "group 0 to 3 out", "nic 28 in"]


def test_dragonfly_keeps_its_symmetry(is_automorphism: IsAutomorphism) -> None:
    topology = formula_topology("dragonfly:2")
    assert len(topology.symmetry) == 2
    assert all(is_automorphism(topology, image) for image in topology.symmetry)


def test_fat_tree_goes_up_by_the_number_of_the_receiver() -> None:
    # 4 pods of 2 edge switches of 2 ranks; rank 7 is pod 1, edge 1, host 1.
    topology = formula_topology("fattree:4")
    assert names_of_ports(topology, 0, 1) == ["nic 0 out", "nic 1 in"]
    assert names_of_ports(topology, 0, 3) == ["nic 0 out", "pod 0 edge 0 up 1 out", "nic 3 in"]
    assert names_of_ports(topology, 0, 7) == [
        "nic 0 out", "pod 0 edge 0 up 1 out", "pod 0 aggregation 1 up 1 out", "nic 7 in"
    ]  # fmt: skip
    channel = next(port for port in topology.ports if "edge" in port.name)
    assert (channel.alpha_us, channel.beta_us_per_mb) == (0.0, 20.0)


def test_rails_join_only_equal_numbers_and_planes_share_a_rail() -> None:
    one, two = formula_topology("hpn:3"), formula_topology("hpn:3,planes=2")
    assert (one.num_ranks, one.num_nodes, one.name, two.name) == (24, 3, "hpn-x3", "hpn-2-planes-x3")
    assert len(one.links) == 3 * 56 + 6 * 8
    assert len(two.links) == 3 * 56 + 6 * 16
    assert (0, 9) not in one.links_between
    assert [one.links[link].beta_us_per_mb for link in one.links_between[0, 8]] == [20.0]
    lanes = two.links_between[0, 8]
    assert [two.links[link].beta_us_per_mb for link in lanes] == [40.0, 40.0]
    assert not set(two.links[lanes[0]].ports) & set(two.links[lanes[1]].ports)


def test_costs_of_a_cluster_can_be_given() -> None:
    topology = formula_topology("hpn:2,planes=2,nvlink_alpha_us=0.5,nvlink_gbps=400,nic_alpha_us=3.1,nic_gbps=25")
    inside = topology.links[topology.links_between[0, 1][0]]
    across = topology.links[topology.links_between[0, 8][0]]
    assert (inside.alpha_us, inside.beta_us_per_mb) == (0.5, 2.5)
    assert (across.alpha_us, across.beta_us_per_mb) == (3.1, 80.0)
    assert "hpn:2,planes=2,nvlink_alpha_us=0.5" in topology.source
    assert "of the formula" not in formula_topology("hpn:2,planes=2").source


def test_rack_has_72_gpus_on_one_switch() -> None:
    topology = formula_topology("nvl72:1")
    assert (topology.num_ranks, topology.num_nodes, len(topology.ports)) == (72, 1, 144)
    assert all(1000 / link.beta_us_per_mb == pytest.approx(900) for link in topology.links)


def test_mesh_claims_no_symmetry() -> None:
    assert formula_topology("mesh:3x3").symmetry == ()


def test_check_of_symmetry_can_fail(is_automorphism: IsAutomorphism) -> None:
    assert not is_automorphism(formula_topology("ring:4"), (1, 0, 2, 3))
    assert not is_automorphism(formula_topology("mesh:3"), (1, 2, 0))
    assert not is_automorphism(formula_topology("ring:4"), (0, 0, 1, 2))


def test_name_can_be_a_file_name_and_the_source_is_honest() -> None:
    topology = formula_topology("torus:4x4,alpha_us=1")
    assert topology.name == "torus-4x4"
    assert "torus:4x4,alpha_us=1" in topology.source
    assert "assumed" in topology.source


def test_each_shape_is_listed_with_an_example_that_works() -> None:
    assert [shape.name for shape in SHAPES] == [
        "ring", "torus", "twisted", "mesh", "hypercube", "circulant", "kautz", "full", "switch", "dragonfly", "fattree", "hpn", "nvl72"
    ]  # fmt: skip
    for shape in SHAPES:
        assert formula_topology(shape.example).num_ranks > 1
        assert is_formula(shape.example)


@settings(max_examples=40)
@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.booleans())
def test_grid_links_change_one_coordinate_by_one(sides: list[int], closed: bool) -> None:
    topology = formula_topology(f"{'torus' if closed else 'mesh'}:{'x'.join(map(str, sides))}")
    places = list(itertools.product(*(range(side) for side in sides)))
    assert topology.num_ranks == len(places) == math.prod(sides)
    pairs = set()
    for (src, here), (dst, there) in itertools.permutations(enumerate(places), 2):
        steps = [(abs(a - b), side) for a, b, side in zip(here, there, sides, strict=True) if a != b]
        if len(steps) == 1 and (steps[0][0] == 1 or (closed and steps[0][0] == steps[0][1] - 1)):
            pairs.add((src, dst))
    assert set(topology.links_between) == pairs


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("rings:8", "did you mean ring? write for example ring:8"),
        ("star:8", "has no known shape; write for example"),
        ("ring:", "'' is not a size of a ring; write one whole number"),
        ("ring:4x4", "'4x4' is not a size of a ring"),
        ("ring:-4", "is not a size of a ring"),
        ("ring:1", "found 1, a ring has at least 2 ranks"),
        ("torus:4x", "write sides joined by x, as in 4x4"),
        ("torus:4x1", "at least 2 ranks along each side"),
        ("mesh:0", "found 0, a mesh has at least 2 ranks"),
        ("hypercube:0", "found 0, a hypercube has at least 1 dimensions"),
        ("hypercube:40", "more than 65536 ranks; write a smaller size"),
        ("full:3000", "more than 5000000 links"),
        ("torus:1000x1000x1000", "more than 65536 ranks"),
        ("ring:" + "9" * 5000, "is not a size of a ring"),
        ("ring:8,", "'' is not an option; write alpha_us or beta_us_per_mb"),
        ("ring:8,beta=3", "'beta=3' is not an option"),
        ("ring:8,alpha_us", "'alpha_us' is not an option"),
        ("ring:8,alpha_us=fast", "'fast' is not a number"),
        ("ring:8,alpha_us=-1", "a number from 0 to 1e+12 is needed"),
        ("ring:8,alpha_us=nan", "a number from 0 to 1e+12 is needed"),
        ("ring:8,beta_us_per_mb=inf", "a number from 0 to 1e+12 is needed"),
        ("ring:8,alpha_us=1,alpha_us=2", "alpha_us stands twice"),
        ("ring:8,alpha_us=0,beta_us_per_mb=0", "alpha and beta are both 0"),
        ("ring", "has no known shape"),
        ("twisted:4x4", "the last side of a twisted torus, or sides, are twice each of those before"),
        ("twisted:8", "the last side of a twisted torus, or sides, are twice each of those before"),
        ("twisted:8x4x8", "the last side of a twisted torus, or sides, are twice each of those before"),
        ("twisted:4x8x16", "the last side of a twisted torus, or sides, are twice each of those before"),
        ("torus:4x4,routed,routed", "routed stands twice"),
        ("torus:4x4,routed,hop_us=far", "'far' is not a number"),
        ("torus:4x4,hop_us=1", "'hop_us=1' is not an option of links between neighbours alone; add ,routed"),
        (
            "ring:8,alpha_us=1, hop_us = 2",
            "'hop_us = 2' is not an option of links between neighbours alone; add ,routed",
        ),
        ("hypercube:3,hop_us=1", "'hop_us=1' is not an option; write alpha_us or beta_us_per_mb"),
        ("hypercube:3,routed", "'routed' is not an option"),
        ("torus:64x64,routed", "more than 5000000 hops; write a smaller size"),
        ("fattree:5", "found 5 ports, half of which go up; write an even number"),
        ("fattree:0", "found 0, a fattree has at least 2 ports"),
        ("dragonfly:9", "more than 5000000 links"),
        ("hpn:0", "found 0, a hpn has at least 1 nodes"),
        (
            "hpn:2,alpha_us=1",
            "'alpha_us=1' is not an option; write planes, nvlink_alpha_us, nvlink_gbps, nic_alpha_us or nic_gbps, =",
        ),
        ("ring:8,nic_gbps=1", "'nic_gbps=1' is not an option; write alpha_us or beta_us_per_mb, = and a number"),
        ("hpn:2,planes=99", "found planes=99, a whole number from 1 to 16 is needed"),
        ("hpn:2,planes=1.5", "found planes=1.5, a whole number from 1 to 16 is needed"),
        ("hpn:2,planes=2,planes=2", "planes stands twice"),
        ("hpn:2,nic_gbps=0", "found nic_gbps=0, a bandwidth above 0 is needed"),
        ("nvl72:1,nvlink_gbps=fast", "'fast' is not a number"),
        ("nvl72:1000", "have 77040000 links, more than 5000000; use fewer nodes"),
    ],
)
def test_broken_formula_is_answered_with_what_is_allowed(formula: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        formula_topology(formula)
    assert words in str(caught.value)


def test_paths_and_names_are_no_formulas() -> None:
    assert not any(is_formula(text) for text in ("ring", "a/ring:8", "ndv2-x2", "ring8.json", "", "C:\\ring.json"))
    assert all(is_formula(text) for text in ("ring:8", "star:x", "ring:"))


def test_ranks_of_a_circulant_are_linked_at_the_distances_both_ways():
    machine = formula_topology("circulant:8x1x4")
    assert neighbours(machine, 0) == {1, 7, 4}
    assert len(machine.links) == 8 * 3
    assert machine.symmetry == ((1, 2, 3, 4, 5, 6, 7, 0),)


def test_kautz_graphs_are_those_of_imase_and_itoh(is_automorphism):
    """Of 12 ranks and 2 links each every rank is at most 3 links away; K(2, 2) has 6 ranks, at most 2 links apart."""
    machine = formula_topology("kautz:12x2")
    assert neighbours(machine, 1) == {9, 8}
    assert {sum(link.src == rank for link in machine.links) for rank in range(12)} == {2}
    assert machine.symmetry == ((4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3),)
    assert is_automorphism(machine, machine.symmetry[0])
    for formula, most in (("kautz:6x2", 2), ("kautz:12x2", 3)):
        small = formula_topology(formula)
        reached, steps = {0}, 0
        while len(reached) < small.num_ranks:
            reached |= {dst for rank in reached for dst in neighbours(small, rank)}
            steps += 1
        assert steps == most


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kautz:12", "write the ranks and the links out of each"),
        ("kautz:4x4", "write the ranks and the links out of each"),
        ("circulant:8", "different distances"),
        ("circulant:8x5", "different distances"),
        ("circulant:8x1x1", "different distances"),
        ("circulant:8x2x4", "common divisor"),
        ("circulant:8xa", "write numbers joined by x"),
        ("circulant:99999999x1", "more than 65536 ranks"),
    ],
)
def test_lists_that_are_no_machine_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        formula_topology(text)


def test_a_routed_link_holds_every_wire_of_its_path_and_pays_its_distance() -> None:
    topology = formula_topology("ring:5,routed,hop_us=0.25")
    assert names_of_ports(topology, 0, 2) == ["end 0->1 out", "wire 0->1 out", "wire 1->2 out", "end 1->2 in"]
    assert names_of_ports(topology, 0, 3) == ["end 0->4 out", "wire 0->4 out", "wire 4->3 out", "end 4->3 in"]
    (near,), (far,) = topology.links_between[0, 1], topology.links_between[0, 2]
    # 1 MB: 0.5 us and 20 us, and of two hops 0.25 us more.
    assert topology.message_us(near, 1e6) == 20.5
    assert topology.message_us(far, 1e6) == 20.75
    costs = {port.name.split()[2]: (port.alpha_us, port.beta_us_per_mb) for port in topology.ports}
    assert costs == {"end": (0.5, 20.0), "wire": (0.0, 20.0)}


def test_routers_go_along_the_last_dimension_first_and_know_both_ways_half_around() -> None:
    topology = formula_topology("torus:3x4,routed")
    # Rank 0 is (0, 0), rank 5 is (1, 1): along the row to rank 1, then down.
    assert names_of_ports(topology, 0, 5) == ["end 0->1 out", "wire 0->1 out", "wire 1->5 out", "end 1->5 in"]
    assert len(topology.links_between[0, 2]) == 2, "half around a row of four"
    assert len(topology.links_between[0, 4]) == 1
    assert len(formula_topology("torus:2x4,routed").links_between[0, 4]) == 1, "a side of two is one wire"


@pytest.mark.parametrize("formula", ["torus:3x4", "ring:6", "mesh:2x3", "twisted:2x4", "twisted:2x2x4"])
def test_routed_paths_are_shortest_and_lead_over_the_links_of_the_plain_grid(formula: str) -> None:
    plain, routed = formula_topology(formula), formula_topology(f"{formula},routed,hop_us=1")
    graph = nx.DiGraph(list(plain.links_between))
    shortest = dict(nx.all_pairs_shortest_path_length(graph))
    assert set(routed.links_between) == {(a, b) for a in graph for b in graph if a != b}
    for link in routed.links:
        wires = [routed.ports[port].name.split()[3] for port in link.ports if " wire " in routed.ports[port].name]
        path = [tuple(map(int, wire.split("->"))) for wire in wires]
        assert (path[0][0], path[-1][1]) == (link.src, link.dst)
        assert all(one[1] == next_one[0] for one, next_one in itertools.pairwise(path))
        assert set(path) <= set(plain.links_between)
        assert len(path) == shortest[link.src][link.dst] == link.latency_us + 1


def test_direct_exchange_with_routers_fills_all_wires_of_a_ring_alike() -> None:
    topology = formula_topology("ring:5,routed")
    uses = Counter(port for link in topology.links for port in link.ports if " wire " in topology.ports[port].name)
    # Each rank sends to the next and the next but one: 1 + 2 hops in each direction over each wire.
    assert set(uses.values()) == {3}
