"""AllGather by rails: times worked out by hand, and right for every number of nodes."""

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.synthesis.matching.rails import rail_schedule
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.schedule import verify_schedule

KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7])
def test_every_number_of_nodes_is_served(nodes, kind):
    schedule = rail_schedule(formula_topology(f"hpn:{nodes}"), kind, 1024.0)
    assert verify_schedule(schedule, kind=kind) == ()


def test_blocks_double_and_are_handed_out_as_they_come():
    topology = formula_topology("hpn:4")
    schedule = rail_schedule(topology, Kind.ALLGATHER, 1000.0)
    # Between nodes: a block of 1, then one of 2, of 0.001 MB each at 20 us/MB, 2.6 us for a message. Then 7 messages of the block of
    # 2 to the others of the node, 5 us/MB and 0.3 us each; what came before has long been handed out.
    between, last = (2.6 + 0.02) + (2.6 + 0.04), 7 * (0.3 + 0.01)
    assert schedule.makespan_us == pytest.approx(between + last)
    sizes = [len(m.chunks) for m in schedule.messages if topology.node_of[topology.links[m.link].src] == 0]
    crossing = [m for m in schedule.messages if topology.links[m.link].dst // 8 != topology.links[m.link].src // 8]
    assert len(crossing) == 32 * 2
    assert max(sizes) == 2


def test_machines_that_lack_links_or_have_uneven_nodes_are_left_to_others():
    assert rail_schedule(formula_topology("torus:4x4"), Kind.ALLGATHER, 1e6) is None
    ends = [(0, 1), (1, 2), (2, 0), (1, 0)]
    uneven = Topology("uneven", "invented", (0, 0, 1), (), tuple(Link(a, b, 1.0, 1.0) for a, b in ends))
    assert rail_schedule(uneven, Kind.ALLGATHER, 1e6) is None
    even = Topology("cut", "invented", (0, 0, 1, 1), (), tuple(Link(a, (a + 1) % 4, 1.0, 1.0) for a in range(4)))
    assert rail_schedule(even, Kind.ALLREDUCE, 1e6) is None


def test_engine_takes_rails_where_messages_are_small():
    demand = Demand(load_topology("ndv5", 4), Kind.ALLGATHER, 32 << 10, chunks_per_rank=1)
    found = synthesize_greedy(demand, Options(limits=Limits(seconds=60)), Events())
    assert verify_schedule(found.schedule) == ()
    assert found.schedule.makespan_us <= rail_schedule(demand.topology, demand.kind, 1024.0).makespan_us
    assert max(len(message.chunks) for message in found.schedule.messages) > 1
