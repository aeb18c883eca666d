from __future__ import annotations

from dataclasses import replace

import pytest

from taccl_py.errors import InputError
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded, parse_link, parse_slow_link
from taccl_py.topology.difference import ComparedCosts, TopologyChange, differences
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port, Topology


def test_a_machine_is_like_itself_whatever_its_ports_are_called() -> None:
    machine = load_topology("ndv2", 2)
    renamed = replace(machine, ports=tuple(replace(port, name=f"p{i}") for i, port in enumerate(machine.ports)))
    assert differences(machine, renamed, 0.0) == ()


def test_missing_and_slow_links_are_named_and_worse() -> None:
    ring = formula_topology("ring:4,beta_us_per_mb=20")
    now = degraded(ring, Degradation((parse_link("2->3"),), (parse_slow_link("0->1:0.5"),)))
    found = differences(ring, now, 0.05)
    assert [(one.what, one.change, one.is_worse) for one in found] == [
        ("link 0->1", TopologyChange.SLOWER, True),
        ("link 2->3", TopologyChange.MISSING, True),
    ]
    assert found[0].after == ComparedCosts(0.5, 40.0)
    assert [(one.change, one.is_worse) for one in differences(now, ring, 0.05)] == [
        (TopologyChange.FASTER, False),
        (TopologyChange.NEW, False),
    ]


def test_what_is_within_the_tolerance_is_no_difference() -> None:
    before, after = formula_topology("ring:3,beta_us_per_mb=20"), formula_topology("ring:3,beta_us_per_mb=21")
    assert differences(before, after, 0.051) == ()
    assert len(differences(before, after, 0.049)) == 6


def test_figures_that_rise_and_fall_are_mixed() -> None:
    before = formula_topology("ring:3,alpha_us=1,beta_us_per_mb=20")
    after = formula_topology("ring:3,alpha_us=2,beta_us_per_mb=10")
    assert {one.change for one in differences(before, after, 0.1)} == {TopologyChange.MIXED}


def pair(*ports: Port) -> Topology:
    every = tuple(range(len(ports)))
    return Topology("pair", "", (0, 0), ports, (Link(0, 1, 1, 10, ports=every), Link(1, 0, 1, 10, ports=every)))


def test_ports_are_the_same_if_the_same_links_share_them() -> None:
    (new,) = differences(pair(), pair(Port("bus", 0, 5)), 0.0)
    assert (new.what, new.change, new.is_worse) == ("port bus", TopologyChange.NEW, True)
    (gone,) = differences(pair(Port("bus", 0, 5)), pair(), 0.0)
    assert (gone.change, gone.is_worse) == (TopologyChange.MISSING, False)
    # Of two ports with the same sharers only the slower one is felt.
    assert differences(pair(Port("bus", 0, 5)), pair(Port("wide", 0, 2), Port("narrow", 0, 5)), 0.0) == ()


def test_parallel_links_are_compared_from_the_cheapest_on() -> None:
    one = Topology("lanes", "", (0, 0), (), (Link(0, 1, 1, 10), Link(0, 1, 1, 20), Link(1, 0, 1, 10)))
    two = Topology("lanes", "", (0, 0), (), (Link(0, 1, 1, 40), Link(0, 1, 1, 10), Link(1, 0, 1, 10)))
    (found,) = differences(one, two, 0.0)
    assert (found.what, found.before, found.after) == ("link 0->1 (lane 1)", ComparedCosts(1, 20), ComparedCosts(1, 40))


def test_machines_of_different_size_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="has 4 ranks, ring-3 has 3"):
        differences(formula_topology("ring:3"), formula_topology("ring:4"), 0.0)
