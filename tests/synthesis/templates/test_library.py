"""Every template on every machine: correct, and accepted by the runtimes."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import RUNTIMES
from taccl_py.sketch.catalog import load_sketch
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.templates import library
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.end_to_end.machines import cases
from tests.instances import MB, chain, demand_of_chunks, full, machine, one_way_ring, two_nodes
from tests.synthesis.templates.machines import ONE_NODE, TWO_NODES, load

KIB, MIB = 1 << 10, 1 << 20


def templates(topology, kind, size_bytes=KIB, root=0, chunks_per_rank=None):
    return list(template_schedules(Demand(topology, kind, size_bytes, root, None, chunks_per_rank)))


@pytest.mark.parametrize(
    ("name", "size_bytes", "kind"),
    [
        (name, size_bytes, kind)
        for row, (name, size_bytes) in enumerate(
            [*((name, KIB) for name in ONE_NODE + TWO_NODES), ("dgx1", 16 * MIB), ("ndv4-x2", 16 * MIB)]
        )
        for column, kind in enumerate(Kind)
        if (row + column) % 2 == 0
    ],
)
def test_every_template_does_its_job(name, size_bytes, kind):
    topology = load(name)
    found = templates(topology, kind, size_bytes)
    assert found, "at least one fits"
    for each in found:
        assert each.schedule.collective.kind is kind
        assert each.schedule.size_bytes == pytest.approx(size_bytes)
        assert verify_schedule(each.schedule) == (), each.name


@pytest.mark.parametrize("kind", sorted(ROOTED))
@pytest.mark.parametrize("root", [3, 7])
def test_any_rank_can_be_the_root(kind, root):
    for name in ("dgx1", "ndv4"):
        for each in templates(load(name), kind, root=root):
            assert each.schedule.collective.root == root
            assert verify_schedule(each.schedule) == (), each.name


@pytest.mark.parametrize("kind", Kind)
def test_a_chunk_count_that_is_given_is_kept(kind):
    found = templates(load("dgx1"), kind, chunks_per_rank=3)
    assert found
    for each in found:
        assert each.schedule.collective.chunks_per_rank == 3
        assert verify_schedule(each.schedule) == (), each.name


@pytest.mark.parametrize("kind", Kind)
def test_a_process_group_of_odd_size_is_served(kind):
    topology = load("ndv4-x2").subset([0, 1, 2, 3, 4, 8, 9])
    found = templates(topology, kind)
    assert found
    assert all(verify_schedule(each.schedule) == () for each in found)


def test_templates_come_in_the_same_order_with_the_same_messages():
    first, second = (templates(load("ndv4"), Kind.ALLREDUCE) for _ in range(2))
    assert [(each.name, each.schedule.messages) for each in first] == [
        (each.name, each.schedule.messages) for each in second
    ]


@pytest.mark.parametrize("name", ["ndv4", "dgx1", "mi250x", "ring:9", "torus:3x4", "hypercube:4"])
@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST, Kind.REDUCE])
@pytest.mark.parametrize("size_bytes", [KIB, MB])
def test_what_cannot_come_near_is_left_out_and_nothing_else(name, kind, size_bytes):
    demand = Demand(load(name), kind, size_bytes)
    found = list(template_schedules(demand))
    fastest_us = min(each.schedule.makespan_us for each in found)
    kept = list(template_schedules(demand, 1.25))
    assert len(kept) <= len(found)
    near, kept_near = (
        [each.schedule.messages for each in some if each.schedule.makespan_us <= 1.25 * fastest_us]
        for some in (found, kept)
    )
    assert set(kept_near) == set(near)


def test_what_would_take_too_long_is_not_made(monkeypatch):
    """On two nodes an AllReduce of 1 KiB takes a few alphas; a ring or chain has 15 steps in each direction."""
    made = []
    lots = library._lots
    monkeypatch.setattr(library, "_lots", lambda plans: lots(plan for plan in plans if made.append(plan.name) is None))
    monkeypatch.setattr(library, "PARAMS", replace(library.PARAMS, compared_messages=1))
    demand = Demand(load("ndv4-x2"), Kind.ALLREDUCE, KIB)
    numbers = []
    for within in (math.inf, 1.25):
        made.clear()
        list(template_schedules(demand, within))
        numbers.append(sum("ring" in name or "chain" in name for name in made))
    assert numbers[0] > 0
    assert numbers[1] == 0


@settings(max_examples=60)
@given(cases(), st.sampled_from([1.0, 1e4, 1e7]))
def test_on_any_machine_what_comes_near_is_kept(drawn, size_bytes):
    demand = Demand(drawn.topology, drawn.kind, size_bytes, drawn.root)
    times_us = sorted(each.schedule.makespan_us for each in template_schedules(demand))
    assume(times_us)  # one-way links may fit no template
    kept_us = sorted(each.schedule.makespan_us for each in template_schedules(demand, 1.25))
    assert [us for us in kept_us if us <= 1.25 * times_us[0]] == [us for us in times_us if us <= 1.25 * times_us[0]]


def test_no_template_comes_twice():
    found = templates(load("switch:6"), Kind.ALLGATHER)
    assert len({each.schedule.messages for each in found}) == len(found)


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL, Kind.BROADCAST])
def test_links_that_go_one_way_are_enough(kind):
    topology = one_way_ring().topology
    found = templates(topology, kind)
    assert found
    assert all(verify_schedule(each.schedule) == () for each in found)


@pytest.mark.parametrize("kind", Kind)
def test_nodes_whose_ranks_meet_only_through_other_nodes_are_served(kind):
    across = [link for link in full(4).links if (link.src < 2) != (link.dst < 2)]
    found = templates(machine(4, across, node_of=(0, 0, 1, 1)), kind)
    assert found
    assert all(verify_schedule(each.schedule) == () for each in found)


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE, Kind.ALLTOALL, Kind.REDUCE, Kind.SCATTER])
def test_nodes_without_regular_links_go_along_paths_inside(kind):
    found = templates(load("mi250x-x2"), kind)
    fastest_us = min(each.schedule.makespan_us for each in found)
    assert fastest_us < 25, "a message between nodes takes 2.6 us; 16 of them in a row would take more"
    assert all(verify_schedule(each.schedule) == () for each in found)


def test_a_machine_that_falls_apart_has_no_template():
    apart = machine(3, chain(2).links)
    for kind in Kind:
        assert templates(apart, kind) == []


def test_a_sketch_for_sums_is_refused():
    demand = Demand(load("ndv2-x2"), Kind.ALLREDUCE, MIB, 0, load_sketch("sk-1", "ndv2"))
    with pytest.raises(InputError, match="sketch"):
        next(template_schedules(demand))


def relayed(**words):
    """Two nodes of 4 linked ranks, of which 1 and 3 send to 0 and 2 of the other node; 1 us inside, 10 across."""
    topology = two_nodes(4, {1: (0,), 3: (2,)}, inside=(1.0, 0.0), between=(10.0, 0.0))
    sketch = Sketch("relays", connections={1: (0,), 3: (2,)}, **words)
    return Demand(topology, Kind.ALLGATHER, 8.0, 0, sketch, 1)


def test_a_sketch_is_kept():
    """Pairs meet (1 us), their senders cross (10), receivers tell their pairs (1), pairs tell each other (1)."""
    demand = relayed(relays={1: (0, 1), 3: (2, 3)}, own_first=True)
    found = list(template_schedules(demand))
    best = min(found, key=lambda each: each.schedule.makespan_us)
    assert (best.name, best.schedule.makespan_us) == ("from rank 1 to rank 0 of 2", 13.0)
    permitted = Problem.build(demand.topology, Collective(Kind.ALLGATHER, 8), demand.sketch, 1.0).permitted
    for each in found:
        assert verify_schedule(each.schedule) == ()
        assert all(permitted[chunk, m.link] for m in each.schedule.messages for chunk in m.chunks), each.name


def test_what_a_sketch_forbids_is_left_out():
    """If rank 1 carries the chunks of ranks 0 and 3, and 3 those of 1 and 2, pairs of neighbours are of no use."""
    others = list(template_schedules(relayed(relays={1: (0, 3), 3: (1, 2)})))
    assert not [each for each in others if each.name.startswith("from rank")]


def test_own_chunks_that_must_go_first_do():
    topology = two_nodes(2, {0: (0,)}, inside=(1.0, 0.0), between=(10.0, 0.0))
    sketch = Sketch("first", connections={0: (0,)}, relays={0: (0, 1)}, own_first=True)
    found = list(template_schedules(Demand(topology, Kind.ALLGATHER, 4.0, 0, sketch, 1)))
    assert found
    [across] = topology.links_between[0, 2]
    for each in found:
        assert 0 in next(m for m in each.schedule.messages if m.link == across).chunks, each.name


def test_few_ranks_behind_a_switch_are_served_by_doubling():
    """Four ranks behind ports of 30 us and 1 for a chunk: doubling takes 30 + 1 and 30 + 2."""
    switch = load_topology("switch:4,alpha_us=30,beta_us_per_mb=1")
    found = template_schedules(demand_of_chunks(switch, Collective(Kind.ALLGATHER, 4, 1), None, MB))
    assert min(each.schedule.makespan_us for each in found) == 31 + 32


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for row, name in enumerate(("dgx1", "ndv4", "mi300x", "torus:4x4", "ndv2-x2", "ndv4-x2"))
        for column, kind in enumerate(Kind)
        if (row + column) % 2 == 0
    ],
)
def test_the_runtimes_take_the_fastest_templates_as_they_are(name, kind):
    found = sorted(templates(load(name), kind), key=lambda each: each.schedule.makespan_us)
    best = found[0]
    for runtime in ("executor", "rccl"):
        lowered = lower_and_verify(best.schedule, LoweringOptions(RUNTIMES[runtime]))
        assert lowered.verdict.violations == (), (best.name, runtime)
        assert lowered.replay.makespan_us <= best.schedule.makespan_us * 1.02, (best.name, runtime)
