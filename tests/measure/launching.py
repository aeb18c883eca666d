"""Profiles of real processes: the same words for mpiexec and torchrun."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import environment
from tests.execute.processes import ROOT, run_processes
from tests.patience import HANGS_SECONDS

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
HAS_MPI = MPIEXEC is not None and importlib.util.find_spec("mpi4py") is not None
HAS_TORCH = importlib.util.find_spec("torch") is not None

_MPI = pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpiexec is not installed; pip install '.[mpi]'")
_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed; pip install '.[torch]'")
# What the profiler does with real processes takes long with torch; in CI that runs where nothing else shows it.
NOT_IN_CI = pytest.mark.skipif("CI" in os.environ, reason="minutes of real time; without CI in the environment it runs")
LAUNCHERS = [pytest.param("mpi", marks=_MPI), pytest.param("torch", marks=_TORCH)]
QUICK_LAUNCHERS = [LAUNCHERS[0], pytest.param("torch", marks=[_TORCH, pytest.mark.slow])]  # torch starts slowly


def command(launcher, num_ranks, *words, module="taccl_py"):
    """Command line that runs a module in so many processes."""
    start = [MPIEXEC, "-n", num_ranks, sys.executable, "-m", module]
    if launcher == "torch":
        start = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            num_ranks,
            "-m",
            module,
        ]
    return [str(word) for word in (*start, *words)]


def profiled(launcher, num_ranks, *words, seconds=HANGS_SECONDS):
    """Run `taccl profile` in so many processes."""
    return run_processes(command(launcher, num_ranks, "profile", "--with", launcher, *words), seconds=seconds)


def interrupted(launcher, num_ranks, record, *words, results=15):
    """Run `taccl profile` with a record and send Ctrl-C when it has so many results; stdout and stderr."""
    process = subprocess.Popen(
        command(launcher, num_ranks, "profile", "--with", launcher, "--record", record, *words),
        cwd=ROOT, env=environment({"PYTHONPATH": str(ROOT)}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        end = time.monotonic() + HANGS_SECONDS
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if len(Path(record).read_text(encoding="utf-8").splitlines()) > results:
                    break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=HANGS_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def write_machine(folder, machine):
    """Write a topology and return its path."""
    from taccl_py.topology.files import topology_to_json

    path = folder / f"{machine.name}.json"
    path.write_text(json.dumps(topology_to_json(machine)), encoding="utf-8")
    return path
