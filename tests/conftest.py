"""Shared by all tests: expected texts under ``tests/golden`` (accept new ones with ``--update-golden``), and which tests are slow.

Tests that ``tests/long_tail.txt`` names have the marker ``slow``, beside those that have it in the code: they took longer than
`LONG_SECONDS` on two idle cores. ``pytest -m '' --update-long-tail`` measures the tests that it runs, and writes them there.
"""

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
LONG_TAIL = TESTS / "long_tail.txt"
LONG_SECONDS = 0.5
UNKNOWN_NAMES = pytest.StashKey[list[str]]()

# Nothing is remembered from one test to the next, nor written into the folders of who runs them.
os.environ["TACCL_CACHE_DIR"] = ""

# Where no bytecode may be kept, each of the hundreds of processes that tests start compiles the package again, which takes
# longer than most of what they are started for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says something of the computer and of what else it does, and nothing about what is tested. Examples are
# the same in each run, so that a commit passes or fails; `--hypothesis-profile explore` draws others each time.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("taccl", settings.get_profile("explore"), derandomize=True)
settings.load_profile("taccl")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the texts that tests find to tests/golden")
    parser.addoption("--update-long-tail", action="store_true", help="measure tests, and name the slow ones in a file")


def long_tail():
    """Names of tests that took long."""
    return set(LONG_TAIL.read_text(encoding="utf-8").splitlines())


def pytest_configure(config):
    config.stash[UNKNOWN_NAMES] = []
    if config.getoption("--update-long-tail") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark slow tests before those that are not asked for are left out."""
    names = long_tail()
    for item in items:
        if item.nodeid in names:
            item.add_marker(pytest.mark.slow)
    # Only where all tests have been collected is it known that a name is that of none.
    if config.args == config.getini("testpaths"):
        config.stash[UNKNOWN_NAMES] += sorted(names - {item.nodeid for item in items})


class Stopwatch:
    """Measures the tests of this run, whichever process runs them."""

    def __init__(self):
        self._seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        names = long_tail() - set(self._seconds)
        names |= {name for name, seconds in self._seconds.items() if seconds > LONG_SECONDS}
        LONG_TAIL.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One process more than there are processors for slow tests: of their time they wait a fifth, for limits and other processes."""
    return os.cpu_count() + 1 if config.option.markexpr == "slow" else None


@pytest.fixture
def golden(request):
    """Compare a text with the accepted one of this test."""

    def compare(text, suffix=".txt"):
        module = request.path.relative_to(TESTS).with_suffix("")
        name = request.node.name.replace("[", "-").replace("]", "")
        path = TESTS / "golden" / module / f"{name}{suffix}"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if not path.exists():
            pytest.fail(f"there is no accepted text {path}; look at it with --update-golden and commit it")
        assert text == path.read_text(encoding="utf-8")

    return compare
