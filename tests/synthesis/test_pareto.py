"""Fronts of k-synchronous algorithms: SCCL's known points on the DGX-1 and on rings."""

from fractions import Fraction

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.sketch.model import Sketch
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.synthesis.pareto import AlgorithmShape, WalkLimits, pareto_front
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.schedule import verify_schedule


def front_of(topology, kind, chunks, steps=8, extra=6, root=0):
    demand = Demand(topology, kind, 8e6, root)
    return pareto_front(demand, WalkLimits(chunks, steps, extra), Limits(seconds=120.0), Events())


def shapes(front):
    return [point.shape for point in front.points]


@pytest.fixture(scope="module")
def dgx1():
    return load_topology("dgx1", None)


DGX1 = {
    # Cai et al. (PPoPP'21), table 4: (2, 2, 3) and the bandwidth-optimal (6, 3, 7); in their words (1, 2, 2) is dominated.
    Kind.ALLGATHER: (6, [AlgorithmShape(2, 2, 3), AlgorithmShape(6, 3, 7)], Fraction(7, 6)),
    Kind.REDUCESCATTER: (6, [AlgorithmShape(2, 2, 3), AlgorithmShape(6, 3, 7)], Fraction(7, 6)),
    Kind.ALLREDUCE: (6, [AlgorithmShape(2, 4, 6), AlgorithmShape(6, 6, 14)], Fraction(7, 3)),
    # With k = 5 extra rounds the bandwidth optimum needs no third step: better than the (6, 3, 7) of the table.
    Kind.GATHER: (6, [AlgorithmShape(6, 2, 7)], Fraction(7, 6)),
    Kind.SCATTER: (6, [AlgorithmShape(6, 2, 7)], Fraction(7, 6)),
    Kind.ALLTOALL: (3, [AlgorithmShape(3, 2, 8)], Fraction(8, 3)),
    Kind.BROADCAST: (2, [AlgorithmShape(2, 2, 2)], Fraction(1, 6)),
}


@pytest.mark.parametrize("kind", DGX1, ids=str)
def test_the_front_of_the_dgx1_is_that_of_sccl_and_proved(dgx1, kind):
    chunks, expected, least = DGX1[kind]
    front = front_of(dgx1, kind, chunks, steps=3)
    assert shapes(front) == expected
    assert all(point.proved for point in front.points)
    assert front.least_rounds_per_chunk == least
    for point in front.points:
        assert verify_schedule(point.schedule) == ()
        assert point.schedule.collective.kind is kind
        assert point.schedule.collective.chunks_per_rank == point.shape.chunks


@pytest.mark.slow
def test_broadcast_on_the_dgx1_reaches_sccls_points(dgx1):
    """(18, 5, 5) is their best; (15, 4, 4), on which z3 gave no answer in 480 s, does not exist."""
    front = front_of(dgx1, Kind.BROADCAST, 18, steps=5, extra=0)
    assert shapes(front)[-1] == AlgorithmShape(18, 5, 5)
    assert AlgorithmShape(13, 4, 4) in shapes(front)


@pytest.mark.parametrize(
    ("machine", "steps", "rounds_per_chunk"),
    [
        # Everyone can send its whole buffer to everyone in one step.
        ("full:4", 1, 2),
        # A line of three: all of its buffer leaves each end, where AllGather leaves out the receiver's own third.
        ("mesh:3", 2, 3),
        ("mesh:3x3", 4, 6),
    ],
)
def test_limits_of_allreduce_are_those_of_every_allreduce(machine, steps, rounds_per_chunk):
    topology = formula_topology(machine)
    front = front_of(topology, Kind.ALLREDUCE, 1)
    half = front_of(topology, Kind.ALLGATHER, 1)
    assert (front.fewest_steps, front.least_rounds_per_chunk) == (steps, rounds_per_chunk)
    assert shapes(front) == [AlgorithmShape(s.chunks, 2 * s.steps, 2 * s.rounds) for s in shapes(half)]


def test_allreduce_may_leave_the_ways_that_a_sketch_gives_to_one_half():
    """The sketch's way from 0 to 3 has three hops; that of the sums, which go backwards, has one."""
    ring = formula_topology("ring:4")
    sketch = Sketch("one way", links={r: ((r + 1) % 4,) for r in range(4)})
    demand = Demand(ring, Kind.ALLREDUCE, 8e6, 0, sketch)
    front = pareto_front(demand, WalkLimits(1, 3, 0), Limits(seconds=60.0), Events())
    assert shapes(front) == [AlgorithmShape(1, 6, 6)]
    assert front.fewest_steps == 2


def test_a_ring_needs_half_its_length_in_steps():
    """AllGather on a ring of 8: each rank receives 7 chunks over 2 links; (2, 4, 7) has fewest steps and least traffic."""
    front = front_of(formula_topology("ring:8"), Kind.ALLGATHER, 2)
    assert front.fewest_steps == 4
    assert shapes(front) == [AlgorithmShape(2, 4, 7)]


def test_one_chunk_on_a_one_way_ring():
    """Rank r's chunk passes 3 links one after the other: 3 steps of 1 round."""
    links = tuple(Link(r, (r + 1) % 4, 1.0, 10.0) for r in range(4))
    front = front_of(Topology("one way", "made up", (0,) * 4, (), links), Kind.ALLGATHER, 1)
    assert shapes(front) == [AlgorithmShape(1, 3, 3)]


def test_time_of_a_point_is_no_more_than_its_rounds_cost(dgx1):
    """A double link carries two chunks in a round, as two messages where they are not neighbours in the buffers."""
    front = front_of(dgx1, Kind.ALLGATHER, 6)
    for point in front.points:
        round_us = 2 * 0.7 + 40.0 * 1.0 / point.shape.chunks
        assert point.schedule.makespan_us <= point.shape.rounds * round_us


def test_speeds_that_are_no_whole_multiples_are_refused():
    links = (Link(0, 1, 1.0, 10.0), Link(1, 0, 1.0, 7.0))
    with pytest.raises(InputError, match=r"link 1->0 is 1\.42857 times as fast"):
        front_of(Topology("uneven", "made up", (0, 0), (), links), Kind.ALLGATHER, 1)


def test_a_link_without_a_beta_limits_no_round():
    """0->1 lets all chunks through at once and 1->2 ten of them in a round, which is as long as one takes over the slow link 2->0."""
    links = (Link(0, 1, 1.0, 0.0), Link(1, 2, 1.0, 1.0), Link(2, 0, 1.0, 10.0))
    front = front_of(Topology("unlimited", "made up", (0, 0, 0), (), links), Kind.BROADCAST, 10, steps=2, extra=4)
    assert shapes(front) == [AlgorithmShape(10, 2, 2)]


def test_a_symmetry_that_exchanges_two_ways_into_a_rank_costs_no_steps():
    ways = tuple(Link(rank, (rank + step) % 4, 1.0, 10.0) for rank in range(4) for step in (1, 3))
    front = front_of(Topology("mirror", "made up", (0,) * 4, (), ways, symmetry=((0, 3, 2, 1),)), Kind.ALLGATHER, 2)
    assert front.fewest_steps == 2
    assert shapes(front) == [AlgorithmShape(2, 2, 3)]


def test_ways_much_longer_than_the_shortest_count_too():
    """One link leads to rank 1, and 13 lead there over ranks 2 and 3: three steps of one round bring 14 chunks to each.

    More than 14 chunks do not leave rank 0 in a round, and it has 42.
    """
    around = tuple(Link(src, dst, 1.0, 10.0) for src, dst in ((0, 2), (2, 3), (3, 1)) for _ in range(13))
    topology = Topology("roundabout", "made up", (0,) * 4, (), (Link(0, 1, 1.0, 10.0), *around))
    walk = WalkLimits(14, max_steps=3, extra_rounds=11, min_chunks=14)
    front = pareto_front(Demand(topology, Kind.SCATTER, 8e6), walk, Limits(seconds=60.0), Events())
    assert shapes(front) == [AlgorithmShape(14, 3, 3)]


@pytest.mark.parametrize("kind", [Kind.REDUCESCATTER, Kind.ALLREDUCE], ids=str)
def test_a_sketch_of_one_way_links_holds_for_sums(kind):
    ring = Topology("ring", "", (0, 0, 0), (), tuple(Link(r, (r + 1) % 3, 1.0, 10.0) for r in range(3)))
    sketch = Sketch("all", links={r: ((r + 1) % 3,) for r in range(3)})
    front = pareto_front(Demand(ring, kind, 8e6, 0, sketch), WalkLimits(1, 4, 2), Limits(seconds=60.0), Events())
    assert [verify_schedule(point.schedule) for point in front.points] == [()]


def test_without_links_there_are_no_rounds():
    with pytest.raises(InputError, match="no link or port has a beta"):
        front_of(Topology("apart", "made up", (0, 0), (), ()), Kind.ALLGATHER, 1)
