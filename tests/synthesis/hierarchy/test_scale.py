"""512 GPUs: what the engine's time is made of, worked out by hand."""

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.topology.machines import formula_topology
from taccl_py.verify.schedule import verify_schedule

pytestmark = pytest.mark.slow

# A share of 1 MiB is 2048 bytes: 5 us/MB and 0.3 us inside a node, 20 us/MB and 2.6 us between nodes.
INSIDE, ACROSS = 5 * 0.002048, 20 * 0.002048
# Whole nodes are gathered by three doublings; one message to each of 8 other nodes; two doublings of a node for each of 4 lanes; 14
# shares of those that the other lanes have heard of; a message of 50 shares, which three doublings hand out while 45 more come.
GATHERED = 3 * 0.3 + 7 * INSIDE + 2.6 + 8 * ACROSS + 2 * 0.3 + 3 * 8 * INSIDE
SECOND = 0.3 + 14 * INSIDE + 2.6 + 50 * ACROSS
HANDED = 3 * 0.3 + 7 * 50 * INSIDE


def test_64_nodes_are_reached_in_three_rounds():
    demand = Demand(formula_topology("hpn:64"), Kind.ALLGATHER, float(1 << 20))
    schedule = synthesize_hierarchy(
        demand, Options(limits=Limits(seconds=1.0, workers=1, by_work=True)), Events()
    ).schedule
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= (GATHERED + SECOND + HANDED) * (1 + 1e-9)
