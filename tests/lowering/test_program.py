from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.program import Gpu, Program, Protocol, chunks_of_size
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL

GPUS = tuple(Gpu(rank, 0, 0, 0, ()) for rank in range(3))
PROGRAM = Program("p", Kind.ALLGATHER, 6, 1, Protocol.SIMPLE, True, True, 0, 1 << 20, GPUS)


@pytest.mark.parametrize("runtime", [None, EXECUTOR, RCCL], ids=lambda r: r.name if r else "any")
def test_a_gather_of_one_ranks_shard_is_larger_than_that(runtime):
    for kind in (Kind.GATHER, Kind.SCATTER):
        assert chunks_of_size(replace(PROGRAM, kind=kind), runtime) == 18
    assert chunks_of_size(PROGRAM, runtime) == 6


def test_a_custom_collective_is_counted_whole():
    for kind in (Kind.GATHER, Kind.SCATTER, Kind.ALLGATHER, Kind.BROADCAST):
        assert chunks_of_size(replace(PROGRAM, kind=kind), LEGACY) == 6
