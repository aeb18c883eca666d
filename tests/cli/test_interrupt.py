"""Ctrl-C, SIGTERM, time limits and closed pipes: what has been found comes out, whole."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from taccl_py import cli
from taccl_py.cli import interrupt
from taccl_py.errors import Interrupted
from taccl_py.schedule.files import read_schedule
from taccl_py.verify.schedule import verify_schedule
from tests.cli.running import environment, tree
from tests.patience import HANGS_SECONDS, assert_took, ends_within

# An engine that has a schedule at once and then searches until it is told to stop, however fast the real ones become.
ENDLESS = """
import sys, time
from dataclasses import replace
from taccl_py.cli import main
from taccl_py.synthesis import catalog
from taccl_py.synthesis.milp import synthesize_milp


def endless(demand, options, events):
    found = synthesize_milp(demand, options, events)
    print("searching", file=sys.stderr, flush=True)
    end = time.monotonic() + 300
    while not options.limits.stop.is_set() and time.monotonic() < end:  # to wait for it here could never end: its lock may be ours
        time.sleep(0.02)
    assert options.limits.stop.is_set()
    return found


catalog.load_engine = lambda name: endless
import taccl_py.pipeline.views
taccl_py.pipeline.views.load_engine = catalog.load_engine
main()
"""


# The real engines, which say when they begin: how long Python takes to get there is no matter of theirs.
ANNOUNCED = """
import sys
from taccl_py.cli import main
import taccl_py.pipeline.views as searching
load = searching.load_engine


def announced(name):
    engine = load(name)

    def begin(demand, options, events):
        print("engine begins", file=sys.stderr, flush=True)
        return engine(demand, options, events)

    return begin


searching.load_engine = announced
main()
"""


@pytest.fixture
def start(folder):
    """Start the command in a process group of its own, which does not outlive the test."""
    processes = []

    def listen():
        """What runs in the background without job control ignores interrupts, and hands that down."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def begin(*arguments, command=("-m", "taccl_py"), stderr=subprocess.PIPE):
        process = subprocess.Popen(
            [sys.executable, *command, *arguments],
            cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
            start_new_session=True, preexec_fn=listen,
        )  # fmt: skip
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_for(process, word, seconds=HANGS_SECONDS):
    """Read stderr up to a line with this word."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        line = process.stderr.readline()
        if word in line:
            return
        assert line or process.poll() is None, "it ended before it was interrupted"
    pytest.fail(f"{word!r} was never printed")


@pytest.mark.parametrize("group", [False, True], ids=["the process", "its group, as a terminal does"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_search_with_the_best_schedule_so_far(start, folder, group, number):
    process = start("synth", "ring:4", "allgather", "-o", "out", "--json", command=("-c", ENDLESS))
    wait_for(process, "searching")
    with ends_within(3):
        (os.killpg if group else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0, err
    record = json.loads(out)
    assert record["gap"] == 0
    assert sorted(os.listdir(folder / "out")) == ["algorithm.xml", "schedule.json", "summary.json"]
    text = (folder / "out/schedule.json").read_text(encoding="utf-8")
    assert not verify_schedule(read_schedule(text, "schedule.json"))


def test_an_interrupt_that_comes_twice_at_once_is_one(start):
    """`timeout` sends it to the command, and then to its process group; what is at once is set longer here, for busy computers."""
    patient = "import taccl_py.cli.interrupt as interrupt\ninterrupt._ONE_INTERRUPT_SECONDS = 300\n"
    # The search must not be over before the second one comes, however long that takes.
    heard = ENDLESS.replace(
        "    return found\n",
        '    print("heard", file=sys.stderr, flush=True)\n    sys.stdin.readline()\n    return found\n',
    )
    process = start("synth", "ring:4", "allgather", "-o", "out", "--json", command=("-c", patient + heard))
    wait_for(process, "searching")
    process.send_signal(signal.SIGTERM)
    wait_for(process, "heard")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate("go on\n", timeout=HANGS_SECONDS)
    assert process.returncode == 0, err
    assert json.loads(out)["gap"] == 0


def test_an_interrupt_that_comes_again_at_once_does_not_end_what_follows(monkeypatch):
    monkeypatch.setattr(interrupt, "_LISTENER", interrupt._Listener())
    monkeypatch.setattr(interrupt, "_ONE_INTERRUPT_SECONDS", 60)
    search, lowering = threading.Event(), threading.Event()
    with interrupt.interrupts_stop(search):
        signal.raise_signal(signal.SIGTERM)
        assert search.is_set()
    with interrupt.interrupts_drop(lowering, "dropped"):
        signal.raise_signal(signal.SIGTERM)
        assert not lowering.is_set()
        monkeypatch.setattr(interrupt, "_ONE_INTERRUPT_SECONDS", 0)
        with pytest.raises(Interrupted, match="dropped"):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_the_program_with_130_and_no_file(start, folder, number):
    stubborn = ENDLESS.replace(
        "return found", "print('told', file=sys.stderr, flush=True); [time.sleep(0.02) for _ in range(9999)]"
    )
    process = start("synth", "ring:4", "allgather", "-o", "out", "--json", command=("-c", stubborn))
    wait_for(process, "searching")
    process.send_signal(number)
    wait_for(process, "told")
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_SECONDS)
    assert process.returncode == 130
    assert out == ""
    assert err.strip() == "error: interrupted"
    assert tree(folder) == {}


# No way to lower, or none after the first one, is ever done before an interrupt; the machine has ports, so others are tried.
LOWERING = """
import sys, time
import taccl_py.pipeline.deliver as pipeline
from taccl_py.cli import main
once, calls = pipeline._lower_once, []


def endless(*given):
    calls.append(given)
    if len(calls) > {known}:
        print("lowering", file=sys.stderr, flush=True)
        while True:  # a signal that another thread takes does not end a long sleep
            time.sleep(0.02)
    return once(*given)


pipeline._lower_once = endless
pipeline._REPLAY_TOLERANCE = -1
main()
"""
NEUTRAL = ("--runtime-profile", "neutral")  # orders at ports are tried under no other
SMALL = ("synth", "ndv4", "broadcast", "--engine", "templates", "--size", "1KiB", "-o", "out", "--json", *NEUTRAL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_schedule_is_lowered_leaves_the_schedule_to_go_on_from(start, folder, taccl, number):
    process = start(*SMALL, command=("-c", LOWERING.format(known=0)))
    wait_for(process, "lowering")
    with ends_within(2):
        process.send_signal(number)
        out, err = process.communicate(timeout=HANGS_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert err == "error: interrupted while the schedule was lowered; taccl lower out/unlowered.json does that\n"
    assert list(tree(folder)) == ["out/unlowered.json"]
    assert taccl("lower", "out/unlowered.json", "-o", "later.xml").code == 0
    assert taccl("check", "later.xml", "out/unlowered.json").code == 0


def test_so_does_one_while_a_plan_is_made(start, folder, taccl):
    program = LOWERING.format(known=0).replace("pipeline.deliver", "pipeline.plan_choice")
    program = program.replace("_lower_once", "lower_plan_and_verify")
    process = start(*SMALL, "--runtime", "mscclpp", command=("-c", program))
    wait_for(process, "lowering")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert "taccl lower out/unlowered.json --to mscclpp-json does that\n" in err
    assert list(tree(folder)) == ["out/unlowered.json"]
    assert taccl("lower", "out/unlowered.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0


def test_an_interrupt_while_the_only_file_is_made_leaves_none(start, folder):
    """Runtimes take offence at files of other sorts beside their XML."""
    arguments = ("synth", "ndv4", "broadcast", "--engine", "templates", "--size", "1KiB", "-o", "one.xml")
    process = start(*arguments, command=("-c", LOWERING.format(known=0)))
    wait_for(process, "lowering")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANGS_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert err == "error: interrupted while the schedule was lowered; --only-schedule writes it as it is\n"
    assert tree(folder) == {}


def test_an_interrupt_while_other_lowerings_are_tried_keeps_the_best_so_far(start):
    process = start(*SMALL, command=("-c", LOWERING.format(known=1)))
    wait_for(process, "lowering")
    with ends_within(3):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0, err
    assert json.loads(out)["files"] == ["out/schedule.json", "out/algorithm.xml", "out/summary.json"]


# Of a race nothing is ever found, however long it is waited for.
FRUITLESS = """
import sys, time
from taccl_py.cli import main
import taccl_py.portfolio.build as build


def fruitless(probes, racer, events):
    print("racing", file=sys.stderr, flush=True)
    while not racer.over:
        time.sleep(0.02)
    return []


build.race_candidates = fruitless
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_before_the_first_schedule_of_a_range_is_no_lack_of_time(start, folder, number):
    arguments = ("synth", "ring:4", "allgather", "--sizes", "1KiB:2KiB", "-o", "out")
    process = start(*arguments, "--time-limit", "100", command=("-c", FRUITLESS))
    wait_for(process, "racing")
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=HANGS_SECONDS)
    assert (process.returncode, out, err) == (130, "", "error: interrupted before there was an answer\n")
    assert tree(folder) == {}


def test_a_range_without_time_is_told_so(start):
    arguments = ("synth", "ring:4", "allgather", "--sizes", "1KiB:2KiB", "--time-limit", "0.5")
    process = start(*arguments, command=("-c", FRUITLESS))
    _, err = process.communicate(timeout=HANGS_SECONDS)
    assert process.returncode == 3
    assert "give more time" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("made")
def test_an_interrupt_outside_of_a_search_ends_the_program_with_130(start, number):
    script = "import taccl_py.cli.check as c, time\nfrom taccl_py.cli import main\nimport sys\n"
    script += "c.read_text = lambda path: (print('reading', file=sys.stderr, flush=True), [time.sleep(0.02) for _ in range(9999)])\n"
    script += "main()\n"
    process = start("check", "x.json", command=("-c", script))
    wait_for(process, "reading")
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_SECONDS)
    assert (process.returncode, out, err.strip()) == (130, "", "error: interrupted")


@pytest.mark.parametrize("ignored", [False, True], ids=["terminal", "nohup"])
def test_a_closed_terminal_is_an_interrupt_but_not_under_nohup(monkeypatch, ignored):
    monkeypatch.setattr(interrupt, "_LISTENER", interrupt._Listener())
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    search = threading.Event()
    try:
        with interrupt.interrupts_stop(search):
            signal.raise_signal(signal.SIGHUP)
            assert search.is_set() is not ignored
    finally:
        signal.signal(signal.SIGHUP, before)


# What the command loads takes a while; nothing that it imports may see an interrupt.
LOADING = """
import sys, types
sys.argv = ["taccl", "topo", "list"]


class Slow:
    def find_spec(self, name, path, target=None):
        if name == "taccl_py.cli":
            import time
            print("loading", file=sys.stderr, flush=True)
            [time.sleep(0.02) for _ in range(9999)]


sys.meta_path.insert(0, Slow())
from taccl_py.__main__ import start
start()
"""


def test_an_interrupt_while_the_program_is_loaded_has_no_traceback(start):
    process = start(command=("-c", LOADING))
    wait_for(process, "loading")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_SECONDS)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")


@pytest.mark.slow
def test_ctrl_c_at_any_time_of_the_start_of_processes_has_no_traceback(start):
    """Processes of a race hear Ctrl-C too, and must leave it to their parent from their first moment on."""
    for tenth in (3, 7, 11):
        process = start("synth", "ring:4", "allgather", "--sizes", "1KiB:4KiB", "--time-limit", "5")
        time.sleep(tenth / 10)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=HANGS_SECONDS)
        assert "Traceback" not in err
        assert process.returncode in (0, 130), err


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["cp-sat", "highs", "cbc"])
def test_ctrl_c_ends_a_real_search_of_every_solver(start, folder, solver):
    arguments = ("synth", "ndv2", "allgather", "--nodes", "2", "--solver", solver, "--time-limit", "100")
    process = start(*arguments, "-o", "out", "--json", command=("-c", ANNOUNCED))
    wait_for(process, "engine begins")
    time.sleep(1)
    assert process.poll() is None, "it ended before it was interrupted; a longer search is needed here"
    with ends_within(3):
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0, err
    assert json.loads(out)["gap"] >= 0
    assert not verify_schedule(
        read_schedule((folder / "out/schedule.json").read_text(encoding="utf-8"), "schedule.json")
    )


@pytest.mark.slow
def test_an_interrupt_of_taccl_alone_ends_cbc_too(start):
    arguments = ("synth", "ndv2", "allgather", "--nodes", "2", "--solver", "cbc", "--time-limit", "60")
    process = start(*arguments, "-o", "out", "--json", command=("-c", ANNOUNCED))
    wait_for(process, "engine begins")
    time.sleep(1.5)
    assert process.poll() is None
    with ends_within(3):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0


@pytest.mark.slow
def test_ctrl_c_ends_the_preparation_of_a_large_problem(start):
    arguments = ("synth", "ndv2", "alltoall", "--nodes", "4", "--time-limit", "100")
    process = start(*arguments, "-o", "out", "--json", command=("-c", ANNOUNCED))
    wait_for(process, "engine begins")
    time.sleep(0.3)
    assert process.poll() is None
    with ends_within(8):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0


@pytest.mark.parametrize("solver", ["cp-sat", "highs", "cbc"])
def test_the_time_limit_is_kept(taccl, solver):
    with ends_within(6):
        record = taccl("synth", "mesh:4x4", "alltoall", "--solver", solver, "--time-limit", 1, "--json").json
        # The search may take its second; reading, bounds, lowering, verifying and replaying come on top.
    assert_took(record["solver_seconds"], 2.5)
    assert record["status"] == "feasible"


@pytest.mark.slow
def test_a_large_machine_takes_little_more_than_the_time_limit(start):
    # The limit is that of the search; 90 000 messages have to be built, verified and written too.
    with ends_within(20):
        process = start("synth", "ring:300", "allgather", "--time-limit", "1", "-o", "ring.json")
        assert process.wait(timeout=HANGS_SECONDS) == 0


@pytest.mark.slow
def test_a_range_takes_little_more_than_the_time_limit(start):
    arguments = ("synth", "ndv4", "allreduce", "--sizes", "64KiB:1GiB", "--json")
    # Bounds, race and lowering share the 2 s and 2 s more; to start processes, and to lower what is the last, comes on top. Without
    # the limit it would be a minute.
    with ends_within(30):
        process = start(*arguments, "--time-limit", "2")
        out, err = process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0, err
    assert all(row["makespan_us"] >= row["bound_us"] * (1 - 1e-9) > 0 for row in json.loads(out)["sizes"])


@pytest.mark.slow
def test_ctrl_c_ends_the_race_for_a_range_with_files_for_all_sizes(start, folder):
    arguments = ("synth", "mesh:3x3", "allgather", "--sizes", "1KiB:64MiB", "--time-limit", "300")
    process = start(*arguments, "-o", "out", "--json")
    time.sleep(6)
    assert process.poll() is None, "it ended before it was interrupted; a longer search is needed here"
    with ends_within(10):  # of the 300 that it has
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0, err
    files = json.loads(out)["files"]
    assert sorted(files) == sorted(name for name in os.listdir(folder / "out") if name.endswith(".xml"))


@pytest.mark.slow
def test_ctrl_c_ends_the_bounds_of_a_large_machine(start):
    """Bounds of 512 ranks take seconds, and so does the choice of a way; then 6656 messages are written down and verified."""
    arguments = ("synth", "hpn:64", "allgather", "--engine", "hierarchy", "--size", "1MiB", "--time-limit", "100")
    process = start(*arguments, "-o", "out.json", "--json", command=("-c", ANNOUNCED))
    wait_for(process, "engine begins")
    time.sleep(1)
    with ends_within(15):  # without an end to these, and that of the runtime bound, it would be half a minute
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=HANGS_SECONDS)
        assert process.returncode == 0, err
    assert json.loads(out)["gap"] > 0


def read_terminal(master, process, seconds=HANGS_SECONDS):
    """Everything that a process writes to its terminal."""
    end, text = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                text += os.read(master, 65536).decode()
            except OSError:
                break
        elif process.poll() is not None:
            break
    return text


def test_progress_is_shown_on_a_terminal_and_only_on_stderr(start):
    master, terminal = pty.openpty()
    process = start("synth", "mesh:4x4", "alltoall", "--time-limit", "2", "--json", stderr=terminal)
    os.close(terminal)
    shown = read_terminal(master, process)
    os.close(master)
    out, _ = process.communicate(timeout=HANGS_SECONDS)
    assert process.returncode == 0
    assert json.loads(out)["status"] == "feasible"
    for word in ("best ", "bound ", "gap ", " s  "):
        assert word in shown
    assert "lowering" in shown or "greedy" in shown


def test_no_progress_is_shown_where_there_is_no_terminal(taccl):
    ended = taccl("synth", "mesh:2x3", "alltoall", "--time-limit", 1, "--json")
    assert ended.err == ""


def test_an_interrupt_while_a_class_is_made_is_an_interrupt(monkeypatch, capsys):
    """Modules are imported when first used, and Python 3.11 wraps what `__set_name__` raises, Ctrl-C too, in a RuntimeError."""

    class Interrupting:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli, "main", lambda **_: type("Made", (), {"name": Interrupting()}))
    with pytest.raises(SystemExit) as end:
        cli.main(["synth"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"
