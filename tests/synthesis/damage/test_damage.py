"""Damaged machines: the whole machine behind them, and schedules that are right and near their bounds."""

import math
import random
import threading
from dataclasses import replace

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.damage import healing, mending
from taccl_py.synthesis.damage.healing import has_alike_nodes, has_whole_sorts, healed, healed_by_sort, link_images
from taccl_py.synthesis.damage.mending import mended_schedules
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.synthesis.damage.reweigh import weighed_plans
from taccl_py.synthesis.damage.routes import Damage, ExchangePartners
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy, written
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, LinkChoice, SlowLink, SlowPort, degraded
from taccl_py.verify.schedule import verify_schedule

MIB = 1 << 20
LIMITS = Limits(seconds=2.0, workers=1, by_work=True)
NIC_GONE = Degradation(missing_ports=("node 1 ib1 *",))
NIC_SLOW = Degradation(slow_ports=(SlowPort("node 1 ib1 *", 0.5),))
NODE_SLOW = Degradation(slow_ports=(SlowPort("node 0 *", 0.5),))
LINK_GONE = Degradation(missing=(LinkChoice(0, 2),))
KINDS = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.BROADCAST, Kind.ALLTOALL)


def cluster(nodes, ranks):
    """Nodes of the first ranks of an ND A100 v4."""
    return load_topology("ndv4", nodes).subset([8 * node + rank for node in range(nodes) for rank in range(ranks)])


def costs(topology):
    """Links with their costs and those of their ports, in an order of their own."""
    return sorted(
        (link.src, link.dst, link.latency_us, *(topology.resource_cost[each] for each in topology.resources_of[index]))
        for index, link in enumerate(topology.links)
    )


def mended(topology, kind, size_bytes):
    demand = Demand(topology, kind, float(size_bytes))
    bound = demand_bound(topology, kind, 0, float(size_bytes), LIMITS)
    found = mended_schedules(demand, bound, LIMITS, Events(), written)
    return min(found, key=lambda schedule: schedule.makespan_us), bound


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize(
    "damage",
    [
        NIC_GONE,
        NIC_SLOW,
        Degradation(missing=(LinkChoice(0, 2),)),
        Degradation(slow=(SlowLink(LinkChoice(1, 2), 0.25),)),
        Degradation(missing_ports=("node 0 ib0 in", "node 1 ib2 out")),
        Degradation(slow_ports=(SlowPort("node 1 *", 0.3),)),
    ],
)
def test_the_whole_machine_is_found_again(nodes, damage):
    whole = cluster(nodes, 4)
    broken = degraded(whole, damage)
    again = healed(broken)
    assert again is not None
    assert costs(again) == costs(whole)
    for link, image in enumerate(link_images(again, broken)):
        ends = (again.links[link].src, again.links[link].dst)
        assert (image is None) == (ends not in broken.links_between)


@pytest.mark.parametrize("name", ["ndv4", "ndv2", "mi250x", "ndv5"])
def test_nothing_is_healed_where_nodes_are_alike(name):
    assert healed(load_topology(name, 2)) is None


def test_nothing_is_healed_on_one_node_or_on_nodes_of_two_sizes():
    assert healed(degraded(load_topology("ndv4", 1), Degradation(missing=(LinkChoice(0, 1),)))) is None
    assert healed(load_topology("ndv4", 2).subset([*range(8), 8, 9, 10])) is None


MIXED_SLOW = Degradation(slow_ports=(SlowPort("node 1 ib3 *", 0.5),))
MIXED_GONE = Degradation(missing_ports=("node 1 ib3 *",))


@pytest.mark.parametrize("name", ["h100+a100", "h100+a100-x2", "h100-x2+a100-x2", "ndv5-x2+dgx2-x2"])
@pytest.mark.parametrize(
    "damage",
    [
        MIXED_SLOW,
        MIXED_GONE,
        Degradation(missing_ports=("node 0 ib3 in",)),
        Degradation(missing=(LinkChoice(0, 1),)),
    ],
)
def test_nodes_are_healed_by_others_of_their_sort(name, damage):
    """Or by their own ports and nodes of other sorts, where they are the only one."""
    whole = load_topology(name)
    assert healed_by_sort(whole) is None
    assert has_whole_sorts(whole)
    broken = degraded(whole, damage)
    again = healed_by_sort(broken)
    assert again is not None
    assert costs(again) == costs(whole)
    assert not has_whole_sorts(broken)


def test_nodes_of_one_sort_are_left_to_be_healed_together():
    whole = load_topology("ndv4", 2)
    assert healed_by_sort(whole) is None
    assert healed_by_sort(degraded(whole, MIXED_SLOW)) is None
    assert not has_whole_sorts(whole)


def with_rates(topology, factor_of):
    """The machine with the cost of every port times a factor, by its node."""
    ports = [
        replace(port, beta_us_per_mb=port.beta_us_per_mb * factor_of(int(port.name.split()[1])))
        for port in topology.ports
    ]
    return replace(topology, ports=tuple(ports), symmetry=())


def test_measured_nodes_are_of_one_sort_though_no_rates_are_equal():
    draw = random.Random(1)
    measured = with_rates(load_topology("ndv4", 4), lambda _: 1 + 0.1 * draw.random())
    assert healed_by_sort(measured) is None
    assert not has_whole_sorts(measured)


def test_many_sorts_lend_each_other_what_one_has_lost():
    """Each of eight nodes is half as fast again as the one before."""
    whole = with_rates(load_topology("ndv4", 8), lambda node: 1.5**node)
    assert has_whole_sorts(whole)
    again = healed_by_sort(degraded(whole, Degradation(missing_ports=("node 5 ib3 *",))))
    assert again is not None
    assert costs(again) == costs(whole)


@pytest.mark.parametrize(
    "damage",
    [None, NIC_SLOW, NODE_SLOW, Degradation(missing=(LinkChoice(0, 4),)), Degradation(missing_ports=("node * ib1 *",))],
)
def test_nodes_that_are_alike_by_symmetry_are_those_that_need_no_healing(monkeypatch, damage):
    """A link between two nodes may be lost in symmetry, and is missing all the same."""
    topology = cluster(2, 4) if damage is None else degraded(cluster(2, 4), damage)
    again = replace(topology)  # which remembers nothing
    monkeypatch.setattr(healing, "has_alike_nodes", lambda _: False)
    whole = healed(again)
    monkeypatch.undo()
    found = healed(topology)
    assert (found is None) == (whole is None) == has_alike_nodes(topology)
    assert whole is None or costs(found) == costs(whole)


def test_a_node_that_is_built_otherwise_lends_nothing():
    """Eight GPUs of a DGX-2 share four NICs; those of an ND H100 v5, each of which has its own, get none of them back."""
    broken = degraded(load_topology("ndv5+dgx2"), Degradation(missing_ports=("node 0 ib3 *",)))
    assert healed_by_sort(broken) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage", "kind", "size_mib", "most_us"),
    [
        # Mending what is for nodes that are all H100 takes 149 us, the whole machine 110.7.
        ("h100+a100", MIXED_SLOW, Kind.ALLREDUCE, 16, 125),
        # 300 us, and the whole machine 202.9.
        ("h100+a100", MIXED_GONE, Kind.ALLGATHER, 64, 245),
    ],
)
def test_what_was_planned_for_nodes_of_two_sorts_serves_where_one_of_them_is_damaged(
    name, damage, kind, size_mib, most_us
):
    topology = degraded(load_topology(name), damage)
    demand = Demand(topology, kind, float(size_mib * MIB))
    answer = synthesize_hierarchy(demand, Options(limits=replace(LIMITS, seconds=5.0)), Events())
    assert verify_schedule(answer.schedule) == ()
    assert answer.schedule.makespan_us <= most_us


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [MIXED_SLOW, MIXED_GONE])
def test_nodes_of_unequal_size_are_mended(kind, damage):
    topology = degraded(load_topology("ndv5-x2+dgx2"), damage)
    answer = synthesize_hierarchy(Demand(topology, kind, float(MIB)), Options(limits=LIMITS), Events())
    assert verify_schedule(answer.schedule) == ()
    assert answer.schedule.topology == topology


def test_ports_of_one_kind_stay_apart_after_healing():
    """A NIC that is gone comes back as a port of its own, which its links share again."""
    again = healed(degraded(cluster(2, 4), NIC_GONE))
    assert again is not None
    rank = 5
    out = {port for link in again.links if link.src == rank and link.dst < 4 for port in link.ports}
    into = {port for link in again.links if link.dst == rank and link.src < 4 for port in link.ports}
    assert len([port for port in out if again.ports[port].beta_us_per_mb == 40.0]) == 1 + 4
    assert len([port for port in into if again.ports[port].beta_us_per_mb == 40.0]) == 1 + 4
    assert not {p for p in out if "restored" in again.ports[p].name} & {
        p for p in into if "restored" in again.ports[p].name
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (damage, kind)
        for row, damage in enumerate((NIC_GONE, NIC_SLOW, NODE_SLOW, LINK_GONE))
        for column, kind in enumerate(KINDS)
        if (row + column) % 2 == 0
    ],
)
def test_mended_schedules_are_right(damage, kind):
    topology = degraded(cluster(2, 4), damage)
    schedule, bound = mended(topology, kind, MIB)
    assert verify_schedule(schedule) == ()
    assert schedule.topology == topology
    assert schedule.size_bytes == pytest.approx(MIB)
    assert schedule.makespan_us >= bound.time_us * (1 - 1e-9)


@pytest.mark.slow
def test_an_allreduce_loses_as_much_as_the_lanes_do():
    """Of four lanes one is gone: what three carry takes 4/3 of the time, and not much more."""
    whole = cluster(2, 4)
    before = written(
        Demand(whole, Kind.ALLREDUCE, 64.0 * MIB), demand_bound(whole, Kind.ALLREDUCE, 0, 64.0 * MIB, LIMITS), LIMITS, Events()
    )  # fmt: skip
    best_us = min(schedule.makespan_us for schedule in before)
    gone, _ = mended(degraded(whole, NIC_GONE), Kind.ALLREDUCE, 64 * MIB)
    slow, _ = mended(degraded(whole, NIC_SLOW), Kind.ALLREDUCE, 64 * MIB)
    assert gone.makespan_us <= best_us * 4 / 3 * 1.02
    assert slow.makespan_us <= best_us * 8 / 7 * 1.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "damage", "gap"),
    [(2, NIC_SLOW, 0.15), (2, NIC_GONE, 0.145), (4, NIC_SLOW, 0.165), (4, NIC_GONE, 0.145)],
    ids=["two-slow", "two-gone", "four-slow", "four-gone"],
)
def test_an_allgather_is_near_its_bound(nodes, damage, gap):
    """What lanes carry for the damaged one goes with their own, so that ports are as evenly busy as on the whole machine."""
    schedule, bound = mended(degraded(load_topology("ndv4", nodes), damage), Kind.ALLGATHER, 64 * MIB)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= bound.time_us * (1 + gap)


def test_lanes_that_not_all_nodes_have_stand_in_for_none():
    """The slow NIC is that of a rank whose place the smaller node does not have."""
    topology = load_topology("ndv4", 2).subset([0, 1, 2, 3, 8, 9])
    collective = Collective(Kind.ALLGATHER, 6)
    untimed = [UntimedMessage(index, (link.src,), 0, 1) for index, link in enumerate(topology.links)]
    old = build_schedule(topology, collective, float(MIB), untimed)
    slow = degraded(topology, Degradation(slow_ports=(SlowPort("node 0 ib3 *", 0.5),)))
    damage = Damage(old, slow)
    assert damage.damaged_ranks == (3,)
    assert not any(
        exchange for block in damage.blocks for exchange in damage.exchanges(block, ExchangePartners.IN_ALL_NODES)
    )
    lane = Damage(old, degraded(topology, Degradation(slow_ports=(SlowPort("node 0 ib1 *", 0.5),))))
    assert {(1, 0), (0, 1)} <= {
        pair
        for block in lane.blocks
        for each in lane.exchanges(block, ExchangePartners.IN_ALL_NODES)
        for pair in each.items()
    }


def test_one_plan_is_in_chunks_that_steps_of_the_runtime_carry_whole():
    """Weights alone cut so finely that a message has hundreds of chunks, each step of which carries 71 at most."""
    demand = Demand(degraded(cluster(2, 4), NIC_SLOW), Kind.ALLREDUCE, float(16 * MIB))
    bound = demand_bound(demand.topology, demand.kind, 0, demand.size_bytes, LIMITS)
    found = mended_schedules(demand, bound, LIMITS, Events(), written)
    longest = [max(len(message.chunks) for message in schedule.messages) for schedule in found]
    assert max(longest) > demand.message_chunks >= min(longest)
    assert all(verify_schedule(schedule) == () for schedule in found)
    coarse = found[longest.index(min(longest))]
    assert coarse.makespan_us <= 1.15 * min(schedule.makespan_us for schedule in found)


@pytest.mark.slow
def test_a_number_of_chunks_that_is_asked_for_is_kept():
    demand = replace(Demand(degraded(cluster(2, 4), NIC_SLOW), Kind.ALLREDUCE, float(MIB)), chunks_per_rank=16)
    bound = demand_bound(demand.topology, demand.kind, 0, demand.size_bytes, LIMITS)
    found = mended_schedules(demand, bound, LIMITS, Events(), written)
    assert {schedule.collective.chunks_per_rank for schedule in found} == {16}


def test_plans_of_the_whole_machine_are_sought_for_a_part_of_the_time():
    """The rest is for what is made of them."""
    machine, sought = degraded(cluster(2, 4), NIC_GONE), []

    def writer(demand, bound, limits, events):
        sought.append((limits.seconds, demand.topology.name))
        return written(demand, bound, limits, events)

    demand = Demand(machine, Kind.ALLGATHER, MIB)
    bound = demand_bound(machine, demand.kind, 0, demand.size_bytes, LIMITS)
    assert mended_schedules(demand, bound, LIMITS, Events(), writer, math.inf)
    ((seconds, _),) = sought
    assert seconds == pytest.approx(PARAMS.whole_part * LIMITS.seconds, rel=0.2)


def test_weights_of_no_further_plan_are_sought_when_time_is_over(monkeypatch):
    demand, weighed = Demand(degraded(cluster(2, 4), NIC_GONE), Kind.ALLREDUCE, float(MIB)), []
    limits = Limits(seconds=60.0, workers=1, stop=threading.Event())

    def writer(demand, bound, _, events):
        found = written(demand, bound, LIMITS, events)
        limits.stop.set()
        return found

    def recorded(plan, demand, within):
        for each in weighed_plans(plan, demand, within):
            weighed.append(plan)
            yield each

    monkeypatch.setattr(mending, "weighed_plans", recorded)
    bound = demand_bound(demand.topology, demand.kind, 0, demand.size_bytes, LIMITS)
    (schedule,) = mended_schedules(demand, bound, limits, Events(), writer)
    assert len(weighed) == 1
    assert verify_schedule(schedule) == ()


def test_plans_of_too_many_messages_are_left_out():
    demand = Demand(cluster(2, 4), Kind.BROADCAST, float(MIB))
    bound = demand_bound(demand.topology, demand.kind, 0, demand.size_bytes, LIMITS)
    every = written(demand, bound, LIMITS, Events())
    most = sorted(len(schedule.messages) for schedule in every)[len(every) // 2]
    few = written(demand, bound, LIMITS, Events(), most_messages=most)
    assert few
    assert max(len(schedule.messages) for schedule in few) <= most < max(len(schedule.messages) for schedule in every)
    least = min(len(schedule.messages) for schedule in every)
    (smallest,) = written(demand, bound, LIMITS, Events(), most_messages=1)  # none is so small
    assert len(smallest.messages) <= least


def test_a_slow_nic_carries_its_part_of_a_broadcast(monkeypatch):
    """Half a NIC of four: 3.5 in place of 4, where a Broadcast over the whole lanes alone has three; with sizes it is faster than without."""
    healthy = Demand(cluster(2, 4), Kind.BROADCAST, float(16 * MIB))
    whole_us = min(
        each.makespan_us for each in written(healthy, demand_bound(healthy.topology, healthy.kind, 0, 1.0, LIMITS), LIMITS, Events())
    )  # fmt: skip
    topology = degraded(healthy.topology, NIC_SLOW)
    found, bound = mended(topology, Kind.BROADCAST, 16 * MIB)
    assert verify_schedule(found) == ()
    assert bound.time_us <= found.makespan_us <= 8 / 7 * whole_us
    nic = next(number for number, port in enumerate(topology.ports) if "node 1 ib1 in" in port.name)
    into = {link for link, resources in enumerate(topology.resources_of) if len(topology.links) + nic in resources}
    assert any(message.link in into for message in found.messages)
    monkeypatch.setattr(mending, "_sized", lambda *_: None)
    without, _ = mended(topology, Kind.BROADCAST, 16 * MIB)
    assert found.makespan_us < 0.97 * without.makespan_us


def test_weights_that_come_to_the_same_are_one_plan(monkeypatch):
    topology = degraded(cluster(2, 4), NIC_GONE)
    demand = Demand(topology, Kind.ALLREDUCE, float(MIB))
    whole = healed(topology)
    assert whole is not None
    there = replace(demand, topology=whole)
    (plan, *_) = written(there, demand_bound(whole, there.kind, 0, there.size_bytes, LIMITS), LIMITS, Events())
    monkeypatch.setattr(mending, "PARAMS", replace(PARAMS, most_plans=100))
    chosen = mending._promising([plan], demand, LIMITS)
    assert len(list(weighed_plans(plan, demand, LIMITS))) >= len(chosen) > 0
    assert len({each.time_us for each in chosen}) == len(chosen)


def test_a_plan_that_comes_back_to_its_first_node_has_no_route_over_other_lanes():
    """Rank 0's chunk reaches rank 2 by way of rank 5; with lanes 1 and 2 exchanged that would be rank 1, which has it from rank 0."""
    whole = cluster(2, 3)
    path = [(0, 1), (0, 3), (3, 4), (3, 5), (5, 2)]
    messages = tuple(
        Message(whole.links_between[pair][0], (0,), float(number), number + 1.0) for number, pair in enumerate(path)
    )
    plan = Schedule(whole, Collective(Kind.ALLGATHER, 6), float(MIB), messages, ((),) * 6)
    damage = Damage(plan, degraded(whole, Degradation(slow_ports=(SlowPort("node 1 ib2 *", 0.5),))))
    block = damage.blocks[0]
    assert damage.route(block, {1: 2, 2: 1, 4: 5, 5: 4}) is None
    straight = replace(plan, messages=(*messages[:4], replace(messages[4], link=whole.links_between[0, 2][0])))
    found = replace(damage, plan=straight).route(block, {1: 2, 2: 1, 4: 5, 5: 4})
    assert [(whole.links[link].src, whole.links[link].dst) for _, link in found] == [
        (0, 1),
        (0, 3),
        (3, 5),
        (3, 4),
        (0, 2),
    ]


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE])
def test_a_slow_nic_is_also_left_out_altogether(kind):
    """Where its messages would be small, what the others carry is faster than a little more over the slow one."""
    slow = Demand(degraded(cluster(2, 4), NIC_SLOW), kind, float(MIB))
    gone = replace(slow, topology=degraded(cluster(2, 4), NIC_GONE))
    whole = healed(slow.topology)
    there = replace(slow, topology=whole)
    (plan, *_) = written(there, demand_bound(whole, kind, 0, there.size_bytes, LIMITS), LIMITS, Events())
    times_us = {each.time_us for each in weighed_plans(plan, slow, LIMITS)}
    assert times_us > {each.time_us for each in weighed_plans(plan, gone, LIMITS)}
