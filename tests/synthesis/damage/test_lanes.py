"""Broadcast on damaged nodes over the lanes that are whole in all of them."""

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.damage.lanes import on_whole_lanes, whole_lanes
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.synthesis.hierarchy.engine import written
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.verify.schedule import verify_schedule
from tests.synthesis.damage.test_damage import LIMITS, LINK_GONE, MIB, NIC_GONE, NIC_SLOW, cluster


def found_on(machine, kind=Kind.BROADCAST, size_bytes=64 * MIB, root=2):
    demand = Demand(machine, kind, float(size_bytes), root=root)
    bound = demand_bound(machine, kind, root, demand.size_bytes, LIMITS)
    return on_whole_lanes(demand, bound, LIMITS, Events(), written), bound


@pytest.mark.parametrize("damage", [NIC_GONE, NIC_SLOW])
def test_a_broadcast_leaves_the_damaged_lane_out(damage):
    machine = degraded(cluster(2, 4), damage)
    found, bound = found_on(machine)
    assert found
    for schedule in found:
        assert not verify_schedule(schedule)
        crossing = [machine.links[each.link] for each in schedule.messages if machine.links[each.link].src // 4 == 0]
        assert all(link.src % 4 != 1 for link in crossing if link.dst >= 4)
    # Three lanes of the four, or of three and a half.
    lanes = 1 if damage is NIC_GONE else 3.5 / 3
    assert min(schedule.makespan_us for schedule in found) <= 1.2 * lanes * bound.time_us


def test_what_is_whole_is_kept():
    machine = degraded(cluster(2, 4), NIC_GONE)
    left = whole_lanes(machine)
    across = {(link.src % 4, link.dst % 4) for link in left.links if link.src // 4 != link.dst // 4}
    assert across == {(a, b) for a in (0, 2, 3) for b in (0, 2, 3)}
    inside = [link for link in machine.links if link.src // 4 == link.dst // 4]
    assert [link for link in left.links if link.src // 4 == link.dst // 4] == inside


def test_nothing_is_left_out_where_no_lane_is_damaged_or_all_are():
    assert whole_lanes(cluster(2, 4)) is None
    assert whole_lanes(degraded(cluster(2, 4), LINK_GONE)) is None
    all_gone = Degradation(missing_ports=("node 0 ib0 *", "node 0 ib1 *", "node 1 ib2 *", "node 1 ib3 *"))
    assert whole_lanes(degraded(cluster(2, 4), all_gone)) is None


def test_other_collectives_have_plans_of_their_own():
    assert found_on(degraded(cluster(2, 4), NIC_GONE), Kind.ALLGATHER, MIB, 0)[0] == []
