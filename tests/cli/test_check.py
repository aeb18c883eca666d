"""``taccl check``: one line for each file, and what the exit code makes of them."""

import json

import pytest

from taccl_py.runtimes import RUNTIMES
from tests.cli.inputs import write_json
from tests.verify.msccl.files import RIGHT_FILES, chain_broadcast, direct_gather, ring_allgather, ring_allreduce
from tests.verify.msccl.test_broken_files import both_send_first
from tests.verify.mscclpp.features import got_allgather, packet_allgather

GOOD, BAD, UNREADABLE, MISSING = "good.xml", "bad.xml", "unreadable.json", "missing.xml"


@pytest.fixture
def some(files, made):
    """A good file, one that the verifier rejects, and one that cannot be read."""
    (files / GOOD).write_text(made["algorithm.xml"], encoding="utf-8")
    (files / BAD).write_text(made["algorithm.xml"].replace('cnt="1"', 'cnt="0"', 1), encoding="utf-8")
    (files / UNREADABLE).write_text("{", encoding="utf-8")
    return files


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ((GOOD,), 0),
        (("schedule.json", GOOD), 0),
        ((BAD,), 4),
        ((MISSING,), 2),
        ((UNREADABLE,), 2),
        ((GOOD, BAD), 4),
        ((GOOD, MISSING), 2),
        ((MISSING, GOOD), 2),
        ((BAD, MISSING, UNREADABLE, GOOD), 4),
        ((MISSING, BAD), 4),
        ((GOOD, GOOD), 0),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
@pytest.mark.usefixtures("some")
def test_every_file_gets_a_line_and_the_worst_one_the_exit_code(taccl, names, code):
    ended = taccl("check", *names)
    assert (ended.code, ended.err) == (code, "")
    lines = ended.out.splitlines()
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        word = "good" if name in (GOOD, "schedule.json") else "bad"
        assert line.startswith(f"{name}: {word}: ")


UNKNOWN = "unknown.json"


@pytest.fixture
def unknown(some):
    """A plan for what only MSCCL++'s own tools call a collective, among the others, and right ones with packets and reads of others."""
    for name, value in ((UNKNOWN, packet_allgather() | {"collective": "sendrecv"}), ("packets.json", packet_allgather()), ("get.json", got_allgather())):  # fmt: skip
        write_json(some / name, value)
    return some


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ((UNKNOWN,), 7),
        (("packets.json", "get.json"), 0),
        ((GOOD, UNKNOWN), 7),
        ((UNKNOWN, GOOD, UNKNOWN), 7),
        ((BAD, UNKNOWN), 4),
        ((UNKNOWN, BAD), 4),
        ((UNKNOWN, MISSING), 2),
        ((UNKNOWN, MISSING, BAD), 4),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
@pytest.mark.usefixtures("unknown")
def test_what_the_verifier_does_not_know_is_neither_good_nor_bad(taccl, names, code):
    ended = taccl("check", *names)
    assert (ended.code, ended.err) == (code, "")
    words = {UNKNOWN: "unsupported", BAD: "bad", MISSING: "bad"}
    for line, name in zip(ended.out.splitlines(), names, strict=True):
        assert line.startswith(f"{name}: {words.get(name, 'good')}: ")


@pytest.mark.usefixtures("unknown")
def test_what_is_not_known_is_named(taccl):
    ended = taccl("check", UNKNOWN)
    assert "what collective 'sendrecv' promises is not known here" in ended.out
    record = taccl("check", UNKNOWN, GOOD, "--json").json
    unknown, good = record["files"]
    assert (unknown["verdict"], unknown["good"], unknown["exit_code"], unknown["error"]) == (
        "unsupported",
        False,
        7,
        None,
    )
    assert unknown["violations"] == []
    assert [(one["where"], one["feature"]) for one in unknown["unsupported"]] == [("", "collective")]
    assert (good["verdict"], good["unsupported"]) == ("valid", [])
    assert record["good"] is False


@pytest.mark.usefixtures("unknown")
def test_an_unknown_file_that_is_wrong_all_the_same_is_bad(taccl, files):
    value = packet_allgather() | {"collective": "sendrecv"}
    value["gpus"][0]["threadblocks"][0]["ops"][0]["name"] = "nopkt"
    write_json(files / "both.json", value)
    ended = taccl("check", "both.json", "--json")
    assert (ended.code, ended.json["files"][0]["verdict"]) == (4, "invalid")


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        (lambda v: v["gpus"][0]["threadblocks"][0]["ops"][0].update(tbg_info={"tb_id": 0, "tbg_size": 1009}), "group-sizes"),
        (lambda v: [one.update(input_chunks=1 << 20, output_chunks=1 << 21) for one in v["gpus"]], "size"),
    ],
)  # fmt: skip
def test_what_is_too_large_to_be_followed_is_unsupported(taccl, files, change, feature):
    value = packet_allgather()
    change(value)
    write_json(files / "large.json", value)
    ended = taccl("check", "large.json", "--json")
    assert (ended.code, ended.json["files"][0]["unsupported"][0]["feature"]) == (7, feature)


@pytest.mark.usefixtures("unknown")
def test_nothing_goes_on_with_what_is_not_known(refuse):
    assert "sendrecv" in refuse(
        7, ["promises is not known here"], "install", UNKNOWN, "--runtime", "mscclpp", "-o", "cache"
    )


def test_a_plan_that_cannot_be_read_hides_no_other_file(taccl, files):
    (files / "plans").mkdir()
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plans/b.json").code == 0
    (files / "plans" / "a.json").write_bytes(b"\xff")
    ended = taccl("check", "schedule.json", "plans")
    assert (ended.code, ended.err) == (2, "")
    assert [line.split(": ")[:2] for line in ended.out.splitlines()] == [
        ["schedule.json", "good"], ["plans/a.json", "bad"], ["plans/b.json", "good"], ["plans", "good"]
    ]  # fmt: skip
    assert "plans/a.json: bad: is not UTF-8 text (byte 0)" in ended.out
    assert "plans: good: 1 plan for mscclpp" in ended.out


def test_a_folder_that_cannot_be_listed_hides_no_other_file(taccl, files, monkeypatch):
    def denied(_folder):
        raise PermissionError(13, "Permission denied")

    (files / "closed").mkdir()
    long = "x" * 300
    monkeypatch.setattr("pathlib.Path.iterdir", denied)
    ended = taccl("check", "closed", long, "schedule.json")
    assert (ended.code, ended.err) == (2, "")
    lines = ended.out.splitlines()
    assert lines[0] == "closed: bad: cannot be read: Permission denied"
    assert lines[1] == f"{long}: bad: cannot be read: File name too long"
    assert lines[2].startswith("schedule.json: good: ")


@pytest.mark.usefixtures("some")
def test_a_good_file_is_described(taccl):
    schedule, program = taccl("check", "schedule.json", GOOD).out.splitlines()
    for text in ("allgather schedule", "4 ranks", "11 us"):
        assert text in schedule
    for text in ("allgather for executor", "4 ranks", "LL128", "in place and out of place", "safe at any size"):
        assert text in program


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (ring_allreduce(4), ", used for counts that 4 divides"),  # 4 chunks of the whole buffer
        (ring_allgather(3, 2), ", used for counts that 2 divides"),  # 6 chunks, but a count is for each rank
        (ring_allgather(3), "1MiB, safe at any size"),
    ],
    ids=["allreduce", "allgather", "one chunk a rank"],
)
def test_what_counts_must_be_divisible_by_is_told(taccl, tmp_path, file, words):
    (tmp_path / "one.xml").write_text(file.text(), encoding="utf-8")
    (line,) = taccl("check", str(tmp_path / "one.xml")).out.splitlines()
    assert words in line
    assert ("divides" in line) == ("divides" in words)


@pytest.mark.parametrize(
    ("file", "words"),
    [(chain_broadcast(3), "counts of bytes that 2"), (ring_allgather(3, 2), "counts of bytes that 2"), (ring_allreduce(4), "counts that 4")],
    ids=["broadcast", "allgather", "allreduce"],
)  # fmt: skip
def test_what_the_legacy_runtime_counts_in_bytes_is_told_so(taccl, tmp_path, file, words):
    (tmp_path / "one.xml").write_text(file.text(), encoding="utf-8")
    assert f", used for {words} divides" in taccl("check", "--runtime", "legacy", str(tmp_path / "one.xml")).out


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 0), ", any size"),
        ((4096, 0), ", 4KiB and more"),
        ((4096, 65536), ", 4KiB to 64KiB, safe at any size"),
    ],
)
def test_the_sizes_that_a_file_declares_are_told(taccl, tmp_path, sizes, words):
    low, high = sizes
    text = ring_allgather(3).text().replace('minBytes="0" maxBytes="1048576"', f'minBytes="{low}" maxBytes="{high}"')
    (tmp_path / "one.xml").write_text(text, encoding="utf-8")
    assert words in taccl("check", str(tmp_path / "one.xml")).out


def test_a_custom_file_that_nobody_named_the_collective_of_says_so(taccl, tmp_path):
    text = ring_allreduce(3).text().replace('coll="allreduce" inplace="1"', 'coll="custom" inplace="0"')
    (tmp_path / "one.xml").write_text(text, encoding="utf-8")
    check = ("check", "--runtime", "legacy", str(tmp_path / "one.xml"))
    assert "not compared with any collective" in taccl(*check).out
    assert "not compared" not in taccl(*check, "--collective", "allreduce").out


def test_a_file_that_would_stop_at_larger_sizes_says_how_large(taccl, tmp_path):
    """Four chunks in one step are one message of 2 MiB at most, or two: up to 2 MiB for 4 chunks they are one."""
    text = both_send_first(1, 4, proto="Simple").text().replace('maxBytes="1048576"', 'maxBytes="65536"')
    (tmp_path / "one.xml").write_text(text, encoding="utf-8")
    assert "0 to 64KiB, safe up to " in taccl("check", str(tmp_path / "one.xml")).out


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('cnt="1"', 'cnt="abc"', "number-format"),
        ('cnt="1" ', "", "missing-attribute"),
        ('send="1"', 'send="99"', "peer-range"),
        ('send="1"', 'send="x"', "number-format"),
        ("</algo>", "</algorithm>", "tag-mismatch"),
        ('type="s"', 'type="send"', "step-type"),
        ('chan="0"', 'chan="99"', "channel-range"),
        ('inplace="1" ', "", "missing-attribute"),
        ('inplace="1" outofplace="1"', 'inplace="x"', "number-format"),
    ],
)
def test_the_cause_is_told_and_not_what_follows_from_it(taccl, tmp_path, old, new, rule):
    text = ring_allgather(3).text()
    assert old in text
    (tmp_path / "one.xml").write_text(text.replace(old, new, 1), encoding="utf-8")
    ended = taccl("check", "one.xml")
    assert ended.code == 4
    assert f"[{rule}]" in ended.out


def test_a_text_that_ends_too_early_is_told_before_all_that_is_missing_in_it(taccl, tmp_path):
    text = ring_allgather(3).text()
    for length in range(len("<algo "), len(text) - 1, 13):
        (tmp_path / "one.xml").write_text(text[:length], encoding="utf-8")
        ended = taccl("check", "one.xml")
        assert ended.code == 4
        assert ended.out.startswith("one.xml: bad: line "), ended.out


@pytest.mark.usefixtures("some")
def test_json_says_the_same_of_every_file(taccl):
    ended = taccl("check", GOOD, BAD, MISSING, "--json")
    assert (ended.code, ended.err) == (4, "")
    record = ended.json
    assert set(record) == {"files", "good"}
    assert record["good"] is False
    assert [file["file"] for file in record["files"]] == [GOOD, BAD, MISSING]
    good, bad, missing = record["files"]
    keys = {
        "file",
        "verdict",
        "good",
        "exit_code",
        "error",
        "runtime",
        "assumed",
        "facts",
        "violations",
        "unsupported",
        "notes",
    }
    assert set(good) == set(bad) == set(missing) == keys
    assert [file["good"] for file in record["files"]] == [True, False, False]
    assert [file["verdict"] for file in record["files"]] == ["valid", "invalid", "invalid"]
    assert [file["exit_code"] for file in record["files"]] == [0, 4, 2]
    assert good["violations"] == []
    assert {tuple(violation) for violation in bad["violations"]} == {("where", "rule", "what")}
    assert bad["violations"][0]["rule"] == "count-range"
    assert [file["error"] for file in record["files"]] == [None, None, "missing.xml: there is no such file"]


@pytest.mark.usefixtures("some")
def test_json_says_that_all_are_good(taccl):
    ended = taccl("check", GOOD, "schedule.json", "--json")
    assert (ended.code, ended.json["good"]) == (0, True)


@pytest.mark.parametrize("name", list(RIGHT_FILES))
def test_files_of_others_that_are_right_are_good(taccl, folder, name):
    (folder / "a.xml").write_text(RIGHT_FILES[name]().text(), encoding="utf-8")
    ended = taccl("check", "a.xml")
    assert ended.code == 0, ended.out


def test_a_runtime_has_rules_of_its_own(taccl, folder):
    # Fused receives are for the executor; RCCL cannot run them.
    (folder / "a.xml").write_text(RIGHT_FILES["ring_allreduce"]().text(), encoding="utf-8")
    assert taccl("check", "a.xml").code == 0
    ended = taccl("check", "a.xml", "--runtime", "rccl")
    assert ended.code == 4
    assert "RCCL" in ended.out


@pytest.mark.parametrize("runtime", list(RUNTIMES))
@pytest.mark.usefixtures("files")
def test_what_is_lowered_for_a_runtime_is_good_for_it(taccl, runtime):
    assert taccl("lower", "schedule.json", "--runtime", runtime, "-o", "a.xml").code == 0
    assert taccl("check", "a.xml", "--runtime", runtime).code == 0


@pytest.mark.usefixtures("some")
def test_a_collective_that_is_expected_is_compared(taccl):
    assert taccl("check", GOOD, "--collective", "AllGather").code == 0
    ended = taccl("check", GOOD, "--collective", "alltoall")
    assert ended.code == 4
    assert "alltoall was asked for" in ended.out


def test_a_root_that_is_expected_is_compared(taccl, folder):
    (folder / "a.xml").write_text(direct_gather(3, 1).text(), encoding="utf-8")
    assert taccl("check", "a.xml", "--root", 1).code == 0
    ended = taccl("check", "a.xml", "--root", 0)
    assert ended.code == 4
    assert "root" in ended.out


def test_a_custom_file_of_the_legacy_runtime_is_verified_by_what_it_is_meant_to_do(taccl):
    options = ("--runtime", "legacy", "-o", "out")
    assert taccl("synth", "full:3", "gather", *options).code == 0
    assert taccl("check", "out/algorithm.xml", "--runtime", "legacy", "--collective", "gather").code == 0
    assert taccl("check", "out/algorithm.xml", "--runtime", "legacy", "--collective", "scatter").code == 4


@pytest.mark.parametrize("name", ["schedule.json", GOOD])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--collective", "alltoall"), "is for allgather, and alltoall was asked for"),
        (("--root", "3"), "allgather has no root, and root 3 was asked for"),
    ],
    ids=["collective", "root"],
)
@pytest.mark.usefixtures("some")
def test_what_is_expected_is_compared_with_every_file(taccl, name, options, words):
    assert taccl("check", name, "--collective", "allgather").code == 0
    ended = taccl("check", name, *options)
    assert ended.code == 4
    assert words in ended.out


def test_the_root_of_a_schedule_is_compared(taccl):
    assert taccl("synth", "full:3", "gather", "--root", 1, "-o", "out.json").code == 0
    assert taccl("check", "out.json", "--root", 1).code == 0
    ended = taccl("check", "out.json", "--root", 2)
    assert ended.code == 4
    assert "is for root 1, and root 2 was asked for" in ended.out


def test_a_summary_is_nothing_to_verify(taccl):
    taccl("synth", "ring:4", "allgather", "-o", "out")
    ended = taccl("check", "out/schedule.json", "out/algorithm.xml", "out/summary.json")
    assert ended.code == 0
    assert "summary" in ended.out.splitlines()[2]


def test_a_summary_is_known_in_every_form_of_json(taccl, folder):
    taccl("synth", "ring:4", "allgather", "-o", "out")
    path = folder / "out" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":"), sort_keys=True))
    assert taccl("check", "out/summary.json").out == "out/summary.json: good: a summary, nothing to verify\n"
    assert taccl("check", "out").code == 0


def test_a_schedule_is_known_by_its_text_and_not_only_by_its_name(taccl, folder, made):
    (folder / "schedule").write_text("\n  " + made["schedule.json"], encoding="utf-8")
    (folder / "algorithm").write_text(made["algorithm.xml"], encoding="utf-8")
    lines = taccl("check", "schedule", "algorithm").out.splitlines()
    assert lines[0].startswith("schedule: good: allgather schedule")
    assert lines[1].startswith("algorithm: good: allgather for executor")


def test_check_changes_no_file(taccl, some):
    from tests.cli.running import tree

    before = tree(some)
    taccl("check", GOOD, BAD, UNREADABLE, MISSING)
    assert tree(some) == before


def test_a_plan_for_mscclpp_is_recognised_and_verified(taccl, files):
    assert taccl("lower", "schedule.json", "--to", "mscclpp-json", "-o", "plan.json").code == 0
    assert taccl("check", "plan.json", "--collective", "allgather").code == 0
    assert "collective" in taccl("check", "plan.json", "--collective", "reduce").out
    text = (files / "plan.json").read_text(encoding="utf-8")
    (files / "plan.json").write_text(json.dumps(json.loads(text) | {"max_message_size": 2**64 - 1}), encoding="utf-8")
    assert " and more, used for multiples of " in taccl("check", "plan.json").out
    (files / "plan.json").write_text(text.replace('"name": "signal"', '"name": "rlxsignal"', 1), encoding="utf-8")
    ended = taccl("check", "plan.json")
    assert ended.code == 4
    assert ended.out.startswith("plan.json: bad: gpu ")
    (files / "plan.json").write_text(text.replace('"protocol": "Simple",', "", 1), encoding="utf-8")
    ended = taccl("check", "plan.json")
    assert (ended.code, ended.out) == (2, "plan.json: bad: protocol: is missing; add it\n")


def test_of_a_folder_of_synth_schedule_and_program_are_verified(taccl, folder, made):
    assert taccl("synth", "ring:4", "allgather", "--engine", "templates", "-o", "out").code == 0
    (folder / "out" / "progress.json").write_text("{}", encoding="utf-8")  # of taccl synth --progress
    ended = taccl("check", "out")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split(": ")[:2] for line in ended.out.splitlines()] == [
        ["out/schedule.json", "good"], ["out/algorithm.xml", "good"]
    ]  # fmt: skip
    (folder / "out" / "algorithm.xml").write_text(made["algorithm.xml"].replace('cnt="1"', 'cnt="0"', 1))
    assert taccl("check", "out").code == 4


def test_other_programs_in_a_folder_of_synth_are_verified_too(taccl, folder, made):
    assert taccl("synth", "ring:4", "allgather", "--engine", "templates", "-o", "out").code == 0
    write_json(folder / "out" / "packets.json", packet_allgather())
    (folder / "out" / "other.xml").write_text(made["algorithm.xml"], encoding="utf-8")
    ended = taccl("check", "out")
    assert ended.code == 0
    assert [line.split(": ")[0] for line in ended.out.splitlines()] == [
        "out/schedule.json", "out/algorithm.xml", "out/other.xml", "out/packets.json"
    ]  # fmt: skip
    (folder / "out" / "other.xml").write_text("garbage", encoding="utf-8")
    (folder / "out" / "packets.json").write_text("garbage", encoding="utf-8")
    ended = taccl("check", "out")
    assert ended.code == 4
    assert "out/other.xml: bad: " in ended.out
    assert "out/packets.json: bad: " in ended.out


def test_where_a_runtime_would_scan_it_a_schedule_is_in_the_way(taccl, files):
    (files / "summary.json").write_text("{}", encoding="utf-8")
    ended = taccl("check", ".")
    assert ended.code == 4
    assert "schedule.json: it is no algorithm file and ends the scan" in ended.out
