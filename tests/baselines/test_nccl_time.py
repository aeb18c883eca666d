"""What NCCL's algorithms send, before a profile says what that costs."""

import pytest

from taccl_py.baselines.nccl_time import nccl_machine, runs_of
from taccl_py.collective import Kind
from taccl_py.topology.catalog import load_topology


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST])
def test_nics_are_used_by_several_nodes_alone(kind):
    one, two = (runs_of(nccl_machine(load_topology("ndv4", nodes)), kind, 1e6) for nodes in (1, 2))
    assert one
    assert {(run.far_steps, run.far_bytes) for run in one} == {(0, 0.0)}
    assert all(run.far_steps > 0 and run.far_bytes > 0 for run in two)
