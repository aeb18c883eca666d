import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import COMBINING, Kind
from taccl_py.execute.arithmetic import combine, decode, divide
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.promise import CallTask, ExpectedOutputs, draw_input

TYPES = pytest.mark.parametrize("data_type", DataType)


def task(kind, num_ranks=3, share=2, *, root=0, data_type=DataType.INT32, operator=None, seed=0):
    inputs = (
        share
        if kind in (Kind.ALLGATHER, Kind.GATHER, Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE)
        else share * num_ranks
    )
    operator = operator or (Operator.SUM if kind in COMBINING else None)
    return CallTask(kind, num_ranks, root, inputs, share, data_type, operator, seed)


def outputs(one):
    promises = ExpectedOutputs(one)
    return [promises.output(rank) for rank in range(one.num_ranks)]


def test_each_collective_by_hand():
    """Inputs are named a, b, c by rank; shares have two elements."""
    a, b, c = (draw_input(task(Kind.ALLGATHER), rank).tolist() for rank in range(3))
    assert [out.tolist() for out in outputs(task(Kind.ALLGATHER))] == [a + b + c] * 3
    assert [out if out is None else out.tolist() for out in outputs(task(Kind.GATHER, root=1))] == [
        None,
        a + b + c,
        None,
    ]
    assert [out.tolist() for out in outputs(task(Kind.BROADCAST, root=2))] == [c] * 3
    a, b, c = (draw_input(task(Kind.ALLTOALL), rank).tolist() for rank in range(3))
    assert [out.tolist() for out in outputs(task(Kind.ALLTOALL))] == [
        a[k : k + 2] + b[k : k + 2] + c[k : k + 2] for k in (0, 2, 4)
    ]
    assert [out.tolist() for out in outputs(task(Kind.SCATTER, root=1))] == [b[:2], b[2:4], b[4:]]
    whole = task(Kind.ALLREDUCE, data_type=DataType.FLOAT64)
    sums = [sum(float(draw_input(whole, rank)[k]) for rank in range(3)) for k in range(2)]
    assert [out.tolist() for out in outputs(whole)] == [sums] * 3
    assert outputs(task(Kind.REDUCE, root=1, data_type=DataType.FLOAT64))[1].tolist() == sums
    assert outputs(task(Kind.REDUCE, root=1))[0] is None


def test_reducescatter_gives_each_rank_its_part_of_the_sum():
    parts, whole = task(Kind.REDUCESCATTER), task(Kind.ALLREDUCE, share=6)
    assert np.concatenate(outputs(parts)).tolist() == outputs(whole)[0].tolist()


@pytest.mark.parametrize("operator", Operator)
@TYPES
@settings(max_examples=10)
@given(num_ranks=st.integers(2, 40), seed=st.integers(0, 9), data=st.data())
def test_every_order_of_the_operations_gives_the_promised_bits(data_type, operator, num_ranks, seed, data):
    one = task(Kind.ALLREDUCE, num_ranks, 16, data_type=data_type, operator=operator, seed=seed)
    parts = [draw_input(one, rank) for rank in data.draw(st.permutations(range(num_ranks)))]
    while len(parts) > 1:
        other = parts.pop(data.draw(st.integers(1, len(parts) - 1)))
        parts[0] = combine(operator, data_type, parts[0], other)
    found = divide(parts[0], data_type, num_ranks) if operator is Operator.AVG else parts[0]
    wanted = ExpectedOutputs(one).output(0)
    assert np.all(np.isfinite(decode(wanted, data_type)))
    assert decode(found, data_type).tolist() == decode(wanted, data_type).tolist()


@pytest.mark.parametrize("num_ranks", [2, 8, 100])
@pytest.mark.parametrize("operator", [Operator.SUM, Operator.PROD, Operator.AVG])
@TYPES
def test_a_contribution_that_is_lost_or_counts_twice_shows(data_type, operator, num_ranks):
    """Each rank's part changes the result somewhere, whether it comes once more or not at all."""
    one = task(Kind.ALLREDUCE, num_ranks, 128, data_type=data_type, operator=operator)
    parts = [draw_input(one, rank) for rank in range(num_ranks)]
    neutral = decode(parts[0], data_type).dtype.type(1 if operator is Operator.PROD else 0)
    for part in parts:
        assert np.any(decode(part, data_type) != neutral)
    total = parts[0]
    for part in parts[1:]:
        total = combine(operator, data_type, total, part)
    for part in (parts[0], parts[-1]):
        twice = combine(operator, data_type, total, part)
        assert np.any(decode(twice, data_type) != decode(total, data_type))


@TYPES
def test_data_depend_on_rank_and_seed_and_nothing_else(data_type):
    one = task(Kind.ALLGATHER, share=64, data_type=data_type)
    assert draw_input(one, 0).tobytes() == draw_input(one, 0).tobytes()
    assert draw_input(one, 0).tobytes() != draw_input(one, 1).tobytes()
    assert (
        draw_input(one, 0).tobytes()
        != draw_input(task(Kind.ALLGATHER, share=64, data_type=data_type, seed=1), 0).tobytes()
    )


def test_averages_of_large_integers_are_exact():
    one = task(Kind.ALLREDUCE, 3, 4, data_type=DataType.INT64, operator=Operator.AVG)
    sums = [sum(int(draw_input(one, rank)[k]) for rank in range(3)) for k in range(4)]
    assert ExpectedOutputs(one).output(0).tolist() == [abs(s) // 3 * (1 if s > 0 else -1) for s in sums]
