"""AllReduce along the rotations of routed tori: every sum once, steps and distances as published, times by hand."""

import pytest

from taccl_py.collective import Kind
from taccl_py.schedule.timing import build_schedule
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.sums import adds_up
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.messages import as_untimed
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.ring_patterns import DOUBLED, RINGS, SWING, TRIVANCE, ring_patterns
from taccl_py.synthesis.templates.torus import Torus, torus_methods
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule

KIB = 1 << 10


def pattern_of(name, side, *, mirrored=False):
    (found,) = (each for each in ring_patterns(side, mirrored=mirrored) if each.name == name)
    return found


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("side", [*range(2, 13), 16, 27])
def test_every_pattern_sums_up_each_part_once_at_its_owner(side, mirrored):
    for pattern in ring_patterns(side, mirrored=mirrored):
        summed = [[{place} for _ in range(side)] for place in range(side)]  # ranks in the sum of each owner's part
        for step, sends in enumerate(pattern.sends):
            before = [[set(part) for part in parts] for parts in summed]
            for src, (dst, owners) in [(place, send) for place in range(side) for send in sends[place]]:
                assert owners <= pattern.holds[step][src]
                assert owners <= pattern.holds[step + 1][dst], pattern.name
                for owner in owners:
                    assert not summed[dst][owner] & before[src][owner], "added twice"
                    summed[dst][owner] |= before[src][owner]
        assert all(summed[place][place] == set(range(side)) for place in range(side)), pattern.name
        assert pattern.holds[-1] == tuple(frozenset({place}) for place in range(side))


def distances(pattern, side):
    return [
        {min((dst - src) % side, (src - dst) % side) for src in range(side) for dst, _ in sends[src]}
        for sends in pattern.sends
    ]


def test_partners_are_as_far_as_published():
    assert distances(pattern_of(SWING, 16), 16) == [{1}, {1}, {3}, {5}]
    assert distances(pattern_of(DOUBLED, 16), 16) == [{1}, {2}, {4}, {8}]
    assert distances(pattern_of(TRIVANCE, 27), 27) == [{1}, {3}, {9}]
    assert distances(pattern_of(RINGS, 9), 9) == [{1}] * 4


def test_swing_by_hand():
    """Of eight, rank 0 meets 1, then 7, then 3; rank 1 meets 0, then 2, then 6. Its mirror image turns everything around."""
    pattern, mirror = pattern_of(SWING, 8), pattern_of(SWING, 8, mirrored=True)
    assert [[sends[place][0][0] for sends in pattern.sends] for place in (0, 1)] == [[1, 7, 3], [0, 2, 6]]
    assert [mirror.sends[step][0][0][0] for step in range(3)] == [7, 1, 5]
    assert pattern.sends[0][0][0][1] == {1, 2, 5, 6}, "rank 1 owns its part, and later meets 2, and 6, and by 2 then 5"


def test_only_where_positions_hold_the_same_can_whole_sums_be_exchanged():
    assert pattern_of(TRIVANCE, 9).is_nested
    assert not pattern_of(TRIVANCE, 8).is_nested
    assert pattern_of(SWING, 8).is_nested
    assert not pattern_of(RINGS, 8).is_nested


def scheduled(topology, method, size_bytes, chunks=None):
    plan = method.plan(chunks)
    collective = Demand(topology, Kind.ALLREDUCE, size_bytes).collective(plan.chunks_per_rank)
    chunk_bytes = collective.chunk_bytes(size_bytes)
    untimed = as_untimed(topology, chunk_bytes, plan.messages)
    return build_schedule(topology, collective, chunk_bytes, untimed, as_named=True)


@pytest.mark.parametrize(
    "machine", ["ring:5", "ring:8", "ring:9", "torus:3x3", "torus:2x4", "torus:4x3", "torus:2x2x4"]
)
def test_every_method_is_an_allreduce(machine):
    topology = load_topology(f"{machine},routed")
    alike = len(set(Torus.of(topology).sides)) == 1
    for method in torus_methods(Torus.of(topology)):
        schedule = scheduled(topology, method, 64 * KIB)
        # Where sides differ, what is exchanged along one could meet what another one brings, and templates leave it out.
        if alike or not method.exchanged or adds_up(schedule):
            assert verify_schedule(schedule) == (), method.name


def method_of(machine, name):
    topology = load_topology(machine)
    (found,) = (method for method in torus_methods(Torus.of(topology)) if method.name == name)
    return topology, found


@pytest.mark.parametrize(
    ("machine", "name", "time_us"),
    [
        # Two steps, of one and of three hops: 2 * 0.5 and 2 * 0.1.
        ("ring:9,routed", "Trivance, 2 exchanged", 1.2),
        # Three steps of 1, 1 and 3 hops; there and back.
        ("ring:8,routed", "Swing", 2 * (3 * 0.5 + 0.2)),
        ("ring:8,routed", "Swing, 3 exchanged", 3 * 0.5 + 0.2),
        # 1, 2 and 4 hops; in the mirror image odd ranks meet the same ones at the second step, in another message.
        ("ring:8,routed", "recursive doubling, 3 exchanged, one direction", 3 * 0.5 + 0.4),
        ("ring:8,routed", "recursive doubling, 3 exchanged", 4 * 0.5 + 0.4),
        ("ring:8,routed", "bidirectional rings", 2 * 4 * 0.5),
        # Each part along one side, then along the other.
        ("torus:8x8,routed", "Swing, 6 exchanged", 2 * (3 * 0.5 + 0.2)),
    ],
)
def test_small_messages_take_the_alphas_and_hops_counted_by_hand(machine, name, time_us):
    topology, method = method_of(machine, name)
    assert scheduled(topology, method, topology.num_ranks).makespan_us == pytest.approx(time_us, rel=1e-3)


def test_large_rings_load_every_wire_alike():
    """In both directions of both dimensions 2 * 63 / 64 of a quarter, at 20 us/MB, and 16 steps of 0.5 us."""
    topology, method = method_of("torus:8x8,routed", "bidirectional rings")
    expected_us = 16 * 0.5 + 2 * 63 / 64 * 64 / 4 * 20.0
    assert scheduled(topology, method, 64e6).makespan_us == pytest.approx(expected_us, rel=1e-6)


@pytest.mark.parametrize("size_bytes", [32 * KIB, 4096 * KIB])
def test_estimates_are_close(size_bytes):
    topology = load_topology("torus:4x4,routed")
    for method in torus_methods(Torus.of(topology)):
        assert method.estimate_us(size_bytes) == pytest.approx(
            scheduled(topology, method, size_bytes).makespan_us, rel=0.15
        ), method.name


def test_methods_stay_with_the_chunks_asked_for():
    topology = load_topology("torus:3x3,routed")
    method = next(torus_methods(Torus.of(topology)))
    assert method.num_parts == 2, "an odd side needs no mirror image"
    assert method.plan(3) is None
    assert method.plan(4).chunks_per_rank == 4
    assert verify_schedule(scheduled(topology, method, 64 * KIB, 4)) == ()


@pytest.mark.parametrize("machine", ["torus:4x4", "full:8", "switch:8", "fattree:4", "ndv4-x2", "mesh:3x3,routed"])
def test_elsewhere_there_is_none(machine):
    assert Torus.of(load_topology(machine)) is None


@pytest.mark.parametrize("size_bytes", [KIB, 1024 * KIB])
def test_templates_are_no_slower_than_any_method(size_bytes):
    topology = load_topology("torus:4x4,routed")
    best_us = min(scheduled(topology, method, size_bytes).makespan_us for method in torus_methods(Torus.of(topology)))
    found = template_schedules(Demand(topology, Kind.ALLREDUCE, size_bytes), PARAMS.runner_up_factor)
    assert min(named.schedule.makespan_us for named in found) <= best_us * (1 + 1e-9)
