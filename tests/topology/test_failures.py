"""Single failures: what may fail, and which failures are alike."""

from dataclasses import replace

import pytest

from taccl_py.errors import InputError
from taccl_py.topology.automorphism import image_of_links
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import degraded
from taccl_py.topology.failures import FailureKind, FailureSort, failure_classes, parse_sorts, single_failures
from taccl_py.topology.model import Link, Port, Topology


def failures(machine, sorts):
    topology = load_topology(machine) if isinstance(machine, str) else machine
    return topology, single_failures(topology, parse_sorts(sorts))


def counted(machine, sorts, root=None):
    topology, found = failures(machine, sorts)
    return [(each.first.what, len(each.images)) for each in failure_classes(topology, found, root)]


def test_sorts_are_read_as_they_are_written():
    assert parse_sorts("nic, gpu-port:0.25") == (
        FailureSort(FailureKind.NIC), FailureSort(FailureKind.GPU_PORT, 0.25),
    )  # fmt: skip
    assert [str(sort) for sort in parse_sorts("gpu-link,nic:0.5")] == ["gpu-link", "nic:0.5"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nics", "did you mean nic"), ("", "no kind"), ("nic,nic", "twice"), ("nic:1", "above 0 and below 1"),
        ("nic:half", "above 0 and below 1"), ("nic:0", "above 0"),
    ],
)  # fmt: skip
def test_other_words_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_sorts(text)


def test_every_nic_may_fail_with_both_its_directions():
    topology, found = failures("ndv4-x2", "nic")
    assert [one.name for one in found] == [f"node {node} ib{nic}" for node in range(2) for nic in range(8)]
    assert {topology.ports[port].name for port in found[3].ports} == {"node 0 ib3 in", "node 0 ib3 out"}
    assert found[3].degradation.missing_ports == ("node 0 ib3 *",)
    assert found[3].what == "node 0 ib3 lost"
    gone = degraded(topology, found[3].degradation)
    # The rank behind it has lost its 8 links to the other node, and those from there.
    assert len(topology.links) - len(gone.links) == 16


def test_the_nic_is_the_port_next_to_the_network_and_not_the_uplink_before_it():
    # ndv2: one NIC of a node behind PCIe slots and CPUs, which its ranks share.
    _, found = failures("ndv2-x2", "nic")
    assert [one.name for one in found] == ["node 0 ib0", "node 1 ib0"]


def test_links_between_gpus_are_those_without_ports_both_ways():
    topology, found = failures("dgx1", "gpu-link:0.5")
    assert len(found) == 16  # of the hybrid cube mesh: 8 GPUs with 4 neighbours each
    first = found[0]
    assert (first.name, first.what) == ("link 0-1", "link 0-1 at 0.5")
    assert {(topology.links[index].src, topology.links[index].dst) for index in first.links} == {(0, 1), (1, 0)}


def test_names_are_in_the_order_of_their_numbers():
    _, found = failures("dgx2", "gpu-port:0.5")
    assert [one.name for one in found][9:11] == ["node 0 rank 9 nvswitch", "node 0 rank 10 nvswitch"]


@pytest.mark.parametrize(
    ("machine", "sorts", "words"),
    [
        ("dgx1", "nic", "no nic that could fail"), ("ndv4", "gpu-link", "use gpu-port"), ("ring:4", "gpu-port", "use gpu-link"),
    ],
)  # fmt: skip
def test_what_a_machine_does_not_have_is_refused(machine, sorts, words):
    with pytest.raises(InputError, match=words):
        failures(machine, sorts)


@pytest.mark.parametrize(
    ("machine", "sorts", "classes"),
    [
        ("ndv4-x8", "nic", [("node 0 ib0 lost", 64)]),
        ("ndv4-x2", "nic,gpu-port:0.5", [("node 0 ib0 lost", 16), ("node 0 rank 0 nvswitch at 0.5", 16)]),
        ("mi300x-x2", "gpu-link", [("link 0-1 lost", 56)]),
        ("torus:4x4", "gpu-link", [("link 0-1 lost", 16), ("link 0-4 lost", 16)]),
    ],
)  # fmt: skip
def test_failures_that_symmetry_takes_to_each_other_are_one_class(machine, sorts, classes):
    assert counted(machine, sorts) == classes


def test_a_root_stays_where_it_is():
    # By hand: the NIC of the root, the others of its node, that of the same number elsewhere, and the rest.
    assert [number for _, number in counted("ndv4-x8", "nic", 0)] == [1, 7, 7, 49]


@pytest.mark.parametrize(
    ("machine", "sorts", "root"),
    [("ndv4-x3", "nic", None), ("mi300x", "gpu-link", 2), ("torus:3x4", "gpu-link", None), ("mi250x-x2", "nic,gpu-link", None)],
)  # fmt: skip
def test_every_renaming_keeps_the_machine_and_takes_the_first_failure_to_the_other(machine, sorts, root):
    topology, found = failures(machine, sorts)
    classes = failure_classes(topology, found, root)
    assert sorted(image.failure.what for each in classes for image in each.images) == sorted(one.what for one in found)
    for each in classes:
        for image in each.images:
            links, ports = image_of_links(topology, image.renaming)
            assert frozenset(links[list(each.first.links)].tolist()) == image.failure.links
            assert frozenset(ports[list(each.first.ports)].tolist()) == image.failure.ports
            assert root is None or image.renaming[root] == root


def test_a_machine_that_names_no_symmetry_is_searched_for_some():
    topology, found = failures("ndv4-x2", "nic")
    forgotten = replace(topology, symmetry=())
    assert [len(each.images) for each in failure_classes(forgotten, found, None)] == [16]


def test_ports_of_any_name_are_told_by_the_links_that_share_them():
    # Two nodes of two ranks; one NIC each whose ports have names of their own.
    names = ["left-tx", "left-rx", "right-tx", "right-rx"]
    pairs = [(0, 1), (1, 0), (2, 3), (3, 2)]
    inside = [Link(src, dst, 1.0, 1.0) for src, dst in pairs]
    across = [Link(src, dst, 2.0, 10.0, 0.0, (0, 3) if src < 2 else (2, 1)) for src in range(4) for dst in range(4) if src // 2 != dst // 2]  # fmt: skip
    topology = Topology("own", "", (0, 0, 1, 1), tuple(Port(name, 2.0, 10.0) for name in names), (*inside, *across))
    _, found = failures(topology, "nic:0.5")
    assert [one.name for one in found] == sorted(names)
    assert found[0].degradation.slow_ports[0].pattern == "left-rx"
    assert counted(topology, "nic:0.5") == [("left-rx at 0.5", 2), ("left-tx at 0.5", 2)]
