"""512 GPUs: what the engine's time is made of, worked out by hand."""

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.topology.machines import formula_topology
from taccl_py.verify.schedule import judge_schedule

pytestmark = pytest.mark.slow

# A share of 1 MiB is 2048 bytes: 5 us/MB and 0.3 us inside a node, 20 us/MB and 2.6 us between nodes.
INSIDE, ACROSS = 5 * 0.002048, 20 * 0.002048
# Whole nodes are gathered by three doublings; one message for each of 8 other nodes; three doublings of a node for each lane; one
# message of 7 nodes for each lane, which are the 55 others.
BEFORE = 3 * 0.3 + 7 * INSIDE + 2.6 + 8 * ACROSS + 3 * 0.3 + 7 * 8 * INSIDE + 2.6 + 56 * ACROSS
# Three doublings of 7 nodes for each lane.
BEHIND = 3 * 0.3 + 7 * 56 * INSIDE
# Where nodes begin again from 0, the second and the third doubling take two messages; sums lie together.
CUTS = 2 * 0.3


@pytest.mark.parametrize(
    ("kind", "time_us"),
    [
        (Kind.ALLGATHER, BEFORE + BEHIND + CUTS),
        (Kind.REDUCESCATTER, BEFORE + BEHIND),
        (Kind.ALLREDUCE, 2 * (BEFORE + BEHIND) + CUTS),
    ],
)
def test_64_nodes_are_reached_in_two_rounds(kind, time_us):
    demand = Demand(formula_topology("hpn:64"), kind, float(1 << 20))
    schedule = synthesize_hierarchy(demand, Options(limits=Limits(seconds=60, workers=1)), Events()).schedule
    assert judge_schedule(schedule) == ()
    assert schedule.makespan_us <= time_us * (1 + 1e-9)
