"""Every template on every machine: correct, and accepted by the runtimes."""

import pytest

from taccl_py.collective import ROOTED, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline import lower_and_judge
from taccl_py.runtimes import RUNTIMES
from taccl_py.sketch.catalog import load_sketch
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.verify.schedule import judge_schedule
from tests.instances import chain, full, machine, one_way_ring
from tests.synthesis.templates.machines import ONE_NODE, TWO_NODES, load

KIB, MIB = 1 << 10, 1 << 20


def templates(topology, kind, size_bytes=KIB, root=0, chunks_per_rank=None):
    return list(template_schedules(Demand(topology, kind, size_bytes, root, None, chunks_per_rank)))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    ("name", "size_bytes"), [*((name, KIB) for name in ONE_NODE + TWO_NODES), ("dgx1", 16 * MIB), ("ndv4-x2", 16 * MIB)]
)
def test_every_template_does_its_job(name, size_bytes, kind):
    topology = load(name)
    found = templates(topology, kind, size_bytes)
    assert found, "at least one fits"
    for each in found:
        assert each.schedule.collective.kind is kind
        assert each.schedule.size_bytes == pytest.approx(size_bytes)
        assert judge_schedule(each.schedule) == (), each.name


@pytest.mark.parametrize("kind", sorted(ROOTED))
@pytest.mark.parametrize("root", [3, 7])
def test_any_rank_can_be_the_root(kind, root):
    for name in ("dgx1", "ndv4"):
        for each in templates(load(name), kind, root=root):
            assert each.schedule.collective.root == root
            assert judge_schedule(each.schedule) == (), each.name


@pytest.mark.parametrize("kind", Kind)
def test_a_chunk_count_that_is_given_is_kept(kind):
    found = templates(load("dgx1"), kind, chunks_per_rank=3)
    assert found
    for each in found:
        assert each.schedule.collective.chunks_per_rank == 3
        assert judge_schedule(each.schedule) == (), each.name


@pytest.mark.parametrize("kind", Kind)
def test_a_process_group_of_odd_size_is_served(kind):
    topology = load("ndv4-x2").subset([0, 1, 2, 3, 4, 8, 9])
    found = templates(topology, kind)
    assert found
    assert all(judge_schedule(each.schedule) == () for each in found)


def test_templates_come_in_the_same_order_with_the_same_messages():
    first, second = (templates(load("ndv4"), Kind.ALLREDUCE) for _ in range(2))
    assert [(each.name, each.schedule.messages) for each in first] == [
        (each.name, each.schedule.messages) for each in second
    ]


def test_what_cannot_come_near_is_left_out_and_nothing_else():
    demand = Demand(load("ndv4"), Kind.ALLREDUCE, KIB)
    found = list(template_schedules(demand))
    fastest_us = min(each.schedule.makespan_us for each in found)
    kept = list(template_schedules(demand, 1.25))
    assert len(kept) < len(found)
    assert {each.name for each in found if each.schedule.makespan_us <= 1.25 * fastest_us} <= {
        each.name for each in kept
    }


def test_no_template_comes_twice():
    found = templates(load("switch:6"), Kind.ALLGATHER)
    assert len({each.schedule.messages for each in found}) == len(found)


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL, Kind.BROADCAST])
def test_links_that_go_one_way_are_enough(kind):
    topology = one_way_ring().topology
    found = templates(topology, kind)
    assert found
    assert all(judge_schedule(each.schedule) == () for each in found)


@pytest.mark.parametrize("kind", Kind)
def test_nodes_whose_ranks_meet_only_through_other_nodes_are_served(kind):
    across = [link for link in full(4).links if (link.src < 2) != (link.dst < 2)]
    found = templates(machine(4, across, node_of=(0, 0, 1, 1)), kind)
    assert found
    assert all(judge_schedule(each.schedule) == () for each in found)


@pytest.mark.parametrize("kind", Kind)
def test_nodes_without_regular_links_go_along_paths_inside(kind):
    found = templates(load("mi250x-x2"), kind)
    fastest_us = min(each.schedule.makespan_us for each in found)
    assert fastest_us < 25, "a message between nodes takes 2.6 us; 16 of them in a row would take more"
    assert all(judge_schedule(each.schedule) == () for each in found)


def test_a_machine_that_falls_apart_has_no_template():
    apart = machine(3, chain(2).links)
    for kind in Kind:
        assert templates(apart, kind) == []


def test_a_sketch_is_refused():
    demand = Demand(load("ndv2-x2"), Kind.ALLGATHER, MIB, 0, load_sketch("sk-1", "ndv2"))
    with pytest.raises(InputError, match="sketch"):
        next(template_schedules(demand))


@pytest.mark.parametrize("runtime", ["executor", "rccl"])
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("name", ["dgx1", "ndv4", "mi300x", "torus:4x4", "ndv2-x2", "ndv4-x2"])
def test_the_runtimes_take_the_fastest_templates_as_they_are(name, kind, runtime):
    found = sorted(templates(load(name), kind), key=lambda each: each.schedule.makespan_us)
    best = found[0]
    lowered = lower_and_judge(best.schedule, LoweringOptions(RUNTIMES[runtime]))
    assert lowered.verdict.violations == (), best.name
    assert lowered.replay.makespan_us <= best.schedule.makespan_us * 1.02, best.name
