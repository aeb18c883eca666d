"""Bad inputs of every kind: one sentence and an exit code each, no traceback, no hang, no heap of memory."""

import ast
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import taccl_py
from tests.cli.fuzzing import call, write_inputs
from tests.cli.running import environment, tree

PACKAGE = Path(taccl_py.__file__).parent
NUMBER, BATCH, MOST_MB = 550, 550, 500
# Of what each writer writes no more fits on the disk.
ROOM_BYTES = 16

LOWER = ("lower", "schedule.json")
WRITERS = {
    "synth to a folder": ("synth", "ring:4", "allgather", "--engine", "templates", "-o", "old"),
    "synth to a schedule": ("synth", "ring:4", "allgather", "--engine", "templates", "-o", "old.json"),
    "synth to a program": ("synth", "ring:4", "allgather", "--engine", "templates", "-o", "old.xml"),
    "synth for failures": (
        "synth",
        "ring:4",
        "allgather",
        "--engine",
        "templates",
        "--single-failures",
        "gpu-link",
        "-o",
        "old",
    ),
    "its progress": ("synth", "ring:4", "allgather", "--engine", "templates", "--progress", "old.json"),
    "replan": ("replan", "schedule.json", "--slow-link", "0-1:0.5", "--within", "0.3s", "-o", "old"),
    "pareto": ("pareto", "ring:4", "allgather", "--time-limit", "1", "-o", "old"),
    "replicate": ("replicate", "ring:4", "allgather", "-o", "old.json"),
    "groups": ("groups", "ring:4", "allgather", "--group", "0-1", "--group", "2-3", "-o", "old"),
    "lower": (*LOWER, "-o", "old.xml"),
    "lower to a plan": (*LOWER, "--to", "mscclpp-json", "-o", "old.json"),
    "lower to traces": (*LOWER, "--to", "chakra", "-o", "old"),
    "a tuner file": (
        "compare",
        "ring:4",
        "allgather",
        "--sizes",
        "1KiB:1KiB",
        "--with",
        "algorithm.xml",
        "--tuner",
        "openmpi",
        "-o",
        "old.json",
    ),
    "convert": ("convert", "foreign.xml", "-o", "old.xml"),
    "install": ("install", "algorithm.xml", "-o", "old", "--replace"),
    "install of plans": ("install", "plan.json", "-o", "old", "--runtime", "mscclpp"),
    "report as a page": ("report", "schedule.json", "--sizes", "1KiB:2KiB", "-o", "old.html"),
    "report as Markdown": ("report", "schedule.json", "--sizes", "1KiB:2KiB", "-o", "old.md"),
    "report as a picture": ("report", "schedule.json", "--sizes", "1KiB:2KiB", "-o", "old.svg"),
    "report as pixels": ("report", "schedule.json", "--sizes", "1KiB:2KiB", "-o", "old.png"),
    "trace": ("trace", "schedule.json", "-o", "old.json"),
    "topo show": ("topo", "show", "ring:4", "-o", "old.json"),
    "topo fit": ("topo", "fit", "samples.csv", "-o", "old.json"),
    "topo import": ("topo", "import", "nccl.xml", "-o", "old.json"),
    "topo align": ("topo", "align", "ndv2", "--nodes", "2", "-o", "old.json"),
    "profile": ("profile", "--emulate", "ring:4", "-o", "old.json"),
    "its record": ("profile", "--emulate", "ring:4", "--record", "new.jsonl"),
    "sweep": ("sweep", "suite.toml", "-o", "old", "--workers", "1"),
    "regress accept": ("regress", "accept", "suite.toml", "--workers", "1", "--baseline", "new.json"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A folder with a correct file of every class."""
    folder = tmp_path_factory.mktemp("good")
    before = os.getcwd()
    os.chdir(folder)
    try:
        write_inputs(folder)
    finally:
        os.chdir(before)
    return {name: content for name, content in tree(folder).items() if "/" not in name}


@pytest.fixture
def place(good, folder):
    """An empty folder with them and with old outputs that must not be lost."""
    for name, content in good.items():
        (folder / name).write_bytes(content)
    for ending in ("json", "xml", "html", "md", "svg", "png"):
        (folder / f"old.{ending}").write_text("mine")
    (folder / "old").mkdir()
    (folder / "old" / "00.txt").mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUMBER, BATCH))
def test_bad_inputs_end_with_a_sentence(tmp_path, first):
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.fuzzing", str(tmp_path), str(first), str(first + BATCH)],
        env=environment(), capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["most_mb"] < MOST_MB
    # Most must be refused, or they are no bad inputs; some must be read, or damage is too coarse to reach what is behind.
    assert found["codes"]["2"] > BATCH / 3
    assert found["codes"]["0"] > BATCH / 30


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_sentence_and_loses_nothing(place, name, monkeypatch):
    """Every command that writes; the limit on the size of files stands for the disk."""
    # Python would cut off the byte code of modules that are imported for the first time here, and not notice.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = tree(place)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, limits[1]))
    try:
        code, _, err = call(WRITERS[name])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2, err
    assert "cannot be written: File too large" in err
    assert err.splitlines()[-1].startswith("error: ")
    after = tree(place)
    assert {path: content for path, content in after.items() if content} == before


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
def test_what_nobody_may_read_or_write_is_one_sentence(place):
    """As another user than the superuser, in whose way no permission stands."""
    place.chmod(0o755)
    for above in place.parents[:-2]:
        above.chmod(above.stat().st_mode | 0o055)
    (place / "closed").mkdir(0o700)
    (place / "closed" / "a.xml").write_text("x")
    (place / "secret.json").write_text("{}")
    (place / "secret.json").chmod(0o600)
    commands = (
        ("check", "closed"), ("check", "closed/a.xml"), ("show", "closed/a.xml"), ("show", "secret.json"), ("topo", "show", "closed/m.json"),
        ("topo", "show", "ring:4", "-o", "closed/o.json"), ("topo", "show", "ring:4", "-o", "o.json"), ("install", "algorithm.xml", "-o", "closed"),
        ("install", "closed", "-o", "o"), ("report", "closed", "-o", "r.md"), ("sweep", "suite.toml", "-o", "closed/x"),
        ("synth", "ring:4", "allgather", "--sketch", "closed/s.json"), ("regress", "check", "suite.toml", "--baseline", "closed/b.json"),
        ("lower", "schedule.json", "-o", "closed/o.xml"), ("topo", "fit", "secret.json", "-o", "n.json"),
    )  # fmt: skip
    # What the commands import may be out of somebody else's reach, so all are called before.
    script = f"""
import json, os
from tests.cli.fuzzing import call
commands = {commands!r}
for one in commands:
    call(one)
os.setuid(65534)
print(json.dumps([call(one) for one in commands]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=place, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]
    for arguments, (code, out, err) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 2, (arguments, out, err)
        assert "ermission denied" in out + err or "is not readable" in err, (arguments, out, err)


def test_only_one_module_writes_files():
    """So every writer writes beside and renames."""
    elsewhere = {
        "jsonio.py": "it is the one",
        "cli/streams.py": "the null device",
        "campaign/store.py": "a lock",
        "measure/shared_emulation.py": "memory that processes share, in a temporary folder",
        "solvers/cbc.py": "its input, in a temporary folder",
    }
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _writes(node)
    }
    assert found - elsewhere.keys() == set()


def _writes(call):
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    modes = [
        one.value for one in (*call.args, *(word.value for word in call.keywords)) if isinstance(one, ast.Constant)
    ]
    opens = name in ("open", "fdopen") and any(
        set(str(mode)) <= set("rwabx+t") and set(str(mode)) & set("wax") for mode in modes
    )
    return opens or name in ("write_text", "write_bytes", "NamedTemporaryFile")
