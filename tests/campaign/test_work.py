"""Carrying out cases: the same results whoever does it, kept once, and found again only if nothing changed."""

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from taccl_py.campaign import case as case_module
from taccl_py.campaign.case import Case
from taccl_py.campaign.store import Kept, Store, digest
from taccl_py.campaign.work import Force, carry_out, compute
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.runtimes import RUNTIMES
from taccl_py.verify.msccl import verify_program

CASES = tuple(
    Case(f"{kind} {size}", "ring:4", kind, "templates", size_bytes=size)
    for kind in (Kind.ALLGATHER, Kind.ALLREDUCE)
    for size in (4096, 1_000_000)
)


def run(cases, store=None, workers=1):
    return carry_out(cases, store, Force(workers), threading.Event(), lambda _: None)


def test_results_are_verified_programs_in_the_order_of_the_cases():
    outcomes = run(CASES)
    assert [outcome.case for outcome in outcomes] == list(CASES)
    for outcome in outcomes:
        assert outcome.computed
        assert not verify_program(outcome.kept.program, RUNTIMES["executor"], kind=outcome.case.kind).violations
        assert outcome.kept.record["size_bytes"] == outcome.case.size_bytes
        assert outcome.kept.record["xml_sha256"] == digest(outcome.kept.program)


def test_processes_give_the_same_results():
    one, two = run(CASES), run(CASES, workers=2)
    assert [o.kept for o in one] == [o.kept for o in two]


def test_what_is_kept_is_not_computed_again(tmp_path):
    store = Store(tmp_path / "kept")
    first = run(CASES[:2], store)
    second = run(CASES, store)
    assert [o.computed for o in second] == [False, False, True, True]
    assert [o.kept for o in second[:2]] == [o.kept for o in first]


@pytest.mark.parametrize("name", ["schedule.json", "algorithm.xml", "result.json"])
@pytest.mark.parametrize("harm", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-9])])
def test_a_damaged_result_is_computed_again(tmp_path, name, harm):
    store = Store(tmp_path / "kept")
    (before,) = run(CASES[:1], store)
    harm(store.place(before.key) / name)
    (after,) = run(CASES[:1], store)
    assert after.computed
    assert after.kept == before.kept == store.read(before.key)


def test_the_key_depends_on_everything_that_the_result_does(monkeypatch):
    case = CASES[0]
    keys = {
        case.key(), replace(case, size_bytes=8192).key(), replace(case, engine="trees").key(), replace(case, seed=1).key(),
        replace(case, topology="ring:4,alpha_us=9").key(), replace(case, kind=Kind.ALLTOALL).key(),
        replace(case, runtime="rccl").key(), replace(case, chunks_per_rank=2).key(),
    }  # fmt: skip
    monkeypatch.setattr(case_module, "code_digest", lambda: "other code")
    keys.add(case.key())
    assert len(keys) == 9
    assert replace(case, name="other").key() in keys


def test_a_case_that_cannot_be_says_why_and_is_not_kept(tmp_path):
    store = Store(tmp_path)
    cases = [
        replace(CASES[0], topology="ndv9"),
        replace(CASES[0], topology="ndv2", nodes=2, sketch="sk-1", kind=Kind.ALLREDUCE),
    ]
    outcomes = run(cases, store)
    assert "'ndv9'" in outcomes[0].error
    assert [o.kept for o in outcomes] == [None, None]
    assert "engine templates knows nothing of sketches" in outcomes[1].error
    assert not list(tmp_path.glob("results/*"))


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    store, stop = Store(tmp_path), threading.Event()
    outcomes = carry_out(CASES, store, Force(), stop, lambda _: stop.set())
    assert [o.error for o in outcomes] == ["", "interrupted", "interrupted", "interrupted"]
    assert [o.computed for o in run(CASES, store)] == [False, True, True, True]


def test_a_process_that_dies_takes_no_finished_result_along(tmp_path):
    store = Store(tmp_path)
    cases = [replace(CASES[i % 4], name=f"{i}", seed=i) for i in range(16)]

    def kill(outcome):
        if outcome.computed:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)

    outcomes = carry_out(cases, store, Force(2), threading.Event(), kill)
    assert [o.case for o in outcomes] == cases
    assert outcomes[0].kept or outcomes[1].kept
    died = [o for o in outcomes if o.kept is None]
    assert died
    assert all("a process died" in o.error for o in died)
    again = run(cases, store)
    assert all(o.kept for o in again)
    assert sum(not o.computed for o in again) >= len(outcomes) - len(died)


def test_a_folder_has_one_writer_and_what_a_killed_one_left_is_cleared_away(tmp_path):
    store = Store(tmp_path)
    place = store.place("abc")
    store.write("abc", Kept({"format": "taccl-result"}, "{}", "<algo/>"))
    (place / ".schedule.json.x7").write_text("half")
    with store.locked():
        assert not (place / ".schedule.json.x7").exists()
        assert (place / "schedule.json").exists()
        with pytest.raises(InputError, match="another process"), Store(tmp_path).locked():
            pass
    with store.locked():
        pass


def test_what_does_not_end_at_an_interrupt_is_not_waited_for(monkeypatch):
    """It would have no result anyway."""
    monkeypatch.setattr("taccl_py.campaign.work._compute_here", _sleep)
    monkeypatch.setattr("taccl_py.campaign.work._WRITING_SECONDS", 0.1)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    begun = time.monotonic()
    outcomes = carry_out(CASES, None, Force(2), stop, lambda _: None)
    assert [outcome.error for outcome in outcomes] == ["interrupted"] * len(CASES)
    assert time.monotonic() - begun < 100


def _sleep(_case, _store):
    time.sleep(200)


def test_what_was_found_until_an_interrupt_is_not_lowered(monkeypatch):
    stop = threading.Event()
    monkeypatch.setattr("taccl_py.campaign.work.search_for", lambda *_, **__: stop.set())
    monkeypatch.setattr("taccl_py.campaign.work.deliver", None)
    assert compute(CASES[0], None, stop).error == "interrupted"
