"""The names that scripts import: what they are, what they load, and what the docs say of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import taccl_py

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
HEAVY = ("networkx", "numpy", "ortools", "highspy", "pulp", "rich", "click", "multiprocessing")


def python(*words, folder=ROOT):
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_every_name_is_there_and_documented():
    for name in taccl_py.__all__:
        assert getattr(taccl_py, name).__doc__, name
    assert set(taccl_py.__all__) <= set(dir(taccl_py))
    assert taccl_py.__all__ == sorted(taccl_py.__all__)


def test_a_name_that_is_not_there_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'synthesise'"):
        _ = taccl_py.synthesise


def test_a_module_of_the_package_never_takes_the_place_of_a_name():
    """A module that is imported becomes an attribute of its package."""
    modules = {path.stem for path in (ROOT / "taccl_py").iterdir()}
    assert modules & set(taccl_py.__all__) == set()


def test_the_page_lists_exactly_the_names():
    listed = re.findall(r"^\| `(\w+)(?:\([^`]*\))?` \|", PAGE, flags=re.MULTILINE)
    scopes = {scope.name for scope in taccl_py.Scope}
    assert [name for name in listed if name not in scopes] == sorted(set(listed) - scopes, key=listed.index), (
        "a name stands twice"
    )
    assert set(listed) - scopes == set(taccl_py.__all__)
    assert {name for name in listed if name in scopes} == scopes


@pytest.mark.parametrize(
    "program",
    [
        "import taccl_py",
        "from taccl_py.__main__ import start; import sys; sys.argv = ['taccl', '--help']\ntry: start()\nexcept SystemExit: pass",
    ],
    ids=["import", "help"],
)
def test_packages_load_when_they_are_first_used(program):
    allowed = ("click",) if "start" in program else ()
    done = python("-c", f"{program}\nimport sys; print('loaded', *sorted(sys.modules))")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.rpartition("loaded ")[2].split()
    assert "taccl_py" in loaded
    assert [name for name in HEAVY if name in loaded and name not in allowed] == []
    if not allowed:
        assert [name for name in loaded if name.startswith("taccl_py.")] == []


def test_the_script_in_the_readme_works_without_a_guard_and_runs_once(tmp_path):
    (block,) = re.findall(r"## From Python\n\n```python\n(.+?)```", README, flags=re.DOTALL)
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) <= 15
    assert "__main__" not in block
    script = tmp_path / "script.py"
    script.write_text(f"with open('log', 'a') as log:\n    log.write('ran ')\n{block}", encoding="utf-8")
    done = python(str(script), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "ran "
    assert re.search(r"us at least, any algorithm: .+\n.+runtime profile executor-v100: ", done.stdout)
    assert re.search(r"program: [\d.]+ us, [\d.]+ GB/s, 0 errors\n$", done.stdout)
    assert taccl_py.check(tmp_path / "algorithm.xml", kind="allgather") == ()
