"""Simpler machines: without slow links, and with nodes as slow as the slowest."""

import math
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.auto import mending_runs
from taccl_py.synthesis.damage.healing import levelled, on_all_links
from taccl_py.synthesis.damage.simpler import (
    levelled_lanes,
    on_simpler_machines,
    simpler_demands,
    simpler_machines,
    without_slow_links,
)
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy import engine as hierarchy_engine
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.known import bound_of
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, LinkChoice, SlowLink, SlowPort, degraded
from taccl_py.verify.schedule import verify_schedule
from tests.synthesis.damage.test_damage import LIMITS, MIB, NIC_GONE, NIC_SLOW, NODE_SLOW, cluster, costs

SLOW_LINK = Degradation(slow=(SlowLink(LinkChoice(0, 4), 0.5),))
NO_LINK = Degradation(missing=(LinkChoice(0, 4),))


def ends(topology):
    return {(link.src, link.dst) for link in topology.links}


def hierarchy_us(topology, kind):
    demand = Demand(topology, kind, 64.0 * MIB)
    found = synthesize_hierarchy(demand, Options(limits=replace(LIMITS, seconds=4.0)), Events())
    assert verify_schedule(found.schedule) == ()
    assert found.schedule.topology == topology
    return found.schedule.makespan_us


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_slow_link_is_left_out(nodes):
    """It is slower than the other links of both of its ranks, and all pairs of nodes are joined without it."""
    slow = degraded(cluster(nodes, 4), SLOW_LINK)
    left = without_slow_links(slow)
    assert ends(slow) - ends(left) == {(0, 4), (4, 0)}
    assert costs(left) == costs(degraded(cluster(nodes, 4), NO_LINK))
    assert without_slow_links(left) is None


@pytest.mark.parametrize(
    "damage", [NIC_SLOW, NIC_GONE, NODE_SLOW, Degradation(slow=(SlowLink(LinkChoice(0, 1), 0.5),))]
)
def test_a_slow_port_is_no_slow_link(damage):
    """All links of a port are as slow as it is; links inside a node are left alone."""
    assert without_slow_links(degraded(cluster(2, 4), damage)) is None


def test_nodes_are_not_parted():
    """Where each rank has one link to the other node, a slow one is what there is."""
    whole = cluster(2, 4)
    rails = [
        link
        for link in whole.links
        if whole.node_of[link.src] == whole.node_of[link.dst] or link.dst % 4 == link.src % 4
    ]
    slow = degraded(replace(whole, links=tuple(rails), symmetry=()), SLOW_LINK)
    assert without_slow_links(slow) is None
    single = whole.subset([0, 4])
    assert without_slow_links(degraded(single, Degradation(slow=(SlowLink(LinkChoice(0, 1), 0.5),)))) is None


def test_one_node_and_whole_machines_have_no_simpler_one():
    assert list(simpler_machines(cluster(2, 4))) == []
    assert list(simpler_machines(load_topology("dgx1", 1))) == []


def test_all_nodes_are_as_slow_as_the_slowest():
    """Both nodes with NICs and links at half is the machine with one node at half, levelled; each node has what it had."""
    whole = cluster(2, 4)
    both = degraded(whole, Degradation(slow_ports=(SlowPort("node 0 *", 0.5), SlowPort("node 1 *", 0.5))))
    assert costs(levelled(degraded(whole, NODE_SLOW))) == costs(both)
    assert levelled(whole) is None
    assert levelled(load_topology("dgx1", 1)) is None


def test_what_some_node_lacks_no_node_has():
    """The third rank of every node has no NIC where one node's has none; lanes are not alike then, so it is no simpler machine."""
    level = levelled(degraded(cluster(2, 4), NIC_GONE))
    across = {(src, dst) for src, dst in ends(level) if src // 4 != dst // 4}
    assert across == {(4 * (1 - node) + a, 4 * node + b) for node in (0, 1) for a in (0, 2, 3) for b in (0, 2, 3)}
    assert levelled_lanes(degraded(cluster(2, 4), NIC_GONE)) is None
    assert levelled_lanes(degraded(cluster(2, 4), NIC_SLOW)) is None
    assert levelled_lanes(degraded(cluster(2, 4), NODE_SLOW)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE])
def test_a_slow_link_costs_no_more_than_a_lost_one(kind):
    whole = cluster(2, 8)
    slow_us = hierarchy_us(degraded(whole, Degradation(slow=(SlowLink(LinkChoice(0, 8), 0.5),))), kind)
    lost_us = hierarchy_us(degraded(whole, Degradation(missing=(LinkChoice(0, 8),))), kind)
    assert slow_us <= lost_us * 1.005


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mixed", "old"),
    [
        (Kind.ALLGATHER, "h100+a100", "a100+a100"),
        (Kind.REDUCESCATTER, "h100+a100", "a100+a100"),
        (Kind.ALLREDUCE, "h100+a100-x3", "ndv4-x4"),
    ],
)
def test_a_newer_node_costs_nothing(kind, mixed, old):
    mixed_us, old_us = (hierarchy_us(load_topology(name, None), kind) for name in (mixed, old))
    assert mixed_us <= old_us * 1.005


def test_a_schedule_for_the_slowest_nodes_gets_the_times_of_the_others():
    demand = Demand(degraded(cluster(2, 4), NODE_SLOW), Kind.ALLGATHER, 16.0 * MIB)
    asked = []

    def search(there, own, limits):
        asked.append(there.topology)
        return synthesize_hierarchy(there, Options(limits=limits, bound=own), Events())

    found = on_simpler_machines(demand, simpler_demands(demand, LIMITS), LIMITS, search)
    assert [costs(each) for each in asked] == [costs(levelled(demand.topology))]
    assert found
    for schedule in found:
        assert schedule.topology is demand.topology
        assert verify_schedule(schedule) == ()


def searched_ones(demand, monkeypatch):
    """Names of simpler machines that engine hierarchy searches."""
    names = []

    def searched(_demand, simpler, _limits, _search):
        names.extend(there.topology.name for there, _ in simpler)
        return []

    monkeypatch.setattr(hierarchy_engine, "on_simpler_machines", searched)
    synthesize_hierarchy(demand, Options(limits=replace(LIMITS, seconds=0.5)), Events())
    return names


@pytest.mark.parametrize(("factor", "size", "searched"), [(0.1, 16.0 * MIB, 0), (0.6, 1.0 * MIB, 1)])
def test_slow_nodes_everywhere_are_planned_for_where_that_may_be_ahead(factor, size, searched, monkeypatch):
    """With four nodes, of which one is slow, an AllReduce is owned by the others in part."""
    slow = Degradation(slow_ports=(SlowPort("node 3 *", factor),))
    demand = Demand(degraded(cluster(4, 4), slow), Kind.ALLREDUCE, size)
    ((there, own),) = simpler_demands(demand, LIMITS)
    assert costs(there.topology) == costs(levelled(demand.topology))
    assert own.time_us > 1.05 * bound_of(demand, LIMITS).time_us
    assert searched_ones(demand, monkeypatch) == [there.topology.name] * searched


def test_a_schedule_that_uses_what_is_gone_is_refused():
    gone = degraded(cluster(2, 4), NO_LINK)
    schedule = synthesize_hierarchy(
        Demand(cluster(2, 4), Kind.ALLGATHER, 1.0 * MIB), Options(limits=LIMITS), Events()
    ).schedule
    with pytest.raises(ValueError, match="is not one of"):
        on_all_links(schedule, gone)


def test_mending_goes_first_where_a_link_is_slow():
    """Both directions of the link are slow, so no other pair of nodes shows what it was."""
    demand = Demand(degraded(cluster(2, 4), SLOW_LINK), Kind.ALLGATHER, math.pow(2, 20))
    assert [run.engine for run in mending_runs(demand)] == ["hierarchy"]
    assert mending_runs(replace(demand, topology=cluster(2, 4))) == []
