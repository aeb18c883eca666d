"""Demand files: what is written reads back, and what is broken is refused with one sentence."""

import json

import pytest
from hypothesis import given, settings

from taccl_py.demand import ChunkPlace
from taccl_py.demand.files import read_demand, write_demand
from taccl_py.errors import InputError
from tests.demand.cases import demand_of, demands

GOOD = {
    "format": "taccl-demand",
    "version": 1,
    "name": "two pieces",
    "ranks": 4,
    "dtype": "float32",
    "input_bytes": [16, 16, 0, 0],
    "output_bytes": [0, 0, 12, 16],
    "chunks": [
        {"bytes": 12, "holds": {"0": 0, "1": 0}, "wants": {"2": 0, "3": 0}},
        {"bytes": 4, "adds": {"0": 12, "1": 12}, "wants": {"3": 12}},
    ],
}


def read(value):
    return read_demand(json.dumps(value), "my.json")


def test_a_file_says_who_holds_adds_and_wants():
    demand = read(GOOD)
    copied, summed = demand.chunks
    assert copied.holders == ((0, 1),)
    assert not copied.is_sum
    assert summed.holders == ((0,), (1,))
    assert summed.wants == (ChunkPlace(3, 12),)
    assert demand.total_bytes == 12 * 2 + 4


def test_lists_of_ranks_are_laid_out_one_behind_the_other():
    demand = demand_of(
        3, [{"bytes": 4, "holds": [0, 1], "wants": [2]}, {"bytes": 8, "adds": [[0, 1], [2]], "wants": {"1": 4}}]
    )
    assert demand.chunks[1].terms == ((ChunkPlace(0, 4), ChunkPlace(1, 4)), (ChunkPlace(2, 0),))
    assert demand.input_bytes == (12, 12, 8)
    assert demand.output_bytes == (0, 12, 4)


@settings(max_examples=60, deadline=None)
@given(demand=demands())
def test_what_is_written_reads_back(demand):
    assert read_demand(write_demand(demand), "again.json") == demand


def changed(**fields):
    return {**GOOD, **fields}


def with_chunk(**fields):
    chunk = {**GOOD["chunks"][0], **fields}
    return changed(chunks=[{key: value for key, value in chunk.items() if value is not None}])


BROKEN = {
    "a list": [],
    "no format": {"version": 1},
    "another format": changed(format="taccl-schedule"),
    "another version": changed(version=2),
    "no ranks": {key: value for key, value in GOOD.items() if key != "ranks"},
    "one rank": changed(ranks=1),
    "far too many ranks": changed(ranks=10**9),
    "ranks that are a text": changed(ranks="4"),
    "negative ranks": changed(ranks=-3),
    "an unknown type": changed(dtype="float8"),
    "an unknown field": changed(rank=4),
    "an empty name": changed(name=7),
    "too few lengths": changed(input_bytes=[16, 16]),
    "a negative length": changed(output_bytes=[0, 0, -12, 16]),
    "a length that is no number": changed(input_bytes=[16, 16, None, 0]),
    "no chunks": changed(chunks=[]),
    "chunks that are a number": changed(chunks=3),
    "a chunk that is a list": changed(chunks=[[1]]),
    "a chunk without bytes": with_chunk(bytes=None),
    "no bytes at all": with_chunk(bytes=0),
    "half an element": with_chunk(bytes=6),
    "bytes that are a fraction": with_chunk(bytes=1.5),
    "neither holds nor adds": with_chunk(holds=None),
    "both holds and adds": with_chunk(adds={"0": 0, "1": 0}),
    "nobody holds it": with_chunk(holds={}),
    "nobody wants it": with_chunk(wants=[]),
    "no wants": with_chunk(wants=None),
    "a rank that does not exist": with_chunk(holds={"4": 0}),
    "a rank that is no number": with_chunk(holds={"zero": 0}),
    "a rank with a leading zero": with_chunk(holds={"00": 0}),
    "a rank twice": with_chunk(wants=[2, 2]),
    "an offset before the buffer": with_chunk(holds={"0": -4}),
    "an offset inside an element": with_chunk(holds={"0": 2}),
    "a chunk behind its buffer": with_chunk(holds={"0": 8}),
    "a holder without a buffer": with_chunk(holds={"2": 0}),
    "an output that is too short": with_chunk(wants={"1": 0}),
    "holds that is a number": with_chunk(holds=0),
    "one contribution": with_chunk(holds=None, adds={"0": 0}),
    "a rank in two terms": with_chunk(holds=None, adds=[{"0": 0}, {"0": 0}]),
    "an empty term": with_chunk(holds=None, adds=[{"0": 0}, {}]),
    "a term that is a text": with_chunk(holds=None, adds=[{"0": 0}, "1"]),
    "an unknown field of a chunk": with_chunk(weight=3),
    "chunks that lie on each other": changed(chunks=[GOOD["chunks"][0], {"bytes": 4, "holds": {"0": 12}, "wants": {"3": 8}}]),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused_with_one_sentence(name):
    with pytest.raises(InputError) as error:
        read(BROKEN[name])
    assert str(error.value).startswith("my.json")
    assert "\n" not in str(error.value)


def test_the_sentence_names_the_field():
    with pytest.raises(InputError) as error:
        read(BROKEN["a chunk behind its buffer"])
    assert str(error.value) == "my.json: chunks.0.holds: bytes 8..19 of rank 0 lie outside its buffer of 16 bytes"


@pytest.mark.parametrize("text", ["<algo/>", "", "{", '{"format": "taccl-demand"'])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(InputError):
        read_demand(text, "my.json")
