from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.topology.model import Link, Topology
from taccl_py.topology.template import (
    AlphaBeta,
    NetworkReach,
    Nic,
    NodeLink,
    NodeNetwork,
    NodePort,
    NodeSwitch,
    NodeTemplate,
    PortSide,
    Side,
    instantiate,
    join_nodes,
)

NVLINK = AlphaBeta(0.3, 23.0)
IB = AlphaBeta(2.6, 105.0)


def template(num_ranks: int = 2, **parts: object) -> NodeTemplate:
    return NodeTemplate("toy", "a toy", "invented", num_ranks, **parts)  # type: ignore[arg-type]


def outward(*names: str) -> tuple[PortSide, ...]:
    return tuple(PortSide(name, Side.OUT) for name in names)


def only_link(topology: Topology, src: int, dst: int) -> Link:
    (index,) = topology.links_between[src, dst]
    return topology.links[index]


def port_names(topology: Topology, link: Link) -> list[str]:
    return [topology.ports[port].name for port in link.ports]


def test_switch_joins_all_its_ranks_with_one_port_out_and_one_port_in_each() -> None:
    topology = instantiate(template(4, switches=(NodeSwitch("plane", (0, 1, 3), AlphaBeta(0.4, 10.0)),)))
    assert set(topology.links_between) == set(itertools.permutations((0, 1, 3), 2))
    assert sorted(port.name for port in topology.ports) == sorted(
        f"node 0 rank {rank} plane {side}" for rank in (0, 1, 3) for side in ("in", "out")
    )
    link = only_link(topology, 3, 1)
    assert port_names(topology, link) == ["node 0 rank 3 plane out", "node 0 rank 1 plane in"]
    assert (link.alpha_us, link.beta_us_per_mb) == (0.4, 10.0)
    assert {(port.alpha_us, port.beta_us_per_mb) for port in topology.ports} == {(0.4, 10.0)}


def test_ranks_behind_one_nic_share_it_and_its_two_directions_are_apart() -> None:
    topology = instantiate(template(2, nics=(Nic("ib0", (0, 1), IB),)), 2)
    assert len(topology.links) == 8
    assert port_names(topology, only_link(topology, 0, 2)) == ["node 0 ib0 out", "node 1 ib0 in"]
    assert only_link(topology, 0, 2).ports == only_link(topology, 1, 3).ports
    assert not set(only_link(topology, 0, 2).ports) & set(only_link(topology, 3, 1).ports)


def test_nic_of_its_own_is_not_shared() -> None:
    topology = instantiate(template(2, nics=(Nic("ib0", (0,), IB), Nic("ib1", (1,), IB))), 2)
    assert not set(only_link(topology, 0, 2).ports) & set(only_link(topology, 1, 3).ports)
    assert set(only_link(topology, 0, 2).ports) & set(only_link(topology, 1, 2).ports), "both end in rank 2's NIC"


def test_way_between_nodes_passes_what_lies_before_each_nic_in_order() -> None:
    nic = Nic("ib0", (0, 1), IB, {1: outward("near", "far")})
    ports = (NodePort("near", AlphaBeta(0.0, 10.0)), NodePort("far", AlphaBeta(0.0, 20.0)))
    topology = instantiate(template(2, nics=(nic,), ports=ports), 2)
    there = ["node 0 near out", "node 0 far out", "node 0 ib0 out", "node 1 ib0 in", "node 1 far in", "node 1 near in"]
    assert port_names(topology, only_link(topology, 1, 3)) == there
    assert port_names(topology, only_link(topology, 0, 2)) == ["node 0 ib0 out", "node 1 ib0 in"]
    assert port_names(topology, only_link(topology, 1, 2)) == there[:4]


def test_a_reverse_link_uses_the_other_direction_of_what_lies_before_the_nic() -> None:
    nic = Nic("ib0", (0, 1), IB, {1: outward("uplink")})
    topology = instantiate(template(2, nics=(nic,), ports=(NodePort("uplink", AlphaBeta(0.0, 10.0)),)), 2)
    assert port_names(topology, only_link(topology, 2, 1)) == ["node 1 ib0 out", "node 0 ib0 in", "node 0 uplink in"]
    assert port_names(topology, only_link(topology, 1, 2)) == ["node 0 uplink out", "node 0 ib0 out", "node 1 ib0 in"]


def test_link_between_unlike_nics_has_the_larger_alpha_and_the_larger_beta() -> None:
    nics = (Nic("slow", (0,), AlphaBeta(1.0, 200.0)), Nic("late", (1,), AlphaBeta(5.0, 50.0)))
    link = only_link(instantiate(template(2, nics=nics), 2), 0, 3)
    assert (link.alpha_us, link.beta_us_per_mb) == (5.0, 200.0)


def test_rank_with_two_nics_has_parallel_links_for_every_pair_of_nics() -> None:
    topology = instantiate(template(1, nics=(Nic("a", (0,), IB), Nic("b", (0,), IB))), 2)
    ways = {tuple(port_names(topology, topology.links[i])) for i in topology.links_between[0, 1]}
    assert ways == {(f"node 0 {x} out", f"node 1 {y} in") for x in "ab" for y in "ab"}


def test_rail_joins_only_ranks_of_equal_local_number() -> None:
    nics = tuple(Nic(f"ib{i}", (i,), IB) for i in range(3))
    topology = instantiate(template(3, nics=nics, network=NodeNetwork(NetworkReach.RAIL, 0.5)), 2)
    assert set(topology.links_between) == {(0, 3), (1, 4), (2, 5), (3, 0), (4, 1), (5, 2)}
    assert {link.latency_us for link in topology.links} == {0.5}


def test_direct_links_share_the_further_ports_that_they_name() -> None:
    uses = (PortSide("bus", Side.OUT),)
    links = (NodeLink(0, 1, NVLINK, 0.2, uses), NodeLink(0, 2, NVLINK, ports=uses), NodeLink(2, 0, NVLINK))
    topology = instantiate(template(3, links=links, ports=(NodePort("bus", AlphaBeta(0.1, 5.0)),)))
    assert [port_names(topology, link) for link in topology.links] == [["node 0 bus out"], ["node 0 bus out"], []]
    assert topology.links[0].latency_us == 0.2
    assert (topology.ports[0].alpha_us, topology.ports[0].beta_us_per_mb) == (0.1, 5.0)


def test_ports_that_no_link_shares_are_left_out() -> None:
    node = template(2, links=(NodeLink(0, 1, NVLINK), NodeLink(1, 0, NVLINK)), nics=(Nic("ib0", (0, 1), IB),))
    assert instantiate(node, 1).ports == ()
    assert len(instantiate(node, 2).ports) == 4


def test_ranks_and_names_of_several_nodes_are_counted_through() -> None:
    topology = instantiate(template(2, nics=(Nic("ib0", (0, 1), IB),)), 3)
    assert topology.name == "toy-x3"
    assert topology.node_of == (0, 0, 1, 1, 2, 2)
    assert topology.local_rank == (0, 1, 0, 1, 0, 1)


def test_symmetry_is_the_local_one_in_every_node_and_the_rotation_of_the_nodes() -> None:
    node = template(2, nics=(Nic("ib0", (0, 1), IB),), symmetry=((1, 0),))
    assert instantiate(node, 1).symmetry == ((1, 0),)
    assert instantiate(node, 2).symmetry == ((1, 0, 3, 2), (2, 3, 0, 1))


@pytest.mark.parametrize(
    "nics",
    [
        (Nic("a", (0,), IB),),
        (Nic("a", (0,), IB), Nic("b", (1,), NVLINK)),
        (Nic("a", (0, 1), IB, {1: outward("p")}),),
        (Nic("a", (0, 1), IB, {0: outward("p"), 1: outward("q")}),),
        (Nic("a", (0,), IB, {0: outward("p")}), Nic("b", (1,), IB, {1: outward("p", "q")})),
    ],
    ids=[
        "only one rank has a NIC",
        "the costs differ",
        "one is nearer",
        "ways of unlike cost",
        "ways of unlike length",
    ],
)
def test_symmetry_that_makes_the_nics_others_is_used_for_one_node_only(nics: tuple[Nic, ...]) -> None:
    links = (NodeLink(0, 1, NVLINK), NodeLink(1, 0, NVLINK))
    ports = (NodePort("p", AlphaBeta(0.0, 1.0)), NodePort("q", AlphaBeta(0.0, 2.0)))
    node = template(2, links=links, nics=nics, ports=ports, symmetry=((1, 0),))
    assert instantiate(node, 1).symmetry == ((1, 0),)
    assert instantiate(node, 2).symmetry == ((2, 3, 0, 1),)


def test_symmetry_that_exchanges_like_paths_to_the_nic_is_kept(is_automorphism) -> None:  # type: ignore[no-untyped-def]
    nic = Nic("a", (0, 1, 2, 3), IB, {0: outward("p"), 1: outward("p"), 2: outward("q"), 3: outward("q")})
    ports = (NodePort("p", AlphaBeta(0.0, 1.0)), NodePort("q", AlphaBeta(0.0, 1.0)))
    node = template(4, nics=(nic,), ports=ports, symmetry=((2, 3, 0, 1), (0, 2, 1, 3)))
    topology = instantiate(node, 2)
    assert topology.symmetry == ((2, 3, 0, 1, 6, 7, 4, 5), (4, 5, 6, 7, 0, 1, 2, 3))
    assert all(is_automorphism(topology, image) for image in topology.symmetry)
    assert not is_automorphism(topology, (0, 2, 1, 3, 4, 6, 5, 7))


def test_way_down_to_a_nic_uses_the_direction_in_of_what_it_passes() -> None:
    """Rank 0 goes up its own uplink and down that of the NIC's switch, which lies behind the host bridge."""
    nic = Nic("ib0", (0,), IB, {0: (PortSide("mine", Side.OUT), PortSide("theirs", Side.IN))})
    ports = (NodePort("mine", AlphaBeta(0.0, 10.0)), NodePort("theirs", AlphaBeta(0.0, 10.0)))
    topology = instantiate(template(1, nics=(nic,), ports=ports), 2)
    assert port_names(topology, only_link(topology, 0, 1)) == [
        "node 0 mine out", "node 0 theirs in", "node 0 ib0 out", "node 1 ib0 in", "node 1 theirs out", "node 1 mine in",
    ]  # fmt: skip


def test_nodes_that_are_not_alike_are_joined_rank_after_rank() -> None:
    small = template(1, nics=(Nic("ib0", (0,), AlphaBeta(1.0, 100.0)),))
    large = template(2, links=(NodeLink(0, 1, NVLINK), NodeLink(1, 0, NVLINK)), nics=(Nic("ib0", (1,), IB),))
    topology = join_nodes([small, large], "odd")
    assert topology.node_of == (0, 1, 1)
    assert [(link.src, link.dst) for link in topology.links] == [(0, 2), (1, 2), (2, 0), (2, 1)]
    assert only_link(topology, 0, 2) == Link(0, 2, 2.6, 105.0, ports=only_link(topology, 0, 2).ports)
    assert join_nodes([small, small], "even") == instantiate(small, 2)


def test_node_without_a_nic_cannot_be_joined_to_others() -> None:
    with pytest.raises(InputError, match="has no NIC that could join it"):
        join_nodes([template(1, nics=(Nic("ib0", (0,), IB),)), template(1)], "odd")


def test_no_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="found 0 nodes"):
        instantiate(template(1), 0)


def test_nodes_without_nics_cannot_be_joined() -> None:
    with pytest.raises(InputError, match="toy has no NICs that could join 2 nodes"):
        instantiate(template(1), 2)


def test_machine_that_would_not_fit_into_memory_is_refused_at_once() -> None:
    node = template(8, nics=tuple(Nic(f"ib{i}", (i,), IB) for i in range(8)))
    with pytest.raises(InputError, match="63936000 links, more than 5000000"):
        instantiate(node, 1000)


@st.composite
def templates(draw: st.DrawFn) -> NodeTemplate:
    num_ranks = draw(st.integers(1, 4))
    some_ranks = st.lists(st.integers(0, num_ranks - 1), min_size=1, max_size=num_ranks, unique=True).map(tuple)
    costs = st.builds(AlphaBeta, st.sampled_from([0.5, 2.0]), st.sampled_from([10.0, 40.0]))
    nics = []
    for i in range(draw(st.integers(1, 3))):
        ranks = draw(some_ranks)
        via = {rank: (PortSide("up", Side.OUT),) for rank in ranks if draw(st.booleans())}
        nics.append(Nic(f"ib{i}", ranks, draw(costs), via))
    switches = [NodeSwitch("plane", draw(some_ranks), draw(costs))] if draw(st.booleans()) else []
    return template(
        num_ranks,
        nics=tuple(nics),
        switches=tuple(switches),
        ports=(NodePort("up", draw(costs)),),
        network=NodeNetwork(draw(st.sampled_from(list(NetworkReach))), draw(st.sampled_from([0.0, 0.7]))),
    )


@settings(max_examples=60)
@given(templates(), st.integers(1, 4))
def test_links_are_as_many_as_counted_and_use_the_ports_of_their_own_nodes(node: NodeTemplate, nodes: int) -> None:
    topology = instantiate(node, nodes)
    inside = [link for link in topology.links if topology.node_of[link.src] == topology.node_of[link.dst]]
    assert len(inside) == nodes * node.num_local_links
    assert len(topology.links) - len(inside) == nodes * (nodes - 1) * node.num_links_between
    for link in topology.links:
        here, there = f"node {topology.node_of[link.src]} ", f"node {topology.node_of[link.dst]} "
        for name in port_names(topology, link):
            assert name.startswith(here if name.endswith("out") else there)
    assert {port for link in topology.links for port in link.ports} == set(range(len(topology.ports)))


@settings(max_examples=40)
@given(node=templates(), nodes=st.integers(2, 3))
def test_rotation_of_the_nodes_is_always_an_automorphism(is_automorphism, node, nodes) -> None:  # type: ignore[no-untyped-def]
    topology = instantiate(node, nodes)
    assert is_automorphism(topology, topology.symmetry[-1])


def test_only_nics_of_one_plane_reach_each_other() -> None:
    nics = (Nic("a", (0,), IB, plane="a"), Nic("b", (0,), IB, plane="b"), Nic("c", (1,), IB, plane="b"))
    node = template(2, nics=nics)
    topology = instantiate(node, 2)
    assert [len(topology.links_between.get(pair, ())) for pair in ((0, 2), (0, 3), (1, 2), (1, 3))] == [2, 1, 1, 1]
    assert node.num_links_between == 5
