"""Files of a portfolio under a runtime profile."""

import math
import time
from itertools import pairwise

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.trials import Setting, trial_of
from taccl_py.portfolio.build import synthesize_portfolio
from taccl_py.portfolio.by_replay import (
    TrialChoice,
    _best_path,
    _cut_for,
    _extended,
    _Extending,
    _replayed,
    _Replaying,
    _rounded,
    _SizeProtocols,
)
from taccl_py.portfolio.candidates import Candidate
from taccl_py.profiles.catalog import select_profile
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.synthesis.race import Racer
from taccl_py.topology.catalog import load_topology
from taccl_py.units import SizeRange
from tests.instances import full

RISING = [Protocol.LL, Protocol.LL128, Protocol.SIMPLE]


def choice(protocol, instances=1):
    return TrialChoice(0, Setting(protocol, instances))


def test_protocols_only_rise_even_where_a_lower_one_is_faster_again():
    ll, simple = choice(Protocol.LL), choice(Protocol.SIMPLE)
    times = [{ll: 10.0, simple: 20.0}, {ll: 30.0, simple: 20.0}, {ll: 19.5, simple: 20.0}]
    assert _best_path(times) == [ll, simple, simple]


def test_a_change_has_to_be_worth_a_file():
    one, two = choice(Protocol.LL, 1), choice(Protocol.LL, 2)
    assert _best_path([{one: 10.0, two: 10.3}, {one: 10.1, two: 10.0}]) == [one, one]
    assert _best_path([{one: 10.0, two: 12.0}, {one: 12.0, two: 10.0}]) == [one, two]


class TimesByInstances:
    """A trial whose times are known."""

    def __init__(self, *times_us):
        self._times_us = dict(enumerate(times_us, 1))

    def settings(self, _size, protocols, _instances):
        return [Setting(protocol, number) for protocol in protocols for number in self._times_us]

    def time_us(self, _size, setting):
        return self._times_us[setting.instances]


def test_instances_are_raised_until_that_helps_no_more():
    """The third is slower, so that a fourth is not asked for; one that cannot be is passed by."""
    trial = TimesByInstances(9.0, math.inf, 5.0, 7.0, 3.0)
    (found,) = _replayed(_Replaying(trial, 4, [_SizeProtocols(2, 1024, (Protocol.LL,))], None))
    place, times = found
    assert place == 2
    assert [(choice.trial, choice.setting.instances) for choice in times] == [(4, 1), (4, 3), (4, 4)]
    assert list(times.values()) == pytest.approx([9.0, 5.0, 7.0], rel=0.1)


class TimesBySize:
    """A trial whose times are known, and which has no call of some sizes."""

    def __init__(self, times_us):
        self._times_us = times_us

    def allows(self, size, _setting):
        return size in self._times_us

    def time_us(self, size, _setting):
        return self._times_us[size]


def test_choices_are_replayed_at_neighbouring_sizes_as_long_as_they_are_near():
    """Known at 4 only: 8 is next to it, and slower there than 1.3 times the best, so that 16 is not asked; at 1 there is no call."""
    choice = TrialChoice(0, Setting(Protocol.LL, 1))
    task = _Extending(
        TimesBySize({2: 2.5, 4: 3.0, 8: 9.0, 16: 9.5}), {choice: {2: 3.0}}, (1, 2, 4, 8, 16), [1.0, 2.0, 2.5, 6.0, 7.0]
    )
    assert _extended(task) == [(choice, 3, 9.0), (choice, 1, 2.5)]


def test_ends_of_ranges_have_few_digits():
    assert _rounded(100_000, 1 << 16, 1 << 17) == 98304
    assert _rounded(5, 4, 8) == 5


def all_to_all_gather(low, high):
    """Candidate for sizes of a range, each of whose chunks is a quarter of the size, and whose messages have one chunk."""
    topology, collective = full(4), Collective(Kind.ALLGATHER, 4)
    untimed = [UntimedMessage(index, (link.src,), 0, 1) for index, link in enumerate(topology.links)]
    schedule = build_schedule(topology, collective, collective.chunk_bytes(high), untimed)
    return Candidate("made up", "none", schedule, cost_curve(schedule, low, high))


def sizes_of_pieces(sizes):
    """Size for which each number of pieces is to be lowered, where a candidate is among the best at all sizes."""
    whole = all_to_all_gather(sizes[0], sizes[-1])
    return {len(cut.schedule.messages) // 12: size for cut, size in _cut_for(whole, sizes, sizes)}


def test_pieces_are_made_for_the_sizes_that_have_them_not_for_the_middle_of_all():
    """A piece has 64 KiB: halves begin at 512 KiB, and quarters at 1 MiB; the middle size of the second range has none."""
    assert sizes_of_pieces([1 << place for place in range(10, 31)]) == {
        1: 1 << 20, 2: 1 << 25, 4: 1 << 25, 8: 1 << 26, 16: 1 << 26,
    }  # fmt: skip
    assert sizes_of_pieces([1 << place for place in range(10, 21)]) == {1: 1 << 15, 2: 1 << 20, 4: 1 << 20}
    assert sizes_of_pieces([1 << 26]) == dict.fromkeys([1, 2, 4, 8, 16], 1 << 26)
    assert sizes_of_pieces([1 << place for place in range(10, 19)]) == {1: 1 << 14}


def portfolio(name, kind, sizes, runtime, seconds):
    profile = select_profile("auto", runtime, load_topology(name)).profile
    request = Request(
        name, kind, engine="auto", options=Options(limits=Limits(seconds=seconds, workers=1, by_work=True)), profile=profile,
        ranks=tuple(range(8)) if load_topology(name).num_ranks > 8 else None,
    )  # fmt: skip
    options = LoweringOptions(RUNTIMES[runtime])
    return synthesize_portfolio(request, sizes, options, 1, Events()), profile, options


def test_an_effort_that_a_clock_may_cut_short_leaves_time_for_programs(monkeypatch):
    """Six tenths of the searches' 55 % are for the machine itself; the race took all of the clock, and nothing was left for programs."""
    left_s = []
    within = Racer.within

    def timed(racer, seconds, least_seconds=0.0, ends_at_s=math.inf):
        left_s.append(ends_at_s - time.monotonic())
        return within(racer, seconds, least_seconds, ends_at_s)

    monkeypatch.setattr(Racer, "within", timed)
    profile = select_profile("auto", "rccl", load_topology("mi300x")).profile
    limits = Limits(seconds=2.0, workers=1, by_work=True, ends_at_s=time.monotonic() + 1000.0)
    request = Request(
        "mi300x", Kind.ALLGATHER, engine="auto", options=Options(limits=limits), profile=profile, ranks=(0, 1)
    )
    synthesize_portfolio(request, SizeRange(1 << 14, 1 << 14), LoweringOptions(RUNTIMES["rccl"]), 1, Events())
    assert left_s == [pytest.approx(330.0, abs=30.0), pytest.approx(550.0, abs=50.0)]


def test_a_reduce_of_a_range_may_be_a_part_of_an_allreduce():
    """At 256 KiB eight MI300X take 15.7 us so, as for the size alone, and 19.8 by what is found for the Reduce itself."""
    found, _, _ = portfolio("mi300x", Kind.REDUCE, SizeRange(1 << 18, 1 << 18), "rccl", 1.0)
    assert found.rows[0].runtime_us == pytest.approx(15.7, abs=0.1)


def require_sound(found, profile, options):
    """What every portfolio under a profile promises."""
    protocols = [RISING.index(member.lowered.program.protocol) for member in found.members]
    assert protocols == sorted(protocols)
    assert all(before.max_bytes + 1 == after.min_bytes for before, after in pairwise(found.members))
    for member in found.members:
        if member.lowered.program.protocol is Protocol.LL:
            assert member.max_bytes <= 2 << 20
    trials = [trial_of(member.schedule, options, profile) for member in found.members]
    for row in found.rows:
        assert row.bound.time_us <= row.runtime_bound.time_us * (1 + 1e-9) <= row.runtime_us * (1 + 1e-6)
        member, trial = found.members[row.member], trials[row.member]
        doubled = Setting(member.lowered.program.protocol, 2 * member.instances)
        if trial.allows(row.size_bytes, doubled):
            assert row.runtime_us <= 1.1 * trial.time_us(row.size_bytes, doubled)


def test_files_of_mi300x():
    found, profile, options = portfolio("mi300x", Kind.ALLGATHER, SizeRange(1 << 14, 1 << 22), "rccl", 6.0)
    require_sound(found, profile, options)
    assert [member.lowered.program.protocol for member in found.members][-1] is Protocol.SIMPLE
    assert found.profile is profile
    assert math.isclose(found.rows[0].runtime_us, 7.0, rel_tol=0.1)


@pytest.mark.slow
def test_small_sizes_of_a_range_make_no_large_one_slower():
    """Four MI300X: messages of 64 MiB go in quarters, 770 us, not as wholes, 809."""
    profile = select_profile("auto", "rccl", load_topology("mi300x")).profile
    request = Request(
        "mi300x", Kind.ALLREDUCE, engine="templates", options=Options(limits=Limits(seconds=1.0, workers=1, by_work=True)),
        profile=profile, ranks=tuple(range(4)),
    )  # fmt: skip
    times_us = [
        synthesize_portfolio(request, SizeRange(low, 1 << 26), LoweringOptions(RUNTIMES["rccl"]), 1, Events())
        .rows[-1].runtime_us
        for low in (1 << 10, 1 << 26)
    ]  # fmt: skip
    assert times_us[0] <= 1.02 * times_us[1]


@pytest.mark.parametrize("arranged", [True, False])
def test_sizes_at_which_the_fastest_protocol_is_not_safe_get_another_one(
    arranged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two MI300X exchange their data: with LL, flags come before it has been read, unless one threadblock sends and receives."""
    if not arranged:
        monkeypatch.setattr("taccl_py.lowering.lower._without_early_flags", lambda _, attempt, *__: attempt)
    profile = select_profile("auto", "rccl", load_topology("mi300x")).profile
    request = Request(
        "mi300x", Kind.ALLREDUCE, engine="templates", options=Options(limits=Limits(seconds=1.0, workers=1, by_work=True)),
        profile=profile, ranks=(0, 1),
    )  # fmt: skip
    found = synthesize_portfolio(request, SizeRange(1 << 14, 1 << 16), LoweringOptions(RUNTIMES["rccl"]), 1, Events())
    assert (found.members[0].lowered.program.protocol is Protocol.LL) is arranged
    assert all(row.runtime_us < (16 if arranged else 20) for row in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runtime", "kind"),
    [
        ("ndv4", "executor", Kind.ALLGATHER), ("dgx1", "legacy", Kind.ALLGATHER), ("mi300x", "rccl", Kind.ALLREDUCE),
    ],
)  # fmt: skip
def test_files_of_eight_ranks_on_other_machines(name, runtime, kind):
    found, profile, options = portfolio(name, kind, SizeRange(1 << 16, 1 << 24), runtime, 2.0)
    require_sound(found, profile, options)
