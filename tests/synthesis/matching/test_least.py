"""The least time of messages of one chunk: worked out by hand, and never more than what schedules take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.least import least_us
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port, Topology
from tests.synthesis.matching.drawn import matched, torn, with_ports

ROUTED = (Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL)


def least(topology, kind, chunks=1, root=0):
    return least_us(Fabric.of(topology, 1e6), Collective(kind, topology.num_ranks, chunks, root))


def test_a_rank_of_a_ring_of_6_receives_5_chunks_over_two_links():
    ring = formula_topology("ring:6,alpha_us=1,beta_us_per_mb=10")
    assert least(ring, Kind.ALLGATHER) == pytest.approx(3 * 11)
    assert least(ring, Kind.ALLTOALL) == pytest.approx(3 * 11)
    assert least(ring, Kind.BROADCAST, chunks=5) == pytest.approx(3 * 11)


def test_links_of_unequal_speed_bring_what_they_can_in_the_same_time():
    # Rank 0 receives 3 chunks, in 4 us each from rank 1 and in 10 us each from rank 2: three from rank 1 take 12 us, but one of
    # them from rank 2 only 10.
    links = [Link(1, 0, 1, 3), Link(2, 0, 1, 9), Link(3, 1, 1, 0)] + [Link(0, rank, 1, 0) for rank in (1, 2, 3)]
    assert least(Topology("star", "", (0,) * 4, (), tuple(links)), Kind.ALLGATHER) == pytest.approx(10)


def test_links_behind_one_port_take_turns_and_latency_passes_once():
    port = Port("in", 1, 4)
    links = [Link(r, 0, 1, 2, 3, (0,)) for r in (1, 2, 3)] + [Link(0, r, 1, 2, 3) for r in (1, 2, 3)]
    # Three turns of 5 us at the port, and 3 us.
    assert least(Topology("star", "", (0,) * 4, (port,), tuple(links)), Kind.ALLGATHER) == pytest.approx(18)


def test_between_nodes_every_chunk_crosses_once():
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b and (a // 2 == b // 2 or {a, b} == {0, 2})]
    links = tuple(Link(a, b, 1, 9) for a, b in pairs)
    machine = Topology("two", "", (0, 0, 1, 1), (), links)
    # One link each way: 2 chunks of the other node, 4 pairs of ranks.
    assert least(machine, Kind.ALLGATHER) == pytest.approx(30)  # rank 0 lacks 3 and has two links: 20; rank 1 has one
    assert least(machine, Kind.ALLTOALL) == pytest.approx(40)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from(ROUTED), st.booleans())
def test_no_schedule_takes_less(seed, ranks, kind, has_ports):
    machine = torn(seed, ranks)
    fabric, collective, hops = matched(with_ports(machine, seed) if has_ports else machine, kind, chunks=2, seed=seed)
    assert max(hop.end_us for hop in hops) >= least_us(fabric, collective) * (1 - 1e-9)
