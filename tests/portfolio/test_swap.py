"""Swaps of directories: whoever is killed in the middle has lost nothing."""

import os
import re
import signal
import subprocess
import sys

import pytest

import taccl_py.portfolio.swap as swap
from taccl_py.errors import InputError
from tests.cli.running import environment, tree
from tests.patience import HANGS_SECONDS

OLD = {"a.xml": "old a", "b.xml": "old b", "taccl/b.json": "old"}
NEW = {"a.xml": "new a", "c.xml": "new c", "taccl/c.json": "new"}
KEPT = {"taccl/notes.json": b"mine"}

# Ends itself as `kill -9` would, before the n-th step that changes something on the disk.
KILLED = """
import os, signal, sys
from pathlib import Path
import taccl_py.portfolio.swap as swap
number, exchanges = int(sys.argv[1]), sys.argv[2] == "exchange"


def counted(event, _given):
    global number
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "open", "os.chmod", "taccl.exchange"):
        number -= 1
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)


exchange = swap._exchange


def told(one, other):
    sys.audit("taccl.exchange")
    return exchange(one, other) if exchanges else False


swap._exchange = told
folder = Path("algos")
with swap.sole_user(folder):
    sys.addaudithook(counted)
    swap.swap_files(folder, {"a.xml": "new a", "c.xml": "new c", "taccl/c.json": "new"}, ["a.xml", "b.xml", "taccl/b.json"])
number = 9999
print("done")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "algos" / "taccl").mkdir(parents=True)
    for name, text in OLD.items():
        (tmp_path / "algos" / name).write_text(text)
    (tmp_path / "algos" / "taccl" / "notes.json").write_bytes(KEPT["taccl/notes.json"])
    return tmp_path / "algos"


def whole(texts):
    return {**{name: text.encode() for name, text in texts.items()}, **KEPT}


def test_all_files_are_new_and_folders_stay(folder):
    inode = folder.stat().st_ino
    folder.chmod(0o750)
    swap.swap_files(folder, NEW, list(OLD))
    assert tree(folder) == whole(NEW)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert folder.stat().st_ino != inode
    assert os.listdir(folder.parent) == ["algos"]


def test_files_that_are_not_named_stay(folder):
    swap.swap_files(folder, NEW, [])
    assert tree(folder) == whole(OLD | NEW)


def test_a_link_to_a_directory_stays_one(folder):
    (folder.parent / "current").symlink_to("algos", target_is_directory=True)
    swap.swap_files(folder.parent / "current", NEW, list(OLD))
    assert (folder.parent / "current").is_symlink()
    assert tree(folder) == whole(NEW)


def test_a_directory_that_cannot_be_moved_is_written_into(folder, monkeypatch):
    monkeypatch.setattr(swap, "_swap", lambda *_: False)
    inode = folder.stat().st_ino
    swap.swap_files(folder, NEW, list(OLD))
    assert tree(folder) == whole(NEW)
    assert folder.stat().st_ino == inode


def test_a_full_disk_leaves_the_old_content(folder, monkeypatch):
    def full(_texts):
        raise InputError("cannot be written: No space left on device", path="elsewhere")

    monkeypatch.setattr(swap, "write_all", full)
    with pytest.raises(InputError, match=r"algos: cannot be written: No space left"):
        swap.swap_files(folder, NEW, list(OLD))
    assert tree(folder) == whole(OLD)
    assert os.listdir(folder.parent) == ["algos"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exchange", "two renames"])
def test_a_kill_in_the_middle_loses_nothing(folder, way):
    """At every step there is; afterwards the next installation has a whole directory to begin with, and nothing lies about."""
    for number in range(99):
        with swap.sole_user(folder):
            swap.swap_files(folder, OLD, list(NEW))
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(number), way],
            cwd=folder.parent, env=environment(), capture_output=True, text=True, timeout=HANGS_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        assert folder.exists() or way == "two renames"
        with swap.sole_user(folder):
            assert tree(folder) in (whole(OLD), whole(NEW))
        assert os.listdir(folder.parent) == ["algos"]
        if done.returncode == 0:
            assert number > 8
            return
    pytest.fail("it never came to its end")


@pytest.mark.slow
def test_of_two_at_once_one_wins_whole(folder):
    script = KILLED.replace("number, exchanges = int(sys.argv[1])", "number, exchanges = 9999")
    for _ in range(5):
        both = [
            subprocess.Popen(
                [sys.executable, "-c", re.sub("new( |(?=\"))", rf"{who}\1", script), "0", "exchange"], cwd=folder.parent, env=environment()
            )
            for who in ("one", "two")
        ]  # fmt: skip
        assert [each.wait(HANGS_SECONDS) for each in both] == [0, 0]
        found = tree(folder)
        assert found in [
            whole({"a.xml": f"{who} a", "c.xml": f"{who} c", "taccl/c.json": who}) for who in ("one", "two")
        ]
        assert os.listdir(folder.parent) == ["algos"]


def test_what_is_no_directory_keeps_its_name(tmp_path):
    place = tmp_path / "device"
    os.mkfifo(place)
    with pytest.raises(InputError, match="is no directory"):
        swap.swap_files(place, {"a.xml": "new"}, [])
    assert place.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["device"]


def test_folders_of_others_are_neither_copied_nor_moved(tmp_path):
    theirs = tmp_path / "place" / "theirs"
    theirs.mkdir(parents=True)
    before = (tmp_path / "place").stat().st_ino, theirs.stat().st_ino
    swap.swap_files(tmp_path / "place", {"a.xml": "new"}, [])
    assert ((tmp_path / "place").stat().st_ino, theirs.stat().st_ino) == before
    assert (tmp_path / "place" / "a.xml").read_text(encoding="utf-8") == "new"


def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="leads to itself"):
        swap.swap_files(tmp_path / "loop", {"a.xml": "new"}, [])
    with pytest.raises(InputError, match="leads to itself"), swap.sole_user(tmp_path / "loop"):
        pass


def test_a_directory_whose_new_one_cannot_take_its_place_gets_its_name_back(folder, monkeypatch):
    rename = type(folder).rename

    def refused(self, target):
        if ".new-" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(swap, "_exchange", lambda *_: False)
    monkeypatch.setattr(type(folder), "rename", refused)
    with swap.sole_user(folder):
        swap.swap_files(folder, NEW, list(OLD))
    assert tree(folder) == whole(NEW)
    assert os.listdir(folder.parent) == ["algos"]


def test_without_locks_too_a_directory_gets_its_content_back(folder, monkeypatch):
    def no_locks(*_):
        raise OSError(9, "Bad file descriptor")

    folder.rename(swap._old(folder.resolve()))
    monkeypatch.setattr(swap.fcntl, "flock", no_locks)
    with swap.sole_user(folder):
        assert tree(folder) == whole(OLD)


def test_directories_with_long_names_have_old_ones_of_their_own(tmp_path):
    one, other = (tmp_path / f"{'a' * 40}{number}" for number in (1, 2))
    assert swap._old(one) != swap._old(other)


def test_a_name_that_is_a_pattern_clears_only_its_own(tmp_path):
    (tmp_path / "[ab]").mkdir()
    (tmp_path / ".a.new-1").mkdir()
    with swap.sole_user(tmp_path / "[ab]"):
        assert (tmp_path / ".a.new-1").is_dir()
