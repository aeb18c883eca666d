"""``--scheduler``: a Dask cluster does the work, and what comes out is the same."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from taccl_py.solvers import cluster as cluster_module
from taccl_py.synthesis.matching import attempts
from tests.cli.running import environment, tree
from tests.cli.test_sweep import SUITE

# Importing it would take every process that collects tests a while.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="dask is not installed; pip install '.[dask]'"
)
# Dask's scheduler and workers as users start them, in processes of their own.
DASK = (sys.executable, "-m", "distributed.cli.dask_{}")


def started(kind, *arguments, cwd):
    command = [part.format(kind) for part in DASK]
    return subprocess.Popen(
        [*command, *arguments], cwd=cwd, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address of a scheduler with two workers."""
    folder = tmp_path_factory.mktemp("cluster")
    scheduler = started("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", "s.json", "--no-dashboard",
                        cwd=folder)  # fmt: skip
    deadline = time.monotonic() + 30
    while not (folder / "s.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [
        started("worker", "--scheduler-file", "s.json", "--nthreads", "1", "--no-dashboard", "--no-nanny", cwd=folder)
        for _ in range(2)
    ]
    yield json.loads((folder / "s.json").read_text())["address"]
    for process in (*workers, scheduler):
        process.terminate()
        process.wait(20)


def test_a_cluster_gives_the_same_bytes(taccl, folder, cluster):
    (folder / "suite.toml").write_text(SUITE)
    assert taccl("sweep", "suite.toml", "-o", "here", "--workers", 1).code == 0
    ended = taccl("sweep", "suite.toml", "-o", "there", "--scheduler", cluster, "--json")
    assert (ended.code, ended.json["computed"]) == (0, 6), ended.err
    assert tree(folder / "there") == tree(folder / "here")
    assert taccl("sweep", "suite.toml", "-o", "there", "--scheduler", cluster, "--json").json["computed"] == 0


def test_the_starts_of_greedy_are_shared_out_and_give_the_same_schedule(taccl, folder, cluster, refuse, monkeypatch):
    monkeypatch.setattr(attempts, "PARAMS", replace(attempts.PARAMS, least_process_messages=0))
    command = ("synth", "dgx1", "allgather", "--without-link", "0-3", "--engine", "greedy")
    assert taccl(*command, "-o", "here.json").code == 0
    monkeypatch.setattr(attempts, "start_workers", None)  # not here
    ended = taccl(*command, "-o", "there.json", "--scheduler", cluster)
    assert ended.code == 0, ended.err
    assert (folder / "there.json").read_bytes() == (folder / "here.json").read_bytes()
    monkeypatch.setattr(cluster_module, "code_digest", lambda: str(os.getpid()))
    refuse(2, ["--scheduler", "another version"], *command, "-o", "there.json", "--scheduler", cluster)


def test_only_greedy_has_starts_to_share_out(refuse):
    refuse(
        2, ["--scheduler", "add --engine greedy"], "synth", "ring:4", "allgather", "--scheduler", "tcp://127.0.0.1:1"
    )


def test_a_scheduler_that_is_not_there_is_named(refuse, folder, monkeypatch):
    monkeypatch.setattr(cluster_module, "_CONNECT_SECONDS", 0.5)
    (folder / "suite.toml").write_text(SUITE)
    (folder / "out").mkdir()
    (folder / "out/.lock").write_text("")
    refuse(
        2, ["--scheduler", "tcp://127.0.0.1:1"], "sweep", "suite.toml", "-o", "out", "--scheduler", "tcp://127.0.0.1:1"
    )


def test_without_dask_the_extra_is_named(refuse, folder, monkeypatch):
    (folder / "suite.toml").write_text(SUITE)
    (folder / "out").mkdir()
    (folder / "out/.lock").write_text("")
    monkeypatch.setitem(sys.modules, "distributed", None)
    refuse(6, [".[dask]"], "sweep", "suite.toml", "-o", "out", "--scheduler", "tcp://127.0.0.1:1")
