"""Reduce as a Broadcast backwards."""

from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.reversal import reduce_by_broadcast
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, ring

OPTIONS = Options(limits=Limits(seconds=2.0, by_work=True))


@pytest.mark.parametrize(("machine", "engine"), [("mi250x", "trees"), ("ring:5", "trees"), ("ndv4-x2", "hierarchy")])
def test_where_links_cost_the_same_both_ways_a_reduce_takes_as_long_as_a_broadcast(machine, engine):
    topology = load_topology(machine)
    demands = [Demand(topology, kind, 16.0 * MB, root=1) for kind in (Kind.BROADCAST, Kind.REDUCE)]
    broadcast, reduce = (load_engine(engine)(demand, OPTIONS, Events()).schedule for demand in demands)
    assert reduce.makespan_us == pytest.approx(broadcast.makespan_us)
    assert not verify_schedule(reduce)


def asked_on(topology):
    """Machines on which a Broadcast is found for a Reduce on one."""
    asked = []

    def engine(demand, options, events):
        asked.append(demand.topology)
        return load_engine("trees")(demand, options, events)

    found = reduce_by_broadcast(engine, Demand(topology, Kind.REDUCE, 1.0 * MB), OPTIONS, Events())
    assert not verify_schedule(found.schedule)
    return asked


def test_the_machine_itself_is_asked_where_it_is_its_own_reverse_and_its_reverse_elsewhere():
    same = load_topology("ring:4")
    assert asked_on(same) == [same]
    uneven = ring(4)
    uneven = replace(uneven, symmetry=(), links=(replace(uneven.links[0], beta_us_per_mb=77.0), *uneven.links[1:]))
    assert asked_on(uneven) == [uneven.reversed()]
