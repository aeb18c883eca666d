"""AllToAll as a flow: known loads, sketches, symmetry, and schedules of tiny problems found by trying everything."""

import pytest
from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Rotation, Sketch
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound, flow_bound
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from tests.instances import MB, full, machine, quiet_pulp, ring, two_nodes
from tests.synthesis.drawn import node_problems, problems
from tests.synthesis.exhaustive import least_time_us

pytestmark = quiet_pulp


def problem_of(topology, kind, sketch=None):
    return Problem.build(topology, Collective(kind, topology.num_ranks), sketch, MB)


def test_the_flow_bound_is_for_alltoall():
    assert flow_bound(problem_of(full(3), Kind.ALLGATHER), Limits()) is None
    bound = flow_bound(problem_of(ring(3, alpha_us=0.0), Kind.ALLTOALL), Limits())
    assert bound.time_us == pytest.approx(30.0, rel=1e-6)
    assert "flow" in bound.reason


@pytest.mark.parametrize(("name", "load"), [("ring:8", 8.0), ("hypercube:3", 4.0), ("full:5", 1.0), ("ring:4", 2.0)])
def test_known_alltoall_loads(name, load):
    """Distances of all pairs over all links: on a ring of 8, 8 sources x 16 hops over 16 links."""
    topology = load_topology(f"{name},alpha_us=0,beta_us_per_mb=1")
    bound = flow_bound(problem_of(topology, Kind.ALLTOALL), Limits())
    assert bound.time_us == pytest.approx(load, rel=1e-6)


# A port that is slower than its links takes a message's bytes as long as the link does with its alpha, so that the link's
# alpha is hidden behind the port and cannot be added to the port's load.
def test_the_alpha_of_links_is_not_added_to_the_load_of_a_slow_port():
    links = [Link(0, 1, 3.0, 2.0, ports=(0,)), Link(1, 0, 3.0, 2.0)]
    problem = problem_of(machine(2, links, [Port("slow", 0.0, 20.0)]), Kind.ALLTOALL)
    assert least_time_us(problem, batches=True) == 20.0
    assert flow_bound(problem, Limits()).time_us <= 20.0


def test_what_a_sketch_forbids_is_not_used():
    """Four pairs between two nodes cross one link of 50 us; with both links they would take half of that."""
    topology = two_nodes(2, {0: (0, 1), 1: (0, 1)})
    free = flow_bound(problem_of(topology, Kind.ALLTOALL), Limits())
    relayed = flow_bound(problem_of(topology, Kind.ALLTOALL, Sketch("mine", connections={1: (0,)})), Limits())
    assert free.time_us == pytest.approx(50.0, rel=1e-6)
    assert relayed.time_us == pytest.approx(200.0, rel=1e-6)


def test_symmetry_changes_no_flow():
    sketch = Sketch("mine", connections={1: (0,)}, rotations=(Rotation("node", "machine"),))
    problem = problem_of(two_nodes(2, {1: (0,)}), Kind.ALLTOALL, sketch)
    assert problem.generators
    alone = flow_bound(problem.without_symmetry(), Limits())
    assert flow_bound(problem, Limits()).time_us == pytest.approx(alone.time_us, rel=1e-7)


def test_no_time_still_gives_a_bound():
    """Weights that were never improved are weights."""
    bound = flow_bound(problem_of(load_topology("mesh:3x3"), Kind.ALLTOALL), Limits(seconds=0.0))
    best = flow_bound(problem_of(load_topology("mesh:3x3"), Kind.ALLTOALL), Limits())
    assert 0.0 < bound.time_us <= best.time_us


@pytest.mark.parametrize(
    ("name", "load_us"),
    [
        ("torus:16x16", 16**3 / 8 * 20.0),
        ("ndv4-x16", 8 * 120 * 40.0 / 8),
        ("mesh:4x4", 8 * 8 / 4 * 20.0),
        ("torus:8x8,routed", 8**3 / 8 * 20.0),
        ("torus:4x4x8", 128 * 20.0),
        ("twisted:4x4x8", 128 / 1.745 * 20.0),
        ("torus:4x8x8", 256 * 20.0),
        ("twisted:4x8x8", 256 / 1.391 * 20.0),
    ],
)
def test_large_machines(name, load_us):
    """A MB for each pair: a ring of n has n / 8 hops a link for each pair, n rings; 8 NICs for 8 ranks; the middle of a mesh.

    Whether ranks or routers pass messages on makes no difference. Twisted tori of TPU v4 are 1.745 and 1.391 times as fast.
    """
    topology = load_topology(name)
    bound = demand_bound(topology, Kind.ALLTOALL, 0, topology.num_ranks * 1e12)
    assert bound.time_us == pytest.approx(load_us * 1e6, rel=5e-4 if "twisted" in name else 1e-6)


def is_below_everything(drawn):
    problem = Problem.build(drawn.topology, drawn.collective, drawn.sketch, drawn.chunk_bytes)
    best_us = least_time_us(problem, batches=True, most=3_000)
    return best_us is None or flow_bound(problem, Limits(seconds=10.0)).time_us <= best_us * (1 + 1e-9)


@settings(max_examples=12)
@given(problems(kinds=(Kind.ALLTOALL,), most_ranks=3, most_chunks=9, mixed_latency=True))
def test_no_alltoall_of_a_tiny_problem_is_faster_than_its_flow(drawn):
    assert is_below_everything(drawn)


@settings(max_examples=40)
@given(node_problems(kinds=(Kind.ALLTOALL,)))
def test_no_alltoall_that_keeps_a_sketch_is_faster_than_its_flow(drawn):
    assert drawn.collective.num_chunks > 9 or is_below_everything(drawn)
