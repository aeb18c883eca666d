"""Plans by switch beside the bound: known times on one ND H100 v5 node, and no plan below what is proved."""

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.in_network import lower_by_switch
from taccl_py.lowering.mscclpp import PlanOptions
from taccl_py.schedule.ir import Schedule
from taccl_py.topology.catalog import load_topology
from tests.lowering.cases import MB


def wanted(machine, kind, *, chunk_bytes=MB, chunks_per_rank=1, root=0):
    """A schedule without messages: plans by switch ask only for machine, chunks and size."""
    topology = load_topology(machine)
    collective = Collective(Kind(kind), topology.num_ranks, chunks_per_rank, root)
    return Schedule(topology, collective, chunk_bytes, (), ((),) * topology.num_ranks)


@pytest.mark.parametrize(
    ("kind", "time_us", "bound_us"),
    [
        # 450 GB/s and 0.3 us; 9 MB through each port out and in, and 8 sums, which are loaded before they are stored.
        ("allreduce", 9 / 0.45 + 8 * 0.3 + 0.3, 8 / 0.45 + 0.3),
        ("allgather", 8 / 0.45 + 8 * 0.3, 7 / 0.45 + 0.3),
        ("broadcast", 1 / 0.45 + 0.3, 1 / 0.45 + 0.3),
    ],
)
def test_one_node_takes_what_its_ports_take(kind, time_us, bound_us):
    found = lower_by_switch(wanted("ndv5", kind), PlanOptions())
    assert found.replay.makespan_us == pytest.approx(time_us, rel=1e-3)
    assert found.bound.time_us == pytest.approx(bound_us, rel=1e-3)
    assert found.gap == pytest.approx(time_us / bound_us - 1, abs=2e-3)


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast"])
@pytest.mark.parametrize("chunk_bytes", [16, 4096, 8 * MB])
@pytest.mark.parametrize("instances", [1, 4])
def test_no_plan_is_faster_than_the_bound(kind, chunk_bytes, instances):
    found = lower_by_switch(wanted("ndv5", kind, chunk_bytes=chunk_bytes), PlanOptions(instances=instances))
    assert found.replay.makespan_us >= found.bound.time_us * (1 - 1e-9)
