"""Runs in which other work had a processor are told from those in which nothing disturbed, and do not count."""

import subprocess
import sys
from pathlib import Path

import pytest

from taccl_py.measure.experiment import Experiment, MeasuredFlow
from taccl_py.measure.processes import EndedProcesses, ExperimentPart, LaunchedProcesses, ProcessBench

ROOT = Path(__file__).parents[2]
# A process and a child that keep the same processor busy, so that each has to wait for the other.
SHARED_PROCESSOR = """
import os, time
from taccl_py.measure.processor_wait import Waiting
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
child = os.fork()
if child == 0:
    spin(0.3)
    os._exit(0)
waiting = Waiting()
before = waiting.waited_us()
spin(0.2)
print(waiting.waited_us() - before)
waiting.close()
os.waitpid(child, 0)
"""


class ScriptedJob(LaunchedProcesses):
    def bench(self, throttle):
        raise NotImplementedError

    def close(self):
        """Nobody to let go of."""

    def _broadcast(self, value):
        return value


class ScriptedBench(ProcessBench):
    """Two ranks, of which a script says how long a run takes and how long each process waits meanwhile."""

    def __init__(self, runs):
        self._runs = iter(runs)
        self.done = 0
        super().__init__(ScriptedJob(0, ["here", "here"]), None)

    @property
    def name(self):
        return "scripted"

    def _give(self, order):
        pass

    def _next_order(self):
        return None

    def _report(self, own):
        pass

    def _take_part(self, order):  # noqa: ARG002
        self.done += 1
        return ExperimentPart({})

    def _collect(self, own):  # noqa: ARG002
        done_us, *waited_us = next(self._runs)
        return [ExperimentPart({}, waited_us[0]), ExperimentPart({0: EndedProcesses(done_us)}, waited_us[1])]


ONE = Experiment((MeasuredFlow(0, 1),), 8, 1)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux counts how long a process waits")
def test_a_process_that_shares_its_processor_has_waited():
    done = subprocess.run(
        [sys.executable, "-c", SHARED_PROCESSOR], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert float(done.stdout) > 20_000


def test_a_run_in_which_a_process_waited_is_repeated_until_none_did():
    bench = ScriptedBench([(500.0, 400.0, 0.0), (300.0, 0.0, 200.0), (100.0, 1.0, 1.0), (90.0, 0.0, 0.0)])
    assert bench.run(ONE) == (100.0,)
    assert bench.done == 3


def test_where_processes_always_wait_the_run_counts_in_which_they_waited_least():
    def runs():
        yield 400.0, 40.0, 0.0
        while True:
            yield 300.0, 150.0, 0.0

    assert ScriptedBench(runs()).run(ONE) == (400.0,)
