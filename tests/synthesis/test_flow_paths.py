import pytest
from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.errors import LimitReached
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.commodity_flow import Commodities, CommodityFlow, solve_flow
from taccl_py.synthesis.flow.paths import find_pairs
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.catalog import load_topology
from tests.instances import MB, ring
from tests.synthesis.drawn import problems


def problem_of(topology, kind=Kind.ALLTOALL):
    return Problem.build(topology, Collective(kind, topology.num_ranks), None, MB)


def pairs_of(problem):
    return find_pairs(problem, solve_flow(Commodities.of(problem), Limits()))


def walks(problem, pair, path):
    """Whether a path leads over permitted links from the chunk's source to the rank that wants it."""
    rank = problem.collective.source[pair.chunk]
    for index in path.links:
        link = problem.topology.links[index]
        if link.src != rank or not problem.permitted[pair.chunk, index]:
            return False
        rank = link.dst
    return rank == problem.collective.wanted[pair.chunk][0]


@settings(max_examples=40)
@given(drawn=problems(kinds=(Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER)))
def test_paths_lead_to_where_the_chunk_is_wanted_and_carry_all_of_it(drawn):
    problem = Problem.build(drawn.topology, drawn.collective, None, MB)
    for pair in pairs_of(problem):
        assert all(walks(problem, pair, path) for path in pair.paths)
        assert sum(path.share for path in pair.paths) == pytest.approx(1.0, abs=1e-4)
        assert len({path.links for path in pair.paths}) == len(pair.paths)


def test_pairs_of_one_orbit_are_one():
    pairs = pairs_of(problem_of(ring(8, both_ways=True)))
    assert [(pair.chunk, pair.members) for pair in pairs] == [(chunk, 8) for chunk in range(1, 8)]


def test_a_pair_may_also_take_cheapest_paths_without_flow():
    """Across a torus of 4x4 there are 24 paths of 4 hops; an optimal flow needs few of them."""
    farthest = pairs_of(problem_of(load_topology("torus:4x4")))[9]
    assert farthest.chunk == 10
    assert all(len(path.links) == 4 for path in farthest.paths)
    assert sum(path.share == 0 for path in farthest.paths) >= 8


def test_without_a_flow_paths_have_the_fewest_hops():
    problem = problem_of(ring(8, both_ways=True))
    for pair in find_pairs(problem, CommodityFlow.unknown(problem.topology)):
        assert {len(path.links) for path in pair.paths} == {min(pair.chunk, 8 - pair.chunk)}
        assert all(path.share == 0 for path in pair.paths)


def test_a_pair_without_a_path_is_named():
    problem = problem_of(ring(3), Kind.SCATTER)
    problem.permitted.setflags(write=True)
    problem.permitted[2] = False
    with pytest.raises(LimitReached, match="chunk 2"):
        find_pairs(problem, CommodityFlow.unknown(problem.topology))


def test_who_is_told_to_stop_looks_for_no_more_paths():
    """A race whose time was over waited half a minute for the paths of 25440 pairs, and ended the process then."""
    problem = problem_of(ring(3), Kind.ALLTOALL)
    with pytest.raises(LimitReached, match="--time-limit"):
        find_pairs(problem, CommodityFlow.unknown(problem.topology), lambda: True)
