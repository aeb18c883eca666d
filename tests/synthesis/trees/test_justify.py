"""Justification: worked out by hand, never longer, and valid on random machines."""

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import never
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.justify import justified, searched
from taccl_py.synthesis.trees.lift import lifted
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import (
    DispatchRule,
    OrderChoice,
    PieceCosts,
    TransferTimes,
    TreeMessage,
    left_shifted,
    list_schedule,
)
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.resize import in_steps
from taccl_py.synthesis.trees.rounding import round_packing
from taccl_py.synthesis.trees.transfers import PieceTransfer, gather_transfers
from taccl_py.topology.model import Link, Port
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, machine
from tests.random_machines import random_machine

SIZE = 64 << 20


def network_of(topology, kind=Kind.ALLGATHER):
    return CapacityNetwork.of(Problem.build(topology, Collective(kind, topology.num_ranks, 1, 0), None, SIZE))


def shared_port():
    """Rank 0 sends to ranks 1 and 2 through a port, rank 1 on to rank 3; 10 us for each MB, and 20 from rank 1 to rank 3."""
    links = [
        Link(0, 1, 0.0, 10.0, 0.0, (0,)), Link(0, 2, 0.0, 10.0, 0.0, (0,)), Link(1, 3, 0.0, 20.0),
        Link(2, 0, 0.0, 10.0), Link(3, 0, 0.0, 10.0),
    ]  # fmt: skip
    return machine(4, links, [Port("p", 0.0, 10.0)])


TO_THREE = (
    PieceTransfer(0, 0, 0, reduce=False, after=()),
    PieceTransfer(0, 0, 1, reduce=False, after=()),
    PieceTransfer(0, 0, 2, reduce=False, after=(0,)),
)


def test_what_has_farther_to_go_comes_to_go_first():
    """1 MB to rank 2 first takes 10 + 10 + 20 us; the message to rank 2 can wait until 20 us, and then the others start at 0."""
    times = TransferTimes(TO_THREE, PieceCosts.of(network_of(shared_port(), Kind.BROADCAST), MB, (1,)))
    plan = times.left_shifted([TreeMessage((1,), 0.0, 0.0), TreeMessage((0,), 1.0, 0.0), TreeMessage((2,), 2.0, 0.0)])
    assert plan.end_us == pytest.approx(40.0)
    better = justified(times, plan)
    assert better.end_us == pytest.approx(30.0)
    assert {message.transfers: message.start_us for message in better.messages} == pytest.approx(
        {(0,): 0.0, (1,): 10.0, (2,): 10.0}
    )


def choice_of(number, parts, cuts, rule=None):
    """AllGather plan in an order that is drawn, unless there is a rule, and its network."""
    network = network_of(random_machine(number, most_ranks=8))
    transfers = tuple(gather_transfers(network, round_packing(network, pack_trees(network, never), parts, never), cuts))
    costs = PieceCosts.of(network, SIZE / network.num_ranks / parts / cuts, (1,) * (parts * cuts))
    rule = rule or DispatchRule(seed=number + 1)
    return network, OrderChoice(transfers, costs, parts * cuts, rule, list_schedule(transfers, costs, rule))


@pytest.mark.parametrize("number", [2, 4, 14])
@pytest.mark.parametrize(("parts", "cuts", "backwards"), [(1, 3, False), (2, 1, True)])
def test_never_longer_and_valid(number, parts, cuts, backwards):
    network, choice = choice_of(number, parts, cuts, DispatchRule(backwards=backwards, patience=0.25 * (number % 2)))
    plan = justified(TransferTimes(choice.transfers, choice.costs), choice.plan)
    assert plan.end_us <= choice.plan.end_us * (1 + 1e-9)
    assert sorted(m.transfers for m in plan.messages) == sorted(m.transfers for m in choice.plan.messages)
    collective = Collective(Kind.ALLGATHER, network.num_ranks, parts * cuts)
    schedule = lifted(network, OrderChoice(choice.transfers, choice.costs, parts * cuts, None, plan), collective,
                      SIZE / collective.num_chunks)  # fmt: skip
    assert schedule.makespan_us == pytest.approx(plan.end_us)
    assert verify_schedule(schedule) == ()


def test_a_search_is_the_same_again_and_better():
    _, choice = choice_of(2, 2, 2)
    justified_us = justified(TransferTimes(choice.transfers, choice.costs), choice.plan).end_us
    once, twice = (searched(choice, 0, never) for _ in range(2))
    assert once.plan == twice.plan
    assert once.plan.end_us < justified_us < choice.plan.end_us * 0.95


def test_a_message_larger_than_a_step_is_cut_between_its_pieces():
    """Three pieces of 30 chunks are 60 and 30, one after the other in the time of the whole; a single piece stays."""
    transfers = tuple(PieceTransfer(0, piece, 0, reduce=False, after=()) for piece in range(4))
    costs = PieceCosts.of(network_of(shared_port(), Kind.BROADCAST), MB, (30, 30, 30, 90))
    messages = [TreeMessage((0, 1, 2), 10.0, 100.0), TreeMessage((3,), 0.0, 5.0)]
    assert list(in_steps(transfers, costs, messages)) == [
        TreeMessage((0, 1), 10.0, 70.0), TreeMessage((2,), 70.0, 100.0), TreeMessage((3,), 0.0, 5.0)
    ]  # fmt: skip


def test_a_port_is_free_for_others_between_the_parts_of_a_large_piece():
    """A piece of 142 chunks to rank 1 takes two steps of 710 us, in which the port is busy for 71 us each; rank 2 need not wait for both."""
    links = [
        Link(0, 1, 0.0, 10.0, 0.0, (0,)),
        Link(0, 2, 0.0, 10.0, 0.0, (0,)),
        Link(1, 0, 0.0, 10.0),
        Link(2, 0, 0.0, 10.0),
    ]
    network = network_of(machine(3, links, [Port("p", 0.0, 1.0)]), Kind.BROADCAST)
    transfers = TO_THREE[:2]
    costs = PieceCosts.of(network, MB, (142,))
    plan = left_shifted(transfers, costs, [TreeMessage((0,), 0.0, 0.0), TreeMessage((1,), 1.0, 0.0)])
    schedule = lifted(network, OrderChoice(transfers, costs, 142, None, plan),
                      Collective(Kind.BROADCAST, 3, 142, 0), MB)  # fmt: skip
    assert plan.end_us == pytest.approx(142.0 + 1420.0)
    assert schedule.makespan_us <= plan.end_us
