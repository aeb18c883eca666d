"""One copy a node: what crosses by hand, dispatch and combine on data, and a router limited to groups near its bound."""

from types import SimpleNamespace

import numpy as np
import pytest

from taccl_py.demand.moe import RouterLaw, moe_combine, moe_dispatch
from taccl_py.execute.demand import RunnableDemand, draw_inputs, run_demand
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.synthesis.demands.bound import bound_of_demand
from taccl_py.synthesis.demands.classes import classes_of
from taccl_py.synthesis.demands.multicast import _items, multicast_plans
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, full, hosts

MAKERS = (moe_dispatch, moe_combine)


def planned(topology, demand, *, is_matched=False):
    schedules = [p.timed() for p in multicast_plans(topology, demand, classes_of(demand), is_matched=is_matched)]
    for schedule in schedules:
        assert verify_demand_schedule(schedule, demand) == ()
    return schedules


def crossing_bytes(schedule):
    node_of, links = schedule.topology.node_of, schedule.topology.links
    return sum(
        schedule.size_bytes(message.chunks)
        for message in schedule.messages
        if node_of[links[message.link].src] != node_of[links[message.link].dst]
    )


@pytest.mark.parametrize("is_sum", [False, True])
def test_one_copy_crosses_for_all_ranks_of_a_node(is_sum):
    """1000 bytes between rank 0 and all ranks of two other nodes cross twice."""
    others = list(range(8, 24))
    ways = {"adds": others, "wants": [0]} if is_sum else {"holds": [0], "wants": others}
    schedules = planned(load_topology("ndv5", 3), demand_of(24, [{"bytes": 1000, **ways}]))
    assert schedules
    assert all(crossing_bytes(schedule) == 2000 for schedule in schedules)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("is_matched", [False, True])
def test_dispatch_and_combine_are_right_on_data(make, is_matched):
    demand = make(RouterLaw(32, 4, exponent=1.0).draw(16, 6, seed=3), 32, 16, 16, "float32")
    for schedule in planned(load_topology("ndv4", 2), demand, is_matched=is_matched)[:1]:
        runnable = RunnableDemand.read(write_demand_schedule(schedule), "schedule.json")
        done = run_demand(runnable, draw_inputs(runnable.demand, 1))
        assert done.num_wrong == 0, done.first_wrong


@pytest.mark.parametrize("make", MAKERS)
def test_lanes_share_what_one_rank_has(make):
    """All tokens of two nodes lie on one rank and go to one rank of each other node: eight NICs carry them, not one."""
    routing = np.full((16 * 64, 1), -1)
    routing[:64, 0] = 8
    topology = load_topology("ndv5", 2)
    demand = make(routing, 16, 16, 1 << 20)
    best = min(schedule.makespan_us for schedule in planned(topology, demand))
    assert best <= 1.3 * bound_of_demand(topology, demand).time_us


def test_nothing_where_nodes_have_no_nics_or_there_is_one_node():
    demand = demand_of(8, [{"bytes": 1000, "holds": [0], "wants": [1, 4, 5]}])
    assert planned(full(8), demand) == []
    assert planned(hosts(2), demand) != []
    several = demand_of(8, [{"bytes": 1000, "holds": [0, 1], "wants": [4, 5]}])
    assert planned(hosts(2), several) == []


@pytest.mark.slow
@pytest.mark.parametrize(("make", "token_bytes"), [(moe_dispatch, 16 * 7392), (moe_combine, 16 * 14336)])
def test_a_router_limited_to_half_of_the_groups_comes_near_its_bound(make, token_bytes):
    """DeepSeek's top 8 of 256 experts in 4 of 8 groups on 8 nodes, with 256 tokens of a rank, each sixteen times as large."""
    demand = make(RouterLaw(256, 8, groups=8, topk_groups=4).draw(64, 256, seed=0), 256, 64, token_bytes)
    topology = load_topology("ndv5", 8)
    schedule = next(p.timed() for p in multicast_plans(topology, demand, classes_of(demand), is_matched=False))
    assert schedule.makespan_us <= 1.1 * bound_of_demand(topology, demand).time_us


def test_pieces_of_several_ranks_go_side_by_side_and_sums_first():
    """Two nodes of two: two copies of unequal size are cut as finely, and a sum that the second rank of a node wants comes first."""
    chunks = [
        {"bytes": 4000, "holds": [0], "wants": [2]},
        {"bytes": 2000, "holds": [1], "wants": [3]},
        {"bytes": 2000, "adds": [1, 3], "wants": [3]},
    ]
    demand = demand_of(4, chunks)
    ends = [(0, (2,)), (1, (3,)), (1, (3,))]
    items = _items(hosts(2, gpus=2), demand, classes_of(demand), ends, SimpleNamespace(us_per_mb=(1.0, 1.0)))
    assert [item.number for item in items] == list(range(len(items)))
    are_sums = [item.parts[0][0] == 2 for item in items]
    sums = sum(are_sums)
    assert are_sums == [True] * sums + [False] * (len(items) - sums)
    sources = [item.source for item in items[sums:]]
    assert [sources[:9].count(0), sources.count(0) // sources.count(1)] == [6, 2]
