"""The command line as a test sees it: arguments in, exit code and two texts out."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from taccl_py.cli import main
from tests.patience import HANGS_SECONDS


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """What stdout holds; fails if that is anything but one JSON value."""
        assert self.out, self
        return json.loads(self.out, parse_constant=_refuse)

    @property
    def sentence(self):
        """What stderr holds; fails if that is anything but one line of an error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"stderr has {len(lines)} lines:\n{self.err}"
        assert lines[0].startswith("error: "), lines[0]
        return lines[0].removeprefix("error: ")


def _refuse(name):
    raise ValueError(f"{name} is not JSON")


def run_here(capsys, *arguments):
    """Run the command in this process; an error that the command line does not catch fails the test."""
    capsys.readouterr()
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = ended.code
    texts = capsys.readouterr()
    assert isinstance(code, int), f"ended with {code!r}"
    return Ended(code, texts.out, texts.err)


def run_apart(*arguments, cwd, seconds=HANGS_SECONDS, env=None, command=("-m", "taccl_py"), memory_mb=None):
    """Run the command in a process of its own, which may use so much memory at most."""
    limit = (lambda: _limit_memory(memory_mb)) if memory_mb else None
    done = subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        cwd=cwd,
        env=environment(env),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _limit_memory(memory_mb):
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))


def environment(changes=None):
    """Environment of a process of its own: this one's, without colours and with this checkout importable."""
    here = os.pathsep.join(path for path in sys.path if path)
    changes = dict(changes or {})
    front = changes.pop("PYTHONPATH", "")
    path = os.pathsep.join(part for part in (front, here) if part)
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "PYTHONPATH": path, **changes}


def tree(folder):
    """Every file below a folder with its bytes, to see what a command changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
