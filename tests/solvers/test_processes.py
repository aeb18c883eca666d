"""Processes that solve side by side."""

import os
from concurrent.futures.process import BrokenProcessPool

import pytest

from taccl_py.solvers.processes import start_workers


def test_after_the_death_of_a_process_calls_fail_one_by_one():
    with start_workers(1) as workers:
        assert workers.submit(abs, -3).result() == 3
        for code in (1, 2):  # the second one is for a pool that knows already
            with pytest.raises(BrokenProcessPool):
                workers.submit(os._exit, code).result()
