from __future__ import annotations

from dataclasses import replace

import pytest

from taccl_py.errors import InputError
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, LinkChoice, SlowLink, degraded, parse_link, parse_slow_link
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


def test_a_machine_that_falls_apart_is_refused() -> None:
    with pytest.raises(InputError, match="rank 2 cannot be reached from rank 0 any more"):
        degraded(formula_topology("mesh:3"), Degradation((parse_link("1-2"),)))
