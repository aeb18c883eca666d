"""Directories as a whole: what stops a scan, what competes, what is covered, what connections cost."""

import pytest

from taccl_py.collective import Kind
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.verify.msccl import Covered, DirectoryFile, judge_directory
from tests.verify.msccl.files import direct_alltoall, ring_allgather, ring_allreduce

MIB = 1 << 20


def ranged(low, high, make=ring_allreduce, **changes):
    file = make()
    file.attributes.update(minBytes=low, maxBytes=high, **changes)
    return file.text()


def judge(runtime=EXECUTOR, **texts):
    return judge_directory([DirectoryFile(name, text) for name, text in texts.items()], runtime)


def found(verdict):
    return [(violation.where, violation.rule) for violation in verdict.violations]


def test_files_for_sizes_that_follow_each_other_are_good_and_cover_all_of_them():
    verdict = judge(b=ranged(1025, 4096), a=ranged(64, 1024))
    assert list(verdict.files) == ["a", "b"]
    assert found(verdict) == []
    assert verdict.covered == tuple(Covered(Kind.ALLREDUCE, 4, place, 64, 4096) for place in (False, True))


def test_gaps_show_in_what_is_covered():
    verdict = judge(a=ranged(64, 1024), b=ranged(2048, 0))
    assert [(one.low_bytes, one.high_bytes) for one in verdict.covered if one.in_place] == [(64, 1024), (2048, None)]


@pytest.mark.parametrize(
    ("second", "sizes"),
    [(ranged(1024, 4096), "from 1024 bytes to 1024"), (ranged(0, 0), "from 64 bytes to 1024"), (ranged(80, 96), "from 80 bytes to 96")],
)  # fmt: skip
def test_two_files_for_the_same_call_compete(second, sizes):
    verdict = judge(a=ranged(64, 1024), b=second)
    assert found(verdict) == [("b", "overlap")]
    assert f"{sizes} a is taken before it" in verdict.violations[0].what


def test_in_rccl_the_file_system_decides_between_them():
    assert (
        "as their file systems order them"
        in judge(RCCL, a=ranged(0, 0, direct_alltoall), b=ranged(0, 0, direct_alltoall)).violations[0].what
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
    assert found(judge(a=ranged(64, 1024, outofplace=0), b=second)) == []


@pytest.mark.parametrize("text", ["", "hello", "<foo></foo>", None])
def test_a_file_that_is_no_algorithm_stops_the_scan(text):
    verdict = judge(a=ranged(64, 1024), README=text)
    assert found(verdict) == [("README", "stray-file")]
    assert "ends the scan" in verdict.violations[0].what
    assert list(verdict.files) == ["a"]


def test_the_legacy_runtime_loads_four_files():
    texts = {f"f{k}": ranged(64 << k, 64 << (k + 1), outofplace=0) for k in range(5)}
    assert [rule for _, rule in found(judge(LEGACY, **texts))] == ["too-many-files"]
    texts.pop("f4")
    assert found(judge(LEGACY, **texts)) == []


def test_connections_of_all_files_for_a_number_of_ranks_count_once_each():
    """The ring on channel 0 is in both files; the other one of three adds two peers; four ranks are another communicator."""
    verdict = judge(
        a=ranged(64, 1024, lambda: ring_allreduce(3)),
        b=ranged(1025, 4096, lambda: ring_allreduce(3)),
        c=ranged(64, 1024, direct_alltoall),
        d=ranged(64, 1024),
    )
    assert verdict.connections == {3: 2, 4: 1}
    assert verdict.connection_bytes == 2 * (4 * MIB + MIB // 2 + 4915200)


def test_an_empty_directory_covers_nothing():
    verdict = judge()
    assert (found(verdict), verdict.covered, verdict.connections, verdict.connection_bytes) == ([], (), {}, 0)
