"""Which backend carries messages, and what NCCL has to be told where ranks share a GPU."""

import pytest

from taccl_py.errors import InputError
from taccl_py.execute.plan import Backend
from taccl_py.execute.torch_wire import ProcessSeat, choose_backend, let_share

ALONE = [ProcessSeat("a", 0, "g0"), ProcessSeat("a", 1, "g1"), ProcessSeat("b", 0, "g0")]
SHARED = [ProcessSeat("a", 0, "g0"), ProcessSeat("a", 1, "g1"), ProcessSeat("a", 2, "g0")]
WITHOUT = [ProcessSeat("a", 0, "g0"), ProcessSeat("b", 0, None)]


@pytest.mark.parametrize(
    ("wanted", "seats", "found"),
    [
        (Backend.AUTO, ALONE, Backend.NCCL),
        (Backend.AUTO, SHARED, Backend.GLOO),
        (Backend.AUTO, WITHOUT, Backend.GLOO),
        (Backend.GLOO, ALONE, Backend.GLOO),
        (Backend.NCCL, SHARED, Backend.NCCL),
    ],
)
def test_nccl_is_chosen_where_each_rank_has_a_gpu_for_itself(wanted, seats, found):
    assert choose_backend(wanted, seats) is found


def test_nccl_without_a_gpu_is_refused():
    with pytest.raises(InputError, match=r"--backend: nccl needs a GPU.* on the host of rank 1; use gloo"):
        choose_backend(Backend.NCCL, WITHOUT)


@pytest.mark.parametrize(
    ("seats", "before", "after"),
    [
        (ALONE, {}, {}),
        (SHARED, {}, {"NCCL_HOSTID": "a-2"}),
        (SHARED, {"NCCL_HOSTID": "mine"}, {"NCCL_HOSTID": "mine"}),
        (SHARED, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}),
    ],
)
def test_ranks_that_share_a_gpu_get_hosts_unless_the_user_has_said_how(seats, before, after):
    let_share(seats, 2, before)
    assert before == after
