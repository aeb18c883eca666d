"""Files of a portfolio under a runtime profile."""

import math
from itertools import pairwise

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.select import Setting, trial_of
from taccl_py.portfolio.build import synthesize_portfolio
from taccl_py.portfolio.by_replay import (
    TrialChoice,
    _best_path,
    _extended,
    _Extending,
    _replayed,
    _Replaying,
    _rounded,
    _SizeProtocols,
)
from taccl_py.profiles.catalog import select_profile
from taccl_py.runtimes import RUNTIMES
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.topology.catalog import load_topology
from taccl_py.units import SizeRange

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


def portfolio(name, kind, sizes, runtime, seconds):
    profile = select_profile("auto", runtime, load_topology(name)).profile
    request = Request(
        name, kind, engine="auto", options=Options(limits=Limits(seconds=seconds, workers=1, by_work=True)), profile=profile,
        ranks=tuple(range(8)) if load_topology(name).num_ranks > 8 else None,
    )  # fmt: skip
    options = LoweringOptions(RUNTIMES[runtime])
    return synthesize_portfolio(request, sizes, options, 1, Events()), profile, options


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
@pytest.mark.parametrize(
    ("name", "runtime", "kind"),
    [
        ("ndv4", "executor", Kind.ALLGATHER), ("dgx1", "legacy", Kind.ALLGATHER), ("mi300x", "rccl", Kind.ALLREDUCE),
    ],
)  # fmt: skip
def test_files_of_eight_ranks_on_other_machines(name, runtime, kind):
    found, profile, options = portfolio(name, kind, SizeRange(1 << 16, 1 << 24), runtime, 2.0)
    require_sound(found, profile, options)
