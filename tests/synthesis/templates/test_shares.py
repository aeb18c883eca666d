"""AllReduce with unequal shares: shares worked out by hand, schedules that are right and near their bounds."""

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.shares import UnequalShares, share_plans
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, LinkChoice, SlowLink, SlowPort, degraded
from taccl_py.verify.schedule import verify_schedule

GIB = float(1 << 30)


def switch(ranks, *faults):
    """A switch whose ranks with these numbers have so much of their rate."""
    ports = tuple(SlowPort(f"node 0 rank {rank} *", share) for rank, share in faults)
    return degraded(load_topology(f"switch:{ranks}", None), Degradation(slow_ports=ports))


def planned(topology, size_bytes, chunks_per_rank=None):
    """The template's schedule and the bound."""
    demand = Demand(topology, Kind.ALLREDUCE, size_bytes, chunks_per_rank=chunks_per_rank)
    (plan,) = share_plans(demand)
    bound = demand_bound(topology, Kind.ALLREDUCE, 0, size_bytes, Limits(seconds=60, workers=1))
    return fitted(demand, plan), bound


@pytest.mark.parametrize(("part", "share"), [(0.5, 0.0), (0.75, 0.44), (0.875, 0.714)])
def test_shares_of_one_slow_rank(part, share):
    """Of n ranks one with share q sends and receives 1 + (n - 2) q; all take as long if 1 + 6 q is to 1 + 6 p as the rates, q + 7 p = 1."""
    shares = UnequalShares.of(switch(8, (3, part)))
    assert shares is not None
    slow, *others = sorted(shares.share)
    assert slow == shares.share[3]
    assert max(others) == pytest.approx(min(others), rel=1e-2)
    # 1 + 6 q = part (1 + 6 p) and q + 7 p = 1, where that is not below 0.
    assert slow / max(others) == pytest.approx(share, abs=0.01)
    if slow > 0.01:
        assert (1 + 6 * slow) / (1 + 6 * max(others)) == pytest.approx(part, rel=1e-2)


def test_equal_ranks_have_no_unequal_shares():
    demand = Demand(load_topology("switch:8", None), Kind.ALLREDUCE, GIB)
    assert not list(share_plans(demand))


def test_ranks_that_are_not_linked_have_none():
    topology = degraded(load_topology("full:4", None), Degradation(missing=(LinkChoice(0, 1),)))
    assert not list(share_plans(Demand(topology, Kind.ALLREDUCE, GIB)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "gap"),
    [
        ([(0, 0.875)], 0.04),
        ([(0, 0.75)], 0.055),
        ([(5, 0.3)], 0.04),
        ([(0, 0.75), (3, 0.75)], 0.08),
    ],
    ids=str,
)
def test_slow_ranks_behind_a_switch_are_near_the_bound(faults, gap):
    schedule, bound = planned(switch(8, *faults), GIB)
    assert verify_schedule(schedule) == ()
    assert bound.time_us <= schedule.makespan_us <= bound.time_us * (1 + gap)


@pytest.mark.slow
def test_a_slow_rank_with_links_of_its_own_is_near_the_bound():
    slow = tuple(SlowLink(LinkChoice(0, other), 0.5) for other in range(1, 6))
    schedule, bound = planned(degraded(load_topology("full:6", None), Degradation(slow=slow)), GIB)
    assert verify_schedule(schedule) == ()
    assert bound.time_us <= schedule.makespan_us <= bound.time_us * 1.04


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_chunk_count_that_is_asked_for_is_kept(chunks):
    schedule, _ = planned(switch(4, (1, 0.5)), 1e6, chunks)
    assert schedule.collective.chunks_per_rank == chunks
    assert verify_schedule(schedule) == ()
