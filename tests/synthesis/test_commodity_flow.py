from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.commodity_flow import Commodities, solve_flow
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, chain, full, machine, ring, star_in, two_nodes
from tests.synthesis.drawn import problems


def problem_of(topology, kind=Kind.ALLTOALL, root=0):
    return Problem.build(topology, Collective(kind, topology.num_ranks, 1, root), None, MB)


def flow_of(problem):
    return solve_flow(Commodities.of(problem), Limits())


# One megabyte for each pair; links take 10 us a megabyte.
BY_HAND = {
    "one-way ring of 4: a link carries 1 own chunk, and 2 + 3 in transit": (ring(4), 60.0),
    "ring of 8: 2 * (1 + 2 + 3) + 4 hops for each rank, over 2 links": (ring(8, both_ways=True), 80.0),
    "every pair linked": (full(5), 10.0),
    "two nodes of 2 ranks, one link of 50 us between them": (two_nodes(2, {1: (0,)}), 200.0),
    "a hypercube of 8: 12 hops for each rank, over 3 links": (load_topology("hypercube:3,beta_us_per_mb=10"), 40.0),
}


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_least_load_is_the_one_by_hand(name, symmetric):
    topology, load_us = BY_HAND[name]
    problem = problem_of(topology)
    flow = flow_of(problem if symmetric else problem.without_symmetry())
    assert flow.load_us == pytest.approx(load_us, rel=1e-6)
    assert flow.load_us <= load_us


def test_a_port_limits_its_links_together():
    flow = flow_of(problem_of(star_in(3, Port("in", 0.0, 4.0)), Kind.GATHER))
    assert flow.load_us == pytest.approx(12.0)
    assert flow.prices.tolist() == pytest.approx([0.0, 0.0, 0.0, 1.0])


def test_what_every_rank_wants_arrives_and_the_rest_goes_on():
    problem = problem_of(load_topology("torus:3x4"))
    topology, flow = problem.topology, flow_of(problem)
    for row, source in enumerate(flow.sources):
        kept = np.zeros(topology.num_ranks)
        for index, link in enumerate(topology.links):
            kept[link.dst] += flow.flow_mb[row, index]
            kept[link.src] -= flow.flow_mb[row, index]
        wanted = np.ones(topology.num_ranks)
        wanted[source] = 1.0 - topology.num_ranks
        assert kept == pytest.approx(wanted)


def test_among_optimal_flows_one_with_few_hops_is_taken():
    """Over 1 the way to 2 is free, but longer than the parallel link that nobody else needs."""
    links = [
        Link(0, 1, 0.0, 1.0),
        Link(1, 2, 0.0, 1.0),
        Link(0, 2, 0.0, 1.0),
        Link(2, 0, 0.0, 20.0),
        Link(1, 0, 0.0, 1.0),
    ]
    flow = flow_of(problem_of(machine(3, links)))
    assert flow.flow_mb[0].sum() == pytest.approx(2.0)


def test_without_a_way_there_is_no_flow():
    problem = problem_of(chain(3), Kind.SCATTER)
    assert solve_flow(Commodities.of(replace(problem, permitted=problem.permitted & False)), Limits()) is None


@settings(max_examples=30)
@given(drawn=problems(kinds=(Kind.ALLTOALL,), mixed_latency=True))
def test_prices_prove_the_load(drawn):
    """Whatever way a megabyte takes costs at least the cheapest way at these prices; together that is the load."""
    problem = problem_of(drawn.topology)
    topology, flow = problem.topology, flow_of(problem)
    beta = [cost[1] for cost in topology.resource_cost]
    length = [sum(flow.prices[r] * beta[r] for r in resources) for resources in topology.resources_of]
    far = np.full((topology.num_ranks, topology.num_ranks), np.inf)
    np.fill_diagonal(far, 0.0)
    for _ in range(topology.num_ranks):
        for index, link in enumerate(topology.links):
            far[:, link.dst] = np.minimum(far[:, link.dst], far[:, link.src] + length[index])
    assert flow.prices.sum() == pytest.approx(1.0)
    assert far.sum() == pytest.approx(flow.load_us, rel=1e-5)


def test_large_symmetric_machines_are_small_programs():
    """Of 16x16 ranks a quarter of the 255 * 8.03 hops goes over each of 4 links: 512 chunks of 20 us."""
    topology = load_topology("torus:16x16")
    small = problem_of(load_topology("torus:4x4"))
    generators = Problem.build(topology, Collective(Kind.SCATTER, 256), None, MB).generators
    assert generators == (), "the root of a Scatter stays"
    assert flow_of(small).load_us == pytest.approx(160.0)
    wanted_mb = np.full((256, 256), MB / 1e6) - np.diag([MB / 1e6] * 256)
    permitted = np.ones((256, len(topology.links)), dtype=bool)
    flow = solve_flow(Commodities(topology, machine_symmetry(topology), wanted_mb, permitted), Limits())
    assert flow.load_us == pytest.approx(10_240.0)
    assert len(flow.sources) == 1


def machine_symmetry(topology):
    """Generators of an AllGather, which has few chunks and the same symmetry."""
    return Problem.build(topology, Collective(Kind.ALLGATHER, topology.num_ranks), None, MB).generators
