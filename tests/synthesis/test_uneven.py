"""Chunks of unequal size: best sizes worked out by hand, and counts that serve the size."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.runtimes import MAX_COUNT
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis import uneven
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.uneven import FinerChunks, fit_to_size, recut, usable_counts
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from taccl_py.verify.schedule import verify_schedule
from tests.end_to_end.machines import cases
from tests.instances import MB, chain, machine

LIMITS = Limits(seconds=30.0)
POWERS = (1, 2, 4, 8, 16, 32, 64)


def two_lanes(chunks=2):
    """Broadcast of 1 MB to one other rank: a chunk over a quick link, the others over one that is three times as slow."""
    topology = machine(2, [Link(0, 1, 1.0, 10.0), Link(0, 1, 1.0, 30.0), Link(1, 0, 1.0, 10.0)])
    quick, slow = topology.links_between[0, 1]
    drafts = [UntimedMessage(quick if chunk == 0 else slow, (chunk,), 0, 1) for chunk in range(chunks)]
    return build_schedule(topology, Collective(Kind.BROADCAST, 2, chunks), MB / chunks, drafts)


def test_a_slower_link_carries_less():
    """Halves take 1 + 15 us. Three quarters over the quick link take as long as one quarter over the other: 1 + 7.5 us."""
    assert two_lanes().makespan_us == pytest.approx(16.0)
    found = recut(two_lanes(), FinerChunks(POWERS, MAX_COUNT), LIMITS)
    assert found.makespan_us == pytest.approx(8.5)
    assert [len(message.chunks) for message in found.messages] == [3, 1]
    assert found.collective.chunks_per_rank == 4
    assert found.chunk_bytes == MB / 4
    assert not verify_schedule(found)


def test_plans_of_very_many_messages_and_chunks_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(uneven, "PARAMS", replace(uneven.PARAMS, most_pairs=1))
    assert recut(two_lanes(), FinerChunks(POWERS, MAX_COUNT), LIMITS) is None


def test_sizes_are_as_near_as_the_counts_allow():
    """Of five chunks the quick link gets four, 1 + 8 us; three quarters would be less, but three of five leave 1 + 12 us."""
    found = recut(two_lanes(), FinerChunks((5,), MAX_COUNT), LIMITS)
    assert found.makespan_us == pytest.approx(9.0)


def test_sizes_are_not_found_again_for_an_order_that_is_far_slower(monkeypatch):
    """Sizes for the order that they ask for are found as often as it is not slower by much; of one that is, never."""
    found, numbers, best_sizes = [], [], uneven._best_sizes

    def noted(*arguments):
        found.append(best_sizes(*arguments))
        return found[-1]

    monkeypatch.setattr(uneven, "_best_sizes", noted)
    for factor in (uneven.PARAMS.order_factor, 0.0):
        monkeypatch.setattr(uneven, "PARAMS", replace(uneven.PARAMS, order_factor=factor))
        recut(two_lanes(), FinerChunks(POWERS, MAX_COUNT), LIMITS)
        numbers.append(len(found))
        found.clear()
    assert numbers == [2, 1]


def test_chunks_of_no_use_are_left_out():
    """Alpha of the slow link is so large that it is best not to use it, but for the chunk that is on its way anyway."""
    topology = machine(2, [Link(0, 1, 1.0, 10.0), Link(0, 1, 50.0, 30.0), Link(1, 0, 1.0, 10.0)])
    schedule = replace(two_lanes(), topology=topology)
    schedule = build_schedule(
        topology, schedule.collective, MB / 2, [UntimedMessage(m.link, m.chunks, 0, 1) for m in schedule.messages]
    )
    assert schedule.makespan_us == pytest.approx(65.0)
    found = recut(schedule, FinerChunks(POWERS, MAX_COUNT), LIMITS)
    assert [len(message.chunks) for message in found.messages] == [found.collective.chunks_per_rank]
    assert found.makespan_us == pytest.approx(11.0)


def test_equal_pieces_are_best_down_a_chain():
    """Two hops of pieces x and 1 - x take the sum of both and the longer one again."""
    topology = chain(3, 1.0, 10.0)
    drafts = [UntimedMessage(link, (chunk,), chunk + link, chunk + link + 1) for link in (0, 1) for chunk in (0, 1)]
    schedule = build_schedule(topology, Collective(Kind.BROADCAST, 3, 2), MB / 2, drafts)
    assert schedule.makespan_us == pytest.approx(18.0)
    assert recut(schedule, FinerChunks(POWERS, MAX_COUNT), LIMITS) is None


def test_a_share_of_one_chunk_has_nothing_to_move():
    schedule = build_schedule(chain(2), Collective(Kind.BROADCAST, 2, 1), MB, [UntimedMessage(0, (0,), 0, 1)])
    assert recut(schedule, FinerChunks(POWERS, MAX_COUNT), LIMITS) is None


def demand_of(size_bytes, ranks=16, kind=Kind.ALLGATHER, chunks=None):
    return Demand(load_topology(f"ring:{ranks}"), kind, size_bytes, chunks_per_rank=chunks)


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "first", "not_among"),
    [
        (1 << 20, 16, (1, 2, 4, 8), 7),  # 16384 elements for each rank
        (7 << 20, 16, (1, 2, 4, 7), 3),
        (1e9, 16, (1, 2, 4, 5), 3),  # 15625000 elements: 2^3 5^9
        (1 << 10, 16, (1, 2, 4, 8, 16), 32),  # 16 elements
        (1 << 20, 6, (1, 2, 4, 8), 3),  # 6 ranks do not share a power of two evenly
    ],
)
def test_counts_cut_the_size_into_whole_elements(size_bytes, ranks, first, not_among):
    counts = usable_counts(demand_of(size_bytes, ranks))
    assert counts[: len(first)] == first
    assert not_among not in counts
    assert list(counts) == sorted(counts)


def answer(schedule, *others):
    bound = demand_bound(schedule.topology, schedule.collective.kind, 0, schedule.size_bytes)
    return Synthesis(schedule, bound, Proof.FEASIBLE, "none", {}, others)


def test_three_equal_pieces_become_four_chunks_or_more():
    schedule = two_lanes(3)
    demand = Demand(schedule.topology, Kind.BROADCAST, 1 << 20)
    schedule = replace(schedule, chunk_bytes=(1 << 20) / 3)
    found = fit_to_size(answer(schedule), demand, LIMITS)
    assert found.schedule.collective.chunks_per_rank in usable_counts(demand)
    assert not verify_schedule(found.schedule)
    stopped = Limits(seconds=30.0)
    stopped.stop.set()
    at_once = fit_to_size(answer(schedule), demand, stopped)
    assert at_once.schedule.collective.chunks_per_rank in usable_counts(demand)


def test_what_reaches_the_bound_is_optimal():
    demand = Demand(two_lanes().topology, Kind.BROADCAST, MB)
    found = fit_to_size(answer(two_lanes()), demand, LIMITS)
    assert found.bound.time_us == pytest.approx(8.5)
    assert found.proof is Proof.OPTIMAL
    assert [schedule.collective.chunks_per_rank for schedule in found.runners_up] == []


def test_schedules_of_the_best_sizes_are_not_cut_again_while_one_of_them_serves_the_size():
    demand = Demand(two_lanes().topology, Kind.BROADCAST, MB)
    given, odd = two_lanes(), two_lanes(3)
    assert fit_to_size(answer(given), demand, LIMITS, sized=[given]).schedule is given
    assert fit_to_size(answer(given), demand, LIMITS).schedule is not given
    odd = replace(odd, chunk_bytes=MB / 3)
    assert fit_to_size(answer(odd), demand, LIMITS, sized=[odd]).schedule.collective.chunks_per_rank in (2, 4, 8, 16)


def test_a_demanded_chunk_count_is_kept():
    given_answer = answer(two_lanes())
    demand = Demand(two_lanes().topology, Kind.BROADCAST, MB, chunks_per_rank=2)
    assert fit_to_size(given_answer, demand, LIMITS) is given_answer


def test_counts_stay_within_the_copies_that_are_possible():
    """256 ranks have 2^16 pairs, 2^24 copies of their chunks, and 2^28 are possible."""
    assert usable_counts(demand_of(1 << 30, 256, Kind.ALLTOALL))[-1] == 16


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        *(
            (engine, kind)
            for engine in ("templates", "trees")
            for kind in (Kind.ALLGATHER, Kind.ALLREDUCE, Kind.BROADCAST)
        ),
        *((engine, Kind.ALLTOALL) for engine in ("templates", "flow")),
    ],
)
@pytest.mark.parametrize("name", ["dgx1", "torus:3x3", "ndv2-x2"])
def test_answers_serve_the_size(engine, name, kind):
    topology = load_topology(name)
    demand = Demand(topology, kind, topology.num_ranks << 18)
    found = load_engine(engine)(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events())
    counts = usable_counts(demand)
    assert all(each.collective.chunks_per_rank in counts for each in (found.schedule, *found.runners_up))
    assert found.gap >= 0


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(cases(), st.sampled_from([1, 3, 5]))
def test_other_sizes_of_chunks_leave_schedules_right_and_no_slower(case, chunks):
    demand = Demand(case.topology, case.kind, case.size_bytes, case.root, chunks_per_rank=chunks)
    schedules = [named.schedule for named in template_schedules(demand)][:3]
    assume(schedules)
    for schedule in schedules:
        found = recut(schedule, FinerChunks((4, 8, 16, chunks * 16), MAX_COUNT), LIMITS)
        if found is not None:
            assert not verify_schedule(found)
            least_us = demand_bound(case.topology, case.kind, case.root, case.size_bytes).time_us
            assert found.makespan_us >= least_us * (1 - 1e-9)


def counts_tried(monkeypatch, schedule, size_bytes, limits):
    """Numbers of chunks that a schedule is timed with where it is cut to serve a size."""
    tried = []
    timed = uneven._ChunkCut.time_us
    monkeypatch.setattr(
        uneven._ChunkCut, "time_us", lambda cut, *plan: tried.append(cut.chunks_per_rank) or timed(cut, *plan)
    )
    found = fit_to_size(answer(schedule), Demand(schedule.topology, Kind.BROADCAST, size_bytes), limits)
    assert found.schedule.collective.chunks_per_rank in tried
    return tried


def test_when_time_is_up_few_chunks_have_to_do(monkeypatch):
    stopped = Limits()
    stopped.stop.set()
    schedule = replace(two_lanes(3), chunk_bytes=(1 << 20) / 3)
    assert counts_tried(monkeypatch, schedule, 1 << 20, stopped) == [4, 8]


def test_chunks_that_only_make_more_messages_are_not_made_finer_still(monkeypatch):
    """16384 chunks would be possible; the more messages they have to be, the more often these pay alpha."""
    monkeypatch.setattr(uneven, "recut", lambda *_, **__: None)
    tried = counts_tried(monkeypatch, replace(two_lanes(3), chunk_bytes=65536.0 / 3), 65536, LIMITS)
    assert 64 < max(tried) < 16384
