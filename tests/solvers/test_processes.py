"""Processes that solve side by side."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack

import pytest

from taccl_py.solvers.limits import STOP
from taccl_py.solvers.processes import BackgroundCall, start_workers
from tests.patience import HANGS_SECONDS, ends_within


def test_after_the_death_of_a_process_calls_fail_one_by_one():
    with start_workers(1) as workers:
        assert workers.submit(abs, -3).result() == 3
        for code in (1, 2):  # the second one is for a pool that knows already
            with pytest.raises(BrokenProcessPool):
                workers.submit(os._exit, code).result()


def test_an_interrupt_does_not_wait_for_what_processes_do():
    def interrupted():
        with start_workers(2) as workers:
            assert workers.submit(abs, -3).result() == 3
            workers.submit(time.sleep, HANGS_SECONDS)
            raise KeyboardInterrupt

    with ends_within(20), pytest.raises(KeyboardInterrupt):
        interrupted()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_processes_leave_signals_to_their_parent(number):
    with start_workers(1) as workers:
        process = workers.submit(os.getpid).result()
        os.kill(process, number)
        assert workers.submit(abs, -3).result() == 3


def test_processes_end_when_one_of_them_has_died():
    """The pool sends the others a signal that they ignore otherwise, and waits for their end."""
    with ends_within(20), start_workers(2) as workers:
        slow = workers.submit(time.sleep, HANGS_SECONDS)
        assert workers.submit(abs, -3).result() == 3
        with pytest.raises(BrokenProcessPool):
            workers.submit(os._exit, 1).result()
        with pytest.raises(BrokenProcessPool):
            slow.result()


def test_processes_are_given_up_though_calls_were_cancelled_before():
    """An exception in the pool's thread would be one of the test."""
    with ends_within(20), start_workers(2) as workers:
        assert workers.submit(abs, -3).result() == 3
        calls = [workers.submit(time.sleep, HANGS_SECONDS) for _ in range(8)]
        while not calls[0].running():
            time.sleep(0.01)
        assert calls[-1].cancel()
        workers.abandon()
        for call in calls:
            with pytest.raises((BrokenProcessPool, CancelledError)):
                call.result()
        with pytest.raises(BrokenProcessPool):
            workers.submit(abs, -3).result()


def test_a_call_in_the_background_has_a_result_or_has_died():
    with ends_within(20), ExitStack() as stack:
        assert BackgroundCall(stack, divmod, 7, 2).result(threading.Event()) == (3, 1)
        assert BackgroundCall(stack, os._exit, 1).result(threading.Event()) is None
        with pytest.raises(ZeroDivisionError):
            BackgroundCall(stack, divmod, 7, 0).result(threading.Event())


def is_told(seconds):
    """Whether this process is told to end before so many seconds have passed."""
    return STOP.wait(seconds)


def test_a_call_in_the_background_hears_that_the_user_wants_an_end():
    stop = threading.Event()
    stop.set()
    with ends_within(20), ExitStack() as stack:
        assert BackgroundCall(stack, is_told, HANGS_SECONDS).result(stop)


KILLED = """
import os, signal
from taccl_py.solvers.processes import start_workers
if __name__ == "__main__":
    with start_workers(2) as workers:
        print(workers.submit(abs, -3).result(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_do_not_outlive_a_parent_that_is_killed(tmp_path):
    """Their output ends when the last of them does."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=HANGS_SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (-9, "3\n")


UNGUARDED = """
import sys
from pathlib import Path
from time import sleep
with Path(sys.argv[1]).open("a") as log:
    log.write("ran\\n")
from taccl_py.solvers.processes import start_workers
from os import getpid
class Mine:
    pass
with start_workers(2) as workers:
    pids = {future.result() for future in [workers.submit(getpid) for _ in range(4)]}
import pickle
pickle.loads(pickle.dumps(Mine()))
print(getpid() not in pids, sys.modules["__main__"].Mine is Mine, __file__ == sys.modules["__main__"].__file__)
"""


def test_a_script_without_a_guard_runs_once(tmp_path):
    """Its processes do not run it again, and it is the main module afterwards as before."""
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(UNGUARDED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(log)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("True True True\n", "")
    assert log.read_text(encoding="utf-8") == "ran\n"
