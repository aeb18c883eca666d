"""A real profile of four processes under mpiexec, and what it predicts."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from taccl_py.topology.files import read_topology
from tests.execute.processes import errors, run_processes

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
        reason="mpi4py or mpiexec is not installed; pip install 'taccl-py[mpi]'",
    ),
]


def under_mpi(num_ranks, *words):
    return run_processes(
        [MPIEXEC, "-n", num_ranks, sys.executable, "-m", "taccl_py", "profile", "--with", "mpi", *words]
    )


def test_four_processes_are_profiled_into_a_machine_with_all_pairs(tmp_path):
    """Times are this machine's, so only what holds for every machine is asserted."""
    ended = under_mpi(4, "--repeats", 2, "-o", tmp_path / "mine.json", "--record", tmp_path / "r.jsonl", "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["num_ranks"], sum(one["links"] for one in record["classes"])) == (4, 12)
    machine = read_topology(tmp_path / "mine.json")
    assert set(machine.links_between) == {(a, b) for a in range(4) for b in range(4) if a != b}
    for link in machine.links:
        # Between 1 TB/s and 10 MB/s: whatever this machine is, it is neither.
        assert 0.001 < link.beta_us_per_mb < 1e5
    # All results are in the record, so the same profile comes out without measuring.
    again = under_mpi(4, "--repeats", 2, "--record", tmp_path / "r.jsonl", "--json")
    assert json.loads(again.out) == record


def test_one_process_has_nobody_to_send_to():
    ended = under_mpi(1)
    assert ended.code == 2
    assert "start several" in errors(ended)[0]
