"""Processes that solve side by side."""

import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest

from taccl_py.solvers.processes import start_workers


def test_after_the_death_of_a_process_calls_fail_one_by_one():
    with start_workers(1) as workers:
        assert workers.submit(abs, -3).result() == 3
        for code in (1, 2):  # the second one is for a pool that knows already
            with pytest.raises(BrokenProcessPool):
                workers.submit(os._exit, code).result()


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
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (-9, "3\n")
