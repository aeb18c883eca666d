"""How fast something can become known."""

import numpy as np
import pytest

from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.bounds.spread import fan_out_bound, told_after_first
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import chain, full, machine, star_in, two_nodes


def spread_us(topology, starts, inward=False):
    net = Net.of(topology)
    return fan_out_bound(net.reversed() if inward else net, starts, inward).time_us


@pytest.mark.parametrize(("ranks", "doublings"), [(2, 1), (3, 2), (4, 2), (5, 3), (16, 4), (17, 5)])
@pytest.mark.parametrize("inward", [False, True])
def test_behind_single_ports_the_number_that_knows_doubles(ranks, doublings, inward):
    topology = load_topology(f"switch:{ranks},alpha_us=3,beta_us_per_mb=1")
    assert spread_us(topology, [0], inward) == pytest.approx(3.0 * doublings)


def test_links_that_share_nothing_start_together():
    assert spread_us(full(9, alpha_us=2.0), [0]) == 2.0


def test_a_start_with_few_ways_is_slower():
    """Rank 0 tells rank 1 only, which can tell both others at once."""
    links = [
        Link(0, 1, 1.0, 1.0),
        Link(1, 2, 1.0, 1.0),
        Link(1, 3, 1.0, 1.0),
        Link(2, 0, 1.0, 1.0),
        Link(3, 0, 1.0, 1.0),
    ]
    assert spread_us(machine(4, links), [0]) == 2.0


def test_a_port_spaces_by_its_own_alpha():
    """A message takes 5 us over its link, and the port lets one start every 2 us: at 5, 7 and 9."""
    links = [Link(0, r, 5.0, 1.0, ports=(0,)) for r in (1, 2, 3)]
    assert spread_us(machine(4, links, [Port("out", 2.0, 1.0)]), [0]) == 9.0


def test_messages_into_one_port_come_one_after_the_other():
    """Leaves that tell only the hub: it cannot hear three of them before 3 times 4 us."""
    assert spread_us(star_in(3, Port("in", 4.0, 1.0)), [0], inward=True) == pytest.approx(12.0)


def test_nodes_are_told_by_any_of_their_ranks():
    """Between 4 nodes of 2 ranks each rank has a link of 7 us to every other node: all at once."""
    topology = two_nodes(2, {0: (0,), 1: (1,)}, inside=(0.0, 1.0), between=(7.0, 1.0), num_nodes=4)
    assert spread_us(topology, [0]) == 7.0


def test_who_cannot_tell_anyone_never_does():
    assert spread_us(chain(3), [2]) == float("inf")


def test_a_port_that_is_not_the_slowest_thing_on_the_way_keeps_no_arrivals_apart():
    """Rank 0's port takes 1 us a message, its links 3: messages that leave one after the other may arrive at the same time."""
    for link_us, after_us in ((1.0, 1.0), (3.0, 0.0)):
        links = [Link(0, dst, link_us, 0.0, ports=(0,)) for dst in (1, 2)]
        net = Net.of(machine(3, links, [Port("out", 1.0, 0.0)]))
        assert told_after_first(net, np.arange(3), 0) == after_us


def test_after_the_first_arrival_a_line_is_still_to_be_gone_along():
    """Three hops of 2 us and 1 us of latency, one of which is over."""
    assert told_after_first(Net.of(chain(4, alpha_us=2.0, latency_us=1.0)), np.arange(4), 0) == 6.0
