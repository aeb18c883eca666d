"""The same command writes the same bytes: on an idle machine, and on one busy processor."""

import json
import os
import subprocess
import sys

import pytest

from taccl_py.topology.files import topology_to_json
from tests.cli.running import environment, tree
from tests.random_machines import random_machine

COMMANDS = {
    "auto": "synth machine.json allgather --size 64MiB --effort quick --only-schedule --runtime-profile neutral",
    "cp": "synth mesh:2x3 allgather --size 1MiB --engine cp --effort quick",
    "trees": "synth machine.json allgather --size 1MiB --engine trees --effort quick",
    "greedy": "synth hypercube:3 allreduce --size 1MiB --engine greedy --effort quick",
    "hierarchy": "synth ndv4 reducescatter --nodes 2 --size 16KiB --engine hierarchy --effort quick --only-schedule",
    "portfolio": "synth full:4 allreduce --sizes 1MiB:1MiB --effort quick",
}
HANGS_S = 900
# A quick search of a tenth of the work.
LITTLE = """
from taccl_py.api import policy
from taccl_py.cli import main
policy.EFFORTS["quick"] = 0.025
main()
"""
# Irregular: what engines find depends on how much work they do, which must not depend on who is at work beside them.
MACHINE = 2


def _written(words, folder, seed, **options):
    output = "out.json" if "--only-schedule" in words else "out"
    command = [sys.executable, "-c", LITTLE, *words.split(), "-o", output]
    (folder / "machine.json").write_text(json.dumps(topology_to_json(random_machine(MACHINE))))
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=HANGS_S, check=False,
        env=environment({"PYTHONHASHSEED": seed}), **options,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return {name: content for name, content in tree(folder).items() if name != "machine.json"}


def _on_one_processor():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen here")
@pytest.mark.parametrize("name", COMMANDS)
def test_an_idle_machine_and_one_busy_processor_write_the_same(name, tmp_path):
    first, second = tmp_path / "idle", tmp_path / "busy"
    first.mkdir()
    second.mkdir()
    idle = _written(COMMANDS[name], first, "1")
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=_on_one_processor)
    try:
        busy = _written(COMMANDS[name], second, "2", preexec_fn=_on_one_processor)
    finally:
        other.kill()
        other.wait()
    assert idle == busy
