"""Small messages between sparse nodes: right, and as fast as the bound says."""

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR, MAX_COUNT
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.hierarchy.relays import Relays
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan, turned
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import lines_of_three, quiet_pulp

pytestmark = quiet_pulp


def relayed(topology, kind, size_bytes=1e-3):
    sums = kind is Kind.REDUCESCATTER
    relays = Relays.of(topology.reversed() if sums else topology, Limits())
    messages = relays.alltoall(MAX_COUNT) if kind is Kind.ALLTOALL else relays.allgather()
    messages = turned(messages, reduce=True) if sums else messages
    return fitted(Demand(topology, kind, size_bytes), TemplatePlan(1, messages))


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL])
def test_lines_of_three_are_told_in_two_hops_beside_the_network(kind):
    schedule = relayed(lines_of_three(), kind)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(5 + 2 * 1)


@pytest.mark.parametrize(
    ("kind", "bytes_us"), [(Kind.ALLGATHER, 0.05), (Kind.REDUCESCATTER, 0.05), (Kind.ALLTOALL, 0.1)]
)
def test_two_mi250x_nodes_are_told_in_three_hops_beside_the_network(kind, bytes_us):
    schedule = relayed(load_topology("mi250x", 2), kind, 1024.0)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= 2.6 + 3 * 0.8 + bytes_us
    crossing = [m for m in schedule.messages if m.link in {i for i, k in enumerate(schedule.topology.links) if k.ports}]
    assert len(crossing) <= 2 * 16
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= schedule.makespan_us * (1 + 1e-9)


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL])
def test_a_nic_for_the_whole_node_sends_one_message(kind):
    schedule = relayed(load_topology("ndv2", 2), kind, 1024.0)
    assert verify_schedule(schedule) == ()
    node_of, links = schedule.topology.node_of, schedule.topology.links
    assert sum(node_of[links[m.link].src] != node_of[links[m.link].dst] for m in schedule.messages) == 2


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL])
def test_three_nics_tell_two_other_nodes(kind):
    """With two hops one message serves nine pairs (middle to middle) and the other two at most four each, of 18 in all; with three hops
    the ends serve nine pairs, too: told by all, each hands out to its half."""
    topology = lines_of_three(num_nodes=3)
    assert Relays.of(topology, Limits()).end_us == pytest.approx(5 + 3 * 1)
    schedule = relayed(topology, kind)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(8)


def test_nodes_that_differ_have_none():
    assert Relays.of(load_topology("ndv2", 2).subset(range(15)), Limits()) is None
    assert Relays.of(load_topology("dgx1"), Limits()) is None


def test_the_engine_proves_that_a_sparse_cluster_is_served_as_soon_as_it_can_be():
    demand = Demand(lines_of_three(), Kind.ALLGATHER, 1e-3)
    answer = synthesize_hierarchy(demand, Options(limits=Limits(seconds=300)), Events())
    assert answer.schedule.makespan_us == pytest.approx(answer.bound.time_us) == pytest.approx(7.0)
    assert answer.bound.reason.startswith("relays")


def test_sums_between_sparse_nodes_are_as_fast_as_what_is_gathered():
    """Partial sums for different ranks do not lie together: without packing, each would pay an alpha of its own."""
    halves = load_topology("mi250x", 2).subset([*range(8), *range(16, 24)])
    gathered, added = (
        synthesize_hierarchy(Demand(halves, kind, 1024.0), Options(), Events()).schedule
        for kind in (Kind.ALLGATHER, Kind.REDUCESCATTER)
    )
    assert added.makespan_us == pytest.approx(gathered.makespan_us)
    assert any(message.packed for message in added.messages)
