"""Ranks that are about to do different things are all refused with one sentence."""

import pytest

from taccl_py.errors import InputError
from taccl_py.torch.agreement import CallRecord, require_agreement


def refusal(*records):
    with pytest.raises(InputError) as refused:
        require_agreement(records, "algorithms")
    return str(refused.value)


GOOD = CallRecord("all_reduce of 64 float32 elements (sum)", "ring.xml 0123456789ab")


def test_ranks_that_do_the_same_agree():
    require_agreement([GOOD] * 3, "algorithms")


def test_different_files_are_named():
    other = CallRecord(GOOD.call, "the backend's own, as no file is for allreduce")
    assert refusal(GOOD, other, GOOD) == (
        "algorithms: ranks have different files for all_reduce of 64 float32 elements (sum): ranks 0, 2: ring.xml 0123456789ab; "
        "rank 1: the backend's own, as no file is for allreduce; give all ranks the same directory"
    )


def test_different_calls_are_told_before_different_files():
    other = CallRecord("broadcast of 64 float32 elements from rank 0", "tree.xml ba9876543210")
    assert refusal(other, *[GOOD] * 9) == (
        "algorithms: ranks make different calls: rank 0: broadcast of 64 float32 elements from rank 0; "
        "ranks 1, 2, 3, 4, 5, 6, 7, 8, ...: all_reduce of 64 float32 elements (sum); all must make the same"
    )


def test_what_one_rank_cannot_do_is_told_to_all():
    failed = CallRecord("all_reduce", "", "all_reduce: tensor: is not contiguous")
    assert refusal(GOOD, failed, failed) == "algorithms: rank 1: all_reduce: tensor: is not contiguous (and 1 more)"
