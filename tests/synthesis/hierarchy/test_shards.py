"""Broadcast in shares: who gets what, over how many NICs one after the other, and what it costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.outline import insides
from taccl_py.synthesis.hierarchy.shards import shard_messages
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan, end_of
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import nodes_with_nics

KIB, MIB = 1 << 10, 1 << 20


def cluster_of(topology, size_bytes=MIB):
    return LaneCluster.of(TemplateSite(topology, size_bytes))


@given(st.integers(2, 14), st.integers(2, 4), st.data())
@settings(max_examples=60)
def test_every_share_gets_everywhere_once_from_one_that_has_it(nodes, ranks, data):
    cluster = cluster_of(nodes_with_nics(nodes, ranks, 0.5, 1.0))
    root = data.draw(st.integers(0, nodes * ranks - 1))
    messages = shard_messages(cluster, data.draw(st.sampled_from(insides(cluster))), root, MIB)
    held = {(root, shard): 0.0 for shard in range(ranks)}
    for message in messages:
        for shard in message.chunks:
            assert held[message.src, shard] <= message.start
            assert (message.dst, shard) not in held
            held[message.dst, shard] = message.end
    assert len(held) == nodes * ranks * ranks


@pytest.mark.parametrize(("nodes", "crossings"), [(2, 1), (9, 2), (64, 3), (73, 3)])
def test_few_messages_between_nodes_follow_each_other(nodes, crossings):
    # One share for eight nodes; each of them tells eight more; and then they exchange.
    topology = load_topology(f"hpn:{nodes}")
    depth = {}
    for message in shard_messages(cluster_of(topology), DIRECT, 5, MIB):
        across = topology.node_of[message.src] != topology.node_of[message.dst]
        for shard in message.chunks:
            depth[message.dst, shard] = depth.get((message.src, shard), 0) + across
    assert max(depth.values()) == crossings


@pytest.mark.parametrize("inside", [DIRECT, DOUBLING])
@pytest.mark.parametrize("root", [0, 13])
def test_planned_times_are_those_of_the_schedule(inside, root):
    demand = Demand(load_topology("hpn:8"), Kind.BROADCAST, 64 * KIB, root)
    messages = shard_messages(cluster_of(demand.topology, demand.size_bytes), inside, root, demand.size_bytes)
    schedule = fitted(demand, TemplatePlan(8, messages))
    assert schedule.makespan_us == pytest.approx(end_of(messages))
    assert verify_schedule(schedule) == ()


@pytest.mark.parametrize(
    ("kind", "machine", "size_bytes", "most_us"),
    [
        # Dealing out 6.7 us, 5.2 between nodes, 2.9 inside, 5.2, and 5.5 to hand out: 24.5 for equal shares. A tree of nodes takes 28.8.
        (Kind.BROADCAST, "hpn:8", MIB, 23.5),
        (Kind.REDUCE, "hpn:8", MIB, 23.5),
        # A tree of nodes: 43.5.
        pytest.param(Kind.BROADCAST, "hpn:64", MIB, 31.4, marks=pytest.mark.slow),
    ],
)
def test_middle_sizes_go_in_shares(kind, machine, size_bytes, most_us):
    demand = Demand(load_topology(machine), kind, size_bytes)
    answer = load_engine("hierarchy")(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events())
    assert answer.schedule.makespan_us <= most_us
