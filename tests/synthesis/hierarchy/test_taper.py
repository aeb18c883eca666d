"""AllGather to one node after the other, to the last one in ever smaller messages."""

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.taper import taper_messages, tapers
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan, turned
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.verify.schedule import verify_schedule

SHARE = 1_000_000.0
COUNTS = (1, 2, 4, 8, 16, 32)


def small_cluster(nodes, ranks, machine="ndv4"):
    """Nodes of the first ranks of a machine of 8 ranks."""
    return load_topology(machine, nodes).subset([8 * node + rank for node in range(nodes) for rank in range(ranks)])


def found_on(topology, insides=(DIRECT,), counts=COUNTS):
    cluster = LaneCluster.of(TemplateSite(topology, SHARE))
    return cluster, list(tapers(cluster, insides, SHARE, counts))


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER])
@pytest.mark.parametrize(
    ("nodes", "ranks", "machine"), [(2, 4, "ndv4"), (3, 2, "ndv4"), (4, 3, "ndv4"), (3, 4, "mi300x")]
)
def test_everyone_gets_everything_in_the_estimated_time(nodes, ranks, machine, kind):
    topology = small_cluster(nodes, ranks, machine)
    reduce = kind is Kind.REDUCESCATTER
    cluster, found = found_on(topology.reversed() if reduce else topology)
    assert found
    for taper in found:
        messages = taper_messages(cluster, taper, SHARE)
        plan = TemplatePlan(taper.chunks_per_rank, turned(messages, reduce=True) if reduce else messages)
        schedule = fitted(Demand(topology, kind, SHARE * nodes * ranks), plan)
        assert verify_schedule(schedule) == ()
        assert schedule.makespan_us <= taper.end_us * (1 + 1e-6)


def test_times_are_as_worked_out_by_hand():
    """Two nodes of two ranks, 1 MB each: 2.6 us and 40 us/MB across, then 0.3 us and 10/3 us/MB for what came last."""
    whole, halves = found_on(small_cluster(2, 2), counts=(2,))[1]
    assert (whole.parts, halves.parts) == ((2,), (1, 1))
    assert whole.end_us == pytest.approx(2.6 + 40 + 0.3 + 10 / 3)
    assert halves.end_us == pytest.approx(2 * 2.6 + 40 + 0.3 + 5 / 3)


def test_what_comes_last_is_least():
    best = min(found_on(load_topology("ndv4", 4), (DIRECT, DOUBLING))[1], key=lambda taper: taper.end_us)
    assert len(best.parts) > 1
    assert list(best.parts) == sorted(best.parts, reverse=True)
    across_us = 3 * 40 + (2 + len(best.parts)) * 2.6  # three shares of 1 MB
    assert across_us < best.end_us < across_us + 3 * 0.3 + 10 / 3 * 7 * 0.1, (
        "less than a tenth of a share is handed out last"
    )


@pytest.mark.parametrize("topology", [formula_topology("hpn:17"), load_topology("ndv2", 2)])
def test_many_nodes_and_shared_lanes_are_left_to_others(topology):
    assert found_on(topology)[1] == []
