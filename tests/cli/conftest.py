"""An empty folder to run commands in, and the command line itself."""

from pathlib import Path

import pytest

from tests.cli.running import run_here, tree
from tests.instances import quiet_pulp

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Commands run in this process, where pytest makes errors of PuLP's warnings about its next version."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(quiet_pulp)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Races end soon: what a default gives a person's machine, a test of what a command says has no use for."""
    monkeypatch.setattr("taccl_py.api.policy.RACE_LIMIT_S", 0.5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Empty folder that is the working directory, so that tests may name files the way people do."""
    monkeypatch.chdir(tmp_path)
    # Tables are as wide as the terminal; no test should depend on the one it runs in.
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def taccl(folder, capsys):
    """Run the command line in this process, in an empty folder."""
    assert Path.cwd() == folder
    return lambda *arguments: run_here(capsys, *arguments)


@pytest.fixture
def refuse(taccl, folder):
    """Run a command that must fail: with this code, one sentence that holds these words, and no file changed."""

    def check(code, words, *arguments):
        before = tree(folder)
        ended = taccl(*arguments)
        assert ended.code == code, ended
        assert ended.out == ""
        sentence = ended.sentence
        for word in words:
            assert word in sentence, f"{word!r} is not in {sentence!r}"
        assert tree(folder) == before, "files were changed"
        return sentence

    return check


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Texts of a small AllGather's schedule and program, made once for all tests."""
    from taccl_py.cli import main

    out = tmp_path_factory.mktemp("made")
    with pytest.raises(SystemExit, match="0"):
        main(["synth", "ring:4", "allgather", "--engine", "milp", "-o", str(out)])
    return {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}


@pytest.fixture
def files(made, folder):
    """The folder with ``schedule.json`` and ``algorithm.xml`` of the small AllGather in it."""
    for name in ("schedule.json", "algorithm.xml"):
        (folder / name).write_text(made[name], encoding="utf-8")
    return folder
