"""Races: runs in processes of their own, results in the order of the runs."""

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.processes import Workers
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.race import PARAMS, EngineRun, RaceOutcome, Racer, SecondRuns, _Carried, _carry_out, starts_on
from taccl_py.topology.machines import formula_topology
from taccl_py.work import count_seconds, work_seconds

RING, FULL = formula_topology("ring:4"), formula_topology("full:4")


def runs():
    sizes = (1e3, 1e6, 64e6)
    found = [EngineRun("milp", Demand(topology, Kind.ALLGATHER, size)) for topology in (RING, FULL) for size in sizes]
    return [*found, EngineRun("milp", Demand(RING, Kind.ALLGATHER, 1e6, chunks_per_rank=-1))]


def race(workers, **limits):
    with Racer(Options(limits=Limits(**limits)), 30.0, workers).running() as racer:
        return racer.race(runs(), Events())


@pytest.fixture(scope="module")
def alone():
    return race(1)


def test_results_come_in_the_order_of_the_runs(alone):
    assert [outcome.run for outcome in alone] == runs()
    names = [outcome.synthesis.schedule.topology.name for outcome in alone[:-1]]
    assert names == [RING.name] * 3 + [FULL.name] * 3


def test_a_run_without_an_answer_says_why(alone):
    assert alone[-1].synthesis is None
    assert "chunks per rank" in alone[-1].reason


def test_several_processes_find_the_same(alone):
    together = race(2)
    assert [o.synthesis and o.synthesis.schedule for o in together] == [
        o.synthesis and o.synthesis.schedule for o in alone
    ]
    assert together[-1].reason == alone[-1].reason


@pytest.mark.parametrize("workers", [1, 2])
def test_after_the_users_stop_nothing_more_begins(workers):
    stop = threading.Event()
    stop.set()
    outcomes = race(workers, stop=stop)
    assert len(outcomes) == len(runs())
    if workers == 1:
        assert {outcome.reason for outcome in outcomes} == {"no time was left"}


def test_a_process_that_dies_ends_the_race_with_a_reason_and_not_with_a_hang(monkeypatch):
    monkeypatch.setattr("taccl_py.synthesis.race._carry_out", _die)
    limits = Limits(seconds=60.0)
    with Racer(Options(limits=limits), 30.0, 2).running() as racer:
        outcomes = racer.race([EngineRun("templates", Demand(RING, Kind.ALLGATHER, 1e6))] * 2, Events())
    assert [outcome.synthesis for outcome in outcomes] == [None, None]
    assert all("died" in outcome.reason for outcome in outcomes)


def _die(_run, _settings, _use):
    os._exit(9)


def test_what_does_not_end_long_after_its_time_is_given_up(monkeypatch):
    monkeypatch.setattr("taccl_py.synthesis.race._carry_out", _sleep)
    monkeypatch.setattr("taccl_py.synthesis.race.PARAMS", replace(PARAMS, patience_seconds=0.2))
    begun = time.monotonic()
    with Racer(Options(limits=Limits(seconds=0.5)), 0.5, 2).running() as racer:
        outcomes = racer.race([EngineRun("templates", Demand(RING, Kind.ALLGATHER, 1e6))] * 2, Events())
    assert [outcome.synthesis for outcome in outcomes] == [None, None]
    assert all("given up" in outcome.reason for outcome in outcomes)
    assert time.monotonic() - begun < 100


def _sleep(_run, _settings, _use):
    time.sleep(200)


def test_nothing_is_given_to_processes_when_time_is_up():
    with Racer(Options(limits=Limits(seconds=0.0)), 30.0, 2).running() as racer:
        assert {outcome.reason for outcome in racer.race(runs(), Events())} == {"no time was left"}


def test_where_there_is_an_answer_what_does_not_end_in_time_is_soon_given_up(monkeypatch):
    """Half a minute is for a race that has none: the user who wants an end waits for two seconds, or as many as are set here."""
    monkeypatch.setattr("taccl_py.synthesis.race._carry_out", _sleep_unless_quick)
    monkeypatch.setattr("taccl_py.synthesis.race.PARAMS", replace(PARAMS, patience_seconds=100.0))
    monkeypatch.setattr("taccl_py.solvers.limits._LEAST_GRACE_SECONDS", 0.2)
    begun = time.monotonic()
    with Racer(Options(limits=Limits(seconds=10.0)), 10.0, 2).running() as racer:
        slow, quick = racer.race(
            [EngineRun(name, Demand(RING, Kind.ALLGATHER, 1e6)) for name in ("milp", "templates")], Events()
        )
    assert slow.synthesis is None
    assert "given up" in slow.reason
    assert quick.synthesis is not None
    assert time.monotonic() - begun < 90


def _sleep_unless_quick(run, settings, use):
    if run.engine != "templates":
        time.sleep(200)
    return _carry_out(run, settings, use)


def test_runs_begin_on_the_processor_that_is_free_first():
    """Of 5, 1, 2, 1 and 3 seconds on two: 0-5 and 0-1, 1-3, 3-4, 4-7."""
    assert starts_on(2, [5.0, 1.0, 2.0, 1.0, 3.0]) == ([0.0, 0.0, 1.0, 3.0, 4.0], 7.0)
    assert starts_on(2, []) == ([], 0.0)


def _spend(number):
    count_seconds(1.0)
    return number


def _counting_engine(_name):
    def answer(demand, options, _events):
        count_seconds(4.0)
        return load_engine("templates")(demand, options, Events())

    return answer


@pytest.mark.parametrize("workers", [1, 2])
def test_by_work_items_are_asked_for_as_if_there_were_two_processors(workers):
    """Half a second each, counted once four are under way: of 2.1 seconds the fifth is the last to be counted before an end is seen."""
    limits = Limits(seconds=2.1, by_work=True)
    with Racer(Options(limits=limits), 10.0, workers).running() as racer:
        over = limits.countdown()
        taken = racer.spread(_spend, itertools.takewhile(lambda _: not over(), itertools.count()))
    assert taken == list(range(8))


def test_what_takes_longest_is_begun_first_and_results_keep_their_order():
    begun = []

    def note(number):
        begun.append(number)
        return -number

    assert Racer(Options(), 1.0, 1).spread_longest_first(note, [2, 5, 3], float) == [-2, -5, -3]
    assert begun == [5, 3, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_of_several_functions_come_by_function_and_in_order(workers):
    with Racer(Options(), 1.0, workers).running() as racer:
        found = racer.spread_together((abs, iter([-1, -2, -3])), (str, [4, 5]), (len, []))
    assert found == [[1, 2, 3], ["4", "5"], []]


def test_by_work_a_run_that_would_begin_too_late_has_no_answer(monkeypatch):
    """Four seconds each on two processors: the first two begin at 0, the next two at 4, and the fifth at 8, after 6."""
    monkeypatch.setattr("taccl_py.synthesis.race.load_engine", _counting_engine)
    limits = Limits(seconds=6.0, by_work=True)
    runs = [EngineRun("templates", Demand(RING, Kind.ALLGATHER, 1e6 * n)) for n in range(1, 6)]
    before = work_seconds()
    outcomes = Racer(Options(limits=limits), 6.0, 1).race(runs, Events())
    assert [outcome.reason for outcome in outcomes] == ["", "", "", "", "no time was left"]
    assert work_seconds() - before == pytest.approx(8.0, abs=0.5)


def test_by_work_what_was_found_when_the_clock_cut_the_search_short_counts(monkeypatch):
    monkeypatch.setattr("taccl_py.synthesis.race.load_engine", _lasting_engine)
    limits = Limits(seconds=60.0, by_work=True, ends_at_s=time.monotonic() + 1.0)
    runs = [EngineRun("templates", Demand(RING, Kind.ALLGATHER, 1e6 * n)) for n in (1, 2)]
    outcomes = Racer(Options(limits=limits), 60.0, 1).race(runs, Events())
    assert [outcome.reason for outcome in outcomes] == ["", "no time was left"]


def _lasting_engine(_name):
    def lasting(demand, options, events):
        time.sleep(max(0.0, options.limits.ends_at_s - time.monotonic()) + 0.05)
        return load_engine("templates")(demand, replace(options, limits=Limits()), events)

    return lasting


def test_a_racer_has_the_least_time_whatever_the_clock_says():
    limits = Limits(seconds=60.0, by_work=True, ends_at_s=time.monotonic() - 1.0)
    racer = Racer(Options(limits=limits), 60.0, 1)
    assert racer.over
    assert racer.within(10.0).over
    assert not racer.within(10.0, 5.0).over


def test_a_racer_may_leave_some_of_the_clock_to_what_follows():
    racer = Racer(Options(limits=Limits(seconds=60.0, by_work=True)), 60.0, 1)
    assert not racer.within(10.0, ends_at_s=time.monotonic() + 60.0).over
    assert racer.within(10.0, ends_at_s=time.monotonic() - 1.0).over
    assert not racer.within(10.0, 5.0, time.monotonic() - 1.0).over


@pytest.mark.parametrize("workers", [1, 2])
def test_runs_behind_one_that_is_enough_are_not_needed(monkeypatch, workers):
    """However long they would take, and however good those before are; two processes would else sleep for minutes."""
    monkeypatch.setattr("taccl_py.synthesis.race._carry_out", _sleep_unless_quick)
    sizes = {"small": 1e3, "enough": 1e6, "large": 64e6}
    runs = [EngineRun("templates", Demand(RING, Kind.ALLGATHER, size)) for size in sizes.values()]
    runs.insert(2, EngineRun("milp", runs[0].demand))
    begun = time.monotonic()
    with Racer(Options(limits=Limits(seconds=150.0)), 150.0, workers).running() as racer:
        outcomes = racer.race(
            runs, Events(), lambda outcome: outcome.synthesis is not None and outcome.run.demand.size_bytes == 1e6
        )
        assert racer.over == (workers == 2)
    assert [outcome.run for outcome in outcomes] == runs
    assert [outcome.reason for outcome in outcomes] == ["", "", *["a run before it was enough"] * 2]
    assert time.monotonic() - begun < 90


def test_by_work_what_is_not_needed_is_not_counted(monkeypatch):
    """Four seconds each on two processors, of which the third is enough: it begins at 4, and ends at 8."""
    monkeypatch.setattr("taccl_py.synthesis.race.load_engine", _counting_engine)
    runs = [EngineRun("templates", Demand(RING, Kind.ALLGATHER, 1e6 * n)) for n in range(1, 6)]
    before = work_seconds()
    racer = Racer(Options(limits=Limits(seconds=60.0, by_work=True)), 60.0, 1)
    racer.race(runs, Events(), lambda outcome: outcome.run == runs[2])
    assert work_seconds() - before == pytest.approx(8.0, abs=0.5)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("enough_bytes", "counted_s"), [(1e6, 5.0), (0.0, 7.0)])
def test_second_runs_count_where_the_first_ones_are_not_enough(monkeypatch, enough_bytes, counted_s, workers):
    """First runs of 5 and 2 s on two processors, second ones of 2 s, which begin at 2, 4 and 5."""
    seconds = {1e3: 5.0, 1e6: 2.0, 2e6: 2.0, 3e6: 2.0, 4e6: 2.0}
    runs = [EngineRun("templates", Demand(RING, Kind.ALLGATHER, size)) for size in seconds]
    before = work_seconds()
    outcomes = _race_in_threads(monkeypatch, workers, runs, 2, enough_bytes, seconds)
    assert [outcome.run for outcome in outcomes] == runs
    needed = ["ended"] * (2 if enough_bytes else 5)
    assert [outcome.reason for outcome in outcomes] == [*needed, *["a run before it was enough"] * (5 - len(needed))]
    assert work_seconds() - before == pytest.approx(counted_s, abs=0.1)


def _of_work(seconds, patience):
    """A run in a thread that takes so much work and so long by the clock, both by its bytes."""

    def carry_out(run, _options, use):
        time.sleep(patience[run.demand.size_bytes])
        return _Carried(use(RaceOutcome(run, None, "ended")), is_answer=True, seconds=seconds[run.demand.size_bytes])

    return carry_out


def _race_in_threads(patch, workers, runs, num_first, enough_bytes, seconds, patience=None, *, left_s=60.0):
    """Outcomes of runs that take so much work each, and as long by the clock as they say; one of some bytes among the first is enough."""

    def are_needless(outcomes):
        return any(outcome.reason == "ended" and outcome.run.demand.size_bytes == enough_bytes for outcome in outcomes)

    with ThreadPoolExecutor(2) as pool:
        patch.setattr("taccl_py.synthesis.race._carry_out", _of_work(seconds, patience or dict.fromkeys(seconds, 0.0)))
        patch.setattr("taccl_py.synthesis.race.start_workers", lambda _: nullcontext(Workers(pool, lambda: None)))
        limits = Limits(seconds=left_s, by_work=True)
        with Racer(Options(limits=limits), 60.0, workers).running() as racer:
            return racer.race(runs[:num_first], Events(), second=SecondRuns(runs[num_first:], are_needless))


def test_by_work_what_would_begin_too_late_is_not_begun(monkeypatch):
    """The second run is done long before the first one, which may still be the shorter one: what waits is not begun before that is known."""
    seconds, patience = {1e3: 7.0, 1e6: 8.0, 2e6: 1.0}, {1e3: 0.3, 1e6: 0.0}  # of the last one: an error
    runs = [EngineRun("templates", Demand(RING, Kind.ALLGATHER, size)) for size in seconds]
    outcomes = _race_in_threads(monkeypatch, 2, runs, 3, 0.0, seconds, patience, left_s=6.0)
    assert [outcome.reason for outcome in outcomes] == ["ended", "ended", "no time was left"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_by_work_the_same_runs_count_whoever_ends_first(data):
    """Whatever runs take by the clock, the results are those of runs that go one by one."""
    sizes = [float(size) for size in range(1, data.draw(st.integers(2, 7)) + 1)]
    seconds, patience = ({size: data.draw(st.integers(0, 8)) / part for size in sizes} for part in (1, 1000))
    num_first, enough = data.draw(st.integers(1, len(sizes))), data.draw(st.sampled_from(sizes))
    left_s = data.draw(st.sampled_from([6.0, 60.0]))
    runs = [EngineRun("templates", Demand(RING, Kind.ALLGATHER, size)) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        one_by_one, side_by_side = (
            _race_in_threads(patch, workers, runs, num_first, enough, seconds, patience, left_s=left_s)
            for workers in (1, 2)
        )
    assert one_by_one == side_by_side


def test_second_runs_under_way_end_once_they_are_needless(monkeypatch):
    """They would else sleep for minutes."""
    monkeypatch.setattr("taccl_py.synthesis.race._carry_out", _sleep_unless_quick)
    quick, slow = (EngineRun(name, Demand(RING, Kind.ALLGATHER, 1e6)) for name in ("templates", "milp"))
    begun = time.monotonic()
    with Racer(Options(limits=Limits(seconds=150.0)), 150.0, 2).running() as racer:
        second = SecondRuns([slow, slow], lambda outcomes: any(outcome.synthesis is not None for outcome in outcomes))
        outcomes = racer.race([quick], Events(), second=second)
        assert racer.over
    assert [outcome.reason for outcome in outcomes] == ["", *["a run before it was enough"] * 2]
    assert time.monotonic() - begun < 90
