from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.synthesis.trees.lift import lifted
from taccl_py.synthesis.trees.order import DispatchRule, OrderChoice, PieceCosts, list_schedule
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.rounding import round_packing
from taccl_py.synthesis.trees.transfers import gather_transfers
from taccl_py.synthesis.trees.turnaround import is_own_reverse, turned_around
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, ring
from tests.synthesis.drawn import problems
from tests.synthesis.trees.test_packing import network_of, never

SHARE_BYTES = 12 * MB


def gathered(network, cuts, sizes=None):
    """An AllGather along one tree for each root, in so many pieces of these sizes in chunks."""
    tree_set = round_packing(network, pack_trees(network, never), 1, never)
    sizes = sizes or (1,) * cuts
    transfers = tuple(gather_transfers(network, tree_set, cuts))
    costs = PieceCosts.of(network, SHARE_BYTES / sum(sizes), sizes)
    return OrderChoice(transfers, costs, sum(sizes), DispatchRule(), list_schedule(transfers, costs, DispatchRule()))


def summed(topology, sums, rest):
    network, backward = network_of(topology), network_of(topology.reversed())
    found = turned_around(
        network, topology.reversed().reversed_link(), gathered(backward, **sums), gathered(network, **rest)
    )
    collective = Collective(Kind.ALLREDUCE, topology.num_ranks, found.num_chunks)
    return found, lifted(network, found, collective, SHARE_BYTES / found.num_chunks)


def test_sums_come_to_their_roots_and_results_go_out_from_them():
    """Two ranks, each with 12 MB: one message of sums, and one of results."""
    topology = ring(2, alpha_us=1.0, beta_us_per_mb=10.0)
    found, schedule = summed(topology, {"cuts": 3}, {"cuts": 3})
    assert verify_schedule(schedule) == ()
    assert found.plan.end_us == pytest.approx(2 * (1 + 120))


def test_sums_along_a_ring_are_what_is_sent_out_backwards():
    """Three ranks: one message of all 3 pieces, as nobody waits for them at the end of a ring, and 3 of one; results likewise."""
    found, schedule = summed(ring(3, alpha_us=1.0, beta_us_per_mb=10.0), {"cuts": 3}, {"cuts": 3})
    assert verify_schedule(schedule) == ()
    assert found.plan.end_us == pytest.approx(2 * (1 + 120 + 3 * (1 + 40)))


def test_plans_in_different_pieces_are_cut_where_either_is():
    """Sums of 6 + 4 + 2 chunks, and results of 1 + 3 quarters."""
    found, schedule = summed(ring(2), {"cuts": 3, "sizes": (6, 4, 2)}, {"cuts": 2, "sizes": (1, 3)})
    assert verify_schedule(schedule) == ()
    assert found.num_chunks == 12
    assert found.costs.chunks == ((3, 3, 4, 2),)
    small, large = (transfer for transfer in found.transfers if not transfer.reduce)
    assert [(found.transfers[i].piece, found.transfers[i].end) for i in small.after] == [(0, 2)]
    assert [(found.transfers[i].piece, found.transfers[i].end) for i in large.after] == [(0, 2), (2, 3), (3, 4)]


def test_pieces_without_chunks_are_left_out():
    found, schedule = summed(ring(3), {"cuts": 3, "sizes": (2, 0, 2)}, {"cuts": 2, "sizes": (4, 0)})
    assert verify_schedule(schedule) == ()
    assert all(transfer.span > 0 for transfer in found.transfers)


@given(problems(kinds=(Kind.ALLGATHER,), most_ranks=5), st.data())
@settings(max_examples=25)
def test_the_verifier_accepts_any_two_plans(drawn, data):
    plans = [
        {"cuts": cuts, "sizes": tuple(data.draw(st.lists(st.integers(1, 3), min_size=cuts, max_size=cuts)))}
        for cuts in data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    ]
    topology = replace(drawn.topology, symmetry=())
    found, schedule = summed(topology, *plans)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= found.plan.end_us * (1 + 1e-9)


def slower_one_way(topology):
    first, *others = topology.links
    return replace(topology, links=(replace(first, beta_us_per_mb=2 * first.beta_us_per_mb), *others), symmetry=())


@pytest.mark.parametrize(
    ("topology", "alike"),
    [
        (load_topology("mi250x", 2), True),
        (load_topology("ndv4", 2), True),
        (load_topology("torus:3x3"), True),
        (load_topology("kautz:4x2"), False),
        (ring(3), False),
        (ring(3, both_ways=True), True),
        (slower_one_way(ring(3, both_ways=True)), False),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_machines_that_cost_the_same_in_both_directions_are_their_own_reverse(topology, alike):
    assert is_own_reverse(network_of(topology), network_of(topology.reversed())) == alike
