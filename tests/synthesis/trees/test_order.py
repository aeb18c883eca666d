from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import DispatchRule, PieceCosts, list_schedule
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.rounding import round_packing
from taccl_py.synthesis.trees.transfers import gather_transfers, reduce_transfers
from taccl_py.topology.catalog import load_topology
from tests.instances import MB, chain, ring
from tests.synthesis.drawn import problems
from tests.synthesis.trees.boxes import boxes
from tests.synthesis.trees.test_packing import network_of, never

RULES = [
    *(
        DispatchRule(patience, backwards=back, seed=seed)
        for patience in (0.0, 0.5)
        for back in (False, True)
        for seed in (0, 3)
    ),
    DispatchRule(paced=True),
    DispatchRule(paced=True, backwards=True),
]


def work(topology, parts, cuts, kind=Kind.ALLGATHER, piece_bytes=MB):
    network = network_of(topology, kind)
    tree_set = round_packing(network, pack_trees(network, never), parts, never)
    return (
        network,
        gather_transfers(network, tree_set, cuts),
        PieceCosts.of(network, piece_bytes, (1,) * (parts * cuts)),
    )


def check(transfers, costs, plan):
    """Every transfer once; nothing before what it waits for; one message at a time on every resource."""
    assert sorted(index for message in plan.messages for index in message.transfers) == list(range(len(transfers)))
    arrival = {index: message.end_us for message in plan.messages for index in message.transfers}
    busy = {}
    for message in plan.messages:
        link = transfers[message.transfers[0]].link
        pieces = [piece for index in message.transfers for piece in range(transfers[index].piece, transfers[index].end)]
        assert pieces == list(range(pieces[0], pieces[0] + len(pieces)))
        assert len({transfers[index].turn for index in message.transfers}) == 1
        assert {(transfers[i].root, transfers[i].link, transfers[i].reduce) for i in message.transfers} == {
            (transfers[message.transfers[0]].root, link, transfers[message.transfers[0]].reduce)
        }
        cost = costs.of_message(link, costs.size(transfers[i] for i in message.transfers))
        assert message.end_us == pytest.approx(message.start_us + cost.time_us)
        for index in message.transfers:
            assert all(arrival[earlier] <= message.start_us + 1e-6 for earlier in transfers[index].after)
        assert [resource for resource, _ in cost.occupied] == list(costs.resources[link])
        for resource, time_us in cost.occupied:
            busy.setdefault(resource, []).append((message.start_us, message.start_us + time_us))
    for spans in busy.values():
        spans.sort()
        assert all(one[1] <= other[0] + 1e-6 for one, other in pairwise(spans))
    assert plan.end_us == pytest.approx(max(arrival.values()))


@given(problems(kinds=(Kind.ALLGATHER, Kind.BROADCAST), most_ranks=5), st.integers(1, 3), st.sampled_from(RULES))
@settings(max_examples=60)
def test_plans_keep_causality_and_share_nothing(drawn, cuts, rule):
    network = CapacityNetwork.of(Problem.build(drawn.topology, drawn.collective, None, MB))
    tree_set = round_packing(network, pack_trees(network, never), 2, never)
    transfers, costs = gather_transfers(network, tree_set, cuts), PieceCosts.of(network, MB / cuts, (1,) * (2 * cuts))
    check(transfers, costs, list_schedule(transfers, costs, rule))


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_sums_come_before_what_is_made_of_them(in_turn, rule):
    topology = load_topology("dgx1")
    network, backward = network_of(topology), network_of(topology.reversed())
    tree_sets = [round_packing(n, pack_trees(n, never), 2, never) for n in (network, backward)]
    sums = reduce_transfers(network, backward, tree_sets[1], 2)
    transfers, costs = gather_transfers(network, tree_sets[0], 2, sums), PieceCosts.of(network, MB, (1,) * 4)
    assert all(transfer.reduce for transfer in transfers[: len(sums)])
    assert len(sums) == len(transfers) / 2
    plan = list_schedule(transfers, costs, DispatchRule(rule.patience, rule.backwards, in_turn, rule.seed))
    check(transfers, costs, plan)


def test_pieces_follow_each_other_down_a_chain():
    _, transfers, costs = work(chain(4, alpha_us=1.0, beta_us_per_mb=10.0), 1, 4, Kind.BROADCAST)
    # Three hops for the first piece, and the other three right behind it.
    assert list_schedule(transfers, costs, DispatchRule()).end_us <= (3 + 3) * 11.0 + 1e-6


def test_neighbours_that_are_ready_together_share_alpha_where_nobody_waits():
    _, transfers, costs = work(chain(2, alpha_us=100.0, beta_us_per_mb=1.0), 1, 4, Kind.BROADCAST)
    plan = list_schedule(transfers, costs, DispatchRule())
    assert plan.end_us == pytest.approx(100.0 + 4.0)


def test_patience_saves_alphas_while_there_is_enough_to_do():
    _, transfers, costs = work(boxes(4), 1, 16, piece_bytes=2 * MB)
    hasty, patient = (list_schedule(transfers, costs, DispatchRule(patience)) for patience in (0.0, 0.5))
    assert len(patient.messages) < len(hasty.messages)
    assert patient.end_us < hasty.end_us


def test_a_ring_is_busy_from_the_beginning_to_the_end():
    _, transfers, costs = work(ring(8), 1, 1)
    assert list_schedule(transfers, costs, DispatchRule()).end_us == pytest.approx(7 * 11.0)


def test_pieces_that_have_their_turns_keep_links_far_from_the_root_busy():
    # 24 trees that fill every link into the ranks: 7158 us. Whatever has the longest path to go first, 11375 us.
    _, transfers, costs = work(load_topology("dgx1"), 24, 11, Kind.BROADCAST, piece_bytes=(1 << 30) / (24 * 11))
    longest_first, in_turns = (
        list_schedule(transfers, costs, DispatchRule(paced=paced)).end_us for paced in (False, True)
    )
    assert in_turns < 8050 < 11000 < longest_first


def test_a_seed_changes_the_order_in_the_same_way_every_time():
    _, transfers, costs = work(load_topology("mi250x"), 3, 1)
    one, other = (list_schedule(transfers, costs, DispatchRule(seed=5)) for _ in range(2))
    assert one == other
    assert one != list_schedule(transfers, costs, DispatchRule())
