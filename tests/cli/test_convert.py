"""``taccl convert``: what it writes and says."""

import pytest

from tests.lowering.foreign_files import copying_allgather
from tests.verify.msccl.files import ring_allgather, ring_allreduce


@pytest.fixture
def old(folder):
    """Folder with ``old.xml``, a legacy file with copies."""
    (folder / "old.xml").write_text(copying_allgather(), encoding="utf-8")
    return folder


@pytest.mark.parametrize("runtime", ["executor", "rccl", "legacy"])
def test_what_is_written_is_good_for_the_runtime_and_runs(taccl, old, runtime):
    assert taccl("check", "old.xml", "--runtime", runtime).code == (0 if runtime == "legacy" else 4)
    ended = taccl("convert", "old.xml", "--runtime", runtime, "-o", "new.xml")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines()[0].startswith(f"wrote new.xml: allgather for {runtime}, in place")
    assert taccl("check", "new.xml", "--runtime", runtime).code == 0
    assert taccl("run", "new.xml", "--runtime", runtime).code == 0
    assert (old / "old.xml").read_text(encoding="utf-8") == copying_allgather()


@pytest.mark.usefixtures("old")
def test_json_tells_what_was_changed(taccl):
    found = taccl("convert", "old.xml", "-o", "new.xml", "--json").json
    assert found["files"] == ["new.xml"]
    assert (found["in_place"], found["out_of_place"], found["max_bytes"]) == (True, True, (1 << 27) - 1)
    assert found["notes"][1] == "3 copy elements, which runtimes pass over, are now steps"


@pytest.mark.usefixtures("old")
def test_stdout_is_the_file_and_nothing_else(taccl):
    taccl("convert", "old.xml", "-o", "new.xml")
    ended = taccl("convert", "old.xml", "-o", "-")
    assert ended.err == ""
    assert ended.out.startswith('<algo name="test" proto="Simple"')


@pytest.mark.usefixtures("old")
def test_stdout_has_no_room_for_json_beside_the_file(refuse):
    refuse(2, ["--json", "leave one of the two out"], "convert", "old.xml", "-o", "-", "--json")


def test_nothing_is_written_to_which_the_judge_objects(refuse, folder):
    file = ring_allgather()
    file.step(0, 1, 0)["dstoff"] = 2
    (folder / "bad.xml").write_text(file.text(), encoding="utf-8")
    refuse(4, ["bad.xml, converted", "[wrong-result]"], "convert", "bad.xml", "-o", "new.xml")


def test_a_placement_that_a_file_cannot_serve_is_refused(refuse, taccl, folder):
    (folder / "good.xml").write_text(ring_allreduce().text(), encoding="utf-8")
    assert taccl("convert", "good.xml", "--placement", "out", "-o", "out.xml", "--json").json["in_place"] is False
    file = ring_allgather()
    file.gpus[0].blocks.pop(1)
    (folder / "in.xml").write_text(file.text().replace('outofplace="1"', 'outofplace="0"'), encoding="utf-8")
    assert taccl("convert", "in.xml", "-o", "in-place.xml").code == 0
    refuse(4, ["in.xml, converted", "out of place"], "convert", "in.xml", "--placement", "both", "-o", "new.xml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["old.xml", "line 1"]),
        ('{"format": 1}', ["old.xml", "is JSON", "MSCCL XML is needed", "taccl lower"]),
        ("<foo></foo>", ["old.xml", "no algo element"]),
        (None, ["old.xml", "no such file"]),
    ],
)
def test_what_cannot_be_read_is_named(refuse, folder, text, words):
    if text is not None:
        (folder / "old.xml").write_text(text, encoding="utf-8")
    refuse(2, words, "convert", "old.xml", "-o", "new.xml")


def test_where_flags_of_ll_come_early_the_protocol_becomes_simple(taccl):
    taccl("synth", "full:3", "alltoall", "--engine", "templates", "--size", "4KiB", "--protocol", "LL", "-o", "ll.xml")
    assert taccl("convert", "ll.xml", "-o", "executor.xml", "--json").json["protocol"] == "LL"
    found = taccl("convert", "ll.xml", "--runtime", "rccl", "-o", "rccl.xml", "--json").json
    assert found["protocol"] == "Simple"
    assert "overwrite what is still being sent" in found["notes"][-1]
    assert taccl("check", "rccl.xml", "--runtime", "rccl").code == 0
