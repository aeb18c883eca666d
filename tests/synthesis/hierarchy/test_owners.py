"""AllReduce over nodes of several sorts: shares by hand, valid plans, and what they cost."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy import strategies
from taccl_py.synthesis.hierarchy.owners import NodeOwners
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, SlowPort, degraded
from taccl_py.topology.template import AlphaBeta, Nic, NodeSwitch, NodeTemplate, join_nodes
from taccl_py.verify.schedule import verify_schedule


def node(ranks, nic_us_per_mb, inside_us_per_mb=1.0):
    """Ranks on a switch with a NIC each."""
    everyone = tuple(range(ranks))
    return NodeTemplate(
        f"{ranks}-{nic_us_per_mb:g}", "", "", ranks,
        switches=(NodeSwitch("switch", everyone, AlphaBeta(0.5, inside_us_per_mb)),) if ranks > 1 else (),
        nics=tuple(Nic(f"ib{rank}", (rank,), AlphaBeta(2.0, nic_us_per_mb)) for rank in everyone),
    )  # fmt: skip


def owners(*nodes):
    return NodeOwners.of(join_nodes(nodes, "mixed"))


def test_two_nodes_at_half_the_rate_of_two_others_own_nothing():
    # A fast node that owns half hears three times that from others, and tells half: 2 of all at 20 us/MB; a slow one tells and hears
    # all once at 40.
    found = owners(node(2, 20.0), node(2, 20.0), node(2, 40.0), node(2, 40.0))
    assert found.share == pytest.approx((0.5, 0.5, 0, 0), abs=1e-3)
    assert found.owners == [0, 1]
    # Two lanes, half of the data each.
    assert max(found.load_us) == pytest.approx(20.0, rel=1e-3)


def test_a_slower_node_owns_less():
    # Three nodes; one that owns w is busy with 1 + w of all. At 10, 10 and 13 us/MB: 10 (1 + w) = 13 (1 + v), 2 w + v = 1.
    found = owners(node(2, 10.0), node(2, 10.0), node(2, 13.0))
    v = (10 * 1.5 - 13) / (13 + 10 * 0.5)
    assert found.share == pytest.approx(((1 - v) / 2, (1 - v) / 2, v), abs=1e-3)


def test_nodes_that_are_alike_are_left_to_others():
    assert owners(node(2, 20.0), node(2, 20.0), node(2, 20.0)) is None
    assert NodeOwners.of(load_topology("ndv4")) is None


def test_damage_is_left_to_others():
    whole = load_topology("ndv4-x4")
    for fault in (
        Degradation(slow_ports=(SlowPort("node 1 ib3 *", 0.5),)),
        Degradation(missing_ports=("node 1 ib3 *",)),
    ):
        assert NodeOwners.of(degraded(whole, fault)) is None


def test_ranks_without_a_link_are_left_to_others():
    # On dgx1 not every two GPUs have one.
    assert NodeOwners.of(load_topology("ndv2-x2+ndv4-x2")) is None


def test_a_smaller_node_collects_several_lanes_with_one_rank():
    found = owners(node(4, 20.0), node(2, 20.0), node(4, 20.0))
    assert found.collector == ((0, 1, 2, 3), (4, 4, 5, 5), (6, 7, 8, 9))
    # Its two NICs carry what four carry elsewhere.
    assert found.share[1] < found.share[0]


def test_a_plan_of_uneven_nodes_is_valid():
    topology = join_nodes([node(3, 20.0), node(2, 20.0), node(3, 20.0)], "uneven")
    demand = Demand(topology, Kind.ALLREDUCE, 1 << 20)
    found = NodeOwners.of(topology)
    schedule = fitted(demand, found.plan(demand, 2))
    assert verify_schedule(schedule, kind=Kind.ALLREDUCE) == ()


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    rates=st.lists(st.sampled_from([10.0, 20.0, 40.0]), min_size=4, max_size=4),
    pieces=st.integers(1, 4),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_is_valid_and_no_faster_than_the_bound(sizes, rates, pieces):
    topology = join_nodes([node(size, rate) for size, rate in zip(sizes, rates, strict=False)], "mixed")
    found = NodeOwners.of(topology)
    if found is None:
        return
    demand = Demand(topology, Kind.ALLREDUCE, 1 << 20)
    plan = found.plan(demand, pieces)
    assert len(plan.messages) <= pieces * len(found.collector[0]) * found.messages_of_piece
    schedule = fitted(demand, plan)
    assert verify_schedule(schedule, kind=Kind.ALLREDUCE) == ()
    assert schedule.makespan_us >= demand_bound(topology, Kind.ALLREDUCE, 0, 1 << 20, Limits()).time_us * (1 - 1e-9)


def test_data_that_cannot_be_cut_so_finely_has_no_plan():
    found = owners(node(2, 10.0), node(2, 10.0), node(2, 40.0))
    demand = Demand(found.net.topology, Kind.ALLREDUCE, 1 << 20, chunks_per_rank=1)
    assert found.plan(demand, 64) is None
    assert found.plan(demand, 1) is not None


@pytest.mark.slow
def test_two_h100_and_two_a100_nodes_are_close_to_their_bound():
    # 8.3 ms where all nodes own as much; the bound is 6.14.
    topology = load_topology("h100-x2+a100-x2")
    demand = Demand(topology, Kind.ALLREDUCE, 1 << 30)
    found = NodeOwners.of(topology)
    assert found.share == pytest.approx((0.5, 0.5, 0, 0), abs=1e-3)
    schedule = fitted(demand, found.plan(demand, 16))
    bound = demand_bound(topology, Kind.ALLREDUCE, 0, 1 << 30, Limits())
    assert schedule.makespan_us <= 1.05 * bound.time_us
    assert verify_schedule(schedule) == ()


@pytest.mark.parametrize(
    ("ranks", "pieces"),
    [
        # Eight ranks with 2^k chunks each, two lanes: only 2^k pieces of a lane are of one size.
        ((2, 2, 2, 2), {1, 2, 4, 8}),
        # Twelve ranks, eight lanes: 12 * 2^k chunks are 3 * 2^k pieces of each lane as well.
        ((2, 2, 8), {1, 2, 3, 4, 6, 8, 12}),
    ],
)
def test_all_pieces_of_lanes_are_of_one_size(ranks, pieces, monkeypatch):
    monkeypatch.setattr(strategies, "PARAMS", replace(strategies.PARAMS, most_owner_plans=99))
    nodes = [node(number, 20.0 if place < len(ranks) // 2 else 40.0) for place, number in enumerate(ranks)]
    demand = Demand(join_nodes(nodes, "mixed"), Kind.ALLREDUCE, float(1 << 20))
    found = {strategy.plan.args[1] for strategy in strategies.owner_strategies(demand)}
    assert {number for number in found if number <= 12} == pieces
