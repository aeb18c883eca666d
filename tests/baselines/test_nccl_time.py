"""What NCCL's algorithms send, before a profile says what that costs."""

import pytest

from taccl_py.baselines.nccl_ranks import sending_gbps
from taccl_py.baselines.nccl_time import NcclTimes, nccl_machine, runs_of
from taccl_py.collective import Kind
from taccl_py.profiles.catalog import load_profile
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.runtime import RuntimeBounds
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Topology


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST])
def test_nics_are_used_by_several_nodes_alone(kind):
    one, two = (runs_of(nccl_machine(load_topology("ndv4", nodes)), kind, 1e6) for nodes in (1, 2))
    assert one
    assert {(run.far_steps, run.far_bytes) for run in one} == {(0, 0.0)}
    assert all(run.far_steps > 0 and run.far_bytes > 0 for run in two)


def test_rings_are_no_faster_than_the_links_between_two_parts_of_a_node():
    """MI250X: every rank can send 350 GB/s or more, ranks 0 and 1 together 300 to the others, as 200 of each are for the other one."""
    machine, profile = nccl_machine(load_topology("mi250x")), load_profile("rccl-mi250x")
    assert machine.rank_gbps == pytest.approx(300)
    size = float(1 << 30)
    bound = RuntimeBounds.of(machine.topology, Kind.REDUCESCATTER, 0, profile, Limits(seconds=5.0)).at(size)
    ring = NcclTimes(machine, profile).best(Kind.REDUCESCATTER, size)
    assert ring.algorithm == "Ring"
    assert ring.time_us > bound.time_us


def test_ranks_that_are_linked_in_pairs_alone_have_the_rate_of_their_link():
    """Two nodes of two pairs each, with links of 100 GB/s in pairs and between nodes; pairs of a node reach each other through the network."""
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 4), (2, 6), (1, 6), (3, 4)]
    links = tuple(Link(*ends, 1.0, 10.0) for one, two in pairs for ends in ((one, two), (two, one)))
    assert sending_gbps(Topology("pairs", "made up", (0, 0, 0, 0, 1, 1, 1, 1), (), links)) == pytest.approx(100)
