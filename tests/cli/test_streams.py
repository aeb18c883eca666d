"""Standard output and standard error that are closed, full, or pipes without a reader."""

import os
import subprocess
import sys

import pytest

from tests.cli.running import environment, tree
from tests.patience import HANGS_SECONDS

SYNTH = ("synth", "ring:4", "allgather", "--engine", "templates", "-o", "out")
COMMANDS = {
    "synth": SYNTH,
    "check": ("check", "schedule.json", "algorithm.xml"),
    "show": ("show", "algorithm.xml"),
    "json": ("topo", "show", "ndv2", "--json"),
    "help": ("synth", "--help"),
    "version": ("--version",),
    "xml on stdout": ("lower", "schedule.json", "-o", "-"),
}
FULL = "/dev/full"


def run(folder, arguments, **streams):
    done = subprocess.run(
        [sys.executable, "-m", "taccl_py", *arguments],
        cwd=folder, env=environment(), text=True, timeout=HANGS_SECONDS, check=False, **streams,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def closing(number):
    """What a shell does for ``2>&-``."""
    return lambda: os.close(number)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_search_finishes_whatever_stream_is_closed(files, number):
    race = ("synth", "ring:4", "allgather", "--time-limit", "0.3", "-o", "out")
    code, _, err = run(files, race, preexec_fn=closing(number), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert code == 0, err
    assert {"out/schedule.json", "out/algorithm.xml", "out/summary.json"} <= set(tree(files))


def test_a_closed_standard_error_costs_only_its_words(files):
    code, out, _ = run(files, (*SYNTH, "--json"), preexec_fn=closing(2), stdout=subprocess.PIPE)
    assert code == 0
    assert out.startswith("{")
    assert run(files, ("show", "nothing.xml"), preexec_fn=closing(2))[0] == 2


def test_a_full_disk_of_standard_error_costs_only_its_words(files):
    with open(FULL, "w") as full:
        assert run(files, SYNTH, stdout=subprocess.PIPE, stderr=full)[0] == 0
        assert run(files, ("show", "nothing.xml"), stderr=full)[0] == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_without_a_reader_ends_it_in_silence(files, name):
    reads, writes = os.pipe()
    os.close(reads)
    code, _, err = run(files, COMMANDS[name], stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    assert code == 141
    assert [line for line in err.splitlines() if not line.startswith("wrote ")] == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_of_standard_output_is_one_sentence(files, monkeypatch, name, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open(FULL, "w") as full:
        code, _, err = run(files, COMMANDS[name], stdout=full, stderr=subprocess.PIPE)
    assert code == 2
    found = [line for line in err.splitlines() if not line.startswith("wrote ")]
    assert found == ["error: standard output: cannot be written: No space left on device; write it elsewhere"]
