"""Directories as a whole: what stops a scan, what competes, what is covered, what connections cost."""

import pytest

from taccl_py.collective import Kind
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.verify.msccl import Covered, DirectoryFile, verify_directory
from taccl_py.verify.msccl.directory import REFUSED
from tests.verify.msccl.files import direct_alltoall, ring_allgather, ring_allreduce
from tests.verify.msccl.test_broken_files import CASES

MIB = 1 << 20


def ranged(low, high, make=ring_allreduce, **changes):
    file = make()
    file.attributes.update(minBytes=low, maxBytes=high, **changes)
    return file.text()


def verify(runtime=EXECUTOR, **texts):
    return verify_directory([DirectoryFile(name, text) for name, text in texts.items()], runtime)


def found(verdict):
    return [(violation.where, violation.rule) for violation in verdict.violations]


def test_files_for_sizes_that_follow_each_other_are_good_and_cover_all_of_them():
    verdict = verify(b=ranged(1025, 4096), a=ranged(64, 1024))
    assert list(verdict.files) == ["a", "b"]
    assert found(verdict) == []
    assert verdict.covered == tuple(Covered(Kind.ALLREDUCE, 4, place, 64, 4096) for place in (False, True))


def test_gaps_show_in_what_is_covered():
    verdict = verify(a=ranged(64, 1024), b=ranged(2048, 0))
    assert [(one.low_bytes, one.high_bytes) for one in verdict.covered if one.in_place] == [(64, 1024), (2048, None)]


@pytest.mark.parametrize(
    ("second", "sizes"),
    [(ranged(1024, 4096), "from 1024 bytes to 1024"), (ranged(0, 0), "from 64 bytes to 1024"), (ranged(80, 96), "from 80 bytes to 96")],
)  # fmt: skip
def test_two_files_for_the_same_call_compete(second, sizes):
    verdict = verify(a=ranged(64, 1024), b=second)
    assert found(verdict) == [("b", "overlap")]
    assert f"{sizes} a is taken before it" in verdict.violations[0].what


def test_in_rccl_the_file_system_decides_between_them():
    assert (
        "as their file systems order them"
        in verify(RCCL, a=ranged(0, 0, direct_alltoall), b=ranged(0, 0, direct_alltoall)).violations[0].what
    )


@pytest.mark.parametrize(
    "second",
    [
        ranged(64, 1024, ring_allgather),
        ranged(64, 1024, lambda: ring_allreduce(3)),
        ranged(64, 1024, inplace=0),
    ],
    ids=["another collective", "other ranks", "another placement"],
)
def test_files_for_other_calls_do_not_compete(second):
    assert found(verify(a=ranged(64, 1024, outofplace=0), b=second)) == []


@pytest.mark.parametrize("text", ["", "hello", "<foo></foo>", None])
def test_a_file_that_is_no_algorithm_stops_the_scan(text):
    verdict = verify(a=ranged(64, 1024), README=text)
    assert found(verdict) == [("README", "stray-file")]
    assert "ends the scan" in verdict.violations[0].what
    assert list(verdict.files) == ["a"]


def edited(old, new, count=1):
    text = ranged(64, 1024)
    assert old in text
    return text.replace(old, new, count)


def without(name):
    file = ring_allreduce()
    del file.attributes[name]
    return file.text()


ENDING = {
    "no outofplace": (without("outofplace"), "attribute 'outofplace' is missing in its first element; add it"),
    "no minBytes": (without("minBytes"), "attribute 'minBytes' is missing"),
    "no ngpus": (without("ngpus"), "attribute 'ngpus' is missing"),
    "another element first": ("<meta/>\n" + ranged(64, 1024), "attribute 'nchannels' is missing"),
    "legacy spelling": (edited("allreduce", "reduce_scatter"), "coll='reduce_scatter' is no collective that it knows; use"),
    "declaration": ('<?xml version="1.0"?>\n' + ranged(64, 1024), "no runtime reads '<?xml ...?>'; remove it"),
    "TAB": ("\t" + ranged(64, 1024), "a TAB stands between elements"),
    "cut": (ranged(64, 1024)[:50], "the text ends inside a tag"),
    "17 attributes": (edited("<algo", "<algo" + " a=\"0\"" * 16), "attribute 'nchannels' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["a", "c"])
@pytest.mark.parametrize("runtime", [EXECUTOR, RCCL], ids=lambda runtime: runtime.name)
@pytest.mark.parametrize(("text", "words"), ENDING.values(), ids=list(ENDING))
def test_a_file_whose_first_element_cannot_be_used_ends_the_scan(text, words, runtime, name):
    """Where later files are not seen, and earlier ones are no longer where they are looked for, nothing is covered."""
    verdict = verify(runtime, b=ranged(64, 1024, direct_alltoall), **{name: text})
    assert found(verdict) == [(name, "scan-end")]
    assert f"{runtime.title} ends its scan at it and sees no later file: {words}" in verdict.violations[0].what
    assert verdict.files[name].violations
    assert verdict.covered == ()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (edited('coll="allreduce"', 'coll="alltoallv"'), None),
        (edited('name="test"', f'name="{"x" * 64}"'), None),
        (edited('dstoff="2"', 'dstoff="1"'), None),
        (edited("</algo>", "</plan>"), "init-failure"),
        (edited(' cnt="1"', ""), "init-failure"),
        (edited(' proto="LL"', ""), "init-failure"),
        (edited('proto="LL"', 'proto="ll"'), "init-failure"),
        (edited('type="rrs"', 'type="x"'), "init-failure"),
        (edited("  <gpu", "\t<gpu"), "init-failure"),
    ],
    ids=["unknown", "name", "result", "end", "cnt", "no proto", "proto", "type", "TAB"],
)
def test_a_bad_file_after_whose_first_element_the_scan_goes_on_is_not_counted(text, rule):
    """What a rank refuses of its part is noticed when the communicator is made."""
    verdict = verify(a=text, b=ranged(512, 4096))
    assert [one[1] for one in found(verdict)] == ([] if rule is None else [rule])
    assert all("so that none can be made; correct it" in one.what for one in verdict.violations)
    sizes = {(one.low_bytes, one.high_bytes) for one in verdict.covered}
    assert sizes == ({(512, 4096)} if rule is None else set())


def test_what_the_parser_refuses_is_called_by_names_of_rules():
    assert {case.rule for case in CASES} >= REFUSED


def test_the_legacy_runtime_scans_nothing():
    verdict = verify(LEGACY, a=without("coll"), b=ranged(64, 1024, outofplace=0), c=edited("</algo>", "</plan>"))
    assert found(verdict) == []
    assert [bool(verdict.files[name].violations) for name in "abc"] == [True, False, True]
    assert [one.high_bytes for one in verdict.covered] == [1023]


def test_the_legacy_runtime_loads_four_files():
    texts = {f"f{k}": ranged(64 << k, 64 << (k + 1), outofplace=0) for k in range(5)}
    assert [rule for _, rule in found(verify(LEGACY, **texts))] == ["too-many-files"]
    texts.pop("f4")
    assert found(verify(LEGACY, **texts)) == []


def test_connections_of_all_files_for_a_number_of_ranks_count_once_each():
    """The ring on channel 0 is in both files; the other one of three adds two peers; four ranks are another communicator."""
    verdict = verify(
        a=ranged(64, 1024, lambda: ring_allreduce(3)),
        b=ranged(1025, 4096, lambda: ring_allreduce(3)),
        c=ranged(64, 1024, direct_alltoall),
        d=ranged(64, 1024),
    )
    assert verdict.connections == {3: 2, 4: 1}
    assert verdict.connection_bytes == 2 * (4 * MIB + MIB // 2 + 4915200)


def test_an_empty_directory_covers_nothing():
    verdict = verify()
    assert (found(verdict), verdict.covered, verdict.connections, verdict.connection_bytes) == ([], (), {}, 0)
