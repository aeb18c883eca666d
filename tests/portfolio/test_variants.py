"""Programs of candidates, and files that are chosen by what these take."""

from dataclasses import replace
from functools import cache

import pytest

from taccl_py.errors import LoweringError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import replay_at
from taccl_py.portfolio import variants
from taccl_py.portfolio.candidates import Candidate
from taccl_py.portfolio.envelope import lower_envelope
from taccl_py.portfolio.variants import at_size, lower_variants
from taccl_py.runtimes import EXECUTOR
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.synthesis.engine import Options
from taccl_py.synthesis.race import Racer
from tests.lowering.cases import MB, shared_nic

# Sizes as nccl-tests counts them; links take 10 us for a MB.
SIZES = [MB // 2, MB, 2 * MB, 4 * MB]
OPTIONS = LoweringOptions(EXECUTOR)
RACER = Racer(Options(), 1.0, 1)


@cache
def candidates():
    """The first takes 30 us for a MB and its program 40 us, as ranks that share a NIC cannot wait for each other; the second 32 us."""
    schedules = [shared_nic(direct=False), shared_nic(direct=True)]
    return [Candidate("made up", "none", s, cost_curve(s, SIZES[0], SIZES[-1])) for s in schedules]


def test_where_a_program_is_slower_than_its_schedule_another_candidate_is_lowered():
    found = lower_variants(candidates(), SIZES, OPTIONS, RACER)
    (span,) = lower_envelope([variant.curve for variant in found], SIZES[0], SIZES[-1])
    assert found[span.choice].candidate is candidates()[1]
    for size in SIZES:
        assert min(variant.curve.time_us(size) for variant in found) == pytest.approx(32 * size / MB)


def test_curves_are_what_programs_take():
    """Replayed at all of these sizes, as they are near to each other."""
    for variant in lower_variants(candidates(), SIZES, OPTIONS, RACER):
        for size in SIZES:
            replay = replay_at(variant.lowered.program, at_size(variant.candidate.schedule, size), EXECUTOR, 1)
            assert variant.curve.time_us(size) == pytest.approx(replay.makespan_us)


def test_one_program_is_enough_where_it_keeps_its_promise():
    (variant,) = lower_variants(candidates()[1:], SIZES, OPTIONS, RACER)
    assert variant.at_bytes == SIZES[-1]
    assert variant.curve.time_us(MB * 3) == pytest.approx(96)


def test_other_processes_make_the_same_programs():
    alone = lower_variants(candidates(), SIZES, OPTIONS, RACER)
    with Racer(Options(), 1.0, 2).running() as racer:
        assert lower_variants(candidates(), SIZES, OPTIONS, racer) == alone


def test_what_cannot_be_lowered_does_not_keep_others_from_it(monkeypatch):
    """However many of them seem faster."""
    lower = variants.lower_unverified
    links = {message.link for message in candidates()[0].schedule.messages}

    def cramped(schedule, options):
        if {message.link for message in schedule.messages} == links:
            raise LoweringError("no room", runtime=options.runtime.name, limit="threadblocks")
        return lower(schedule, options)

    monkeypatch.setattr(variants, "lower_unverified", cramped)
    first, second = candidates()
    found = lower_variants([*[replace(first) for _ in range(6)], second], SIZES, OPTIONS, RACER)
    assert {id(variant.candidate) for variant in found} == {id(second)}


def test_what_could_not_be_lowered_at_two_sizes_is_not_tried_at_others(monkeypatch):
    lower = variants.lower_unverified
    first, second = candidates()
    links, tried = {message.link for message in first.schedule.messages}, []

    def cramped(schedule, options):
        if {message.link for message in schedule.messages} == links:
            tried.append(schedule.size_bytes)
            raise LoweringError("no room", runtime=options.runtime.name, limit="threadblocks")
        return lower(schedule, options)

    monkeypatch.setattr(variants, "lower_unverified", cramped)
    found = lower_variants([first, second], SIZES, OPTIONS, RACER)
    assert {id(variant.candidate) for variant in found} == {id(second)}
    assert len(tried) == 2


def test_a_size_that_is_not_safe_says_nothing_of_others(monkeypatch):
    def unsafe(_schedule, options):
        tried.append(1)
        raise LoweringError("not safe", runtime=options.runtime.name, limit="max_bytes")

    tried = []
    monkeypatch.setattr(variants, "lower_unverified", unsafe)
    with pytest.raises(LoweringError, match="not safe"):
        lower_variants(candidates()[:1], SIZES, OPTIONS, RACER)
    assert len(tried) == len(SIZES)


def test_when_time_is_up_one_program_for_a_size_is_enough():
    found = lower_variants(candidates(), SIZES, OPTIONS, RACER, lambda: True)
    assert {id(variant.candidate) for variant in found} == {id(candidates()[0])}
    assert all(min(variant.curve.time_us(size) for variant in found) < float("inf") for size in SIZES)


def test_what_was_not_replayed_counts_as_slow_if_anything_was_slower():
    """The program that is made for 4 MB is not replayed at 4 kB; the one that is made for 4 kB takes its place there."""
    sizes = [4000, 4 * MB]
    schedule = shared_nic(direct=False)
    candidate = Candidate("made up", "none", schedule, cost_curve(schedule, *sizes))
    large, small = lower_variants([candidate], sizes, OPTIONS, RACER)
    assert (large.at_bytes, small.at_bytes) == (4 * MB, 4000)
    assert large.curve.time_us(4 * MB) == pytest.approx(4 * 40)
    assert large.curve.time_us(4000) == pytest.approx(0.004 * 2 * 30)
    assert small.curve.time_us(4000) == pytest.approx(0.004 * 40)


def test_what_cannot_be_lowered_at_all_is_an_error(monkeypatch):
    def cramped(_schedule, options):
        raise LoweringError("no room", runtime=options.runtime.name, limit="threadblocks")

    monkeypatch.setattr(variants, "lower_unverified", cramped)
    with pytest.raises(LoweringError, match="no room"):
        lower_variants(candidates(), SIZES, OPTIONS, RACER)


def test_a_range_of_one_size_is_a_point():
    schedule = shared_nic(direct=False)
    (variant,) = lower_variants(
        [Candidate("made up", "none", schedule, cost_curve(schedule, MB, MB))], [MB], OPTIONS, RACER
    )
    assert (variant.curve.min_bytes, variant.curve.max_bytes) == (MB, MB)
    assert variant.curve.time_us(MB) == pytest.approx(40)
