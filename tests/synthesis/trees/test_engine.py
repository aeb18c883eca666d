from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.sketch.catalog import load_sketch
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Proof
from taccl_py.synthesis.trees.engine import synthesize_trees
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, chain, ring
from tests.synthesis.drawn import node_problems, problems
from tests.synthesis.restrictions import breaks_own_first
from tests.synthesis.trees.boxes import boxes

GIB = 1 << 30
BRIEF = Limits(seconds=2.0, by_work=True)
KINDS = (Kind.BROADCAST, Kind.REDUCE, Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE)


def run(demand, limits=BRIEF):
    return synthesize_trees(demand, Options(limits=limits), Events())


def check(found):
    assert verify_schedule(found.schedule) == ()
    assert found.schedule.makespan_us >= found.bound.time_us * (1 - 1e-6)


@given(problems(kinds=KINDS, most_ranks=5))
@settings(max_examples=8)
def test_the_verifier_accepts_every_collective_on_any_machine(drawn):
    collective = drawn.collective
    found = run(Demand(drawn.topology, collective.kind, 8 * MB, collective.root))
    check(found)
    assert found.schedule.collective.kind is collective.kind
    assert found.schedule.size_bytes == pytest.approx(8 * MB)


@given(node_problems(kinds=(Kind.ALLGATHER, Kind.BROADCAST)))
@settings(max_examples=5)
def test_sketches_are_kept(drawn):
    collective = drawn.collective
    demand = Demand(drawn.topology, collective.kind, 8 * MB, collective.root, drawn.sketch)
    found = run(demand)
    check(found)
    assert breaks_own_first(found.schedule, drawn.sketch) == []


@pytest.mark.parametrize("kind", [Kind.BROADCAST, pytest.param(Kind.ALLREDUCE, marks=pytest.mark.slow)])
def test_shipped_sketches_are_kept(kind):
    found = run(Demand(load_topology("ndv2", 2), kind, 16 * MB, sketch=load_sketch("sk-1", "ndv2")))
    check(found)


# Machines with the gap that is allowed at 1 GiB.
AT_A_GIBIBYTE = [
    (load_topology("ndv2", 2), 0.01),
    (load_topology("ndv4", 2), 0.01),
    (load_topology("dgx1"), 0.005),
    (load_topology("torus:4x4"), 0.005),
    (load_topology("hypercube:3"), 0.005),
    (load_topology("ring:8"), 0.005),
    (load_topology("mi300x"), 0.005),
    (boxes(2, switch_gbps=450.0, nic_gbps=50.0), 0.02),
    pytest.param(boxes(2), 0.01, marks=pytest.mark.slow),
    pytest.param(boxes(4), 0.03, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("topology", "gap"), AT_A_GIBIBYTE, ids=lambda value: getattr(value, "name", ""))
def test_large_sizes_come_near_to_the_bound(topology, gap):
    found = run(Demand(topology, Kind.ALLGATHER, GIB))
    check(found)
    assert found.gap <= gap


@pytest.mark.parametrize(
    ("name", "gap", "kind"),
    [
        # In 64 pieces 1.50; down trees that were rounded from a packing 1.065.
        pytest.param("dgx1", 0.053, Kind.REDUCE, marks=pytest.mark.slow),
        # Seven trees, whose pieces do not divide a power of two; in 64 pieces 1.31.
        ("full:8", 0.029, Kind.BROADCAST),
        # Down trees that were rounded from a packing, with up to eight levels, 1.075.
        pytest.param("torus:4x4", 0.04, Kind.BROADCAST, marks=pytest.mark.slow),
    ],
)
def test_large_buffers_of_one_root_are_cut_into_many_pieces(name, gap, kind):
    found = run(Demand(load_topology(name), kind, GIB))
    check(found)
    assert found.schedule.makespan_us <= found.bound.time_us * (1 + gap)


@pytest.mark.parametrize(
    ("name", "kind", "cost_us"),
    [
        # Down trees that were rounded from a packing 163, 123 and 264.
        ("dgx1", Kind.BROADCAST, 150.1),
        pytest.param("torus:4x4", Kind.BROADCAST, 112.4, marks=pytest.mark.slow),
        pytest.param("hypercube:5", Kind.REDUCE, 97.2, marks=pytest.mark.slow),
    ],
)
def test_trees_of_one_root_that_grow_side_by_side_are_shallow(name, kind, cost_us):
    found = run(Demand(load_topology(name), kind, 16 << 20))
    check(found)
    assert found.schedule.makespan_us <= cost_us


@pytest.mark.slow
def test_an_all_reduce_goes_through_a_hub_where_corners_have_fewer_links():
    """A ReduceScatter and an AllGather, one after the other, take 1.5 times as long as the bound."""
    found = run(Demand(load_topology("mesh:3x3"), Kind.ALLREDUCE, 64 << 20))
    check(found)
    assert found.gap <= 0.18


@pytest.mark.slow
def test_no_rank_sends_and_receives_more_than_runtimes_read():
    """At 4 GiB about 390 pieces would be best, of which the hub of a mesh of 4 by 4 sends and receives ten messages each."""
    found = run(Demand(load_topology("mesh:4x4"), Kind.ALLREDUCE, 4 * GIB))
    links = found.schedule.topology.links
    ends = Counter(rank for m in found.schedule.messages for rank in (links[m.link].src, links[m.link].dst))
    assert max(ends.values()) <= 4095 - 16
    lower_and_verify(found.schedule, LoweringOptions(EXECUTOR))


@pytest.mark.parametrize("kind", [Kind.REDUCESCATTER, Kind.ALLREDUCE])
@pytest.mark.parametrize(("topology", "gap"), AT_A_GIBIBYTE[2:6], ids=lambda value: getattr(value, "name", ""))
def test_large_sums_come_near_to_the_bound(topology, gap, kind):
    found = run(Demand(topology, kind, GIB))
    check(found)
    assert found.gap <= gap * (1.5 if kind is Kind.ALLREDUCE else 1.0)


@pytest.mark.parametrize("chunks", [1, 2, 7, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_of_chunks_that_is_given_is_kept(kind, chunks):
    found = run(Demand(load_topology("ring:4"), kind, 64 * MB, chunks_per_rank=chunks))
    check(found)
    assert found.schedule.collective.chunks_per_rank == chunks


def test_a_broadcast_down_a_chain_is_pipelined_as_well_as_equal_pieces_can_be():
    """k pieces over five links take k + 4 steps of 1 + 1000 / k us, least for 63 of them: 67 steps of 16.87 us."""
    found = run(Demand(chain(6, alpha_us=1.0, beta_us_per_mb=10.0), Kind.BROADCAST, 100 * MB))
    check(found)
    assert found.schedule.makespan_us <= 67 * (1 + 1000 / 63) * 1.001


def test_only_what_equals_the_bound_is_optimal():
    """One transfer is the least for two ranks; four on a one-way ring need three transfers, of which the bound sees one alpha."""
    found = run(Demand(chain(2, alpha_us=1.0, beta_us_per_mb=10.0), Kind.BROADCAST, MB, chunks_per_rank=1))
    assert (found.schedule.makespan_us, found.proof) == (pytest.approx(11.0), Proof.OPTIMAL)
    found = run(Demand(ring(4), Kind.ALLGATHER, 4 * MB, chunks_per_rank=1))
    assert (found.schedule.makespan_us, found.proof) == (pytest.approx(33.0), Proof.FEASIBLE)


def test_other_collectives_are_refused_with_an_engine_that_does_them():
    with pytest.raises(InputError, match=r"alltoall.*flow"):
        run(Demand(ring(4), Kind.ALLTOALL, MB))


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE])
def test_without_time_there_is_still_an_answer(kind):
    check(run(Demand(load_topology("mi250x"), kind, GIB), Limits(seconds=0.0)))


def test_the_users_interrupt_ends_the_search_with_an_answer():
    limits = Limits()
    limits.stop.set()
    check(run(Demand(load_topology("mi250x"), Kind.ALLGATHER, GIB), limits))


def test_the_same_seed_gives_the_same_schedule():
    demand = Demand(load_topology("dgx1"), Kind.ALLGATHER, 16 * MB)
    one, other = run(demand), run(demand)
    assert one.schedule == other.schedule
    assert replace(one, stage_seconds={}) == replace(other, stage_seconds={})


def test_more_data_never_lowers_the_bandwidth_much():
    rates = [run(Demand(boxes(2), Kind.ALLGATHER, size)).schedule.algbw_gbps for size in (GIB // 16, GIB)]
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("dgx1", Kind.ALLREDUCE, marks=pytest.mark.slow),
        ("torus:4x4", Kind.ALLGATHER),
        ("dgx1", Kind.REDUCESCATTER),
    ],
)
def test_the_program_keeps_the_promise(name, kind):
    found = run(Demand(load_topology(name), kind, 256 * MB))
    lowered = lower_and_verify(found.schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= found.schedule.makespan_us * 1.03


def test_the_command_line_knows_the_engine():
    assert load_engine("trees") is synthesize_trees


def test_a_number_of_trees_that_is_given_is_kept_and_chunks_must_be_a_multiple_of_it():
    demand = Demand(load_topology("dgx1"), Kind.ALLGATHER, GIB)
    found = synthesize_trees(demand, Options(trees=3), Events())
    check(found)
    schedule = found.schedule
    links = [{m.link for m in schedule.messages if c in m.chunks} for c in range(schedule.collective.chunks_per_rank)]
    assert 1 < len({frozenset(tree) for tree in links}) <= 3  # of which two may be the same
    with pytest.raises(InputError, match="4 chunks cannot be shared by 3 trees"):
        synthesize_trees(replace(demand, chunks_per_rank=4), Options(trees=3), Events())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most_us"), [(Kind.BROADCAST, 4700.0), (Kind.REDUCE, 4700.0)])
def test_trees_of_one_root_are_put_in_order_before_time_is_over(kind, most_us):
    """Two MI250X nodes, 1 GiB, the time that a race gives: 15.1 and 15.8 ms where trees of all numbers were made first."""
    demand = Demand(load_topology("mi250x", 2), kind, float(1 << 30))
    found = synthesize_trees(demand, Options(limits=Limits(seconds=10.0, by_work=True)), Events())
    assert found.schedule.makespan_us <= most_us
