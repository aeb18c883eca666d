"""Three messages of every lane."""

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.hierarchy.gather import by_shard
from taccl_py.synthesis.hierarchy.triples import Triples, triple_messages
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan, turned
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.fabrics import rail_nodes
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.template import instantiate
from taccl_py.verify.schedule import verify_schedule

SHARE = 2048.0


def rails(lanes, nodes):
    return instantiate(rail_nodes("rails", lanes, 200.0, 50.0), nodes)


def cluster_of(topology):
    return LaneCluster.of(TemplateSite(topology, SHARE))


@pytest.mark.parametrize(("lanes", "nodes"), [(2, 4), (2, 6), (4, 9), (4, 20), (8, 23)])
@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER])
def test_everyone_gets_everything_in_the_estimated_time(lanes, nodes, kind):
    topology = rails(lanes, nodes)
    demand = Demand(topology, kind, SHARE * lanes * nodes)
    reduce = kind is Kind.REDUCESCATTER
    cluster = cluster_of(topology.reversed() if reduce else topology)
    triples = Triples.of(cluster, SHARE)
    messages = triple_messages(cluster, triples, SHARE, by_shard((1,)))
    schedule = fitted(demand, TemplatePlan(1, turned(messages, reduce=True) if reduce else messages))
    assert verify_schedule(schedule) == ()
    assert len(schedule.messages) == len(messages), (
        "what goes together lies together, or is copied together where it may be"
    )
    assert schedule.makespan_us <= triples.end_us * (1 + 1e-6)


def test_times_are_as_worked_out_by_hand():
    """Nodes of 2 lanes: one message inside, one round; then each lane knows two nodes, and brings one of the two that are left."""
    triples = Triples.of(cluster_of(rails(2, 5)), SHARE)
    inside, across = 5 * SHARE / 1e6, 20 * SHARE / 1e6
    assert [part.size for part in triples.second] == [2, 2]
    assert triples.third.size == 0
    assert triples.end_us == pytest.approx((0.3 + inside) + 2 * (2.6 + 2 * across) + (0.3 + 2 * inside))


@pytest.mark.parametrize(("lanes", "nodes"), [(3, 9), (8, 9), (2, 13), (8, 91)])
def test_other_clusters_are_left_to_others(lanes, nodes):
    """Nodes of three, nodes of which one round reaches all, and so many of them that three rounds are not enough."""
    assert Triples.of(cluster_of(rails(lanes, nodes)), SHARE) is None


def test_the_third_round_and_the_handing_out_end_together():
    cluster = cluster_of(formula_topology("hpn:64"))
    triples = Triples.of(cluster, SHARE)
    assert triples.end_us < 14.31
    last_us = max(cluster.lane_us(SHARE * part.size) + cluster.node_us(SHARE * part.other) for part in triples.second)
    third_us = cluster.lane_us(SHARE * triples.third.size)
    doubled_us = cluster.lane_us(SHARE * 8) + sum(cluster.node_us(SHARE * n) for n in (1, 2, 4, 8, 16))
    assert triples.end_us == pytest.approx(doubled_us + last_us + third_us, rel=0.01)


def test_with_so_many_shares_in_a_message_more_comes_in_the_third_round():
    """What is handed out (48 shares, 96 and 192) takes 6 messages inside the nodes instead of 3."""
    topology = formula_topology("hpn:64")
    free, limited = (Triples.of(cluster_of(topology), SHARE, most) for most in (None, 71))
    assert free.end_us < limited.end_us < free.end_us + 3 * 0.3
    assert limited.third.size > free.third.size
    messages = triple_messages(cluster_of(topology), limited, SHARE, by_shard((1,)))
    assert max(len(message.chunks) for message in messages) <= 71
    schedule = fitted(Demand(topology, Kind.ALLGATHER, SHARE * 512), TemplatePlan(1, messages))
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= limited.end_us * (1 + 1e-6)


def test_a_limit_that_nothing_reaches_changes_nothing():
    free, limited = (Triples.of(cluster_of(rails(4, 9)), SHARE, most) for most in (None, 71))
    assert (limited.second, limited.third, limited.end_us) == (free.second, free.third, free.end_us)


def test_the_engine_takes_it_where_shares_are_small():
    demand = Demand(rails(4, 16), Kind.ALLGATHER, SHARE * 64)
    found = synthesize_hierarchy(demand, Options(limits=Limits(seconds=300, workers=1)), Events()).schedule
    assert verify_schedule(found) == ()
    assert found.makespan_us <= Triples.of(cluster_of(demand.topology), SHARE).end_us * (1 + 1e-9)
