"""The tutorial: its commands end well, one after the other, in an empty folder."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.running import run_apart

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r"```sh\n(.+?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("taccl ")]


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path):
    """One of them names a file with its range of sizes: where another range is found, the tutorial is to be written anew."""
    assert [command.split()[1] for command in COMMANDS] == [
        "topo", "bound", "synth", "check", "run", "install", "check", "compare",
    ]  # fmt: skip
    said = {}
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        ended = run_apart(*words, cwd=tmp_path, seconds=600)
        assert ended.code == 0, (command, ended)
        said[command] = ended.out + ended.err
    assert "1KiB to 16MiB" in said["taccl install algos/ -o installed/"]
    assert said["taccl check installed/"].splitlines()[-1].startswith("installed: good: ")
