"""Broken MSCCL XML files: check ends with 4 and names the rule, simulate says what it cannot read; never a traceback."""

import re

import pytest

from tests.verify.msccl.files import ring_allgather
from tests.verify.msccl.test_broken_files import CASES


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}:{case.name}" for case in CASES])
def test_check_ends_with_4_and_one_line_for_every_broken_rule(taccl, folder, case):
    file = case.make()
    case.change(file)
    (folder / "bad.xml").write_bytes(case.edit(file.text()).encode("utf-8", "surrogatepass"))
    options = [f"--runtime={case.runtime.name}"]
    if "kind" in case.wanted:
        options.append(f"--collective={case.wanted['kind']}")
    if "root" in case.wanted:
        options.append(f"--root={case.wanted['root']}")
    ended = taccl("check", "bad.xml", *options)
    assert (ended.code, ended.err) == (4, "")
    assert ended.out.startswith("bad.xml: bad: ")
    assert ended.out.count("\n") == 1
    found = taccl("check", "bad.xml", "--json", *options).json["files"][0]["violations"]
    assert case.rule in {violation["rule"] for violation in found}


def test_check_names_every_error_when_it_is_asked_to(taccl, folder):
    file = ring_allgather()
    file.step(0, 0, 0)["cnt"] = 0
    file.step(1, 0, 0)["srcbuf"] = "q"
    (folder / "bad.xml").write_text(file.text(), encoding="utf-8")
    brief, verbose = taccl("check", "bad.xml"), taccl("check", "bad.xml", "--verbose")
    assert brief.code == verbose.code == 4
    assert brief.out.count("\n") == 1
    assert "--verbose" in brief.out
    assert "--verbose" not in verbose.out
    assert "gpu 0 tb 0 step 0" in verbose.out
    assert "gpu 1 tb 0 step 0" in verbose.out


def replaced(pattern, text):
    return lambda xml: re.sub(pattern, text, xml, count=1)


UNREADABLE = {
    "empty": (lambda _: "", "line 1"),
    "cut off": (lambda xml: xml[: len(xml) // 2], "line "),
    "no XML": (lambda _: "hello", "line 1"),
    "another element": (lambda _: "<foo></foo>", "algo"),
    "a document type": (lambda xml: "<!DOCTYPE algo>" + xml, "document type"),
    "a zero byte": (replaced("allgather-ring", "all\0ring"), "line 1"),
    "no protocol": (replaced(' proto="[^"]*"', ""), "algo proto"),
    "an unknown protocol": (replaced(' proto="[^"]*"', ' proto="LL256"'), "Simple, LL, LL128"),
    "an unknown collective": (replaced(' coll="[^"]*"', ' coll="barrier"'), "algo coll"),
    "a number that is none": (replaced(' ngpus="4"', ' ngpus="four"'), "algo ngpus"),
    "a rank too few": (replaced(' ngpus="4"', ' ngpus="5"'), "no gpu element with id 4"),
    "chunks of nothing": (replaced(' nchunksperloop="[^"]*"', ' nchunksperloop="0"'), "algo nchunksperloop"),
    "an unknown peer": (replaced(' send="[0-9]"', ' send="9"'), "rank 9 does not exist"),
    "an unknown step": (replaced(' type="s"', ' type="z"'), "step type"),
    "an unknown buffer": (replaced(' srcbuf="i"', ' srcbuf="q"'), "i, o, s"),
    "a step out of order": (replaced(' s="1"', ' s="7"'), "step s"),
    "text between elements": (replaced("</tb>", "</tb> hello"), "hello"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_simulate_names_the_place_that_it_cannot_read(refuse, files, made, name):
    edit, word = UNREADABLE[name]
    text = edit(made["algorithm.xml"])
    assert text != made["algorithm.xml"]
    (files / "bad.xml").write_text(text, encoding="utf-8")
    refuse(2, ["bad.xml", word], "simulate", "bad.xml", "--topology", "ring:4")


@pytest.mark.parametrize("name", UNREADABLE)
def test_check_objects_to_what_cannot_be_read(taccl, files, made, name):
    (files / "bad.xml").write_text(UNREADABLE[name][0](made["algorithm.xml"]), encoding="utf-8")
    ended = taccl("check", "bad.xml")
    assert (ended.code, ended.err) == (4, "")
    assert ended.out.startswith("bad.xml: bad: ")
    assert ended.out.count("\n") == 1


def test_an_empty_xml_text_is_an_error_of_the_file_and_an_empty_json_text_cannot_be_read(taccl, folder):
    for name, code, told in (("no.xml", 4, "the file is empty"), ("no.json", 2, "not valid JSON")):
        (folder / name).write_text("", encoding="utf-8")
        ended = taccl("check", name)
        assert (ended.code, ended.err) == (code, "")
        assert told in ended.out


@pytest.mark.parametrize("command", [("check",), ("simulate", "--topology", "ring:4")], ids=lambda c: c[0])
def test_a_binary_file_is_no_xml(taccl, folder, command):
    (folder / "bad.xml").write_bytes(bytes(range(256)))
    name, *options = command
    ended = taccl(name, "bad.xml", *options)
    assert ended.code == 2
    assert "bad.xml" in ended.out + ended.err
    assert "not UTF-8" in ended.out + ended.err


@pytest.mark.usefixtures("files")
def test_simulate_refuses_an_xml_file_without_a_topology(refuse):
    refuse(2, ["algorithm.xml", "add --topology"], "simulate", "algorithm.xml")


@pytest.mark.usefixtures("files")
def test_simulate_refuses_the_curve_of_an_xml_file(refuse):
    refuse(2, ["algorithm.xml", "schedule.json"], "simulate", "algorithm.xml", "--topology", "ring:4", "--curve")


@pytest.mark.usefixtures("files")
def test_simulate_refuses_a_topology_of_another_size(refuse):
    refuse(2, ["4 ranks", "ring-5"], "simulate", "algorithm.xml", "--topology", "ring:5")


@pytest.mark.usefixtures("files")
def test_simulate_names_the_file_that_does_not_fit_the_topology(refuse):
    refuse(2, ["algorithm.xml", "--topology"], "simulate", "algorithm.xml", "--topology", "ring:5")


@pytest.mark.usefixtures("files")
def test_simulate_refuses_a_topology_without_the_links_that_are_used(refuse):
    refuse(2, ["0", "link"], "simulate", "algorithm.xml", "--topology", "mesh:2x2")


def test_simulate_ends_with_4_where_the_steps_wait_for_each_other(taccl, files, made):
    text = made["algorithm.xml"].replace('depid="-1" deps="-1"', 'depid="0" deps="0"', 1)
    (files / "bad.xml").write_text(text, encoding="utf-8")
    ended = taccl("simulate", "bad.xml", "--topology", "ring:4")
    assert ended.code == 4
    assert "deadlock" in ended.sentence


def test_simulate_refuses_a_program_that_does_not_do_its_work(refuse, files, made):
    text = re.sub(r'\s*<step s="0" type="r"[^>]*/>', "", made["algorithm.xml"], count=1)
    assert text != made["algorithm.xml"]
    (files / "bad.xml").write_text(text, encoding="utf-8")
    refuse(4, ["bad.xml"], "simulate", "bad.xml", "--topology", "ring:4")


def test_check_says_first_what_stands_in_the_file(taccl, files, made):
    text = re.sub(' nchunksperloop="[^"]*"', ' nchunksperloop="999999999999"', made["algorithm.xml"])
    (files / "bad.xml").write_text(text, encoding="utf-8")
    assert "999999999999" in taccl("check", "bad.xml").out
