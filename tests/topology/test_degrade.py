from __future__ import annotations

from dataclasses import replace

import pytest

from taccl_py.errors import InputError
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import (
    Degradation,
    LinkChoice,
    SlowLink,
    SlowPort,
    degraded,
    parse_link,
    parse_slow_link,
    parse_slow_port,
)
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Topology


def betas(machine: Topology) -> dict[tuple[int, int], float]:
    return {(link.src, link.dst): link.beta_us_per_mb for link in machine.links}


def test_links_are_written_for_both_directions_or_one() -> None:
    assert parse_link("0-3") == LinkChoice(0, 3)
    assert parse_link("0->3") == parse_link("0>3") == LinkChoice(0, 3, both_ways=False)
    assert parse_slow_link("0-3:0.5") == SlowLink(LinkChoice(0, 3), 0.5)
    assert [str(parse_link(text)) for text in ("1-2", "1->2")] == ["1-2", "1->2"]


@pytest.mark.parametrize("text", ["", "3", "0-0", "a-b", "0-3:0.5", "0--3", "-1-3"])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a link; write for example 0-3"):
        parse_link(text)


@pytest.mark.parametrize("text", ["0-3", "0-3:", "0-3:0", "0-3:1", "0-3:2", "0-3:half", "0-3:nan", "0-3:-1"])
def test_a_slow_link_has_a_part_of_its_bandwidth_left(text: str) -> None:
    with pytest.raises(InputError, match="is not a slow link"):
        parse_slow_link(text)


def test_missing_links_are_gone_in_the_directions_meant() -> None:
    ring = formula_topology("ring:4")
    assert set(betas(ring)) - set(betas(degraded(ring, Degradation((parse_link("0-1"),))))) == {(0, 1), (1, 0)}
    assert set(betas(ring)) - set(betas(degraded(ring, Degradation((parse_link("0->1"),))))) == {(0, 1)}


def test_slow_links_have_a_larger_beta_and_nothing_else_changes() -> None:
    ring = formula_topology("ring:4,beta_us_per_mb=20")
    slow = degraded(ring, Degradation(slow=(parse_slow_link("0->1:0.25"),)))
    assert betas(slow) == {**betas(ring), (0, 1): 80.0}
    assert slow.ports == ring.ports
    assert "slow 0->1:0.25" in slow.source


def test_only_the_symmetry_that_is_left_is_declared() -> None:
    ring = formula_topology("ring:4")
    halves = replace(ring, symmetry=((1, 2, 3, 0), (2, 3, 0, 1)))
    both = Degradation((parse_link("0->1"), parse_link("2->3")))
    assert degraded(halves, both).symmetry == ((2, 3, 0, 1),)
    assert degraded(halves, Degradation()) is halves


def test_a_link_that_is_not_there_cannot_be_missing() -> None:
    with pytest.raises(InputError, match="dgx1 has no link 0-5; rank 0 has links to 1, 2, 3, 4") as error:
        degraded(load_topology("dgx1"), Degradation((parse_link("0-5"),)))
    assert error.value.field == "missing"


def test_a_link_is_not_both_missing_and_slow() -> None:
    with pytest.raises(InputError, match="0-1 is missing as well as slow; leave one of both out") as error:
        degraded(load_topology("dgx1"), Degradation((parse_link("0-1"),), (parse_slow_link("0-1:0.5"),)))
    assert error.value.field == "slow"


def test_a_machine_that_falls_apart_is_refused() -> None:
    with pytest.raises(InputError, match="rank 2 cannot be reached from rank 0 any more"):
        degraded(formula_topology("mesh:3"), Degradation((parse_link("1-2"),)))


def test_a_missing_nic_takes_its_links_and_ports_along() -> None:
    whole = load_topology("ndv4", 2)
    broken = degraded(whole, Degradation(missing_ports=("node 1 ib3 *",)))
    gone = set(betas(whole)) - set(betas(broken))
    assert gone == {(11, rank) for rank in range(8)} | {(rank, 11) for rank in range(8)}
    assert {port.name for port in whole.ports} - {port.name for port in broken.ports} == {
        "node 1 ib3 in",
        "node 1 ib3 out",
    }
    used = {(link.src, link.dst): [whole.ports[port] for port in link.ports] for link in whole.links}
    assert all([broken.ports[port] for port in k.ports] == used[k.src, k.dst] for k in broken.links)
    assert broken.source.endswith("declared: without node 1 ib3 *")


def test_slow_ports_of_a_node_leave_the_other_nodes_as_they_are() -> None:
    whole = load_topology("ndv4", 2)
    slow = degraded(whole, Degradation(slow_ports=(parse_slow_port("node 1 *:0.5"),)))
    for before, after in zip(whole.ports, slow.ports, strict=True):
        share = 0.5 if before.name.startswith("node 1 ") else 1.0
        assert after.beta_us_per_mb == before.beta_us_per_mb / share
    assert slow.links == whole.links
    assert (*range(8, 16), *range(8)) in whole.symmetry
    assert (*range(8, 16), *range(8)) not in slow.symmetry


def test_a_port_that_is_not_there_is_named_with_some_that_are() -> None:
    with pytest.raises(
        InputError,
        match=r"ndv4-x2 has no port 'node 9 \*'; it has such as 'node 0 ib0 in', 'node 0 ib0 out', 'node 0 r",
    ) as error:
        degraded(load_topology("ndv4", 2), Degradation(missing_ports=("node 9 *",)))
    assert error.value.field == "missing_ports"
    with pytest.raises(InputError, match="has no port 'x'; it has none at all; name links instead"):
        degraded(formula_topology("ring:4"), Degradation(slow_ports=(SlowPort("x", 0.5),)))


@pytest.mark.parametrize("text", ["", "node 5 *", "node 5 *:", "node 5 *:1", ":0.5", "node 5 *:x"])
def test_a_slow_port_has_a_part_of_its_bandwidth_left(text: str) -> None:
    with pytest.raises(InputError, match="is not a slow port"):
        parse_slow_port(text)


def test_ports_without_which_a_rank_is_cut_off_cannot_be_missing() -> None:
    with pytest.raises(InputError, match="cannot be reached from rank 0 any more") as error:
        degraded(load_topology("ndv4", 2), Degradation(missing_ports=("node 1 ib* *",)))
    assert error.value.field == "missing_ports"


def test_a_switch_whose_links_are_not_all_there_only_passes_on() -> None:
    machine = load_topology("ndv5", 1)
    (switch,) = machine.switches
    assert (switch.ranks, switch.multicast, switch.reduce) == (tuple(range(8)), True, True)
    assert degraded(machine, Degradation(missing=(LinkChoice(0, 1),))).switches == ()
    assert degraded(machine, Degradation(slow=(SlowLink(LinkChoice(0, 1), 0.5),))).switches == (switch,)
