"""AllReduce between unequal nodes: who owns what, who stands for whom, and when everything is sent."""

from dataclasses import replace

import numpy as np
import pytest

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Message
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching.dispatch import Barrier, QueuedMessage, dispatch
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.synthesis.matching.owner_shards import OwnerShards, gate_rates
from taccl_py.synthesis.matching.owners import owner_schedule
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, SlowPort, degraded
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.verify.schedule import verify_schedule


def single_ranks(*rates):
    """Nodes of one rank behind a NIC of so many megabytes per microsecond."""
    ports = [Port(f"{rank} {way}", 0.0, 1 / rate) for rank, rate in enumerate(rates) for way in ("out", "in")]
    ranks = range(len(rates))
    links = [Link(a, b, 0.0, 0.1, 0.0, (2 * a, 2 * b + 1)) for a in ranks for b in ranks if a != b]
    return Topology("singles", "", tuple(ranks), tuple(ports), tuple(links))


def broken(nodes, *patterns, slow=None):
    slow_ports = (SlowPort(slow, 0.5),) if slow else ()
    return degraded(load_topology("ndv4", nodes), Degradation(missing_ports=patterns, slow_ports=slow_ports))


def test_a_slower_node_owns_what_makes_all_be_done_at_the_same_time():
    """Rates 1, 1, 1 and 0.8 of 4 nodes: T = 6 / 3.8, and owned is (T B - 1) / 2, so 22, 22, 22 and 10 of 76."""
    shares = OwnerShards.of(single_ranks(1.0, 1.0, 1.0, 0.8), 76)
    assert shares.owned.tolist() == [22, 22, 22, 10]
    assert (shares.gate_of == np.arange(4)[:, None]).all()


def test_a_node_that_needs_all_its_time_for_its_own_data_owns_nothing():
    """At half the rate it takes 2 to send its data once; the others are done after 1 + 2/3."""
    shares = OwnerShards.of(single_ranks(1.0, 1.0, 1.0, 0.5), 30)
    assert shares.owned.tolist() == [10, 10, 10, 0]
    assert shares.rails == ((0, 1, 2),)


def test_ranks_behind_one_nic_share_its_bandwidth():
    assert gate_rates(load_topology("ndv4", 2)) == pytest.approx(np.full(16, 0.025))
    two = load_topology("ndv2", 2)
    nic = next(port for port in two.ports if "node 0" in port.name and "out" in port.name and "ib" in port.name)
    assert gate_rates(two)[:8].sum() == pytest.approx(1 / nic.beta_us_per_mb)
    assert gate_rates(formula_topology("ring:4")).tolist() == [0.0] * 4


def test_the_others_of_a_node_stand_in_for_a_failed_nic_and_share_its_work():
    machine = broken(4, "node 1 ib3 *")
    shares = OwnerShards.of(machine, 32 * 64)
    assert shares.owned[11] == 0
    weights = np.bincount(shares.gate_of[1][shares.owned > 0], weights=shares.owned[shares.owned > 0], minlength=32)
    assert weights[11] == 0
    assert weights[8:16].sum() == 32 * 64
    others = weights[[8, 9, 10, 12, 13, 14, 15]]
    assert others.max() - others.min() <= shares.owned.max()
    assert (shares.gate_of[0][shares.owned > 0] == np.flatnonzero(shares.owned) % 8).all()


def test_messages_share_ports_in_order_and_wait_for_barriers():
    """Two to one rank: the second waits for its port; the third for both; 1 us each."""
    machine = single_ranks(1.0, 1.0, 1.0)
    link = {(k.src, k.dst): n for n, k in enumerate(machine.links)}
    both = Barrier(missing=2)
    one, two = (QueuedMessage(link[src, 2], (0,), True, 1.0, float(src), both) for src in (0, 1))
    QueuedMessage(link[2, 0], (0,), False, 1.0, 0.0).wait(both)
    assert sorted(dispatch(machine, [one, two], []), key=lambda m: m.start_us) == [
        Message(link[0, 2], (0,), 0.0, 1.0, True),
        Message(link[1, 2], (0,), 1.0, 2.0, True),
        Message(link[2, 0], (0,), 2.0, 3.0, False),
    ]


def test_a_message_that_cannot_go_does_not_hold_up_the_next_one():
    machine = single_ranks(1.0, 1.0, 1.0)
    link = {(k.src, k.dst): n for n, k in enumerate(machine.links)}
    jobs = [
        QueuedMessage(link[0, 2], (0, 1), False, 2.0, 0.0),
        QueuedMessage(link[1, 2], (0,), False, 1.0, 1.0),
        QueuedMessage(link[1, 0], (0,), False, 1.0, 2.0),
    ]
    starts = {(m.link): m.start_us for m in dispatch(machine, jobs, [])}
    assert starts == {link[0, 2]: 0.0, link[1, 0]: 0.0, link[1, 2]: 2.0}


def test_a_port_that_another_queue_holds_is_looked_at_again():
    """0->1 and 1->2 pass the same port, which the links out of 0 name first and the one out of 1 last."""
    ports = (Port("shared", 0.0, 1.0), Port("own", 0.0, 1.0))
    links = (Link(0, 1, 0.0, 0.1, 0.0, (0,)), Link(1, 2, 0.0, 0.1, 0.0, (1, 0)))
    machine = Topology("row", "", (0, 0, 0), ports, links)
    late = Barrier(missing=1)
    QueuedMessage(0, (1,), False, 1.0, 3.0).wait(late)
    found = dispatch(
        machine, [QueuedMessage(1, (0,), False, 2.0, 0.0, late), QueuedMessage(0, (0,), False, 1.0, 1.0)], []
    )
    assert [(m.link, m.chunks, m.start_us) for m in found] == [(1, (0,), 0.0), (0, (0,), 2.0), (0, (1,), 3.0)]


@pytest.mark.parametrize("nodes", [2, 3, 5])
@pytest.mark.parametrize("slow", [None, "node 1 *"])
def test_sums_around_failed_nics_and_slow_nodes_are_right(nodes, slow):
    machine = broken(nodes, "node 0 ib3 *", "node 1 ib0 *", slow=slow)
    for size_bytes in (1 << 20, 1 << 30):
        schedule = owner_schedule(machine, size_bytes, None)
        assert verify_schedule(schedule) == ()


def test_in_a_slow_node_nothing_large_is_in_the_way():
    """Inside it messages are for fewer owners than elsewhere, but not so few that alphas count: at 1 MiB, as many as elsewhere."""
    machine = broken(12, slow="node 4 *")

    def most_chunks(schedule, node):
        ends = machine.links
        inside = [m for m in schedule.messages if {ends[m.link].src // 8, ends[m.link].dst // 8} == {node}]
        return max(len(message.chunks) for message in inside)

    large, small = (owner_schedule(machine, size_bytes, None) for size_bytes in (16 << 30, 1 << 20))
    assert most_chunks(large, 4) < most_chunks(large, 3) / 3
    assert most_chunks(small, 4) == most_chunks(small, 3)


def test_uneven_nodes_are_summed_right():
    machine = load_topology("ndv4", 3).subset([*range(8), *range(8, 13), *range(16, 23)])
    assert verify_schedule(owner_schedule(machine, 1 << 28, 5)) == ()


def test_machines_of_one_node_or_without_links_for_it_are_left_alone():
    assert owner_schedule(formula_topology("ring:4"), 1 << 20, None) is None
    assert owner_schedule(load_topology("dgx1", None), 1 << 20, None) is None
    rails_only = load_topology("hpn:2")
    gone = replace(rails_only, links=tuple(k for k in rails_only.links if {k.src, k.dst} != {0, 8}))
    assert owner_schedule(gone, 1 << 20, None) is None or verify_schedule(owner_schedule(gone, 1 << 20, None)) == ()


def test_the_engine_sums_by_owners_within_a_fifth_of_the_bound():
    machine = broken(8, "node 1 ib2 *", "node 2 ib6 *", "node 3 ib0 *", slow="node 4 *")
    options = Options(limits=Limits(seconds=0.1))
    found = synthesize_greedy(Demand(machine, Kind.ALLREDUCE, 16 << 30), options, Events())
    assert "owners" in found.stage_seconds
    assert found.bound == demand_bound(machine, Kind.ALLREDUCE, 0, 16 << 30)
    assert found.gap <= 0.2
