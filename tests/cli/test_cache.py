"""The user's cache of verdicts: what ``taccl install`` and ``taccl synth`` keep there."""

import shutil

import pytest

from taccl_py.portfolio import remembered
from taccl_py.verify.msccl import verify_program


@pytest.fixture
def calls(monkeypatch, folder):
    """Verifications that were done, with a cache of the test's own."""
    found = []

    def counted(text, runtime, **asked):
        found.append(runtime.name)
        return verify_program(text, runtime, **asked)

    monkeypatch.setattr(remembered, "verify_program", counted)
    monkeypatch.setenv("TACCL_CACHE_DIR", str(folder / "cache"))
    return found


@pytest.mark.usefixtures("files")
def test_install_verifies_only_what_it_does_not_know(taccl, folder, calls):
    """A file that was installed once is not verified again, in whatever directory, until a byte of it changes."""
    assert taccl("install", "algorithm.xml", "-o", "one").code == 0
    assert len(calls) == 1  # the file and what is installed are one text
    assert taccl("install", "algorithm.xml", "-o", "two").code == 0
    assert len(calls) == 1
    text = (folder / "algorithm.xml").read_text()
    (folder / "b.xml").write_text(text.replace('cnt="1"', 'cnt="2"', 1))
    assert taccl("install", "b.xml", "-o", "three").code == 4
    assert len(calls) > 1
    shutil.rmtree(folder / "cache")
    (folder / "cache").write_text("no folder")
    assert taccl("install", "algorithm.xml", "-o", "four").err.startswith("wrote four: ")


@pytest.mark.usefixtures("files", "calls")
def test_plans_are_remembered_too(taccl, monkeypatch):
    plans = []
    verify = remembered.verify_plan
    monkeypatch.setattr(remembered, "verify_plan", lambda *asked: plans.append(asked) or verify(*asked))
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    for name in ("one", "two"):
        assert taccl("install", "plan.json", "-o", name, "--runtime", "mscclpp").code == 0
    assert len(plans) == 1


def test_what_synth_wrote_is_installed_without_another_verification(taccl, calls):
    assert taccl("synth", "ring:4", "allgather", "--engine", "templates", "--size", "1MiB", "-o", "out").code == 0
    assert taccl("install", "out/algorithm.xml", "-o", "executor").code == 0
    assert calls == []


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"TACCL_CACHE_DIR": "/a/b"}, "/a/b"),
        ({"TACCL_CACHE_DIR": ""}, None),
        ({"TACCL_CACHE_DIR": "relative"}, None),
        ({"XDG_CACHE_HOME": "/x"}, "/x/taccl"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/taccl"),
    ],
)
def test_the_folder_is_that_of_the_variables(monkeypatch, variables, wanted):
    from taccl_py.cli import cache

    monkeypatch.setattr(cache.sys, "platform", "linux")
    for name in ("TACCL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = cache.cache_folder()
    assert (None if found is None else str(found)) == wanted
