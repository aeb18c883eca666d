"""Collectives of SCCL and msccl-tools as demands: samples written here in their form."""

import json

import pytest

import taccl_py
from taccl_py.collective import Kind
from taccl_py.demand.msccl_collective import is_msccl_collective, read_demand_file, read_msccl_collective
from taccl_py.errors import InputError
from taccl_py.synthesis.demands import recognized
from tests.cli.running import run_here
from tests.demand.cases import stragglar


def chunk(pre, post, addr, key="msccl_type"):
    return {key: "chunk", "pre": pre, "post": post, "addr": addr}


def text(ranks, chunks, key="msccl_type", **more):
    return json.dumps(
        {
            key: "collective",
            "name": "mine",
            "nodes": ranks,
            "chunks": chunks,
            "triggers": {},
            "runtime_name": "custom",
            **more,
        }
    )


def read(ranks, chunks, size=None, dtype=None, **more):
    return read_msccl_collective(text(ranks, chunks, **more), "mine.json", size, dtype)


def test_copies_have_an_address_each():
    demand = read(3, [chunk([0], [1, 2], 5), chunk([1, 0], [2], 7)], size=800)
    assert [one.size_bytes for one in demand.chunks] == [400, 400]
    assert [one.holders for one in demand.chunks] == [((0,),), ((0, 1),)]
    assert [one.wanted for one in demand.chunks] == [(1, 2), (2,)]
    # Rank 0 holds both, rank 1 the second alone, and rank 2 gets both.
    assert demand.input_bytes == (800, 400, 0)
    assert demand.output_bytes == (0, 400, 800)
    assert demand.dtype == "float32"


@pytest.mark.parametrize("key", ["msccl_type", "sccl_type"])
def test_both_programs_files_are_told_from_ours(key):
    assert is_msccl_collective(text(2, [chunk([0], [1], 0, key)], key), "a.json")
    assert is_msccl_collective(json.dumps({key: "algorithm", "collective": {}}), "a.json")
    assert not is_msccl_collective(json.dumps({key: "topology"}), "a.json")
    assert not is_msccl_collective(json.dumps({"format": "taccl-demand"}), "a.json")
    assert read_msccl_collective(text(2, [chunk([0], [1], 0, key)], key), "a.json").num_ranks == 2


def test_kinds_are_what_they_are():
    """AllGather, AllToAll and the sums, by how msccl-tools states them."""
    ranks = range(4)
    made = {
        Kind.ALLGATHER: [chunk([r], list(ranks), r) for r in ranks],
        Kind.ALLTOALL: [chunk([c % 4], [c // 4], c) for c in range(16)],
        Kind.REDUCE: [chunk([r], [0], 0) for r in ranks],
        Kind.ALLREDUCE: [chunk([r], list(ranks), 0) for r in ranks],
        Kind.REDUCESCATTER: [chunk([c % 4], [c // 4], c // 4) for c in range(16)],
    }
    # Addresses times ranks that want and lack them; whoever wants a sum lacks it.
    copies = {Kind.ALLGATHER: 12, Kind.ALLTOALL: 12, Kind.REDUCE: 1, Kind.ALLREDUCE: 4, Kind.REDUCESCATTER: 4}
    for kind, chunks in made.items():
        known = recognized(read(4, chunks))
        assert known is not None
        assert known.kind is kind
        addresses = len({one["addr"] for one in chunks})
        assert read(4, chunks, size=4 * addresses).total_bytes == 4 * copies[kind]


def test_a_scan_is_sums_of_different_ranks():
    """Rank r wants what ranks 0..r have, added: three sums over the same places."""
    demand = read(3, [chunk([r], list(range(r, 3)), 0) for r in range(3)], size=4)
    assert [(one.holders, one.wanted) for one in demand.chunks] == [
        (((0,),), (0,)), (((0,), (1,)), (1,)), (((0,), (1,), (2,)), (2,)),
    ]  # fmt: skip
    assert demand.input_bytes == demand.output_bytes == (4, 4, 4)


def test_inputs_that_are_reduced_already_are_stragglars():
    """Summands of ranks 0..2 of part p lie on rank p as their sum; rank 3 is late."""
    chunks = [chunk([part] if r < 3 else [3], [0, 1, 2, 3], part) for part in range(3) for r in range(4)]
    demand = read(4, chunks, size=36)
    same = stragglar(4, 36)
    assert [(c.size_bytes, c.holders, c.wanted) for c in demand.chunks] == [
        (c.size_bytes, c.holders, c.wanted) for c in same.chunks
    ]


def test_an_algorithm_has_its_collective():
    whole = json.dumps(
        {"msccl_type": "algorithm", "name": "a", "steps": [], "collective": json.loads(text(2, [chunk([0], [1], 0)]))}
    )
    assert read_msccl_collective(whole, "a.json", 8).chunks[0].size_bytes == 8


def test_a_small_size_is_an_element_of_each_address():
    assert [one.size_bytes for one in read(2, [chunk([0], [1], a) for a in range(3)], size=1).chunks] == [4, 4, 4]
    assert read(2, [chunk([0], [1], 0)]).chunks[0].size_bytes == 1_000_000


@pytest.mark.parametrize(
    ("ranks", "chunks", "more", "what"),
    [
        (1, [chunk([0], [0], 0)], {}, "nodes"),
        (2, [], {}, "nobody|anybody"),
        (2, [chunk([0], [], 0)], {}, "anybody"),
        (2, [chunk([], [1], 0)], {}, "pre"),
        (2, [chunk([2], [1], 0)], {}, "rank 2"),
        (2, [chunk([0], [2], 0)], {}, "rank 2"),
        (2, [chunk([0], ["1"], 0)], {}, "whole number"),
        (2, [chunk([0], [1], -1)], {}, "addr"),
        (2, [{"pre": [0], "post": [1], "addr": 0}], {}, "msccl_type"),
        (2, [chunk([0], [1], 0)], {"triggers": {"0": {"0": 1}}}, "triggers"),
        (3, [chunk([0], [2], 0), chunk([0], [1], 0)], {}, "holds several summands"),
        (3, [chunk([0], [2], 0), chunk([0, 1], [2], 0)], {}, "holds several summands"),
        (2, [chunk([0], [1], 0)], {"nodes": "two"}, "nodes"),
    ],
)  # fmt: skip
def test_what_no_demand_states_is_refused_in_one_sentence(ranks, chunks, more, what):
    with pytest.raises(InputError, match=what) as caught:
        read_msccl_collective(text(ranks, chunks) if not more else text(ranks, chunks, **more), "mine.json")
    assert "mine.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_commands_take_it(tmp_path, capsys):
    file = tmp_path / "mine.json"
    file.write_text(text(3, [chunk([0], [1, 2], 0), chunk([1], [2], 1)]))
    done = run_here(capsys, "synth", "full:3", file, "--size", "8KB", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert run_here(capsys, "check", tmp_path / "out").code == 0
    assert run_here(capsys, "bound", "full:3", file).code == 0
    refused = run_here(capsys, "synth", "full:3", tmp_path / "out" / "demand.json", "--size", "8KB")
    assert refused.code == 2
    assert "is part of a demand file" in refused.err


def test_python_takes_it(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(text(2, [chunk([0], [1], 0)]))
    assert taccl_py.load_demand(file, size="8KB", dtype="fp16").chunks[0].size_bytes == 8000
    assert read_demand_file(file, 8000).dtype == "float32"
    with pytest.raises(InputError, match="size"):
        taccl_py.load_demand("alltoallv", [[0, 1], [1, 0]], size="8KB")
