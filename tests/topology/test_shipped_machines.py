"""Facts about the machines in ``topologies/``, and rules that each of its files keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from taccl_py.topology.catalog import data_dir, list_topologies, load_topology
from taccl_py.topology.files import read_template
from taccl_py.topology.model import Link, Topology

NAMES = [entry.name for entry in list_topologies()]
MULTI_NODE = [entry.name for entry in list_topologies() if entry.multi_node]


@cache
def machine(name: str, nodes: int = 1) -> Topology:
    return load_topology(name, nodes)


def between(topology: Topology, src: int, dst: int) -> Link:
    (index,) = topology.links_between[src, dst]
    return topology.links[index]


def port_names(topology: Topology, src: int, dst: int) -> list[str]:
    return [topology.ports[port].name for port in between(topology, src, dst).ports]


def rates_gbps(topology: Topology) -> Counter[float]:
    return Counter(round(1000 / link.beta_us_per_mb, 6) for link in topology.links)


@pytest.mark.parametrize("name", NAMES)
def test_file_is_named_after_its_machine_and_names_its_sources(name: str) -> None:
    template = read_template(data_dir("topologies") / f"{name}.json")
    assert template.name == name
    assert len(template.source) > 80
    assert "/" + "work" not in template.source


@pytest.mark.parametrize(
    ("name", "nodes"), [(name, 1) for name in NAMES] + [(n, k) for n in MULTI_NODE for k in (2, 3)]
)
def test_symmetry_of_the_machine_is_true(
    is_automorphism: Callable[[Topology, tuple[int, ...]], bool], name: str, nodes: int
) -> None:
    topology = machine(name, nodes)
    for image in topology.symmetry:
        assert is_automorphism(topology, image), image
    assert len(topology.symmetry) >= 1


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_machine_are_alike_in_both_directions(name: str) -> None:
    topology = machine(name, 2 if name in MULTI_NODE else 1)
    for src, dst in topology.links_between:
        there, back = between(topology, src, dst), between(topology, dst, src)
        assert (there.alpha_us, there.beta_us_per_mb) == (back.alpha_us, back.beta_us_per_mb)


@pytest.mark.parametrize("name", ["ndv2", "dgx1"])
def test_hybrid_cube_mesh_has_four_neighbours_and_six_nvlinks_for_each_gpu(name: str) -> None:
    topology = machine(name)
    fast, slow = (between(topology, 0, 1), between(topology, 0, 2))
    assert slow.beta_us_per_mb == 2 * fast.beta_us_per_mb
    for rank in range(8):
        widths = [slow.beta_us_per_mb / link.beta_us_per_mb for link in topology.links if link.src == rank]
        assert sorted(widths) == [1, 1, 2, 2]


def test_ndv2_has_the_costs_of_its_profile() -> None:
    topology = machine("ndv2", 2)
    assert Counter((k.alpha_us, k.beta_us_per_mb) for k in topology.links) == {
        (0.3, 23.0): 32, (0.3, 46.0): 32, (2.6, 105.0): 128
    }  # fmt: skip
    assert between(topology, 1, 5).beta_us_per_mb == 46
    assert between(topology, 5, 7).beta_us_per_mb == 23


def test_ndv2_has_one_nic_behind_the_pcie_switch_of_gpus_0_and_1() -> None:
    topology = machine("ndv2", 2)
    assert port_names(topology, 0, 9) == ["node 0 ib0 out", "node 1 ib0 in"]
    assert port_names(topology, 3, 12) == ["node 0 pcie1 out", "node 0 ib0 out", "node 1 ib0 in", "node 1 pcie2 in"]
    assert port_names(topology, 2, 8)[0] == port_names(topology, 3, 8)[0]
    assert port_names(topology, 4, 8)[0] == port_names(topology, 5, 8)[0]
    assert port_names(topology, 6, 8)[0] == port_names(topology, 7, 8)[0] == "node 0 pcie3 out"
    uplink = next(port for port in topology.ports if port.name == "node 0 pcie1 out")
    assert 1000 / uplink.beta_us_per_mb == pytest.approx(12)


def test_dgx1_has_the_nvlinks_of_sccl() -> None:
    topology = machine("dgx1")
    assert rates_gbps(topology) == {25.0: 16, 50.0: 16}
    assert {link.alpha_us for link in topology.links} == {0.7}
    double = {(s, d) for s, d in topology.links_between if s < d and between(topology, s, d).beta_us_per_mb == 20}
    assert double == {(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)}


def test_dgx2_shares_each_nic_between_two_gpus() -> None:
    topology = machine("dgx2", 2)
    assert Counter((k.alpha_us, k.beta_us_per_mb) for k in topology.links) == {(0.3, 8.0): 480, (2.6, 105.0): 512}
    for rank in range(16):
        assert port_names(topology, rank, 16) == [f"node 0 ib{rank // 2} out", "node 1 ib0 in"]
    assert port_names(topology, 3, 5) == ["node 0 rank 3 nvswitch out", "node 0 rank 5 nvswitch in"]


@pytest.mark.parametrize(("name", "nvlink_gbps", "nic_gbps"), [("ndv4", 300, 25), ("ndv5", 450, 50)])
def test_switched_box_has_a_nic_for_every_gpu(name: str, nvlink_gbps: float, nic_gbps: float) -> None:
    topology = machine(name, 2)
    assert rates_gbps(topology) == {nvlink_gbps: 2 * 56, nic_gbps: 2 * 64}
    assert port_names(topology, 3, 13) == ["node 0 ib3 out", "node 1 ib5 in"]
    assert len(topology.ports) == 2 * (16 + 16)


def test_only_the_switch_of_ndv5_computes() -> None:
    able = {
        name
        for name in NAMES
        for switch in read_template(data_dir("topologies") / f"{name}.json").switches
        if switch.multicast and switch.reduce
    }
    assert able == {"ndv5"}


def test_mi250x_has_seven_xgmi_links_for_each_gcd() -> None:
    topology = machine("mi250x")
    assert rates_gbps(topology) == {200.0: 16, 100.0: 8, 50.0: 32}
    links = [sum(20 / k.beta_us_per_mb for k in topology.links if k.src == rank) for rank in range(16)]
    assert {round(count, 9) for count in links} == {7}
    assert all(between(topology, 2 * i, 2 * i + 1).beta_us_per_mb == 5 for i in range(8)), "two GCDs of one package"


def test_mi300x_joins_every_pair_directly() -> None:
    topology = machine("mi300x", 2)
    assert rates_gbps(topology) == {48.0: 2 * 56, 50.0: 2 * 64}
    assert between(topology, 2, 7).ports == ()
    assert port_names(topology, 2, 15) == ["node 0 nic2 out", "node 1 nic7 in"]
