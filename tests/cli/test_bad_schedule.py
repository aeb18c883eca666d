"""Broken schedule files: 2 where the file is wrong, 4 where the verifier finds errors; every command that reads one says the same."""

import json

import pytest

from tests.cli.bad_input import bad, gone, table
from tests.cli.inputs import changed, write_json

UNREADABLE = table(
    gone("format"),
    gone("version"),
    gone("collective"),
    gone("collective.kind"),
    gone("chunk_bytes"),
    gone("topology"),
    gone("topology.links"),
    gone("origin"),
    gone("scratch"),
    gone("messages"),
    gone("messages.0.link"),
    gone("messages.0.reduce"),
    bad("another format", "format", "taccl-topology", "taccl-schedule"),
    bad("a later version", "version", 2, "version 1"),
    bad("an unknown field", "comment", 1, "not a known field"),
    bad("an unknown field of a message", "messages.0.size", 1, "not a known field"),
    bad("an unknown collective", "collective.kind", "AllGather", "allgather, "),
    bad("ranks that the topology lacks", "collective.num_ranks", 5, "must be equal"),
    bad("a root where there is none", "collective.root", 1, "no root", field="collective"),
    bad("no chunks", "collective.chunks_per_rank", 0, "at least 1"),
    bad("chunks of no size", "chunk_bytes", 0, "above 0"),
    bad("a size that is a text", "chunk_bytes", "1MB", "a finite number is needed"),
    bad("a link that does not exist", "messages.0.link", 99, "links 0.."),
    bad("a negative link", "messages.0.link", -1, "at least 0"),
    bad("a chunk that does not exist", "messages.0.chunks", [9], "chunks are 0..3", field="messages.0.chunks.0"),
    bad("a message of nothing", "messages.0.chunks", [], "leave the message out"),
    bad("a time that is a text", "messages.0.start_us", "0", "a finite number is needed"),
    bad("a time beyond all numbers", "messages.0.end_us", 10**400, "a finite number is needed"),
    bad("a sum that is a number", "messages.0.reduce", 0, "true or false is needed"),
    bad("too few scratch lists", "scratch", [], "one for each of the 4 ranks"),
    bad("a chunk in scratch that does not exist", "scratch", [[7], [], [], []], "chunks are 0..3", field="scratch.0.0"),
    bad("an origin that is a text", "origin", "me", "an object"),
    bad("a topology with a link to nowhere", "topology.links.0.to", 9, "rank 9 does not exist"),
)

REFUSED = {
    "a message is missing": ("messages.0", "gone", "missing"),
    "nothing is sent": ("messages", [], "missing"),
    "a message takes no time": ("messages.0.end_us", 0.0, "wrong-duration"),
    "a message starts before the beginning": ("messages.0.start_us", -1.0, "bad-time"),
    "a chunk is sent before it is there": ("messages", "early", "not-held"),
    "a copy is called a sum": ("messages.0.reduce", True, "nothing-to-reduce"),
    "a chunk twice in one message": ("messages.0.chunks", [1, 1], "chunk-twice"),
    "a chunk twice in scratch": ("scratch", [[2, 2], [], [], []], "scratch-twice"),
    "a link that costs more than planned": ("topology.links.0.alpha_us", 5.0, "wrong-duration"),
    "chunks of another size": ("chunk_bytes", 1e6, "wrong-duration"),
}


def broken(made, place, new):
    value = json.loads(made["schedule.json"])
    messages = value["messages"]
    if new == "gone":
        value["messages"] = messages[1:]
    elif new == "early":
        last = messages[-1]
        messages[-1] = {**last, "start_us": 0.0, "end_us": last["end_us"] - last["start_us"]}
    else:
        value = changed(value, place, new)
    return value


@pytest.mark.parametrize(
    "command", [("lower", "bad.json", "-o", "out.xml"), ("simulate", "bad.json")], ids=lambda c: c[0]
)
@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_that_is_no_schedule_is_refused(refuse, folder, made, command, case):
    write_json(folder / "bad.json", case.of(json.loads(made["schedule.json"])))
    refuse(2, ["bad.json", case.field, *case.words], *command)


@pytest.mark.parametrize("case", UNREADABLE)
def test_check_names_the_field_of_a_file_that_is_no_schedule(taccl, folder, made, case):
    write_json(folder / "bad.json", case.of(json.loads(made["schedule.json"])))
    ended = taccl("check", "bad.json")
    assert (ended.code, ended.err) == (2, "")
    assert ended.out.startswith("bad.json: bad: ")
    assert ended.out.count("\n") == 1
    for word in (case.field, *case.words):
        assert word in ended.out


@pytest.mark.parametrize("name", REFUSED)
def test_check_names_the_rule_that_a_schedule_breaks(taccl, folder, made, name):
    place, new, rule = REFUSED[name]
    write_json(folder / "bad.json", broken(made, place, new))
    ended = taccl("check", "bad.json", "--json")
    assert (ended.code, ended.err) == (4, "")
    assert rule in {violation["rule"] for violation in ended.json["files"][0]["violations"]}


@pytest.mark.parametrize("name", REFUSED)
def test_lower_refuses_a_schedule_that_the_verifier_rejects(refuse, folder, made, name):
    place, new, _ = REFUSED[name]
    write_json(folder / "bad.json", broken(made, place, new))
    refuse(4, [], "lower", "bad.json", "-o", "out.xml")


def test_lower_names_the_file_that_the_verifier_rejects(refuse, folder, made):
    write_json(folder / "bad.json", broken(made, "messages", []))
    refuse(4, ["bad.json"], "lower", "bad.json", "-o", "out.xml")


@pytest.mark.parametrize("name", REFUSED)
def test_simulate_refuses_a_schedule_that_the_verifier_rejects(refuse, folder, made, name):
    place, new, _ = REFUSED[name]
    write_json(folder / "bad.json", broken(made, place, new))
    refuse(4, ["bad.json"], "simulate", "bad.json")


def test_what_check_calls_good_can_be_lowered(taccl, folder, made):
    value = json.loads(made["schedule.json"])
    value["messages"][-1] |= {"start_us": 1e308, "end_us": 1e308}
    write_json(folder / "late.json", value)
    assert taccl("check", "late.json").code == taccl("lower", "late.json", "-o", "out.xml").code


@pytest.mark.parametrize("command", [("check", "big.json"), ("lower", "big.json", "-o", "out.xml")], ids=lambda c: c[0])
def test_a_schedule_of_a_billion_chunks_is_refused(folder, made, command):
    from tests.cli.running import run_apart

    write_json(folder / "big.json", changed(json.loads(made["schedule.json"]), "collective.chunks_per_rank", 10**9))
    ended = run_apart(*command, cwd=folder, memory_mb=1500)
    assert ended.code in (2, 4)
    assert "Traceback" not in ended.out + ended.err


@pytest.mark.parametrize("options", [[], ["--json"], ["--curve"]], ids=["table", "json", "curve"])
@pytest.mark.parametrize(("place", "new"), [("chunk_bytes", 1e308), ("topology.links.0.alpha_us", 1e308)])
def test_simulate_refuses_times_beyond_all_numbers(refuse, folder, made, options, place, new):
    write_json(folder / "bad.json", changed(json.loads(made["schedule.json"]), place, new))
    refuse(2, ["bad.json"], "simulate", "bad.json", *options)
