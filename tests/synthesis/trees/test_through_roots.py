"""AllReduce through roots whose parts have any size."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.bounds.roots import RootParts, RootTrees, pack_roots
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees import engine
from taccl_py.synthesis.trees.engine import synthesize_trees
from taccl_py.synthesis.trees.hub import shared_out
from taccl_py.synthesis.trees.lift import lifted
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import DispatchRule, list_schedule
from taccl_py.synthesis.trees.through_roots import RootSearch, of_large_parts, pieces_through_roots
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, machine
from tests.random_machines import random_machine
from tests.synthesis.drawn import draw_machine


def network_of(topology, root=0):
    collective = Collective(Kind.BROADCAST, topology.num_ranks, 1, root)
    return CapacityNetwork.of(Problem.build(topology, collective, None, MB).without_symmetry())


def both_ways_line():
    """Ranks 0 - 1 - 2; links 0 -> 1, 1 -> 0, 1 -> 2, 2 -> 1."""
    return machine(3, [Link(a, b, 1.0, 10.0) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))])


def through(*parts):
    """Packing with parts of these roots and sizes on the line."""
    into = {0: [1, 3], 1: [0, 3], 2: [0, 2]}
    out = {0: [0, 2], 1: [1, 2], 2: [3, 1]}
    trees = tuple(RootTrees(root, np.array(into[root]), np.array(out[root])) for root, _ in parts)
    return RootParts(trees, np.array([amount for _, amount in parts]))


def test_every_piece_is_summed_up_at_its_root_and_handed_out_from_there():
    cut = pieces_through_roots(network_of(both_ways_line()), through((1, 0.75), (0, 0.25)), 4)
    assert cut.sizes == (0.25,) * 4
    told = [(transfer.piece, transfer.link, transfer.reduce, transfer.after) for transfer in cut.transfers]
    # Three pieces at rank 1, whose links in are 0 and 3; one at rank 0, over links 3 and 1.
    assert sorted(told[:2]) == [(0, 0, True, ()), (0, 3, True, ())]
    assert told[6:8] == [(3, 3, True, ()), (3, 1, True, (6,))]
    # Then out: rank 1 hands out what has come from both sides.
    assert sorted(told[8:10]) == [(0, 1, False, (0, 1)), (0, 2, False, (0, 1))]
    assert told[14:] == [(3, 0, False, (7,)), (3, 2, False, (14,))]


def test_parts_that_are_hardly_anything_are_left_to_the_others():
    cut = pieces_through_roots(network_of(both_ways_line()), of_large_parts(through((1, 0.999), (0, 0.001))), 8)
    assert len(cut.sizes) == 8
    assert sum(cut.sizes) == pytest.approx(1)
    assert not any(transfer.link == 1 and transfer.reduce for transfer in cut.transfers)


def test_chunks_are_in_proportion_to_the_parts():
    cut = pieces_through_roots(network_of(both_ways_line()), through((1, 0.6), (2, 0.4)), 2)
    assert cut.chunks(10) == (6, 4)


def plans_of(topology, size_bytes):
    packing = pack_roots(Net.of(topology), OrbitMembers.of_images(topology, []))
    demand = Demand(topology, Kind.BROADCAST, size_bytes, root=packing.trees[0].root)
    network = network_of(topology, demand.root)

    def planned(transfers, costs, rules):
        return {rule: list_schedule(transfers, costs, rule) for rule in rules}

    rules = (DispatchRule(), DispatchRule(paced=True), DispatchRule(paced=True, in_turn=True))
    return network, packing, RootSearch(demand, network, packing, 1, planned).choices(rules, lambda _: False)


def test_fewer_pieces_than_promised_are_not_tried_where_there_is_room_for_as_many():
    """Of 60 rounds of two parts 120 pieces, a quarter of which are 30."""
    network, packing = network_of(both_ways_line()), through((1, 0.75), (0, 0.25))
    demand = Demand(both_ways_line(), Kind.BROADCAST, 1 << 24, root=1)
    tried = []

    def planned(transfers, costs, rules):
        tried.append(len(costs.chunks[0]))
        return {rule: list_schedule(transfers, costs, rule) for rule in rules}

    RootSearch(demand, network, packing, 60, planned).choices((DispatchRule(),), lambda found: len(found) == 2)
    assert tried == [32, 64]


@settings(deadline=None, max_examples=5)
@given(st.integers(0, 10**6))
def test_every_plan_is_a_valid_allreduce(seed):
    rng = random.Random(seed)
    topology = draw_machine(rng, rng.randrange(3, 5))
    demand = Demand(topology, Kind.ALLREDUCE, 1 << 18)
    network, packing, choices = plans_of(topology, 1 << 18)
    for choice in choices[:2]:
        shared = shared_out(demand, choice)
        if shared is None:
            continue
        collective = Collective(Kind.ALLREDUCE, topology.num_ranks, shared.num_chunks)
        schedule = lifted(network, shared, collective, collective.chunk_bytes(1 << 18))
        assert verify_schedule(schedule) == ()
        assert schedule.makespan_us >= packing.load_us * (1 << 18) / MB * (1 - 1e-3)


@pytest.mark.slow
def test_more_pieces_come_nearer_to_the_packing():
    topology = random_machine(2)
    _, packing, choices = plans_of(topology, 64 << 20)
    times = [choice.plan.end_us for choice in choices]
    least_us = packing.load_us * (64 << 20) / MB
    assert times[0] > 1.5 * least_us
    assert min(times) < 1.25 * least_us


@pytest.mark.slow
def test_uneven_owners_are_faster_than_a_reducescatter_and_an_allgather(monkeypatch):
    demand = Demand(random_machine(1, most_ranks=10), Kind.ALLREDUCE, float(64 << 20))
    options = Options(limits=Limits(seconds=1.5, by_work=True))
    found = synthesize_trees(demand, options, Events())
    assert verify_schedule(found.schedule) == ()
    monkeypatch.setattr(engine, "PARAMS", replace(engine.PARAMS, least_gain_of_roots=1e9))
    apart = synthesize_trees(demand, options, Events())
    assert found.schedule.makespan_us < 0.95 * apart.schedule.makespan_us
    assert replace(found, proof=apart.proof).bound == apart.bound


@pytest.mark.slow
def test_a_mesh_is_summed_through_several_roots_where_a_hub_takes_longer():
    """Nine ranks in a square: 1041 us through one rank in the middle."""
    square = load_topology("mesh:3x3")
    demand = Demand(square, Kind.ALLREDUCE, float(64 << 20))
    found = synthesize_trees(demand, Options(limits=Limits(seconds=7, by_work=True, workers=1)), Events())
    assert found.schedule.makespan_us <= 1000
    assert not verify_schedule(found.schedule)
