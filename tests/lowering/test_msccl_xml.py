import re
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.lower import LoweringOptions, lower
from taccl_py.lowering.msccl_xml import UNLIMITED_BYTES, emit_xml, parse_xml
from taccl_py.lowering.program import Op
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL, RUNTIMES
from tests.lowering import cases


def text_of(schedule=None, runtime=EXECUTOR):
    program = lower(schedule or cases.ring_allreduce(3), LoweringOptions(runtime))
    return emit_xml(program, runtime)


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=lambda r: r.name)
def test_xml_is_as_accepted(golden, runtime):
    golden(text_of(cases.ring_reducescatter(3), runtime), ".xml")


def test_every_line_is_one_tag_that_hand_written_readers_understand():
    for line in text_of().splitlines():
        assert re.fullmatch(r' *(<[a-z]+( [A-Za-z_]+="[A-Za-z0-9._-]*")+/?>|</[a-z]+>)', line), line


def test_every_step_has_all_ten_attributes():
    steps = [line for line in text_of().splitlines() if "<step" in line]
    wanted = ["s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"]
    assert steps
    assert all(re.findall(r' ([a-z]+)="', line) == wanted for line in steps)


def test_reducescatter_is_spelled_as_the_runtime_wants():
    schedule = cases.ring_reducescatter(3)
    spelled = {r.name: re.search(r'coll="(\w+)"', text_of(schedule, r)).group(1) for r in RUNTIMES.values()}
    assert spelled == {"executor": "reducescatter", "rccl": "reducescatter", "legacy": "reduce_scatter"}


@pytest.mark.parametrize(
    "schedule",
    [cases.relay_gather(), cases.chain_scatter(2), cases.chain_scatter(3)],
    ids=["gather", "scatter2", "scatter"],
)
def test_custom_files_are_told_apart_by_their_buffers(schedule):
    text = text_of(schedule, LEGACY)
    assert 'coll="custom"' in text
    assert parse_xml(text, "x", LEGACY).kind is schedule.collective.kind


def test_custom_files_that_are_neither_are_refused():
    text = text_of(cases.ring_allreduce(3), LEGACY).replace('coll="allreduce"', 'coll="custom"')
    with pytest.raises(InputError, match="neither Gather"):
        parse_xml(text, "x")


def test_largest_size_is_written_as_the_runtime_reads_it():
    program = replace(lower(cases.ring_allreduce(3), LoweringOptions(LEGACY)), max_bytes=1000)
    assert 'maxBytes="1000"' in emit_xml(program, EXECUTOR)
    assert 'maxBytes="1001"' in emit_xml(program, LEGACY)
    assert parse_xml(emit_xml(program, LEGACY), "x", LEGACY).max_bytes == 1000


def test_no_largest_size_is_zero_where_that_means_no_limit():
    program = replace(lower(cases.ring_allreduce(3), LoweringOptions(EXECUTOR)), max_bytes=UNLIMITED_BYTES)
    text = emit_xml(program, EXECUTOR)
    assert 'maxBytes="0"' in text
    assert parse_xml(text, "x", EXECUTOR) == program
    assert parse_xml(text, "x").max_bytes == UNLIMITED_BYTES


def test_attributes_may_come_in_any_order_and_unknown_ones_are_ignored():
    text = text_of()

    def turned(match):
        return f"<{match.group(1)} {' '.join(reversed(match.group(2).split()))} more='1'{match.group(3)}"

    shuffled = re.sub(r"<(\w+) ([^>/]*)(/?>)", turned, text)
    assert shuffled != text
    assert parse_xml(shuffled, "x") == parse_xml(text, "x")


def test_elements_that_runtimes_skip_are_skipped():
    text = text_of()
    changed = text.replace("  </gpu>", '    <copy i="0"><step s="0"/>text</copy>\n  </gpu>', 1)
    assert changed != text
    assert parse_xml("<!-- a comment -->\n" + changed, "x") == parse_xml(text, "x")


def test_order_of_gpus_and_threadblocks_in_the_file_does_not_matter():
    text = text_of(cases.direct_alltoall(3))
    first, *rest, last = re.findall(r"  <gpu.*?</gpu>\n", text, re.DOTALL)
    head, tail = text[: text.index("  <gpu")], "</algo>\n"
    assert parse_xml(head + last + "".join(rest) + first + tail, "x") == parse_xml(text, "x")


def test_attributes_that_only_some_runtimes_need_have_the_values_that_they_mean():
    text = text_of()
    for name in ("name", "outofplace", "minBytes", "maxBytes"):
        text = re.sub(f' {name}="[^"]*"', "", text, count=1)
    program = parse_xml(text, "some/file.xml")
    assert (program.name, program.in_place, program.out_of_place) == ("some/file.xml", True, False)
    assert (program.min_bytes, program.max_bytes) == (0, (1 << 27) - 1)


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        (lambda _: "", None, "no element found"),
        (lambda _: "<gpu/>", None, "no algo element"),
        (lambda t: t.replace("</algo>", ""), 30, "no element found"),
        (lambda t: t.replace("</tb>", "</gpu>", 1), 9, "mismatched tag"),
        (lambda t: "<!DOCTYPE algo [<!ENTITY a 'b'>]>" + t, 1, "document type"),
        (lambda t: t.replace("<tb", "words<tb", 1), 3, "text between the elements"),
        (lambda t: t.replace(' proto="LL"', ' proto="ll"'), 1, "use one of: Simple, LL, LL128"),
        (lambda t: t.replace(' ngpus="3"', ' ngpus="4"'), 1, "no gpu element with id 3"),
        (lambda t: t.replace(' ngpus="3"', ' ngpus="2"'), 20, "0..1, once each"),
        (lambda t: t.replace('<gpu id="1"', '<gpu id="0"'), 11, "once each"),
        (lambda t: t.replace(' coll="allreduce"', ' coll="allcopy"'), 1, "not a collective"),
        (lambda t: t.replace(' coll="allreduce"', ""), 1, "is missing"),
        (lambda t: t.replace(' cnt="1"', "", 1), 4, "is missing"),
        (lambda t: t.replace(' cnt="1"', ' cnt="one"', 1), 4, "whole decimal number"),
        (lambda t: t.replace(' cnt="1"', ' cnt="-1"', 1), 4, "at least 0"),
        (lambda t: t.replace(' s="1"', ' s="2"', 1), 5, "number them in order"),
        (lambda t: t.replace(' type="s"', ' type="send"', 1), 4, "found 'send'"),
        (lambda t: t.replace(' srcbuf="i"', ' srcbuf="x"', 1), 4, "found 'x'"),
        (lambda t: t.replace(' send="1"', ' send="3"', 1), 3, "ranks are 0..2"),
        (lambda t: t.replace(' chan="0"', ' chan="-1"', 1), 3, "at least 0"),
        (lambda t: t.replace(' depid="-1"', ' depid="0"', 1), 4, "no step of it"),
        (lambda t: t.replace('<tb id="0"', '<tb id="1"', 1), 3, "0..0, once each"),
        (lambda t: t.replace("allreduce-test", "\udc80"), None, "not XML text"),
    ],
)  # fmt: skip
def test_broken_text_is_refused_with_its_line(change, line, what):
    text = text_of()
    assert change(text) != text
    with pytest.raises(InputError, match=re.escape(what)) as caught:
        parse_xml(change(text), "x.xml")
    assert caught.value.path == "x.xml"
    assert line is None or re.match(rf"line {line}\b", caught.value.field)


def test_what_a_runtime_cannot_run_is_not_written():
    program = lower(cases.ring_allreduce(3), LoweringOptions(EXECUTOR))
    with pytest.raises(LoweringError, match=f"cannot run the step {Op.RECV_REDUCE_SEND}"):
        emit_xml(program, RCCL)
    with pytest.raises(LoweringError, match="has no allreduce"):
        emit_xml(program, replace(EXECUTOR, collectives={Kind.ALLGATHER: "allgather"}))
    with pytest.raises(LoweringError, match="character"):
        emit_xml(replace(program, name='a"b'), EXECUTOR)
