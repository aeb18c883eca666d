"""Bounds where switches multicast and add up: hand-made machines, what falls and what stays, and plans that are not faster."""

from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.synthesis.bounds.in_network import helpful_switches, without_messages
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port, Switch, Topology
from tests.instances import MB

HELPED = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.BROADCAST, Kind.REDUCE)


def plane(num_ranks, *, multicast=True, reduce=True, link_beta=1.0, joined=None, symmetry=()):
    """Ranks on a switch: ports of 1 us and 1 us a MB, links of 1 us and `link_beta`."""
    ports = tuple(Port(f"{rank} {way}", 1.0, 1.0) for way in ("out", "in") for rank in range(num_ranks))
    pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    links = tuple(Link(a, b, 1.0, link_beta, 0.0, (a, num_ranks + b)) for a, b in pairs)
    switches = (Switch("plane", tuple(joined or range(num_ranks)), multicast, reduce),)
    return Topology("plane", "made up", (0,) * num_ranks, ports, links, symmetry, switches=switches)


def time_us(topology, kind, size_mb, root=0):
    return DemandBounds.by_switch(topology, kind, root).at(size_mb * MB).time_us


@pytest.mark.parametrize(
    ("kind", "share"),
    [("allreduce", 1), ("broadcast", 1), ("reduce", 1), ("allgather", 3 / 4), ("reducescatter", 3 / 4)],
)
def test_each_port_carries_everything_once(kind, share):
    """AllReduce by messages carries 2 (4 - 1) / 4 of everything; of an AllGather no port is spared what others have."""
    assert time_us(plane(4), Kind(kind), 100) == pytest.approx(1 + 100 * share)


def test_many_ranks_are_told_and_heard_at_once():
    """By messages 16 ranks take 4 rounds of 1 us; a switch does it in one."""
    topology = plane(16)
    for kind in HELPED:
        assert time_us(topology, kind, 1e-6) == pytest.approx(1, rel=1e-3)
        assert DemandBounds.of(topology, kind).at(1).time_us >= 4


def test_links_through_the_switch_do_not_limit_it_but_others_do():
    """With ports of 1 us a MB and links of 9, messages from one rank to seven get through at 9 / 7 us a MB at best."""
    slow = plane(8, link_beta=9.0)
    assert time_us(slow, Kind.BROADCAST, 700) == pytest.approx(701)
    assert DemandBounds.of(slow, Kind.BROADCAST).at(700 * MB).time_us == pytest.approx(901, rel=2e-3)
    without_rank_7 = plane(8, link_beta=9.0, joined=range(7))
    assert time_us(without_rank_7, Kind.BROADCAST, 700) == pytest.approx(901, rel=2e-3)


def test_between_nodes_sums_are_passed_on_as_before():
    """Four nodes with 400 GB/s each: 2 (4 - 1) transfers of 1 GB through 4 nodes' ports."""
    found = DemandBounds.by_switch(load_topology("ndv5-x4"), Kind.ALLREDUCE).at(1e9)
    assert found.reason == "bandwidth: 2(4-1) transfers of everything between nodes"
    assert found.time_us == pytest.approx(6 * 1e6 / 400 / 4, rel=0.01)
    across = load_topology("ndv5-x4")
    wide = Topology(
        "wide", "made up", across.node_of, across.ports, across.links,
        switches=(Switch("all", tuple(range(32)), True, True),),
    )  # fmt: skip
    assert "transfers" not in DemandBounds.by_switch(wide, Kind.ALLREDUCE).at(1e9).reason


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("kind", HELPED)
@pytest.mark.parametrize("size_bytes", [1 << 10, 1 << 20, 1 << 30])
def test_what_holds_with_switches_holds_for_messages_too(kind, nodes, size_bytes):
    topology = load_topology("ndv5", nodes)
    less = DemandBounds.by_switch(topology, kind).at(size_bytes).time_us
    assert 0 < less <= DemandBounds.of(topology, kind).at(size_bytes).time_us * (1 + 1e-9)


@pytest.mark.parametrize(
    ("abilities", "kinds"),
    [
        ({"multicast": False}, {"allreduce", "reducescatter", "reduce"}),
        ({"reduce": False}, {"allreduce", "allgather", "broadcast"}),
        ({"multicast": False, "reduce": False}, set()),
        ({"joined": (0,)}, set()),
    ],
)
def test_a_switch_helps_with_what_it_can_do(abilities, kinds):
    topology = plane(3, **abilities)
    assert {str(kind) for kind in Kind if helpful_switches(topology, kind)} == kinds
    with pytest.raises(InputError, match="no switch of topology plane multicasts or reduces what alltoall could use"):
        DemandBounds.by_switch(topology, Kind.ALLTOALL)


def test_symmetry_that_moves_a_switch_is_not_used():
    swap, turn = (1, 0, 2, 3), (1, 2, 3, 0)
    topology = plane(4, joined=(0, 1), symmetry=(swap, turn))
    found, _ = without_messages(topology, topology.switches)
    assert found.symmetry == (swap,)


def test_what_a_switch_has_been_given_need_not_take_the_slowest_way_on():
    """Links of rank 1 have 7 us of latency and others none; rank 0 has the switch add up and store, which passes none of these."""
    even = plane(3)
    links = tuple(replace(link, latency_us=7.0 if link.src == 1 else 0.0) for link in even.links)
    assert time_us(replace(even, links=links), Kind.ALLREDUCE, 1e-6) == pytest.approx(1, rel=1e-3)
