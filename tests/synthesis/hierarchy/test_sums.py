"""Small AllReduce of two sparse nodes, as fast as it can be."""

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.sums import SumExchange
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule


def test_two_mi250x_nodes_add_up_in_three_hops_beside_the_network():
    """2.6 us across and 3 hops of 0.8 us, and 1 KiB at 16 GB/s and three times at 50 GB/s or more."""
    topology = load_topology("mi250x", 2)
    exchange = SumExchange.of(topology, Limits())
    schedule = fitted(Demand(topology, Kind.ALLREDUCE, 1024.0), TemplatePlan(1, exchange.messages(32)))
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= 2.6 + 3 * 0.8 + 1024 / 16e3 + 3 * 1024 / 50e3
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us < 7.0


def test_other_machines_have_none():
    for machine, nodes in (("ndv2", 2), ("mi250x", 1), ("ndv4", 3)):
        assert SumExchange.of(load_topology(machine, nodes), Limits()) is None
