"""AllGather over sparse nodes in bundles: right, the same every time, and faster than one chunk at a time."""

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.bundles import Bundles
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan, turned
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import lines_of_three, quiet_pulp

pytestmark = quiet_pulp


def never():
    return False


def bundles(topology, chunk_bytes):
    cluster = LaneCluster.of(TemplateSite(topology, chunk_bytes))
    return None if cluster is None else Bundles.of(cluster, never)


def bundled(topology, kind, size_bytes):
    sums = kind is Kind.REDUCESCATTER
    messages = bundles(topology.reversed() if sums else topology, size_bytes / topology.num_ranks).messages()
    return fitted(
        Demand(topology, kind, size_bytes),
        TemplatePlan(1, turned(messages, reduce=True) if sums else messages),
    )


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER])
def test_lines_of_three_are_told_in_two_hops_beside_the_network(kind):
    """What the ends bring is passed on by the middle one while the ends hand theirs in: 5 + 2 * 1."""
    schedule = bundled(lines_of_three(), kind, 1e-3)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(7.0)


@pytest.mark.parametrize(("size_bytes", "at_most_us"), [(262144.0, 8.5), (1048576.0, 12.0), (4194304.0, 27.0)])
def test_two_mi250x_nodes_are_faster_than_one_chunk_at_a_time(size_bytes, at_most_us):
    """Engine greedy, which sends single chunks, takes 9.4, 13.2 and 28.6 us."""
    schedule = bundled(load_topology("mi250x", 2), Kind.ALLGATHER, size_bytes)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= at_most_us


def test_sums_in_bundles_take_no_longer_as_a_program():
    demand = Demand(load_topology("mi250x", 2), Kind.REDUCESCATTER, 1048576.0)
    schedule = synthesize_hierarchy(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events()).schedule
    assert schedule.makespan_us <= 12.0
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= schedule.makespan_us * (1 + 1e-9)


def test_they_are_the_same_every_time():
    topology = load_topology("mi250x", 2)
    assert bundles(topology, 8192.0).sent == bundles(topology, 8192.0).sent


def test_nodes_with_all_links_or_one_nic_and_nodes_that_differ_have_none():
    assert bundles(load_topology("mi300x", 2), 8192.0) is None
    assert bundles(load_topology("ndv2", 2), 8192.0) is None
    assert bundles(load_topology("mi250x", 2).subset(range(31)), 8192.0) is None
