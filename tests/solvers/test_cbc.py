"""CBC as a process: it ends when it is told to, and leaves nothing behind."""

import signal
import sys
import threading
import time

import pytest

from taccl_py.solvers import cbc
from taccl_py.solvers.limits import Limits
from tests.patience import ends_within


def program(text):
    """Arguments of a program that stands in for CBC."""
    return [sys.executable, "-c", f"import signal, sys, time\n{text}"]


def test_a_program_that_ends_by_itself_gives_its_code():
    assert cbc._run(program("sys.exit(3)"), Limits(seconds=20.0)) == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("signal.signal(signal.SIGINT, lambda *_: sys.exit(7))", 7),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", None),
        ("signal.signal(signal.SIGINT, signal.SIG_DFL)", None),
    ],
    ids=["one that listens", "one that does not", "one that does not yet"],
)
@pytest.mark.parametrize("by", ["interrupt", "time"])
def test_a_program_that_runs_on_is_interrupted_and_then_killed(monkeypatch, tmp_path, text, code, by):
    monkeypatch.setattr(cbc, "_GRACE_S", 0.3)
    ready = tmp_path / "ready"
    limits = Limits(seconds=300.0 if by == "interrupt" else 2.0)

    def interrupt():
        while not ready.exists():
            time.sleep(0.01)
        limits.stop.set()

    if by == "interrupt":
        threading.Thread(target=interrupt, daemon=True).start()
    with ends_within(10):
        arguments = program(f"{text}\nopen({str(ready)!r}, 'w')\ntime.sleep(300)")
        assert cbc._run(arguments, limits) == code


def test_an_exception_does_not_leave_the_program_behind(monkeypatch):
    started = []

    def wait(process, _seconds):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(cbc, "_wait", wait)
    with pytest.raises(KeyboardInterrupt):
        cbc._run(program("time.sleep(300)"), Limits(seconds=300.0))
    assert started[0].returncode == -signal.SIGKILL
