from dataclasses import replace

import pytest

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.limits import require_limits
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


def test_the_name_of_a_built_in_alltoall_is_refused_where_it_means_that():
    require_limits(program(name="2D", kind=Kind.ALLTOALL), EXECUTOR)
    require_limits(program(name="2D"), LEGACY)
    with pytest.raises(LoweringError, match="algorithm of its own"):
        require_limits(program(name="2D", kind=Kind.ALLTOALL), LEGACY)
