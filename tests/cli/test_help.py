"""Help: every command has one with an example that works, and asking for it costs nothing."""

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from taccl_py import __version__
from taccl_py.cli import cli
from tests.cli.inputs import PROFILE, SKETCH, TACCL_SKETCH, write_json
from tests.cli.running import run_apart
from tests.discover import dumps
from tests.lowering.foreign_files import copying_allgather
from tests.measure.calibration import truth, write_calibration
from tests.measure.test_foreign import P2P
from tests.verify.mscclpp.plans import two_allgather

HEAVY = ("numpy", "ortools", "highspy", "pulp", "networkx", "rich")


def commands(command=cli, path=()):
    """Every command and group, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


COMMANDS = dict(commands())
ids = [" ".join(path) or "taccl" for path in COMMANDS]
every_command = pytest.mark.parametrize("path", COMMANDS, ids=ids)
PROSE = re.compile(r"(?m)^\s*(?:Examples?:\s*)?(taccl .+)$")


def examples(path):
    """Command lines of the examples in a help text, as the user sees them."""
    text = COMMANDS[path].help.replace("\b", "")
    return [line.strip() for line in PROSE.findall(text)]


def test_no_command_is_ever_taken_away():
    found = {" ".join(path) for path in COMMANDS if path}
    assert found >= {
        "synth", "check", "lower", "simulate", "run", "topo", "topo list", "topo show", "sketch", "sketch list", "sketch show",
        "sketch validate",
    }  # fmt: skip


@every_command
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself_with_an_example(taccl, path, flag):
    ended = taccl(*path, flag)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Usage: taccl")
    assert "Example" in ended.out
    assert examples(path)
    for line in examples(path):
        assert line in ended.out, "an example is broken over lines; it cannot be copied"


def test_every_option_has_a_help_text():
    for path, command in COMMANDS.items():
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, (path, parameter.opts)


def test_the_list_of_commands_says_what_each_command_says(taccl):
    out = taccl("--help").out
    for path, command in COMMANDS.items():
        if len(path) == 1:
            assert command.get_short_help_str(200).rstrip(".") in out


def test_the_version_is_that_of_the_package(taccl):
    assert taccl("--version").out == f"taccl, version {__version__}\n"


def given(folder):
    """The files that the examples speak of."""
    write_json(folder / "topo-ndv2-1MB.json", PROFILE)
    (folder / "old.xml").write_text(copying_allgather(), encoding="utf-8")
    write_json(folder / "plan.json", two_allgather())
    write_json(folder / "sk1-ndv2-n2.json", TACCL_SKETCH)
    (folder / "samples.csv").write_text("src,dst,size_bytes,time_us\n0,1,8,2\n0,1,9999,4\n1,0,8,2\n1,0,9999,4\n")
    (folder / "osu_latency.txt").write_text("# OSU MPI Latency Test\n8 2.0\n1024 2.5\n")
    (folder / "osu_bw.txt").write_text("# OSU MPI Bandwidth Test\n1048576 10000.0\n")
    (folder / "p2pBandwidthLatencyTest.txt").write_text(P2P, encoding="utf-8")
    (folder / "nccl-topo.xml").write_text(dumps.nvlink_pairs(), encoding="utf-8")
    (folder / "topo-m.txt").write_text(dumps.switched_matrix(8, 18, 8), encoding="utf-8")
    (folder / "nccl.log").write_text(
        "#  size count type redop root time algbw busbw #wrong\n#  (B) (elements) (us) (GB/s) (GB/s)\n"
        "16000000 4000000 float none -1 100.0 160.0 140.0 0\n"
    )
    write_calibration(folder, truth(), ["ring"])
    (folder / "times.csv").write_text("file,size_bytes,time_us\nring,4096,9.5\nring,1048576,50\n", encoding="utf-8")
    pair = {"bytes": 1 << 20, "holds": {"0": 0}, "wants": {"1": 0}}
    write_json(folder / "sendrecv.json", {"format": "taccl-demand", "version": 1, "ranks": 2, "chunks": [pair]})
    relays = {"connections": {"0": [1]}, "relays": {"0": list(range(8))}}
    (folder / "suite.toml").write_text(
        'format = "taccl-suite"\nversion = 1\n[[instances]]\ntopology = "ring:4"\ncollectives = "allgather"\n'
        'engines = "templates"\n',
        encoding="utf-8",
    )
    chunk = {"bytes": 1 << 20, "holds": {"0": 0}, "wants": {"3": 0, "5": 0}}
    write_json(folder / "my.json", {"format": "taccl-demand", "version": 1, "ranks": 8, "chunks": [chunk]})
    write_json(folder / "my-sketch.json", {**SKETCH, "topology": "ndv2", "inter_node": relays})


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A folder with the answer that many examples speak of, made once: ``out/`` and ``algorithms/``."""
    folder = tmp_path_factory.mktemp("answered")
    for words in (
        ("synth", "ndv2", "allgather", "--nodes", 2, "--sketch", "sk-1", "--size", "16MB", "--time-limit", 0.5,
         "--instances", "1", "-o", "out"),
        ("lower", "out/schedule.json", "--runtime", "rccl", "-o", "algorithms/one.xml"),
    ):  # fmt: skip
        ended = run_apart(*words, cwd=folder)
        assert ended.code == 0, ended.err
    return folder


def little_work(words):
    """Options with which a command searches for a moment only."""
    if "--single-failures" in words:  # a busy machine has no clock to spare for so many
        return ("--effort", "quick", "--only-schedule")
    if words[:2] == ["sketch", "suggest"]:
        return ("--time-limit", "1.5")
    seconds = dict.fromkeys(("synth", "reshard", "replicate", "groups"), "0.5") | {"compare": "0.2"}
    return ("--time-limit", seconds[words[0]]) if words[0] in seconds else ()


@every_command
def test_every_example_works(taccl, folder, path, monkeypatch, request):
    given(folder)
    if path == ("doctor",):  # which is about this machine
        monkeypatch.setattr("taccl_py.cli.doctor.EXTRAS", {})
    made_before = {
        "compare",
        "check",
        "lower",
        "simulate",
        "run",
        "convert",
        "install",
        "show",
        "trace",
        "report",
        "replan",
    }
    if path[1:] == () and set(path) & made_before:
        shutil.copytree(request.getfixturevalue("answered"), folder, dirs_exist_ok=True)
    if path == ("lower",):
        assert taccl("synth", "ndv5", "allreduce", "--nodes", 1, "--engine", "templates", "-o", "ndv5").code == 0
        assert taccl("synth", "ring:8", "allgather", "--engine", "templates", "-o", "ring").code == 0
        assert taccl("synth", "dgx1", "allgather", "--size", "256MB", "--engine", "templates", "-o", "dgx1").code == 0
        assert taccl("replicate", "torus:2x4", "allgather", "-o", "group.json").code == 0
    if path == ("replan",):
        words = ("--size", "4KiB", "--single-failures", "nic", "--only-schedule", "--effort", "quick", "-o", "failures")
        assert taccl("synth", "ndv4", "allreduce", "--nodes", 2, *words).code == 0
    if path == ("run",):
        assert taccl("synth", "full:8", "my.json", "--effort", "quick", "-o", "mine").code == 0
    if path == ("regress", "check"):
        assert taccl("regress", "accept", "suite.toml").code == 0
    for line in examples(path):
        line, _, target = line.partition(" > ")
        words = [
            str(found.relative_to(folder)) if isinstance(found, Path) else word
            for word in shlex.split(line)[1:]
            for found in (sorted(folder.glob(word)) if "*" in word and " " not in word else [word])
        ]
        ended = taccl(*words, *little_work(words))
        assert ended.code == 0, (line, ended.err, ended.out)
        if target:
            (folder / target).write_text(ended.out, encoding="utf-8")
            assert taccl("topo", "show", target).code == 0


def test_the_examples_are_found():
    found = [line for path in COMMANDS for line in examples(path)]
    assert len(found) >= 20
    assert "taccl topo show torus:4x4 --json > torus.json" in found


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("-h",), ("nothing",), ()], ids=" ".join)
def test_help_imports_no_solver(folder, arguments):
    script = (
        "import sys\n"
        "from taccl_py.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    ended = run_apart(*arguments, cwd=folder, command=("-c", script))
    assert ended.err.splitlines()[-1] == "[]"


@every_command
def test_help_of_a_command_imports_no_solver_and_no_numpy(folder, path):
    script = f"import sys\nfrom taccl_py.cli import main\ntry:\n    main([*{path!r}, '--help'])\nexcept SystemExit:\n    pass\n"
    script += f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    assert run_apart(cwd=folder, command=("-c", script)).err.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments", [("check", "schedule.json", "algorithm.xml"), ("simulate", "schedule.json"), ("run", "algorithm.xml"),
     ("topo", "show", "ndv2")],
    ids=lambda a: a[0],
)  # fmt: skip
def test_commands_without_a_search_import_no_solver(files, arguments):
    script = (
        f"import sys\nfrom taccl_py.cli import main\ntry:\n    main({list(arguments)!r})\nexcept SystemExit as e:\n"
        "    assert not e.code\n"
        "print([name for name in ('ortools', 'highspy', 'pulp') if name in sys.modules], file=sys.stderr)\n"
    )
    assert run_apart(cwd=files, command=("-c", script)).err.splitlines()[-1] == "[]"
