from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, canonical_json, parse_json
from taccl_py.topology.catalog import data_dir, list_topologies, load_topology
from taccl_py.topology.files import (
    is_taccl_profile,
    read_template,
    read_topology,
    require_connected,
    template_to_json,
    topology_from_fields,
    topology_to_json,
)
from taccl_py.topology.model import Link, Medium, Port, Switch, Topology
from taccl_py.topology.template import (
    AlphaBeta,
    NetworkReach,
    Nic,
    NodeNetwork,
    NodePort,
    NodeTemplate,
    PortSide,
    Side,
    instantiate,
)
from taccl_py.units import MAX_COST_US, MIN_COST_US

WriteJson = Callable[..., Path]

NODE_FORM: dict[str, Any] = {
    "format": "taccl-topology",
    "version": 1,
    "name": "toy",
    "description": "three ranks",
    "source": "invented",
    "node": {
        "ranks": 3,
        "links": [
            {"from": 0, "to": [1, 2], "both_ways": True, "alpha_us": 0.5, "beta_us_per_mb": 20, "ports": ["bus.out"]},
            {"from": 1, "to": [2], "alpha_us": 0.5, "bandwidth_gbps": 40, "latency_us": 0.25, "width": 2},
        ],
        "switches": [{"name": "plane", "ranks": [0, 2], "alpha_us": 0.1, "beta_us_per_mb": 5}],
        "nics": [
            {"name": "ib0", "ranks": "all", "alpha_us": 2.6, "beta_us_per_mb": 105, "via": {"1": ["up"]}, "plane": "a"}
        ],
        "ports": [
            {"name": "bus", "alpha_us": 0, "bandwidth_gbps": 12.5},
            {"name": "up", "alpha_us": 0, "beta_us_per_mb": 80},
        ],
        "symmetry": [[0, 1, 2]],
    },
    "network": {"reach": "all", "latency_us": 0.5},
}

EXPANDED: dict[str, Any] = {
    "format": "taccl-topology",
    "version": 1,
    "name": "pair",
    "source": "invented",
    "node_of": [0, 1],
    "ports": [
        {"name": "a", "alpha_us": 0.1, "beta_us_per_mb": 5},
        {"name": "b", "alpha_us": 0.1, "beta_us_per_mb": 5},
    ],
    "links": [
        {"from": 1, "to": 0, "alpha_us": 0.5, "beta_us_per_mb": 20, "latency_us": 1.5},
        {"from": 0, "to": 1, "alpha_us": 0.5, "beta_us_per_mb": 20, "ports": [1, 0]},
    ],
    "symmetry": [[1, 0]],
}


def changed(value: dict[str, Any], pointer: str, new: Any) -> dict[str, Any]:
    """A copy with one place set to a new value, or removed when the new value is Ellipsis."""
    result = copy.deepcopy(value)
    *way, last_part = pointer.split(".")
    holder: Any = result
    for part in way:
        holder = holder[int(part) if isinstance(holder, list) else part]
    last: Any = int(last_part) if isinstance(holder, list) else last_part
    if new is ...:
        del holder[last]
    elif isinstance(holder, list) and last == len(holder):
        holder.append(new)
    else:
        holder[last] = new
    return result


def read_expanded(value: Any) -> Topology:
    return topology_from_fields(Fields(value, "test.json"))


def test_the_expanded_form_may_give_bandwidths_and_a_description():
    by_rate = copy.deepcopy(EXPANDED)
    by_rate["description"] = "two ranks"
    for item in (*by_rate["ports"], *by_rate["links"]):
        item["bandwidth_gbps"] = 1000 / item.pop("beta_us_per_mb")
    assert topology_from_fields(Fields(by_rate, "file")) == topology_from_fields(Fields(EXPANDED, "file"))


def test_node_form_gives_links_with_their_costs_and_ports(write_json: WriteJson) -> None:
    topology = read_topology(write_json(NODE_FORM))
    assert (topology.name, topology.source, topology.num_ranks) == ("toy", "invented", 3)
    names = [port.name for port in topology.ports]

    def between(src: int, dst: int) -> list[tuple[float, float, float, list[str]]]:
        links = [topology.links[i] for i in topology.links_between[src, dst]]
        return [(k.alpha_us, k.beta_us_per_mb, k.latency_us, [names[p] for p in k.ports]) for k in links]

    assert between(0, 1) == [(0.5, 20.0, 0.0, ["node 0 bus out"])]
    assert between(1, 0) == [(0.5, 20.0, 0.0, ["node 0 bus in"])], "the way back uses the other direction"
    assert between(1, 2) == [(0.5, 25.0, 0.25, [])] * 2, "width 2, and 40 GB/s are 25 us/MB"
    assert (2, 1) not in topology.links_between, "both_ways was not asked for"
    assert between(0, 2)[1] == (0.1, 5.0, 0.0, ["node 0 rank 0 plane out", "node 0 rank 2 plane in"])
    assert topology.ports[names.index("node 0 bus out")] == Port("node 0 bus out", 0.0, 80.0)
    assert not any("ib0" in name for name in names), "one node uses no network"


def test_a_reverse_link_names_its_ports_in_the_opposite_order(write_json: WriteJson) -> None:
    value = changed(NODE_FORM, "node.links.0.ports", ["bus.out", "up.in"])
    topology = read_topology(write_json(value))
    (back,) = topology.links_between[1, 0]
    assert [topology.ports[p].name for p in topology.links[back].ports] == ["node 0 up out", "node 0 bus in"]


def test_nodes_are_joined_by_their_network(write_json: WriteJson) -> None:
    topology = read_topology(write_json(NODE_FORM), 2)
    (index,) = topology.links_between[1, 5]
    link = topology.links[index]
    assert (link.alpha_us, link.beta_us_per_mb, link.latency_us) == (2.6, 105.0, 0.5)
    assert [topology.ports[p].name for p in link.ports] == ["node 0 up out", "node 0 ib0 out", "node 1 ib0 in"]


def test_template_is_read_without_being_instantiated(write_json: WriteJson) -> None:
    template = read_template(write_json(NODE_FORM))
    assert (template.num_ranks, template.description, len(template.links)) == (3, "three ranks", 6)
    assert template.nics[0].ranks == (0, 1, 2)
    assert not template.switches[0].multicast


def test_a_machine_keeps_its_switches_that_can_do_more(write_json: WriteJson) -> None:
    value = changed(changed(NODE_FORM, "node.switches.0.multicast", True), "node.switches.0.reduce", True)
    machine = read_topology(write_json(value), 2)
    first = machine.node_ranks[0]
    assert machine.switches[0] == Switch("node 0 plane", (first[0], first[2]), multicast=True, reduce=True)
    assert [one.name for one in machine.switches] == ["node 0 plane", "node 1 plane"]
    again = read_topology(write_json(topology_to_json(machine)))
    assert again == machine


@pytest.mark.parametrize(
    ("ranks", "says"),
    [([0], "at least two ranks, found 1"), ([0, 0], "names a rank twice"), ([0, 9], "found 9, but there are")],
)
def test_a_switch_of_a_machine_joins_ranks_that_it_has(write_json: WriteJson, ranks: list[int], says: str) -> None:
    value = topology_to_json(read_topology(write_json(NODE_FORM)))
    value["switches"] = [{"name": "plane", "ranks": ranks, "multicast": True, "reduce": False}]
    with pytest.raises(InputError, match=says):
        read_topology(write_json(value))


def test_switch_abilities_are_read(write_json: WriteJson) -> None:
    value = changed(changed(NODE_FORM, "node.switches.0.multicast", True), "node.switches.0.reduce", True)
    switch = read_template(write_json(value)).switches[0]
    assert (switch.multicast, switch.reduce) == (True, True)


def test_a_rank_of_a_switch_may_have_a_cost_of_its_own(write_json: WriteJson) -> None:
    slow = {"2": {"alpha_us": 0.2, "bandwidth_gbps": 100}}
    template = read_template(write_json(changed(NODE_FORM, "node.switches.0.rank_costs", slow)))
    assert [template.switches[0].cost_of(rank) for rank in (0, 2)] == [AlphaBeta(0.1, 5), AlphaBeta(0.2, 10)]
    machine = instantiate(template)
    costs = {port.name: port.beta_us_per_mb for port in machine.ports if "plane" in port.name}
    assert costs == {
        "node 0 rank 0 plane out": 5, "node 0 rank 0 plane in": 5, "node 0 rank 2 plane out": 10, "node 0 rank 2 plane in": 10,
    }  # fmt: skip
    through = [link for link in machine.links if {"plane" in machine.ports[port].name for port in link.ports} == {True}]
    assert {(link.alpha_us, link.beta_us_per_mb) for link in through} == {(0.2, 10)}
    again = read_template(write_json(template_to_json(template)))
    assert again == template


def test_what_joins_the_ranks_is_unknown_where_the_file_does_not_say_it(write_json: WriteJson) -> None:
    for value in (NODE_FORM, EXPANDED):
        assert read_topology(write_json(value)).inside is Medium.UNKNOWN
    said = changed(NODE_FORM, "node.inside", "nvlink")
    assert read_topology(write_json(said)).inside is Medium.NVLINK
    for name in [entry.name for entry in list_topologies()] + ["ring:4", "hpn:2", "nvl72:1", "switch:4"]:
        assert load_topology(name).inside is Medium.NVLINK


def test_expanded_form_is_read_as_it_stands(write_json: WriteJson) -> None:
    topology = read_topology(write_json(EXPANDED))
    assert topology.links == (Link(0, 1, 0.5, 20.0, 0.0, (1, 0)), Link(1, 0, 0.5, 20.0, 1.5, ()))
    assert topology.ports == (Port("a", 0.1, 5.0), Port("b", 0.1, 5.0))
    assert (topology.node_of, topology.symmetry, topology.measured_chunk_bytes) == ((0, 1), ((1, 0),), None)


def test_the_size_that_costs_were_measured_with_is_read_and_written(write_json: WriteJson) -> None:
    for field, value, read in (
        ("measured_chunk_bytes", 64_000, 64_000),
        ("chunk_costs", True, 1_000_000),  # as files of earlier versions have it
        ("chunk_costs", False, None),
    ):
        topology = read_topology(write_json(EXPANDED | {field: value}))
        assert topology.measured_chunk_bytes == read
        assert topology_to_json(topology).get("measured_chunk_bytes") == read
        assert topology.reversed().measured_chunk_bytes == topology.subset((1, 0)).measured_chunk_bytes == read
        assert topology.default_bytes(3) == (1_000_000 if read is None else 3 * read)


def test_expanded_form_may_be_asked_for_with_the_nodes_that_it_has(write_json: WriteJson) -> None:
    path = write_json(EXPANDED)
    assert read_topology(path, 2) == read_topology(path)
    with pytest.raises(InputError, match="node_of: the machine has 2 nodes and cannot have 3"):
        read_topology(path, 3)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    num_ranks = draw(st.integers(1, 5))
    costs = st.just(0.0) | st.floats(MIN_COST_US, MAX_COST_US / 2)
    ports = tuple(Port(f"p {i}", draw(costs), draw(costs)) for i in range(draw(st.integers(0, 3))))
    links = []
    for src in range(num_ranks if num_ranks > 1 else 0):
        others = draw(st.lists(st.integers(0, num_ranks - 1).filter(lambda dst, src=src: dst != src), max_size=4))
        for dst in [(src + 1) % num_ranks, *others]:
            used = draw(st.lists(st.sampled_from(range(len(ports))), max_size=3, unique=True)) if ports else []
            links.append(Link(src, dst, draw(costs), draw(costs) + 1e-6, draw(costs), tuple(used)))
    symmetry = draw(st.lists(st.permutations(range(num_ranks)).map(tuple), max_size=2).map(tuple))
    node_of = tuple(sorted(draw(st.sampled_from([[0] * num_ranks, list(range(num_ranks))]))))
    return Topology(
        "any",
        draw(st.sampled_from(["", "x"])),
        node_of,
        ports,
        tuple(links),
        symmetry,
        draw(st.none() | st.integers(1, 1 << 62)),
    )


@settings(max_examples=80)
@given(topologies())
def test_writing_and_reading_a_machine_changes_nothing(topology: Topology) -> None:
    text = canonical_json(topology_to_json(topology))
    again = read_expanded(parse_json(text, "test.json"))
    assert again == topology
    assert canonical_json(topology_to_json(again)) == text


def test_instantiated_machine_survives_being_written(write_json: WriteJson) -> None:
    topology = read_topology(write_json(NODE_FORM), 3)
    assert read_topology(write_json(topology_to_json(topology), "expanded.json")) == topology


def test_a_file_that_was_changed_is_read_again(write_json: WriteJson) -> None:
    before = read_topology(write_json(NODE_FORM), 2)
    assert read_topology(write_json(NODE_FORM), 2) == before
    after = read_topology(write_json({**NODE_FORM, "source": "measured"}), 2)
    assert (before.source, after.source) == ("invented", "measured")


def test_both_examples_of_the_readme_can_be_read(write_json: WriteJson) -> None:
    text = (data_dir("topologies") / "README.md").read_text(encoding="utf-8")
    node_form, expanded = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    toy = read_topology(write_json(node_form), 2)
    (index,) = toy.links_between[3, 4]
    names = [toy.ports[port].name for port in toy.links[index].ports]
    assert names == ["node 0 uplink out", "node 0 ib1 out", "node 1 ib0 in"], "as the text says"
    assert canonical_json(topology_to_json(read_topology(write_json(expanded)))) == expanded


# Broken files: (place, new value or ... to remove it, field named by the error, words of the error)
BROKEN_NODE_FORM = [
    ("format", "taccl-schedule", "format", "found 'taccl-schedule'"),
    ("version", 2, "version", "found 2, this program reads version 1"),
    ("name", "", "name", "a text is needed"),
    ("source", ..., "source", "is missing"),
    ("nodes", 2, "nodes", "is not a known field"),
    ("node.ranks", 0, "node.ranks", "found 0, a whole number of at least 1"),
    ("node.ranks", 1 << 30, "node.ranks", "at most"),
    ("node.gpus", 2, "node.gpus", "is not a known field"),
    ("node.links.1.alpha_us", -1, "node.links.1.alpha_us", "found -1, a number of at least 0"),
    ("node.links.1.alpha_us", "0.5", "node.links.1.alpha_us", "a finite number is needed"),
    ("node.links.0.beta_us_per_mb", ..., "node.links.0.beta_us_per_mb", "is missing"),
    ("node.links.1.beta_us_per_mb", 3, "node.links.1.bandwidth_gbps", "says the same as beta_us_per_mb"),
    ("node.links.1.bandwidth_gbps", 0, "node.links.1.bandwidth_gbps", "a number above 0"),
    ("node.links.1.bandwidth_gbps", 1e-310, "node.links.1.bandwidth_gbps", "is so small"),
    ("node.links.1.latency_us", -0.5, "node.links.1.latency_us", "at least 0"),
    ("node.links.0.to", [], "node.links.0.to", "found an empty list"),
    ("node.links.0.to", 1, "node.links.0.to", "a list [...] is needed"),
    ("node.links.0.to.1", 3, "node.links.0.to.1", "rank 3 does not exist, ranks are 0..2"),
    ("node.links.0.to.1", 0, "node.links.0.to.1", "joins two different ranks"),
    ("node.links.0.to.1", 1, "node.links.0.to", "the link 0 -> 1 stands twice"),
    ("node.links.0.from", -1, "node.links.0.from", "rank -1 does not exist"),
    ("node.links.0.both_ways", "yes", "node.links.0.both_ways", "true or false is needed"),
    ("node.links.0.ports.0", "bus", "node.links.0.ports.0", "write the port and its direction"),
    ("node.links.0.ports.0", "bos.out", "node.links.0.ports.0", "'bos' is not in node.ports (known: bus, up)"),
    ("node.links.0.ports.0", 7, "node.links.0.ports.0", "a text is needed"),
    ("node.links.1.width", 0, "node.links.1.width", "at least 1"),
    ("node.links.1.width", 10**9, "node.links.1.width", "at most 1024"),
    ("node.switches.0.ranks", [0], "node.switches.0.ranks", "at least two ranks, found 1"),
    (
        "node.switches.0.rank_costs",
        {"1": {"alpha_us": 0, "beta_us_per_mb": 9}},
        "node.switches.0.rank_costs.1",
        "'1' is not one of the ranks",
    ),
    ("node.switches.0.rank_costs", {"2": {"alpha_us": 0}}, "node.switches.0.rank_costs.2.beta_us_per_mb", "is missing"),
    ("node.inside", "copper", "node.inside", "use one of: nvlink, unknown, pcie, network"),
    ("node.switches.0.ranks", [0, 0], "node.switches.0.ranks.1", "rank 0 stands twice"),
    ("node.switches.0.ranks", "every", "node.switches.0.ranks", "a list [...] is needed"),
    ("node.switches.0.name", "pla ne", "node.switches.0.name", "use letters, digits"),
    ("node.switches.0.name", "ib0", "node.nics.0.name", "already the name of node.switches.0"),
    ("node.nics.0.ranks", [], "node.nics.0.ranks", "found an empty list"),
    ("node.nics.0.ranks", [5], "node.nics.0.ranks.0", "rank 5 does not exist"),
    ("node.nics.0.via", {"3": ["up"]}, "node.nics.0.via.3", "not one of the ranks that the NIC serves"),
    ("node.nics.0.via", {"01": ["up"]}, "node.nics.0.via.01", "not one of the ranks that the NIC serves"),
    ("node.nics.0.via.1.0", "bus.up", "node.nics.0.via.1.0", "'bus.up' is not in node.ports"),
    ("node.nics.0.via", ..., "node.ports.1", "no link and no NIC uses 'up'"),
    ("node.ports.2", {"name": "bus", "alpha_us": 1, "beta_us_per_mb": 1}, "node.ports.2.name", "name of node.ports.0"),
    ("node.ports.1.beta_us_per_mb", 0, "node.ports.1.beta_us_per_mb", "alpha and beta are both 0"),
    ("node.symmetry.0", [0, 1, 1], "node.symmetry.0", "is not a permutation of the ranks 0..2"),
    ("node.symmetry.0", [0, 1], "node.symmetry.0", "is not a permutation"),
    ("node.symmetry.0", "all", "node.symmetry.0", "a list [...] is needed"),
    ("network", ..., "network", "is missing"),
    ("network.reach", "some", "network.reach", "found 'some', use one of: all, rail"),
    ("network.speed", 1, "network.speed", "is not a known field"),
    ("node.nics", [], "node.ports.1", "no link and no NIC uses 'up'"),
]

BROKEN_EXPANDED = [
    ("version", "1", "version", "a whole number is needed"),
    ("name", ..., "name", "is missing"),
    ("node_of", [], "node_of", "found an empty list"),
    ("node_of", [0, 2], "node_of", "node 1 has no rank"),
    ("node_of.1", -1, "node_of.1", "at least 0"),
    ("ports.1.name", "a", "ports.1.name", "'a' is already the name of port 0"),
    ("ports.0.alpha_us", -0.1, "ports.0.alpha_us", "at least 0"),
    ("ports.0.width", 1, "ports.0.width", "is not a known field"),
    ("links.0.from", 2, "links.0.from", "rank 2 does not exist, ranks are 0..1"),
    ("links.0.to", 1, "links.0.to", "joins two different ranks"),
    ("links.0.beta_us_per_mb", -20, "links.0.beta_us_per_mb", "found -20"),
    ("links.0.bandwidth_gbps", 50, "links.0.bandwidth_gbps", "says the same as beta_us_per_mb"),
    ("ports.0.bandwidth_gbps", 50, "ports.0.bandwidth_gbps", "says the same as beta_us_per_mb"),
    ("ports.0.beta_us_per_mb", ..., "ports.0.beta_us_per_mb", "is missing; add it or bandwidth_gbps"),
    ("description", 3, "description", "a text is needed"),
    ("links.1.ports.1", 2, "links.1.ports.1", "found 2, but there are 2 ports"),
    ("links.1.ports", ["a"], "links.1.ports.0", "a whole number is needed"),
    ("links.0.gbps", 3, "links.0.gbps", "is not a known field"),
    ("links.0", ..., "links", "rank 0 cannot be reached from rank 1"),
    ("links.1", ..., "links", "rank 1 cannot be reached from rank 0"),
    ("symmetry.0", [0, 0], "symmetry.0", "is not a permutation"),
    ("symmetry.0.1", True, "symmetry.0.1", "a whole number is needed"),
    ("measured_chunk_bytes", 0.5, "measured_chunk_bytes", "a whole number is needed"),
    ("chunk_costs", 1, "chunk_costs", "true or false is needed"),
    ("link", [], "link", "is not a known field"),
]


@pytest.mark.parametrize(
    ("base", "pointer", "new", "field", "words"),
    [(NODE_FORM, *case) for case in BROKEN_NODE_FORM] + [(EXPANDED, *case) for case in BROKEN_EXPANDED],
    ids=[f"node:{c[0]}={c[1]!r:.20}" for c in BROKEN_NODE_FORM]
    + [f"flat:{c[0]}={c[1]!r:.20}" for c in BROKEN_EXPANDED],
)
def test_broken_file_is_refused_with_its_place(
    write_json: WriteJson, base: dict[str, Any], pointer: str, new: Any, field: str, words: str
) -> None:
    path = write_json(changed(base, pointer, new))
    with pytest.raises(InputError) as caught:
        read_topology(path)
    assert (caught.value.path, caught.value.field) == (str(path), field)
    assert words in caught.value.what


def test_link_that_costs_nothing_is_refused(write_json: WriteJson) -> None:
    for base, pointer in ((EXPANDED, "links.0"), (NODE_FORM, "node.links.0")):
        free = changed(changed(base, f"{pointer}.alpha_us", 0), f"{pointer}.beta_us_per_mb", 0)
        with pytest.raises(InputError, match=f"{pointer}.beta_us_per_mb: alpha and beta are both 0"):
            read_topology(write_json(free))


def test_not_a_number_is_refused_with_the_file(write_json: WriteJson) -> None:
    text = json.dumps(NODE_FORM).replace("0.25", "NaN")
    with pytest.raises(InputError, match=r"machine.json: NaN is not a number in JSON"):
        read_topology(write_json(text))


def test_network_without_nics_is_refused(write_json: WriteJson) -> None:
    value = changed(changed(NODE_FORM, "node.nics", ...), "node.ports.1", ...)
    with pytest.raises(InputError, match="network: the node has no nics that could use it"):
        read_topology(write_json(value))


def test_node_without_network_cannot_be_multiplied(write_json: WriteJson) -> None:
    value = changed(changed(changed(NODE_FORM, "node.nics", ...), "node.ports.1", ...), "network", ...)
    path = write_json(value)
    assert read_topology(path, 1).num_ranks == 3
    with pytest.raises(InputError, match="toy has no NICs that could join 2 nodes") as caught:
        read_topology(path, 2)
    assert caught.value.path == str(path)


def test_rank_that_nothing_reaches_is_named(write_json: WriteJson) -> None:
    value = changed(changed(NODE_FORM, "node.ranks", 4), "node.symmetry", [])
    with pytest.raises(InputError, match="node: rank 3 cannot be reached from rank 0") as caught:
        read_topology(write_json(value))
    assert caught.value.path is not None


def test_ranks_of_a_node_may_be_joined_by_the_network_alone(write_json: WriteJson) -> None:
    value = changed(changed(NODE_FORM, "node.links", []), "node.switches", [])
    value = changed(value, "node.ports.0", ...)
    assert read_topology(write_json(value), 2).num_ranks == 6
    with pytest.raises(InputError, match="rank 1 cannot be reached"):
        read_topology(write_json(value), 1)


def test_connection_may_lead_over_other_ranks() -> None:
    one_way_ring = tuple(Link(i, (i + 1) % 5, 1.0, 1.0) for i in range(5))
    require_connected(Topology("ring", "", (0,) * 5, (), one_way_ring))
    with pytest.raises(InputError, match="rank 1 cannot be reached from rank 0"):
        require_connected(Topology("chain", "", (0,) * 5, (), one_way_ring[1:]))


def test_profile_of_taccl_is_recognised_and_sent_to_its_sketch(write_json: WriteJson) -> None:
    profile = {"name": "x", "gpus_per_node": 2, "alpha": 1, "node_betas_list": [1], "node_invbws_list": [2]}
    assert is_taccl_profile(profile)
    assert not any(is_taccl_profile(value) for value in (NODE_FORM, EXPANDED, [], "gpus_per_node", None))
    with pytest.raises(InputError, match=r"is a TACCL profile, .* together with a TACCL sketch"):
        read_topology(write_json(profile))


@pytest.mark.parametrize("name", [entry.name for entry in list_topologies()])
def test_a_node_that_is_written_reads_back_without_any_change(name: str, write_json: Callable[..., Path]) -> None:
    template = read_template(data_dir("topologies") / f"{name}.json")
    assert read_template(write_json(template_to_json(template))) == template


def test_directions_on_the_path_to_a_nic_are_kept(write_json: Callable[..., Path]) -> None:
    ways = {0: (PortSide("a", Side.OUT), PortSide("b", Side.IN))}
    node = NodeTemplate(
        "toy", "a toy", "invented", 1, nics=(Nic("ib0", (0,), AlphaBeta(1, 2), ways, "east"),),
        ports=(NodePort("a", AlphaBeta(0, 1)), NodePort("b", AlphaBeta(0, 1))), network=NodeNetwork(NetworkReach.RAIL, 0.5),
    )  # fmt: skip
    value = template_to_json(node)
    assert value["node"]["nics"][0]["via"] == {"0": ["a", "b.in"]}
    assert read_template(write_json(value)) == node
