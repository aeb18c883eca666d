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
    checked = taccl("check", "old.xml", "--runtime", runtime)
    assert checked.code == (0 if runtime == "legacy" else 4)
    assert "is assumed" not in checked.out
    assert "bad: " in (guessed := taccl("check", "old.xml").out)
    assert "; executor is assumed, --runtime names another one" in guessed
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


def test_nothing_is_written_that_the_verifier_rejects(refuse, folder):
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


# --- Programs that stop ---------------------------------------------------------------------------------------------


def crowded(chunks=6, fused=False):
    """Legacy file in place of two ranks, each of which sends its half of an AllReduce before it receives the other's."""
    half = chunks // 2
    ranks = []
    for rank in range(2):
        other, mine = [half * (1 - rank) + i for i in range(half)], [half * rank + i for i in range(half)]
        sums = [("rrcs" if fused else "rrc", i) for i in mine]
        steps = [("s", i) for i in other] + sums + [("s", i) for i in mine] * (not fused) + [("r", i) for i in other]
        lines = "".join(
            f'<step s="{s}" type="{kind}" srcbuf="i" srcoff="{i}" dstbuf="i" dstoff="{i}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
            for s, (kind, i) in enumerate(steps)
        )
        peer = 1 - rank
        ranks.append(
            f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="0" s_chunks="0"><tb id="0" send="{peer}" recv="{peer}" chan="0">{lines}</tb></gpu>'
        )
    head = f'<algo name="crowded" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="2" coll="allreduce" inplace="1">'
    return f"{head}{''.join(ranks)}</algo>"


@pytest.mark.parametrize("runtime", ["executor", "rccl", "legacy"])
@pytest.mark.parametrize("placement", ["declared", "in", "out"])
@pytest.mark.parametrize("chunks", [6, 8, 10])
def test_a_program_that_stops_is_told_so_and_not_that_results_are_wrong(refuse, folder, runtime, placement, chunks):
    """With six chunks it is a file from the field; which placements were tried makes no difference."""
    (folder / "dead.xml").write_text(crowded(chunks=chunks), encoding="utf-8")
    words = ["Simple keeps at most 2 unread operations", f"needs {chunks // 2}", "[fifo-deadlock]"]
    refuse(4, words, "convert", "dead.xml", "--runtime", runtime, "--placement", placement, "-o", "o.xml")


@pytest.mark.parametrize("chunks", [4, 2])
def test_fused_steps_for_which_there_is_no_room_are_taken_apart(taccl, folder, chunks):
    """With four chunks both ranks have filled their connections when they want to pass on what they have not received."""
    (folder / "fused.xml").write_text(crowded(chunks=chunks, fused=True), encoding="utf-8")
    needed = chunks == 4
    ended = taccl("convert", "fused.xml", "--placement", "in", "-o", "new.xml")
    assert ended.code == 0
    assert ("fused steps are taken apart" in ended.err) is needed
    assert ('type="rrcs"' in (folder / "new.xml").read_text(encoding="utf-8")) is not needed
    assert taccl("check", "new.xml").code == 0
    assert taccl("run", "new.xml").code == 0


@pytest.mark.parametrize("runtime", ["executor", "rccl", "legacy"])
def test_a_hexadecimal_number_is_read_right_and_remarked(taccl, folder, runtime):
    text = ring_allreduce().text().replace('maxBytes="1048576"', 'maxBytes="0x100000"')
    (folder / "hex.xml").write_text(text, encoding="utf-8")
    plain = ring_allreduce().text()
    (folder / "plain.xml").write_text(plain, encoding="utf-8")
    taccl("convert", "plain.xml", "--runtime", runtime, "-o", "one.xml")
    assert taccl("convert", "hex.xml", "--runtime", runtime, "-o", "two.xml").code == 0
    assert (folder / "one.xml").read_text("utf-8") == (folder / "two.xml").read_text("utf-8")
    if runtime == "executor":
        ended = taccl("check", "hex.xml", "--verbose")
        assert ended.code == 0
        assert "hexadecimal" in ended.out + ended.err
        assert taccl("run", "hex.xml").code == 0
