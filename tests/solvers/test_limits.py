import math
import pickle
import threading
import time

import pytest

from taccl_py.solvers.limits import STOP, Limits, never, run_interruptibly, until
from taccl_py.work import count_seconds
from tests.patience import ends_within


def test_part_of_the_limits_has_no_more_time_than_the_whole():
    whole = Limits(seconds=10.0, seed=3)
    assert whole.within(4.0).seconds == 4.0
    assert whole.within(40.0).seconds == 10.0
    assert whole.within(4.0, work=0.5).work == 0.5


def test_part_of_the_limits_shares_seed_and_interrupt():
    whole = Limits(seed=3)
    part = whole.within(1.0)
    assert part.seed == 3
    whole.stop.set()
    assert part.stop.is_set()


def test_a_solver_always_gets_a_moment():
    assert Limits(seconds=10.0).within(-5.0).seconds > 0


def test_two_limits_do_not_share_their_interrupt():
    one, other = Limits(), Limits()
    one.stop.set()
    assert not other.stop.is_set()


def test_deadline_counts_down_and_stops_at_zero():
    deadline = Limits(seconds=0.05).deadline()
    first = deadline.left
    time.sleep(0.01)
    assert deadline.left < first <= 0.05
    time.sleep(0.06)
    assert deadline.left == 0.0
    assert Limits(seconds=-1.0).deadline().left == 0.0


def test_a_solve_that_ends_is_not_halted():
    did = []
    run_interruptibly(lambda: did.append("solve"), threading.Event(), lambda: did.append("halt"))
    assert did == ["solve"]


def test_a_set_stop_halts_the_solve_once():
    halted, stop, calls = threading.Event(), threading.Event(), []

    def solve():
        stop.set()
        assert halted.wait(10.0)
        time.sleep(0.2)

    def halt():
        calls.append(1)
        halted.set()

    with ends_within(5):
        run_interruptibly(solve, stop, halt)
        assert calls == [1]


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_what_the_solve_raises_is_raised_in_the_callers_thread(error):
    def solve():
        raise error

    with pytest.raises(type(error)) as caught:
        run_interruptibly(solve, threading.Event(), lambda: None)
    assert caught.value is error


def test_a_countdown_ends_with_its_time_or_when_the_user_says_so():
    assert Limits(seconds=0.0).countdown()()
    limits = Limits(seconds=100.0)
    over = limits.countdown()
    assert not over()
    limits.stop.set()
    assert over()


def test_some_seconds_are_given_in_any_case_even_after_the_users_stop():
    limits = Limits(seconds=0.0)
    limits.stop.set()
    over = limits.countdown(least_seconds=0.05)
    assert not over()
    time.sleep(0.06)
    assert over()


def test_grace_is_on_top_of_the_time_but_the_user_need_not_wait_for_it():
    limits = Limits(seconds=0.0)
    assert not limits.countdown(grace_seconds=100.0)()
    assert not limits.to_lower()()
    limits.stop.set()
    assert limits.countdown(grace_seconds=100.0)()
    assert limits.to_lower()()


def test_never_is_not_now():
    assert not never()


def test_one_thing_is_found_even_after_the_end_and_nothing_is_looked_for_then():
    looked = iter(range(5))
    assert list(until(lambda: True, looked)) == [0]
    assert next(looked) == 1
    assert list(until(never, looked)) == [2, 3, 4]


def test_a_budget_of_work_is_counted_down_by_work_alone():
    limits = Limits(seconds=5.0, by_work=True)
    deadline, over = limits.deadline(), limits.countdown()
    time.sleep(0.01)
    assert deadline.left == pytest.approx(5.0)
    count_seconds(3.0)
    assert deadline.left == pytest.approx(2.0)
    assert not over()
    count_seconds(2.5)
    assert deadline.left == 0.0
    assert over()


def test_the_clock_may_cut_a_budget_of_work_short():
    limits = Limits(seconds=5.0, by_work=True, ends_at_s=time.monotonic() - 1.0)
    assert limits.is_cut
    assert limits.deadline().left == 0.0
    assert limits.countdown()()
    assert limits.clock_seconds == pytest.approx(0.05)


def test_a_budget_of_work_that_the_clock_cut_short_knows_what_is_left_of_it():
    deadline = Limits(seconds=5.0, by_work=True, ends_at_s=time.monotonic() - 1.0).deadline()
    assert (deadline.left, deadline.budget_left) == (0.0, pytest.approx(5.0))


def test_a_share_is_one_of_work_and_of_the_clock():
    limits = Limits(seconds=8.0, by_work=True, ends_at_s=time.monotonic() + 40.0).share(0.25)
    assert limits.seconds == 2.0
    assert limits.clock_seconds == pytest.approx(10.0, abs=1.0)
    assert Limits(seconds=8.0, by_work=True).share(0.25).ends_at_s == math.inf


def test_a_share_of_the_clock_leaves_a_budget_of_work_as_it_is():
    limits = Limits(seconds=8.0, by_work=True, ends_at_s=time.monotonic() + 40.0).clock_share(0.25)
    assert limits.seconds == 8.0
    assert limits.clock_seconds == pytest.approx(10.0, abs=1.0)
    assert Limits(seconds=8.0).clock_share(0.25) == Limits(seconds=2.0)


def test_the_clock_may_be_held_back():
    cut = Limits(seconds=8.0, by_work=True, ends_at_s=time.monotonic() - 1.0)
    assert cut.at_least(10.0).clock_seconds == pytest.approx(10.0, abs=1.0)
    late = Limits(seconds=8.0, by_work=True, ends_at_s=time.monotonic() + 100.0)
    assert late.at_least(10.0) == late
    assert Limits(seconds=8.0).at_least(10.0) == Limits(seconds=8.0)


def test_what_the_clock_has_left_no_time_for_is_over_at_once():
    over = Limits(seconds=10.0).within(0.0)
    assert over.deadline().left == 0.0
    assert over.countdown(least_seconds=5.0)()
    assert Limits(seconds=10.0, by_work=True).within(0.0).deadline().left > 0.0


def test_by_work_what_is_better_to_lower_has_a_budget_of_its_own():
    over = Limits(seconds=20.0, by_work=True).to_lower()
    count_seconds(100.0)
    assert not over()
    count_seconds(7.0)
    assert not over()
    count_seconds(2.0)
    assert over()


def test_limits_cross_to_another_process_with_its_interrupt_and_its_clock():
    limits = Limits(seconds=5.0, by_work=True, ends_at_s=time.monotonic() + 50.0, seed=3)
    limits.stop.set()
    found = pickle.loads(pickle.dumps(limits))
    assert found.stop is STOP
    assert (found.seconds, found.seed, found.by_work) == (5.0, 3, True)
    assert found.ends_at_s == pytest.approx(limits.ends_at_s, abs=1.0)
