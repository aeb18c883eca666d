"""Where files go, that they are whole or not there at all, and that they are the same from run to run."""

import errno
import os
import stat
import threading

import pytest

from tests.cli.running import run_apart, tree

NAMES = ("schedule.json", "algorithm.xml", "summary.json")


def synth(taccl, *options, collective="allgather", machine="ring:4"):
    return taccl("synth", machine, collective, "--engine", "templates", *options)


def test_a_directory_gets_three_files(taccl):
    assert synth(taccl, "-o", "out").code == 0
    assert sorted(os.listdir("out")) == sorted(NAMES)


def test_a_directory_that_exists_keeps_what_else_is_in_it(taccl, folder):
    (folder / "out").mkdir()
    (folder / "out" / "notes.txt").write_text("mine")
    assert synth(taccl, "-o", "out").code == 0
    assert sorted(os.listdir("out")) == sorted([*NAMES, "notes.txt"])
    assert (folder / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["ring.xml", "ring.json", "deep/er/ring.xml"])
def test_a_file_gets_one_file(taccl, folder, name):
    ended = synth(taccl, "-o", name)
    assert ended.code == 0
    assert ended.err == f"wrote {name}\n"
    assert list(tree(folder)) == [name]


def test_the_ending_says_what_a_file_holds(taccl, folder):
    synth(taccl, "-o", "out")
    synth(taccl, "-o", "one.xml")
    synth(taccl, "-o", "one.json")
    found = tree(folder)
    assert found["one.xml"] == found["out/algorithm.xml"]
    assert found["one.json"] == found["out/schedule.json"]


@pytest.mark.parametrize(
    "command",
    [
        ("lower", "schedule.json", "-o", "./schedule.json"),
        ("trace", "schedule.json", "-o", "schedule.json"),
        ("trace", "algorithm.xml", "--topology", "ring:4", "-o", "algorithm.xml"),
        ("synth", "mine.json", "allgather", "-o", "mine.json"),
        ("synth", "ring:4", "mine.json", "-o", "mine.json"),
        ("replicate", "mine.json", "allgather", "-o", "mine.json"),
        ("topo", "import", "mine.json", "-o", "mine.json"),
        ("topo", "fit", "samples.csv", "mine.json", "-o", "mine.json"),
    ],
    ids=" ".join,
)
def test_a_file_that_is_read_is_no_output(refuse, files, command):
    (files / "mine.json").write_text("{}")
    words = f"{command[-1].removeprefix('./')}: is the file that is read, and would be lost; name another output"
    assert refuse(2, [], *command) == words


def test_nothing_is_written_without_an_output(taccl, folder):
    assert synth(taccl).code == 0
    assert tree(folder) == {}


@pytest.mark.parametrize("name", ["ring.xml", "ring.json"])
def test_a_directory_in_place_of_the_file_is_refused_before_any_work(refuse, folder, monkeypatch, name):
    monkeypatch.setattr("taccl_py.api.search.synthesize_for", lambda *_: pytest.fail("the search has begun"))
    (folder / name).mkdir()
    refuse(2, [name, "is a directory"], "synth", "ring:4", "allgather", "-o", name)


def test_a_file_in_place_of_the_directory_is_refused_before_any_work(refuse, folder, monkeypatch):
    monkeypatch.setattr("taccl_py.api.search.synthesize_for", lambda *_: pytest.fail("the search has begun"))
    (folder / "out").write_text("mine")
    refuse(2, ["out", "is a file"], "synth", "ring:4", "allgather", "-o", "out")


def test_a_file_in_the_way_is_refused(refuse, folder):
    (folder / "file").write_text("mine")
    refuse(2, ["file/ring.xml", "cannot be written"], "synth", "ring:4", "allgather", "-o", "file/ring.xml")


@pytest.mark.parametrize("output", ["file/ring.xml", "file/deep/out", "/dev/null", "/proc/nothing/out"])
def test_what_cannot_be_written_is_refused_before_any_work(refuse, folder, monkeypatch, output):
    monkeypatch.setattr("taccl_py.api.search.synthesize_for", lambda *_: pytest.fail("the search has begun"))
    (folder / "file").write_text("mine")
    refuse(2, [output], "synth", "ring:4", "allgather", "-o", output)


@pytest.mark.parametrize(
    "words",
    [
        ["pareto", "ring:4", "allgather", "--sizes", "1KiB:4KiB"],
        ["synth", "ring:4", "allgather", "--sizes", "1KiB:4KiB"],
        ["topo", "show", "ring:4"],
        ["profile", "--emulate", "ring:4"],
    ],
)
def test_every_command_refuses_what_cannot_be_written_before_any_work(refuse, folder, monkeypatch, words):
    monkeypatch.setattr("taccl_py.sketch.machine.load_machine", lambda *_: pytest.fail("work has begun"))
    (folder / "file").write_text("mine")
    refuse(2, ["file/deep/out", "cannot be written"], *words, "-o", "file/deep/out")


def test_an_output_in_capitals_is_told_how_it_is_written(refuse, folder):
    refuse(2, ["o.XML", ".xml"], "synth", "ring:4", "allgather", "-o", "o.XML")
    assert not (folder / "o.XML").exists()


@pytest.mark.parametrize("blocked", ["algorithm.xml", "summary.json"])
def test_all_files_of_a_directory_are_written_or_none(refuse, folder, blocked):
    (folder / "out" / blocked).mkdir(parents=True)
    (folder / "out" / "schedule.json").write_text("mine")
    refuse(2, ["out", "cannot be written"], "synth", "ring:4", "allgather", "-o", "out")


def test_a_pipe_takes_what_is_written_and_stays_a_pipe(taccl, folder):
    """So does /dev/null, which the superuser could replace by a file."""
    os.mkfifo(folder / "pipe.json")
    found = []
    reader = threading.Thread(target=lambda: found.append((folder / "pipe.json").read_text("utf-8")), daemon=True)
    reader.start()
    assert taccl("synth", "ring:4", "allgather", "--engine", "templates", "-o", "pipe.json").code == 0
    reader.join(timeout=30)
    assert found[0].startswith('{\n  "format": "taccl-schedule"')
    assert (folder / "pipe.json").is_fifo()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for the superuser")
def test_a_read_only_directory_is_refused(refuse, folder):
    (folder / "out").mkdir()
    (folder / "out").chmod(0o500)
    refuse(2, ["out", "cannot be written"], "synth", "ring:4", "allgather", "-o", "out")


def test_a_full_disk_is_said_in_one_sentence(refuse, monkeypatch):
    def replace(_source, _target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("taccl_py.jsonio.os.replace", replace)
    refuse(2, ["one.xml", "No space left on device"], "synth", "ring:4", "allgather", "-o", "one.xml")


def test_an_error_leaves_no_file(refuse, folder):
    refuse(5, ["in place"], "synth", "ring:3", "alltoall", "--runtime", "legacy", "--placement", "in", "-o", "out")
    refuse(5, ["bytes are asked for"], "synth", "ring:4", "allgather", "--max-bytes", "9999T", "-o", "one.xml")
    assert not (folder / "out").exists()


def test_an_error_leaves_the_files_that_are_there(refuse, folder):
    (folder / "one.xml").write_text("mine")
    refuse(5, [], "synth", "ring:4", "allgather", "--max-bytes", "9999T", "-o", "one.xml")
    refuse(2, [], "synth", "ring:4", "broadcast", "--root", 9, "-o", "one.xml")
    assert (folder / "one.xml").read_text() == "mine"


def test_no_temporary_file_is_left(taccl, folder):
    synth(taccl, "-o", "out")
    assert sorted(tree(folder)) == sorted(f"out/{name}" for name in NAMES)


def test_a_failed_write_leaves_no_temporary_file(taccl, folder):
    (folder / "out" / "schedule.json").mkdir(parents=True)
    assert synth(taccl, "-o", "out").code == 2
    assert tree(folder) == {}


def test_files_can_be_read_by_those_whom_the_umask_allows(taccl, folder):
    before = os.umask(0o022)
    try:
        synth(taccl, "-o", "one.xml")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "one.xml").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("machine", "collective", "options"),
    [
        ("ring:4", "allgather", ("--engine", "milp")),
        ("full:4", "allreduce", ("--size", "1KiB", "--runtime", "rccl")),
        ("mesh:2x3", "scatter", ("--solver", "highs")),
        ("ring:3", "reducescatter", ("--chunks", 2, "--seed", 3)),
    ],
)
def test_the_same_input_makes_the_same_bytes(folder, machine, collective, options):
    # Two processes with different hash seeds, so that no order of a set can hide. The time limit must not end the search.
    for name, seed in (("one", "1"), ("two", "2")):
        ended = run_apart("synth", machine, collective, "--time-limit", 30, *options, "-o", name, cwd=folder,
                          env={"PYTHONHASHSEED": seed})  # fmt: skip
        assert ended.code == 0, ended.err
    found = tree(folder)
    for name in NAMES:
        assert found[f"one/{name}"] == found[f"two/{name}"], name


def test_files_do_not_say_where_or_when_they_were_made(taccl, folder):
    synth(taccl, "-o", "out")
    for name in NAMES:
        text = (folder / "out" / name).read_text(encoding="utf-8")
        assert str(folder) not in text
        assert "seconds" not in text


def test_lower_and_topo_show_write_the_same_bytes_twice(taccl, files):
    for name in ("one", "two"):
        assert taccl("lower", "schedule.json", "-o", f"{name}.xml").code == 0
        assert taccl("topo", "show", "ndv2", "--nodes", 2, "-o", f"{name}.json").code == 0
    found = tree(files)
    assert found["one.xml"] == found["two.xml"] == found["algorithm.xml"]
    assert found["one.json"] == found["two.json"]


def test_a_dash_is_stdout_or_refused(taccl, folder):
    synth(taccl, "-o", "-")
    assert tree(folder) == {}
