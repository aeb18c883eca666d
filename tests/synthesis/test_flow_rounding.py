import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.commodity_flow import Commodities, solve_flow
from taccl_py.synthesis.flow.paths import find_pairs
from taccl_py.synthesis.flow.rounding import Rounding
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, machine, ring, two_nodes


def rounding_of(topology, chunk_bytes=MB):
    problem = Problem.build(topology, Collective(Kind.ALLTOALL, topology.num_ranks), None, chunk_bytes)
    pairs = find_pairs(problem, solve_flow(Commodities.of(problem), Limits()))
    return pairs, Rounding(problem, pairs)


def rounded(topology, parts, limits=None):
    pairs, rounding = rounding_of(topology)
    return pairs, rounding.to_parts(parts, limits or Limits())


@pytest.mark.parametrize(("parts", "load_us"), [(1, 30.0), (2, 20.0), (3, 70 / 3), (4, 20.0)])
def test_parts_share_the_load_as_far_as_whole_ones_can(parts, load_us):
    """Ring of 4: each link carries a neighbour's chunk, and the chunk across goes over 2 links of one way or the other."""
    pairs, routing = rounded(ring(4, alpha_us=0.0, both_ways=True), parts)
    assert routing.load_us == pytest.approx(load_us)
    assert [len(paths) for paths in routing.links] == [parts] * len(pairs)


def test_every_part_pays_alpha():
    assert rounded(ring(4, alpha_us=1.0, both_ways=True), 2)[1].load_us == pytest.approx(24.0)


def test_three_parts_reach_the_flow_of_a_dgx1():
    """The fullest link carries 16/3 chunks of 20 us/MB, which whole chunks reach only in multiples of 3; 16 pay 0.7 us each."""
    _, routing = rounded(load_topology("dgx1"), 3)
    assert routing.load_us == pytest.approx(16 / 3 * 20 + 16 * 0.7)


def test_with_equal_loads_paths_take_the_least_time():
    """From 0 to 2 the way over 1 and the link of its own load nothing that matters; from 2 on everything is slow."""
    links = [
        Link(0, 1, 0.0, 1.0),
        Link(1, 2, 0.0, 1.0),
        Link(0, 2, 0.0, 1.5),
        Link(2, 0, 0.0, 20.0),
        Link(1, 0, 0.0, 1.0),
    ]
    pairs, routing = rounded(machine(3, links), 4)
    (direct,) = {path for pair, paths in zip(pairs, routing.links, strict=True) for path in paths if pair.chunk == 2}
    assert len(direct) == 1


def test_an_interrupt_leaves_the_shares_rounded():
    limits = Limits()
    limits.stop.set()
    pairs, routing = rounded(ring(4, both_ways=True), 3, limits)
    assert [len(paths) for paths in routing.links] == [3] * len(pairs)


def test_gathered_chunks_pay_alpha_once_for_the_use_of_a_link():
    """Two nodes of 2 ranks, one link of 100 us each way: 4 chunks of 10 us cross it; one message of theirs takes 140."""
    topology = two_nodes(2, {1: (0,)}, inside=(1.0, 1.0), between=(100.0, 10.0))
    _, rounding = rounding_of(topology)
    assert rounding.gathered(Limits()).load_us == pytest.approx(140.0)
    assert rounding.to_parts(1, Limits()).load_us == pytest.approx(440.0)
    assert all(len(paths) == 1 for paths in rounding.gathered(Limits()).links)


def test_gathered_chunks_leave_links_alone_whose_alpha_does_not_pay():
    """From 0 to 1 there are two links behind one port; a second one would make the port pay alpha twice."""
    links = [Link(0, 1, 10.0, 1.0, ports=(0,)), Link(0, 1, 10.0, 1.0, ports=(0,)), Link(1, 2, 0.0, 1.0)]
    links += [Link(2, 1, 0.0, 1.0), Link(1, 0, 0.0, 1.0)]
    _, rounding = rounding_of(machine(3, links, [Port("out", 10.0, 1.0)]))
    used = {link for paths in rounding.gathered(Limits()).links for path in paths for link in path}
    assert len(used & {0, 1}) == 1
