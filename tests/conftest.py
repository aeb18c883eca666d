"""Shared by all tests: expected texts under ``tests/golden`` (accept new ones with ``--update-golden``)."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# How long an example takes says something of the computer and of what else it does, and nothing about what is tested.
settings.register_profile("taccl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("taccl")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write the texts that tests find to tests/golden")


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
