"""What a call on tensors is, and what is wrong with some."""

import importlib.util

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.torch.tensors import Arithmetic, CallRequest, describe_call, is_in_place

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed; pip install '.[torch]'"
)


def described(kind, *tensors, rank=1, peers=(4, 6, 8, 9), **words):
    import torch
    import torch.distributed

    names = [f"tensor {number}" for number in range(len(tensors))]
    operators = torch.distributed.ReduceOp
    known = {operators.SUM: Arithmetic("sum", torch.add), operators.AVG: Arithmetic("avg", torch.add, is_mean=True)}
    return describe_call(torch, CallRequest(kind, tuple(zip(names, tensors, strict=True)), **words), rank, peers, known)


def ones(*shape, **words):
    import torch

    return torch.ones(shape, **words)


def test_a_size_is_that_of_the_whole_buffer_whatever_its_shape():
    shapes = [
        described(Kind.ALLREDUCE, ones(3, 8)).shape,
        described(Kind.ALLGATHER, ones(4, 6), ones(6)).shape,
        described(Kind.REDUCESCATTER, ones(6), ones(24)).shape,
        described(Kind.ALLTOALL, ones(24), ones(4, 6)).shape,
        described(Kind.BROADCAST, ones(24), source=(8, None)).shape,
    ]
    assert [shape.size_bytes for shape in shapes] == 5 * [96]
    assert [shape.in_place for shape in shapes] == [True, False, False, False, True]
    assert shapes[-1].root == 2


def test_the_text_tells_calls_apart():
    import torch

    texts = [
        described(Kind.ALLREDUCE, ones(8)).text,
        described(Kind.ALLREDUCE, ones(8), op=torch.distributed.ReduceOp.AVG).text,
        described(Kind.BROADCAST, ones(8, dtype=torch.bfloat16), source=(None, 3)).text,
        described(Kind.ALLTOALL, ones(8), ones(8)).text,
        described(Kind.ALLTOALL, ones(7), ones(9), splits=([4, 1, 1, 1], [3, 2, 2, 2])).text,
    ]
    assert texts == [
        "all_reduce of 8 float32 elements (sum)",
        "all_reduce of 8 float32 elements (avg)",
        "broadcast of 8 bfloat16 elements from rank 3",
        "all_to_all_single of 8 float32 elements out of place",
        "all_to_all_single of float32 elements with split sizes",
    ]


def test_what_is_left_to_the_backend_whatever_files_there_are():
    import torch

    operators = torch.distributed.ReduceOp
    assert [each.left_to_backend for each in (
        described(Kind.ALLREDUCE, ones(8), op=operators.BAND),
        described(Kind.ALLREDUCE, ones(8, dtype=torch.complex64)),
        described(Kind.ALLREDUCE, ones(8, dtype=torch.int32), op=operators.AVG),
        described(Kind.ALLREDUCE, ones(8), peers=(4,), rank=0),
        described(Kind.ALLREDUCE, ones(0)),
        described(Kind.ALLGATHER, ones(8, dtype=torch.complex64), ones(2, dtype=torch.complex64)),
    )] == [
        "all_reduce with RedOpType.BAND is left to it",
        "all_reduce (sum) of complex64 is left to it",
        "all_reduce (avg) of int32 is left to it",
        "the group has one rank",
        "the tensors of all_reduce are empty",
        "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: described(Kind.ALLREDUCE, 3.0), "all_reduce: tensor 0: found float, a tensor is needed"),
        (lambda: described(Kind.ALLREDUCE, ones(4, 4).T), "is not contiguous"),
        (lambda: described(Kind.ALLREDUCE, ones(4, 4).to_sparse()), "is sparse; call .to_dense"),
        (lambda: described(Kind.ALLGATHER, ones(9), ones(2)), "tensor 0: has 9 elements, 4 ranks with 2 need 8"),
        (lambda: described(Kind.REDUCESCATTER, ones(2), ones(9)), "tensor 1: has 9 elements, 4 ranks with 2 need 8"),
        (lambda: described(Kind.ALLTOALL, ones(8), ones(4)), "tensor 1: has 4 elements, and the output 8"),
        (lambda: described(Kind.ALLTOALL, ones(6), ones(6)), "its first dimension, 6, is no multiple of the 4 ranks"),
        (lambda: described(Kind.ALLTOALL, ones(8).double(), ones(8)), "is of float32, the output of float64"),
        (lambda: described(Kind.ALLTOALL, ones(8), ones(8, device="meta")), "is on meta, the output on cpu"),
        (lambda: described(Kind.BROADCAST, ones(8)), "src: give either src or group_src"),
        (lambda: described(Kind.BROADCAST, ones(8), source=(4, 0)), "src: give either src or group_src"),
        (lambda: described(Kind.BROADCAST, ones(8), source=(5, None)), "src: rank 5 is not in the group"),
        (lambda: described(Kind.BROADCAST, ones(8), source=(None, 4)), "group_src: found 4, ranks are 0..3"),
    ],
)
def test_calls_that_no_backend_would_make_are_refused(make, what):
    with pytest.raises(InputError) as refused:
        make()
    assert what in str(refused.value)


def test_in_place_is_the_own_part_of_the_longer_one():
    both, rank = ones(8), 1
    assert is_in_place(Kind.ALLGATHER, both, both[2:4], rank)
    assert is_in_place(Kind.REDUCESCATTER, both[2:4], both, rank)
    assert is_in_place(Kind.ALLTOALL, both, both.view(2, 4), rank)
    assert not is_in_place(Kind.ALLGATHER, both[:4], both[4:5], rank)
    for output, source in ((both, both[4:6]), (both[:6], both[5:7]), (both[:4], both[2:6]), (both[1:5], both[:4])):
        with pytest.raises(InputError, match="share memory, and not as in a call in place"):
            is_in_place(Kind.ALLTOALL, output, source, rank)


def test_operators_that_are_objects_are_the_same_on_all_ranks():
    """Their texts have addresses; one without a factor is the plain one."""
    import torch

    operators = torch.distributed.ReduceOp
    assert (
        described(Kind.ALLREDUCE, ones(8), op=operators(operators.SUM)).text == described(Kind.ALLREDUCE, ones(8)).text
    )
    factors = [described(Kind.ALLREDUCE, ones(8), op=torch.distributed._make_nccl_premul_sum(2.0)) for _ in range(2)]
    assert factors[0].text == factors[1].text
    assert factors[0].left_to_backend


@pytest.mark.parametrize("op", ["sum", 3])
def test_what_is_no_operator_is_refused(op):
    with pytest.raises(
        InputError, match=r"all_reduce: op: found .*, an operator of torch.distributed.ReduceOp is needed"
    ):
        described(Kind.ALLREDUCE, ones(8), op=op)


def test_calls_with_split_sizes_are_the_same_wherever_the_tensors_lie():
    """One rank may call in place and another one not; all must agree in the same step."""
    source = ones(8)
    splits = ([2, 2, 2, 2], [2, 2, 2, 2])
    calls = [described(Kind.ALLTOALL, output, source, splits=splits) for output in (source, ones(8))]
    assert calls[0].shape == calls[1].shape
