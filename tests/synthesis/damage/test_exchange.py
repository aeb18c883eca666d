"""AllToAll between nodes with slow or lost NICs: lanes carry what they can, in equal chunks."""

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.damage.exchange import balanced_exchanges
from taccl_py.synthesis.demands.balance import Lanes
from taccl_py.synthesis.engine import Demand
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.verify.schedule import verify_schedule
from tests.synthesis.damage.test_damage import LIMITS, MIB, NIC_GONE, NIC_SLOW, cluster

TWO_GONE = Degradation(missing_ports=("node 0 ib0 *", "node 1 ib2 *"))


def best(machine, size_bytes, **options):
    demand = Demand(machine, Kind.ALLTOALL, float(size_bytes), **options)
    found = balanced_exchanges(demand, LIMITS)
    for schedule in found:
        assert not verify_schedule(schedule)
    return min(found, key=lambda schedule: schedule.makespan_us)


@pytest.mark.parametrize(("damage", "lanes"), [(NIC_GONE, 7), (NIC_SLOW, 7.5)])
def test_damaged_lanes_carry_what_they_can(damage, lanes):
    """One NIC of eight is slow or gone, and the others take its data in equal parts: 25 GB/s each."""
    machine = degraded(cluster(2, 8), damage)
    schedule = best(machine, 256 * MIB)
    across_us = 256 * MIB * 8 / 2 / lanes / 25e3
    assert schedule.makespan_us == pytest.approx(across_us, rel=0.05)
    bound = demand_bound(machine, Kind.ALLTOALL, 0, 256.0 * MIB, LIMITS)
    assert bound.time_us * (1 - 1e-9) <= schedule.makespan_us <= 1.05 * bound.time_us


def test_lanes_that_some_node_lacks_are_left_out():
    lanes = Lanes.of(degraded(cluster(2, 4), TWO_GONE))
    assert lanes.senders == (((1,), (3,)), ((5,), (7,)))
    assert best(degraded(cluster(2, 4), TWO_GONE), MIB).makespan_us > 0


def test_a_slow_lane_is_known_by_its_own_links():
    slow = Lanes.of(degraded(cluster(2, 4), NIC_SLOW)).widths()
    assert slow == pytest.approx([2 / 7, 1 / 7, 2 / 7, 2 / 7])


def test_a_number_of_chunks_that_was_asked_for_is_kept():
    assert best(degraded(cluster(2, 4), NIC_GONE), MIB, chunks_per_rank=3).collective.chunks_per_rank == 3


def test_nothing_is_tried_for_other_collectives_nor_where_nothing_is_damaged():
    damaged = degraded(cluster(2, 4), NIC_GONE)
    assert balanced_exchanges(Demand(damaged, Kind.ALLGATHER, float(MIB)), LIMITS) == []
    assert balanced_exchanges(Demand(cluster(2, 4), Kind.ALLTOALL, float(MIB)), LIMITS) == []


def test_limits_end_it():
    damaged = degraded(cluster(2, 8), NIC_SLOW)
    assert len(balanced_exchanges(Demand(damaged, Kind.ALLTOALL, float(MIB)), Limits(seconds=0.0))) <= 1
