"""Verdicts are remembered for exactly the bytes, runtime and collective that they are of, and never where the record is broken."""

import json

import pytest

from taccl_py.collective import Kind
from taccl_py.portfolio import remembered
from taccl_py.portfolio.remembered import Verdicts
from taccl_py.runtimes import EXECUTOR, RCCL
from taccl_py.verify.msccl import verify_program
from tests.report.results import item


@pytest.fixture(scope="module")
def text():
    from taccl_py.lowering.msccl_xml import emit_xml

    return emit_xml(item("ring:4", Kind.ALLGATHER).program, EXECUTOR)


@pytest.fixture
def calls(monkeypatch):
    """Verifications that were done, as the runtime and the length of the text."""
    found = []

    def counted(text, runtime, **asked):
        found.append((runtime.name, len(text)))
        return verify_program(text, runtime, **asked)

    monkeypatch.setattr(remembered, "verify_program", counted)
    return found


def test_a_verdict_is_the_same_from_the_folder_and_computed_once(tmp_path, text, calls):
    verdict = Verdicts(tmp_path).verify_program(text, EXECUTOR, kind=Kind.ALLGATHER)
    assert verdict == verify_program(text, EXECUTOR, kind=Kind.ALLGATHER)
    assert Verdicts(tmp_path).verify_program(text, EXECUTOR, kind=Kind.ALLGATHER) == verdict
    assert len(calls) == 1


def test_one_changed_byte_is_verified_again(tmp_path, text, calls):
    Verdicts(tmp_path).verify_program(text, EXECUTOR)
    place = text.index('cnt="1"') + 5
    verdict = Verdicts(tmp_path).verify_program(text[:place] + "2" + text[place + 1 :], EXECUTOR)
    assert len(calls) == 2
    assert verdict.violations


def test_another_runtime_collective_or_verifier_is_verified_again(tmp_path, text, calls, monkeypatch):
    Verdicts(tmp_path).verify_program(text, EXECUTOR)
    Verdicts(tmp_path).verify_program(text, RCCL)
    assert Verdicts(tmp_path).verify_program(text, EXECUTOR, kind=Kind.ALLREDUCE).violations
    Verdicts(tmp_path).verify_program(text, EXECUTOR, root=0)
    monkeypatch.setattr(remembered, "_verifier", lambda: "another")
    Verdicts(tmp_path).verify_program(text, EXECUTOR)
    assert [name for name, _ in calls] == ["executor", "rccl", "executor", "executor", "executor"]


def test_errors_are_never_remembered(tmp_path, text, calls):
    for _ in range(2):
        assert Verdicts(tmp_path).verify_program(text, EXECUTOR, kind=Kind.ALLREDUCE).violations
    assert len(calls) == 2
    assert not list(tmp_path.rglob("*.json"))


def _changed(value, *keys, to):
    for key in keys[:-1]:
        value = value[key]
    value[keys[-1]] = to


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text()[:-40]),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(path.read_text().replace('"num_ranks": 4', '"num_ranks": 5')),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)  # fmt: skip
def test_a_broken_record_is_as_if_it_were_not_there(tmp_path, text, calls, spoil):
    good = Verdicts(tmp_path).verify_program(text, EXECUTOR)
    (path,) = tmp_path.rglob("*.json")
    before = path.read_bytes()
    spoil(path)
    assert path.is_dir() or path.read_bytes() != before
    assert Verdicts(tmp_path).verify_program(text, EXECUTOR) == good
    assert len(calls) == 2


@pytest.mark.parametrize("change", [{"num_ranks": "4"}, {"num_ranks": True}, {"kind": "nothing"}, {"more": 1}])
def test_facts_of_another_shape_are_not_taken(tmp_path, text, calls, change):
    good = Verdicts(tmp_path).verify_program(text, EXECUTOR)
    (path,) = tmp_path.rglob("*.json")
    record = json.loads(path.read_text())
    record["facts"].update(change)
    record["sha256"] = remembered._digest(path.stem, record["facts"], record["notes"])
    path.write_text(json.dumps(record))
    assert Verdicts(tmp_path).verify_program(text, EXECUTOR) == good
    assert len(calls) == 2


def test_a_folder_that_cannot_be_written_is_no_trouble(tmp_path, text, calls):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert not Verdicts(tmp_path / "file" / "below").verify_program(text, EXECUTOR).violations
    assert len(calls) == 2
    assert (tmp_path / "file").read_text() == ""
