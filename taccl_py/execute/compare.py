"""Results against promises: how many elements are wrong, and which one is the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.collective import Buffer
from taccl_py.execute.arithmetic import Array, decode, divide
from taccl_py.execute.memory import RankMemory, starts_with_input
from taccl_py.execute.plan import ExecutablePlan, Operator
from taccl_py.execute.promise import CallTask, ExpectedOutputs, draw_input


@dataclass(frozen=True, slots=True)
class WrongElement:
    """The first wrong element of a rank.

    Attributes
    ----------
    rank, buffer, chunk, offset
        Where: `offset` counts elements inside the chunk.
    found, wanted
        Text of the values.
    """

    rank: int
    buffer: Buffer
    chunk: int
    offset: int
    found: str
    wanted: str

    def __str__(self) -> str:
        """One clause."""
        name = "output" if self.buffer is Buffer.OUTPUT else "input (which must stay as it was)"
        return (
            f"rank {self.rank}, chunk {self.chunk} of the {name}, offset {self.offset}: "
            f"found {self.found}, {self.wanted} is right"
        )


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """Wrong elements of one rank or of all, and the first of them."""

    num_wrong: int
    first: WrongElement | None


def compare_rank(
    plan: ExecutablePlan, promises: ExpectedOutputs, memory: RankMemory, rank: int, *, in_place: bool
) -> ResultCheck:
    """Compare what a rank holds with what it must hold; out of place its input must be as before."""
    found, task = [], promises.task
    output, promise = memory.elements(Buffer.OUTPUT), promises.output(rank)
    if promise is not None and output is not None:
        if task.operator is Operator.AVG:
            output = divide(output, task.data_type, task.num_ranks)
        found.append(_compare(plan, task, rank, Buffer.OUTPUT, output, promise))
    given = memory.elements(Buffer.INPUT)
    if not in_place and given is not None and starts_with_input(plan, rank):
        found.append(_compare(plan, task, rank, Buffer.INPUT, given, draw_input(task, rank)))
    return total(found)


def total(comparisons: Sequence[ResultCheck]) -> ResultCheck:
    """All of them as one."""
    first = next((one.first for one in comparisons if one.first is not None), None)
    return ResultCheck(sum(one.num_wrong for one in comparisons), first)


def _compare(
    plan: ExecutablePlan, task: CallTask, rank: int, buffer: Buffer, found: Array, wanted: Array
) -> ResultCheck:
    if task.operator is None:
        bits = np.dtype(f"u{found.dtype.itemsize}")
        wrong = found.view(bits) != wanted.view(bits)
    else:
        wrong = decode(found, task.data_type) != decode(wanted, task.data_type)
    count = int(np.count_nonzero(wrong))
    if not count:
        return ResultCheck(0, None)
    index = int(np.argmax(wrong))
    chunk_elements = task.shard_elements // plan.shard_chunks
    values = [str(decode(values[index : index + 1], task.data_type)[0]) for values in (found, wanted)]
    if values[0] == values[1]:  # not a number twice, with other bits
        values = [f"{values[0]} (bits {array[index : index + 1].tobytes()[::-1].hex()})" for array in (found, wanted)]
    return ResultCheck(count, WrongElement(rank, buffer, *divmod(index, chunk_elements), *values))
