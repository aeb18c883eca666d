"""AllToAll over nodes: straight or bit by bit inside them, and as fast as counted by hand."""

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.alltoall import Shuttle, alltoall_messages, shuttle_us
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule

KIB = 1024.0


def shuttled(topology, shuttle, size_bytes):
    pair_bytes = size_bytes / topology.num_ranks
    cluster = LaneCluster.of(TemplateSite(topology, pair_bytes))
    plan = TemplatePlan(1, alltoall_messages(cluster, shuttle, pair_bytes))
    return fitted(Demand(topology, Kind.ALLTOALL, size_bytes), plan), shuttle_us(cluster, shuttle, pair_bytes)


@pytest.mark.parametrize("doubling", [False, True])
@pytest.mark.parametrize(("nodes", "behind", "together"), [(2, 0, 1), (2, 8, 1), (2, 4, 1), (3, 8, 2), (3, 16, 1)])
def test_everything_arrives_whichever_way_it_goes(nodes, behind, together, doubling):
    schedule, _ = shuttled(load_topology("ndv4", nodes), Shuttle(behind, together, doubling), 64 * KIB)
    assert verify_schedule(schedule) == ()


def test_bit_by_bit_a_node_deals_out_in_three_messages():
    """8 pairs of 4 KiB cross in 2.6 + 1.311 us; then three times 4 pairs go on in 0.3 + 0.0546 us, not seven times one in 0.3137."""
    schedule, estimate_us = shuttled(load_topology("ndv4", 2), Shuttle(8, 1, doubling=True), 64 * KIB)
    by_hand_us = 2.6 + 8 * 4096e-6 * 40 + 3 * (0.3 + 4 * 4096e-6 / 0.3)
    assert (
        schedule.makespan_us
        == pytest.approx(by_hand_us)
        == pytest.approx(estimate_us)
        == pytest.approx(4.9746, abs=1e-4)
    )
    straight, _ = shuttled(load_topology("ndv4", 2), Shuttle(8, 1), 64 * KIB)
    assert straight.makespan_us > 6.1


def test_the_rank_with_the_other_bits_gets_what_has_to_change_them():
    """In a node of four, rank 0 hands half of what came to rank 1 first, and then a quarter of everyone's to rank 2."""
    topology = load_topology("ndv4", 2).subset([0, 1, 2, 3, 8, 9, 10, 11])
    cluster = LaneCluster.of(TemplateSite(topology, 1.0))
    messages = [
        message for message in alltoall_messages(cluster, Shuttle(4, 1, doubling=True), 1.0) if message.src == 0
    ]
    from_others = [
        (message.dst, [divmod(c, 8) for c in message.chunks]) for message in messages if min(message.chunks) >= 4 * 8
    ]
    assert from_others == [(1, [(4, 1), (4, 3)]), (2, [(4, 2), (5, 2)])]


def test_lanes_that_are_behind_in_part_take_a_message_more():
    """8 pairs of 4 KiB cross in 1.311 us and, where some are dealt out behind and some before, in two messages of 2.6 us."""
    _, estimate_us = shuttled(load_topology("ndv4", 2), Shuttle(4, 1), 64 * KIB)
    assert estimate_us == pytest.approx(2 * 2.6 + 8 * 4096e-6 * 40)
