"""What a message carries for others than its sender and its receiver."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.synthesis.bounds import DemandBounds, demand_bound
from taccl_py.synthesis.bounds.crossing import NodeClasses
from taccl_py.synthesis.bounds.ends import Carriage, EarliestMoment, Ends, PortPair
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.fabrics import rail_nodes
from taccl_py.topology.model import Link
from taccl_py.topology.template import instantiate
from tests.instances import machine

# One port of 1 us and 2 us for each pair's data at either end.
SWITCH = Carriage(1.0, 0.5, is_single=True)


def most_pairs(ends, start_us, left_us, told, tells, room_us, pair):
    start, left = (
        EarliestMoment(np.array([[time_us]]), np.array([[float(own)]]))
        for time_us, own in ((start_us, tells), (left_us, told))
    )
    return float(ends.most_pairs(start, left, np.array([[room_us]]), pair)[0, 0])


def gathered_us(shares, alpha_us, share_us):
    """Least time in which one of so many ranks, each with a port and a share, gets all: by the size of its last message."""
    if shares == 1:
        return 0.0
    best_us = math.inf
    for last in range(1, shares):
        before_us = max(gathered_us(last, alpha_us, share_us), gathered_us(shares - last, alpha_us, share_us))
        best_us = min(best_us, before_us + alpha_us + last * share_us)
    return best_us


@pytest.mark.parametrize(
    ("givers", "alpha_us", "share_us"), list(itertools.product(range(1, 9), (0.5, 3.0), (0.1, 2.0)))
)
def test_what_one_rank_can_gather_takes_as_long_as_messages_that_double(givers, alpha_us, share_us):
    """Eight messages of one rank each are not gathered sooner than by the best tree, and no bound is above it."""
    ends = Ends(Carriage(alpha_us, 1 / share_us, is_single=True), SWITCH, math.inf)
    best_us = gathered_us(givers, alpha_us, share_us)
    enough = {"told": givers, "tells": 1, "room_us": float(givers), "pair": PortPair(1.0, 1.0)}
    assert most_pairs(ends, best_us, 0.0, **enough) == pytest.approx(givers)
    if givers > 1:
        assert most_pairs(ends, best_us - 0.01, 0.0, **enough) < givers


def test_waiting_leaves_less_room():
    """Two pairs of two givers are held at 3 us; of 5 us of room for bytes, 1 us each, 3 are left then: both go."""
    ends = Ends(SWITCH, SWITCH, math.inf)
    assert most_pairs(ends, 0.0, 0.0, 2, 1, 5.0, PortPair(1.0, 1.0)) == pytest.approx(2.0)
    # p pairs are held at 1 + 2 (p - 1), and have p of what is left of 4 us.
    assert most_pairs(ends, 0.0, 0.0, 2, 1, 4.0, PortPair(1.0, 1.0)) == pytest.approx(5 / 3)
    # Later than that they may have come in another way.
    assert most_pairs(Ends(SWITCH, SWITCH, 0.0), 0.0, 0.0, 4, 1, 4.0, PortPair(1.0, 1.0)) == pytest.approx(4.0)


def test_what_is_neither_gathered_nor_passed_on_is_one_pair():
    """Four givers and four takers: 4 pairs need not be gathered and 4 need not be passed on, but these are not the same ones."""
    ends = Ends(SWITCH, SWITCH, math.inf)
    assert most_pairs(ends, 0.5, 0.5, 4, 4, 100.0, PortPair(100.0, 100.0)) == pytest.approx(1.0)


def test_two_nodes_of_rails_gather_and_hand_out_what_their_messages_carry():
    """Two ND H100 v5 nodes, AllToAll of 1 MiB: 8 pairs of 65536 bytes through a NIC of 2.6 us and 20 us/MB take 13.09; two messages
    take 15.7. All but one pair of a message are gathered or handed out at 0.3 us and 2.22 us/MB, 1.02 us in all, after an alpha at least.
    """
    pairs_us, others_us = 2.6 + 8 * 0.065536 * 20, 7 * 0.065536 / 0.45
    bound = demand_bound(load_topology("ndv5-x2"), Kind.ALLTOALL, 0, float(1 << 20))
    assert pairs_us + others_us + 0.3 < bound.time_us < 15.7
    assert bound.reason == "crossing: messages of 64 pairs of ranks into node 0, gathered before and handed out behind"


def test_a_symmetry_that_mixes_nodes_says_nothing_of_their_insides():
    """A ring of four, of which 0 and 1 are one node: what turns it takes these to 1 and 2."""
    links = [Link(a, (a + way) % 4, 1.0, 1.0) for a in range(4) for way in (1, 3)]
    ring, apart = (machine(4, links, (), nodes) for nodes in ((0, 0, 1, 1), (0, 1, 2, 3)))
    turned = OrbitMembers(np.zeros(4, dtype=np.int64), np.zeros(8, dtype=np.int64), (np.array([1, 2, 3, 0]),))
    assert NodeClasses.of(Net.of(ring)).sorts(turned) == [0, 1, 2, 3]
    assert NodeClasses.of(Net.of(apart)).sorts(turned) == [0]


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_no_template_of_an_alltoall_on_rails_is_faster(seed):
    rng = random.Random(seed)
    node = rail_nodes("rails", rng.choice((2, 3, 4)), rng.choice((10.0, 50.0, 200.0)), rng.choice((5.0, 25.0)))
    demand = Demand(instantiate(node, rng.choice((2, 2, 3))), Kind.ALLTOALL, 10.0 ** rng.uniform(3, 7))
    bound_us = DemandBounds.of(demand.topology, Kind.ALLTOALL).crossing(demand.size_bytes).time_us
    for named in template_schedules(demand):
        assert bound_us <= named.schedule.makespan_us * (1 + 1e-9), named.name
