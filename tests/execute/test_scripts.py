"""The scripts that run algorithms on what is here."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.execute.processes import ROOT

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed; pip install '.[torch]'"
)


def run_script(name, *words, env=None):
    command = [sys.executable, ROOT / "scripts" / name, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT, env={**os.environ, **(env or {})}
    )


@needs_torch
def test_without_a_gpu_one_gpu_says_so_in_one_line():
    ended = run_script("one_gpu", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "skipped: torch finds no GPU that NCCL can use; --backend gloo does the same on CPUs"
    ]


@pytest.mark.slow
@needs_torch
def test_one_gpu_does_the_same_on_cpus():
    ended = run_script("one_gpu", "--backend", "gloo", "--ranks", 3, "3KiB", "48KiB")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.split()[1:] for line in lines[-4:]] == [
        [kind, "0", "wrong"] for kind in ("allgather", "allreduce", "alltoall", "broadcast")
    ]
    assert "the backend's own collective is called" not in ended.stderr
    rows = [line.split() for line in lines[2:-4]]
    names = [
        f"{kind}-{shape}" for kind in ("allgather", "allreduce", "alltoall", "broadcast") for shape in ("full", "ring")
    ]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        (name, size, "0") for name in names for size in ("3072", "49152")
    ]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_loopback_sets_our_algorithm_beside_the_ring():
    """Whether it is faster depends on what else runs here; that all three give the right sums does not."""
    ended = run_script("loopback", "--starts", 1, "--seconds", 1, "1KiB")
    assert (ended.returncode in (0, 1), ended.stderr) == (True, "")
    heading, row = ended.stdout.splitlines()
    assert heading.split()[:3] == ["size", "ours", "ring"]
    times = [float(word) for word in row.split() if word.replace(".", "").isdigit()]
    assert row.split()[0] == "1KiB"
    assert all(time > 0 for time in times)
    assert len(times) == 5


@pytest.mark.slow
@needs_torch
def test_torch_overhead_sets_a_file_beside_a_ring_by_hand():
    """Whether the targets are met depends on what else runs here; that both give the right sums does not."""
    ended = run_script("torch_overhead", "64KiB")
    assert ended.returncode in (0, 1), ended.stderr
    heading, row = ended.stdout.splitlines()
    assert heading.split()[:3] == ["size", "ours", "by"]
    assert row.split()[0] == "64KiB"
    assert all(float(row.split()[at]) > 0 for at in (1, 3, 5))
