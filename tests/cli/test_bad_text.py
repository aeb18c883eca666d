"""Files that are no text, no JSON, or no file: every command that reads one says so in one sentence."""

import os

import pytest

from taccl_py.errors import InputError
from taccl_py.jsonio import read_text
from tests.cli.inputs import NODE_FORM, write_json

NOT_JSON = {
    "empty": (b"", "not valid JSON"),
    "blank": (b" \n", "not valid JSON"),
    "cut off": (b'{"format": "taccl-', "not valid JSON"),
    "followed by more": (b"{} {}", "not valid JSON"),
    "with single quotes": (b"{'format': 1}", "not valid JSON"),
    "binary": (bytes(range(256)), "not UTF-8"),
    "in UTF-16": ('{"format": 1}'.encode("utf-16"), "not UTF-8"),
    "with NaN": (b'{"version": NaN}', "finite number"),
    "with infinity": (b'{"version": -Infinity}', "finite number"),
    "with a key twice": (b'{"version": 1, "version": 1}', "twice"),
    "nested without end": (b"[" * 100_000, "nested too deeply"),
    "with a number of 5000 digits": (b'{"version": ' + b"9" * 5000 + b"}", "number that cannot be read"),
    "a list": (b"[]", "an object"),
    "a number": (b"7", "an object"),
    "null": (b"null", "an object"),
}

READERS = {
    "topology of synth": ("synth", "bad.json", "allgather", "-o", "out"),
    "topology of topo show": ("topo", "show", "bad.json", "-o", "out.json"),
    "sketch of synth": ("synth", "good.json", "allgather", "--nodes", 2, "--sketch", "bad.json", "-o", "out"),
    "sketch of sketch show": ("sketch", "show", "bad.json"),
    "sketch of sketch validate": ("sketch", "validate", "bad.json", "--topology", "good.json"),
    "schedule of lower": ("lower", "bad.json", "-o", "out.xml"),
    "schedule of simulate": ("simulate", "bad.json"),
    "topology of simulate": ("simulate", "good.xml", "--topology", "bad.json"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", NOT_JSON)
def test_a_file_that_is_not_the_json_that_is_needed_is_refused(refuse, folder, made, reader, text):
    write_json(folder / "good.json", NODE_FORM)
    (folder / "good.xml").write_text(made["algorithm.xml"], encoding="utf-8")
    content, word = NOT_JSON[text]
    (folder / "bad.json").write_bytes(content)
    refuse(2, ["bad.json", word], *READERS[reader])


@pytest.mark.parametrize("reader", READERS)
def test_a_directory_instead_of_a_file_is_refused(refuse, folder, made, reader):
    write_json(folder / "good.json", NODE_FORM)
    (folder / "good.xml").write_text(made["algorithm.xml"], encoding="utf-8")
    (folder / "bad.json").mkdir()
    refuse(2, ["bad.json", "directory", "a file is needed"], *READERS[reader])


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_file_is_refused(refuse, folder, made, reader):
    write_json(folder / "good.json", NODE_FORM)
    (folder / "good.xml").write_text(made["algorithm.xml"], encoding="utf-8")
    refuse(2, ["bad.json", "no such file"], *READERS[reader])


def test_a_byte_order_mark_is_no_part_of_json_and_an_error_of_xml(taccl, folder, made):
    mark = b"\xef\xbb\xbf"
    (folder / "node.json").write_bytes(
        mark + b"\n" + (folder / write_json(folder / "good.json", NODE_FORM)).read_bytes()
    )
    assert taccl("topo", "show", "node.json").out == taccl("topo", "show", "good.json").out
    for name in ("schedule.json", "algorithm.xml"):
        (folder / name).write_bytes(mark + made[name].encode())
    good, bad = taccl("check", "schedule.json", "algorithm.xml").out.splitlines()
    assert good.startswith("schedule.json: good: ")
    assert "[byte-order-mark]" in bad


@pytest.mark.parametrize("name", ["directory", "missing", "binary"])
def test_check_says_in_one_line_that_a_file_cannot_be_read(taccl, folder, name):
    (folder / "directory").mkdir()
    (folder / "binary").write_bytes(bytes(range(256)))
    ended = taccl("check", name)
    assert ended.code == 2
    assert ended.err == ""
    assert ended.out.startswith(f"{name}: bad: ")
    assert ended.out.count("\n") == 1


@pytest.mark.parametrize("text", NOT_JSON)
def test_check_says_in_one_line_what_is_wrong_with_a_json_file(taccl, folder, text):
    content, word = NOT_JSON[text]
    (folder / "bad.json").write_bytes(content)
    ended = taccl("check", "bad.json")
    assert ended.code == 2
    assert ended.out.startswith("bad.json: bad: ")
    assert word in ended.out
    assert ended.out.count("\n") == 1


# --- Files without end, and names that none can have ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/dev/zero", ["is no text: byte 0 is NUL"]),
        ("/dev/urandom", ["UTF-8"]),
        ("x" * 256 + ".json", ["name too long", "no such"]),
        ("pipe", ["is a pipe to which nobody writes", "start its writer"]),
        ("socket/file", ["there is no such file"]),
    ],
)
def test_what_has_no_end_or_no_name_is_one_sentence(refuse, folder, monkeypatch, name, words):
    monkeypatch.setattr("taccl_py.jsonio._PIPE_SECONDS", 0.1)
    os.mkfifo(folder / "pipe")
    sentence = refuse(2, [], "show", name)
    assert any(word.lower() in sentence.lower() for word in words), sentence


def test_a_stream_that_never_ends_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr("taccl_py.jsonio._MOST_BYTES", 1000)
    (tmp_path / "long.txt").write_text("x" * 1001)
    with pytest.raises(InputError, match="holds more than"):
        read_text(tmp_path / "long.txt")


def test_a_nested_suite_and_a_large_field_are_one_sentence(refuse, folder):
    (folder / "deep.toml").write_text("a = " + "[" * 100_000)
    refuse(2, ["deep.toml", "nested too deeply"], "sweep", "deep.toml", "-o", "out")
    (folder / "wide.csv").write_text("src,dst,size_bytes,time_us\n0,1," + "9" * 140_000 + ",1\n")
    refuse(2, ["wide.csv", "field larger than"], "topo", "fit", "wide.csv", "-o", "o.json")


def test_an_empty_record_is_a_new_one(taccl, folder):
    (folder / "r.jsonl").write_text("")
    assert taccl("profile", "--emulate", "ring:4", "--record", "r.jsonl").code == 0
    assert (folder / "r.jsonl").read_text().startswith('{"format": "taccl-profile-record"')


def test_a_baseline_that_cannot_be_written_is_said_before_anything_is_computed(refuse, folder, monkeypatch):
    monkeypatch.setattr("taccl_py.cli.regress._carry_out", lambda *_: pytest.fail("work has begun"))
    (folder / "suite.toml").write_text(
        'format = "taccl-suite"\nversion = 1\n[[instances]]\ntopology = "ring:4"\ncollectives = "allgather"\nsizes = "1MB"\nengines = "templates"\n'
    )
    (folder / "place").mkdir()
    refuse(2, ["place", "is a directory"], "regress", "accept", "suite.toml", "--baseline", "place")
    refuse(2, ["suite.toml/b.json"], "regress", "accept", "suite.toml", "--baseline", "suite.toml/b.json")


@pytest.mark.parametrize(
    ("asked", "chunks", "most"),
    [
        (("ring:4", "allgather"), 1_000_000, 16384),
        (("ring:4", "allgather"), 10_923, 10_922),
        (("ndv2", "allgather", "--engine", "greedy"), 10_000, 2340),
        (("ndv2", "alltoall", "--nodes", "2"), 2000, 512),
        (("ndv4", "allreduce", "--nodes", "8", "--engine", "trees"), 2000, 512),
    ],
)
def test_more_chunks_than_any_search_can_do_are_refused_at_once(refuse, monkeypatch, asked, chunks, most):
    monkeypatch.setattr("taccl_py.pipeline.views.load_engine", lambda _: pytest.fail("a search has begun"))
    refuse(2, ["--chunks", f"found {chunks}", f"at most {most}"], "synth", *asked, "--chunks", str(chunks))


def test_as_many_chunks_as_are_said_to_be_possible_are_searched(taccl):
    ended = taccl(
        "synth", "ring:2", "alltoall", "--chunks", "16384", "--engine", "templates", "--only-schedule", "--json"
    )
    assert (ended.code, ended.json["chunks_per_rank"]) == (0, 16384)
