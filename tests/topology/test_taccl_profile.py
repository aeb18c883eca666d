from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields
from taccl_py.topology.model import Link, Topology
from taccl_py.topology.taccl_profile import TacclProfile, profile_from_fields, profile_topology, read_profile

REMOTE: dict[str, Any] = {"nics_per_node": 1, "remote_alpha": 26, "remote_beta": 32.8, "remote_invbw": 59}
NDV2: dict[str, Any] = {
    "name": "my_ndv2",
    "gpus_per_node": 8,
    "alpha": 3,
    "node_betas_list": [7.18, 14.38],
    "node_invbws_list": [10.18, 17.38],
    **REMOTE,
}
HUB: dict[str, Any] = {
    "name": "hub",
    "gpus_per_node": 4,
    "alpha": 1,
    "node_betas_list": [6],
    "node_invbws_list": [7.5],
    **REMOTE,
    "nics_per_node": 2,
}
# A chain 0 -> 1 => 2 -> 0 (two parallel links in the middle); the matrices are [dst][src].
CUSTOM: dict[str, Any] = {
    "name": "chain",
    "gpus_per_node": 3,
    "alpha": 1,
    "links": [[0, 0, 1], [1, 0, 0], [0, 2, 0]],
    "betas": [[0, 0, 4], [2, 0, 0], [0, 3, 0]],
    "invbws": [[0, 0, 5], [2.5, 0, 0], [0, 3, 0]],
}


def profile(value: dict[str, Any]) -> TacclProfile:
    return profile_from_fields(Fields(value, "profile.json"))


def build(value: dict[str, Any], nodes: int = 1, connections: Any = None, switches: Any = ()) -> Topology:
    return profile_topology(profile(value), nodes=nodes, connections=connections or {}, switches=switches)


def links_between(topology: Topology, src: int, dst: int) -> list[Link]:
    return [topology.links[i] for i in topology.links_between.get((src, dst), ())]


def port_names(topology: Topology, link: Link) -> list[str]:
    return [topology.ports[port].name for port in link.ports]


def chunk_cost(topology: Topology, index: int) -> float:
    return topology.message_us(index, 1_000_000)


def test_ndv2_is_the_hybrid_cube_mesh_with_two_costs() -> None:
    topology = build(NDV2)
    fast = {(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)}
    slow = {(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)}
    assert {pair for pair in topology.links_between if pair[0] < pair[1]} == fast | slow
    for (src, dst), (index,) in topology.links_between.items():
        expected = 7.18 if tuple(sorted((src, dst))) in fast else 14.38
        assert topology.links[index].beta_us_per_mb == expected
        assert topology.links[index].ports == ()
    assert len(topology.links) == 32


def test_one_chunk_costs_invbw_and_nothing_is_rounded() -> None:
    topology = build(NDV2)
    assert [chunk_cost(topology, i) for i in topology.links_between[0, 1]] == [pytest.approx(10.18, rel=1e-15)]
    assert [chunk_cost(topology, i) for i in topology.links_between[0, 2]] == [pytest.approx(17.38, rel=1e-15)]
    assert {link.alpha_us for link in topology.links} == {3.0}, "10.18 - 7.18 in decimal"
    tiny = {**HUB, "node_betas_list": [0.25], "node_invbws_list": [0.55]}
    assert {link.alpha_us for link in build(tiny).links} == {0.3}, "TACCL itself would make 0 of these"


def test_alpha_follows_from_invbw_and_not_from_the_field_alpha() -> None:
    topology = build({**HUB, "alpha": 0.3, "node_betas_list": [8], "node_invbws_list": [8]})
    assert {(link.alpha_us, link.beta_us_per_mb) for link in topology.links} == {(0.0, 8.0)}


@pytest.mark.parametrize(
    ("change", "chunk_bytes", "costs"),
    [
        ({}, 1_000_000, (1.5, 6.0)),
        ({"name": "hub_1MB"}, 1_000_000, (1.5, 6.0)),
        ({"name": "hub_32KB"}, 32_000, (1.5, 187.5)),
        ({"name": "hub_1kb"}, 1000, (1.5, 6000.0)),
        ({"name": "hub_2", "chunk_bytes": 500_000}, 500_000, (1.5, 12.0)),
        ({"name": "hub_1KB", "chunk_bytes": 2_000_000}, 2_000_000, (1.5, 3.0)),
        ({"name": "hub_1KB", "unit_us": 0.01}, 1000, (0.015, 60.0)),
    ],
)
def test_costs_of_a_chunk_become_those_of_a_megabyte(
    change: dict[str, Any], chunk_bytes: int, costs: tuple[float, float]
) -> None:
    """One chunk takes 1.5 + 6 of the unit, whatever its size."""
    topology = build(HUB | change)
    assert {(link.alpha_us, link.beta_us_per_mb) for link in topology.links} == {costs}
    assert topology.measured_chunk_bytes == chunk_bytes
    assert f"{topology.name}, of messages of {chunk_bytes} bytes" in topology.source
    both = build(HUB | change, nodes=2, connections={0: [0]})  # half of a NIC
    scale = costs[1] / 6.0
    assert links_between(both, 0, 4)[0].beta_us_per_mb == pytest.approx(32.8 / 2 * scale)
    assert links_between(both, 0, 4)[0].alpha_us == pytest.approx(26 * costs[0] / 1.5)


def test_a_profile_has_the_name_of_its_file_and_no_symmetry() -> None:
    topology = build(HUB)
    assert topology.name == "hub"
    assert topology.symmetry == ()


def test_one_cost_links_every_pair() -> None:
    topology = build(HUB)
    assert set(topology.links_between) == set(itertools.permutations(range(4), 2))
    assert {(link.alpha_us, link.beta_us_per_mb) for link in topology.links} == {(1.5, 6.0)}


def test_custom_matrices_are_read_as_dst_then_src_with_parallel_links() -> None:
    topology = build(CUSTOM)
    assert {pair: len(lanes) for pair, lanes in topology.links_between.items()} == {(0, 1): 1, (1, 2): 2, (2, 0): 1}
    assert [(k.alpha_us, k.beta_us_per_mb) for k in topology.links] == [(0.5, 2.0), (0.0, 3.0), (0.0, 3.0), (1.0, 4.0)]


def test_connection_goes_between_all_nodes_and_back_at_the_same_cost() -> None:
    topology = build(NDV2, 2, {0: [1]})
    remote = {pair for pair in topology.links_between if topology.node_of[pair[0]] != topology.node_of[pair[1]]}
    assert remote == {(0, 9), (8, 1), (1, 8), (9, 0)}
    for pair in remote:
        (link,) = links_between(topology, *pair)
        assert (link.alpha_us, link.beta_us_per_mb, link.ports) == (26.0, 32.8, ())
    assert topology.name == "my_ndv2-x2"
    assert topology.node_of == (0,) * 8 + (1,) * 8
    assert topology.symmetry == (tuple((rank + 8) % 16 for rank in range(16)),)


def test_connection_declared_in_both_directions_is_made_once() -> None:
    topology = build(NDV2, 2, {0: [1], 1: [0]})
    assert [len(links_between(topology, *pair)) for pair in ((0, 9), (1, 8), (8, 1), (9, 0))] == [1, 1, 1, 1]
    assert links_between(topology, 0, 9)[0].beta_us_per_mb == 2 * 32.8, "two declared connections share one NIC"


@pytest.mark.parametrize(
    ("nics", "connections", "share"),
    [
        (1, {0: [1]}, 1),
        (1, {rank: [rank] for rank in range(8)}, 8),
        (1, {rank: list(range(8)) for rank in range(8)}, 64),
        (2, {0: [1]}, 0.5),
        (8, {rank: [rank] for rank in range(8)}, 1),
        (4, {0: [1, 2], 3: [4]}, 0.75),
    ],
)
def test_nics_are_split_over_the_declared_connections(
    nics: int, connections: dict[int, list[int]], share: float
) -> None:
    topology = build({**NDV2, "nics_per_node": nics}, 2, connections)
    costs = {link.beta_us_per_mb for link in topology.links if topology.node_of[link.src] != topology.node_of[link.dst]}
    assert costs == {32.8 * share}


@pytest.mark.parametrize("nodes", [3, 4])
def test_remote_links_of_a_rank_share_its_ports_from_three_nodes_on(nodes: int) -> None:
    topology = build(NDV2, nodes, {0: [1]})
    remote = [link for link in topology.links if topology.node_of[link.src] != topology.node_of[link.dst]]
    assert len(remote) == nodes * (nodes - 1) * 2
    for link in remote:
        here, there = topology.node_of[link.src], topology.node_of[link.dst]
        assert port_names(topology, link) == [
            f"node {here} rank {link.src} remote out",
            f"node {there} rank {link.dst} remote in",
        ]
    assert {(port.alpha_us, port.beta_us_per_mb) for port in topology.ports} == {(26.0, 32.8)}
    assert len(topology.ports) == nodes * 2 * 2, "ranks 0 and 1 of each node, out and in"
    inside = [link for link in topology.links if topology.node_of[link.src] == topology.node_of[link.dst]]
    assert all(link.ports == () for link in inside)


def test_switch_gives_its_ranks_ports_and_leaves_other_pairs_alone() -> None:
    topology = build(HUB, switches=[[0, 1], [2, 3]])
    (link,) = links_between(topology, 1, 0)
    assert port_names(topology, link) == ["node 0 rank 1 switch 0 out", "node 0 rank 0 switch 0 in"]
    (link,) = links_between(topology, 2, 3)
    assert port_names(topology, link) == ["node 0 rank 2 switch 1 out", "node 0 rank 3 switch 1 in"]
    assert links_between(topology, 1, 2)[0].ports == ()
    assert {(port.alpha_us, port.beta_us_per_mb) for port in topology.ports} == {(1.5, 6.0)}


def test_one_switch_over_all_ranks_makes_egress_and_ingress_take_turns() -> None:
    topology = build(HUB, switches=[[3, 1, 0, 2]])
    assert len(topology.ports) == 8
    assert len(topology.links) == 12
    sharing = Counter(port for link in topology.links for port in link.ports)
    assert set(sharing.values()) == {3}


def test_equal_switches_are_parallel_links_of_a_part_of_beta() -> None:
    topology = build(HUB, switches=[[0, 1, 2], [1, 2, 0]])
    lanes = links_between(topology, 0, 2)
    assert [(k.alpha_us, k.beta_us_per_mb) for k in lanes] == [(1.5, 3.0), (1.5, 3.0)]
    assert [port_names(topology, lane)[0] for lane in lanes] == [f"node 0 rank 0 switch {n} out" for n in (0, 1)]
    assert {(port.alpha_us, port.beta_us_per_mb) for port in topology.ports} == {(1.5, 3.0)}
    assert [link.beta_us_per_mb for link in links_between(topology, 0, 3)] == [6.0]


def test_parallel_links_of_a_custom_machine_share_the_ports_of_their_switch() -> None:
    topology = build(CUSTOM, switches=[[1, 2]])
    one, two = links_between(topology, 1, 2)
    assert one.ports == two.ports != ()
    assert links_between(topology, 2, 1) == [], "a switch adds no link that the profile does not have"


def test_switch_port_is_as_fast_as_its_fastest_link() -> None:
    topology = build(NDV2, switches=[[0, 1, 2, 3]])
    out = next(port for port in topology.ports if port.name == "node 0 rank 0 switch 0 out")
    assert (out.alpha_us, out.beta_us_per_mb) == (3.0, 7.18)
    (slow,) = topology.links_between[0, 2]
    assert chunk_cost(topology, slow) == pytest.approx(17.38, rel=1e-15)


def test_rotation_of_the_nodes_is_true(is_automorphism: Callable[[Topology, tuple[int, ...]], bool]) -> None:
    for topology in (build(NDV2, 3, {0: [1], 4: [5]}), build(HUB, 2, {1: [0]}, [[0, 1, 2, 3]] * 2)):
        assert [is_automorphism(topology, image) for image in topology.symmetry] == [True]


def test_profile_without_network_is_one_node(write_json: Callable[..., Path]) -> None:
    alone = {key: value for key, value in HUB.items() if key not in REMOTE}
    loaded = read_profile(write_json(alone))
    assert loaded.remote is None
    assert profile_topology(loaded, nodes=1, connections={0: [0]}, switches=()).num_ranks == 4
    with pytest.raises(InputError, match="hub has no nics_per_node, remote_alpha and remote_beta, which 2 nodes need"):
        profile_topology(loaded, nodes=2, connections={0: [0]}, switches=())


def test_ndv2_has_one_nic_when_its_profile_does_not_say() -> None:
    value = {key: item for key, item in NDV2.items() if key != "nics_per_node"}
    topology = build(value, 2, {0: [0]})
    assert links_between(topology, 0, 8)[0].beta_us_per_mb == 32.8


def broken(base: dict[str, Any], key: str, new: Any) -> dict[str, Any]:
    value = copy.deepcopy(base)
    if new is ...:
        del value[key]
    else:
        value[key] = new
    return value


@pytest.mark.parametrize(
    ("base", "key", "new", "field", "words"),
    [
        (NDV2, "name", ..., "name", "is missing"),
        (NDV2, "gpus_per_node", ..., "gpus_per_node", "is missing"),
        (NDV2, "gpus_per_node", 0, "gpus_per_node", "at least 1"),
        (NDV2, "gpus_per_node", 4, "gpus_per_node", "two betas are TACCL's NDv2, which has 8 GPUs"),
        (NDV2, "alpha", ..., "alpha", "is missing"),
        (NDV2, "alpha", -1, "alpha", "at least 0"),
        (NDV2, "node_betas_list", ..., "node_betas_list", "is missing"),
        (NDV2, "node_invbws_list", ..., "node_invbws_list", "is missing"),
        (NDV2, "node_betas_list", [1, 2, 3], "node_betas_list", "found 3 costs; 1 is for DGX2"),
        (NDV2, "node_betas_list", [7], "node_invbws_list", "found 2 costs, but node_betas_list has 1"),
        (NDV2, "node_invbws_list", [10.18, 14], "node_invbws_list.1", "found 14, less than its beta 14.38"),
        (NDV2, "node_betas_list", [1, "2"], "node_betas_list.1", "a finite number is needed"),
        (NDV2, "nics_per_node", 0, "nics_per_node", "at least 1"),
        (NDV2, "remote_alpha", ..., "remote_alpha", "is missing"),
        (NDV2, "remote_beta", -2, "remote_beta", "at least 0"),
        (NDV2, "remote_invbw", "x", "remote_invbw", "a finite number is needed"),
        (NDV2, "remote_betas", 1, "remote_betas", "is not a known field"),
        (HUB, "nics_per_node", ..., "nics_per_node", "is missing"),
        (HUB, "links", [], "links", "found 0 rows"),
        (CUSTOM, "betas", ..., "betas", "is missing"),
        (CUSTOM, "links", [[0, 1], [1, 0]], "links", "found 2 rows, one for each of the 3 GPUs"),
        (CUSTOM, "links", [[0, 0, 1], [1, 0], [0, 2, 0]], "links.1", "found 2 numbers, one for each of the 3 GPUs"),
        (CUSTOM, "links", [[0, 0, 1], [1, 0, 0], [0, 1.5, 0]], "links.2.1", "a number of parallel links is whole"),
        (CUSTOM, "links", [[1, 0, 1], [1, 0, 0], [0, 2, 0]], "links.0.0", "a rank has no link to itself"),
        (CUSTOM, "links", [[0, 0, -1], [1, 0, 0], [0, 2, 0]], "links.0.2", "at least 0"),
        (CUSTOM, "links", 3, "links", "a list [...] is needed"),
        (CUSTOM, "invbws", [[0, 0, 3], [2.5, 0, 0], [0, 3, 0]], "invbws.0.2", "found 3, less than its beta 4"),
        (CUSTOM, "node_betas_list", [1], "node_betas_list", "is not a known field"),
    ],
)
def test_broken_profile_is_refused_with_its_field(
    write_json: Callable[..., Path], base: dict[str, Any], key: str, new: Any, field: str, words: str
) -> None:
    path = write_json(broken(base, key, new))
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert (caught.value.path, caught.value.field) == (str(path), field)
    assert words in caught.value.what


def test_costs_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"node_invbws_list.0: alpha and beta are both 0"):
        profile({**HUB, "node_betas_list": [0], "node_invbws_list": [0]})
    with pytest.raises(InputError, match="remote_beta: remote_alpha and remote_beta are both 0"):
        profile({**HUB, "remote_alpha": 0, "remote_beta": 0})


@pytest.mark.parametrize(
    ("nodes", "connections", "switches", "words"),
    [
        (0, {}, (), "found 0 nodes"),
        (2, {}, (), "no connection between the nodes is declared"),
        (2, {0: []}, (), "no connection between the nodes is declared"),
        (2, {0: [4]}, (), "the connection 0 -> 4: rank 4 does not exist, hub has the local ranks 0..3"),
        (2, {-1: [0]}, (), "the connection -1 -> 0: rank -1 does not exist"),
        (2, {0: [1, 1]}, (), "the connection 0 -> 1 is declared twice"),
        (1, {}, [[0, 4]], "switch 0: rank 4 does not exist"),
        (1, {}, [[0]], r"switch 0 joins 1 rank\(s\); a switch needs at least two"),
        (1, {}, [[]], r"switch 0 joins 0 rank\(s\)"),
        (1, {}, [[0, 1, 0]], "switch 0 names a rank twice"),
        (1, {}, [[0, 1], [2, 3], [1, 2, 3]], "switches 0 and 2 share rank 1 but not all ranks"),
    ],
)
def test_words_of_a_sketch_that_do_not_fit_are_refused(nodes: int, connections: Any, switches: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        profile_topology(profile(HUB), nodes=nodes, connections=connections, switches=switches)


def test_profile_with_a_rank_that_nothing_reaches_is_refused() -> None:
    lonely = {**CUSTOM, "links": [[0, 0, 0], [1, 0, 0], [0, 2, 0]]}
    with pytest.raises(InputError, match="rank 0 cannot be reached from rank 1"):
        build(lonely)


@settings(max_examples=40)
@given(
    st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, unique=True), min_size=1),
    st.integers(2, 4),
)
def test_reversed_machine_has_the_same_links_and_shares(connections: dict[int, list[int]], nodes: int) -> None:
    """Reductions run backwards over the connections, so turning all links around must give the same machine."""
    topology = build(HUB, nodes, connections, [[0, 1, 2, 3]])
    there = Counter((k.src, k.dst, k.alpha_us, k.beta_us_per_mb) for k in topology.links)
    back = Counter((k.dst, k.src, k.alpha_us, k.beta_us_per_mb) for k in topology.links)
    assert there == back
    shared = {frozenset((k.src, k.dst)) for k in topology.links if k.ports}
    assert len(shared) * 2 == sum(1 for k in topology.links if k.ports)
    declared = sum(len(receivers) for receivers in connections.values())
    remote = {k.beta_us_per_mb for k in topology.links if topology.node_of[k.src] != topology.node_of[k.dst]}
    assert remote == {32.8 * (declared / 2)}
