from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.engine import synthesize_trees
from taccl_py.synthesis.trees.hub import both_directions, hub_of, shared_out
from taccl_py.synthesis.trees.lift import lifted
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import DispatchRule, OrderChoice, PieceCosts, list_schedule
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.rounding import round_packing
from taccl_py.synthesis.trees.transfers import PieceTransfer, gather_transfers, reduce_transfers
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, machine, ring
from tests.synthesis.trees.test_packing import network_of, never

MIB = 1 << 20


def from_hub(topology):
    collective = Collective(Kind.BROADCAST, topology.num_ranks, root=hub_of(network_of(topology)))
    return CapacityNetwork.of(Problem.build(topology, collective, None, MB).without_symmetry())


@pytest.mark.parametrize(
    ("topology", "hub"),
    [(load_topology("mesh:3x3"), 4), (load_topology("mesh:2x5"), 2), (ring(4), 0), (load_topology("full:3"), 0)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_hub_is_where_the_farthest_rank_is_nearest(topology, hub):
    assert hub_of(network_of(topology)) == hub


def test_a_link_loads_what_the_link_back_does():
    """Of a mesh of 3 by 3 trees take 8 of 12 links in both directions: a megabyte takes 20 us on each, 2/3 of it on the average one."""
    network = from_hub(load_topology("mesh:3x3"))
    both = both_directions(network)
    assert np.count_nonzero(network.load(np.array([0]))) == 1
    assert np.count_nonzero(both.load(np.array([0]))) == 2
    assert pack_trees(both, never).load_us == pytest.approx(20 * 8 / 12)
    assert pack_trees(network, never).load_us < 20 * 8 / 12


@pytest.mark.slow
def test_corners_of_a_mesh_need_not_get_and_give_as_much_as_all_ranks():
    """256 MiB: 7 links carry 5 times that both ways, 3835 us; all but a sixth twice through the two links of a corner took 4474."""
    demand = Demand(load_topology("mesh:2x3"), Kind.ALLREDUCE, 256 * MIB)
    found = synthesize_trees(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events())
    assert verify_schedule(found.schedule) == ()
    assert found.bound.time_us == pytest.approx(256 * MIB / MB * 20 * 5 / 7, rel=0.001)
    assert found.schedule.makespan_us <= 1.1 * found.bound.time_us
    lowered = lower_and_verify(found.schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= 1.01 * found.schedule.makespan_us


def through_hub(topology, parts, cuts, size_bytes):
    """A plan along so many trees, in chunks of which every rank has equally many, and its demand."""
    network, backward = from_hub(topology), from_hub(topology.reversed())
    packed = both_directions(network)
    tree_set = round_packing(packed, pack_trees(packed, never), parts, never)
    transfers = tuple(gather_transfers(network, tree_set, cuts, reduce_transfers(network, backward, tree_set, cuts)))
    costs = PieceCosts.of(network, size_bytes / (parts * cuts), (1,) * (parts * cuts))
    choice = OrderChoice(
        transfers, costs, parts * cuts, DispatchRule(), list_schedule(transfers, costs, DispatchRule())
    )
    demand = Demand(topology, Kind.ALLREDUCE, size_bytes)
    return network, demand, shared_out(demand, choice)


@st.composite
def linked_both_ways(draw):
    """A random tree of ranks with a few links more, each the same in both directions."""
    count = draw(st.integers(2, 6))
    pairs = {(draw(st.integers(0, rank - 1)), rank) for rank in range(1, count)}
    pairs |= {
        tuple(sorted(pair))
        for pair in draw(st.sets(st.permutations(range(count)).map(lambda p: p[:2]).map(tuple), max_size=4))
    }
    links = []
    for src, dst in sorted(pairs):
        alpha_us, beta_us_per_mb = draw(st.sampled_from([0.5, 2.0])), draw(st.sampled_from([5.0, 10.0, 30.0]))
        links += [Link(src, dst, alpha_us, beta_us_per_mb), Link(dst, src, alpha_us, beta_us_per_mb)]
    return machine(count, links)


@given(linked_both_ways(), st.integers(1, 3), st.integers(1, 4), st.sampled_from([7 * MIB, 16 * MIB, 12_345_679]))
@settings(max_examples=30)
def test_the_verifier_accepts_plans_through_hubs_of_any_machine(topology, parts, cuts, size_bytes):
    network, demand, choice = through_hub(topology, parts, cuts, size_bytes)
    collective = demand.collective(choice.num_chunks)
    assert sum(choice.costs.chunks[0]) == collective.num_chunks
    schedule = lifted(network, choice, collective, demand.chunk_bytes(collective))
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= choice.plan.end_us * (1 + 1e-9)


def test_chunks_are_as_few_as_pieces_need():
    """4 pieces on 4 ranks are a chunk of each; 6 pieces are not, and 12 chunks of each make 8 of each piece."""
    assert through_hub(ring(4, both_ways=True), 1, 4, 16 * MIB)[2].num_chunks == 1
    uneven = through_hub(ring(4, both_ways=True), 2, 3, 12 * MIB)[2]
    assert (uneven.num_chunks, uneven.costs.chunks) == (3, ((2,) * 6,))


def test_more_chunks_are_tried_where_pieces_lose_by_whole_ones():
    """A link takes four fifths of 64 MB, one that is four times as slow the rest: 512 us.

    Of 24 chunks 5 go over the slow one, 533 us, of 48 chunks 10, and of 96 19: 77 go over the fast one, 513 us.
    """
    topology = machine(3, [Link(0, 1, 0.0, 10.0), Link(0, 2, 0.0, 40.0), Link(1, 0, 0.0, 10.0), Link(2, 0, 0.0, 10.0)])
    network = from_hub(topology)
    transfers = tuple(PieceTransfer(0, piece, piece, reduce=False, after=()) for piece in (0, 1))
    costs = PieceCosts.of(network, 64 * MB / 5, (4, 1))
    choice = OrderChoice(transfers, costs, 5, DispatchRule(), list_schedule(transfers, costs, DispatchRule()))
    assert choice.plan.end_us == pytest.approx(512)
    demand = Demand(topology, Kind.ALLREDUCE, 64.0 * MB)
    coarse, fine = (shared_out(demand, choice, finely=finely) for finely in (False, True))
    assert (coarse.num_chunks, coarse.costs.chunks) == (8, ((19, 5),))
    assert coarse.plan.end_us == pytest.approx(64 * 40 * 5 / 24)
    assert fine.plan.end_us <= 512 * (1 + 3e-3)
    assert sum(fine.costs.chunks[0]) == 3 * fine.num_chunks


def test_a_size_that_cannot_be_cut_so_finely_has_no_plan():
    _, demand, choice = through_hub(ring(4, both_ways=True), 1, 4, 16 * MIB)
    assert choice is not None
    assert (
        shared_out(
            replace(demand, size_bytes=4 * 4 * 7), replace(choice, costs=replace(choice.costs, chunks=((1,) * 9,)))
        )
        is None
    )
