"""The same command writes the same bytes: on an idle machine, and on one busy processor."""

import os
import subprocess
import sys

import pytest

from tests.cli.running import environment, tree

COMMANDS = {
    "auto": "synth ring:4 allreduce --size 1MiB --effort quick",
    "cp": "synth mesh:2x3 allgather --size 1MiB --engine cp --chunks 2",
    "trees": "synth dgx1 allgather --size 1MiB --engine trees",
    "greedy": "synth hypercube:3 allreduce --size 1MiB --engine greedy",
    "hierarchy": "synth ndv4 reducescatter --nodes 2 --size 1MiB --engine hierarchy",
    "portfolio": "synth full:4 allreduce --sizes 64KiB:1MiB --effort quick",
}
HANGS_S = 900


def _written(words, folder, **options):
    command = [sys.executable, "-m", "taccl_py", *words.split(), "-o", "out"]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=HANGS_S, check=False, env=environment(), **options
    )
    assert ended.returncode == 0, ended.stderr
    return tree(folder / "out")


def _on_one_processor():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen here")
@pytest.mark.parametrize("name", COMMANDS)
def test_an_idle_machine_and_one_busy_processor_write_the_same(name, tmp_path):
    first, second = tmp_path / "idle", tmp_path / "busy"
    first.mkdir()
    second.mkdir()
    idle = _written(COMMANDS[name], first)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=_on_one_processor)
    try:
        busy = _written(COMMANDS[name], second, preexec_fn=_on_one_processor)
    finally:
        other.kill()
        other.wait()
    assert idle == busy
