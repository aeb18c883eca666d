"""AllReduce over grids of nodes."""

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.hierarchy.grid import LaneGrid, Leg, grid_messages, grid_times, grids
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.fabrics import rail_nodes
from taccl_py.topology.template import instantiate
from taccl_py.verify.schedule import verify_schedule

MIB = 1 << 20
DOUBLING = (2, 2, 2)


def rails(lanes, nodes):
    """As `hpn`: 0.3 us + 5 us/MB inside, 2.6 us + 20 us/MB from each lane to the same one elsewhere."""
    return instantiate(rail_nodes("rails", lanes, 200.0, 50.0), nodes)


def written(topology, grid, size_bytes):
    """Schedule of a grid, and when it should be done."""
    demand = Demand(topology, Kind.ALLREDUCE, size_bytes)
    chunk_bytes = size_bytes / (topology.num_ranks * sum(grid.pieces))
    cluster = LaneCluster.of(TemplateSite(topology, chunk_bytes * sum(grid.pieces)))
    times = grid_times(cluster, grid, chunk_bytes)
    return fitted(demand, TemplatePlan(sum(grid.pieces), grid_messages(cluster, grid, times))), times.end_us


def all_grids(topology, pieces=(1,)):
    return list(grids(LaneCluster.of(TemplateSite(topology, 1024.0)), pieces))


def test_eight_nodes_meet_in_one_message_of_every_lane():
    """Sums of everything in three steps inside, one message to each of seven nodes, and three steps again."""
    schedule, end_us = written(rails(8, 8), LaneGrid((Leg(8, 8, False),), DOUBLING, False, (1,)), 4096)
    size_mb = 4096 / 1e6
    assert verify_schedule(schedule) == ()
    assert end_us == pytest.approx(6 * (0.3 + 5 * size_mb) + 2.6 + 20 * size_mb)
    assert schedule.makespan_us == pytest.approx(end_us)


def test_a_scatter_halves_what_is_summed_up_three_times():
    """Halves, quarters and eighths inside, eighths between nodes; there lanes exchange eighths, and all goes back as it came."""
    schedule, _ = written(rails(8, 8), LaneGrid((Leg(8, 8, True),), DOUBLING, False, (1,)), MIB)
    eighth_mb = MIB / 8e6
    one_way_us = 3 * 0.3 + 7 * 5 * eighth_mb + 2.6 + 20 * eighth_mb
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(2 * one_way_us + 3 * (0.3 + 5 * eighth_mb))


def test_lanes_send_a_second_message_while_the_rest_is_summed_up():
    """Sixteen nodes: the second message of a lane leaves right after the first one, as its sum is done by then."""
    leg = Leg(16, 8, True)
    schedule, _ = written(rails(8, 16), LaneGrid((leg,), DOUBLING, False, (1,)), MIB)
    part_mb = MIB / 16e6
    one_way_us = 3 * 0.3 + 7 * 5 * part_mb + 2 * (2.6 + 20 * part_mb)
    assert leg.turns == 2
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(2 * one_way_us + 3 * (0.3 + 5 * part_mb))


@pytest.mark.parametrize(
    ("lanes", "nodes", "pieces"),
    [(2, 3, (2, 1)), (2, 4, (2, 1)), (4, 5, (1,)), (4, 6, (1,)), (8, 3, (1,)), (2, 8, (1,)), (1, 6, (1,))],
)
def test_everything_is_summed_up_once_in_every_grid(lanes, nodes, pieces):
    topology = rails(lanes, nodes)
    for grid in all_grids(topology, pieces):
        schedule, end_us = written(topology, grid, 96 * 1024)
        assert schedule is not None or not grid.dealt, f"{grid}: what is dealt out never meets at different times"
        if schedule is not None:
            assert verify_schedule(schedule) == (), grid
            assert schedule.makespan_us <= 1.35 * end_us, f"{grid}: the estimate is worth something"


def test_messages_of_more_chunks_than_runtimes_carry_are_whole_where_neighbours_count_as_one():
    """128 ranks exchange sums of everything in two messages; nobody parts any chunks, so the program has half as many."""
    grid = LaneGrid((Leg(8, 8, False), Leg(2, 1, False)), DOUBLING, False, (1,))
    schedule, end_us = written(rails(8, 16), grid, 4096)
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert max(len(message.chunks) for message in schedule.messages) == 128
    assert schedule.makespan_us == pytest.approx(end_us)
    assert lowered.replay.makespan_us == pytest.approx(end_us)
    assert lowered.program.num_chunks_per_loop == 64


def test_other_messages_have_no_more_chunks_than_runtimes_carry_together():
    """128 ranks with three chunks each; every lane ends with three."""
    grid = LaneGrid((Leg(8, 8, True), Leg(2, 1, True)), DOUBLING, True, (3,))
    schedule, _ = written(rails(8, 16), grid, 4096)
    assert verify_schedule(schedule) == ()
    assert max(len(message.chunks) for message in schedule.messages) == 64


def test_rows_multiply_to_the_nodes_and_exchanges_reach_them_with_one_message():
    found = all_grids(rails(4, 12))
    assert len(set(found)) == len(found)
    for grid in found:
        product = 1
        for leg in grid.legs:
            product *= leg.nodes
            assert leg.scatters or leg.turns == 1
        assert product == 12
        assert sorted(grid.legs, key=lambda leg: not leg.scatters) == list(grid.legs)


@pytest.mark.parametrize("lanes", [3, 6])
def test_nodes_of_other_than_a_power_of_two_ranks_are_left_to_others(lanes):
    assert all_grids(rails(lanes, 4)) == []


def test_lanes_that_several_ranks_share_are_left_to_others():
    assert all_grids(load_topology("dgx2", 4)) == []


def test_ranks_with_a_link_each_meet_all_at_once():
    """Eight MI300X: sums are dealt out in one step over seven links, and handed out in another."""
    topology = load_topology("mi300x", 4)
    grid = next(g for g in all_grids(topology) if g.fans == (8,) and g.legs == (Leg(4, 4, False),))
    schedule, _ = written(topology, grid, 4096)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us < 4 * 0.9 + 2.7


@pytest.mark.parametrize(
    ("lanes", "nodes", "size_bytes", "most_us"),
    [(8, 5, 64 * 1024, 6.04), (4, 8, 4096, 7.18), pytest.param(8, 16, MIB, 23.92, marks=pytest.mark.slow)],
)
def test_the_engine_finds_them_and_the_runtime_keeps_their_times(lanes, nodes, size_bytes, most_us):
    demand = Demand(rails(lanes, nodes), Kind.ALLREDUCE, size_bytes)
    found = synthesize_hierarchy(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events()).schedule
    assert found.makespan_us <= most_us
    assert verify_schedule(found) == ()
    lowered = lower_and_verify(found, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= found.makespan_us * (1 + 1e-6)
