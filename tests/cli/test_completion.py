"""Completion in bash, zsh and fish: commands, options, choices, and the names of machines, sketches, solvers and profiles."""

import shutil
import subprocess
import sys

import pytest

from taccl_py.sketch.catalog import sketch_names
from taccl_py.topology.catalog import load_topology, machine_names
from tests.cli.running import environment, run_apart


def completed(folder, line, shell="bash"):
    """What a shell is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1)}
    ended = run_apart(cwd=folder, env={"_TACCL_COMPLETE": f"{shell}_complete", **asked}, command=("-m", "taccl_py"))
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    if shell == "zsh":
        return lines[1::3]
    return [one.partition(",")[2].partition("\t")[0] for one in lines]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("taccl sy", ["synth"]),
        ("taccl topo sh", ["show"]),
        ("taccl synth ndv", ["ndv2", "ndv4", "ndv5"]),
        ("taccl synth a1", ["a100"]),
        ("taccl synth tor", ["torus:4x4"]),
        ("taccl topo show dg", ["dgx1", "dgx2"]),
        ("taccl topo diff ndv2 nd", ["ndv2", "ndv4", "ndv5"]),
        ("taccl synth ndv2 allg", ["allgather", "allgatherv"]),
        ("taccl synth ndv2 allgather --sketch ndv2-sk", ["ndv2-sk-1", "ndv2-sk-2", "ndv2-sk-3"]),
        ("taccl sketch show ndv4", ["ndv4-rails"]),
        ("taccl synth ndv2 allgather --engine gr", ["greedy"]),
        ("taccl synth ndv2 allgather --solver hi", ["highs"]),
        ("taccl synth ndv2 allgather --runtime-profile rccl-mi3", ["rccl-mi300x"]),
        ("taccl topo import x --gpu h1", ["h100"]),
        ("taccl synth ndv2 allgather --eng", ["--engine"]),
    ],
)
def test_names_are_completed(folder, line, words):
    assert completed(folder, line) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_machines_sketches_and_engines(folder, shell):
    assert completed(folder, "taccl synth ndv", shell) == ["ndv2", "ndv4", "ndv5"]
    assert completed(folder, "taccl synth ndv2 allgather --sketch dgx2", shell) == [
        "dgx2-sk-1",
        "dgx2-sk-2",
        "dgx2-sk-3",
    ]
    assert completed(folder, "taccl synth ndv2 allgather --engine tr", shell) == ["trees"]


def test_what_is_no_name_is_left_to_the_shells_files(folder):
    ended = run_apart(
        cwd=folder, env={"_TACCL_COMPLETE": "bash_complete", "COMP_WORDS": "taccl synth my_ma", "COMP_CWORD": "2"}
    )
    assert ended.out == "file,my_ma\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_every_shell_is_printed(folder, shell):
    ended = run_apart(cwd=folder, env={"_TACCL_COMPLETE": f"{shell}_source"})
    assert ended.code == 0
    assert f"_TACCL_COMPLETE={shell}_complete" in ended.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(folder):
    """The script in a real bash, which calls the program as an interactive one does."""
    script = run_apart(cwd=folder, env={"_TACCL_COMPLETE": "bash_source"}).out
    program = f'taccl() {{ "{sys.executable}" -m taccl_py "$@"; }}\nexport -f taccl\n{script}\n'
    program += "COMP_WORDS=(taccl synth mi3); COMP_CWORD=2; _taccl_completion taccl\necho ${COMPREPLY[@]}\n"
    done = subprocess.run(
        ["bash", "-c", program], cwd=folder, env=environment(None), capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[-1:] == ["mi300x"], done.stderr


def test_offered_names_are_taken():
    for name in machine_names():
        assert load_topology(name).num_ranks > 1
    assert "ndv2-sk-1" in sketch_names()
