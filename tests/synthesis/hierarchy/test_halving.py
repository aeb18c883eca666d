"""AllReduce by halving and doubling in messages of unequal size."""

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.hierarchy.halving import halving_messages, halvings
from taccl_py.synthesis.hierarchy.stages import Stage, keep_order
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.verify.schedule import verify_schedule

MB = 1_000_000
COUNTS = (1, 2, 4, 8, 16)
OPTIONS = Options(limits=Limits(seconds=1.0, by_work=True))


def small_cluster(nodes, ranks, machine="ndv4"):
    """Nodes of the first ranks of a machine of 8 ranks."""
    return load_topology(machine, nodes).subset([8 * node + rank for node in range(nodes) for rank in range(ranks)])


def found_on(topology, num_bytes, insides=(DOUBLING, DIRECT), counts=COUNTS, limits=None):
    forth, back = (
        LaneCluster.of(TemplateSite(machine, num_bytes / topology.num_ranks))
        for machine in (topology, topology.reversed())
    )
    return forth, back, list(halvings(forth, insides, num_bytes / topology.num_ranks, counts, limits or Limits()))


@pytest.mark.parametrize(
    ("machine", "nodes", "ranks", "num_bytes"),
    [
        ("ndv4", 2, 4, 16 * MB),
        ("ndv4", 4, 1, MB / 4),
        ("ndv4", 8, 2, 16 * MB),
        ("mi300x", 2, 4, MB / 4),
        ("mi300x", 4, 1, 16 * MB),
        ("mi300x", 4, 4, 16 * MB),
        ("mi300x", 8, 2, MB / 4),
    ],
)
def test_sums_are_right_and_as_fast_as_estimated(machine, nodes, ranks, num_bytes):
    topology = small_cluster(nodes, ranks, machine)
    forth, back, found = found_on(topology, num_bytes)
    assert found
    for halving in found[::3]:
        plan = TemplatePlan(halving.chunks_per_rank, halving_messages(forth, back, halving))
        schedule = fitted(Demand(topology, Kind.ALLREDUCE, float(num_bytes)), plan)
        assert verify_schedule(schedule) == ()
        assert schedule.makespan_us <= 1.02 * halving.end_us


def test_lanes_alone_send_half_exchange_half_and_send_half():
    """Four nodes of one rank, 1 MB: three messages of half of it, at 2.6 us and 40 us/MB, where halving twice takes four."""
    _, _, found = found_on(small_cluster(4, 1), MB)
    best = min(found, key=lambda halving: halving.end_us)
    assert (best.shape.together, best.shape.messages, best.shape.pieces) == (2, (1,), 1)
    assert best.end_us == pytest.approx(3 * (2.6 + 20))


def test_doubling_inside_nodes_sends_twice_as_much_in_every_step():
    """Nodes of four: a piece of a rank, and then two of them; 0.3 us and 10/3 us/MB each."""
    _, _, found = found_on(small_cluster(2, 4), MB / 4, insides=(DOUBLING,), counts=(1,))
    whole = next(halving for halving in found if halving.shape.together == 2 and halving.shape.pieces == 1)
    piece_mb = 1 / 4 / 8 * sum(whole.units)
    inside = [stage for stage in whole.stages if len(stage.step_us) > 1]
    assert inside
    for stage in inside:
        assert stage.step_us == pytest.approx((0.3 + 10 / 3 * piece_mb, 0.3 + 20 / 3 * piece_mb))


def test_two_lanes_exchange_all_they_have_in_one_message():
    """Two nodes of one rank, 1 MB: 2.6 us and 40 us/MB, where sending half there and back takes 2.6 us more."""
    _, _, found = found_on(small_cluster(2, 1), MB)
    best = min(found, key=lambda halving: halving.end_us)
    assert (best.shape.together, best.shape.messages, best.shape.pieces) == (2, (), 1)
    assert best.end_us == pytest.approx(2.6 + 40)


def test_pieces_of_an_exchange_are_as_large_as_lanes_and_nodes_need_them():
    """Two nodes of eight, 4 MB: the lanes begin after a small piece, and there is always one that they can send."""
    _, _, found = found_on(load_topology("ndv4", 2), 4 * MB, insides=(DOUBLING,), counts=(16,))
    pieces = next(h for h in found if h.shape.together == 2 and h.shape.pieces == 3)
    assert sum(pieces.units) == 32, "two nodes exchange the same sixteen chunks of both of a lane's shares"
    assert len(set(pieces.units)) > 1
    across_us = 3 * 2.6 + 40 * 0.5
    assert across_us < pieces.end_us < across_us + 2 * (3 * 0.3 + 10 / 3 * 7 * 0.25)


def test_what_is_added_first_and_handed_out_last_is_small():
    """The lanes wait for no more than a tenth of all, and what they send is what any ReduceScatter and AllGather would."""
    _, _, found = found_on(load_topology("ndv4", 8), 64 * MB)
    best = min(found, key=lambda halving: halving.end_us)
    columns = [best.shape.of_step(piece, 1 if best.shape.together == 2 else 2) for piece in range(best.shape.pieces)]
    for sizes in ([best.units[column] for column in step] for step in columns):
        assert len(sizes) > 1
        assert sizes == sorted(sizes, reverse=True)
    across_us = 2 * 40 * 7 * 1.0  # seven shares of 1 MB there and back
    assert across_us < best.end_us <= 1.1 * across_us


def test_chunks_are_as_many_as_may_be():
    _, _, found = found_on(small_cluster(4, 2), 4 * MB, counts=(3, 6))
    assert {halving.chunks_per_rank for halving in found} <= {3, 6}
    demand = Demand(small_cluster(4, 2), Kind.ALLREDUCE, float(4 * MB), chunks_per_rank=5)
    assert synthesize_hierarchy(demand, OPTIONS, Events()).schedule.collective.chunks_per_rank == 5


def test_one_way_is_found_when_time_is_up():
    topology = small_cluster(4, 2)
    assert len(found_on(topology, 4 * MB, limits=Limits(seconds=0.0))[2]) == 1
    assert len(found_on(topology, 4 * MB)[2]) > 1


def test_programs_keep_what_schedules_promise():
    demand = Demand(small_cluster(4, 2), Kind.ALLREDUCE, float(16 << 20))
    schedule = synthesize_hierarchy(demand, OPTIONS, Events()).schedule
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= 1.01 * schedule.makespan_us


@pytest.mark.parametrize("topology", [formula_topology("hpn:3"), formula_topology("hpn:6")])
def test_other_numbers_of_nodes_are_left_to_others(topology):
    assert found_on(topology, MB)[2] == []


def test_stages_that_keep_an_order_wait_for_their_turn_and_for_what_they_need():
    stages = [Stage((2.0,), 0, ()), Stage((5.0,), 1, (0,)), Stage((1.0, 1.0), 0, ()), Stage((1.0,), 0, (1,))]
    assert keep_order(stages, [2, 0, 1, 3]) == 10.0
    assert [stage.start_us for stage in stages] == [2.0, 4.0, 0.0, 9.0]
    both = [Stage((2.0,), 0, ()), Stage((1.0,), 1, (), also=0), Stage((1.0,), 0, ())]
    assert keep_order(both, [0, 1, 2]) == 4.0, "what it occupies besides is taken, too"
