"""Engine ``steps``: SCCL's front at one size."""

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError, LimitReached
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options, Proof
from taccl_py.synthesis.steps import synthesize_steps
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, ring

BRIEF = Limits(seconds=3.0, by_work=True)


def run(demand, limits=BRIEF):
    return synthesize_steps(demand, Options(limits=limits), Events())


@pytest.mark.parametrize(
    "kind", [Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, pytest.param(Kind.BROADCAST, marks=pytest.mark.slow)]
)
def test_small_sizes_take_few_steps_and_large_ones_little_traffic(kind):
    topology = load_topology("dgx1")
    small, large = run(Demand(topology, kind, 1024.0)), run(Demand(topology, kind, 1024 * MB))
    for found in (small, large):
        assert verify_schedule(found.schedule) == ()
        assert found.schedule.makespan_us >= found.bound.time_us * (1 - 1e-9)
    assert small.schedule.collective.chunks_per_rank < large.schedule.collective.chunks_per_rank
    assert large.runners_up
    assert all(other.makespan_us >= large.schedule.makespan_us for other in large.runners_up)


def test_a_ring_of_four_takes_three_steps_and_is_optimal_without_alpha():
    """Each of three transfers takes 10 us; three quarters of the data enter every rank over one link."""
    found = run(Demand(ring(4, alpha_us=0.0), Kind.ALLGATHER, 4 * MB))
    assert found.schedule.makespan_us == pytest.approx(30.0)
    assert found.proof is Proof.OPTIMAL


def test_a_chunk_count_that_is_given_is_kept():
    found = run(Demand(load_topology("dgx1"), Kind.ALLGATHER, 8 * MB, chunks_per_rank=3))
    assert found.schedule.collective.chunks_per_rank == 3


def test_bandwidths_that_are_no_multiples_are_refused_by_name():
    with pytest.raises(InputError, match="times as fast as the slowest link"):
        run(Demand(load_topology("ndv2", 2), Kind.ALLGATHER, MB))


def test_without_time_there_is_no_schedule_and_the_sentence_says_what_to_do():
    with pytest.raises(LimitReached, match="--time-limit"):
        run(Demand(load_topology("dgx1"), Kind.ALLGATHER, MB), Limits(seconds=0.0))
