"""Which file of a directory a call takes."""

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.torch.catalog import CallShape, InstalledFiles
from tests.verify.msccl.files import (
    chain_broadcast,
    pairs_allreduce,
    ring_allgather,
    ring_allreduce,
    ring_reducescatter,
)


def install(folder, **files):
    """A directory with files by name, each with changes of its algo element."""
    for name, (file, changes) in files.items():
        file.attributes.update(changes)
        (folder / f"{name}.xml").write_text(file.text(), encoding="utf-8")
    return InstalledFiles(folder)


def shape(elements, kind=Kind.ALLREDUCE, *, num_ranks=4, root=0, element_bytes=4, in_place=True):
    return CallShape(kind, num_ranks, root, elements, element_bytes, in_place)


def name_of(choice):
    return choice.file.path.stem


def test_a_call_takes_the_file_of_its_size_and_both_ends_are_inside(tmp_path):
    files = install(
        tmp_path,
        small=(ring_allreduce(4), {"minBytes": 64, "maxBytes": 1024}),
        large=(ring_allreduce(4), {"minBytes": 1025, "maxBytes": 0}),
    )
    names = [name_of(files.choose(shape(elements))) for elements in (16, 256, 260, 1 << 30)]
    assert names == ["small", "small", "large", "large"]
    assert files.choose(shape(12)).why_not == "no file for allreduce is for this size"
    assert name_of(files.choose(shape(128, element_bytes=8))) == "small"
    assert name_of(files.choose(shape(132, element_bytes=8))) == "large"


def test_of_two_files_for_a_size_the_first_by_name_is_taken(tmp_path):
    assert name_of(install(tmp_path, b=(ring_allreduce(4), {}), a=(pairs_allreduce(4), {})).choose(shape(16))) == "a"


def test_reasons_why_no_file_is_taken(tmp_path):
    files = install(
        tmp_path, a=(ring_allreduce(4), {}), b=(chain_broadcast(4), {}), c=(ring_reducescatter(4), {"outofplace": 0})
    )
    scatter = shape(64, Kind.REDUCESCATTER, in_place=False)
    assert [files.choose(each).why_not for each in (
        shape(64, Kind.ALLTOALL), shape(64, num_ranks=8), shape(63), shape(64, Kind.BROADCAST, root=2), scatter
    )] == [
        "no file is for alltoall",
        "no file for allreduce is for 8 ranks",
        "chunks do not share out the elements of allreduce",
        "no file for broadcast is for root 2",
        "no file for reducescatter is for calls out of place",
    ]  # fmt: skip
    assert name_of(files.choose(shape(64, Kind.BROADCAST, root=0))) == "b"


def test_a_later_file_is_taken_where_only_its_chunks_share_out_the_elements(tmp_path):
    files = install(tmp_path, a=(ring_allgather(4, 3), {}), b=(ring_allgather(4, 2), {}))
    assert [name_of(files.choose(shape(elements, Kind.ALLGATHER))) for elements in (12, 24, 8)] == ["a", "a", "b"]


def test_files_for_one_placement_serve_the_other_where_a_copy_leads_there(tmp_path):
    files = install(
        tmp_path, a=(pairs_allreduce(4), {"inplace": 0, "outofplace": 1}), b=(ring_allgather(4), {"outofplace": 0})
    )
    assert files.choose(shape(64)).in_place is False
    assert files.choose(shape(64, Kind.ALLGATHER, in_place=False)).in_place is True
    assert files.choose(shape(64, Kind.ALLGATHER)).in_place is True


def test_labels_tell_contents_apart(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = install(tmp_path / "one", a=(ring_allreduce(4), {})).files[0].label
    assert install(tmp_path / "two", a=(ring_allreduce(4), {"maxBytes": 64})).files[0].label != one
    assert install(tmp_path / "two", a=(ring_allreduce(4), {})).files[0].label == one


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("note.txt", "x", "holds no algorithm files (*.xml)"),
        ("a.xml", "", "is no algorithm file"),
        ("a.xml", "<plan/>", "has no algo element"),
        ("a.xml", '<algo ngpus="4"/>', "coll: is missing"),
        ("a.xml", '<algo coll="allreduce" ngpus="0" nchunksperloop="4"/>', "ngpus: found 0"),
        ("a.xml", '<algo coll="allreduce" ngpus="4" nchunksperloop="-4"/>', "nchunksperloop: found '-4'"),
        ("a.xml", '<algo coll="allreduce" ngpus="4" nchunksperloop="0"/>', "nchunksperloop: found 0"),
        ("a.xml", '<algo coll="allscatter" ngpus="4" nchunksperloop="4"/>', "is not a collective"),
        ("msccl-config.xml", "<msccl_algos/>", "is a directory of the legacy runtime"),
    ],
)
def test_a_directory_that_is_none_is_refused_with_a_reason(tmp_path, name, text, what):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        InstalledFiles(tmp_path)
    assert what in str(refused.value)


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="missing: cannot be read: No such file or directory"):
        InstalledFiles(tmp_path / "missing")


def test_what_comes_after_the_first_element_is_read_when_a_call_takes_the_file(tmp_path):
    text = ring_allreduce(4).text()
    (tmp_path / "a.xml").write_text(text[: len(text) // 2], encoding="utf-8")
    files = InstalledFiles(tmp_path)
    with pytest.raises(InputError, match="is not well-formed XML"):
        files.choose(shape(64))


def test_a_program_is_compiled_once_for_each_placement(tmp_path):
    file = install(tmp_path, a=(ring_allreduce(4), {})).choose(shape(16)).file
    ahead, behind = file.compiled(in_place=True), file.compiled(in_place=False)
    assert ahead is not behind
    assert file.compiled(in_place=True) is ahead
    assert file.compiled(in_place=False) is behind
