from dataclasses import replace

import pytest

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.limits import most_copies, require_limits, require_sizes
from taccl_py.lowering.program import Gpu, Op, Program, Protocol, Step, Threadblock
from taccl_py.runtimes import EXECUTOR, LEGACY

CELL = Address(Buffer.INPUT, 0)
STEP = Step(Op.COPY, CELL, CELL, 1)
BLOCK = Threadblock(-1, -1, 0, (STEP,))


def program(threadblocks=(BLOCK,), kind=Kind.ALLREDUCE, name="test", channels=1, ranks=1):
    gpus = tuple(Gpu(rank, 1, 1, 0, tuple(threadblocks)) for rank in range(ranks))
    return Program(name, kind, 1, channels, Protocol.LL, True, True, 0, 1, gpus)


def test_a_program_within_all_limits_is_let_through():
    require_limits(program([replace(BLOCK, steps=(STEP,) * 64)] * 60, name="n" * 63, channels=32), EXECUTOR)


@pytest.mark.parametrize(
    ("broken", "limit", "found"),
    [
        (program([replace(BLOCK, steps=(STEP,) * 65)]), "max_steps", "65"),
        (program([BLOCK] * 1025), "max_threadblocks", "1025"),
        (program(channels=33), "max_channels", "33"),
        (program(ranks=1025), "children", "1025"),
        (program([replace(BLOCK, steps=(STEP,) * 60)] * 68), "nodes", str(1 + 1 + 68 + 68 * 60)),
        (program([Threadblock(1, -1, 0, (STEP,))] * 33), "peers_per_channel", "33"),
        (program([Threadblock(-1, 1, 0, (STEP,))] * 33), "peers_per_channel", "33"),
        (program([replace(BLOCK, steps=(replace(STEP, src=Address(Buffer.INPUT, 32768)),))]), "offset", "32768"),
        (program([replace(BLOCK, steps=(replace(STEP, dst=Address(Buffer.SCRATCH, 40000)),))]), "offset", "40000"),
        (program([replace(BLOCK, steps=(replace(STEP, depends_on=(128, 0)),))]), "dependency", "128"),
        (program(name="n" * 64), "name", "64"),
        (program(name=""), "name", "0"),
        (program(name="a<b"), "name", "a<b"),
        (program(name="tab\tname"), "name", "tab"),
    ],
)
def test_each_limit_is_kept(broken, limit, found):
    with pytest.raises(LoweringError, match=found) as caught:
        require_limits(broken, EXECUTOR)
    assert (caught.value.limit, caught.value.runtime) == (limit, "executor")


def test_copies_fit_as_long_as_their_elements_do():
    """One rank: 1 + 1 elements, and 10 * (1 + 60) for each copy."""
    blocks = [replace(BLOCK, steps=(STEP,) * 60)] * 10
    assert most_copies(program(blocks)) == (4095 - 2) // 610 == 6
    require_limits(program(blocks * 6), EXECUTOR)
    with pytest.raises(LoweringError, match=str(2 + 7 * 610)):
        require_limits(program(blocks * 7), EXECUTOR)


def test_the_name_of_a_built_in_alltoall_is_refused_where_it_means_that():
    require_limits(program(name="2D", kind=Kind.ALLTOALL), EXECUTOR)
    require_limits(program(name="2D"), LEGACY)
    with pytest.raises(LoweringError, match="algorithm of its own"):
        require_limits(program(name="2D", kind=Kind.ALLTOALL), LEGACY)


@pytest.mark.parametrize(("least", "most", "selected"), [(9, 15, False), (8, 15, True), (9, 16, True), (0, 7, False)])
def test_some_size_must_be_a_multiple_of_the_chunks(least, most, selected):
    """Of 8 chunks a runtime selects a program for 8, 16, 24 ... bytes."""
    made = replace(program(), num_chunks_per_loop=8, min_bytes=least, max_bytes=most)
    if selected:
        require_sizes(made, EXECUTOR)
        return
    with pytest.raises(
        LoweringError, match=f"from {least} to {most} bytes is a multiple of the program's 8 chunks, which the count"
    ):
        require_sizes(made, EXECUTOR)
