import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.execute.reader import read_plan
from tests.execute.running import plan_of
from tests.verify.msccl.files import (
    RIGHT_FILES,
    chain_broadcast,
    chain_reduce,
    direct_alltoall,
    direct_gather,
    direct_scatter,
    ring_allgather,
    ring_allreduce,
)


@pytest.mark.parametrize(
    ("file", "kind", "share", "inputs", "outputs", "whole"),
    [
        (ring_allgather(4, 3), Kind.ALLGATHER, 3, 3, 12, 12),
        (direct_alltoall(3, 2), Kind.ALLTOALL, 2, 6, 6, 6),
        (ring_allreduce(4), Kind.ALLREDUCE, 4, 4, 4, 4),
        (chain_broadcast(), Kind.BROADCAST, 2, 2, 2, 2),
        (direct_gather(3), Kind.GATHER, 2, 2, 6, 6),
        (direct_scatter(3), Kind.SCATTER, 2, 6, 2, 6),
    ],
    ids=lambda value: str(value) if isinstance(value, Kind) else "",
)
def test_buffers_are_as_long_as_the_collective_says(file, kind, share, inputs, outputs, whole):
    plan = plan_of(file)
    found = (plan.kind, plan.shard_chunks, plan.input_chunks, plan.output_chunks, plan.chunks_per_size)
    assert found == (kind, share, inputs, outputs, whole)


def test_a_custom_collective_counts_the_longer_buffer():
    file = direct_gather(3)
    file.attributes.update(coll="custom", nchunksperloop=6)
    assert plan_of(file, kind=Kind.GATHER).shard_chunks == 2
    with pytest.raises(InputError, match="--collective"):
        plan_of(file)


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("make", [chain_broadcast, chain_reduce, direct_gather, direct_scatter])
def test_the_root_is_who_receives_or_sends_nothing(make, root):
    assert plan_of(make(4, root)).root == root


def test_a_root_that_the_steps_do_not_tell_must_be_named():
    file = ring_allgather(3)
    file.attributes.update(coll="broadcast")
    with pytest.raises(InputError, match="add --root"):
        plan_of(file)
    assert plan_of(file, root=1).root == 1


def test_what_runtimes_pass_over_is_passed_over():
    text = ring_allgather().text()
    extra = text.replace("<tb ", '<copy i="0"><step s="9"/></copy><tb ', 1).replace("<algo ", '<algo redop="nop" ', 1)
    assert read_plan("<!-- made by hand -->" + extra, "x") == read_plan(text, "x")


def test_placements_that_are_not_written_are_guessed_as_legacy_files_mean_them():
    file = ring_allgather()
    del file.attributes["outofplace"]
    assert (plan_of(file).in_place, plan_of(file).out_of_place) == (True, False)


def broken(**changes):
    file = ring_allgather()
    file.step(1, 0, 0).update(changes)
    return file.text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["test.xml", "line 1", "well-formed"]),
        ("<foo></foo>", ["no algo element"]),
        (ring_allgather().text()[:200], ["well-formed"]),
        (broken(type="ra"), ["line 14, step type", "'ra'", "rrcs"]),
        (broken(cnt="many"), ["step cnt", "'many'", "whole decimal number"]),
        (broken(cnt=0), ["step cnt", "at least 1"]),
        (broken(srcbuf="q"), ["step srcbuf", "i, o, s"]),
        (broken(hasdep="").replace(' hasdep=""', ""), ["step hasdep", "is missing; add it"]),
        (ring_allgather().text().replace(' send="1"', ' send="9"', 1), ["tb send", "found 9, at most 2"]),
        (ring_allgather().text().replace(' send="1"', ' send="-1"', 1), ["step type", "s needs a peer"]),
        (ring_allgather().text().replace('ngpus="3"', 'ngpus="4"'), ["algo", "ids 0..3"]),
        (ring_allgather().text().replace('nchunksperloop="3"', 'nchunksperloop="4"'), ["4 chunks", "3 ranks"]),
        (ring_allgather().text().replace('proto="LL"', 'proto="LL7"'), ["algo proto", "'LL7'", "Simple"]),
        (ring_allgather().text().replace('coll="allgather"', 'coll="barrier"'), ["algo coll", "'barrier'"]),
    ],
)  # fmt: skip
def test_what_cannot_be_executed_is_named_with_its_line(text, words):
    with pytest.raises(InputError) as error:
        read_plan(text, "test.xml")
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", RIGHT_FILES)
def test_every_right_file_is_read(name):
    assert plan_of(RIGHT_FILES[name]()).num_ranks >= 2
