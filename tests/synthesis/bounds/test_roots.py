"""Best packing of trees through roots, and what is certified of it."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import never
from taccl_py.synthesis.bounds import demand_bound, roots
from taccl_py.synthesis.bounds.loads import sum_loads
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.bounds.roots import pack_roots, short_root_packings
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, machine
from tests.random_machines import random_machine
from tests.synthesis.bounds.packings import best_sums_us
from tests.synthesis.drawn import draw_machine

GB = 1000 * MB


def packed(topology, known_us=0.0):
    return pack_roots(Net.of(topology), OrbitMembers.of_images(topology, []), known_us)


def machine_of(seed):
    rng = random.Random(seed)
    return draw_machine(rng, rng.randrange(3, 5))


def line_behind_a_port():
    """0 - 1 - 2 - 3 at 1 us per MB both ways; the two links out of the middle pair share a port of 10 with those inside it."""
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    shared = {(1, 0), (2, 3), (1, 2), (2, 1)}
    return machine(4, [Link(*p, 0.0, 1.0, ports=(0,) if p in shared else ()) for p in pairs], [Port("m", 0.0, 10.0)])


def test_on_a_line_every_link_carries_everything_both_ways():
    """Into 1 from 2, which heard from 3, then out again: the shared port passes 2 -> 1, 1 -> 2, 1 -> 0 and 2 -> 3."""
    found = packed(line_behind_a_port())
    assert found.load_us == pytest.approx(40)
    assert found.certified.amount_us == pytest.approx(40)
    assert demand_bound(line_behind_a_port(), Kind.ALLREDUCE, 0, GB).time_us == pytest.approx(40_000, rel=1e-6)


def test_trees_through_roots_say_more_than_cuts_and_divisions():
    """On irregular machines the packing is above all cuts and divisions together, and certified to be the best."""
    gained = 0
    for number in range(0, 20):
        topology = random_machine(number, most_ranks=9)
        together_us = sum_loads(Net.of(topology), OrbitMembers.of_images(topology, []), []).amount_us
        found = packed(topology)
        assert together_us <= found.load_us * (1 + 1e-9)
        assert found.certified.amount_us <= found.load_us * (1 + 1e-9)
        gained += found.certified.amount_us > together_us * 1.01
    assert gained >= 1


def test_nothing_is_certified_where_a_bound_is_reached():
    ring = load_topology("ring:6,alpha_us=0,beta_us_per_mb=12")
    assert packed(ring).load_us == pytest.approx(12 * 2 * 5 / 12 * 1)
    assert packed(ring, known_us=10.0) is None


def test_a_large_machine_is_left_to_cuts(monkeypatch):
    monkeypatch.setattr(roots, "_MOST_PLACES", 10)
    assert packed(line_behind_a_port()) is None


def test_what_was_packed_when_rounds_end_still_gives_a_bound(monkeypatch):
    full = [packed(random_machine(number, most_ranks=10)) for number in range(8)]
    monkeypatch.setattr(roots, "_MOST_ROUNDS", 4)
    for number, best in enumerate(full):
        early = packed(random_machine(number, most_ranks=10))
        assert early.load_us >= best.load_us * (1 - 1e-9)
        assert 0 < early.certified.amount_us <= best.load_us * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_the_packing_is_the_best_of_all_pairs_of_trees(seed):
    topology = machine_of(seed)
    found = packed(topology)
    best_us = best_sums_us(topology)
    assert found.load_us == pytest.approx(best_us, rel=1e-6)
    # Of four ranks all sequences of messages are looked at, and none has been better than trees.
    assert found.certified.amount_us == pytest.approx(best_us, rel=1e-6)


def test_short_trees_load_a_dense_machine_as_evenly_as_the_best_packing():
    """Eight ranks, all linked but two: trees of two hops from root to leaf are enough, where the program's own wander about."""
    links = [Link(a, b, 0.7, 10.0) for a in range(8) for b in range(8) if a != b and {a, b} != {0, 1}]
    dense = machine(8, links)
    best = pack_roots(Net.of(dense), OrbitMembers.of_images(dense, []))
    *_, last = short_root_packings(Net.of(dense), best.load_us, never)
    loads = np.zeros(len(links))
    for trees, amount in zip(last.trees, last.amounts, strict=True):
        np.add.at(loads, trees.links(), amount * 10.0)
    assert last.amounts.sum() == pytest.approx(1.0)
    assert loads.max() <= best.load_us * 1.001
    assert max(hops_of(dense, trees) for trees in last.trees) <= 2
    assert not [*short_root_packings(Net.of(dense), best.load_us, lambda: True)]


def hops_of(topology, trees):
    """Links of the longest path from the root of trees, or to it."""
    longest = 0
    for links, (near, far) in ((trees.out, ("src", "dst")), (trees.into, ("dst", "src"))):
        above = {getattr(topology.links[link], far): getattr(topology.links[link], near) for link in links}
        assert len(above) == topology.num_ranks - 1
        for rank in above:
            hops = 0
            while rank != trees.root:
                rank, hops = above[rank], hops + 1
            longest = max(longest, hops)
    return longest
