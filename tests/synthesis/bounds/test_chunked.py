"""Bounds by hand, and against a search that tries every schedule of tiny problems."""

import pytest
from hypothesis import example, given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Rotation, Sketch
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound, allreduce_bound, best_bound, flow_bound, lower_bound, quickest
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, ROUTED, chain, full, machine, quiet_pulp, ring, star_in, two_nodes
from tests.synthesis.drawn import Drawn, node_problems, problems
from tests.synthesis.exhaustive import least_time_us

pytestmark = quiet_pulp


def problem_of(topology, kind, chunks=1, root=0, sketch=None, chunk_bytes=MB):
    return Problem.build(topology, Collective(kind, topology.num_ranks, chunks, root), sketch, chunk_bytes)


def bound_of(*arguments, **words):
    return lower_bound(problem_of(*arguments, **words))


# By hand


@pytest.mark.parametrize("instance", ROUTED, ids=str)
def test_the_bound_is_the_optimum_where_a_simple_argument_proves_it_and_never_above(instance):
    problem = Problem.build(instance.topology, instance.collective, instance.sketch, instance.chunk_bytes)
    flow = flow_bound(problem, Limits(seconds=10.0))
    bound = max(lower_bound(problem).time_us, flow.time_us if flow else 0.0)
    if instance.tight:
        assert bound == pytest.approx(instance.optimum_us, rel=1e-6)
    assert bound <= instance.optimum_us * (1 + 1e-9)


def test_the_far_rank_bounds_by_its_distance():
    bound = bound_of(chain(4, 1.0, 10.0, 2.0), Kind.BROADCAST)
    assert bound.time_us == 3 * 13.0
    assert bound.reason == "latency: quickest path of one chunk between rank 0 and rank 3"


def test_quick_paths_are_found_where_they_have_more_links():
    topology = machine(3, [Link(0, 2, 1.0, 50.0), Link(0, 1, 1.0, 5.0), Link(1, 2, 1.0, 5.0)])
    assert bound_of(topology, Kind.BROADCAST).time_us == 12.0
    assert quickest(topology, [0], range(3), [6.0, 51.0, 6.0]) == (0.0, 6.0, 12.0)
    assert quickest(topology, [0], [1, 2], [6.0, 51.0, 6.0]) == (0.0, float("inf"), 51.0)


def test_a_link_brings_chunk_after_chunk_and_alpha_is_paid_once():
    bound = bound_of(chain(2, 3.0, 10.0), Kind.BROADCAST, chunks=5)
    assert bound.time_us == pytest.approx(3.0 + 50.0)
    assert bound.reason.startswith("bandwidth: 5 chunks through rank")


def test_chunks_are_not_divided_among_links():
    """Three chunks over two links: one link carries two of them."""
    lanes = machine(2, [Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 10.0)])
    assert bound_of(lanes, Kind.BROADCAST, chunks=3).time_us == pytest.approx(21.0)


def test_links_of_different_speed_share_the_chunks():
    """In 40 us the fast link brings 4 chunks and the slow one 1."""
    pair = machine(2, [Link(0, 1, 0.0, 10.0), Link(0, 1, 0.0, 35.0)])
    assert bound_of(pair, Kind.BROADCAST, chunks=5).time_us == pytest.approx(40.0)


def test_a_ports_own_rate_limits_the_links_behind_it():
    assert bound_of(star_in(4, Port("in", 0.0, 5.0)), Kind.GATHER).time_us == pytest.approx(20.0)
    assert bound_of(star_in(4, Port("in", 2.0, 5.0)), Kind.GATHER).time_us == pytest.approx(22.0)
    assert bound_of(star_in(4, Port("in", 0.0, 1.0)), Kind.GATHER).time_us == pytest.approx(10.0), "then a link does"


def test_ports_count_on_the_senders_side_too():
    out = machine(4, [Link(0, r, 0.0, 10.0, ports=(0,)) for r in (1, 2, 3)], [Port("out", 0.0, 10.0)])
    assert bound_of(out, Kind.SCATTER).time_us == pytest.approx(30.0)


def test_the_way_to_the_border_and_from_it_is_added():
    """Both chunks of a node cross one link (100); the first is there at 0, the last still has one hop to go (10)."""
    topology = two_nodes(2, {1: (0,)})
    bound = bound_of(topology, Kind.ALLGATHER)
    assert bound.time_us == pytest.approx(110.0)
    assert "node" in bound.reason


def test_late_chunks_wait_for_each_other():
    """Of the four chunks that cross the last link three get there at 30: 30 + 3 * 10 is more than 4 * 10."""
    links = [Link(r, 3, 0.0, 30.0) for r in range(3)] + [Link(3, 4, 0.0, 10.0)]
    assert bound_of(machine(5, links), Kind.GATHER, root=4).time_us == pytest.approx(60.0)


def test_latency_is_added_to_what_occupies_a_link():
    assert bound_of(chain(2, 1.0, 10.0, 5.0), Kind.BROADCAST, chunks=2).time_us == pytest.approx(26.0)


def test_restrictions_of_the_sketch_raise_the_bound():
    topology = two_nodes(2, {0: (0, 1), 1: (0, 1)})
    free = bound_of(topology, Kind.ALLGATHER)
    relayed = bound_of(topology, Kind.ALLGATHER, sketch=Sketch("mine", connections={1: (0,)}))
    assert relayed.time_us == pytest.approx(110.0)
    assert free.time_us < relayed.time_us


def test_symmetry_changes_no_bound():
    sketch = Sketch("mine", connections={1: (0,)}, rotations=(Rotation("node", "machine"),))
    for kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        problem = problem_of(two_nodes(2, {1: (0,)}), kind, sketch=sketch)
        assert problem.generators
        assert lower_bound(problem).time_us == lower_bound(problem.without_symmetry()).time_us
        flows = [flow_bound(one, Limits()) for one in (problem, problem.without_symmetry())]
        assert (flows[0] is None) == (flows[1] is None)
        if flows[0]:
            assert flows[0].time_us == pytest.approx(flows[1].time_us, rel=1e-6)


def test_bytes_count():
    small, large = (bound_of(chain(2, 3.0, 10.0), Kind.BROADCAST, chunk_bytes=size).time_us for size in (1000, 10 * MB))
    assert small == pytest.approx(3.01)
    assert large == pytest.approx(103.0)


@pytest.mark.parametrize(
    ("name", "shares"),
    [("ring:8", 7 / 2), ("torus:4x4", 15 / 4), ("torus:3x3", 8 / 4), ("hypercube:3", 7 / 3), ("full:8", 1.0)],
)
def test_known_allgather_bounds_are_met_with_enough_chunks(name, shares):
    """A rank needs R - 1 shares through its links; with 12 chunks a share rounding costs less than a tenth of one."""
    topology = load_topology(f"{name},alpha_us=0,beta_us_per_mb=10")
    bound = bound_of(topology, Kind.ALLGATHER, chunks=12, chunk_bytes=MB / 12)
    assert shares * 10 * (1 - 1e-6) <= bound.time_us <= (shares + 0.1) * 10


# AllReduce


def test_the_bound_of_allreduce_does_not_add_it_either():
    """Two ranks, a port of 40 us for each direction: a chunk each way, and the sums back, is 80."""
    ports = [Port("there", 0.0, 40.0), Port("back", 0.0, 40.0)]
    links = [Link(0, 1, 10.0, 8.0, ports=(0,)), Link(1, 0, 10.0, 8.0, ports=(1,))]
    bound = allreduce_bound(machine(2, links, ports), Collective(Kind.ALLGATHER, 2), MB)
    assert bound.time_us <= 80.0


def test_allreduce_moves_every_chunk_twice_to_all_but_one_rank():
    bound = allreduce_bound(full(3, alpha_us=0.0), Collective(Kind.ALLGATHER, 3), MB)
    assert bound.time_us == pytest.approx(2 * 2 * 3 * 10.0 / 6)
    ring_bound = allreduce_bound(ring(4, alpha_us=0.0), Collective(Kind.ALLGATHER, 4), MB)
    assert ring_bound.time_us == pytest.approx(2 * 3 * 4 * 10.0 / 4)


def test_allreduce_is_bound_by_the_links_between_nodes_and_by_the_farthest_pair():
    slow = two_nodes(2, {1: (0,)}, inside=(0.0, 1.0), between=(0.0, 100.0))
    bound = allreduce_bound(slow, Collective(Kind.ALLGATHER, 4), MB)
    assert bound.time_us == pytest.approx(2 * 4 * 100.0 / 2)
    assert "node" in bound.reason
    far = allreduce_bound(chain_both_ways(5), Collective(Kind.ALLGATHER, 5), 1.0)
    assert far.time_us == pytest.approx(4 * 100.0, rel=1e-4)


def chain_both_ways(num_ranks):
    links = [Link(r, r + 1, 100.0, 1.0) for r in range(num_ranks - 1)]
    return machine(num_ranks, links + [Link(k.dst, k.src, 100.0, 1.0) for k in links])


# Against everything


def is_below_everything(drawn):
    problem = Problem.build(drawn.topology, drawn.collective, drawn.sketch, drawn.chunk_bytes)
    best_us = least_time_us(problem, batches=True, most=5_000)
    return best_us is None or lower_bound(problem).time_us <= best_us * (1 + 1e-9)


@settings(max_examples=50)
@given(problems(most_chunks=4))
def test_no_schedule_of_a_tiny_problem_is_faster_than_the_bound(drawn):
    assert is_below_everything(drawn)


def late_port():
    """Two chunks enter rank 2 through one port, 20 us each: the first with 4 us of latency, the second (by rank 0) without.

    The port is busy from 0 to 40, and the second chunk is there at 40.
    """
    links = [Link(1, 2, 0.0, 10.0, 4.0, ports=(0,)), Link(1, 0, 0.0, 10.0), Link(0, 2, 0.0, 5.0, ports=(0,))]
    return Drawn(machine(3, links, [Port("in", 0.0, 20.0)]), Collective(Kind.BROADCAST, 3, 2, 1))


@example(late_port())
@settings(max_examples=50)
@given(problems(most_chunks=4, mixed_latency=True))
def test_no_schedule_is_faster_than_the_bound_where_links_have_different_latency(drawn):
    assert is_below_everything(drawn)


@settings(max_examples=60)
@given(node_problems())
def test_no_schedule_that_keeps_a_sketch_is_faster_than_the_bound(drawn):
    assert drawn.collective.num_chunks > 4 or is_below_everything(drawn)


def test_when_time_is_up_no_more_cuts_are_tried():
    """The distance of the farthest rank of a ring is 3 messages of one chunk, and 6 chunks have to get into every rank."""
    problem = problem_of(ring(4), Kind.ALLGATHER, chunks=2)
    assert lower_bound(problem, lambda: True).time_us < lower_bound(problem).time_us


def test_the_best_bound_takes_no_more_time_than_it_has(monkeypatch):
    def more(*_):
        raise AssertionError

    monkeypatch.setattr("taccl_py.synthesis.bounds.chunked._cut", more)
    assert best_bound(problem_of(ring(4), Kind.ALLGATHER), Limits(seconds=0.0)).time_us > 0


def test_a_bound_that_is_known_is_not_looked_for_again(monkeypatch):
    monkeypatch.setattr("taccl_py.synthesis.bounds.best.demand_bound", None)
    known = Bound(1e9, "known")
    assert best_bound(problem_of(ring(4), Kind.ALLGATHER), Limits(), known) == known
