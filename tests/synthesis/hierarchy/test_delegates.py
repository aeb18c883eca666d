"""AllToAll by delegates: who goes where, times worked out by hand, and everything arrives on machines of all sorts."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.delegates import Delegation, delegate_messages, delegate_times, spreads
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.hierarchy.outline import PATHS
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.fabrics import rail_nodes
from taccl_py.topology.template import instantiate
from taccl_py.verify.schedule import verify_schedule

PAIR = 128.0


def rails(lanes, nodes):
    return instantiate(rail_nodes("rails", lanes, 300.0, 25.0), nodes)


def delegated(topology, delegation, pair_bytes=PAIR):
    cluster = LaneCluster.of(TemplateSite(topology, pair_bytes))
    times = delegate_times(cluster, delegation, pair_bytes)
    plan = TemplatePlan(1, delegate_messages(cluster, delegation, times))
    return fitted(Demand(topology, Kind.ALLTOALL, pair_bytes * topology.num_ranks), plan), times


def crossings(schedule):
    """Nodes and number of chunks of every message between nodes, by sender."""
    topology = schedule.topology
    found = {}
    for message in schedule.messages:
        link = topology.links[message.link]
        there = topology.node_of[link.dst]
        if topology.node_of[link.src] != there:
            found.setdefault(link.src, []).append((there, len(message.chunks)))
    return found


def test_with_a_lane_for_each_other_node_everything_crosses_at_once():
    """In three steps of 4 * 8 chunks for others and 4 of the node's own, in one message of 8 * 8, and in three steps of 4 * 8."""
    schedule, times = delegated(rails(8, 9), Delegation(8, 1, DOUBLING, DOUBLING))
    node_us, lane_us = (lambda chunks: 0.3 + chunks * PAIR / 300e3), (lambda chunks: 2.6 + chunks * PAIR / 25e3)
    by_hand_us = 3 * node_us(36) + lane_us(64) + 3 * node_us(32)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(times.end_us) == pytest.approx(by_hand_us)
    assert crossings(schedule)[0] == [(1, 64)]
    assert crossings(schedule)[7] == [(8, 64)]


def test_nodes_that_are_left_over_are_shared_out_once_more():
    """Of 11 other nodes 8 are served in the first turn, and the last three by two lanes each, half of the ranks' data by either."""
    schedule, _ = delegated(rails(8, 12), Delegation(8, 1, DOUBLING, DOUBLING))
    assert [crossings(schedule).get(lane) for lane in range(8)] == [
        [(1, 64), (9, 32)], [(2, 64), (9, 32)], [(3, 64), (10, 32)], [(4, 64), (10, 32)], [(5, 64), (11, 32)], [(6, 64), (11, 32)],
        [(7, 64)], [(8, 64)],
    ]  # fmt: skip


def test_groups_of_lanes_take_the_data_of_their_own_ranks():
    schedule, _ = delegated(rails(4, 5), Delegation(2, 1, DIRECT, DIRECT))
    assert crossings(schedule)[2] == [(1, 8), (3, 8)]
    assert crossings(schedule)[3] == [(2, 8), (4, 8)]


@pytest.mark.parametrize(("together", "handed"), [(1, [(0, 1), (0, 1)]), (2, [(0, 2)])])
def test_turns_can_be_handed_out_together(together, handed):
    """With two lanes and five nodes there are two turns, after which lane 0 has one or two nodes' data for its neighbour."""
    topology = rails(2, 5)
    schedule, times = delegated(topology, Delegation(2, together, DIRECT, DIRECT))
    assert len(times.handed) == len(handed)
    from_others = [
        sorted({topology.node_of[chunk // topology.num_ranks] for chunk in message.chunks} - {0})
        for message in schedule.messages
        if (topology.links[message.link].src, topology.links[message.link].dst) == (0, 1)
    ]
    assert sorted(len(nodes) for nodes in from_others if nodes) == sorted(nodes for _, nodes in handed)


@given(
    lanes=st.sampled_from([1, 2, 3, 4, 8]), nodes=st.integers(2, 7), together=st.integers(1, 3), size=st.sampled_from([8.0, 40e3, 3e5]),
    inside=st.tuples(*[st.sampled_from([DIRECT, DOUBLING, PATHS])] * 2), data=st.data(),
)  # fmt: skip
def test_everything_arrives_about_when_it_should(lanes, nodes, together, size, inside, data):
    if DOUBLING in inside and lanes & (lanes - 1):
        lanes = 4
    spread = data.draw(st.sampled_from([s for s in range(1, lanes + 1) if lanes % s == 0]))
    schedule, times = delegated(rails(lanes, nodes), Delegation(spread, together, *inside), size)
    assert verify_schedule(schedule) == ()
    if size == 8.0 and PATHS not in inside:
        assert schedule.makespan_us <= times.end_us * (1 + 1e-6)


@pytest.mark.parametrize("left", [range(11), [0, 1, 2, 4, 5, 6, 7, 8, 9, 10], [0, 1, 4, 5, 8, 9, 10, 11]])
def test_nodes_may_differ(left):
    topology = rails(4, 3).subset(list(left))
    for spread in spreads(LaneCluster.of(TemplateSite(topology, PAIR))):
        schedule, _ = delegated(topology, Delegation(spread, 1, DIRECT, DIRECT))
        assert verify_schedule(schedule) == ()


@pytest.mark.parametrize(("machine", "nodes"), [("ndv2", 3), ("dgx2", 3), ("mi250x", 3), ("mi300x", 3)])
def test_shipped_nodes_can_be_served_in_every_way(machine, nodes):
    topology = load_topology(machine, nodes)
    cluster = LaneCluster.of(TemplateSite(topology, PAIR))
    insides = [DIRECT, DOUBLING] if cluster.site.linked_inside_nodes else [PATHS]
    for spread, inside in product((1, cluster.width), insides):
        schedule, _ = delegated(topology, Delegation(spread, 1, inside, inside))
        assert verify_schedule(schedule) == ()


@pytest.mark.parametrize(
    ("machine", "nodes", "size_bytes", "before_us", "now_us"),
    [("ndv4", 12, 16 << 10, 29.2, 7.75), ("dgx2", 4, 16 << 10, 15.22, 9.8), ("mi300x", 8, 256 << 10, 19.68, 10.9)],
)
def test_the_engine_is_faster_by_delegates(machine, nodes, size_bytes, before_us, now_us):
    demand = Demand(load_topology(machine, nodes), Kind.ALLTOALL, float(size_bytes))
    answer = synthesize_hierarchy(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events())
    assert verify_schedule(answer.schedule) == ()
    assert answer.bound.time_us <= answer.schedule.makespan_us <= now_us < before_us
