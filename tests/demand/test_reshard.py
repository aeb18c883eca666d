"""Resharding, compared with slices of a tensor that are cut by DTensor's rules written down a second time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.demand.reshard import parse_shape, parse_sharding, reshard
from taccl_py.errors import InputError
from taccl_py.execute.demand import RunnableDemand, run_demand
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import full


def shards(tensor, text):
    """Local tensor of every rank of a sharding; of a partial sum, a summand that is drawn so that all of them add up."""
    ranks_text, mesh_text, placements = text.split(":")
    first, _, last = ranks_text.partition("-")
    ranks = range(int(first), int(last or first) + 1)
    mesh = tuple(map(int, mesh_text.split("x")))
    words = placements.split(",")
    sums = [range(n) for n, word in zip(mesh, words, strict=True) if word == "P"]
    summands = {}
    rng = np.random.default_rng(5)
    left = tensor
    for key in list(itertools.product(*sums))[:-1]:
        summands[key] = rng.integers(0, 50, tensor.shape).astype(tensor.dtype)
        left = left - summands[key]
    summands[tuple(n[-1] for n in sums)] = left
    found = {}
    for rank, place in zip(ranks, itertools.product(*map(range, mesh)), strict=True):
        local = summands[tuple(p for p, word in zip(place, words, strict=True) if word == "P")]
        for axis, word in enumerate(words):
            if word.startswith("S"):
                local = chunk(local, mesh[axis], int(word[1:]))[place[axis]]
        found[rank] = local
    return found


def chunk(tensor, parts, dim):
    """torch.chunk: pieces of ceil(n / parts), the last ones shorter or empty."""
    size = max(1, -(-tensor.shape[dim] // parts))
    return np.split(tensor, range(size, size * parts, size), axis=dim)


def offsets(shape, text):
    """Where the local tensor of every rank begins in the whole."""
    index = np.arange(np.prod(shape)).reshape(shape)
    return {
        rank: np.unravel_index(local.flat[0], shape) if local.size else None
        for rank, local in shards(index, text.replace("P", "R")).items()
    }


def local_part(local, offset, box):
    return local[tuple(slice(low - at, high - at) for low, high, at in zip(box.low, box.high, offset, strict=True))]


def inputs_of(resharding, tensor, text):
    """Inputs as the demand wants them: boxes one behind the other."""
    demand = resharding.demand
    found = [np.zeros(length // 4, dtype=tensor.dtype) for length in demand.input_bytes]
    locals_, starts = shards(tensor, text), offsets(tensor.shape, text)
    for box, chunk_ in zip(resharding.boxes, demand.chunks, strict=True):
        for term in chunk_.terms:
            for rank, at in term:
                part = local_part(locals_[rank], starts[rank], box).ravel()
                found[rank][at // 4 : at // 4 + part.size] = part
    return found


def check(shape, source, target, topology):
    """Reshard a random tensor over a schedule that was found, and compare the other side's shards."""
    tensor = np.random.default_rng(1).integers(0, 1000, shape).astype(np.int32)
    found = reshard(shape, "int32", parse_sharding(source), parse_sharding(target), topology.num_ranks)
    schedule = solve_demand(topology, found.demand, Limits(seconds=0.2, by_work=True)).schedule
    assert verify_demand_schedule(schedule, found.demand) == ()
    runnable = RunnableDemand.read(write_demand_schedule(schedule), "schedule.json")
    done = run_demand(runnable, inputs_of(found, tensor, source))
    assert done.num_wrong == 0, done.first_wrong
    wanted, starts = shards(tensor, target), offsets(shape, target)
    for rank, local in wanted.items():
        assert found.demand.output_bytes[rank] == local.size * 4
    for box, chunk_ in zip(found.boxes, found.demand.chunks, strict=True):
        for rank, at in chunk_.wants:
            part = local_part(wanted[rank], starts[rank], box).ravel()
            assert np.array_equal(done.outputs[rank][at // 4 : at // 4 + part.size], part)


@pytest.mark.parametrize(
    ("shape", "source", "target"),
    [
        ((8, 6), "0-3:2x2:S0,R", "0-3:2x2:R,S1"),
        ((8, 6), "0-3:4:S0", "4-5:2:S1"),
        ((7, 5), "0-3:4:S0", "0-2:3:S0"),
        ((5,), "0-3:4:S0", "0-5:6:S0"),
        ((6, 4), "0-3:2x2:P,S0", "0-3:2x2:S1,R"),
        ((6, 4), "0-3:2x2:P,P", "4-5:2:R"),
        ((9, 4), "0-3:2x2:S0,S0", "0-3:4:S0"),
        ((6, 4), "0-5:2x3:R,P", "0-5:6:R"),
    ],
)
def test_shards_come_out_as_slices_of_the_tensor(shape, source, target):
    check(shape, source, target, full(6))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_resharding_of_a_small_tensor(data):
    shape = data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    texts = []
    for side in "SRP", "SR":
        mesh = data.draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3), (3, 2)]))
        ranks = int(np.prod(mesh))
        first = data.draw(st.integers(0, 6 - ranks))
        words = [
            data.draw(st.sampled_from([f"{k}{d}" for k in side for d in ((0, 1) if k == "S" else ("",))])) for _ in mesh
        ]
        texts.append(f"{first}-{first + ranks - 1}:{'x'.join(map(str, mesh))}:{','.join(words)}")
    check(shape, *texts, full(6))


def test_even_cuts_make_one_box_for_each_pair():
    found = reshard((1024, 1024, 512), "float32", parse_sharding("0-7:2x4:S1,S1"), parse_sharding("8-15:2x4:S0,S0"), 16)
    assert len(found.boxes) == 64
    assert {chunk.size_bytes for chunk in found.demand.chunks} == {1 << 25}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("0-3:4:S2", "0-3:4:R"),
        ("0-3:4:S0", "0-3:4:P"),
        ("0-8:9:S0", "0-3:4:R"),
    ],
)
def test_what_does_not_fit_is_refused(source, target):
    with pytest.raises(InputError):
        reshard((8, 8), "float32", parse_sharding(source), parse_sharding(target), 8)


@pytest.mark.parametrize(
    "text", ["", "0-3", "0-3:4", "0-3:4:X", "0-3:2x2:S0", "0-3:3:S0", "0,0:2:R", "0-3:4:S0:R", "0-3:4:s0", "0-3:0:R"]
)
def test_shardings_that_are_none_are_refused(text):
    with pytest.raises(InputError):
        parse_sharding(text)


def test_shapes():
    assert parse_shape("1024x3") == (1024, 3)
    for text in ("", "0", "3x", "3x0", "axb"):
        with pytest.raises(InputError):
            parse_shape(text)


def test_a_sharding_is_written_as_it_is_read():
    for text in ("0-15:4x4:S0,R", "0-3:2x2:P,S1"):
        assert str(parse_sharding(text)) == text
