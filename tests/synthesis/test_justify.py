"""Justification of schedules: worked out by hand, never longer, and valid."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.schedule.transform import combining
from taccl_py.solvers.limits import Limits, always, never
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.synthesis.justify import (
    JustifiedMessages,
    _PortCalendar,
    justified_schedule,
    searched_schedule,
    with_better_starts,
)
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.verify.schedule import verify_schedule
from tests.random_machines import random_machine

MB, MIB = 10**6, 1 << 20
QUICK = Options(limits=Limits(seconds=0.1, workers=1, by_work=True))


def broadcast(order):
    """Rank 0 sends to ranks 1 and 2 through one port, 10 us each, and rank 1 on to rank 3, 20 us; messages in an order."""
    links = (
        Link(0, 1, 0.0, 10.0, 0.0, (0,)), Link(0, 2, 0.0, 10.0, 0.0, (0,)), Link(1, 3, 0.0, 20.0),
        Link(2, 0, 0.0, 10.0), Link(3, 0, 0.0, 10.0),
    )  # fmt: skip
    machine = Topology("one port", "test", (0,) * 4, (Port("out", 0.0, 10.0),), links)
    ends = {0: (0, 1), 1: (0, 2), 2: (1, 3)}
    index = {(link.src, link.dst): number for number, link in enumerate(machine.links)}
    untimed = [UntimedMessage(index[ends[each]], (0,), float(i), i + 1.0, False) for i, each in enumerate(order)]
    return build_schedule(machine, Collective(Kind.BROADCAST, 4, 1, 0), MB, untimed)


def test_what_is_passed_on_goes_first():
    late = broadcast((1, 0, 2))
    assert late.makespan_us == pytest.approx(40.0)
    better = justified_schedule(late)
    assert better.makespan_us == pytest.approx(30.0)
    assert not verify_schedule(better)


def test_an_answer_with_gaps_gets_better_starts_and_keeps_what_it_had():
    late = broadcast((1, 0, 2))

    def better(bound_us, limits):
        answer = Synthesis(late, Bound(bound_us, "by hand"), Proof.FEASIBLE, "none", {}, ())
        found = with_better_starts(answer, Demand(late.topology, Kind.BROADCAST, late.size_bytes), limits)
        return found.schedule.makespan_us, found.proof, found.runners_up

    assert better(25.0, Limits(seconds=5.0)) == (pytest.approx(30.0), Proof.FEASIBLE, (late,))
    assert better(30.0, Limits(seconds=5.0)) == (pytest.approx(30.0), Proof.OPTIMAL, (late,))
    assert better(39.9, Limits(seconds=5.0)) == (40.0, Proof.FEASIBLE, ()), "it is near enough"
    assert better(25.0, Limits(seconds=0.0)) == (40.0, Proof.FEASIBLE, ()), "there is no time"


def test_what_is_best_already_stays():
    best = broadcast((0, 1, 2))
    assert justified_schedule(best) is best


def test_a_message_goes_into_a_gap_that_it_fits():
    """Behind message 0 comes message 1 (10 us on port 1); message 2 fits before it on that port."""
    line = JustifiedMessages([[], [0], []], [10.0, 10.0, 5.0], [[(0, 10.0)], [(1, 10.0)], [(1, 5.0)]])
    assert line.placed([0.0, 1.0, 2.0], backwards=False) == [0.0, 10.0, 0.0]
    assert line.justified([0.0, 10.0, 20.0]) == [0.0, 10.0, 0.0]
    assert line.end_us([0.0, 10.0, 0.0]) == 20.0


def test_sums_change_only_where_they_still_add_up(monkeypatch):
    """Backwards, the plan of a Broadcast that could be shorter is one of a Reduce: rank 1 sends what ranks 1 and 3 have."""
    machine = broadcast((1, 0, 2)).topology
    late = combining(broadcast((1, 0, 2)), machine.reversed())
    better = justified_schedule(late)
    assert better.makespan_us == pytest.approx(30.0)
    assert not verify_schedule(better)
    monkeypatch.setattr("taccl_py.synthesis.justify.adds_up", lambda _: False)
    assert justified_schedule(late) is late


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL, Kind.BROADCAST, Kind.REDUCESCATTER, Kind.ALLREDUCE])
@pytest.mark.parametrize("number", range(4))
def test_no_schedule_becomes_longer_or_wrong(number, kind):
    demand = Demand(random_machine(number, 6, 6), kind, float(MIB))
    schedule = load_engine("greedy")(demand, QUICK, Events()).schedule
    better = justified_schedule(schedule)
    assert better.makespan_us <= schedule.makespan_us
    assert not verify_schedule(better)
    searched = searched_schedule(schedule, 1, never)
    # Of sums, times that do not let them add up are given up, be they ever so good.
    assert searched.makespan_us <= (schedule if demand.collective(1).reduces else better).makespan_us
    assert not verify_schedule(searched)
    assert searched == searched_schedule(schedule, 1, never)
    assert searched_schedule(schedule, 1, always).makespan_us == better.makespan_us


@settings(max_examples=100, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=20),
    wanted=st.tuples(st.integers(0, 50), st.integers(1, 6)),
)
def test_the_first_gap_of_a_calendar_is_the_first_of_all_times_that_is_free(turns, wanted):
    """Whatever turns touch each other, and are kept as one: against every whole time, tried one after the other."""
    calendar, taken = _PortCalendar(), set()
    for begin, lasting in turns:
        if taken.isdisjoint(range(begin, begin + lasting)):
            calendar.take(float(begin), float(begin + lasting))
            taken |= set(range(begin, begin + lasting))
    begin, lasting = wanted
    free = next(t for t in range(begin, 200) if taken.isdisjoint(range(t, t + lasting)))
    assert calendar.free_from(float(begin), float(begin + lasting)) == free
